"""A mosquitto bridge in its default configuration: it says by a will and by retained messages below
`$SYS` whether it is connected."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop_tests.conftest import Server
from interop_tests.mqtt_raw_client import RawClient
from interop_tests.mqtt_wire import puback, publish

MOSQUITTO = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
WAIT_SECONDS_MAX = 30.0

pytestmark = pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed")


def is_open(port: int) -> bool:
    """Whether somebody listens there."""
    with socket.socket() as trying:
        return trying.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def bridge(server: Server, tmp_path: Path) -> Iterator[int]:
    """A mosquitto with a bridge to the server; its port."""
    assert MOSQUITTO is not None
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    config = tmp_path / "mosquitto.conf"
    config.write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\npersistence false\n"
        f"connection up\naddress 127.0.0.1:{server.mqtt_port}\ntopic t/# both 1\n"
    )
    with (tmp_path / "mosquitto.log").open("wb") as log:
        process = subprocess.Popen([MOSQUITTO, "-v", "-c", str(config)], stdout=log, stderr=log)
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not is_open(port):
        assert time.monotonic() < deadline
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.05)
        assert process.poll() is None
    yield port
    process.terminate()
    process.wait(WAIT_SECONDS_MAX)


def send_until_it_comes(
    publisher: RawClient, subscriber: RawClient, topic: str, body: bytes
) -> None:
    """Publish until the bridge is there and brings it."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    subscriber.socket.settimeout(0.5)
    packet_id = 0
    while time.monotonic() < deadline:
        packet_id += 1
        publisher.send(publish(topic, body, qos=1, packet_id=packet_id))
        publisher.expect(puback(packet_id))
        try:
            message = subscriber.receive_publish()
        except TimeoutError:
            continue
        assert (message.topic, message.body) == (topic, body)
        return
    raise AssertionError("the bridge did not bring it")


@pytest.mark.parametrize("direction", ["to us", "to mosquitto"])
@pytest.mark.slow
def test_a_bridge_in_its_default_configuration(server: Server, bridge: int, direction: str) -> None:
    """Messages cross it both ways."""
    ports = [bridge, server.mqtt_port]
    if direction != "to us":
        ports.reverse()
    with (
        RawClient.connected(ports[0], "publisher") as publisher,
        RawClient.connected(ports[1], "subscriber") as subscriber,
    ):
        subscriber.subscribe(("t/#", 0))
        send_until_it_comes(publisher, subscriber, "t/x", b"over the bridge")
