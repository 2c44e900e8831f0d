"""The admin API on the listener for other machines: over TLS, for users only, with their rights."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from contextlib import closing
from typing import Any

import pytest

from interop_tests.api_operations import caller, operations, populate
from interop_tests.conftest import Server, StartServer
from interop_tests.people import SECONDS, Admin, basic
from interop_tests.test_login_floods import metric
from interop_tests.test_tls import TLS, client_context, ports_of

OPTIONS = {**TLS, "api.enabled": True, "api.port": 0}
BANNED, OTHER = "127.0.0.66", "127.0.0.9"
FLOOD = 100
PER_ADDRESS_MAX = 128
"""Connections of one address, as docs/admin-api.md says."""


def ask(
    port: int,
    path: str,
    authorization: str | None = None,
    *,
    method: str = "GET",
    body: object = None,
    source: str = "127.0.0.1",
) -> tuple[int, Any]:
    """Status and JSON value of an answer over TLS."""
    connection = http.client.HTTPSConnection(
        "localhost", port, timeout=SECONDS, context=client_context(), source_address=(source, 0)
    )
    headers = {} if authorization is None else {"Authorization": authorization}
    raw = None
    if body is not None or method == "POST":
        raw, headers["Content-Type"] = json.dumps(body or {}), "application/json"
    with closing(connection):
        connection.request(method, path, raw, headers)
        answer = connection.getresponse()
        content = answer.read()
    return answer.status, json.loads(content) if content else None


def received(connection: socket.socket) -> bytes:
    """What comes until the server closes."""
    try:
        return b"".join(iter(lambda: connection.recv(1000), b""))
    except (ConnectionError, ssl.SSLError):
        return b""


@pytest.fixture
def server(start_server: StartServer) -> Server:
    return start_server(**OPTIONS)


def test_nobody_comes_in_before_there_is_a_user(server: Server) -> None:
    """Not even with the operator's token, although this machine's listener lets everybody in."""
    port = ports_of(server)["api"]
    token = (server.data_directory / "admin.token").read_text(encoding="ascii").strip()
    for authorization in (None, basic("ann"), f"Bearer {token}"):
        status, problem = ask(port, "/api/v1/broker", authorization)
        assert status == 401
        assert "before there is a user" in problem["detail"]
    assert ask(port, "/api/v1/openapi.json")[0] == 200
    Admin(server).add("root", "admin")
    assert ask(port, "/api/v1/broker", basic("root"))[0] == 200
    assert ask(port, "/api/v1/broker", f"Bearer {token}")[0] == 200
    assert ask(port, "/api/v1/broker", basic("root", "wrong"))[0] == 401


def test_it_serves_what_this_machines_listener_serves_and_no_plain_http(server: Server) -> None:
    people = populate(server)
    port = ports_of(server)["api"]
    here = people.good("GET", "/api/v1/openapi.json")
    assert ask(port, "/api/v1/openapi.json") == (200, here)
    for path in ("/metrics", "/health"):
        assert ask(port, path, basic("root"))[0] == 404, "those are for this machine"
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as plain:
        plain.sendall(b"GET /api/v1/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"HTTP" not in received(plain)


@pytest.mark.slow
def test_users_of_each_role(server: Server) -> None:
    """Every operation on queues, sessions and users, over TLS. No host name is refused here."""
    people = populate(server)
    port = ports_of(server)["api"]
    found = [
        one
        for prefix in ("/queues", "/mqtt/sessions", "/users")
        for one in operations(people, prefix)
    ]
    for user, right in (
        ("nobody", None),
        ("eve", "monitor"),
        ("olga", "operate"),
        ("root", "admin"),
    ):
        for one in found:
            status, value = ask(port, one.path, basic(user), method=one.method, body=one.body)
            refused = status == 403 and f"may not {one.right}" in value["detail"]
            assert refused != one.is_for(right), (user, one, status)
    assert caller(server, "root").ask("GET", "/api/v1/users/victim")[0] == 404


def test_banned_addresses_are_refused_and_this_machine_is_not(server: Server) -> None:
    """A connection that is there ends; the listener on loopback lets operators in to undo it."""
    people = Admin(server)
    people.add("root", "admin")
    port = ports_of(server)["api"]
    assert ask(port, "/api/v1/broker", basic("root"), source=BANNED)[0] == 200
    with socket.socket() as idle:
        idle.settimeout(SECONDS)
        idle.bind((BANNED, 0))
        idle.connect(("127.0.0.1", port))
        with client_context().wrap_socket(idle, server_hostname="localhost") as tls:
            added = people.good("POST", "/api/v1/bans", {"kind": "address", "value": BANNED})
            assert added["ended"] == 1
            assert received(tls) == b""
    with pytest.raises((ConnectionError, ssl.SSLError, http.client.HTTPException)):
        ask(port, "/api/v1/broker", basic("root"), source=BANNED)
    assert ask(port, "/api/v1/broker", basic("root"), source=OTHER)[0] == 200
    people.good("POST", "/api/v1/bans", {"kind": "address", "value": "127.0.0.0/8"})
    with pytest.raises((ConnectionError, ssl.SSLError, http.client.HTTPException)):
        ask(port, "/api/v1/broker", basic("root"))
    for ban in people.good("GET", "/api/v1/bans")["items"]:
        people.good("DELETE", people.path("bans", ban["kind"], ban["value"]))
    assert ask(port, "/api/v1/broker", basic("root"), source=BANNED)[0] == 200


@pytest.mark.slow
def test_a_flood_of_wrong_logins_keeps_no_other_address_out(server: Server) -> None:
    """It waits where the wrong logins of all listeners wait, and is forgotten when its connections
    end."""
    people = Admin(server)
    people.add("root", "admin")
    port, context = ports_of(server)["api"], client_context()
    flood = []
    for number in range(FLOOD):
        plain = socket.create_connection(("127.0.0.1", port), timeout=SECONDS)
        one = context.wrap_socket(plain, server_hostname="localhost")
        login = basic(f"nobody{number}", "wrong")
        head = f"GET /api/v1/broker HTTP/1.1\r\nHost: localhost\r\nAuthorization: {login}\r\n\r\n"
        one.sendall(head.encode())
        flood.append(one)
    assert ask(port, "/api/v1/broker", basic("root"), source=OTHER)[0] == 200
    assert metric(server, "polymq_logins_waiting") > 10, "not because the flood was over"
    for one in flood:
        one.close()
    while metric(server, "polymq_logins_waiting"):
        pass
    assert metric(server, "polymq_login_failures_total") < FLOOD


def test_silent_strangers_leave_room_for_operators(server: Server) -> None:
    """More connections than the listener has, none of which logs in: an operator gets in."""
    people = Admin(server)
    people.add("root", "admin")
    port = ports_of(server)["api"]
    strangers = []
    try:
        for _ in range(300):
            strangers.append(socket.create_connection(("127.0.0.1", port), timeout=SECONDS))
        assert ask(port, "/api/v1/broker", basic("root"), source=OTHER)[0] == 200
        assert people.ask("GET", "/api/v1/broker")[0] == 200
    finally:
        for stranger in strangers:
            stranger.close()


def test_who_fills_the_port_keeps_out_nobody_else(server: Server) -> None:
    """A reader opens as many connections as it gets, and makes a request on each. One address gets
    a part of them; other addresses, and loopback with its probes, have theirs."""
    people = Admin(server)
    people.add("root", "admin")
    people.add("eve", "reader")
    port = ports_of(server)["api"]
    busy = []
    try:
        for _ in range(PER_ADDRESS_MAX + 20):
            context = client_context()
            one = http.client.HTTPSConnection("localhost", port, timeout=SECONDS, context=context)
            busy.append(one)
            try:
                one.request("GET", "/api/v1/caller", headers={"Authorization": basic("eve")})
                one.getresponse().read()
            except (OSError, http.client.HTTPException):
                break
        assert len(busy) == PER_ADDRESS_MAX + 1
        assert ask(port, "/api/v1/broker", basic("root"), source=OTHER)[0] == 200
        assert people.ask("GET", "/api/v1/broker")[0] == 200
    finally:
        for one in busy:
            one.close()
