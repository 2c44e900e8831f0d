"""The table of `docs/properties.md`: what each meaning is called in each protocol, with a message
for each protocol that publishes it, and what is read of it. `test_property_table.py` tries it.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tests.gateways.property_readers import (
    AMQP,
    BODY,
    EVENT,
    HTTP,
    MQTT,
    PARQUET,
    ROCKETMQ,
    Sent,
    content_of,
    event_of,
    packed_of,
    posted,
    sent_by_rocketmq,
)

Value = tuple[str | None, Any]
"""The name that something is read under, and what is read: None where it is not there. Without a
name: no text that is read contains this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One protocol in a row.

    Attributes:
        text: what the table says.
        value: what is read there, whoever published it; None: nothing is compared.
        of: the same of what single protocols published, where it differs.
    """

    text: str
    value: Value | None = None
    of: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One meaning.

    Attributes:
        sent: what publishers make of it, by protocol.
        cells: by protocol, in the order of `COLUMNS`.
    """

    meaning: str
    sent: Mapping[str, Sent]
    cells: tuple[Cell, Cell, Cell, Cell, Cell, Cell]
    body: bytes = BODY


BINARY: Final = b"\xff\x00\x01"
BASE64: Final = base64.b64encode(BINARY).decode()
EXPIRY_TIME: Final = "2026-09-21T15:14:20Z"
STRUCTURED: Final = b'{"specversion":"1.0","id":"e-1","source":"/s","type":"t","data":21.5}'
STRUCTURED_TYPE: Final = "application/cloudevents+json"
TRACE_PARENT: Final = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
TRACE_STATE: Final = "vendor=00f067aa0ba902b7,other=1"

ROWS: Final = (
    Row(
        meaning="body",
        sent={
            MQTT: packed_of(),
            AMQP: content_of(),
            HTTP: posted(),
            EVENT: event_of(),
            ROCKETMQ: {},
        },
        cells=(
            Cell(text="payload", value=("payload", BODY)),
            Cell(text="body", value=("body", BODY)),
            Cell(text="data", value=("data", BODY)),
            Cell(text="payload", value=("payload", BODY)),
            Cell(text="body", value=("body", BODY)),
            Cell(text="column `body`", value=("body", BODY)),
        ),
    ),
    Row(
        meaning="media type",
        sent={
            MQTT: packed_of(ContentType="text/csv"),
            AMQP: content_of(content_type="text/csv"),
            HTTP: posted(datacontenttype="text/csv"),
            EVENT: event_of(ContentType="text/csv"),
            ROCKETMQ: sent_by_rocketmq(content__type="text/csv"),
        },
        cells=(
            Cell(text="Content Type", value=("ContentType", "text/csv")),
            Cell(text="`content_type`", value=("content_type", "text/csv")),
            Cell(text="`datacontenttype`", value=("datacontenttype", "text/csv")),
            Cell(text="Content Type", value=("ContentType", "text/csv")),
            Cell(text="property `content-type`", value=("content-type", "text/csv")),
            Cell(text="column `content_type`", value=("content_type", "text/csv")),
        ),
    ),
    Row(
        meaning="UTF-8 text without a media type",
        sent={
            MQTT: packed_of(PayloadFormatIndicator=1),
            EVENT: event_of(PayloadFormatIndicator=1),
        },
        cells=(
            Cell(text="Payload Format Indicator 1", value=("PayloadFormatIndicator", 1)),
            Cell(text="header `mqtt-payload-format`", value=("header mqtt-payload-format", 1)),
            Cell(
                text="`datacontenttype` `text/plain; charset=utf-8`, if it is no event",
                value=("datacontenttype", "text/plain; charset=utf-8"),
                of={EVENT: ("datacontenttype", None)},
            ),
            Cell(text="Payload Format Indicator 1", value=("PayloadFormatIndicator", 1)),
            Cell(text="property `mqtt-payload-format`", value=("mqtt-payload-format", "1")),
            Cell(text="`mqtt.payload_format`", value=("headers mqtt.payload_format", "1")),
        ),
    ),
    Row(
        meaning="UTF-8 text by its media type (`text/*; charset=utf-8`, CloudEvents in JSON)",
        sent={
            AMQP: content_of(content_type="text/plain; charset=utf-8"),
            HTTP: posted(datacontenttype="text/plain; charset=utf-8"),
            ROCKETMQ: sent_by_rocketmq(content__type="text/plain; charset=utf-8"),
        },
        cells=(
            Cell(text="Payload Format Indicator 1", value=("PayloadFormatIndicator", 1)),
            Cell(
                text="`content_type` only",
                value=("header mqtt-payload-format", None),
            ),
            Cell(
                text="`datacontenttype` only",
                value=("datacontenttype", "text/plain; charset=utf-8"),
            ),
            Cell(text="Payload Format Indicator 1", value=("PayloadFormatIndicator", 1)),
            Cell(text="property `content-type` only", value=("mqtt-payload-format", None)),
            Cell(text="column `content_type` only", value=("headers mqtt.payload_format", None)),
        ),
    ),
    Row(
        meaning="what an application adds",
        sent={
            MQTT: packed_of(UserProperty=[("colour", "red")]),
            AMQP: content_of(headers={"colour": "red"}),
            HTTP: posted(colour="red"),
            EVENT: event_of(("colour", "red")),
            ROCKETMQ: {"colour": "red"},
        },
        cells=(
            Cell(text="User Property", value=("User Property colour", ["red"])),
            Cell(
                text="header; `ce-<name>` of an event over HTTP",
                value=("header colour", "red"),
                of={HTTP: ("header ce-colour", "red")},
            ),
            Cell(text="extension, if the name may be one", value=("colour", "red")),
            Cell(text="User Property", value=("User Property colour", ["red"])),
            Cell(
                text="user property; `CE_<name>` of an event over HTTP",
                value=("colour", "red"),
                of={HTTP: ("CE_colour", "red")},
            ),
            Cell(
                text="`headers`; `CE_<name>` of an event over HTTP",
                value=("headers colour", "red"),
                of={HTTP: ("headers CE_colour", "red")},
            ),
        ),
    ),
    Row(
        meaning="trace context: `traceparent`",
        sent={
            MQTT: packed_of(UserProperty=[("traceparent", TRACE_PARENT)]),
            AMQP: content_of(headers={"traceparent": TRACE_PARENT}),
            HTTP: posted(traceparent=TRACE_PARENT),
            EVENT: event_of(("traceparent", TRACE_PARENT)),
            ROCKETMQ: {"traceparent": TRACE_PARENT},
        },
        cells=(
            Cell(text="User Property", value=("User Property traceparent", [TRACE_PARENT])),
            Cell(text="header", value=("header traceparent", TRACE_PARENT)),
            Cell(text="extension", value=("traceparent", TRACE_PARENT)),
            Cell(text="User Property", value=("User Property traceparent", [TRACE_PARENT])),
            Cell(text="user property", value=("traceparent", TRACE_PARENT)),
            Cell(text="`headers`", value=("headers traceparent", TRACE_PARENT)),
        ),
    ),
    Row(
        meaning="trace context: `tracestate`",
        sent={
            MQTT: packed_of(UserProperty=[("tracestate", TRACE_STATE)]),
            AMQP: content_of(headers={"tracestate": TRACE_STATE}),
            HTTP: posted(tracestate=TRACE_STATE),
            EVENT: event_of(("tracestate", TRACE_STATE)),
            ROCKETMQ: {"tracestate": TRACE_STATE},
        },
        cells=(
            Cell(text="User Property", value=("User Property tracestate", [TRACE_STATE])),
            Cell(text="header", value=("header tracestate", TRACE_STATE)),
            Cell(text="extension", value=("tracestate", TRACE_STATE)),
            Cell(text="User Property", value=("User Property tracestate", [TRACE_STATE])),
            Cell(text="user property", value=("tracestate", TRACE_STATE)),
            Cell(text="`headers`", value=("headers tracestate", TRACE_STATE)),
        ),
    ),
    Row(
        meaning="the same name twice",
        sent={
            MQTT: packed_of(UserProperty=[("colour", "red"), ("n", "1"), ("colour", "blue")]),
            EVENT: event_of(("colour", "red"), ("colour", "blue")),
        },
        cells=(
            Cell(
                text="User Property, twice, in order",
                value=("User Property colour", ["red", "blue"]),
            ),
            Cell(text="header, an array in order", value=("header colour", ["red", "blue"])),
            Cell(
                text="extension with the first value; what would be an event is none",
                value=("colour", "red"),
                of={EVENT: ("source", "/topics/sensors")},
            ),
            Cell(
                text="User Property, twice: it is no event",
                value=("User Property colour", ["red", "blue"]),
            ),
            Cell(text="user property with the first value", value=("colour", "red")),
            Cell(text="`headers`, as JSON", value=("headers colour", '["red", "blue"]')),
        ),
    ),
    Row(
        meaning="where answers go: a topic of several levels",
        sent={
            MQTT: packed_of(ResponseTopic="clients/7/v1.2"),
            EVENT: event_of(ResponseTopic="clients/7/v1.2"),
            ROCKETMQ: {"REPLY_TO": "clients.7.v1/2"},
        },
        cells=(
            Cell(text="Response Topic `clients/7/v1.2`", value=("ResponseTopic", "clients/7/v1.2")),
            Cell(
                text="`reply_to` `clients.7.v1/2`, a routing key of `amq.topic`",
                value=("reply_to", "clients.7.v1/2"),
            ),
            Cell(text="none", value=(None, "clients")),
            Cell(text="Response Topic", value=("ResponseTopic", "clients/7/v1.2")),
            Cell(text="property `REPLY_TO` `clients.7.v1/2`", value=("REPLY_TO", "clients.7.v1/2")),
            Cell(
                text="`mqtt.response_topic`",
                value=("headers mqtt.response_topic", "clients/7/v1.2"),
                of={ROCKETMQ: ("headers REPLY_TO", "clients.7.v1/2")},
            ),
        ),
    ),
    Row(
        meaning="where answers go: a queue",
        sent={
            AMQP: content_of(reply_to="rpc.replies"),
            MQTT: packed_of(ResponseTopic="rpc.replies"),
        },
        cells=(
            Cell(text="Response Topic `rpc.replies`", value=("ResponseTopic", "rpc.replies")),
            Cell(text="`reply_to` `rpc.replies`", value=("reply_to", "rpc.replies")),
            Cell(text="none", value=(None, "repl")),
            Cell(text="Response Topic", value=("ResponseTopic", "rpc.replies")),
            Cell(text="property `REPLY_TO` `rpc.replies`", value=("REPLY_TO", "rpc.replies")),
            Cell(
                text="`amqp.reply_to`",
                value=("headers amqp.reply_to", "rpc.replies"),
                of={MQTT: ("headers mqtt.response_topic", "rpc.replies")},
            ),
        ),
    ),
    Row(
        meaning="where answers go: a name that no topic can have",
        sent={AMQP: content_of(reply_to="amq.rabbitmq.reply-to.g1")},
        cells=(
            Cell(
                text="User Property `REPLY_TO`",
                value=("User Property REPLY_TO", ["amq.rabbitmq.reply-to.g1"]),
            ),
            Cell(text="`reply_to`", value=("reply_to", "amq.rabbitmq.reply-to.g1")),
            Cell(text="none", value=(None, "repl")),
            Cell(
                text="User Property `REPLY_TO`",
                value=("User Property REPLY_TO", ["amq.rabbitmq.reply-to.g1"]),
            ),
            Cell(text="property `REPLY_TO`", value=("REPLY_TO", "amq.rabbitmq.reply-to.g1")),
            Cell(
                text="`amqp.reply_to`", value=("headers amqp.reply_to", "amq.rabbitmq.reply-to.g1")
            ),
        ),
    ),
    Row(
        meaning="which request an answer is for, as text",
        sent={
            MQTT: packed_of(CorrelationData=b"c-1"),
            AMQP: content_of(correlation_id="c-1"),
            EVENT: event_of(CorrelationData=b"c-1"),
            ROCKETMQ: {"CORRELATION_ID": "c-1"},
        },
        cells=(
            Cell(text="Correlation Data", value=("CorrelationData", b"c-1")),
            Cell(text="`correlation_id`", value=("correlation_id", "c-1")),
            Cell(text="none", value=(None, "c-1")),
            Cell(text="Correlation Data", value=("CorrelationData", b"c-1")),
            Cell(text="property `CORRELATION_ID`", value=("CORRELATION_ID", "c-1")),
            Cell(
                text="`mqtt.correlation_data`, `amqp.correlation_id`",
                value=("headers mqtt.correlation_data", "c-1"),
                of={
                    AMQP: ("headers amqp.correlation_id", "c-1"),
                    ROCKETMQ: ("headers CORRELATION_ID", "c-1"),
                },
            ),
        ),
    ),
    Row(
        meaning="the same in bytes that are no text",
        sent={
            MQTT: packed_of(CorrelationData=BINARY),
            EVENT: event_of(CorrelationData=BINARY),
            ROCKETMQ: {"CORRELATION_ID_BASE64": BASE64},
        },
        cells=(
            Cell(text="Correlation Data", value=("CorrelationData", BINARY)),
            Cell(
                text="header `CORRELATION_ID`, a byte array",
                value=("header CORRELATION_ID", BINARY),
                of={ROCKETMQ: ("header CORRELATION_ID_BASE64", BASE64)},
            ),
            Cell(text="none", value=(None, BASE64)),
            Cell(text="Correlation Data", value=("CorrelationData", BINARY)),
            Cell(text="property `CORRELATION_ID_BASE64`", value=("CORRELATION_ID_BASE64", BASE64)),
            Cell(
                text="`mqtt.correlation_data`, in base64",
                value=("headers mqtt.correlation_data", BASE64),
                of={ROCKETMQ: ("headers CORRELATION_ID_BASE64", BASE64)},
            ),
        ),
    ),
    Row(
        meaning="time to live",
        sent={
            MQTT: packed_of(MessageExpiryInterval=60),
            AMQP: content_of(expiration="60000") | {"PMQ_X": f"{60_001:08x}00"},
            HTTP: posted(expirytime=EXPIRY_TIME) | {"PMQ_X": f"{60_001:08x}00"},
            EVENT: event_of(MessageExpiryInterval=60),
            ROCKETMQ: {"TTL": "60000"},
        },
        cells=(
            Cell(
                text="Message Expiry Interval, the seconds that are left",
                value=("MessageExpiryInterval", 60),
            ),
            Cell(
                text="`expiration`, the milliseconds that were asked for",
                value=("expiration", "60000"),
                of={HTTP: ("expiration", None)},
            ),
            Cell(
                text="`expirytime`, if that was published",
                value=(None, "60"),
                of={HTTP: ("expirytime", EXPIRY_TIME)},
            ),
            Cell(text="Message Expiry Interval", value=("MessageExpiryInterval", 60)),
            Cell(
                text="property `TTL`, in milliseconds",
                value=("TTL", "60000"),
                of={HTTP: ("TTL", None)},
            ),
            Cell(
                text="`mqtt.message_expiry_interval`, `amqp.expiration`",
                value=("headers mqtt.message_expiry_interval", "60"),
                of={
                    AMQP: ("headers amqp.expiration", "60000"),
                    HTTP: ("headers TTL", None),
                    ROCKETMQ: ("headers TTL", "60000"),
                },
            ),
        ),
    ),
    Row(
        meaning="key",
        sent={
            AMQP: content_of(message_id="m-1"),
            HTTP: posted(id="m-1"),
            ROCKETMQ: {"KEYS": "m-1"},
        },
        cells=(
            Cell(
                text="User Property `KEYS`; `id` of an event",
                value=("User Property KEYS", ["m-1"]),
                of={HTTP: ("User Property id", ["m-1"])},
            ),
            Cell(text="`message_id`", value=("message_id", "m-1")),
            Cell(text="`id` of an event", of={HTTP: ("id", "m-1")}),
            Cell(
                text="User Property `id`",
                value=("User Property KEYS", ["m-1"]),
                of={HTTP: ("User Property id", ["m-1"])},
            ),
            Cell(text="property `KEYS`", value=("KEYS", "m-1")),
            Cell(text="column `keys`", value=("keys", "m-1")),
        ),
    ),
    Row(
        meaning="attribute of a CloudEvent (`source`)",
        sent={
            AMQP: content_of(
                headers={"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "t"}
            ),
            HTTP: posted(),
            EVENT: event_of(),
            ROCKETMQ: {
                "CE_specversion": "1.0",
                "CE_id": "1",
                "CE_source": "/s",
                "CE_type": "t",
            },
        },
        cells=(
            Cell(text="User Property `source`", value=("User Property source", ["/s"])),
            Cell(
                text="header `ce-source`; `source` of an event over MQTT 5",
                value=("header ce-source", "/s"),
                of={EVENT: ("header source", "/s")},
            ),
            Cell(text="`source`", value=("source", "/s")),
            Cell(text="User Property `source`", value=("User Property source", ["/s"])),
            Cell(
                text="property `CE_source`; as published by MQTT 5 and AMQP",
                value=("CE_source", "/s"),
                of={EVENT: ("source", "/s"), AMQP: ("ce-source", "/s")},
            ),
            Cell(
                text="`CE_source`; as published by MQTT 5 and AMQP",
                value=("headers CE_source", "/s"),
                of={EVENT: ("headers source", "/s"), AMQP: ("headers ce-source", "/s")},
            ),
        ),
    ),
    Row(
        meaning="CloudEvent in structured mode",
        body=STRUCTURED,
        sent={
            AMQP: content_of(content_type=STRUCTURED_TYPE),
            EVENT: packed_of(ContentType=STRUCTURED_TYPE),
            ROCKETMQ: sent_by_rocketmq(content__type=STRUCTURED_TYPE),
        },
        cells=(
            Cell(
                text="Content Type `application/cloudevents+json`",
                value=("ContentType", STRUCTURED_TYPE),
            ),
            Cell(
                text="`content_type` `application/cloudevents+json`",
                value=("content_type", STRUCTURED_TYPE),
            ),
            Cell(text="the event", value=("id", "e-1")),
            Cell(
                text="Content Type `application/cloudevents+json`",
                value=("ContentType", STRUCTURED_TYPE),
            ),
            Cell(text="property `content-type`", value=("content-type", STRUCTURED_TYPE)),
            Cell(text="column `content_type`", value=("content_type", STRUCTURED_TYPE)),
        ),
    ),
    Row(
        meaning="AMQP's `content_encoding`, `priority`, `timestamp`, `type`, `user_id`, `app_id`",
        sent={AMQP: content_of(app_id="shop", content_encoding="gzip", priority=5)},
        cells=(
            Cell(text="User Property `amqp.app_id`", value=("User Property amqp.app_id", ["shop"])),
            Cell(text="`app_id`", value=("app_id", "shop")),
            Cell(text="none", value=(None, "shop")),
            Cell(text="User Property `amqp.app_id`", value=("User Property amqp.priority", ["5"])),
            Cell(text="none", value=(None, "shop")),
            Cell(text="`amqp.app_id`", value=("headers amqp.app_id", "shop")),
        ),
    ),
    Row(
        meaning="protocol",
        sent={
            MQTT: packed_of(),
            AMQP: content_of(),
            HTTP: posted(),
            EVENT: event_of(),
            ROCKETMQ: {"PMQ_PROTO": "rocketmq"},
        },
        cells=(
            Cell(text="none", value=("User Property PMQ_PROTO", None)),
            Cell(text="none", value=("header PMQ_PROTO", None)),
            Cell(text="none", value=(None, "mqtt5")),
            Cell(text="none", value=(None, "mqtt5")),
            Cell(
                text="property `PMQ_PROTO`",
                value=("PMQ_PROTO", "mqtt5"),
                of={
                    AMQP: ("PMQ_PROTO", "amqp"),
                    HTTP: ("PMQ_PROTO", "http"),
                    ROCKETMQ: ("PMQ_PROTO", "rocketmq"),
                },
            ),
            Cell(
                text="column `protocol`; `mqtt` for every version",
                value=("protocol", "mqtt"),
                of={
                    AMQP: ("protocol", "amqp"),
                    HTTP: ("protocol", "http"),
                    ROCKETMQ: ("protocol", "rocketmq"),
                },
            ),
        ),
    ),
)

LONG_NAME: Final = "n" * 256

UNSAYABLE: Final = (
    (
        "control character in a user property (`U+0001`)",
        {"User Property": packed_of(UserProperty=[("colour", "a\x01b")])},
        (
            (ROCKETMQ, "`%01`, as in URLs", ("colour", "a%01b")),
            (HTTP, "the extension is left out", ("colour", None)),
            (AMQP, "as it is", ("header colour", "a\x01b")),
            (PARQUET, "as it is", ("headers colour", "a\x01b")),
        ),
    ),
    (
        "control character in a header or property",
        {"header": content_of(headers={"colour": "a\nb"}), "property": {"colour": "a\nb"}},
        ((MQTT, "`%0A`, as in URLs", ("User Property colour", ["a%0Ab"])),),
    ),
    (
        "header that is a table or an array",
        {"header": content_of(headers={"deep": {"a": 1}, "colour": "red"})},
        (
            (MQTT, "is left out", ("User Property deep", None)),
            (ROCKETMQ, "is left out", ("deep", None)),
            (HTTP, "is left out", ("deep", None)),
            (PARQUET, "JSON", ("headers deep", '{"a": 1}')),
        ),
    ),
    (
        "user property with a name of more than 255 bytes",
        {"User Property": packed_of(UserProperty=[(LONG_NAME, "x")])},
        (
            (AMQP, "is left out", (f"header {LONG_NAME}", None)),
            (ROCKETMQ, "as it is", (LONG_NAME, "x")),
        ),
    ),
    (
        "user property whose name CloudEvents does not allow (`My-Name`)",
        {"User Property": packed_of(UserProperty=[("My-Name", "x")])},
        (
            (HTTP, "is left out", ("My-Name", None)),
            (AMQP, "as it is", ("header My-Name", "x")),
        ),
    ),
    (
        "user property that RocketMQ acts on (`DELAY`), or that begins with `PMQ_`",
        {"User Property": packed_of(UserProperty=[("DELAY", "3"), ("PMQ_S", "1")])},
        (
            (ROCKETMQ, "is left out", ("DELAY", None)),
            (ROCKETMQ, "is left out", ("PMQ_S", None)),
            (AMQP, "as it is", ("header DELAY", "3")),
            (PARQUET, "as it is", ("headers PMQ_S", "1")),
        ),
    ),
    (
        "Correlation Data or Response Topic of more than 255 bytes",
        {"MQTT 5": packed_of(CorrelationData=b"c" * 256, ResponseTopic="r" * 256)},
        (
            (AMQP, "header `CORRELATION_ID`, a byte array", ("header CORRELATION_ID", b"c" * 256)),
            (AMQP, "header `REPLY_TO`", ("header REPLY_TO", "r" * 256)),
        ),
    ),
    (
        "more than 256 user properties",
        {
            "User Property": packed_of(
                UserProperty=[("n", str(number)) for number in range(256)] + [("colour", "red")]
            )
        },
        (
            (AMQP, "the first 256", ("header colour", None)),
            (ROCKETMQ, "the first 256", ("colour", None)),
            (HTTP, "the first 256", ("colour", None)),
            (PARQUET, "all", ("headers colour", "red")),
        ),
    ),
    (
        "headers or user properties of more than 32 KiB",
        {"property": {"big": "x" * 32_768, "colour": "red"}},
        (
            (MQTT, "those that fit, each whole", ("User Property big", None)),
            (MQTT, "those that fit, each whole", ("User Property colour", ["red"])),
        ),
    ),
)
"""What cannot be said: a case, who publishes it, and (who reads it, what becomes of it, what is
read)."""
