"""`polymq connection` against a running server: clients of all protocols in one list, and each of
them is closed in the way of its protocol."""

from __future__ import annotations

import http.client
import json
from typing import Any

import pika
import pytest

from interop_tests import mqtt5_wire as wire
from interop_tests import remoting_wire as remoting
from interop_tests.conftest import Server
from interop_tests.mqtt5_wire import Kind, P
from interop_tests.mqtt_conformance.client import Client
from interop_tests.people import PASSWORD, Admin, basic, polymq

ADMINISTRATIVE_ACTION = 0x98
CONNECTION_FORCED = 320


def said(server: Server, *arguments: str, code: int = 0, text: str | None = None) -> str:
    """What a command prints, on either stream."""
    ended = polymq(server, "connection", *arguments, text=text)
    assert ended.returncode == code, ended.stderr
    assert "Traceback" not in ended.stderr
    return ended.stdout + ended.stderr


def listed(server: Server, query: str = "") -> dict[str, Any]:
    """Connections by protocol: there is one of each."""
    rows = Admin(server).good("GET", f"/api/v1/connections{query}")["items"]
    return {row["protocol"]: row for row in rows}


def pika_connection(server: Server) -> pika.BlockingConnection:
    return pika.BlockingConnection(
        pika.ConnectionParameters(
            host="127.0.0.1",
            port=server.amqp_port,
            client_properties={"connection_name": "billing"},
        )
    )


@pytest.mark.slow
def test_one_client_of_each_protocol(server: Server) -> None:
    """What each is and has, and what it is told when it is closed."""
    device = Client(server.mqtt_port)
    device.send(wire.connect("pump-1"))
    device.read_kind(Kind.CONNACK)
    device.follow(("a/#", 1), ("b", 0))
    amqp = pika_connection(server)
    channel = amqp.channel()
    channel.queue_declare("orders")
    channel.basic_consume("orders", lambda *_: None)
    web = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=30)
    web.request("GET", "/subscriptions")
    web.getresponse().read()
    with remoting.Client("127.0.0.1", server.rocketmq_port) as java:
        java.beat("10.0.0.1@9", consumers=[remoting.consumer("readers", "t")])
        rows = listed(server)
        assert set(rows) == {"mqtt", "amqp", "http", "rocketmq"}
        assert [
            (rows[name]["client"], rows[name]["channels"], rows[name]["consumers"])
            for name in ("mqtt", "amqp", "http", "rocketmq")
        ] == [
            ("pump-1", None, 2),
            ("billing", 1, 1),
            ("", None, None),
            ("10.0.0.1@9", None, 1),
        ]
        for name, row in rows.items():
            assert row["state"] == "running", name
            assert row["peer"].startswith("127.0.0.1:"), name
            assert row["listener"] == f"127.0.0.1:{getattr(server, name + '_port')}"
        assert rows["amqp"]["sent_bytes"] > 100
        assert list(listed(server, "?prefix=pump&address=127.0.0.0/8")) == ["mqtt"]

        heading, *lines = said(server, "list").splitlines()
        assert heading.split()[:4] == ["ID", "PROTOCOL", "ADDRESS", "USER"]
        assert [line.split()[1] for line in lines] == ["mqtt", "amqp", "http", "rocketmq"]
        assert "client:    billing\n" in said(server, "show", rows["amqp"]["id"])

        said(server, "close", rows["mqtt"]["id"], "--reason", "firmware first")
        packet = device.read_kind(Kind.DISCONNECT)
        assert packet.reason == ADMINISTRATIVE_ACTION
        assert packet.values(P.REASON) == ["firmware first"]
        said(server, "close", rows["amqp"]["id"], "--reason", "maintenance")
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
            amqp.process_data_events(time_limit=30)
        assert closed.value.reply_code == CONNECTION_FORCED
        assert "maintenance" in closed.value.reply_text
        assert "2 connections" in said(
            server, "close", "--address", "127.0.0.0/8", code=130, text="n\n"
        )
        assert set(listed(server)) == {"http", "rocketmq"}
        text = said(server, "close", "--address", "127.0.0.1", "--yes")
        assert text == "2 connections closed.\n"
        assert web.sock is not None
        assert web.sock.recv(1) == b""
        assert java.socket.recv(1) == b""
    device.socket.close()
    web.close()
    assert listed(server) == {}
    assert said(server, "list") == "There is no such connection.\n"


@pytest.mark.slow
def test_mistakes(server: Server) -> None:
    """One line and an exit code."""
    for code, arguments, line in (
        (1, ("show", "x"), "there is no connection 'x'"),
        (1, ("close", "x"), "there is no connection 'x'"),
        (2, ("close",), "name an ID, or one of"),
        (2, ("close", "x", "--user", "ann"), "name an ID, or one of"),
        (1, ("list", "--address", "here"), "neither an address nor a network"),
        (1, ("close", "--user", "ann", "--yes", "--reason", "x" * 201), "reason"),
    ):
        text = said(server, *arguments, code=code)
        assert line in text
        assert text.count("\n") == 1


def test_only_operators(server: Server) -> None:
    """A reader looks, an operator also closes."""
    people = Admin(server)
    people.add("eve", "reader")
    people.add("olga", "operator")
    people.add("ann")
    people.allow("ann", "publish,subscribe,create", "#")
    parameters = pika.ConnectionParameters(
        host="127.0.0.1",
        port=server.amqp_port,
        credentials=pika.PlainCredentials("ann", PASSWORD),
    )
    connection = pika.BlockingConnection(parameters)
    identity = listed(server)["amqp"]["id"]
    for user, looks, acts in (("ann", 403, 403), ("eve", 200, 403), ("olga", 200, 200)):
        asking = Admin(server)
        asking.authorization = basic(user)
        assert asking.ask("GET", "/api/v1/connections?user=ann")[0] == looks
        body = {"user": "ann", "dry_run": True}
        assert asking.ask("POST", "/api/v1/connections/close", body)[0] == acts
        if user != "olga":
            assert asking.ask("DELETE", f"/api/v1/connections/{identity}")[0] == 403
    assert listed(server)["amqp"]["user"] == "ann"
    assert json.loads(said(server, "list", "--json", "--user", "bob"))["total"] == 0
    asking.good("DELETE", f"/api/v1/connections/{identity}")
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker):
        connection.process_data_events(time_limit=30)
