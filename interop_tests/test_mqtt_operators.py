"""What an operator sees of MQTT clients, and what becomes of clients that are disconnected, banned
or over a limit: asked for at the operator's listener, seen by real connections."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from interop_tests import mqtt5_wire as wire
from interop_tests import mqtt_wire
from interop_tests.conftest import Server, StartServer
from interop_tests.mqtt5_wire import Kind, P, Packet
from interop_tests.mqtt_conformance.client import Client
from interop_tests.mqtt_raw_client import RawClient
from interop_tests.people import PASSWORD, Admin

BANNED, QUOTA, ADMINISTRATIVE, RATE, FILTER = 0x8A, 0x97, 0x98, 0x9F, 0x8F
STRANGE = "dév/7 %2F?&#\u202e../"
"""A client identifier that has to be quoted everywhere."""


_open: list[Client] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Clients that a test leaves are closed after it."""
    yield
    for client in _open:
        client.socket.close()
    _open.clear()


def answered(server: Server, client_id: str, **options: Any) -> tuple[Client, Packet]:
    """A client and the answer to its CONNECT."""
    client = Client(server.mqtt_port)
    _open.append(client)
    client.send(wire.connect(client_id, **options))
    return client, client.read_kind(Kind.CONNACK)


def connected(server: Server, client_id: str, **options: Any) -> Client:
    client, connack = answered(server, client_id, **options)
    assert connack.reason == 0
    return client


def refused(server: Server, client_id: str, reason: int, **options: Any) -> None:
    """A CONNECT is answered with this reason, and the connection ends."""
    client, connack = answered(server, client_id, **options)
    assert connack.reason == reason, hex(connack.reason)
    client.expect_closed()


def lasting(seconds: int = 3600) -> dict[str, Any]:
    """Options of a CONNECT whose session outlives its connection."""
    return {"clean": False, "props": ((P.SESSION_EXPIRY, seconds),)}


def at(path: str, *name: str, **query: object) -> str:
    """The path of a list, or of the object of this name in it."""
    parts = "".join(f"/{quote(part, safe='')}" for part in name)
    asked = f"?{urlencode(query)}" if query else ""
    return f"/api/v1/mqtt/{path}{parts}{asked}"


def metric(server: Server, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.admin_port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line.rpartition(" ")[2] for line in lines if line.startswith(name + " ")))


def from_address(port: int, source: str) -> bytes:
    """What a connection from this address of the machine is sent before it says anything; b"" if
    it is closed."""
    with socket.socket() as client:
        client.bind((source, 0))
        client.settimeout(10)
        client.connect(("127.0.0.1", port))
        try:
            client.sendall(b"")
            return client.recv(1)
        except ConnectionResetError:
            return b""


def test_clients_are_listed_in_pages_and_shown(server: Server) -> None:
    """Filters, cursor, and an identifier that no path could have."""
    admin = Admin(server)
    clients = [connected(server, f"page/{number}") for number in range(5)]
    strange = connected(server, STRANGE, keep_alive=77, user="ann")
    strange.follow(("a/+/#", 1), ("b", 2))
    after: str | None = None
    found: list[str] = []
    while True:
        query = {"prefix": "page/", "limit": 2} | ({} if after is None else {"after": after})
        answer = admin.good("GET", at("clients", **query))
        assert len(answer["items"]) <= 2
        found += [row["client_id"] for row in answer["items"]]
        after = answer["next"]
        if after is None:
            break
    assert found == [f"page/{number}" for number in range(5)]

    (row,) = admin.good("GET", at("clients", user="ann"))["items"]
    host, port = strange.socket.getsockname()
    assert row["client_id"] == STRANGE
    assert row["address"] == f"{host}:{port}"
    assert row["listener"] == f"127.0.0.1:{server.mqtt_port}"
    assert (row["version"], row["keep_alive_seconds"]) == ("5.0", 77)
    assert (row["subscriptions"], row["inflight"], row["queued"]) == (2, 0, 0)
    assert admin.good("GET", at("clients", address="10.0.0.0/8"))["items"] == []
    assert len(admin.good("GET", at("clients", address="127.0.0.0/8"))["items"]) == 6

    shown = admin.good("GET", at("clients", STRANGE))
    assert [one["filter"] for one in shown["subscription_list"]] == ["a/+/#", "b"]
    for wrong in (at("clients", limit=0), at("clients", address="x"), at("clients", page=2)):
        assert admin.ask("GET", wrong)[0] == 400, wrong
    for client in [*clients, strange]:
        client.leave()
    assert admin.ask("GET", at("clients", STRANGE))[0] == 404
    assert admin.good("GET", at("clients"))["items"] == []


def test_a_client_is_disconnected(server: Server) -> None:
    """It is told why, its will is published, and its session stays; an older client is closed."""
    admin = Admin(server)
    watcher = connected(server, "watcher")
    watcher.follow(("wills/#", 1))
    will = wire.Will(topic="wills/kicked", body=b"gone")
    client = connected(server, "kicked", will=will, **lasting())
    admin.good("DELETE", at("clients", "kicked"))
    client.expect_error(ADMINISTRATIVE)
    assert watcher.message().body == b"gone"
    assert admin.ask("DELETE", at("clients", "kicked"))[0] == 404
    _, connack = answered(server, "kicked", **lasting())
    assert connack.present

    old = RawClient.connected(server.mqtt_port, "old")
    admin.good("DELETE", at("clients", "old"))
    old.expect_closed()


@pytest.mark.slow
def test_a_session_that_waits_is_shown_and_deleted(server: Server) -> None:
    admin = Admin(server)
    client = connected(server, "away", **lasting())
    client.follow(("waiting/#", 1))
    client.leave()
    publisher = connected(server, "publisher")
    for _ in range(3):
        publisher.send_message("waiting/x", b"x" * 100)
    (row,) = admin.good("GET", at("sessions", state="disconnected"))["items"]
    assert (row["client_id"], row["connected"], row["queued"]) == ("away", False, 3)
    assert row["expiry_seconds"] == 3600
    shown = admin.good("GET", at("sessions", "away"))
    assert 300 < shown["queued_bytes"] < 3000
    assert shown["subscription_list"][0]["queued"] == 3
    admin.good("DELETE", at("sessions", "away"))
    assert admin.ask("GET", at("sessions", "away"))[0] == 404
    server.kill()
    server.start()
    _, connack = answered(server, "away", **lasting())
    assert not connack.present, "it was deleted, and that was durable"


def test_a_connected_session_is_deleted(server: Server) -> None:
    client = connected(server, "here", **lasting())
    Admin(server).good("DELETE", at("sessions", "here"))
    client.expect_error(ADMINISTRATIVE)
    _, connack = answered(server, "here", **lasting())
    assert not connack.present


@pytest.mark.slow
def test_retained_messages_are_cleared_by_filter(server: Server) -> None:
    admin = Admin(server)
    publisher = connected(server, "publisher")
    for topic in ("r/a", "r/b.c/d", "s"):
        publisher.send_message(topic, b"kept", retain=True)
    listed = admin.good("GET", at("retained", filter="r/#", limit=1))
    assert [row["topic"] for row in listed["items"]] == ["r/a"]
    assert (listed["total"], listed["next"]) == (3, "r/a")
    more = admin.good("GET", at("retained", filter="r/#", after=listed["next"]))
    assert [row["topic"] for row in more["items"]] == ["r/b.c/d"]
    clear = at("retained/clear")
    dry = admin.good("POST", clear, {"filter": "r/#", "dry_run": True})
    assert dry["count"] == 2
    assert admin.good("GET", at("retained"))["total"] == 3
    assert admin.good("POST", clear, {"filter": "r/#"}) == dry
    assert admin.ask("POST", clear, {"filter": "r/#/x"})[0] == 400
    assert admin.ask("POST", clear)[0] == 400
    server.kill()
    server.start()
    reader = connected(server, "reader")
    reader.follow(("#", 1))
    assert reader.message().topic == "s"
    reader.nothing()
    assert metric(server, "polymq_mqtt_retained_messages") == 1


@pytest.mark.slow
def test_bans_hold_after_a_crash(server: Server) -> None:
    """Of each kind, and each is told in the way of the client's version."""
    admin = Admin(server)
    here = connected(server, "bad-client")
    for body in (
        {"kind": "client_id", "value": "bad-client", "reason": "noise"},
        {"kind": "user", "value": "bad-user"},
        {"kind": "address", "value": "127.0.0.64/26", "seconds": 86_400},
    ):
        assert admin.ask("POST", "/api/v1/bans", body)[0] == 201
    here.expect_error(ADMINISTRATIVE)
    server.kill()
    server.start()
    assert len(admin.good("GET", "/api/v1/bans")["items"]) == 3
    refused(server, "bad-client", BANNED)
    refused(server, "other", BANNED, user="bad-user")
    with RawClient(server.mqtt_port) as old:
        old.send(mqtt_wire.connect("bad-client"))
        old.expect(mqtt_wire.connack(5))
    for port in (server.mqtt_port, server.amqp_port, server.rocketmq_port):
        assert from_address(port, "127.0.0.65") == b"", "closed without a word"
    connected(server, "good", user="good").leave()
    assert metric(server, 'polymq_banned_total{by="client_id"}') == 2
    assert metric(server, 'polymq_banned_total{by="user"}') == 1
    assert metric(server, 'polymq_banned_total{by="address"}') == 3

    path = "/api/v1/bans/client_id/bad-client"
    admin.good("DELETE", path)
    assert admin.ask("DELETE", path)[0] == 404
    admin.good("DELETE", f"/api/v1/bans/address/{quote('127.0.0.64/26', safe='')}")
    assert [ban["value"] for ban in admin.good("GET", "/api/v1/bans")["items"]] == ["bad-user"]
    connected(server, "bad-client").leave()
    for wrong in (
        {"kind": "client", "value": "x"},
        {"kind": "address", "value": "127.0.0.65/26"},
        {"kind": "user", "value": ""},
        {"kind": "user", "value": "x", "seconds": 0},
        {"kind": "user", "value": "x", "seconds": True},
        {"kind": "user", "value": 7},
        {"kind": "user", "value": "x", "until": 7},
    ):
        assert admin.ask("POST", "/api/v1/bans", wrong)[0] == 400, wrong


def test_a_banned_user_is_out_of_all_protocols(server: Server) -> None:
    """Its connections end, and its right password does not help."""
    admin = Admin(server)
    admin.add("root", "admin")
    admin.add("ann", "admin")
    client = connected(server, "c", user="ann", password=PASSWORD.encode())
    admin.good("POST", "/api/v1/bans", {"kind": "user", "value": "ann"})
    client.expect_error(wire.R.NOT_AUTHORIZED)
    refused(server, "c", BANNED, user="ann", password=PASSWORD.encode())
    connected(server, "c", user="root", password=PASSWORD.encode()).leave()
    as_ann = urllib.request.Request(
        f"http://127.0.0.1:{server.http_port}/topics/t",
        data=b"x",
        headers={
            "Authorization": "Basic YW5uOnBhc3MtNC1hbm4tOTM1MQ==",
            "ce-specversion": "1.0",
            "ce-id": "1",
            "ce-source": "/",
            "ce-type": "t",
        },
    )
    with pytest.raises(urllib.error.HTTPError) as found:
        urllib.request.urlopen(as_ann)
    assert found.value.code == 403
    found.value.close()


def test_limits_of_connections(start_server: StartServer) -> None:
    """Connections of one address, and clients that connect and vanish too often."""
    server = start_server(**{"mqtt.connections_per_address_max": 2, "mqtt.flapping_count": 3})
    first, second = connected(server, "1"), connected(server, "2")
    refused(server, "3", QUOTA)
    second.leave()
    for _ in range(3):
        connected(server, "flaps").leave()
    refused(server, "flaps", BANNED)
    with RawClient(server.mqtt_port) as old:
        old.send(mqtt_wire.connect("flaps"))
        old.expect(mqtt_wire.connack(5))
    connected(server, "calm").leave()
    first.leave()
    limited = "polymq_mqtt_connects_limited_total"
    assert metric(server, limited + '{limit="address_connections"}') == 1
    assert metric(server, limited + '{limit="flapping"}') == 2


def test_the_rate_of_new_connections(start_server: StartServer) -> None:
    """A bucket of one: the second client within 1,000 seconds is one too many."""
    server = start_server(**{"mqtt.connects_per_second_max": 0.001})
    connected(server, "1")
    refused(server, "2", RATE)
    with RawClient(server.mqtt_port) as old:
        old.send(mqtt_wire.connect("3"))
        old.expect(mqtt_wire.connack(3))
    assert metric(server, 'polymq_mqtt_connects_limited_total{limit="rate"}') == 2


def test_limits_of_filters_and_retained_messages(start_server: StartServer) -> None:
    options = {
        "mqtt.topic_levels_max": 3,
        "mqtt.subscriptions_max": 2,
        "mqtt.retained_max": 2,
        "mqtt.retained_bytes_max": 1_000,
    }
    server = start_server(**options)
    client = connected(server, "c")
    assert client.ask_subscribe(("a/b/c/d", 1), ("a/b/c", 1), ("b", 0)) == (FILTER, 1, 0)
    assert client.ask_subscribe(("c", 1), ("b", 1)) == (QUOTA, 1)
    assert metric(server, "polymq_mqtt_filters_refused_total") == 2
    publisher = connected(server, "p")

    def retain(topic: str, body: bytes) -> int:
        packet_id = publisher.next_id()
        publisher.send(wire.publish(topic, body, qos=1, packet_id=packet_id, retain=True))
        return publisher.read_kind(Kind.PUBACK).reason

    assert retain("r/1", b"x") < 0x80
    assert retain("r/2", b"x" * 2_000) == QUOTA, "too many bytes"
    assert retain("r/2", b"x") < 0x80
    assert retain("r/3", b"x") == QUOTA, "too many"
    assert retain("r/1", b"y") < 0x80, "it takes the place of another"
    assert retain("r/1", b"") < 0x80, "it ends one"
    assert retain("r/3", b"x") < 0x80
    assert metric(server, "polymq_mqtt_retained_refused_total") == 2
