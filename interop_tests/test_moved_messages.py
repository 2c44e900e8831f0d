"""`polymq queue create`, `bind`, `unbind` and `move` against a running server, with clients of
AMQP, and a crash in the middle of a move."""

from __future__ import annotations

import contextlib
import json
import threading
import time

import pika
import pytest

from interop_tests import queue_commands
from interop_tests.conftest import Server
from interop_tests.people import Admin
from interop_tests.queue_commands import connect, ready

COUNT = 3_000
PERSISTENT = pika.BasicProperties(delivery_mode=2, headers={"color": "red"})
SECONDS_MAX = 60


def said(server: Server, *arguments: str, code: int = 0, text: str | None = None) -> str:
    """What a command of this group prints."""
    return queue_commands.said(server, "queue", *arguments, code=code, text=text)


@pytest.mark.slow
def test_from_create_to_move(server: Server) -> None:
    """What the commands make is what a client of AMQP finds, also after a kill."""
    with connect(server) as connection:
        connection.channel().exchange_declare("shop", "topic", durable=True)
    options = ("--max-priority", "5", "--argument", "x-consumer-timeout=60000")
    wanted = ("create", "orders", *options, "--bind", "shop", "order.*")
    assert said(server, *wanted) == "Queue orders is there.\n"
    assert said(server, *wanted) == "Queue orders is there.\n"
    text = said(server, "create", "orders", code=1)
    assert "x-" in text
    assert "orders" in text
    said(server, "create", "backlog", "--json")
    said(server, "bind", "backlog", "shop", "--routing-key", "bill.*")
    server.kill()
    server.start()
    with connect(server) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        arguments = {"x-max-priority": 5, "x-consumer-timeout": 60_000}
        channel.queue_declare("orders", durable=True, arguments=arguments)
        for key in ("order.new", "order.old", "bill.new"):
            channel.basic_publish("shop", key, key.encode(), PERSISTENT)
        assert said(server, "move", "orders", "backlog", "--dry-run") == (
            "2 messages would be moved from queue orders to queue backlog.\n"
        )
        assert "Move 2 messages" in said(server, "move", "orders", "backlog", code=130, text="n\n")
        answer = said(server, "move", "orders", "backlog", "--count", "1", "--yes")
        assert "1 messages moved" in answer
        assert "has more" in answer
        said(server, "move", "orders", "backlog", "--yes", "--json")
        got = [channel.basic_get("backlog", auto_ack=True) for _ in range(3)]
        assert [body for _, _, body in got] == [b"bill.new", b"order.new", b"order.old"]
        method, properties, _ = got[1]
        assert (method.exchange, method.routing_key) == ("", "backlog")
        assert properties.headers["color"] == "red"
        said(server, "unbind", "backlog", "shop", "--routing-key", "bill.*")
        channel.basic_publish("shop", "bill.new", b"x", PERSISTENT)
        assert channel.basic_get("backlog")[0] is None
    text = said(server, "unbind", "backlog", "shop", "--routing-key", "bill.*", code=1)
    assert "no such binding" in text
    assert "there is no queue 'x' to move to" in said(server, "move", "orders", "x", code=1)


@pytest.mark.slow
def test_a_crash_in_the_middle_of_a_move(server: Server) -> None:
    """kill -9 while thousands move: each is in exactly one of the two queues, and another move
    takes the rest."""
    with connect(server) as connection:
        channel = connection.channel()
        for name in ("q", "to"):
            channel.queue_declare(name, durable=True)
        channel.tx_select()
        for number in range(COUNT):
            channel.basic_publish("", "q", b"%d" % number, PERSISTENT)
        channel.tx_commit()
    path, body = "/api/v1/queues/q/move", {"to": "to", "count": 10_000}

    def move() -> None:
        with contextlib.suppress(OSError, ConnectionError, ValueError):
            Admin(server).ask("POST", path, body)

    asking = threading.Thread(target=move)
    asking.start()
    deadline = time.monotonic() + SECONDS_MAX
    while ready(server, "to") < 1:
        assert time.monotonic() < deadline
    server.kill()
    asking.join(SECONDS_MAX)
    server.start()
    moved = ready(server, "to")
    assert 0 < moved < COUNT, "the kill came too late, or too early"
    assert ready(server, "q") == COUNT - moved
    assert Admin(server).good("POST", path, body)["messages"] == COUNT - moved
    with connect(server) as connection:
        channel = connection.channel()
        got = [int(channel.basic_get("to", auto_ack=True)[2] or -1) for _ in range(COUNT)]
        assert channel.basic_get("to")[0] is None
    assert got == list(range(COUNT))
    rows = json.loads(said(server, "list", "--json"))["items"]
    assert [row["ready"] for row in rows] == [0, 0]
