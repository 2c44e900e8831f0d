"""MQTT behind a proxy that speaks the PROXY protocol."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

import pytest

from interop_tests.authority import Authority
from interop_tests.conftest import Server, StartServer
from interop_tests.listener_clients import SECONDS, addresses, client_tls, start_with, until
from interop_tests.mqtt_wire import connect
from interop_tests.people import Admin

ACCEPTED = b"\x20\x02\x00\x00"
SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
PROXIED = {"proxy_protocol": True, "proxy_networks": ["127.0.0.0/8"]}
OPEN = {"server.allow_insecure": True}
"""A proxy brings clients of other machines, who are let in without users only so."""


def version_2(command: int, family: int, content: bytes) -> bytes:
    return SIGNATURE + bytes([command, family]) + len(content).to_bytes(2, "big") + content


def field(kind: int, value: bytes) -> bytes:
    return bytes([kind]) + len(value).to_bytes(2, "big") + value


ADDRESSES_4 = bytes([203, 0, 113, 9, 127, 0, 0, 1]) + (5555).to_bytes(2, "big") + bytes(2)
HEADERS = {
    "v1": b"PROXY TCP4 203.0.113.9 127.0.0.1 5555 1883\r\n",
    "v1 of IPv6": b"PROXY TCP6 2001:db8::9 ::1 5555 1883\r\n",
    "v2": version_2(0x21, 0x11, ADDRESSES_4),
    "v2 with fields": version_2(0x21, 0x11, ADDRESSES_4 + field(2, b"broker.example")),
}
PEERS = {"v1 of IPv6": "2001:db8::9:5555"}


def logged(server: Server, text: str) -> bool:
    return any(text in line for line in server.log_lines())


def ended(sock: socket.socket) -> bool:
    sock.settimeout(SECONDS)
    try:
        return sock.recv(100) == b""
    except ConnectionResetError:
        return True


def test_addresses_of_clients_behind_a_proxy(start_server: StartServer) -> None:
    """Each form of header, whole and byte by byte, before a CONNECT in the same segment; the log
    has the client's address. LOCAL and UNKNOWN stand for the proxy itself."""
    server = start_with(start_server, {"name": "p", **PROXIED}, **OPEN)
    port = addresses(server)["p"]
    for name, header in HEADERS.items():
        for cut in (len(header) + 99, 1):
            with socket.create_connection(("127.0.0.1", port), SECONDS) as client:
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                data = header + connect("c")
                for at in range(0, len(data), cut):
                    client.sendall(data[at : at + cut])
                assert client.recv(4) == ACCEPTED, name
                client.sendall(b"\xff\xff")
                assert ended(client)
        peer = PEERS.get(name, "203.0.113.9:5555")
        assert logged(server, f"closing {peer} (c)"), name
    for header in (b"PROXY UNKNOWN\r\n", version_2(0x20, 0, b"")):
        with socket.create_connection(("127.0.0.1", port), SECONDS) as client:
            client.sendall(header + connect("own") + b"\xff\xff")
            assert client.recv(4) == ACCEPTED
            assert ended(client)
            host, number = client.getsockname()
            assert logged(server, f"closing {host}:{number} (own)")


@pytest.mark.parametrize("data", [connect("c"), HEADERS["v1"][:-2] + b"\n", SIGNATURE + b"\x31"])
def test_a_connection_without_a_right_header_is_closed(
    start_server: StartServer, data: bytes
) -> None:
    server = start_with(start_server, {"name": "p", **PROXIED}, **OPEN)
    with socket.create_connection(("127.0.0.1", addresses(server)["p"]), SECONDS) as client:
        client.sendall(data + bytes(8))
        assert ended(client)
    lines = [line for line in server.log_lines() if "PROXY protocol" in line]
    assert len(lines) == 1


@pytest.mark.slow(seconds=7)
def test_a_header_that_does_not_come_and_one_from_elsewhere(start_server: StartServer) -> None:
    """There is a deadline; and a client that is no proxy cannot say whom it is."""
    elsewhere = {**PROXIED, "proxy_networks": ["192.0.2.0/24"]}
    server = start_with(
        start_server, {"name": "p", **PROXIED}, {"name": "elsewhere", **elsewhere}, **OPEN
    )
    where = addresses(server)
    began = time.monotonic()
    with (
        socket.create_connection(("127.0.0.1", where["p"]), SECONDS) as silent,
        socket.create_connection(("127.0.0.1", where["elsewhere"]), SECONDS) as stranger,
    ):
        silent.sendall(b"PROXY TCP4")
        stranger.sendall(HEADERS["v1"] + connect("c"))
        assert ended(stranger)
        assert ended(silent)
    assert 3 < time.monotonic() - began < 15
    assert logged(server, "it is not in proxy_networks")
    assert logged(server, "no whole header within 5 s")


def test_tls_and_websocket_behind_a_proxy(start_server: StartServer, tmp_path: Path) -> None:
    """The header comes before all else: before the handshake of TLS, and of WebSocket."""
    authority = Authority(tmp_path / "ca")
    certificate, key = authority.issue("server", "/CN=localhost", "DNS:localhost")
    own = {"tls": True, "tls_certificate": str(certificate), "tls_key": str(key)}
    server = start_with(
        start_server,
        {"name": "tls", **PROXIED, **own},
        {"name": "web", "type": "websocket", **PROXIED},
        **OPEN,
    )
    where = addresses(server)
    with socket.create_connection(("127.0.0.1", where["tls"]), SECONDS) as raw:
        raw.sendall(HEADERS["v2"])
        context = client_tls(authority.certificate)
        with context.wrap_socket(raw, server_hostname="localhost") as client:
            client.sendall(connect("c") + b"\xff\xff")
            assert client.recv(4) == ACCEPTED
            assert ended(client)
    with socket.create_connection(("127.0.0.1", where["web"]), SECONDS) as raw:
        raw.sendall(
            HEADERS["v1"]
            + b"GET /mqtt HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            + b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
            + b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
        )
        assert raw.recv(12) == b"HTTP/1.1 101"
    until(server, lambda: logged(server, "closing 203.0.113.9:5555 (c)"))


def ssl_field(common_name: bytes, *, client: int = 0x07, verify: int = 0) -> bytes:
    inner = bytes([client]) + verify.to_bytes(4, "big") + field(0x22, common_name)
    return field(0x20, inner)


def test_the_proxy_names_the_user(start_server: StartServer) -> None:
    """Only where the listener says so, only of a certificate that the proxy has verified, and only
    a user that exists."""
    server = start_with(
        start_server,
        {"name": "trusting", **PROXIED, "proxy_user": True},
        {"name": "other", **PROXIED},
        **OPEN,
    )
    Admin(server).add("ann", "admin")
    cases: list[tuple[str, bytes, dict[str, Any], int]] = [
        ("trusting", b"ann", {}, 0),
        ("trusting", b"bob", {}, 5),
        ("trusting", b"ann", {"verify": 1}, 5),
        ("trusting", b"ann", {"client": 0x01}, 5),
        ("other", b"ann", {}, 5),
    ]
    for name, common_name, more, code in cases:
        with socket.create_connection(("127.0.0.1", addresses(server)[name]), SECONDS) as client:
            content = ADDRESSES_4 + ssl_field(common_name, **more)
            client.sendall(version_2(0x21, 0x11, content) + connect("c"))
            assert client.recv(4)[3] == code, (name, common_name, more)


def test_strangers_are_outside_behind_a_proxy(start_server: StartServer) -> None:
    """A proxy brings clients of other machines: before the first user, nobody is let in."""
    server = start_with(start_server, {"name": "p", **PROXIED})
    with socket.create_connection(("127.0.0.1", addresses(server)["p"]), SECONDS) as client:
        client.sendall(HEADERS["v1"] + connect("c"))
        assert client.recv(4)[3] == 5
