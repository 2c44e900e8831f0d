"""A reader of every kind, on one topic: what each of them sees, and when.

Each has two subscriptions of its own on its connection: one to the topic that a test publishes to,
one to a topic of marks. A mark is published with QoS 0, which waits for nothing, so a mark that
arrives shows that whatever was to come before it has come.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import TracebackType
from typing import Self

import pika

from tests.durability import mqtt_packets as mqtt
from tests.durability.clients import (
    AmqpWire,
    HttpWire,
    MqttWire,
    Sink,
    body_of,
    pull,
    received_bodies,
)
from tests.durability.running import SECONDS_MAX, Running

spec = pika.spec
TOPIC = "t"
MARKS = "marks"
MARK = b"mark"


class Readers:
    """MQTT of three kinds, AMQP of three kinds, HTTP by poll and by webhook, and pull."""

    def __init__(self, server: Running, sink: Sink) -> None:
        ports = server.ports
        assert ports.mqtt is not None
        assert ports.amqp is not None
        assert ports.http is not None
        self._server = server
        self._sink = sink
        self._stack = contextlib.ExitStack()
        enter = self._stack.enter_context
        self._marker = enter(MqttWire.connected(ports.mqtt, "marker"))
        self._mqtt = {
            "MQTT, persistent session": enter(
                MqttWire.connected(ports.mqtt, "persistent", clean=False)
            ),
            "MQTT, clean session": enter(MqttWire.connected(ports.mqtt, "clean")),
            "MQTT, QoS 0": enter(MqttWire.connected(ports.mqtt, "qos0")),
        }
        for name, client in self._mqtt.items():
            qos = 0 if name.endswith("QoS 0") else 1
            client.send(mqtt.subscribe(1, (f"{TOPIC}/#", qos), (f"{MARKS}/#", qos)))
            client.expect(mqtt.suback(1, qos, qos))
        self._amqp = {
            "AMQP, durable queue": enter(AmqpWire(ports.amqp)),
            "AMQP, exclusive queue": enter(AmqpWire(ports.amqp)),
        }
        for number, (name, channel) in enumerate(self._amqp.items()):
            durable = name.endswith("durable queue")
            for topic in (TOPIC, MARKS):
                queue = f"{topic}-{number}"
                _bind(channel, queue, topic, durable=durable)
                channel.consume(queue)
        self._get = enter(AmqpWire(ports.amqp))
        _bind(self._get, "got", TOPIC, durable=True)
        self._http = enter(HttpWire(ports.http))
        subscriptions: dict[str, dict[str, str]] = {"polled": {}, "pushed": {"sink": sink.url}}
        for name, more in subscriptions.items():
            assert (
                self._http.ask("PUT", f"/subscriptions/{name}", {"topic": TOPIC, **more})[0] == 201
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def seen(self) -> dict[str, list[bytes]]:
        """What each reader has got since the last look, and has to have got by now."""
        self._marker.send(mqtt.publish(f"{MARKS}/m", MARK))
        assert self._marker.came() == []
        found = {name: list(_until_mark(_mqtt_bodies(c))) for name, c in self._mqtt.items()}
        found |= {name: list(_until_mark(_amqp_bodies(c))) for name, c in self._amqp.items()}
        found["AMQP, get"] = self._got()
        found["HTTP, poll"] = self._polled(seconds=0)
        found["HTTP, webhook"] = []
        while not self._sink.bodies.empty():
            found["HTTP, webhook"].append(self._sink.bodies.get())
        found["pull"] = pull(self._server.ports, TOPIC)
        return found

    def wait(self, count: int) -> dict[str, list[bytes]]:
        """The next `count` messages of each reader, however long they take."""
        found = {n: [next(_mqtt_bodies(c)) for _ in range(count)] for n, c in self._mqtt.items()}
        found |= {n: [next(_amqp_bodies(c)) for _ in range(count)] for n, c in self._amqp.items()}
        found["HTTP, webhook"] = [self._sink.bodies.get(timeout=SECONDS_MAX) for _ in range(count)]
        found["HTTP, poll"] = []
        while len(found["HTTP, poll"]) < count:
            found["HTTP, poll"] += self._polled(seconds=10)
        found["AMQP, get"] = self._got()
        found["pull"] = pull(self._server.ports, TOPIC)
        return found

    def _got(self) -> list[bytes]:
        """basic.get until the queue is empty."""
        bodies: list[bytes] = []
        while True:
            self._get.send(spec.Basic.Get(queue="got", no_ack=True))
            found = self._get.read()
            if isinstance(found, spec.Basic.GetEmpty):
                return bodies
            bodies.append(found.body)

    def _polled(self, *, seconds: int) -> list[bytes]:
        path = f"/topics/{TOPIC}/subscriptions/polled:receive"
        status, answer = self._http.ask("POST", f"{path}?maxEvents=100&maxWaitTime={seconds}")
        assert status == 200, answer
        return received_bodies(answer)


def _bind(channel: AmqpWire, queue: str, topic: str, *, durable: bool) -> None:
    declare = spec.Queue.Declare(queue=queue, durable=durable, exclusive=not durable)
    channel.ask(declare, spec.Queue.DeclareOk)
    exchange = spec.Exchange.Declare(exchange=topic, type="topic", durable=True)
    channel.ask(exchange, spec.Exchange.DeclareOk)
    bind = spec.Queue.Bind(queue=queue, exchange=topic, routing_key="#")
    channel.ask(bind, spec.Queue.BindOk)


def _mqtt_bodies(client: MqttWire) -> Iterator[bytes]:
    while True:
        packet = client.read()
        assert packet is not None, "closed"
        yield body_of(packet)


def _amqp_bodies(channel: AmqpWire) -> Iterator[bytes]:
    while True:
        yield channel.message().body


def _until_mark(bodies: Iterator[bytes]) -> Iterator[bytes]:
    for body in bodies:
        if body == MARK:
            return
        yield body
