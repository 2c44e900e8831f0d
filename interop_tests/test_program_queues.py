"""`polymq queue` against a running server: what pika and an HTTP client made is listed, looked at,
purged and deleted, as a person types it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pika
import pika.adapters.blocking_connection as blocking
import pytest

from interop_tests.conftest import Server
from interop_tests.people import PASSWORD, Admin, basic, http_ask, polymq

PERSISTENT = pika.BasicProperties(delivery_mode=2)


@pytest.fixture
def channel(server: Server) -> Iterator[blocking.BlockingChannel]:
    parameters = pika.ConnectionParameters(host="127.0.0.1", port=server.amqp_port)
    connection = pika.BlockingConnection(parameters)
    channel = connection.channel()
    channel.confirm_delivery()
    yield channel
    if connection.is_open:
        connection.close()


def said(server: Server, *arguments: str, code: int = 0, text: str | None = None) -> str:
    """What a command prints, on either stream."""
    ended = polymq(server, "queue", *arguments, text=text)
    assert ended.returncode == code, ended.stderr
    assert "Traceback" not in ended.stderr
    return ended.stdout + ended.stderr


def listed(server: Server, query: str = "") -> dict[str, Any]:
    code, answer = Admin(server).ask("GET", f"/api/v1/queues{query}")
    assert code == 200
    return {row["name"]: row for row in answer["items"]}


@pytest.mark.slow
def test_a_queue_from_list_to_delete(server: Server, channel: blocking.BlockingChannel) -> None:
    """What consumers have stays with them. What was purged and deleted is gone after a kill."""
    channel.exchange_declare("shop", "topic", durable=True)
    channel.queue_declare("orders", durable=True, arguments={"x-max-length": 100})
    channel.queue_bind("orders", "shop", "order.*")
    channel.queue_declare("", exclusive=True)
    for number in range(5):
        channel.basic_publish("shop", "order.new", b"%d" % number, PERSISTENT)
    http_ask(server, "PUT", "/subscriptions/billing", b'{"topic": "shop"}')
    held = channel.connection.channel()
    held.basic_qos(prefetch_count=2)
    deliveries = held.consume("orders")
    assert next(deliveries)[2] == b"0"

    text = said(server, "list")
    heading, *lines = text.splitlines()
    assert heading.split() == [
        "NAME",
        "KIND",
        "USER",
        "OPTIONS",
        "READY",
        "UNACKNOWLEDGED",
        "CONSUMERS",
        "PAUSED",
    ]
    assert lines[0].split()[:2] == ["%SUB%billing", "subscription"]
    assert lines[2].split() == ["orders", "queue", "-", "durable", "3", "2", "1", "-"]
    assert "exclusive" in lines[1]
    (row,) = json.loads(said(server, "list", "--kind", "subscription", "--json"))["items"]
    assert row["name"] == "%SUB%billing"
    assert said(server, "list", "--sort", "ready", "--limit", "1").splitlines()[1].startswith("ord")

    text = said(server, "show", "orders")
    assert "x-max-length=100" in text
    assert "ready:          3 messages" in text
    assert "shop       order.*" in text
    value = json.loads(said(server, "show", "orders", "--json"))
    assert value["oldest_ms"] > 1_700_000_000_000
    assert listed(server)["orders"]["ready"] == 3, "looking takes nothing"

    assert "3 messages" in said(server, "purge", "orders", code=130, text="n\n")
    assert said(server, "purge", "orders", "--yes") == "3 messages removed from queue orders.\n"
    row = listed(server)["orders"]
    assert (row["ready"], row["unacknowledged"]) == (0, 2)
    text = said(server, "delete", "orders", "--if-unused", "--yes", code=1)
    assert "in use" in text
    assert "over HTTP" in said(server, "delete", "%SUB%billing", "--yes", code=1)
    held.close()
    assert listed(server)["orders"]["ready"] == 2, "they were given back"
    assert said(server, "purge", "orders", "--yes") == "2 messages removed from queue orders.\n"
    channel.connection.close()  # the exclusive queue goes with it
    server.kill()
    server.start()
    assert [(name, row["ready"]) for name, row in listed(server).items()] == [
        ("%SUB%billing", 0),
        ("orders", 0),
    ]
    assert said(server, "delete", "orders", "--yes") == "Queue orders is deleted.\n"
    server.kill()
    server.start()
    assert list(listed(server)) == ["%SUB%billing"]


@pytest.mark.slow
def test_mistakes(server: Server) -> None:
    """One line and an exit code."""
    for arguments, line in (
        (("show", "nothing"), "there is no queue 'nothing'"),
        (("purge", "nothing", "--yes"), "there is no queue 'nothing'"),
        (("delete", "nothing", "--yes"), "there is no queue 'nothing'"),
        (("pause", "nothing"), "there is no queue 'nothing'"),
        (("resume", "nothing"), "there is no queue 'nothing'"),
        (("list", "--sort", "ready", "--after", "q"), "after has to be the text `next`"),
    ):
        text = said(server, *arguments, code=1)
        assert line in text
        assert text.count("\n") == 1
    assert said(server, "list").startswith("There are no queues yet: ")
    assert said(server, "list", "--prefix", "x") == "There is no such queue.\n"


def test_only_operators(server: Server) -> None:
    """A reader looks, an operator also acts, and who may use the queue as a client does neither."""
    people = Admin(server)
    people.add("ann")
    people.add("eve", "reader")
    people.add("olga", "operator")
    people.add("root", "admin")
    people.allow("ann", "publish,subscribe,create", "#")
    parameters = pika.ConnectionParameters(
        host="127.0.0.1",
        port=server.amqp_port,
        credentials=pika.PlainCredentials("ann", PASSWORD),
    )
    with pika.BlockingConnection(parameters) as connection:
        connection.channel().queue_declare("q", durable=True)
    for user, looks, acts in (
        ("ann", 403, 403),
        ("eve", 200, 403),
        ("olga", 200, 200),
        ("root", 200, 200),
    ):
        asking = Admin(server)
        asking.authorization = basic(user)
        assert asking.ask("GET", "/api/v1/queues")[0] == looks
        assert asking.ask("GET", "/api/v1/queues/q")[0] == looks
        for verb in ("purge", "pause", "resume"):
            assert asking.ask("POST", f"/api/v1/queues/q/{verb}")[0] == acts
        if looks == 200:
            assert asking.good("GET", "/api/v1/queues/q")["user"] == "ann"
            assert asking.good("GET", "/api/v1/queues?user=root")["total"] == 0
