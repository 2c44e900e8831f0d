"""Clients that publish, one kind for each promise that the server makes to publishers."""

from __future__ import annotations

import base64
import http.client
import json
import struct
import time
from functools import partial
from typing import Any

import pika

from interop_tests import mqtt_wire as wire
from interop_tests import remoting_wire as remoting
from interop_tests.model.clients import TOPIC, Publisher, ServerGone
from interop_tests.model.ledger import Outcome, Sent, settle
from interop_tests.mqtt_raw_client import Publish, RawClient

BURST = 8
DELAY_SECONDS = (1, 3)
TTL_SECONDS = 5.0
RETAINED = "model_retained"
PREPARED, COMMIT, ROLLBACK = 4, 8, 12
SUCCESS = 0


def key_of(publisher: str) -> str:
    """The routing key (or type, or tag) of what one publisher sends."""
    return f"of.{publisher}"


class MqttPublisher(Publisher):
    """QoS 0, 1 and 2 mixed, in bursts that are acknowledged together. QoS 2 is finished after a
    lost connection, as the standard asks for, so each of its messages is stored once."""

    def connect(self) -> None:
        self._client = RawClient(self.ports.mqtt)
        self._client.send(wire.connect(self.name, clean=False))
        if not self._client.receive():
            raise ServerGone
        for packet_id, (state, packet, _) in self._unfinished.items():
            again = bytes([packet[0] | 8]) + packet[1:]  # DUP
            self._client.send(again if state == "sent" else wire.pubrel(packet_id))
        self._read_until_done()

    def publish(self) -> None:
        packets = []
        for _ in range(self.chance.randint(1, BURST)):
            packet_id = self._next_id = self._next_id % 60_000 + 1
            qos = self.chance.choice((0, 1, 1, 2))
            sent, body = self.message(once=qos == 2)
            packet = wire.publish(
                f"{TOPIC}/of/{self.name}", body, qos=qos, packet_id=packet_id if qos else 0
            )
            packets.append(packet)
            if qos == 0:
                sent.outcome = Outcome.UNPROMISED
            elif qos == 1:
                self._open[packet_id] = sent
            else:
                self._unfinished[packet_id] = "sent", packet, sent
        self._client.send(*packets)
        self._read_until_done()

    def _read_until_done(self) -> None:
        while self._open or self._unfinished:
            packet = self._client.receive()
            if not packet:
                raise ServerGone
            packet_id = int.from_bytes(packet[2:4], "big")
            if packet[0] == 0x40:
                self._open.pop(packet_id).outcome = Outcome.ACKED
            elif packet[0] == 0x50:
                _, packet, sent = self._unfinished[packet_id]
                self._unfinished[packet_id] = "received", packet, sent
                sent.outcome = Outcome.ACKED  # PUBREC: the server owns it
                self._client.send(wire.pubrel(packet_id))
            elif packet[0] == 0x70:
                del self._unfinished[packet_id]

    def lost(self, error: BaseException) -> None:
        self._open.clear()
        if not self._unfinished:
            super().lost(error)

    _next_id = 0

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._open: dict[int, Sent] = {}
        self._unfinished: dict[int, tuple[str, bytes, Sent]] = {}


class RetainedPublisher(Publisher):
    """Replaces one retained message again and again. A new subscriber gets the last one that was
    acknowledged, or one that was sent after it."""

    _value = 0
    _acked = 0

    def connect(self) -> None:
        self._client = RawClient(self.ports.mqtt)
        self._client.send(wire.connect(self.name))
        if not self._client.receive():
            raise ServerGone
        self._look()

    def _look(self) -> None:
        self._client.send(wire.subscribe(1, (f"{RETAINED}/{self.name}", 1)))
        if self._client.receive()[:1] != b"\x90":
            raise ServerGone
        found = self._receive_retained() if self._acked else 0
        if not self._acked <= found <= self._value:
            self.ledger.fault(
                f"{self.name}: {found} is retained; {self._acked} was acknowledged last, and "
                f"{self._value} sent"
            )
        self._client.send(wire.unsubscribe(2, f"{RETAINED}/{self.name}"))
        if self._client.receive()[:1] != b"\xb0":
            raise ServerGone

    def _receive_retained(self) -> int:
        try:
            packet = self._client.receive()
        except TimeoutError:
            self.ledger.fault(f"{self.name}: nothing is retained; {self._acked} was acknowledged")
            raise
        if not packet:
            raise ServerGone
        message = Publish(packet)
        self._client.send(wire.puback(message.packet_id))
        return int(message.body.rpartition(b"=")[2])

    def publish(self) -> None:
        self._value += 1
        body = b"value=%d" % self._value
        topic = f"{RETAINED}/{self.name}"
        self._client.send(wire.publish(topic, body, qos=1, packet_id=7, retain=True))
        if self._client.receive() != wire.puback(7):
            raise ServerGone
        self._acked = self._value


class DelayedPublisher(Publisher):
    """MQTT messages that come later."""

    def connect(self) -> None:
        self._client = RawClient(self.ports.mqtt)
        self._client.send(wire.connect(self.name))
        if not self._client.receive():
            raise ServerGone

    def publish(self) -> None:
        seconds = self.chance.randint(*DELAY_SECONDS)
        sent, body = self.message(due=time.time() + seconds)
        topic = f"$delayed/{seconds}/{TOPIC}/of/{self.name}"
        self._client.send(wire.publish(topic, body, qos=1, packet_id=9))
        if self._client.receive() != wire.puback(9):
            raise ServerGone
        sent.outcome = Outcome.ACKED


class AmqpPublisher(Publisher):
    """Publisher confirms, one message at a time; some messages expire."""

    def connect(self) -> None:
        self._connection = pika.BlockingConnection(
            pika.ConnectionParameters("127.0.0.1", self.ports.amqp, blocked_connection_timeout=60)
        )
        self._channel = self._connection.channel()
        self.prepare()

    def prepare(self) -> None:
        self._channel.confirm_delivery()

    def publish(self) -> None:
        for _ in range(self.chance.randint(1, BURST)):
            expires = self.chance.random() < 0.1
            lifetime = TTL_SECONDS if expires else 0.0
            sent, body = self.message(expires=time.time() + lifetime + 1.0 if expires else 0.0)
            expiration = str(int(lifetime * 1000)) if expires else None
            properties = pika.BasicProperties(delivery_mode=2, expiration=expiration)
            try:
                self._channel.basic_publish(TOPIC, key_of(self.name), body, properties)
            except pika.exceptions.NackError:
                sent.outcome = Outcome.REFUSED
                self.ledger.note("AMQP publishes refused")
            else:
                sent.outcome = Outcome.ACKED


class AmqpTransactions(AmqpPublisher):
    """Transactions, committed or rolled back. All of one is stored, or nothing."""

    def prepare(self) -> None:
        self._channel.tx_select()

    def publish(self) -> None:
        count = self.chance.randint(2, BURST)
        first = self._number
        unit = f"{self.name}:{first}+"
        sent = []
        commits = self.chance.random() < 0.8
        for _ in range(count):
            one, body = self.message(unit=unit if commits else "")
            if not commits:
                one.outcome = Outcome.ROLLED_BACK
            sent.append(one)
            properties = pika.BasicProperties(delivery_mode=2)
            self._channel.basic_publish(TOPIC, key_of(self.name), body, properties)
        if commits:
            self._channel.tx_commit()
            settle(sent, Outcome.ACKED)
        else:
            self._channel.tx_rollback()


class HttpPublisher(Publisher):
    """Batches, taken whole or not at all, and single messages, some of them delayed."""

    def connect(self) -> None:
        self._client = http.client.HTTPConnection("127.0.0.1", self.ports.http, timeout=60)
        self._client.connect()

    def publish(self) -> None:
        headers = {}
        if self.chance.random() < 0.5:
            unit = f"{self.name}:{self._number}+"
            pairs = [self.message(unit=unit) for _ in range(self.chance.randint(1, BURST))]
            events = [
                {
                    "specversion": "1.0",
                    "id": sent.key,
                    "source": "/model",
                    "type": key_of(self.name),
                    "datacontenttype": "application/octet-stream",
                    "data_base64": base64.b64encode(body).decode(),
                }
                for sent, body in pairs
            ]
            headers["Content-Type"] = "application/cloudevents-batch+json"
            data = json.dumps(events).encode()
            sent_all = [sent for sent, _ in pairs]
        else:
            seconds = self.chance.choice((0, 0, 1, 2))
            sent, data = self.message(due=time.time() + seconds if seconds else 0.0)
            headers |= {"PolyMQ-Tag": key_of(self.name), "PolyMQ-Delay-Ms": str(seconds * 1000)}
            headers["Content-Type"] = "application/octet-stream"
            sent_all = [sent]
        self._client.request("POST", f"/topics/{TOPIC}", data, headers)
        answer = self._client.getresponse()
        answer.read()
        if answer.status == 204:
            settle(sent_all, Outcome.ACKED)
        elif answer.status == 507:
            settle(sent_all, Outcome.REFUSED)
            self.ledger.note("HTTP publishes refused")
        else:
            self.ledger.note(f"HTTP answers {answer.status}")
            raise ServerGone


class RocketmqPublisher(Publisher):
    """Messages and transactions of RocketMQ."""

    def connect(self) -> None:
        self._client = remoting.Client("127.0.0.1", self.ports.rocketmq)

    def close(self) -> None:
        self._client.close()

    def publish(self) -> None:
        try:
            if self.chance.random() < 0.3:
                self._transaction()
            else:
                self._message()
        except struct.error as error:  # the connection ended within a frame
            raise ServerGone from error

    def _message(self) -> None:
        seconds = self.chance.choice((0, 0, 0, 1))  # level 1 is a second
        sent, body = self.message(due=time.time() + seconds if seconds else 0.0)
        publish = partial(self._client.publish, TOPIC, body, TAGS=key_of(self.name))
        answer = publish(DELAY="1") if seconds else publish()
        self._answered(sent, answer)

    def _answered(self, sent: Sent, answer: remoting.Frame) -> bool:
        if answer.code == SUCCESS:
            sent.outcome = Outcome.ACKED
            return True
        sent.outcome = Outcome.REFUSED
        self.ledger.note("RocketMQ publishes refused")
        return False

    def _transaction(self) -> None:
        sent, body = self.message()
        answer = self._client.publish(
            TOPIC,
            body,
            system_flag=PREPARED,
            TRAN_MSG="true",
            PGROUP=self.name,
            TAGS=key_of(self.name),
        )
        if answer.code != SUCCESS:
            sent.outcome = Outcome.REFUSED
            return
        commits = self.chance.random() < 0.7
        if not commits:
            sent.outcome = Outcome.ROLLED_BACK
        ended = self._client.ask(
            37,
            producerGroup=self.name,
            commitOrRollback=COMMIT if commits else ROLLBACK,
            tranStateTableOffset=answer.fields["queueOffset"],
            commitLogOffset=int(answer.fields["msgId"][16:], 16),
            msgId=answer.fields["msgId"],
        )
        if ended.code == SUCCESS and commits:
            sent.outcome = Outcome.ACKED
