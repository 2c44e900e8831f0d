"""Messages as each protocol publishes them, and as each reads them: client libraries for MQTT 5 and
AMQP, the gateways and the sink for the others.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any, Final

import pamqp.commands
import pamqp.header
import pika

from polymq.broker.port import MQTT5_PROPERTY, Message, expiry_seconds_left, mqtt_block
from polymq.gateways.amqp.mapping import message_properties
from polymq.gateways.http_cloudevents import mapping as http_mapping
from polymq.gateways.http_cloudevents.codec import Event
from polymq.gateways.rocketmq.foreign_messages import as_rocketmq
from polymq.remoting.records import encode_record, iterate_records, parse_properties
from polymq.spark_sink.envelope import EnvelopeBuilder, arrow_schema, envelope_schema
from tests.harness.mqtt5 import pack, stored, unpack

MQTT: Final = "MQTT 5"
AMQP: Final = "AMQP 0-9-1"
HTTP: Final = "CloudEvents over HTTP"
EVENT: Final = "CloudEvents over MQTT 5"
ROCKETMQ: Final = "RocketMQ"
PARQUET: Final = "Parquet"
COLUMNS: Final = (MQTT, AMQP, HTTP, EVENT, ROCKETMQ, PARQUET)

BODY: Final = b"21.5"
STORE_MS: Final = 1_790_000_000_000

Found = Mapping[str, Any]
Sent = dict[str, str]


# --- what the protocols publish ---------------------------------------------------------------


def packed_of(**values: Any) -> Sent:
    """A PUBLISH of MQTT 5. `UserProperty` is a list of pairs."""
    return {"PMQ_PROTO": "mqtt5", MQTT5_PROPERTY: stored(pack(**values))}


def event_of(*more: tuple[str, str], **values: Any) -> Sent:
    """A CloudEvent in binary mode over MQTT 5."""
    attributes = [("specversion", "1.0"), ("id", "e-1"), ("source", "/s"), ("type", "t")]
    return packed_of(UserProperty=[*attributes, *more], **values)


def content_of(**values: Any) -> Sent:
    """A message of AMQP."""
    header = pamqp.header.ContentHeader(0, 0, pamqp.commands.Basic.Properties(**values))
    packed = base64.b64encode(header.marshal()[12:]).decode()
    return {"PMQ_PROTO": "amqp", "PMQ_AMQP": packed}


def posted(**attributes: str) -> Sent:
    """A CloudEvent over HTTP."""
    base = {"specversion": "1.0", "id": "e-1", "source": "/s", "type": "t"}
    extra = http_mapping.extra_of(Event(attributes=base | attributes, data=BODY))
    return {"PMQ_PROTO": "http", **parse_properties(extra)}


def sent_by_rocketmq(**properties: str) -> Sent:
    """A message of RocketMQ; `__` stands for `-`."""
    named = {name.replace("__", "-"): value for name, value in properties.items()}
    return {"PMQ_PROTO": "rocketmq", **named}


# --- what the protocols read ------------------------------------------------------------------


def message_of(sent: Sent, body: bytes) -> Message:
    return Message(
        topic="sensors",
        tag="room1",
        body=body,
        properties=sent,
        born_ms=STORE_MS,
        store_ms=STORE_MS,
        position=64,
        queue_id=0,
        queue_offset=0,
        consumer_offset=0,
        redelivered=False,
    )


def read_by_mqtt(sent: Sent, body: bytes) -> Found:
    """As paho reads the block: a subscriber gets that of the publisher, or one that is made."""
    if MQTT5_PROPERTY in sent:
        block = base64.b64decode(sent[MQTT5_PROPERTY])
    else:
        block = mqtt_block(sent, expiry_seconds=expiry_seconds_left(sent, 0))
    found: dict[str, Any] = {"payload": body}
    read = unpack(block)
    for name, value in read.pop("UserProperty", []):
        found.setdefault(f"User Property {name}", []).append(value)
    return found | read


def read_by_amqp(sent: Sent, body: bytes) -> Found:
    """As pika reads the content header."""
    read = pika.BasicProperties().decode(message_properties(message_of(sent, body)))
    found: dict[str, Any] = {name: value for name, value in vars(read).items() if value is not None}
    headers = found.pop("headers", None) or {}
    return {"body": body, **found, **{f"header {name}": value for name, value in headers.items()}}


def read_by_http(sent: Sent, body: bytes) -> Found:
    event = http_mapping.event_of(message_of(sent, body), broker_name="b1")
    return {**event.attributes, "data": event.data}


def record_of(sent: Sent, body: bytes) -> bytes:
    return encode_record(
        topic="sensors", body=body, properties=sent, queue_offset=0, position=64, born_ms=STORE_MS
    )


def read_by_rocketmq(sent: Sent, body: bytes) -> Found:
    (record,) = iterate_records(as_rocketmq(record_of(sent, body)))
    return {**parse_properties(record.properties), "body": record.body}


def read_by_parquet(sent: Sent, body: bytes) -> Found:
    schema = arrow_schema(envelope_schema())
    builder = EnvelopeBuilder(
        schema, topic="sensors", range_text=None, rows_max=10, bytes_max=10**9
    )
    record = record_of(sent, body)
    (batch,) = [*builder.add(record, queue_id=0, first=0, end=1), *builder.finish()]
    (row,) = batch.to_pylist(maps_as_pydicts="strict")
    headers = row.pop("headers")
    return {**row, **{f"headers {name}": value for name, value in headers.items()}}


READERS: Final[Mapping[str, Callable[[Sent, bytes], Found]]] = {
    MQTT: read_by_mqtt,
    AMQP: read_by_amqp,
    HTTP: read_by_http,
    EVENT: read_by_mqtt,
    ROCKETMQ: read_by_rocketmq,
    PARQUET: read_by_parquet,
}
