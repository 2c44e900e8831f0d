"""`polymq message way` against a running server: one message over several protocols, its dead
letters, and the same answer after kill -9."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pika
import pytest

from interop_tests.conftest import Server
from interop_tests.people import Admin, MqttClient, basic, http_ask, polymq

SECONDS_MAX = 60


def said(server: Server, *arguments: str, code: int = 0) -> str:
    """What a command prints, on either stream."""
    ended = polymq(server, "message", *arguments)
    assert ended.returncode == code, ended.stderr
    assert "Traceback" not in ended.stderr
    return ended.stdout + ended.stderr


def way(server: Server, position: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(said(server, "way", str(position), "--json"))
    return found


def events(found: dict[str, Any], destination: str) -> list[tuple[str, str]]:
    return [
        (one["what"], one["reason"]) for one in found["events"] if one["destination"] == destination
    ]


def states(found: dict[str, Any]) -> dict[str, str]:
    return {one["id"]: one["state"] for one in found["destinations"]}


def until(is_so: Callable[[], bool]) -> None:
    """Wait for what the log says a moment later."""
    deadline = time.monotonic() + SECONDS_MAX
    while not is_so():
        assert time.monotonic() < deadline


def connect(server: Server) -> pika.BlockingConnection:
    return pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", server.amqp_port))


def newest(server: Server, topic: str) -> int:
    rows = json.loads(said(server, "list", topic, "--last", "1", "--json"))
    position: int = rows[-1]["position"]
    return position


@pytest.mark.slow(seconds=20)
def test_one_message_over_all_protocols(server: Server) -> None:
    """Published by MQTT; an AMQP consumer acknowledges it, a subscription over HTTP and another
    AMQP queue reject it, and a session that is away has it waiting. Each dead letter and its
    original name each other, before and after kill -9."""
    http_ask(server, "PUT", "/subscriptions/billing", b'{"topic": "shop"}')
    away = MqttClient(server, client_id="away", clean=False)
    away.subscribe("shop/#", 1)
    away.close()
    with connect(server) as connection:
        channel = connection.channel()
        channel.exchange_declare("shop", "topic", durable=True)
        channel.exchange_declare("dlx", "fanout", durable=True)
        channel.queue_declare("dead", durable=True)
        channel.queue_bind("dead", "dlx")
        channel.queue_declare("orders", durable=True)
        channel.queue_declare("picky", durable=True, arguments={"x-dead-letter-exchange": "dlx"})
        for queue in ("orders", "picky"):
            channel.queue_bind(queue, "shop", "order.*")
        device = MqttClient(server, client_id="device")
        device.publish("shop/order/new", b"secret", 1)
        device.close()
        position = newest(server, "shop")

        first = way(server, position)
        assert (first["topic"], first["tag"], first["protocol"]) == ("shop", "order.new", "mqtt")
        assert "secret" not in json.dumps(first)
        assert states(first) == {
            "topic:shop": "kept",
            "queue:orders": "waiting",
            "queue:picky": "waiting",
            "subscription:billing": "waiting",
            "session:away shop/#": "waiting",
        }

        orders = channel.basic_consume("orders", lambda *_: None, consumer_tag="clerk")
        connection.process_data_events(1)
        until(lambda: states(way(server, position))["queue:orders"] == "unacknowledged")
        (holder,) = [
            one["holder"] for one in way(server, position)["destinations"] if one["holder"]
        ]
        assert holder["name"] == orders == "clerk"
        (client,) = Admin(server).good("GET", "/api/v1/connections?protocol=amqp")["items"]
        assert holder["connection"] == client["id"]
        channel.basic_ack(0, multiple=True)
        method, _, _ = channel.basic_get("picky")
        channel.basic_reject(method.delivery_tag, requeue=False)
        connection.process_data_events(0)
        path = "/topics/shop/subscriptions/billing"
        _, _, got = http_ask(server, "POST", f"{path}:receive?maxEvents=1&maxWaitTime=10")
        tokens = json.dumps({"lockTokens": [got["value"][0]["brokerProperties"]["lockToken"]]})
        kind = {"Content-Type": "application/json"}
        assert http_ask(server, "POST", f"{path}:reject", tokens.encode(), **kind)[0] == 200

    def is_settled() -> bool:
        return ("settled", "") in events(way(server, position), "queue:orders")

    until(is_settled)
    found = way(server, position)
    assert events(found, "queue:orders") == [("delivered", ""), ("settled", "")]
    assert ("dead-lettered", "rejected") in events(found, "queue:picky")
    assert events(found, "subscription:billing")[-1][0] == "dead-lettered"
    links = {
        one["destination"]: one["to_position"]
        for one in found["events"]
        if one["what"] == "dead-lettered"
    }
    for destination, topic in (("queue:picky", "dlx"), ("subscription:billing", "%DLQ%billing")):
        assert links[destination] == newest(server, topic)
        copy = way(server, links[destination])
        assert copy["origin"]["what"] == "dead-lettered", copy
        assert copy["origin"]["position"] == position
        assert copy["origin"]["destination"] == destination

    server.kill()
    server.start()
    again = way(server, position)
    assert states(again) == states(found)
    assert again["events"] == found["events"]
    assert way(server, links["queue:picky"])["origin"]["position"] == position

    text = said(server, "way", str(position))
    assert f"now position {links['queue:picky']} of topic dlx" in text
    assert "The log was read to its end." in text
    assert "--from" in said(server, "way", str(position), "--log-mib", "0")
    said(server, "way", str(position), "--from", "1", code=1)
    assert "there is no message at position 3" in said(server, "way", "3", code=1)


@pytest.mark.slow(seconds=10)
def test_a_redriven_message_names_its_dead_letter(server: Server) -> None:
    """From the original over the dead letter to the redriven message, and back."""
    with connect(server) as connection:
        channel = connection.channel()
        channel.queue_declare("dead", durable=True)
        channel.queue_declare(
            "work",
            durable=True,
            arguments={"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"},
        )
        channel.confirm_delivery()
        channel.basic_publish(
            "", "work", b"x", pika.BasicProperties(delivery_mode=2, user_id="guest")
        )
        waiting = json.loads(said(server, "peek", "work", "--json"))
        original: int = waiting[0]["message"]["position"]
        method, _, _ = channel.basic_get("work")
        channel.basic_reject(method.delivery_tag, requeue=False)
        until(lambda: bool(json.loads(said(server, "peek", "dead", "--json"))))
    assert way(server, original)["user"] == "guest"
    Admin(server).good("POST", "/api/v1/dead-letters/queue:dead/redrive", {})
    (dead,) = [
        one["to_position"]
        for one in way(server, original)["events"]
        if one["what"] == "dead-lettered"
    ]
    (redriven,) = [
        one["to_position"] for one in way(server, dead)["events"] if one["what"] == "redriven"
    ]
    last = way(server, redriven)
    assert last["origin"] == {
        "what": "redriven",
        "reason": "",
        "position": dead,
        "destination": "queue:dead",
    }
    assert states(last)["queue:work"] == "waiting"
    assert way(server, dead)["origin"]["position"] == original


@pytest.mark.slow(seconds=10)
def test_the_right_to_monitor_is_enough(server: Server) -> None:
    """Who may not subscribe sees the way, and nothing of the contents."""
    people = Admin(server)
    people.add("ann")
    people.add("eve", "reader")
    people.allow("ann", "publish,create", "#")
    headers = {"Authorization": basic("ann"), "ce-id": "1", "ce-source": "s", "ce-type": "new"}
    headers |= {"ce-specversion": "1.0"}
    assert http_ask(server, "POST", "/topics/shop", b"secret", **headers)[0] in (200, 202, 204)
    position = people.good("GET", "/api/v1/topics/shop/messages")["items"][0]["position"]
    asking = Admin(server)
    asking.authorization = basic("eve")
    status, found = asking.ask("GET", f"/api/v1/messages/{position}/way")
    assert status == 200
    assert found["topic"] == "shop"
    assert "secret" not in json.dumps(found)
    asking.authorization = basic("ann")
    assert asking.ask("GET", f"/api/v1/messages/{position}/way")[0] == 403
