"""`polymq deadletter` against a running server: dead letters of AMQP and HTTP, and a crash in the
middle of sending them on."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from typing import Any

import pika
import pytest

from interop_tests import queue_commands
from interop_tests.conftest import Server
from interop_tests.people import Admin, http_ask, http_publish
from interop_tests.queue_commands import connect, ready

DEAD = 3_000
PERSISTENT = pika.BasicProperties(delivery_mode=2)
SECONDS_MAX = 60


def said(server: Server, *arguments: str, code: int = 0, text: str | None = None) -> str:
    """What a command of this group prints."""
    return queue_commands.said(server, "deadletter", *arguments, code=code, text=text)


def wait_for(server: Server, queue: str, count: int) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while ready(server, queue) < count:
        assert time.monotonic() < deadline


def make_dead(server: Server, count: int) -> None:
    """Messages that expired in the queue `work`, which is then made without that."""
    with connect(server) as connection:
        channel = connection.channel()
        channel.exchange_declare("shop", "topic", durable=True)
        channel.exchange_declare("dlx", "fanout", durable=True)
        channel.queue_declare("dead", durable=True)
        channel.queue_bind("dead", "dlx")
        arguments: dict[str, Any] = {"x-dead-letter-exchange": "dlx", "x-message-ttl": 1}
        channel.queue_declare("work", durable=True, arguments=arguments)
        channel.queue_bind("work", "shop", "order.*")
        channel.tx_select()
        for number in range(count):
            channel.basic_publish("shop", "order.new", b"%d" % number, PERSISTENT)
        channel.tx_commit()
        wait_for(server, "dead", count)
        channel.queue_delete("work")
        del arguments["x-message-ttl"]
        channel.queue_declare("work", durable=True, arguments=arguments)
        channel.queue_bind("work", "shop", "order.*")


@pytest.mark.slow
def test_from_list_to_redrive(server: Server) -> None:
    """AMQP consumers get their dead letters back with their history; a subscription over HTTP its
    own."""
    make_dead(server, 3)
    http_ask(server, "PUT", "/subscriptions/billing", b'{"topic": "bills"}')
    assert http_publish(server, "bills", "new", b"b") == 204
    path = "/topics/bills/subscriptions/billing"
    _, _, got = http_ask(server, "POST", f"{path}:receive?maxEvents=1&maxWaitTime=10")
    tokens = json.dumps({"lockTokens": [got["value"][0]["brokerProperties"]["lockToken"]]})
    code, _, _ = http_ask(
        server, "POST", f"{path}:reject", tokens.encode(), **{"Content-Type": "application/json"}
    )
    assert code == 200

    rows = json.loads(said(server, "list", "--json"))["items"]
    assert {row["location"]: (row["kind"], row["messages"]) for row in rows} == {
        "queue:dead": ("amqp", 3),
        "topic:%DLQ%billing": ("http", 1),
    }
    heading, line = said(server, "show", "queue:dead").splitlines()
    assert heading.split()[:3] == ["REASON", "SOURCE", "MESSAGES"]
    assert line.split()[:3] == ["expired", "work", "3"]
    assert "exchange shop, routing key 'order.new'" in line
    text = said(server, "redrive", "queue:dead", "--dry-run")
    assert text == "3 messages of queue:dead would be sent on.\n"
    assert "Send on 3 messages" in said(server, "redrive", "queue:dead", code=130, text="n\n")
    assert ready(server, "dead") == 3
    said(server, "redrive", "queue:dead", "--limit", "1", "--yes")
    said(server, "redrive", "queue:dead", "--yes")
    assert (ready(server, "dead"), ready(server, "work")) == (0, 3)
    with connect(server) as connection:
        _, properties, body = connection.channel().basic_get("work", auto_ack=True)
        assert body == b"0"
        assert properties.headers["x-first-death-queue"] == "work"
    assert "1 messages" in said(server, "redrive", "topic:%DLQ%billing", "--yes")
    assert "0 messages" in said(server, "redrive", "topic:%DLQ%billing", "--yes")
    _, _, got = http_ask(server, "POST", f"{path}:receive?maxEvents=5&maxWaitTime=10")
    assert len(got["value"]) == 1
    assert "there is no queue 'x'" in said(server, "show", "queue:x", code=1)


@pytest.mark.slow
def test_a_crash_in_the_middle(server: Server) -> None:
    """kill -9 while thousands are sent on: each is in exactly one of the two queues, and another
    redrive takes the rest."""
    make_dead(server, DEAD)
    path = "/api/v1/dead-letters/queue:dead/redrive"

    def redrive() -> None:
        with contextlib.suppress(OSError, ConnectionError, ValueError):
            Admin(server).ask("POST", path, {"limit": 10_000})

    asking = threading.Thread(target=redrive)
    asking.start()
    wait_for(server, "work", 1)
    server.kill()
    asking.join(SECONDS_MAX)
    server.start()
    moved = ready(server, "work")
    assert 0 < moved < DEAD, "the kill came too late, or too early"
    assert ready(server, "dead") == DEAD - moved
    assert Admin(server).good("POST", path, {"limit": 10_000})["messages"] == DEAD - moved
    with connect(server) as connection:
        channel = connection.channel()
        got = [int(channel.basic_get("work", auto_ack=True)[2] or -1) for _ in range(DEAD)]
        assert channel.basic_get("work")[0] is None
    assert got == list(range(DEAD))
