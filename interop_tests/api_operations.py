"""The operations of a server's admin API, from its own OpenAPI document, with things that they may
act on: for tests of who may do what."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, urlencode

import pika

from interop_tests import mqtt_wire
from interop_tests.conftest import Server
from interop_tests.mqtt_raw_client import RawClient
from interop_tests.people import PASSWORD, SECONDS, Admin, basic

RIGHTS: Final = ("monitor", "operate", "admin")
"""Each includes those before it."""
NAMES: Final = {
    "/topics/{name}": "things",
    "/queues/{name}": "orders",
    "{client_id}": "kept",
    "{topic}": "things/retained",
    "{kind}": "user",
    "{value}": "banned",
    "/users/{name}": "victim",
    "{number}": "1",
    "{position}": "0",
}
"""Parts of paths, and what is there in a peopled server (`populate`)."""
BODIES: Final[dict[str, object]] = {
    "createTopic": {"queues": 2},
    "bindQueue": {"exchange": "things", "routing_key": "bound"},
    "unbindQueue": {"exchange": "things", "routing_key": "orders"},
    "moveMessages": {"to": "orders"},
    "changeTopic": {"settings": {"retention_seconds": "7"}},
    "clearRetained": {"filter": "#"},
    "trace": {"client_id": "kept", "seconds": 1},
    "traceMessages": {"seconds": 1},
    "importDefinitions": {
        "format": "polymq-definitions",
        "version": 1,
        "topics": [{"name": "imported"}],
    },
    "addBan": {"kind": "user", "value": "another"},
    "addUser": {"password": "x"},
    "changeUser": {"disabled": True, "add_roles": ["admin"], "quotas": {"queues": 1}},
    "addPermissions": {
        "effect": "allow",
        "subject": "victim",
        "actions": ["admin"],
        "topic": "#",
    },
}
"""By the operation's name: what would change something. Other bodies are empty objects."""
QUERIES: Final = {
    "findRecords": {"key": "k"},
    "checkPermission": {"user": "victim", "action": "publish", "topic": "things"},
    "removePermissions": {"subject": "victim", "actions": "publish", "topic": "things"},
}


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation, with a request for it."""

    name: str
    method: str
    path: str
    right: str
    body: object

    def is_for(self, right: str | None) -> bool:
        """Whether somebody with this right may do it."""
        return right is not None and RIGHTS.index(right) >= RIGHTS.index(self.right)


def operations(admin: Admin, prefix: str = "") -> list[Operation]:
    """All operations.

    Args:
        prefix: only those whose paths behind /api/v1 begin with it.
    """
    return list(_operations(admin.good("GET", "/api/v1/openapi.json"), prefix))


def _operations(document: dict[str, Any], prefix: str) -> Iterator[Operation]:
    for template, methods in document["paths"].items():
        for method, described in methods.items():
            found = re.search(r"Needs the right `(\w+)`", described["description"])
            assert found is not None, described
            name = described["operationId"]
            path = template
            for part, value in NAMES.items():
                path = path.replace(part, re.sub(r"{\w+}", quote(value, safe=""), part))
            path = re.sub(r"{\w+}", "x", path)
            if not path.startswith(f"/api/v1{prefix}"):
                continue
            if name in QUERIES:
                path += "?" + urlencode(QUERIES[name])
            body = None if method in ("get", "delete") else BODIES.get(name, {})
            yield Operation(name, method.upper(), path, found[1], body)


def populate(server: Server) -> Admin:
    """Users of each right, and something of each kind to act on. Returns who has the token."""
    people = Admin(server)
    people.good("PUT", "/api/v1/topics/things", {"queues": 1})
    parameters = pika.ConnectionParameters("127.0.0.1", server.amqp_port)
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.queue_declare("orders", durable=True)
        channel.basic_publish("", "orders", b"1", pika.BasicProperties(delivery_mode=2))
    client = RawClient(server.mqtt_port)
    client.send(mqtt_wire.connect("kept", clean=False))
    client.expect(mqtt_wire.connack())
    client.subscribe(("others/#", 1))
    client.send(mqtt_wire.publish("things/retained", b"x", qos=1, packet_id=1, retain=True))
    client.expect(mqtt_wire.puback(1))
    client.disconnect()
    for name in ("victim", "nobody"):
        people.add(name)
    for name, role in (("eve", "reader"), ("olga", "operator"), ("root", "admin")):
        people.add(name, role)
    people.allow("victim", "publish", "things")
    people.allow("nobody", "publish,subscribe,create", "#")
    people.good("POST", "/api/v1/bans", {"kind": "user", "value": "banned"})
    deadline = time.monotonic() + SECONDS
    while people.good("GET", people.path("mqtt", "sessions", "kept"))["away_ms"] is None:
        assert time.monotonic() < deadline, "nobody notes that the client has gone"
    return people


def caller(server: Server, user: str) -> Admin:
    """Somebody who logs in."""
    made = Admin(server)
    made.authorization = basic(user, PASSWORD)
    return made
