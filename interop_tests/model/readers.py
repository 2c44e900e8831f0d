"""Clients that read everything: sessions, queues, subscriptions, and readers by offset."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import struct
from contextlib import suppress
from typing import Any

import pika

from interop_tests import mqtt_wire as wire
from interop_tests import remoting_wire as remoting
from interop_tests.model.clients import TOPIC, Client, ServerGone, take
from interop_tests.model.ledger import Ledger
from interop_tests.mqtt_raw_client import Publish, RawClient

PUBLISH, PUBREL = 3, 6
NO_NEW_MESSAGE, OFFSET_MOVED = 19, 21


class MqttReader(Client):
    """A persistent session of QoS 1 or 2. Now and then it goes away without having acknowledged."""

    def __init__(self, qos: int, name: str, *arguments: Any) -> None:
        super().__init__(name, *arguments)
        self._qos = qos
        self.reader = self.ledger.reader(name)
        self._received: set[int] = set()  # packet ids of QoS 2 that wait for their PUBREL

    def connect(self) -> None:
        self._client = RawClient(self.ports.mqtt)
        self._client.send(wire.connect(self.name, clean=False))
        answer = self._client.receive()
        if not answer:
            raise ServerGone
        if answer != wire.connack(present=self._received_any):
            self.ledger.fault(f"{self.name}: the session was lost: {answer.hex()}")
        if not self._received_any:
            self._client.send(wire.subscribe(1, (f"{TOPIC}/#", self._qos)))
            if self._client.receive() != wire.suback(1, self._qos):
                raise ServerGone
            self._received_any = True
        self._client.socket.settimeout(0.2)

    _received_any = False

    def work(self) -> None:
        try:
            packet = self._client.receive()
        except TimeoutError:
            return
        if not packet:
            raise ServerGone
        kind = packet[0] >> 4
        packet_id = int.from_bytes(packet[2:4], "big")
        if kind == PUBREL:
            self._received.discard(packet_id)
            self._client.send(wire.pubcomp(packet_id))
        elif kind == PUBLISH:
            self._take(Publish(packet))
        if not self.resting.is_set() and self.chance.random() < 0.002:
            self._client.vanish()
            raise ServerGone

    def _take(self, found: Publish) -> None:
        if found.qos == 2 and found.packet_id in self._received:
            if not found.duplicate:
                self.reader.faults.append("a packet id in use was given to another message")
            self._client.send(wire.pubrec(found.packet_id))
            return
        note = f", packet id {found.packet_id}, QoS {found.qos}"
        once = found.qos == 2
        take(self.ledger, self.reader, found.body, again=found.duplicate, once=once, note=note)
        if found.qos == 2:
            self._received.add(found.packet_id)
            self._client.send(wire.pubrec(found.packet_id))
        elif found.qos == 1:
            self._client.send(wire.puback(found.packet_id))

    def pause(self) -> None:
        """It reads as fast as it can; a lost server is tried again after a moment."""

    def lost(self, error: BaseException) -> None:
        super().pause()


class AmqpReader(Client):
    """A consumer of a durable queue that acknowledges, requeues, and sometimes just goes."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.reader = self.ledger.reader(self.name)
        self._socket: socket.socket | None = None

    def connect(self) -> None:
        self._connection = pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", self.ports.amqp)
        )
        self._socket = self._connection._impl._transport._sock
        self._channel = self._connection.channel()
        self._channel.exchange_declare(TOPIC, "topic", durable=True)
        self._channel.queue_declare(self.name, durable=True)
        self._channel.queue_bind(self.name, TOPIC, "#")
        self._channel.basic_qos(prefetch_count=50)
        self._channel.basic_consume(self.name, self._deliver)

    def _deliver(self, channel: Any, method: Any, properties: Any, body: bytes) -> None:
        take(self.ledger, self.reader, body, again=method.redelivered)
        if self.chance.random() < 0.02 and not self.resting.is_set():
            channel.basic_nack(method.delivery_tag, requeue=True)
            self.ledger.note("AMQP messages put back")
        else:
            channel.basic_ack(method.delivery_tag)

    def work(self) -> None:
        self._connection.process_data_events(0.1)
        if not self.resting.is_set() and self.chance.random() < 0.005:
            raise ServerGone  # it ends as a process that is killed

    def pause(self) -> None:
        """It reads as fast as it can."""

    def lost(self, error: BaseException) -> None:
        """Close the socket, which pika leaves open until its loop runs again: until then the server
        would hand messages to a consumer that nobody reads, while others get later ones."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
            self._socket = None
        super().pause()


class HttpReader(Client):
    """Receives under locks, and acknowledges."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.reader = self.ledger.reader(self.name)

    def connect(self) -> None:
        self._client = http.client.HTTPConnection("127.0.0.1", self.ports.http, timeout=60)
        wanted = {"topic": TOPIC, "config": {"retry": {"attemptsMax": 1000}}}
        self._ask("PUT", f"/subscriptions/{self.name}", wanted)

    def _ask(self, method: str, path: str, value: object) -> Any:
        self._client.request(method, path, json.dumps(value).encode())
        answer = self._client.getresponse()
        data = answer.read()
        if answer.status >= 300:
            raise ServerGone(f"{answer.status}: {data[:200]!r}")
        return json.loads(data) if data else None

    def work(self) -> None:
        base = f"/topics/{TOPIC}/subscriptions/{self.name}"
        events = self._ask("POST", f"{base}:receive?maxEvents=100&maxWaitTime=1", {})["value"]
        if not events:
            return
        tokens = []
        for one in events:
            broker = one["brokerProperties"]
            tokens.append(broker["lockToken"])
            body = base64.b64decode(one["event"].get("data_base64", ""))
            take(self.ledger, self.reader, body, again=broker["deliveryCount"] > 1)
        self._ask("POST", f"{base}:acknowledge", {"lockTokens": tokens})


class OffsetReader(Client):
    """Reads queue 0 of the topic by offset, as RocketMQ's clients and the Parquet sink do."""

    def __init__(self, name: str, ports: Any, ledger: Ledger, chance: Any) -> None:
        super().__init__(name, ports, ledger, chance)
        self.reader = ledger.reader(name, by_offset=True)
        self._offset = 0
        self._positions: dict[int, int] = {}  # of the last offsets

    def connect(self) -> None:
        self._client = remoting.Client("127.0.0.1", self.ports.rocketmq)
        # What was read once is there again, at the same place.
        back = max(0, self._offset - self.chance.randint(0, 20))
        for message in self._pull(back):
            if self._positions.get(message.offset, message.position) != message.position:
                self.reader.faults.append(f"offset {message.offset} was given again")

    def close(self) -> None:
        self._client.close()

    def _pull(self, offset: int) -> list[remoting.Message]:
        try:
            frame, messages = self._client.pull(TOPIC, offset)
        except struct.error as error:
            raise ServerGone from error
        if frame.code == OFFSET_MOVED:
            self.reader.faults.append(f"offset {offset} is gone: {frame.header.get('remark')}")
        return messages

    def work(self) -> None:
        for message in self._pull(self._offset):
            if message.offset != self._offset:
                self.reader.faults.append(f"{message.offset} came where {self._offset} was due")
            self._offset = message.offset + 1
            self._positions[message.offset] = message.position
            self._positions.pop(message.offset - 40, None)
            take(self.ledger, self.reader, message.body, again=False)
