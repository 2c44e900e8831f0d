"""CloudEvents on the one side, messages of the log on the other: the only file that knows both.

Way in. `type` is the tag, the topic comes from the path, the data is the body, verbatim. What
belongs to one message goes into its row's extra bytes, which the store keeps as they are:

    KEYS             the id, if it has no space (RocketMQ separates keys by spaces)
    CE_<name>        every attribute and extension; `time` is the string that came
    traceparent      the distributed tracing extension, with tracestate: without the prefix, because
                     clients of other protocols look for the names of W3C Trace Context
    content-type     the media type, also where JSON only implied it
    PMQ_CE_MODE      structured-json | -text | -base64 | -none; absent for binary mode
    PMQ_CE_TYPES     `name=boolean` or `name=integer`, by commas, for extensions that are no strings

So all events of one type (and one sharding key) share one template, and a batch is one append.

Way out. A message of ours gives the very event that came. Events that other programs wrote to
RocketMQ are read in the layouts that exist in the wild:

    CE_ names, content type as CE_datacontenttype, CE_contenttype or CE_contentType
    CE_ names for the attributes, bare names for extensions (the Java SDK)
    bare names only (EventMesh; rocketmq-eventbridge, with USEREXT_KEY as JSON)

An AMQP message with attributes as headers (`ce-id`, the binding that RabbitMQ and Knative use) is
that event. So is a message of MQTT 5 with attributes as user properties (CloudEvents 1.0.2, MQTT
protocol binding), and a message in structured mode by its media type. Any other message is wrapped:
id from the broker's name and the record's position, so that it is the same whenever the message is
read; source `/topics/<topic>`; type the tag; subject the path, as an MQTT subscriber would see it;
time the store time; and AMQP headers and user properties of MQTT 5 and RocketMQ as extensions,
where these may have such names and values. A message that claims to be an event but breaks the
rules is wrapped too: it was accepted by another protocol, and a reader must get something valid.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

import msgspec

from polymq.broker.port import (
    AMQP_PROPERTY,
    CLOUD_EVENT_PREFIXES,
    MQTT5_PROPERTY,
    REST,
    Address,
    Message,
    display_name,
    read_amqp_content,
    read_mqtt_content,
    unique_user_properties,
)
from polymq.core_log.kernels.batch import Batch
from polymq.gateways.http_cloudevents.attributes import (
    DELIVERY_TIME,
    EXPIRY_TIME,
    FORBIDDEN,
    NAME,
    check_required,
    check_value,
    media_type,
    time_ms,
)
from polymq.gateways.http_cloudevents.codec import STRUCTURED, Event, Form, decode_structured
from polymq.gateways.http_cloudevents.errors import BadEvent
from polymq.gateways.http_cloudevents.work import Work

CONSTANT_PROPERTIES: Final[Mapping[str, str]] = {"PMQ_PROTO": "http"}
"""What all messages of this gateway have in common."""
DEFAULT_TYPE: Final = "io.polymq.message"
"""`type` of a wrapped message without a tag."""
EXTENSIONS_BYTES_MAX: Final = 2048
"""Characters of a wrapped message's extensions, names included: they become HTTP headers, of which
sinks take some 8 KiB. What does not fit is left out."""
UNKNOWN_CONTENT: Final = "application/octet-stream"
"""`datacontenttype` of a wrapped message that does not say what it is."""

UTF8_CONTENT: Final = "text/plain; charset=utf-8"
"""The same where it says only that it is UTF-8 text."""

_MODE: Final = "PMQ_CE_MODE"
_TYPES: Final = "PMQ_CE_TYPES"
_STRUCTURED: Final = "structured-"
_PREFIX: Final = "CE_"
TRACE_CONTEXT: Final = ("traceparent", "tracestate")
"""Names of W3C Trace Context, in every protocol; in CloudEvents, of its extension for tracing."""

DEAD_LETTER_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
DEAD_LETTER_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
DEAD_LETTER_REASON: Final = "PMQ_DLQ_REASON"
DEAD_LETTER_SINK: Final = "PMQ_DLQ_SINK"
DEAD_LETTER_STATUS: Final = "PMQ_DLQ_STATUS"
DEAD_LETTER_REPLY: Final = "PMQ_DLQ_REPLY"
DEAD_LETTER_ATTEMPTS: Final = "PMQ_DLQ_ATTEMPTS"
_DEAD_LETTER: Final = (
    DEAD_LETTER_TOPIC,
    DEAD_LETTER_ID,
    DEAD_LETTER_REASON,
    DEAD_LETTER_SINK,
    DEAD_LETTER_STATUS,
    DEAD_LETTER_REPLY,
    DEAD_LETTER_ATTEMPTS,
)
_BOUND: Final = ("PMQ_RETAIN", "PMQ_QOS2", "PMQ_S", "PMQ_WAS")
"""Properties that changed the broker's state once, when their record was written: a copy of the
message must not do it again. The last one says which record it replaced."""
REPLY_BYTES_MAX: Final = 1024
"""Of the sink's answer, kept with the dead letter. Knative keeps as much."""


# --- in: events to rows -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Rows [first, last) of a batch that share one template.

    Attributes:
        sharding: which of `SHARDS` the key falls into, so that keys don't each need a template.
        deliver_ms: when they are to be delivered, in ms since the epoch; 0 for at once.
        expires_ms: when they expire, likewise; 0 for never.
    """

    tag: str | None
    sharding: str
    first: int
    last: int
    deliver_ms: int = 0
    expires_ms: int = 0


_Kind = tuple[str, str, int, int]
"""Tag, sharding, `deliver_ms` and `expires_ms` of a `Run`."""


ROWS_AT_ONCE: Final = 16
"""Rows of small events that are made between two looks at the clock."""


def rows_of(events: Sequence[Event], *, sharded: bool) -> Work[tuple[Batch, list[Run]]]:
    """The rows of a batch of events, and the runs that are published one by one.

    Args:
        sharded: whether the topic has several queues. With one queue the order is that of the
            log, and events of different keys can share a run.
    """
    batch = Batch(len(events))
    parts: list[bytes] = []
    runs: list[Run] = []
    at = 0
    current: _Kind | None = None
    first = 0
    for index, event in enumerate(events):
        kind = (
            event.attributes["type"],
            shard_of(event) if sharded else "",
            _time_of(event, DELIVERY_TIME),
            _time_of(event, EXPIRY_TIME),
        )
        if kind != current:
            if current is not None:
                runs.append(_run(current, first, index))
            current, first = kind, index
        extra = extra_of(event)
        body = event.data or b""
        parts += (extra, body)
        batch.add((0, 0), (at + len(extra), len(body)), (at, len(extra)))
        at += len(extra) + len(body)
        if index % ROWS_AT_ONCE == 0:
            yield
    if current is not None:
        runs.append(_run(current, first, len(events)))
    batch.buffer = bytearray().join(parts)
    yield
    return batch, runs


def _run(kind: _Kind, first: int, last: int) -> Run:
    tag, sharding, deliver_ms, expires_ms = kind
    return Run(
        tag=tag,
        sharding=sharding,
        deliver_ms=deliver_ms,
        expires_ms=expires_ms,
        first=first,
        last=last,
    )


def _time_of(event: Event, name: str) -> int:
    """A time that an event may name, in ms since the epoch; 0 if it does not."""
    value = event.attributes.get(name)
    return 0 if value is None else max(1, time_ms(value))


TTL_STEPS: Final = ((60_000, 100), (3_600_000, 1_000), (86_400_000, 60_000))
"""Up to so long a life is kept to so many ms; a longer one to the hour. Each life that is in use is
a kind of message to the engine, so there have to be few of them: some 6,000 for a day. It is
rounded down: nothing is delivered after its time, and it goes by about 4 % early at most."""


def ttl_ms(expires_ms: int, visible_ms: int) -> int:
    """How long an event lives that becomes visible at one time and expires at another."""
    left = max(0, expires_ms - visible_ms)
    for most, step in TTL_STEPS:
        if left <= most:
            return left - left % step
    return left - left % 3_600_000


def row_of_raw(body: bytes, content_type: str | None) -> Batch:
    """The row of a body that is no CloudEvent."""
    extra = b"" if content_type is None else _pairs({"content-type": content_type})
    return row_of(extra, body)


def row_of(extra: bytes, body: bytes) -> Batch:
    """A batch of one row."""
    batch = Batch(1)
    batch.buffer = bytearray().join((extra, body))
    batch.add((0, 0), (len(extra), len(body)), (0, len(extra)))
    return batch


def extra_of(event: Event) -> bytes:
    """The per-message properties of an event, encoded."""
    attributes = event.attributes
    properties: dict[str, str] = {}
    identity = attributes["id"]
    if " " not in identity:
        properties["KEYS"] = identity
    for name, value in attributes.items():
        properties[name if name in TRACE_CONTEXT else _PREFIX + name] = value
    content_type = event.content_type
    if content_type is not None:
        properties["content-type"] = content_type
    if event.form is not Form.BINARY:
        properties[_MODE] = _STRUCTURED + event.form.value
    if event.types:
        properties[_TYPES] = ",".join(f"{name}={kind}" for name, kind in event.types.items())
    return _pairs(properties)


SHARDS: Final = 256
"""Far more than a topic has queues, far fewer than there are keys."""


def shard_of(event: Event) -> str:
    """What decides about the queue: `partitionkey`, else `subject`, else nothing."""
    attributes = event.attributes
    key = attributes.get("partitionkey") or attributes.get("subject")
    return "" if key is None else str(zlib.crc32(key.encode("utf-8")) % SHARDS)


def _pairs(properties: Mapping[str, str]) -> bytes:
    text = "".join([f"{name}\x01{value}\x02" for name, value in properties.items()])
    return text.encode("utf-8", "surrogateescape")


def address_of(topic: str, filters: Sequence[Mapping[str, Any]]) -> Address:
    """The narrowest pattern of levels that every event passing a subscription's filters matches.

    The tag of an event is its type: an exact type becomes exactly its levels, a prefix the levels
    that it surely has. Only filters at the top count, since all of them must hold. The type that
    messages without a tag are given narrows nothing.
    """
    narrowest: Address = (topic, REST)
    for item in filters:
        exact = item.get("exact", {}).get("type", DEFAULT_TYPE)
        if exact != DEFAULT_TYPE:
            return (topic, *exact.split("."))
        prefix = item.get("prefix", {}).get("type", "")
        if not DEFAULT_TYPE.startswith(prefix):
            # The last word may go on; what stands before it is complete.
            narrowest = max(narrowest, (topic, *prefix.split(".")[:-1], REST), key=len)
    return narrowest


# --- out: messages to events ------------------------------------------------------------------


def event_of(message: Message, *, broker_name: str) -> Event:
    """The CloudEvent that a message is, or that it is wrapped in. Never fails."""
    properties = message.properties
    try:
        if "CE_specversion" in properties:
            if properties.get("PMQ_PROTO") == "http":
                return _own_event(message)
            return _prefixed_event(message)
        if "specversion" in properties and "source" in properties:
            return _bare_event(message)
        if AMQP_PROPERTY in properties:
            found = _amqp_attributes(properties[AMQP_PROPERTY])
            if "specversion" in found:
                return _foreign_event(found, message.body)
        if MQTT5_PROPERTY in properties:
            found = _mqtt_attributes(properties[MQTT5_PROPERTY])
            if "specversion" in found:
                return _foreign_event(found, message.body)
        declared = content_type_of(properties)
        if declared is not None and media_type(declared) == STRUCTURED:
            return decode_structured(message.body)
    except (ValueError, KeyError):
        pass  # It is no event after all: wrapped below, as the head of this file says.
    return _wrapped(message, broker_name)


def _own_event(message: Message) -> Event:
    properties = message.properties
    attributes: dict[str, str] = {}
    for name, value in properties.items():
        if name.startswith(_PREFIX):
            attributes[name[len(_PREFIX) :]] = value
        elif name in TRACE_CONTEXT:
            attributes[name] = value
    check_required(attributes)
    mode = properties.get(_MODE, "")
    form = Form(mode.removeprefix(_STRUCTURED)) if mode.startswith(_STRUCTURED) else Form.BINARY
    data: bytes | None = message.body
    if form is Form.NONE or (form is Form.BINARY and not message.body):
        data = None
    types = {}
    if _TYPES in properties:
        types = dict(pair.split("=") for pair in properties[_TYPES].split(","))
        for name, kind in types.items():
            if _SPELLED[kind].fullmatch(attributes[name]) is None:
                raise ValueError(f"{name} is no {kind}")
    return Event(attributes=attributes, data=data, form=form, types=types)


_SPELLED: Final = {
    "boolean": re.compile("true|false"),
    "integer": re.compile("0|-?[1-9][0-9]{0,9}"),
}
"""How JSON spells values that are no strings; they stand in a document as they are."""


_CONTENT_TYPE_NAMES: Final = ("CE_datacontenttype", "CE_contenttype", "CE_contentType")


def _prefixed_event(message: Message) -> Event:
    """An event that another RocketMQ client wrote with `CE_` names."""
    properties = message.properties
    found = {
        name[len(_PREFIX) :]: value
        for name, value in properties.items()
        if name.startswith(_PREFIX) and name not in _CONTENT_TYPE_NAMES
    }
    content_type = next(
        (properties[name] for name in _CONTENT_TYPE_NAMES if properties.get(name)), None
    )
    for name, value in properties.items():
        if name not in found and not name.startswith(_PREFIX):
            found[name] = value  # The Java SDK writes extensions without the prefix.
    body: bytes | None = message.body
    if content_type is not None:
        found["datacontenttype"] = content_type
    elif body == b"\x00":
        body = None  # The Java SDK's sign for no data: its client refuses empty bodies.
    return _foreign_event(found, body)


def _bare_event(message: Message) -> Event:
    """An event whose attributes are bare property names: EventMesh and rocketmq-eventbridge."""
    found = dict(message.properties)
    packed = found.pop("USEREXT_KEY", None)
    if packed is not None:
        try:
            extensions = msgspec.json.decode(packed, type=dict[str, str | int | bool])
        except (msgspec.DecodeError, RecursionError):
            extensions = {}
        for name, value in extensions.items():
            found.setdefault(name, str(value).lower() if isinstance(value, bool) else str(value))
    return _foreign_event(found, message.body)


def _amqp_attributes(packed: str) -> dict[str, str]:
    """The attributes that an AMQP message has as headers, if any."""
    content = read_amqp_content(packed)
    content_type, headers = content.content_type, content.headers
    for prefix in CLOUD_EVENT_PREFIXES:
        if prefix + "specversion" in headers:
            found = {
                name[len(prefix) :]: value
                for name, value in headers.items()
                if name.startswith(prefix)
            }
            found.pop("datacontenttype", None)
            for name in TRACE_CONTEXT:  # libraries that trace clients of AMQP know no prefix
                if name in headers:
                    found.setdefault(name, headers[name])
            return found if content_type is None else found | {"datacontenttype": content_type}
    return {}


def _mqtt_attributes(packed: str) -> dict[str, str]:
    """The attributes that a message of MQTT 5 has as user properties. The Content Type has the last
    word on `datacontenttype`; the binding's own example has both. Raises ValueError: an attribute
    is there twice, and two readers would see two events."""
    content = read_mqtt_content(packed)
    found = unique_user_properties(content)
    if "specversion" in found:
        names = [name for name, _ in content.user_properties if NAME.fullmatch(name)]
        if len(names) != len(set(names)):
            raise ValueError("an attribute is there twice")
    if content.content_type:
        found["datacontenttype"] = content.content_type
    return found


def _foreign_event(found: Mapping[str, str], body: bytes | None) -> Event:
    """An event of attributes that nobody has checked yet. Bad extensions are left out."""
    attributes: dict[str, str] = {}
    for name, value in found.items():
        if NAME.fullmatch(name) is None or name == "data":
            continue
        try:
            check_value(name, value)
        except BadEvent:
            if name in ("specversion", "id", "source", "type"):
                raise
            continue
        attributes[name] = value
    check_required(attributes)
    return Event(attributes=attributes, data=body or None)


_SWAPPED: Final = str.maketrans("./", "/.")


def _wrapped(message: Message, broker_name: str) -> Event:
    topic = quote(display_name(message.topic), safe="", errors="surrogateescape")
    path = message.topic
    if message.tag is not None:
        path += "/" + message.tag.translate(_SWAPPED)
    stored = datetime.fromtimestamp(message.store_ms // 1000, tz=UTC)
    attributes = {
        "specversion": "1.0",
        "id": f"{broker_name}-{message.position:016x}",
        "source": f"/topics/{topic}",
        "type": _clean(message.tag or "") or DEFAULT_TYPE,
        "subject": _clean(path) or "/",
        "time": f"{stored:%Y-%m-%dT%H:%M:%S}.{message.store_ms % 1000:03d}Z",
    }
    if message.body:
        attributes["datacontenttype"] = content_type_of(message.properties) or _content_of(message)
    _add_extensions(attributes, message.properties)
    return Event(attributes=attributes, data=message.body or None)


def _content_of(message: Message) -> str:
    """`datacontenttype` of a body whose sender named no media type. MQTT 5 can say that it is text
    (Payload Format Indicator)."""
    packed = message.properties.get(MQTT5_PROPERTY)
    is_text = packed is not None and read_mqtt_content(packed).payload_format == 1
    return UTF8_CONTENT if is_text else UNKNOWN_CONTENT


def _add_extensions(attributes: dict[str, str], properties: Mapping[str, str]) -> None:
    """Headers and user properties whose names extensions may have, and which are no attributes."""
    if AMQP_PROPERTY in properties:
        properties = {**read_amqp_content(properties[AMQP_PROPERTY]).headers, **properties}
    if MQTT5_PROPERTY in properties:
        content = read_mqtt_content(properties[MQTT5_PROPERTY])
        properties = {**unique_user_properties(content), **properties}
    room = EXTENSIONS_BYTES_MAX
    for name, value in properties.items():
        if name in attributes or name in _NO_EXTENSIONS or NAME.fullmatch(name) is None:
            continue
        size = len(name) + len(value)
        if size > room:
            continue
        try:
            check_value(name, value)
        except BadEvent:
            continue
        attributes[name] = value
        room -= size


_NO_EXTENSIONS: Final = frozenset({"data", "datacontenttype", "dataschema", DELIVERY_TIME})
"""What would say something of the event that nobody meant."""


def _clean(text: str) -> str:
    """Text of another protocol without the characters that CloudEvents strings exclude."""
    return FORBIDDEN.sub(lambda found: quote(found.group(), errors="surrogateescape"), text)


def content_type_of(properties: Mapping[str, str]) -> str | None:
    """The media type of any message, if it says a valid one."""
    declared = properties.get("content-type")
    if declared is None and AMQP_PROPERTY in properties:
        declared = read_amqp_content(properties[AMQP_PROPERTY]).content_type
    if declared is None and MQTT5_PROPERTY in properties:
        declared = read_mqtt_content(properties[MQTT5_PROPERTY]).content_type
    if declared:
        try:
            check_value("datacontenttype", declared)
        except BadEvent:
            return None
    return declared or None


# --- dead letters -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """Why a message was given up.

    Attributes:
        reason: one sentence.
        sink: where it could not be delivered, without secrets; empty for pull subscriptions.
        status: the last HTTP status; 0 where there was none.
        reply: the beginning of the sink's last answer.
        attempts: how often it was tried.
    """

    reason: str
    sink: str = ""
    status: int = 0
    reply: bytes = b""
    attempts: int = 0


def dead_letter_constant(constant: Mapping[str, str]) -> dict[str, str]:
    """The constant properties of a dead letter: those that the message had."""
    return {name: value for name, value in constant.items() if name not in _BOUND}


def dead_letter_extra(
    message: Message, constant: Mapping[str, str], letter: DeadLetter, *, broker_name: str
) -> bytes:
    """The per-message properties of a dead letter: those that it had, and why it is one.

    Args:
        constant: the properties that the template carries already.
    """
    properties = {
        name: value
        for name, value in message.properties.items()
        if name not in constant and name not in _DEAD_LETTER and name not in _BOUND
    }
    # The gateways of these protocols look for their property at the very start.
    for name in (AMQP_PROPERTY, MQTT5_PROPERTY):
        if name in properties:
            properties = {name: properties[name]} | properties
    properties[DEAD_LETTER_TOPIC] = message.properties.get(
        DEAD_LETTER_TOPIC, display_name(message.topic)
    )
    properties[DEAD_LETTER_ID] = message.properties.get(
        DEAD_LETTER_ID, f"{broker_name}-{message.position:016x}"
    )
    properties[DEAD_LETTER_REASON] = _clean(letter.reason)
    properties[DEAD_LETTER_ATTEMPTS] = str(letter.attempts)
    if letter.sink:
        properties[DEAD_LETTER_SINK] = _clean(letter.sink)
    if letter.status:
        properties[DEAD_LETTER_STATUS] = str(letter.status)
    if letter.reply:
        reply = letter.reply[:REPLY_BYTES_MAX].decode("utf-8", "replace")
        properties[DEAD_LETTER_REPLY] = _CONTROL.sub(" ", reply)
    return _pairs(properties)


_CONTROL: Final = re.compile("[\x00-\x1f\x7f]")


def dead_letter_of(properties: Mapping[str, str]) -> dict[str, str]:
    """What a reader is told about a dead letter; empty for any other message."""
    if DEAD_LETTER_REASON not in properties:
        return {}
    names = {
        "reason": DEAD_LETTER_REASON,
        "topic": DEAD_LETTER_TOPIC,
        "messageId": DEAD_LETTER_ID,
        "sink": DEAD_LETTER_SINK,
        "status": DEAD_LETTER_STATUS,
        "reply": DEAD_LETTER_REPLY,
        "attempts": DEAD_LETTER_ATTEMPTS,
    }
    return {key: properties[name] for key, name in names.items() if name in properties}
