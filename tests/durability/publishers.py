"""A publisher to the readers' topic in every way that there is."""

from __future__ import annotations

import contextlib

import pika

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
    "HTTP",
)
"""The ways whose messages are as safe as an acknowledgement has to be."""


class Publisher:
    """Publishes to the readers' topic in any way, and does not wait for an answer."""

    def __init__(self, server: Running, stack: contextlib.ExitStack) -> None:
        ports = server.ports
        assert ports.mqtt is not None
        assert ports.amqp is not None
        assert ports.http is not None
        self.mqtt = stack.enter_context(MqttWire.connected(ports.mqtt, "publisher"))
        self.confirmed = stack.enter_context(AmqpWire(ports.amqp, confirms=True))
        self.plain = stack.enter_context(AmqpWire(ports.amqp))
        self.http = stack.enter_context(HttpWire(ports.http))

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
            case "HTTP":
                post(self.http, TOPIC, "k", body)
            case _:
                raise AssertionError(way)

    def expect_answer(self, way: str) -> None:
        """Wait for the acknowledgement of the only message that was published in this way."""
        match way:
            case "MQTT QoS 1":
                self.mqtt.expect(mqtt.puback(1))
            case "MQTT QoS 2":
                self.mqtt.expect(mqtt.pubrec(1))
            case "AMQP confirmed" | "AMQP confirmed transient":
                self.confirmed.expect(spec.Basic.Ack)
            case "HTTP":
                assert self.http.answer()[0] == 204
            case _:
                pass  # nobody acknowledges it
