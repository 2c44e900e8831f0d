"""A started server with something of each kind to act on, for the tests of the table of operations
(`docs/site/operations.py`)."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pika

from docs.site.operations import REACHED
from interop_tests import mqtt_wire
from interop_tests.conftest import Server
from interop_tests.mqtt_raw_client import RawClient
from interop_tests.people import Admin, http_ask
from interop_tests.recording import Recorder
from polymq.ports import FILE_NAME

OPTIONS = {
    "storage.segment_bytes": 4 * 1024 * 1024,
    "http.webhook_allow_http": True,
    "http.webhook_allow_networks": '["127.0.0.0/8"]',
    "http.webhook_handshake": False,
}
NOBODY = "http://127.0.0.1:9/hook"
"""Where no sink listens, so that a webhook has something to try again."""
LATER = {"PolyMQ-Delay-Ms": "3600000", "Content-Type": "text/plain"}
LOOK_SECONDS = 0.02
PERSISTENT = pika.BasicProperties(delivery_mode=2)


@dataclass(frozen=True, slots=True)
class World:
    """The server, who operates it, and what stands before its admin listener."""

    server: Server
    admin: Admin
    recorder: Recorder
    clients: ExitStack

    def get(self, *parts: str) -> Any:
        """An object of the API, or None."""
        status, value = self.admin.ask("GET", self.admin.path(*parts))
        return value if status == 200 else None

    def names(self, *parts: str, key: str = "name") -> list[str]:
        """The names in a list of the API."""
        return [str(row[key]) for row in self.get(*parts)["items"]]

    def post(self, *parts: str, body: object = None) -> Any:
        """The good answer to a POST."""
        return self.admin.good("POST", self.admin.path(*parts), body or {})

    def begin_trace(self) -> None:
        """A trace that runs until somebody ends it."""
        body = {"client_id": "device", "seconds": 600}
        path = self.admin.path("mqtt", "traces")
        threading.Thread(target=self.admin.ask, args=("POST", path, body), daemon=True).start()
        pause = threading.Event()
        while not self.names("mqtt", "traces", key="number"):
            pause.wait(LOOK_SECONDS)

    def client(self, client_id: str) -> None:
        """A connected MQTT client that leaves no session behind."""
        self.clients.enter_context(RawClient.connected(self.server.mqtt_port, client_id))


@contextmanager
def made_world(directory: Path) -> Iterator[World]:
    """One, until the end of the block. Commands for its data directory go through the recorder."""
    server = Server(directory, OPTIONS, {}, (sys.executable, "-m", "polymq"))
    server.start()
    try:
        with Recorder(server.admin_port, REACHED) as recorder, ExitStack() as clients:
            _lead_through(server, recorder.port)
            admin = Admin(server)
            _fill(server, admin)
            yield World(server, admin, recorder, clients)
    finally:
        server.close(sys.stdout)


def _lead_through(server: Server, port: int) -> None:
    """Let the commands find the recorder where they look for the admin listener."""
    file = Path(server.data_directory) / FILE_NAME
    ports = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps(ports | {"admin": port}), encoding="utf-8")


def _fill(server: Server, admin: Admin) -> None:
    admin.good("PUT", "/api/v1/topics/things", {"queues": 1})
    with pika.BlockingConnection(pika.ConnectionParameters(server.host, server.amqp_port)) as amqp:
        channel = amqp.channel()
        channel.exchange_declare("dlx", "fanout", durable=True)
        channel.queue_declare("dead", durable=True)
        channel.queue_bind("dead", "dlx")
        work = {"x-dead-letter-exchange": "dlx"}
        channel.queue_declare("work", durable=True, arguments=work)
        for name in ("orders", "other"):
            channel.queue_declare(name, durable=True)
        channel.confirm_delivery()
        for name in ("work", "work", "orders", "orders"):
            channel.basic_publish("", name, b"from amqp", PERSISTENT)
        for _ in range(2):
            found, _, _ = channel.basic_get("work")
            channel.basic_reject(found.delivery_tag, requeue=False)
    message = {"tag": "a", "key": "k", "body": "hello"}
    admin.good("POST", "/api/v1/topics/things/messages", message)
    webhook = json.dumps({"topic": "things", "sink": NOBODY}).encode()
    status, _, answer = http_ask(server, "PUT", "/subscriptions/hook", webhook)
    assert status < 300, answer
    for _ in range(2):
        assert http_ask(server, "POST", "/topics/things", b"later", **LATER)[0] < 300
    session = RawClient(server.mqtt_port)
    session.send(mqtt_wire.connect("kept", clean=False))
    session.expect(mqtt_wire.connack())
    session.subscribe(("others/#", 1))
    for number, name in ((1, "retained"), (2, "more")):
        topic = f"things/{name}"
        session.send(mqtt_wire.publish(topic, b"x", qos=1, packet_id=number, retain=True))
        session.expect(mqtt_wire.puback(number))
    session.disconnect()
