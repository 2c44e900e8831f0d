"""A stop in order, seen by clients of every protocol at once: each is told in its own way, what the
server has taken is answered before, and the next start has nothing to recover."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pika.frame
import pytest

from interop_tests.conftest import Server, StartServer
from interop_tests.ledger.books import What
from interop_tests.ledger.ports import lasting_ports
from interop_tests.ledger.processes import Client
from interop_tests.ledger.verdict import Published, judge_consumer, unflagged_repeats
from interop_tests.mqtt_raw_client import RawClient
from interop_tests.mqtt_wire import puback, publish

WAIT_SECONDS_MAX = 20.0
CONNECTION_FORCED = 320
INTERRUPTED = 130
EVENT = {"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/tests", "ce-type": "k"}


@pytest.fixture
def server(start_server: StartServer) -> Server:
    """A server that can be started again on its ports."""
    return start_server(**lasting_ports())


def ask(server: Server, method: str, path: str, value: object = None) -> tuple[int, Any]:
    """One HTTP request on a connection of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=WAIT_SECONDS_MAX)
    try:
        body = None if value is None else json.dumps(value)
        connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text else None
    finally:
        connection.close()


def amqp_connection(server: Server) -> Any:
    return pika.BlockingConnection(
        pika.ConnectionParameters("127.0.0.1", server.amqp_port, connection_attempts=1)
    )


def open_amqp_socket(server: Server) -> socket.socket:
    """An open AMQP connection that only its socket is left of."""
    connection = socket.create_connection(("127.0.0.1", server.amqp_port), timeout=WAIT_SECONDS_MAX)
    spec = pika.spec.Connection
    start_ok = spec.StartOk(client_properties={}, response="\0guest\0guest")
    said = [start_ok, spec.TuneOk(1, 131072, 0), spec.Open()]
    frames = [pika.frame.ProtocolHeader(), *(pika.frame.Method(0, method) for method in said)]
    connection.sendall(b"".join(frame.marshal() for frame in frames))
    heard = b""
    while pika.frame.Method(0, spec.OpenOk()).marshal() not in heard:
        heard += connection.recv(4096)
    return connection


class LongPoll:
    """A `:receive` that waits. The server has read it when this is made: it has answered a request
    that came on a later connection."""

    def __init__(self, server: Server, topic: str, name: str) -> None:
        assert ask(server, "PUT", f"/subscriptions/{name}", {"topic": topic})[0] == 201
        self._connection = http.client.HTTPConnection(
            "127.0.0.1", server.http_port, timeout=WAIT_SECONDS_MAX
        )
        path = f"/topics/{topic}/subscriptions/{name}:receive?maxWaitTime=100"
        self._connection.request("POST", path)
        assert ask(server, "GET", "/healthz")[0] == 200

    def answer(self) -> tuple[int, Any]:
        """Wait for the answer."""
        with contextlib.closing(self._connection):
            answer = self._connection.getresponse()
            return answer.status, json.loads(answer.read())


def half_a_request(server: Server, body: bytes) -> socket.socket:
    """A connection on which an event is being sent; the rest of `body` is still to come."""
    connection = socket.create_connection(("127.0.0.1", server.http_port), timeout=WAIT_SECONDS_MAX)
    head = ["POST /topics/t HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}"]
    head += [f"{name}: {value}" for name, value in EVENT.items()]
    connection.sendall("\r\n".join([*head, "", ""]).encode() + body[:1])
    return connection


def idle_http_connection(server: Server) -> socket.socket:
    """A connection that is kept alive after a request."""
    connection = socket.create_connection(("127.0.0.1", server.http_port), timeout=WAIT_SECONDS_MAX)
    connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    answer = b""
    while not answer.endswith(b'{"status":"ok"}'):
        answer += connection.recv(4096)
    return connection


def stored_bodies(server: Server, topic: str) -> list[bytes]:
    """What an AMQP queue that was there from the beginning has."""
    connection = amqp_connection(server)
    channel = connection.channel()
    bodies = []
    while (found := channel.basic_get(topic, auto_ack=True))[0] is not None:
        bodies.append(found[2])
    connection.close()
    return bodies


def declare_queue(server: Server, topic: str) -> None:
    """A durable queue of all that is published to the topic."""
    connection = amqp_connection(server)
    channel = connection.channel()
    channel.exchange_declare(topic, "topic", durable=True)
    channel.queue_declare(topic, durable=True)
    channel.queue_bind(topic, topic, "#")
    connection.close()


@pytest.mark.slow
def test_each_protocol_takes_leave(server: Server) -> None:
    """One SIGTERM. MQTT: the acks of what was taken, then the end. AMQP: connection.close 320.
    HTTP: the long poll is answered, connections that wait for a request end. RocketMQ: the end."""
    declare_queue(server, "t")
    with contextlib.ExitStack() as stack:
        mqtt = stack.enter_context(RawClient.connected(server.mqtt_port, "p"))
        amqp = amqp_connection(server)
        amqp.channel().queue_declare("mine", exclusive=True)
        remoting = stack.enter_context(
            socket.create_connection(("127.0.0.1", server.rocketmq_port), WAIT_SECONDS_MAX)
        )
        idle = stack.enter_context(idle_http_connection(server))
        poll = LongPoll(server, "other", "s")
        mqtt.send(*(publish("t/k", b"%d" % k, qos=1, packet_id=k) for k in range(1, 501)))
        acked = [mqtt.receive()]
        server.process.send_signal(signal.SIGTERM)
        assert poll.answer() == (200, {"value": []})
        while found := mqtt.receive():
            acked.append(found)
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker) as closed:
            amqp.process_data_events(WAIT_SECONDS_MAX)
        assert closed.value.reply_code == CONNECTION_FORCED
        assert idle.recv(1) == b""
        assert remoting.recv(1) == b""
        assert server.process.wait(WAIT_SECONDS_MAX) == 0
    assert acked == [puback(k) for k in range(1, len(acked) + 1)]
    server.restart()
    opened = [event for event in server.log_events() if event["event"].startswith("log ")]
    assert opened[-1]["clean"] is True
    bodies = stored_bodies(server, "t")
    assert bodies == [b"%d" % k for k in range(1, len(bodies) + 1)]
    assert len(bodies) >= len(acked)


@pytest.mark.slow
def test_stops_do_not_count_as_deliveries(server: Server) -> None:
    """A consumer and a get hold messages of a queue with a delivery limit over three stops. Each of
    them comes again, flagged, and none becomes a dead letter."""
    arguments = {
        "x-delivery-limit": 1,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "dead",
    }
    bodies = [b"a", b"b"]
    with amqp_connection(server) as connection:
        channel = connection.channel()
        channel.queue_declare("dead", durable=True)
        channel.queue_declare("limited", durable=True, arguments=arguments)
        channel.confirm_delivery()
        for body in bodies:
            channel.basic_publish("", "limited", body)
    for stops in range(3):
        connection = amqp_connection(server)
        channel = connection.channel()
        found: list[tuple[bytes, bool]] = []

        def take(_: Any, method: Any, __: Any, body: bytes, found: Any = found) -> None:
            found.append((body, method.redelivered))

        method, _, body = channel.basic_get("limited")
        assert method is not None, "the queue has given up a message"
        take(channel, method, None, body)
        channel.basic_consume("limited", take)
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while len(found) < len(bodies) and time.monotonic() < deadline:
            connection.process_data_events(0.1)
        assert found == [(body, stops > 0) for body in bodies]
        assert channel.queue_declare("dead", passive=True).method.message_count == 0
        server.process.send_signal(signal.SIGTERM)
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker):
            connection.process_data_events(WAIT_SECONDS_MAX)
        assert server.process.wait(WAIT_SECONDS_MAX) == 0
        server.restart()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.slow
def test_nobody_holds_up_the_end(start_server: StartServer, number: signal.Signals) -> None:
    """Clients that never say goodbye, in any protocol: the server ends when their time is over."""
    server = start_server(**{"server.drain_seconds": 0.5})
    with contextlib.ExitStack() as stack:
        wait_on(server, stack)
        server.process.send_signal(number)
        assert server.process.wait(WAIT_SECONDS_MAX) == 0


def test_a_second_ctrl_c_ends_at_once_and_loses_nothing(start_server: StartServer) -> None:
    """The first one would wait for ten minutes. What was acked is there after the next start."""
    server = start_server(**{"server.drain_seconds": 600}, **lasting_ports())
    declare_queue(server, "t")
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(RawClient.connected(server.mqtt_port, "p"))
        client.send(*(publish("t/k", b"%d" % k, qos=1, packet_id=k) for k in range(1, 101)))
        client.expect(*map(puback, range(1, 101)))
        wait_on(server, stack)
        server.process.send_signal(signal.SIGINT)
        client.expect_closed()
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(WAIT_SECONDS_MAX) == INTERRUPTED
    server.restart()
    assert stored_bodies(server, "t") == [b"%d" % k for k in range(1, 101)]


def wait_on(server: Server, stack: contextlib.ExitStack) -> None:
    """Connect in every protocol, and do not do what would end the connection."""
    stack.enter_context(half_a_request(server, b"never"))
    stack.enter_context(RawClient.connected(server.mqtt_port, "idle"))
    stack.enter_context(open_amqp_socket(server))  # does not answer connection.close
    stack.enter_context(socket.create_connection(("127.0.0.1", server.rocketmq_port)))


# --- under load -----------------------------------------------------------------------------


@pytest.fixture
def make_client(tmp_path: Path) -> Iterator[Callable[..., Client]]:
    """Client processes; all are gone after the test."""
    with contextlib.ExitStack() as stack:

        def make(module: str, name: str, port: int, **options: int) -> Client:
            client = Client(module, tmp_path, port=port, name=name, topic="load", **options)
            return stack.enter_context(client)

        yield make


def wait_for_more_acks(client: Client, count: int) -> None:
    """More than it can have got from an earlier process: `count` is larger than its window."""
    client.read()
    enough = client.count[What.ACKED] + count
    client.wait(lambda c: c.count[What.ACKED] > enough, WAIT_SECONDS_MAX, f"{count} more acks")


@pytest.mark.slow
def test_a_stop_under_load_loses_nothing(
    start_server: StartServer, make_client: Callable[..., Client]
) -> None:
    """Publishers of three protocols and a consumer, SIGTERM, start: the publishers repeat what was
    not acked, and in the end everything is there, in order."""
    server = start_server(**lasting_ports())
    ports = {"mqtt": server.mqtt_port, "amqp": server.amqp_port, "http": server.http_port}
    publishers = [
        make_client(f"{name}_publisher", f"{name}-publisher", port, window=50, seed=1)
        for name, port in ports.items()
    ]
    consumer = make_client("amqp_consumer", "consumer", server.amqp_port)
    consumer.start()
    consumer.wait(lambda c: c.count[What.READY] > 0, WAIT_SECONDS_MAX, "queue")
    for client in publishers:
        client.start()
    for _ in range(3):
        for client in publishers:
            wait_for_more_acks(client, 300)
        assert server.terminate() == 0
        server.start()
    published = Published()
    for client in publishers:
        client.stop()
        client.wait_end(WAIT_SECONDS_MAX)
        client.read()
        published.add(client.lines)
    forced = [line.note for line in publishers[1].lines if line.what is What.DISCONNECTED]
    assert len(forced) == 3
    assert all(str(CONNECTION_FORCED) in note for note in forced), forced
    consumer.wait(lambda c: published.acked <= c.got, WAIT_SECONDS_MAX, "end of the backlog")
    consumer.stop()
    consumer.wait_end(WAIT_SECONDS_MAX)
    consumer.read()
    got = Counter((line.actor, line.number) for line in consumer.lines if line.what is What.GOT)
    faults = judge_consumer(published, got, consumer.lines).texts
    # A server that stops in order writes down every ack, so there is no doubt about a repeat.
    once = {key: 1 + published.unknown[key] for key in published.sent}
    doubled = unflagged_repeats(Counter(once), consumer.lines)
    assert (published.refused, faults, doubled) == ([], [], [])
    opened = [event for event in server.log_events() if event["event"].startswith("log ")]
    assert [event["clean"] for event in opened] == [True] * 4
