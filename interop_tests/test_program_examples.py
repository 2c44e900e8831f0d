"""The programs in examples/, run as their heads say, each protocol's against the others'."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from interop_tests.conftest import Server

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
PROGRAM_SECONDS_MAX = 180.0


def run(name: str, *arguments: object) -> str:
    ended = subprocess.run(
        [sys.executable, EXAMPLES / name, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=PROGRAM_SECONDS_MAX,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


class Subscriber:
    """A program that prints a line when it has subscribed and one for each message."""

    def __init__(self, name: str, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, EXAMPLES / name, *map(str, arguments)],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.first = self.line()

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        assert self.process.wait(PROGRAM_SECONDS_MAX) == 0
        assert self.process.stdout is not None
        self.process.stdout.close()


def test_the_same_place_in_every_protocol(server: Server) -> None:
    """MQTT and AMQP subscribers get what MQTT, AMQP and curl publish."""
    mqtt = Subscriber("mqtt_subscribe.py", "sensors/#", "--port", server.mqtt_port, "--count", 3)
    assert mqtt.first == "subscribed to sensors/#"
    amqp = Subscriber("amqp_receive.py", "#", "--port", server.amqp_port, "--count", 3)
    assert amqp.first == "bound example to sensors with #"
    run("mqtt_publish.py", "sensors/room1/temp", "20.5", "--port", server.mqtt_port)
    assert mqtt.line() == "sensors/room1/temp 20.5"
    assert amqp.line() == "room1.temp (no content type) 20.5"
    run("amqp_send.py", "room2.temp", "21.5", "--port", server.amqp_port)
    assert mqtt.line() == "sensors/room2/temp 21.5"
    assert amqp.line() == "room2.temp (text/plain) 21.5"
    curl(server)
    assert mqtt.line() == "sensors/room1/temp 21.5 °C"
    assert amqp.line() == "room1.temp (text/plain) 21.5 °C"
    mqtt.end()
    amqp.end()


def curl(server: Server) -> str:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    ended = subprocess.run(
        ["sh", EXAMPLES / "http_events.sh", f"http://{server.host}:{server.http_port}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=PROGRAM_SECONDS_MAX,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def test_curl_receives_what_it_published_and_acknowledges_it(server: Server) -> None:
    lines = curl(server).splitlines()
    received = next(json.loads(line) for line in lines if line.startswith('{"value"'))
    (item,) = received["value"]
    assert item["event"]["type"] == "room1.temp"
    assert item["event"]["data"] == "21.5 °C"
    (token,) = json.loads(lines[-1])["succeededLockTokens"]
    assert token == item["brokerProperties"]["lockToken"]


def test_a_session_keeps_what_comes_while_its_program_is_away(server: Server) -> None:
    arguments = ("kept/#", "--session", "s1", "--port", server.mqtt_port, "--count", 1)
    first = Subscriber("mqtt_subscribe.py", *arguments)
    run("mqtt_publish.py", "kept/a", "now", "--port", server.mqtt_port)
    assert first.line() == "kept/a now"
    first.end()
    run("mqtt_publish.py", "kept/b", "later", "--port", server.mqtt_port)
    second = Subscriber("mqtt_subscribe.py", *arguments)
    # What waited may come before the SUBACK of this subscription.
    assert "kept/b later" in (second.first, second.line())
    second.end()


@pytest.mark.spark
def test_spark_reads_a_topic(server: Server) -> None:
    run("mqtt_publish.py", "sensors/room1/temp", "20.5", "--port", server.mqtt_port)
    broker = f"{server.host}:{server.rocketmq_port}"
    table = run("spark_read.py", "sensors", "--broker", broker)
    assert "room1.temp" in table
    assert "20.5" in table
    assert "1 messages" in table
