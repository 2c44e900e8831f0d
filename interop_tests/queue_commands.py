"""Commands about queues against a started server, and what its queues have."""

from __future__ import annotations

import pika

from interop_tests.conftest import Server
from interop_tests.people import Admin, polymq


def said(server: Server, *arguments: str, code: int = 0, text: str | None = None) -> str:
    """What a command prints, on either stream.

    Args:
        arguments: the command and its own.
        code: what it has to end with.
        text: what is typed.
    """
    ended = polymq(server, *arguments, text=text)
    assert ended.returncode == code, ended.stderr
    assert "Traceback" not in ended.stderr
    return ended.stdout + ended.stderr


def connect(server: Server) -> pika.BlockingConnection:
    """A client of AMQP, of a server without users."""
    return pika.BlockingConnection(
        pika.ConnectionParameters(host="127.0.0.1", port=server.amqp_port)
    )


def ready(server: Server, queue: str) -> int:
    """How many messages wait in a queue."""
    count: int = Admin(server).good("GET", f"/api/v1/queues/{queue}")["ready"]
    return count
