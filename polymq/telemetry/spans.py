"""Spans of messages, by OpenTelemetry's semantic conventions for messaging. Pure.

The log knows two moments of a message: when it was stored, and when consumers settled it. So a
message's publish is a span at the first, and each delivery is a span from the first to the second.
Both are children of the span that published the message, as its `traceparent` names it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from polymq.broker.messages.amqp_content import AMQP_PROPERTY, read_amqp_content
from polymq.broker.names import QUEUES_TOPIC, is_own_topic
from polymq.broker.port import display_name
from polymq.telemetry.log_scan import TracedMessage
from polymq.telemetry.trace_context import TraceContext

SYSTEM: Final = "polymq"
"""`messaging.system`."""
Attributes = dict[str, str | int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One span, before it is encoded.

    Attributes:
        is_delivery: of a consumer; else of the producer.
    """

    name: str
    parent: TraceContext
    is_delivery: bool
    start_ms: int
    end_ms: int
    attributes: Attributes


def destination_of(message: TracedMessage, topic: str) -> str | None:
    """What users call the topic of this name; of a message to AMQP's default exchange, the queue.
    None for a message that only waits in a topic of the broker's own, such as a delayed one: it is
    stored again when it is released."""
    if topic == QUEUES_TOPIC:
        return message.properties.get("TAGS", "")
    return None if is_own_topic(topic) else display_name(topic)


def publish_span(message: TracedMessage, destination: str) -> Span:
    """A message was stored."""
    attributes = _attributes_of(message, destination)
    attributes |= {"messaging.operation.name": "publish", "messaging.operation.type": "send"}
    if message.sender:
        attributes["network.peer.address"] = message.sender
    return Span(
        name=f"publish {destination}",
        parent=message.context,
        is_delivery=False,
        start_ms=message.store_ms,
        end_ms=message.store_ms,
        attributes=attributes,
    )


def delivery_span(
    message: TracedMessage, destination: str, settled_ms: int, *, group: str, client: str
) -> Span:
    """Consumers of a group have settled it.

    Args:
        group: the queue, subscription or consumer group; empty for a session of MQTT.
        client: the client identifier of the session; else empty.
    """
    attributes = _attributes_of(message, destination)
    attributes |= {"messaging.operation.name": "deliver", "messaging.operation.type": "settle"}
    if group:
        attributes["messaging.consumer.group.name"] = group
    if client:
        attributes["messaging.client.id"] = client
    return Span(
        name=f"deliver {destination}",
        parent=message.context,
        is_delivery=True,
        start_ms=message.store_ms,
        end_ms=max(settled_ms, message.store_ms),
        attributes=attributes,
    )


def _attributes_of(message: TracedMessage, destination: str) -> Attributes:
    properties = message.properties
    found: Attributes = {
        "messaging.system": SYSTEM,
        "messaging.destination.name": destination,
        "messaging.destination.partition.id": str(message.queue_id),
        "messaging.message.body.size": message.body_bytes,
        "polymq.position": message.position,
        "polymq.protocol": properties.get("PMQ_PROTO", "rocketmq"),
    }
    identity = _identity_of(message)
    if identity:
        found["messaging.message.id"] = identity
    if "TAGS" in properties:
        found["polymq.tag"] = properties["TAGS"]
    return found


def _identity_of(message: TracedMessage) -> str:
    """The id that the message's publisher gave it; empty if it gave none."""
    properties = message.properties
    if AMQP_PROPERTY in properties:
        return read_amqp_content(properties[AMQP_PROPERTY]).message_id or ""
    return properties.get("UNIQ_KEY") or properties.get("KEYS") or ""
