"""A thousand reply queues: they leave nothing behind, over restarts and crashes."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from typing import Any

import pika
import pika.exceptions
import pytest

from interop_tests.conftest import Server, StartServer

QUEUES = 1000


def topics(server: Server) -> list[str]:
    """What `polymq topic list` shows."""
    command = [sys.executable, "-m", "polymq", "topic", "list", "--json"]
    options = ["--data-directory", str(server.data_directory)]
    shown = subprocess.run([*command, *options], capture_output=True, check=True, timeout=60)
    return [value["name"] for value in json.loads(shown.stdout)["items"]]


def open_channel(server: Server) -> Any:
    parameters = pika.ConnectionParameters(server.host, server.amqp_port)
    return pika.BlockingConnection(parameters).channel()


def let_go(channel: Any) -> None:
    """Close the socket to a server that is gone."""
    with contextlib.suppress(pika.exceptions.AMQPError):
        channel.connection.close()


@pytest.mark.slow
def test_reply_queues_leave_nothing_behind(start_server: StartServer) -> None:
    server = start_server()
    channel = open_channel(server)
    channel.queue_declare("work", durable=True)
    channel.queue_declare("kept", durable=True, auto_delete=True)
    names = [channel.queue_declare("", exclusive=True).method.queue for _ in range(QUEUES)]
    for name in names:
        channel.basic_publish("", name, name.encode())
    for name in names:
        _, _, body = channel.basic_get(name, auto_ack=True)
        assert body == name.encode()
    channel.confirm_delivery()
    channel.basic_publish("", "work", b"work")
    channel.basic_publish("", "kept", b"kept")
    assert topics(server) == ["work"]
    channel.basic_publish("", names[0], b"in the crash")
    server.kill()
    let_go(channel)
    server.restart()
    assert topics(server) == ["work"]
    channel = open_channel(server)
    _, _, body = channel.basic_get("kept")
    assert body == b"kept"
    server.restart()
    let_go(channel)
    channel = open_channel(server)
    method, _, body = channel.basic_get("kept", auto_ack=True)
    assert (body, method.redelivered) == (b"kept", True)
    assert topics(server) == ["work"]
    channel.connection.close()
