"""`polymq webhook` and `polymq top` against a running server: a sink that fails, is hurried, paused
and resumed."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from typing import Any

import pytest

from interop_tests.conftest import Server, StartServer
from interop_tests.people import Admin, http_ask, http_publish, polymq

SECONDS_MAX = 30
LOOPBACK = {
    "http.webhook_allow_http": True,
    "http.webhook_allow_networks": '["127.0.0.0/8"]',
    "http.webhook_handshake": False,
}


@dataclass
class Sink:
    """What receives: `status` is what it answers."""

    url: str = ""
    status: int = 204
    bodies: Queue[bytes] = field(default_factory=Queue)


@pytest.fixture
def sink() -> Iterator[Sink]:
    found = Sink()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            found.bodies.put(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(found.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found.url = f"http://127.0.0.1:{server.server_port}/hook?key=secret"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield found
    server.shutdown()
    server.server_close()
    thread.join()


def said(server: Server, *arguments: str, code: int = 0) -> str:
    """What a command prints, on either stream."""
    ended = polymq(server, *arguments)
    assert ended.returncode == code, ended.stderr
    assert "Traceback" not in ended.stderr
    return ended.stdout + ended.stderr


def until(server: Server, state: str, **wanted: Any) -> dict[str, Any]:
    """The webhook, once it is so."""
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        row: dict[str, Any] = Admin(server).good("GET", "/api/v1/webhooks/hook")
        if row["state"] == state and all(row[key] == value for key, value in wanted.items()):
            return row
        assert time.monotonic() < deadline, row


@pytest.mark.slow
def test_a_webhook_from_failing_to_resumed(start_server: StartServer, sink: Sink) -> None:
    """What fails is seen with its reason, and tried again when an operator says so. What is paused
    stays so over a restart, and loses nothing."""
    server = start_server(**LOOPBACK)
    config = {"retry": {"firstSeconds": 3600, "waitSecondsMax": 3600}}
    body = {"topic": "orders", "sink": sink.url, "config": config}
    assert http_ask(server, "PUT", "/subscriptions/hook", json.dumps(body).encode())[0] == 201
    sink.status = 500
    http_publish(server, "orders", "new", b"first")
    assert sink.bodies.get(timeout=SECONDS_MAX) == b"first"
    row = until(server, "failing", attempts=1)
    assert row["next_seconds"] > 0
    assert [one["status"] for one in row["failures"]] == [500]
    assert "secret" not in json.dumps(row)
    assert "failing" in said(server, "webhook", "list")
    assert "500" in said(server, "webhook", "show", "hook")

    sink.status = 204
    assert said(server, "webhook", "try", "hook") == "Webhook hook is tried now.\n"
    assert sink.bodies.get(timeout=SECONDS_MAX) == b"first"
    assert until(server, "active", attempts=0)["delivered_ms"] > 1_700_000_000_000
    assert "waits for no attempt" in said(server, "webhook", "try", "hook")

    said(server, "webhook", "pause", "hook")
    http_publish(server, "orders", "new", b"second")
    server.kill()
    server.start()
    assert until(server, "paused", waiting=1)["why"] == "paused by an operator"
    assert sink.bodies.empty()
    assert "is paused or disabled" in said(server, "webhook", "try", "hook", code=1)
    said(server, "webhook", "resume", "hook")
    assert sink.bodies.get(timeout=SECONDS_MAX) == b"second"
    until(server, "active")
    assert "there is no webhook 'x'" in said(server, "webhook", "pause", "x", code=1)

    value = json.loads(said(server, "top", "--once", "--json"))
    assert value["connections"]["http"] == 0
    assert value["queues"][0]["name"] == "%SUB%hook"
    assert value["readers"][0]["id"] == "subscription:hook"
    assert "messages:    0.0 a second" in said(server, "top", "--once")
