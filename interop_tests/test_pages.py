"""Pages of the documentation do what they say: their commands and programs, against servers."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import paho.mqtt.client as mqtt
import pika
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from interop_tests.conftest import Server, StartServer
from interop_tests.pages import ROOT, Page, agrees, commands

pytestmark = pytest.mark.slow(seconds=60)

NEEDS = {
    "start-mqtt.md": "mosquitto_sub",
    "../README.md": "mosquitto_sub",
    "start-http.md": "curl",
    "monitoring.md": "curl",
    "troubleshooting.md": "curl",
}
"""Programs that a page needs beside the packages of the tests."""
PASSWORD = "a password of the device"
DEFINITIONS = {
    "exchanges": [
        {"name": "shop", "type": "topic", "durable": True, "auto_delete": False,
         "internal": False, "arguments": {}},
    ],
    "queues": [
        {"name": "orders", "durable": True, "auto_delete": False,
         "arguments": {"x-queue-type": "quorum", "x-max-length": 100}},
    ],
    "bindings": [
        {"source": "shop", "destination": "orders", "destination_type": "queue",
         "routing_key": "new.#", "arguments": {}},
    ],
    "policies": [],
}  # fmt: skip
"""What `rabbitmqctl export_definitions` writes of a small broker, as far as the page reads it."""


def page(name: str, server: Server, directory: Path, **others: int) -> Page:
    """The page, in an empty directory; `others` are further ports, with `port_` before the number
    that the page has."""
    if (program := NEEDS.get(name)) is not None and shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    ports = {
        1883: server.mqtt_port,
        5672: server.amqp_port,
        8080: server.http_port,
        10911: server.rocketmq_port,
        9464: server.admin_port,
    }
    ports |= {int(name.removeprefix("port_")): port for name, port in others.items()}
    directory.mkdir()
    (directory / "shop.password").write_text("a password of the shop\n", encoding="utf-8")
    return Page(name, directory, ports, settings_of(server))


def settings_of(server: Server) -> dict[str, str]:
    """What commands find the server by, and ports that nobody else has."""
    ports = {f"POLYMQ_{name}__PORT": "0" for name in ("MQTT", "AMQP", "HTTP", "ROCKETMQ", "NAMES")}
    return {"POLYMQ_SERVER__DATA_DIRECTORY": str(server.data_directory), **ports}


def run_commands(server: Server, *lines: str) -> None:
    environment = settings_of(server) | {"PYTHONPATH": str(ROOT)}
    for line in lines:
        subprocess.run(
            [sys.executable, "-m", "polymq", *line.split()],
            input=f"{PASSWORD}\n".encode(), env=environment, check=True, capture_output=True,
        )  # fmt: skip


def fill_queue(port: int, count: int) -> None:
    """A queue with messages, each with a key."""
    connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", port))
    channel = connection.channel()
    channel.queue_declare("orders", durable=True)
    channel.confirm_delivery()
    for number in range(count):
        properties = pika.BasicProperties(message_id=f"order-{number}")
        channel.basic_publish("", "orders", b"order", properties)
    connection.close()


@contextlib.contextmanager
def connected_device(port: int) -> Iterator[None]:
    """A connected client of MQTT with a session, as the user `device7`."""
    subscribed = threading.Event()
    client = mqtt.Client(
        CallbackAPIVersion.VERSION2, client_id="device7", protocol=mqtt.MQTTv311,
        clean_session=False,
    )  # fmt: skip
    client.username_pw_set("device7", PASSWORD)
    client.on_subscribe = lambda *_: subscribed.set()
    client.connect("127.0.0.1", port)
    client.loop_start()
    client.subscribe("devices/device7/#", qos=1)
    try:
        assert subscribed.wait(30)
        yield
    finally:
        client.disconnect()
        client.loop_stop()


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("start-mqtt.md", 10),
        ("start-amqp.md", 5),
        ("start-http.md", 8),
        ("start-rocketmq.md", 5),
        ("migrating-from-kafka.md", 4),
        ("monitoring.md", 2),
        ("dataframes.md", 7),
    ],
)
def test_the_page_does_what_it_says(name: str, least: int, server: Server, tmp_path: Path) -> None:
    """From its first command to its last, in the order of the page."""
    assert page(name, server, tmp_path / "reader").run() >= least


@pytest.mark.spark
def test_the_page_about_parquet_does_what_it_says(server: Server, tmp_path: Path) -> None:
    assert page("start-parquet.md", server, tmp_path / "reader").run() == 6


@pytest.mark.spark
def test_the_first_messages_of_the_readme(server: Server, tmp_path: Path) -> None:
    """As somebody runs them who has the tree, with PolyMQ installed in .venv."""
    shown = page("../README.md", server, tmp_path / "reader")
    for name, target in ((".venv", Path(sys.prefix)), ("examples", ROOT / "examples")):
        (tmp_path / "reader" / name).symlink_to(target)
    assert shown.run() == 11
    assert shown.printed == ["room1.temp b'21.5'\n"]


def test_topology_and_messages_of_a_broker_of_amqp_are_copied(
    start_server: StartServer, tmp_path: Path
) -> None:
    """The page about RabbitMQ, with another server in RabbitMQ's place."""
    old, new = start_server(), start_server()
    fill_queue(old.amqp_port, 3)
    shown = page("migrating-from-rabbitmq.md", new, tmp_path / "reader",
                 port_5672=old.amqp_port, port_5673=new.amqp_port)  # fmt: skip
    definitions = tmp_path / "reader" / "definitions.json"
    definitions.write_text(json.dumps(DEFINITIONS), encoding="utf-8")
    assert shown.run() == 5
    assert shown.printed[-1] == "3 moved\n"


def test_messages_of_a_rocketmq_broker_are_copied(
    start_server: StartServer, tmp_path: Path
) -> None:
    """The page about RocketMQ, with another server in the place of its broker."""
    old, new = start_server(), start_server()
    run_commands(old, "message publish orders new order --id order-17")
    shown = page("migrating-from-rocketmq.md", new, tmp_path / "reader",
                 port_10912=old.rocketmq_port)  # fmt: skip
    assert shown.run() == 8


def test_every_command_for_a_symptom_works(server: Server, tmp_path: Path) -> None:
    """The page about troubleshooting, on a server with a queue, a session and users."""
    fill_queue(server.amqp_port, 3)
    run_commands(
        server,
        "message publish orders new order --id order-17",
        "user add device7",
        "permission allow device7 publish,create,subscribe devices.{client_id}.#",
        "permission allow role:anonymous subscribe orders.#",
    )
    with connected_device(server.mqtt_port):
        shown = page("troubleshooting.md", server, tmp_path / "reader", port_60=1)
        assert shown.run() >= 25


def test_a_page_that_shows_something_else_is_noticed() -> None:
    """What the runner compares with: a runner that accepts everything would pass for ever."""
    assert agrees("NAME ...\nreadings  queue", "NAME  KIND  USER\nreadings   queue")
    assert not agrees("room1.temp 21.5", "room1.temp 22.5")
    assert not agrees("one", "one\ntwo")
    assert [(command.text, command.shown) for command in commands("$ a \\\n    b\n1\n$ c\n")] == [
        ("a \\\n    b", ["1"]),
        ("c", []),
    ]
