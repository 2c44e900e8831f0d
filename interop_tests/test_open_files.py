"""A server whose process may open few files, and strangers who use them up: publishers go on, or
wait, and everything goes on by itself when the strangers leave."""

from __future__ import annotations

import http.client
import json
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from interop_tests.conftest import Server, StartServer
from interop_tests.mqtt_raw_client import RawClient
from interop_tests.mqtt_wire import puback, publish

OPEN_FILES = 256
STRANGERS = 300
SEGMENT_BYTES = 64 * 1024
BODY = b"x" * 8000
DEADLINE_SECONDS = 40.0
WAITS = "the store waits, and tries again"
CERTIFICATES = Path(__file__).parent / "certificates"
LIMITED = ("/bin/sh", "-c", f'ulimit -n {OPEN_FILES}; exec "$0" -m polymq "$@"', sys.executable)
OPTIONS: dict[str, object] = {
    "storage.segment_bytes": SEGMENT_BYTES,
    "storage.save_seconds": 0.2,
    "storage.disk_check_seconds": 0.1,
    "names.enabled": True,
    "names.port": 0,
    "tls.certificate": CERTIFICATES / "server.pem",
    "tls.key": CERTIFICATES / "server.key",
    "mqtt.tls_port": 0,
    "amqp.tls_port": 0,
    "http.tls_port": 0,
    "rocketmq.tls_port": 0,
    "names.tls_port": 0,
    "api.enabled": True,
    "api.port": 0,
    "management.enabled": True,
    "management.port": 0,
}
LISTENERS = (
    *("mqtt", "amqp", "http", "rocketmq", "admin", "names", "mqtts", "amqps", "https"),
    *("api", "management"),
)


def ask(port: int, path: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def until(what: str, condition: Callable[[], object]) -> None:
    pause = threading.Event()
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        pause.wait(0.05)


def roll(client: RawClient, first: int) -> None:
    """Publish more than three segments, each message acknowledged."""
    for number in range(first, first + 30):
        client.send(publish("load/x", BODY, qos=1, packet_id=number))
        client.expect(puback(number))


def crowd(stack: ExitStack, port: int) -> list[socket.socket]:
    """Strangers who connect and say nothing; some are refused at once."""
    strangers = []
    for _ in range(STRANGERS):
        stranger = stack.enter_context(socket.socket())
        stranger.settimeout(10)
        stranger.connect(("127.0.0.1", port))
        strangers.append(stranger)
    return strangers


def ports_of(server: Server) -> dict[str, int]:
    found: dict[str, int] = json.loads((server.data_directory / "server.json").read_text())
    return found


@pytest.mark.slow
def test_idle_strangers_at_any_listener_stop_nobody(start_server: StartServer) -> None:
    server = start_server(command=LIMITED, **OPTIONS)
    ports = ports_of(server)
    with RawClient.connected(server.mqtt_port, "publisher") as client:
        for round_, name in enumerate(LISTENERS):
            with ExitStack() as stack:
                crowd(stack, ports[name])
                roll(client, 1 + 30 * round_)
                if name not in ("admin", "api"):  # which they fill
                    assert ask(server.admin_port, "/health")[1]["status"] == "ok", name
            until(f"{name} takes nobody any more", partial(can_connect, ports, name))
    status, health = ask(server.admin_port, "/health")
    assert (status, health["status"]) == (200, "ok")
    reported = [line for line in server.log_events() if "connections are limited" in line["event"]]
    assert len(reported) == 1
    assert reported[0]["open_files"] == OPEN_FILES
    assert reported[0]["connections"] < OPEN_FILES
    assert server.terminate() == 0


def can_connect(ports: dict[str, int], name: str) -> bool:
    """Whether a connection there is kept."""
    with socket.create_connection(("127.0.0.1", ports[name]), timeout=10) as stranger:
        stranger.settimeout(0.2)
        try:
            return stranger.recv(1) != b""
        except TimeoutError:
            return True
        except ConnectionError:
            return False


@pytest.mark.slow
def test_a_process_without_descriptors_waits_and_goes_on(start_server: StartServer) -> None:
    """Whatever used them up: no file can be opened for some seconds, and segments end meanwhile."""
    server = start_server(**OPTIONS)
    pid = server.process.pid
    with RawClient.connected(server.mqtt_port, "publisher") as client:
        roll(client, 1)
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (8, before[1]))
        number = 31
        refused = 0
        deadline = time.monotonic() + 3
        try:
            while time.monotonic() < deadline and not refused:
                client.send(publish("load/x", BODY, qos=1, packet_id=number))
                client.expect(puback(number))
                number += 1
        except (AssertionError, ConnectionError):
            refused = 1  # MQTT 3.1.1 has no other answer
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    assert refused, "it was never short of descriptors"
    with RawClient.connected(server.mqtt_port, "publisher") as client:
        roll(client, 1)
    until("it says nothing", lambda: WAITS in [line["event"] for line in server.log_events()])
    until("it stays unwell", lambda: ask(server.admin_port, "/health")[1]["status"] == "ok")
    events = [line["event"] for line in server.log_events()]
    assert not [event for event in events if "read-only" in event]
    assert events.count(WAITS) == 1
    assert server.terminate() == 0
