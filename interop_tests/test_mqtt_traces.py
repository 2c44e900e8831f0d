"""Traces of MQTT connections: what an operator sees of packets, while clients go on."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from interop_tests import mqtt_wire
from interop_tests.conftest import Server
from interop_tests.mqtt_raw_client import RawClient
from interop_tests.people import Admin

TRACES = "/api/v1/mqtt/traces"


class Trace:
    """A trace that runs, line by line."""

    def __init__(self, server: Server, **asked: object) -> None:
        self._connection = http.client.HTTPConnection(server.host, server.admin_port, timeout=20)
        headers = {"Content-Type": "application/json"}
        self._connection.request("POST", TRACES, json.dumps(asked), headers)
        self.answer = self._connection.getresponse()

    def line(self) -> Any:
        return json.loads(self.answer.readline())

    def packet(self, name: str) -> Any:
        """The next line about such a packet."""
        while (found := self.line())["packet"] != name:
            pass
        return found

    def close(self) -> None:
        self.answer.close()
        self._connection.close()


@contextmanager
def traced(server: Server, **asked: object) -> Iterator[Trace]:
    trace = Trace(server, **asked)
    try:
        assert trace.answer.status == 200
        yield trace
    finally:
        trace.close()


def test_packets_of_a_client(server: Server) -> None:
    """Of one that is connected, in both directions, to its end; and when it comes again."""
    client = RawClient.connected(server.mqtt_port, "c")
    with traced(server, client_id="c") as trace:
        assert trace.line()["packet"] == "TRACED"
        client.subscribe(("a/+", 1))
        assert trace.packet("SUBSCRIBE")["filters"] == ["a/+ (qos 1)"]
        assert trace.packet("SUBACK")["codes"] == [1]
        client.send(mqtt_wire.publish("a/b", b"hidden", qos=1, packet_id=7))
        came = trace.packet("PUBLISH")
        assert (came["direction"], came["topic"], came["packet_id"]) == ("in", "a/b", 7)
        assert "payload" not in came
        back = trace.packet("PUBLISH")
        assert (back["direction"], back["topic"]) == ("out", "a/b")
        for _ in range(2):  # PUBACK, and the message
            client.receive()
        client.disconnect()
        assert trace.packet("DISCONNECT")["direction"] == "in"
        assert trace.packet("ENDED")["client_id"] == "c"
        again = RawClient.connected(server.mqtt_port, "c")
        assert trace.packet("CONNECTED")["version"] == "3.1.1"
        assert trace.packet("CONNACK")["reason"] == 0
        other = RawClient.connected(server.mqtt_port, "other")
        other.disconnect()
        again.disconnect()
        assert trace.packet("DISCONNECT")["client_id"] == "c"


def test_a_packet_that_was_half_here_when_the_trace_began(server: Server) -> None:
    """And one trace more, which begins within another packet."""
    client = RawClient.connected(server.mqtt_port, "c")
    packet = mqtt_wire.publish("half/here", b"x" * 3_000, qos=1, packet_id=1)
    client.send(packet[:1_000])
    with traced(server, client_id="c") as first:
        assert first.line()["packet"] == "TRACED"
        client.send(packet[1_000:2_000])
        with traced(server, client_id="c", payload=5) as second:
            assert second.line()["packet"] == "TRACED"
            client.send(packet[2_000:])
            client.expect(mqtt_wire.puback(1))
            line = first.packet("PUBLISH")
            assert (line["topic"], line["bytes"]) == ("half/here", len(packet))
            line = second.packet("PUBLISH")
            assert (line["topic"], line["payload"]) == ("half/here", "xxxxx")
    client.disconnect()


def test_messages_of_a_topic(server: Server) -> None:
    """Of all clients, those that come later included, and nothing else."""
    publisher = RawClient.connected(server.mqtt_port, "p")
    with traced(server, topic="wanted/+") as trace:
        reader = RawClient.connected(server.mqtt_port, "r")
        reader.subscribe(("#", 0))
        publisher.send(mqtt_wire.publish("other/1", b"x"), mqtt_wire.publish("wanted/1", b"x"))
        found = [trace.line(), trace.line()]
        assert {(one["client_id"], one["direction"]) for one in found} == {
            ("p", "in"),
            ("r", "out"),
        }
        assert all(one["topic"] == "wanted/1" for one in found)
    publisher.disconnect()
    reader.vanish()


def test_a_trace_has_to_be_about_something(server: Server) -> None:
    admin = Admin(server)
    for wrong in (
        {},
        {"client_id": "c", "topic": "t"},
        {"topic": "a/#/b"},
        {"address": "x"},
        {"client_id": "c", "seconds": 0},
        {"client_id": ""},
        {"client_id": "c", "second": 10},
        {"client_id": "c", "payload": 99_999},
    ):
        assert admin.ask("POST", TRACES, wrong)[0] == 400, wrong


@pytest.mark.slow
def test_a_trace_that_nobody_reads_holds_up_nobody(server: Server) -> None:
    """Its lines are dropped, and the clients' messages are stored; and the server stops in time."""
    client = RawClient.connected(server.mqtt_port, "c")
    with traced(server, client_id="c", payload=4096):
        body = b"x" * 4_000
        for number in range(200):
            client.send(
                *(
                    mqtt_wire.publish(f"flood/{number}/{one}", body, qos=1, packet_id=one)
                    for one in range(1, 101)
                )
            )
            for one in range(1, 101):
                assert client.receive() == mqtt_wire.puback(one)
        assert server.terminate() == 0
    client.socket.close()


def test_the_number_of_traces_is_bounded(server: Server) -> None:
    traces = [Trace(server, client_id="c") for _ in range(9)]
    assert [trace.answer.status for trace in traces] == [200] * 8 + [409]
    for trace in traces:
        trace.close()


def test_a_trace_is_listed_and_ended_by_another_operator(server: Server) -> None:
    """Who reads it sees its end."""
    admin = Admin(server)
    client = RawClient.connected(server.mqtt_port, "c")
    with traced(server, client_id="c", payload=7) as trace:
        assert trace.line()["packet"] == "TRACED"
        (row,) = admin.good("GET", TRACES)["items"]
        assert (row["client_id"], row["topic"], row["payload"]) == ("c", None, 7)
        assert (row["connections"], row["dropped"]) == (1, 0)
        path = f"{TRACES}/{row['number']}"
        admin.good("DELETE", path)
        assert trace.answer.read() == b""
        assert admin.ask("DELETE", path)[0] == 404
        assert admin.good("GET", TRACES)["items"] == []
    client.disconnect()


@pytest.mark.parametrize("seconds", [1])
def test_a_trace_ends(server: Server, seconds: int) -> None:
    with traced(server, client_id="c", seconds=seconds) as trace:
        assert trace.answer.read() == b""
