"""`polymq message list` and `peek`, and the messages of the admin API, against a running server."""

from __future__ import annotations

import json
from typing import Any

import pika
import pytest

from interop_tests.conftest import Server
from interop_tests.people import Admin, MqttClient, basic, http_publish, polymq


def said(server: Server, *arguments: str, code: int = 0) -> str:
    """What a command prints, on either stream."""
    ended = polymq(server, "message", *arguments)
    assert ended.returncode == code, ended.stderr
    assert "Traceback" not in ended.stderr
    return ended.stdout + ended.stderr


def bodies(text: str) -> list[str]:
    return [row["body"] for row in json.loads(text)]


@pytest.mark.slow
def test_what_an_operator_reads_and_publishes(server: Server) -> None:
    """Clients of other protocols get what the API publishes, and looking takes nothing."""
    parameters = pika.ConnectionParameters(host="127.0.0.1", port=server.amqp_port)
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.exchange_declare("shop", "topic", durable=True)
        channel.queue_declare("orders", durable=True)
        channel.queue_bind("orders", "shop", "order.*")
        device = MqttClient(server, client_id="watcher")
        device.subscribe("shop/order/#", 1)
        for number in range(3):
            body = b"%d" % number
            channel.basic_publish(
                "shop", "order.new", body, pika.BasicProperties(message_id=f"o-{number}")
            )
            assert device.next() == ("shop/order/new", body)
        path = "/api/v1/topics/shop/messages"
        late: dict[str, Any] = {"tag": "order.late", "body": "late", "key": "o-9"}
        placed = Admin(server).good("POST", path, late)
        assert device.next() == ("shop/order/late", b"late")
        assert bodies(said(server, "list", "shop", "--json")) == ["0", "1", "2", "late"]
        assert bodies(said(server, "list", "shop", "--key", "o-1", "--json")) == ["1"]
        assert bodies(said(server, "list", "shop", "--tag", "order.late", "--json")) == ["late"]
        assert bodies(said(server, "list", "shop", "--last", "2", "--json")) == ["2", "late"]
        assert f"position {placed['position']}" in said(server, "list", "shop", "--last", "1")
        found = Admin(server).good("GET", f"/api/v1/messages/{placed['position']}")
        assert (found["body"], found["key"]) == ("late", "o-9")

        waiting = json.loads(said(server, "peek", "orders", "--limit", "2", "--json"))
        assert [one["message"]["body"] for one in waiting] == ["0", "1"]
        assert waiting[0]["message"]["topic"] == "shop"
        assert said(server, "peek", "orders").count("shop/order.") == 4
        method, _, got = channel.basic_get("orders", auto_ack=True)
        assert (got, method.redelivered, method.message_count) == (b"0", False, 3)
        device.close()
    assert "there is no topic 'nothing'" in said(server, "list", "nothing", code=1)
    assert "there is no queue 'nothing'" in said(server, "peek", "nothing", code=1)


def test_contents_are_for_who_may_subscribe(server: Server) -> None:
    """The right to monitor shows that there are messages, and not what is in them."""
    people = Admin(server)
    people.add("ann")
    people.add("eve", "reader")
    people.add("rita", "reader")
    people.add("olga", "operator")
    people.allow("ann", "publish,subscribe,create", "#")
    people.allow("rita", "subscribe", "shop/#")
    people.allow("rita", "subscribe", "orders")  # it collects what is sent to it by its name
    people.allow("olga", "publish", "shop/open")
    credentials = pika.PlainCredentials("ann", "pass-4-ann-9351")
    parameters = pika.ConnectionParameters("127.0.0.1", server.amqp_port, "/", credentials)
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.exchange_declare("shop", "topic", durable=True)
        channel.queue_declare("orders", durable=True)
        channel.queue_bind("orders", "shop", "#")
        channel.queue_declare("other", durable=True)
    assert http_publish(server, "shop", "open", b"secret", basic("ann")) == 204
    (row,) = people.good("GET", "/api/v1/topics/shop/messages")["items"]
    for user, topic, queue, other in (
        ("ann", 403, 403, 403),
        ("eve", 403, 403, 403),
        ("rita", 200, 200, 403),
        ("olga", 403, 403, 403),
    ):
        asking = Admin(server)
        asking.authorization = basic(user)
        assert asking.ask("GET", "/api/v1/topics/shop/messages")[0] == topic, user
        assert asking.ask("GET", "/api/v1/topics/shop/messages?key=x")[0] == topic, user
        assert asking.ask("GET", "/api/v1/queues/orders/messages")[0] == queue, user
        assert asking.ask("GET", "/api/v1/queues/other/messages")[0] == other, user
        status = asking.ask("GET", f"/api/v1/messages/{row['position']}")[0]
        assert status == {200: 200, 403: 404 if user != "ann" else 403}[topic], user
    asking = Admin(server)
    asking.authorization = basic("olga")
    path = "/api/v1/topics/shop/messages"
    assert asking.ask("POST", path, {"tag": "open", "body": "x"})[0] == 200
    assert asking.ask("POST", path, {"tag": "closed", "body": "x"})[0] == 403
    asking.authorization = basic("rita")
    assert asking.ask("POST", path, {"tag": "open", "body": "x"})[0] == 403
