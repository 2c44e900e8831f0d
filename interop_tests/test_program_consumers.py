"""`polymq consumer` against a running server: readers of all protocols, and resets that their
clients notice."""

from __future__ import annotations

import json
import time
from typing import Any
from urllib.parse import quote

import pika
import pytest

from interop_tests import remoting_wire as remoting
from interop_tests.conftest import Server
from interop_tests.people import PASSWORD, Admin, MqttClient, basic, http_ask, http_publish, polymq

OFFSET_MOVED = 21


def said(server: Server, *arguments: str, code: int = 0, text: str | None = None) -> str:
    """What a command prints, on either stream."""
    ended = polymq(server, "consumer", *arguments, text=text)
    assert ended.returncode == code, ended.stderr
    assert "Traceback" not in ended.stderr
    return ended.stdout + ended.stderr


def readers(server: Server) -> dict[str, Any]:
    rows = Admin(server).good("GET", "/api/v1/consumers")["items"]
    return {row["id"]: row for row in rows}


@pytest.mark.slow
def test_readers_of_all_protocols(server: Server) -> None:
    """Each has what was published since it came, and is as far as its client has acknowledged."""
    connection = pika.BlockingConnection(
        pika.ConnectionParameters(host="127.0.0.1", port=server.amqp_port)
    )
    channel = connection.channel()
    channel.confirm_delivery()
    channel.exchange_declare("shop", "topic", durable=True)
    channel.queue_declare("orders", durable=True)
    channel.queue_bind("orders", "shop", "#")
    http_ask(server, "PUT", "/subscriptions/billing", b'{"topic": "shop"}')
    device = MqttClient(server, client_id="pump-1", clean=False)
    device.subscribe("shop/#", 1)
    device.close()
    worker = MqttClient(server, client_id="worker", clean=False)
    worker.subscribe("$share/crew/shop/#", 1)
    worker.close()
    for _ in range(4):
        assert http_publish(server, "shop", "new", b"x") == 204
    held = connection.channel()
    held.basic_qos(prefetch_count=3)
    deliveries = held.consume("orders")
    next(deliveries)
    with remoting.Client("127.0.0.1", server.rocketmq_port) as java:
        java.beat("10.0.0.1@9", consumers=[remoting.consumer("reports", "shop")])
        java.ask(15, consumerGroup="reports", topic="shop", queueId=0, commitOffset=1)
        deadline = time.monotonic() + 20
        found = readers(server)
        while "group:reports" not in found or not found["group:reports"]["waiting"]:
            assert time.monotonic() < deadline  # offsets gather for some milliseconds
            found = readers(server)
        numbers = {
            name: (row["consumers"], row["waiting"], row["unacknowledged"])
            for name, row in found.items()
        }
        assert numbers == {
            "group:reports": (1, 3, 0),
            "queue:orders": (1, 1, 3),
            "session:pump-1": (0, 4, 0),
            "session:worker": (0, 0, 0),
            "share:$share/crew/shop/#": (1, 4, 0),
            "subscription:billing": (1, 4, 0),
        }
        waits = [row for row in found.values() if row["waiting"]]
        assert all(row["oldest_ms"] > 1_700_000_000_000 for row in waits)
        heading, *lines = said(server, "list", "--sort", "waiting").splitlines()
        assert heading.split()[:3] == ["ID", "USER", "CONSUMERS"]
        assert lines[-2].startswith("queue:orders")
        details = json.loads(said(server, "show", "queue:orders", "--json"))
        (consumer,) = details["consumer_list"]
        assert (consumer["prefetch"], consumer["unacknowledged"]) == (3, 3)
        rows = Admin(server).good("GET", "/api/v1/connections")["items"]
        assert consumer["connection"] in [row["id"] for row in rows]
        assert "shop *" in said(server, "show", "group:reports")
        share = quote("share:$share/crew/shop/#", safe="")
        details = Admin(server).good("GET", f"/api/v1/consumers/{share}")
        assert [one["name"] for one in details["consumer_list"]] == ["worker"]

        text = said(server, "reset", "group:reports", "--oldest", "--dry-run")
        assert "0 messages would be skipped, 1 would be read again." in text
        assert readers(server)["group:reports"]["waiting"] == 3
        said(server, "reset", "group:reports", "--oldest", "--yes")
        frame, _ = java.pull("shop", 1, group="reports")
        assert (frame.code, frame.fields["nextBeginOffset"]) == (OFFSET_MOVED, "0")
        assert readers(server)["group:reports"]["waiting"] == 4
    assert "1 messages skipped" in said(
        server, "reset", "queue:orders", "--newest", code=130, text="n\n"
    )
    said(server, "reset", "queue:orders", "--newest", "--yes")
    said(server, "reset", "subscription:billing", "--offset", "3", "--yes")
    connection.close()
    server.kill()
    server.start()
    found = readers(server)
    assert found["group:reports"]["waiting"] == 4
    assert found["queue:orders"]["waiting"] == 3, "what the consumer had comes again"
    assert found["subscription:billing"]["waiting"] == 1


@pytest.mark.slow
def test_mistakes(server: Server) -> None:
    """One line and an exit code."""
    for code, arguments, line in (
        (1, ("show", "queue:x"), "there is no reader 'queue:x'"),
        (1, ("reset", "x", "--newest", "--yes"), "an id is a kind (queue,"),
        (2, ("reset", "queue:x", "--yes"), "use one of --oldest"),
        (2, ("reset", "queue:x", "--newest", "--oldest"), "use one of --oldest"),
    ):
        text = said(server, *arguments, code=code)
        assert line in text
        assert text.count("\n") == 1
    assert said(server, "list") == "There is no such reader.\n"


def test_only_operators(server: Server) -> None:
    """A reader looks, an operator also moves."""
    people = Admin(server)
    people.add("ann")
    people.add("eve", "reader")
    people.add("olga", "operator")
    people.allow("ann", "publish,subscribe,create", "#")
    credentials = pika.PlainCredentials("ann", PASSWORD)
    parameters = pika.ConnectionParameters("127.0.0.1", server.amqp_port, "/", credentials)
    with pika.BlockingConnection(parameters) as connection:
        connection.channel().queue_declare("q", durable=True)
    for user, looks, acts in (("ann", 403, 403), ("eve", 200, 403), ("olga", 200, 200)):
        asking = Admin(server)
        asking.authorization = basic(user)
        assert asking.ask("GET", "/api/v1/consumers?user=ann")[0] == looks
        assert asking.ask("GET", "/api/v1/consumers/queue:q")[0] == looks
        assert asking.ask("POST", "/api/v1/consumers/queue:q/reset", {"to": "newest"})[0] == acts
