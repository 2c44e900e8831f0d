"""A publisher to the readers' topic in every way that there is."""

from __future__ import annotations

import contextlib
import select

import pika

from interop_tests.remoting_wire import Client as RocketmqClient
from tests.durability import mqtt_packets as mqtt
from tests.durability.clients import AmqpWire, HttpWire, MqttWire, post
from tests.durability.readers import TOPIC
from tests.durability.running import Running

spec = pika.spec
SAFE = (
    "MQTT QoS 1",
    "MQTT QoS 2",
    "AMQP confirmed",
    "AMQP confirmed transient",
    "AMQP persistent",
    "AMQP transaction",
    "AMQP dead letter",
    "HTTP",
    "RocketMQ",
    "RocketMQ transaction",
)
"""The ways whose messages are as safe as an acknowledgement has to be."""
GIVEN_UP = "given up"
SEND, END_TRANSACTION = 310, 37
HALF, COMMITTED = 4, 8
PRODUCERS = "producers"


class Publisher:
    """Publishes to the readers' topic in any way, and does not wait for an answer: `stage` does
    first what has to be there before."""

    def __init__(self, server: Running, stack: contextlib.ExitStack) -> None:
        ports = server.ports
        assert ports.mqtt is not None
        assert ports.amqp is not None
        assert ports.http is not None
        assert ports.rocketmq is not None
        self.mqtt = stack.enter_context(MqttWire.connected(ports.mqtt, "publisher"))
        self.confirmed = stack.enter_context(AmqpWire(ports.amqp, confirms=True))
        self.plain = stack.enter_context(AmqpWire(ports.amqp))
        self.transactional = stack.enter_context(AmqpWire(ports.amqp))
        self.transactional.ask(spec.Tx.Select(), spec.Tx.SelectOk)
        self.http = stack.enter_context(HttpWire(ports.http))
        self.rocketmq = stack.enter_context(RocketmqClient(ports.host, ports.rocketmq))
        self._server = server
        self._half: dict[str, object] = {}

    def stage(self, way: str, body: bytes) -> None:
        """Do what comes before the message, which nobody sees yet."""
        if way == "AMQP dead letter":
            dies = {"x-dead-letter-exchange": TOPIC, "x-dead-letter-routing-key": "k"}
            declare = spec.Queue.Declare(queue=GIVEN_UP, durable=True, arguments=dies)
            self.confirmed.ask(declare, spec.Queue.DeclareOk)
            self.confirmed.publish("", GIVEN_UP, body)
            self.confirmed.expect(spec.Basic.Ack)
            self.plain.consume(GIVEN_UP)
            assert self.plain.message().body == body
        elif way == "RocketMQ transaction":
            before = self._server.appended()
            properties = f"TRAN_MSG\x01true\x02PGROUP\x01{PRODUCERS}\x02TAGS\x01k\x02"
            self._send(body, f=HALF, i=properties)
            self._server.wait_appended(before)
            self._server.acked()  # a replica has it, if anybody asks for one
            half = self.rocketmq.read()
            assert half.code == 0, half
            self._half = {
                "tranStateTableOffset": half.fields["queueOffset"],
                "commitLogOffset": int(half.fields["msgId"][16:], 16),
            }

    def _send(self, body: bytes, **more: object) -> None:
        fields = {"a": PRODUCERS, "b": TOPIC, "c": "TBW102", "d": 4, "e": 0, "g": 0, "h": 0, "j": 0}
        self.rocketmq.send(SEND, body, **fields, **more)

    def publish(self, way: str, body: bytes) -> None:
        """Send one message."""
        match way:
            case "MQTT QoS 0":
                self.mqtt.send(mqtt.publish(f"{TOPIC}/k", body))
            case "MQTT QoS 1":
                self.mqtt.send(mqtt.publish(f"{TOPIC}/k", body, qos=1, packet_id=1))
            case "MQTT QoS 2":
                self.mqtt.send(mqtt.publish(f"{TOPIC}/k", body, qos=2, packet_id=1))
            case "AMQP confirmed":
                self.confirmed.publish(TOPIC, "k", body)
            case "AMQP confirmed transient":
                self.confirmed.publish(TOPIC, "k", body, persistent=False)
            case "AMQP persistent":
                self.plain.publish(TOPIC, "k", body)
            case "AMQP transient":
                self.plain.publish(TOPIC, "k", body, persistent=False)
            case "AMQP transaction":
                self.transactional.publish(TOPIC, "k", body)
                self.transactional.send(spec.Tx.Commit())
            case "AMQP dead letter":
                self.plain.send(spec.Basic.Reject(delivery_tag=1, requeue=False))
            case "HTTP":
                post(self.http, TOPIC, "k", body)
            case "RocketMQ":
                self._send(body, f=0, i="TAGS\x01k\x02")
            case "RocketMQ transaction":
                decision = {"producerGroup": PRODUCERS, "commitOrRollback": COMMITTED}
                self.rocketmq.send(END_TRANSACTION, **decision, **self._half)
            case _:
                raise AssertionError(way)

    def has_answer(self) -> bool:
        """Whether any of the connections has got something."""
        sockets = [self.http.socket, self.rocketmq.socket]
        return (
            bool(self.mqtt.came())
            or self.confirmed.has_bytes()
            or self.transactional.has_bytes()
            or bool(select.select(sockets, [], [], 0)[0])
        )

    def expect_answer(self, way: str) -> None:
        """Wait for the acknowledgement of the only message that was published in this way."""
        match way:
            case "MQTT QoS 1":
                self.mqtt.expect(mqtt.puback(1))
            case "MQTT QoS 2":
                self.mqtt.expect(mqtt.pubrec(1))
            case "AMQP confirmed" | "AMQP confirmed transient":
                self.confirmed.expect(spec.Basic.Ack)
            case "AMQP transaction":
                self.transactional.expect(spec.Tx.CommitOk)
            case "HTTP":
                assert self.http.answer()[0] == 204
            case "RocketMQ" | "RocketMQ transaction":
                assert self.rocketmq.read().code == 0
            case _:
                pass  # nobody acknowledges it
