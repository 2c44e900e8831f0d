"""How a message has to look to each reader: what the mapping between the protocols promises.

Compared in every cell is the body's SHA-256, and the place: MQTT's topic name, AMQP's exchange and
routing key, the type of a CloudEvent, RocketMQ's topic and tag. Beside that, from the publisher in
the row to the reader in the column:

    from \\ to    MQTT  AMQP                     CloudEvents        RocketMQ
    MQTT         -     -                        source             -
    AMQP         -     message_id, type, header source, type       -
    CloudEvents  -     message_id, type, header id, source, type,  key, type, property
                                                extension
    RocketMQ     -     message_id, type, header source, type       key, type, property

Type is the media type; header, extension and property are one of the user's own. What is missing
here the reader's protocol cannot say, or it stays encoded for the publisher's own protocol: an
AMQP message's properties are not unpacked for RocketMQ's readers, who get the log's own bytes.
"""

from __future__ import annotations

from typing import Any

from examples.demo.messages import CONTENT_TYPE, TOPIC, Item


def expected_attributes(item: Item, subscriber: str) -> dict[str, Any]:
    """The attributes of a message in the subscriber's vocabulary."""
    match subscriber:
        case "mqtt":  # 3.1.1 has a topic name and nothing more
            return {"topic": f"{TOPIC}/{item.tag.replace('.', '/')}"}
        case "amqp":
            return {"exchange": TOPIC, **_as_amqp(item)}
        case "http":
            return _as_event(item)
        case _:
            return {"topic": TOPIC, **_as_rocketmq(item)}


def _as_amqp(item: Item) -> dict[str, Any]:
    if item.publisher == "mqtt":
        return {}
    expected = {"content_type": CONTENT_TYPE, "message_id": item.identity}
    if item.publisher == "http":
        return {**expected, "ce-kind": item.event_kind}
    return {**expected, "kind": item.kind}


def _as_event(item: Item) -> dict[str, Any]:
    if item.publisher == "http":
        return {
            "id": item.identity,
            "source": "/demo",
            "content_type": CONTENT_TYPE,
            "kind": item.event_kind,
        }
    expected = {"source": f"/topics/{TOPIC}"}  # the event is made around a plain message
    if item.publisher != "mqtt" and item.kind != "empty":  # without data there is no type of it
        expected["content_type"] = CONTENT_TYPE
    return expected


def _as_rocketmq(item: Item) -> dict[str, Any]:
    if item.publisher in ("mqtt", "amqp"):
        return {}
    expected = {"key": item.identity, "content_type": CONTENT_TYPE}
    if item.publisher == "http":
        return {**expected, "CE_kind": item.event_kind}
    return {**expected, "kind": item.kind}
