"""Queues that an operator pauses while real clients of each protocol read them: nothing new comes,
what they have stays theirs, and everything comes once it is resumed, also over a SIGKILL."""

from __future__ import annotations

import json
import threading
from typing import Any
from urllib.request import urlopen

import pika
import pika.adapters.blocking_connection as blocking
import pytest

from interop_tests import remoting_wire as remoting
from interop_tests.conftest import Server, StartServer
from interop_tests.management import SETTINGS, Api
from interop_tests.people import Admin, http_ask, http_publish, polymq

PERSISTENT = pika.BasicProperties(delivery_mode=2)
NOT_FOUND = 19
"""RocketMQ's answer to a pull that finds no message."""
RECEIVE = "/topics/shop/subscriptions/billing:receive"


def said(server: Server, *arguments: str) -> str:
    ended = polymq(server, *arguments)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def connect(server: Server) -> blocking.BlockingChannel:
    parameters = pika.ConnectionParameters(host="127.0.0.1", port=server.amqp_port)
    channel = pika.BlockingConnection(parameters).channel()
    channel.confirm_delivery()
    return channel


def shown(server: Server, name: str) -> dict[str, Any]:
    found: dict[str, Any] = Admin(server).good("GET", f"/api/v1/queues/{name}")
    return found


def received(server: Server, seconds: int) -> list[str]:
    """The types of the events of one receive."""
    _, _, answer = http_ask(server, "POST", f"{RECEIVE}?maxWaitTime={seconds}")
    return [one["event"]["type"] for one in answer["value"]]


@pytest.mark.slow
@pytest.mark.parametrize("priorities", [False, True])
def test_consumers_of_amqp(start_server: StartServer, priorities: bool) -> None:
    """A consumer that stays, one that comes later, and `basic.get`."""
    server = start_server(**SETTINGS)
    channel = connect(server)
    arguments = {"x-max-priority": 3} if priorities else {}
    channel.queue_declare("q", durable=True, arguments=arguments)
    got: list[bytes] = []
    channel.basic_qos(prefetch_count=100)
    channel.basic_consume("q", lambda _c, _m, _p, body: got.append(body))
    channel.basic_publish("", "q", b"held", PERSISTENT)
    while not got:
        channel.connection.process_data_events(time_limit=None)

    assert said(server, "queue", "pause", "q") == "Queue q is paused.\n"
    late = connect(server)
    late.basic_consume("q", lambda _c, _m, _p, body: got.append(body))
    for body in (b"1", b"2"):
        channel.basic_publish("", "q", body, PERSISTENT)
    asking = connect(server)
    assert asking.basic_get("q")[0] is None
    for one in (channel, late):
        one.connection.process_data_events(time_limit=0.2)
    assert got == [b"held"]
    row = shown(server, "q")
    assert (row["ready"], row["unacknowledged"], row["consumers"]) == (2, 1, 2)
    assert row["paused_ms"] > 1_700_000_000_000
    assert f"by {row['paused_by']}" in said(server, "queue", "show", "q")
    paused = Api(server).queue("q")["paused"]
    assert paused == {"since_ms": row["paused_ms"], "by": row["paused_by"]}
    with urlopen(f"http://127.0.0.1:{server.admin_port}/metrics", timeout=30) as answer:
        assert "polymq_queues_paused 1.0" in answer.read().decode()

    for one in (asking, late, channel):
        one.connection.close()
    server.kill()
    server.start()
    again = connect(server)
    assert shown(server, "q")["paused_ms"] == row["paused_ms"]
    listed = json.loads(said(server, "queue", "list", "--paused", "--json"))["items"]
    assert [one["name"] for one in listed] == ["q"]
    assert again.basic_get("q")[0] is None
    assert said(server, "queue", "resume", "q") == "Queue q is resumed.\n"
    assert [again.basic_get("q")[2] for _ in range(4)] == [b"held", b"1", b"2", None]
    again.connection.close()
    server.kill()
    server.start()
    assert shown(server, "q")["paused_ms"] is None
    assert json.loads(said(server, "queue", "list", "--paused", "--json"))["items"] == []


@pytest.mark.slow
def test_who_receives_over_http(server: Server) -> None:
    """A receive waits and is answered without events; one that waits when the queue is resumed gets
    what was collected."""
    assert http_ask(server, "PUT", "/subscriptions/billing", b'{"topic": "shop"}')[0] == 201
    said(server, "queue", "pause", "%SUB%billing")
    http_publish(server, "shop", "new", b"1")
    assert received(server, 1) == []
    _, _, answer = http_ask(server, "GET", "/subscriptions/billing")
    assert answer["status"] == {"state": "paused"}
    got: list[list[str]] = []
    poll = threading.Thread(target=lambda: got.append(received(server, 30)))
    poll.start()
    said(server, "queue", "resume", "%SUB%billing")
    poll.join()
    assert got == [["new"]]


@pytest.mark.slow
def test_a_consumer_group_of_rocketmq(server: Server) -> None:
    """Its pulls in one topic find nothing or wait, those in another topic and of another group do
    not. What it has it commits. A pull that is held gets what waited."""
    for topic in ("orders", "bills"):
        Admin(server).good("PUT", f"/api/v1/topics/{topic}", {"queues": 1})
        http_publish(server, topic, "new", b"1")
    with remoting.Client("127.0.0.1", server.rocketmq_port) as client:
        wants = [remoting.consumer("reports", "orders"), remoting.consumer("others", "orders")]
        client.beat("10.0.0.1@9", consumers=wants)
        for topic in ("orders", "bills"):
            client.ask(15, consumerGroup="reports", topic=topic, queueId=0, commitOffset=0)
        frame, records = client.pull("orders", 0, group="reports")
        assert (frame.code, len(records)) == (0, 1)
        ended = polymq(server, "consumer", "pause", "group:reports")
        assert "name the topic: the group reads bills, orders" in ended.stderr
        text = said(server, "consumer", "pause", "group:reports", "--topic", "orders")
        assert text == "group:reports is paused in orders.\n"
        assert client.pull("orders", 0, group="reports")[0].code == NOT_FOUND
        assert client.pull("bills", 0, group="reports")[0].code == 0
        assert client.pull("orders", 0, group="others")[0].code == 0
        client.ask(15, consumerGroup="reports", topic="orders", queueId=0, commitOffset=1)
        http_publish(server, "orders", "new", b"2")
        (pause,) = Admin(server).good("GET", "/api/v1/consumers/group:reports")["pauses"]
        assert (pause["topic"], pause["by"] != "") == ("orders", True)
        assert "orders since" in said(server, "consumer", "show", "group:reports")
    server.kill()
    server.start()
    with remoting.Client("127.0.0.1", server.rocketmq_port) as client:
        client.beat("10.0.0.1@9", consumers=[remoting.consumer("reports", "orders")])
        assert client.pull("orders", 0, group="reports")[0].code == NOT_FOUND
        got: list[int] = []
        poll = threading.Thread(
            target=lambda: got.append(
                client.pull("orders", 1, group="reports", wait_ms=30_000)[0].code
            )
        )
        poll.start()
        said(server, "consumer", "resume", "group:reports", "--topic", "orders")
        poll.join()
        assert got == [0]
    assert Admin(server).good("GET", "/api/v1/consumers/group:reports")["pauses"] == []
    ended = polymq(server, "consumer", "pause", "group:nothing")
    assert "there is no reader 'group:nothing'" in ended.stderr
