"""A log that lives for a second: what is old goes from the disk, what somebody needs stays, over
kills, and over the loss of everything that is only a cache."""

from __future__ import annotations

import http.client
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import pika
import pytest

from interop_tests.conftest import Server, StartServer

DEADLINE_SECONDS = 60.0
LOOK_SECONDS = 0.1
BODY = b"x" * 16_000
OPTIONS = {
    "storage.segment_bytes": 256 * 1024,
    "storage.save_seconds": 0.2,
    "storage.retention_check_seconds": 0.2,
    "topics.retention_seconds": 1,
}


def store_of(server: Server) -> dict[str, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.admin_port, timeout=10)
    try:
        connection.request("GET", "/api/v1/store")
        found: dict[str, Any] = json.loads(connection.getresponse().read())
        return found
    finally:
        connection.close()


def wait_for(
    server: Server, what: str, condition: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """Poll the server until it says so."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition(found := store_of(server)):
        assert time.monotonic() < deadline, f"{what}: {found}"
        assert not server.ended_within(LOOK_SECONDS)
    return found


def publish(server: Server, count: int, queue: str | None = None) -> None:
    parameters = pika.ConnectionParameters("127.0.0.1", server.amqp_port)
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.exchange_declare("t", "topic", durable=True)
        if queue is not None:
            channel.queue_declare(queue, durable=True)
            channel.queue_bind(queue, "t", "keep.#")
        for number in range(count):
            channel.basic_publish("t", "drop.this", BODY)
            if number == 3 and queue is not None:
                channel.basic_publish("t", "keep.this", b"kept", pika.BasicProperties(headers={}))


@pytest.mark.slow
def test_the_log_shrinks_and_loses_nothing_that_is_needed(start_server: StartServer) -> None:
    server = start_server(**OPTIONS)
    publish(server, 80, queue="q")
    holder = {"kind": "queue", "name": "q"}
    found = wait_for(server, "the queue holds it", lambda value: value["held_by"] == holder)
    assert found["start"] == 0
    parameters = pika.ConnectionParameters("127.0.0.1", server.amqp_port)
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        method, _, body = channel.basic_get("q")
        assert body == b"kept"
        channel.basic_ack(method.delivery_tag)
        channel.basic_publish("t", "keep.this", b"kept later")
    publish(server, 40)
    found = wait_for(server, "it does not shrink", lambda value: value["start"] > 0)
    assert found["deleted_bytes"] >= 1024 * 1024
    server.kill()
    for name in ("state.db", "state.db-wal", "state.db-shm", "store/checkpoint"):
        (server.data_directory / name).unlink(missing_ok=True)
    server.restart()
    assert store_of(server)["start"] > 0
    parameters = pika.ConnectionParameters("127.0.0.1", server.amqp_port)
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        assert channel.queue_declare("q", durable=True, passive=True).method.message_count == 1
        assert channel.basic_get("q", auto_ack=True)[2] == b"kept later"
        channel.basic_publish("t", "keep.this", b"newest")
        assert channel.basic_get("q", auto_ack=True)[2] == b"newest"


def test_nobody_else_can_read_what_the_server_stores(start_server: StartServer) -> None:
    """Whatever the process was told to allow: messages, state, indexes and tokens are for its own
    account only."""
    lax = ("sh", "-c", 'umask 000; exec "$@"', "sh", sys.executable, "-m", "polymq")
    server = start_server(command=lax, **OPTIONS)
    publish(server, 40, queue="q")
    wait_for(server, "nothing was saved", lambda value: value["segments"] > 1)
    open_to_others = [
        str(path)
        for path in (server.data_directory, *server.data_directory.rglob("*"))
        if path.stat().st_mode & 0o077
    ]
    assert open_to_others == []
    assert (server.data_directory / "store" / "commitlog").is_dir()


@pytest.mark.slow
def test_the_whole_log_has_a_limit(start_server: StartServer) -> None:
    """A topic of a few small messages, which its retention keeps for days, holds no gigabytes."""
    limit = 4 << 20
    options = {"topics.retention_seconds": 86_400, "storage.log_bytes_max": limit}
    server = start_server(**{**OPTIONS, **options})
    parameters = pika.ConnectionParameters("127.0.0.1", server.amqp_port)
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.exchange_declare("small", "topic", durable=True)
        channel.basic_publish("small", "first", b"first")
    publish(server, 1000)  # 16 MB
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("small", "last", b"last")
    found = wait_for(server, "it stays large", lambda store: store["size_bytes"] <= limit)
    assert found["trimmed_early_messages"] > 0
    assert found["dropped_messages"] == 0
    assert found["log_bytes_max"] == limit
    connection = http.client.HTTPConnection("127.0.0.1", server.admin_port, timeout=10)
    connection.request("GET", "/api/v1/topics/small")
    topic = json.loads(connection.getresponse().read())
    connection.close()
    assert [(queue["first_offset"], queue["end_offset"]) for queue in topic["queues"]] == [(1, 2)]
    assert server.terminate() == 0
