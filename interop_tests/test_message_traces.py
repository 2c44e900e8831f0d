"""Traces of messages: each time that one is handed out and when it is settled, with clients of all
protocols."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pika

from interop_tests import mqtt_wire
from interop_tests.conftest import Server
from interop_tests.mqtt_raw_client import RawClient
from interop_tests.people import Admin

TRACES = "/api/v1/messages/traces"
LISTED = "/api/v1/mqtt/traces"


class Trace:
    """A trace that runs, line by line."""

    def __init__(self, server: Server, **asked: object) -> None:
        self._connection = http.client.HTTPConnection(server.host, server.admin_port, timeout=20)
        headers = {"Content-Type": "application/json"}
        self._connection.request("POST", TRACES, json.dumps(asked), headers)
        self.answer = self._connection.getresponse()
        assert self.answer.status == 200, self.answer.read()

    def lines(self, count: int) -> list[Any]:
        return [json.loads(self.answer.readline()) for _ in range(count)]

    def close(self) -> None:
        self.answer.close()
        self._connection.close()


@contextmanager
def traced(server: Server, **asked: object) -> Iterator[Trace]:
    trace = Trace(server, **asked)
    try:
        yield trace
    finally:
        trace.close()


def channel_of(server: Server) -> Any:
    parameters = pika.ConnectionParameters("127.0.0.1", server.amqp_port)
    return pika.BlockingConnection(parameters).channel()


def test_a_queue_of_amqp(server: Server) -> None:
    """A message that is given back and comes again, and the one that is acknowledged."""
    channel = channel_of(server)
    channel.queue_declare("work", durable=True)
    with traced(server, topic="work") as trace:
        channel.basic_publish("", "work", b"x")
        channel.basic_publish("", "work", b"y")
        method, _, _ = channel.basic_get("work")
        channel.basic_nack(method.delivery_tag, requeue=True)
        for method, _, _ in channel.consume("work"):
            channel.basic_ack(method.delivery_tag)
            if method.delivery_tag == 3:
                break
        found = trace.lines(5)
    assert {(one["kind"], one["name"], one["topic"]) for one in found} == {
        ("queue", "work", "work")
    }
    first, second = sorted({one["position"] for one in found})
    of_first = [(one["event"], one.get("redelivered")) for one in found if one["position"] == first]
    assert of_first == [("delivered", False), ("delivered", True), ("settled", None)]
    assert [one["event"] for one in found if one["position"] == second] == ["delivered", "settled"]
    assert all(one["age_ms"] >= 0 for one in found if one["event"] == "delivered")
    channel.connection.close()


def test_subscriptions_of_mqtt(server: Server) -> None:
    """QoS 0, of which the log knows no delivery, and QoS 1 with its PUBACK; a client that comes
    when the trace runs; and one that stays as it was when the trace has ended."""
    publisher = RawClient.connected(server.mqtt_port, "p")
    reader = RawClient.connected(server.mqtt_port, "r")
    reader.subscribe(("wanted/+", 1))
    with traced(server, topic="wanted/#") as trace:
        publisher.send(mqtt_wire.publish("wanted/a", b"x"), mqtt_wire.publish("other/a", b"x"))
        (line,) = trace.lines(1)
        assert (line["event"], line["kind"], line["name"]) == ("delivered", "client", "r")
        assert (line["qos"], line["topic"], line["tag"]) == (0, "wanted", "a")
        assert "packet_id" not in line
        reader.receive()
        late = RawClient.connected(server.mqtt_port, "late")
        late.subscribe(("wanted/+", 1))
        publisher.send(mqtt_wire.publish("wanted/b", b"x", qos=1, packet_id=1))
        sent = trace.lines(2)
        assert {(one["event"], one["name"], one["qos"]) for one in sent} == {
            ("delivered", "r", 1),
            ("delivered", "late", 1),
        }
        (mine,) = [one for one in sent if one["name"] == "r"]
        reader.receive()
        reader.send(mqtt_wire.puback(mine["packet_id"]))
        (line,) = trace.lines(1)
        assert (line["event"], line["name"]) == ("acknowledged", "r")
        assert line["position"] == mine["position"]
    admin = Admin(server)
    while admin.good("GET", LISTED)["items"]:
        pass
    publisher.expect(mqtt_wire.puback(1))
    publisher.send(mqtt_wire.publish("wanted/c", b"x", qos=1, packet_id=2))
    publisher.expect(mqtt_wire.puback(2))
    assert reader.receive()
    for client in (publisher, reader, late):
        client.vanish()


def test_one_in_so_many(server: Server) -> None:
    """The same ones for everybody, and the others in no line."""
    channel = channel_of(server)
    channel.exchange_declare("many", "fanout", durable=True)
    for name in ("one", "two"):
        channel.queue_declare(name, durable=True)
        channel.queue_bind(name, "many")
    with traced(server, sample=10) as trace:
        for number in range(40):
            channel.basic_publish("many", "k", b"%d" % number)
        for name in ("one", "two"):
            for method, _, _ in channel.consume(name, auto_ack=True):
                if method.delivery_tag % 40 == 0:
                    break
            channel.cancel()
        found = [one for one in trace.lines(16) if one["event"] == "delivered"]
    assert len(found) == 8
    positions = {
        name: [one["position"] for one in found if one["name"] == name] for name in ("one", "two")
    }
    assert positions["one"] == positions["two"]
    channel.connection.close()


def test_it_is_listed_and_ended_and_one_at_a_time(server: Server) -> None:
    admin = Admin(server)
    with traced(server, topic="t/#", sample=5) as trace:
        (row,) = admin.good("GET", LISTED)["items"]
        assert (row["kind"], row["topic"], row["sample"]) == ("messages", "t/#", 5)
        _, value = admin.ask("POST", TRACES, {"seconds": 1})
        assert value["detail"].startswith("a trace of messages runs already: end it")
        assert admin.ask("DELETE", f"{LISTED}/{row['number']}")[0] == 204
        assert trace.answer.read() == b""
    for wrong in ({"topic": "a/#/b"}, {"sample": 0}, {"seconds": 0}):
        assert admin.ask("POST", TRACES, wrong)[0] == 400, wrong


def test_the_command(server: Server) -> None:
    """It prints a line for each event, and ends by itself."""
    channel = channel_of(server)
    channel.queue_declare("work", durable=True)
    options = ("--messages", "--topic", "work", "--seconds", "5")
    data = ("--data-directory", str(server.data_directory))
    with subprocess.Popen(
        [sys.executable, "-m", "polymq", "trace", *options, *data],
        stdout=subprocess.PIPE,
        text=True,
    ) as command:
        admin = Admin(server)
        while not admin.good("GET", LISTED)["items"]:
            assert command.poll() is None
        channel.basic_publish("", "work", b"x")
        for method, _, _ in channel.consume("work"):
            channel.basic_ack(method.delivery_tag)
            break
        channel.cancel()
        assert command.stdout is not None
        delivered, settled = command.stdout.read().splitlines()
    assert "delivered  work  to queue work" in delivered
    assert "settled  work  to queue work" in settled
    assert command.returncode == 0
    channel.connection.close()
