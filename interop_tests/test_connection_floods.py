"""One address fills a listener with connections that say nothing, and opens them again as soon as
they are closed. Clients of other addresses get in all the same, each at its first attempt, and so
do those of that address, at one of a few.

Every address of 127.0.0.0/8 is one of this machine, so the addresses here are real ones.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import selectors
import socket
import ssl
import struct
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from interop_tests import mqtt_wire as wire
from interop_tests.conftest import Server, StartServer
from interop_tests.people import Admin

FLOOD, OTHER = "127.0.0.2", "127.0.0.3"
FLOOD_COUNT = 1000
CONNECTIONS_MAX = 800
VISITS = 5
ATTEMPTS = 20
SECONDS = 30.0
CERTIFICATES = Path(__file__).parent / "certificates"
OPTIONS: dict[str, object] = {
    **{f"{name}.connections_max": CONNECTIONS_MAX for name in ("mqtt", "amqp", "http", "rocketmq")},
    "tls.certificate": CERTIFICATES / "server.pem",
    "tls.key": CERTIFICATES / "server.key",
    **{f"{name}.tls_port": 0 for name in ("mqtt", "amqp", "http", "rocketmq")},
}


def exactly(client: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = client.recv(size - len(data))
        assert more, "the server closed the connection"
        data += more
    return data


def visit_mqtt(client: socket.socket) -> None:
    client.sendall(wire.connect("", keep_alive=60))
    assert exactly(client, 4) == wire.connack()


def visit_amqp(client: socket.socket) -> None:
    def expect(class_id: int, method_id: int) -> bytes:
        """The arguments of the method that comes next."""
        size = struct.unpack(">BHI", exactly(client, 7))[2]
        content = exactly(client, size + 1)
        assert struct.unpack_from(">HH", content) == (class_id, method_id)
        return content[4:-1]

    def send(class_id: int, method_id: int, arguments: bytes) -> None:
        content = struct.pack(">HH", class_id, method_id) + arguments
        client.sendall(struct.pack(">BHI", 1, 0, len(content)) + content + b"\xce")

    client.sendall(b"AMQP\0\0\x09\x01")
    expect(10, 10)
    response = b"\0guest\0guest"
    answer = struct.pack(">I", 0) + b"\x05PLAIN" + struct.pack(">I", len(response)) + response
    send(10, 11, answer + b"\x05en_US")
    send(10, 31, expect(10, 30))
    send(10, 40, b"\x01/\0\0")
    expect(10, 41)


def get(client: socket.socket, path: str) -> int:
    """The status of the answer, which is read to its end."""
    client.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    answer = http.client.HTTPResponse(client)
    answer.begin()
    answer.read()
    return answer.status


def visit_http(client: socket.socket) -> None:
    assert get(client, "/subscriptions") == 200


def visit_admin(client: socket.socket) -> None:
    assert get(client, "/health") == 200


def stay_mqtt(client: socket.socket) -> None:
    client.sendall(wire.PINGREQ)
    assert exactly(client, 2) == wire.PINGRESP


def stay_amqp(client: socket.socket) -> None:
    """Open channel 1."""
    client.sendall(struct.pack(">BHIHHB", 1, 1, 5, 20, 10, 0) + b"\xce")
    assert struct.unpack(">BHIHH", exactly(client, 11)[:11])[3:] == (20, 11)


def visit_remoting(client: socket.socket) -> None:
    asked = {"code": 105, "language": "OTHER", "version": 0, "opaque": 1, "flag": 0}
    header = json.dumps({**asked, "extFields": {"topic": "t"}}).encode()
    client.sendall(struct.pack(">ii", 4 + len(header), len(header)) + header)
    size, _ = struct.unpack(">ii", exactly(client, 8))
    assert json.loads(exactly(client, size - 4))["opaque"] == 1


VISITS_BY_LISTENER: dict[str, Callable[[socket.socket], None]] = {
    "mqtt": visit_mqtt,
    "mqtts": visit_mqtt,
    "amqp": visit_amqp,
    "amqps": visit_amqp,
    "http": visit_http,
    "https": visit_http,
    "rocketmq": visit_remoting,
    "rocketmqs": visit_remoting,
    "admin": visit_admin,
}


STAYS_BY_LISTENER = {
    "mqtt": stay_mqtt,
    "mqtts": stay_mqtt,
    "amqp": stay_amqp,
    "amqps": stay_amqp,
}
"""What a client asks that has come in before, where it is something else."""


def dial(port: int, source: str, *, tls: bool) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), SECONDS, source_address=(source, 0))
    if not tls:
        return client
    context = ssl.create_default_context(cafile=str(CERTIFICATES / "ca.pem"))
    return context.wrap_socket(client, server_hostname="localhost")


@contextlib.contextmanager
def flood(port: int) -> Iterator[None]:
    """Silent connections that come back when they are closed, from a thread of their own. Begins
    when the server has closed the first of them."""
    over, closed = threading.Event(), threading.Event()

    def run() -> None:
        with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:

            def connect() -> None:
                client = socket.socket()
                client.setblocking(False)
                client.bind((FLOOD, 0))
                client.connect_ex(("127.0.0.1", port))
                selector.register(client, selectors.EVENT_READ, client.close)

            stack.callback(lambda: [key.data() for key in selector.get_map().values()])
            for _ in range(FLOOD_COUNT):
                connect()
            while not over.is_set():
                for key, _ in selector.select(0.05):
                    selector.unregister(key.fileobj)
                    key.data()
                    closed.set()
                    connect()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert closed.wait(SECONDS)
        yield
    finally:
        over.set()
        thread.join()


def comes_in(port: int, visit: Callable[[socket.socket], None], *, tls: bool) -> bool:
    """Whether a client from the address of the flood gets in before the flood pushes it out."""
    try:
        with dial(port, FLOOD, tls=tls) as client:
            visit(client)
    except (OSError, http.client.HTTPException, AssertionError):
        return False
    return True


def metric(server: Server, name: str, listener: str) -> float:
    url = f"http://{server.host}:{server.admin_port}/metrics"
    with urllib.request.urlopen(url, timeout=SECONDS) as answer:
        text = answer.read().decode()
    found = re.search(rf'^{name}{{protocol="{listener}"}} (\S+)$', text, re.MULTILINE)
    assert found is not None, (name, listener)
    return float(found[1])


@pytest.mark.slow
def test_a_flood_of_silent_connections_keeps_nobody_out(start_server: StartServer) -> None:
    """Who has come in before stays."""
    server = start_server(**OPTIONS)
    ports = json.loads((server.data_directory / "server.json").read_text())
    for listener, visit in VISITS_BY_LISTENER.items():
        tls = listener.endswith("s")
        with dial(ports[listener], FLOOD, tls=tls) as old:
            visit(old)
            with flood(ports[listener]):
                for _ in range(VISITS):
                    with dial(ports[listener], OTHER, tls=tls) as client:
                        visit(client)
                assert any(comes_in(ports[listener], visit, tls=tls) for _ in range(ATTEMPTS))
                STAYS_BY_LISTENER.get(listener, visit)(old)
    for listener in ("mqtt", "mqtts", "amqp", "http", "rocketmq", "admin"):
        assert metric(server, "polymq_newcomers_closed_total", listener) > 0
        assert metric(server, "polymq_connections_refused_total", listener) == 0
    log = server.log_path.read_text()
    assert f"127.0.0.1:{ports['mqtt']}: closing connections that have not logged in" in log
    assert f"such connections are from {FLOOD}" in log
    lines = [line for line in log.splitlines() if "closing connections that have not" in line]
    assert len(lines) <= 2 * len(VISITS_BY_LISTENER)


@pytest.mark.parametrize("with_user", [False, True])
@pytest.mark.slow
def test_who_only_asks_without_a_login_gives_way(
    start_server: StartServer, *, with_user: bool
) -> None:
    """On a server with users, requests that anybody may make prove nothing."""
    server = start_server(**OPTIONS)
    if with_user:
        Admin(server).add("ann")
    ports = json.loads((server.data_directory / "server.json").read_text())
    with dial(ports["http"], FLOOD, tls=False) as anonymous:
        assert get(anonymous, "/subscriptions") == (401 if with_user else 200)
        assert metric(server, "polymq_newcomers", "http") == (1 if with_user else 0)
