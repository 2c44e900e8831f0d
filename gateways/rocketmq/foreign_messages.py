"""Messages that came over AMQP or MQTT 5, for RocketMQ's consumers: their properties in RocketMQ's
words.

Such a message's own properties are one property in the log, in base64. Where a pull gives such
messages, their records are written anew in memory, with the same words besides:

    AMQP             MQTT 5             RocketMQ
    message_id                          KEYS
    content_type     Content Type       content-type
    reply_to         Response Topic     REPLY_TO
    correlation_id   Correlation Data   CORRELATION_ID; CORRELATION_ID_BASE64 where it is no text
    expiration       Message Expiry     TTL
                     Payload Format     mqtt-payload-format
    a header         User Property      a user property of the same name; the first of equal names

Rules:

* Nothing is taken away: the property in base64 stays, so what has no counterpart (tables, arrays,
  a second value of one name) is there for who can read it. Only the record's checksum goes, which
  is of the bytes in the log.
* A property that is there already stays as it is, and no header becomes one that RocketMQ's clients
  understand (a message with a header `DELAY` is not to be delayed when it is sent on) or the
  broker's own.
* What would make the properties longer than RocketMQ's 32,767 bytes is left out; a record that is
  not written anew goes as it is.
* A message with more headers than that has a short form of them, and the rest in front of its body,
  where only readers look that ask for whole records. All others get the body alone
  (`broker/messages/long_properties.py`).
* Other messages cost two searches for the properties' names in all that was read.
"""

from __future__ import annotations

import struct
from base64 import b64encode
from collections.abc import Iterator, Mapping
from typing import Final

from polymq.broker.port import (
    AMQP_PROPERTY,
    CORRELATION_BASE64,
    MQTT5_PROPERTY,
    PAYLOAD_FORMAT_NAME,
    correlation_text,
    read_amqp_content,
    read_mqtt_content,
    reply_address,
    unique_user_properties,
    without_long,
)
from polymq.core_log.kernels.batch import (
    PROPERTY_CRC,
    RECORD_BODY_AT,
    RECORD_BODY_SIZE_AT,
    RECORD_MAGIC_AT,
)
from polymq.gateways.rocketmq.messages import DELAYS, RESERVED, TAGS
from polymq.remoting.messages import PROPERTIES_BYTES_MAX
from polymq.remoting.records import MAGIC_V1, parse_properties

Memory = bytes | memoryview

_SIZE: Final = struct.Struct(">I")
_SHORT: Final = struct.Struct(">H")
_MARKS: Final = (AMQP_PROPERTY.encode() + b"\x01", MQTT5_PROPERTY.encode() + b"\x01")
_END: Final = b"\x02"
_CHECKSUM: Final = PROPERTY_CRC + b"\x01"
NO_HEADERS: Final = DELAYS | {
    TAGS,
    "KEYS",
    "UNIQ_KEY",
    "WAIT",
    "TRAN_MSG",
    "PGROUP",
    "RETRY_TOPIC",
    "REAL_TOPIC",
    "REAL_QID",
    "ORIGIN_MESSAGE_ID",
    "RECONSUME_TIME",
    "MAX_RECONSUME_TIMES",
    "MIN_OFFSET",
    "MAX_OFFSET",
    "POP_CK",
    "INNER_NUM",
    "__SHARDINGKEY",
    "TRANSACTION_CHECK_TIMES",
}
"""Names that RocketMQ's clients and brokers act on."""


def as_rocketmq(records: bytes, *, whole: bool = False) -> bytes:
    """Records one after the other, as a pull reads them; those that came over AMQP or MQTT 5 with
    RocketMQ's properties.

    Args:
        whole: with all of AMQP's properties, where these stand in front of the body.
    """
    if not _is_marked(records):
        return records
    known: dict[bytes, bytes] = {}
    return b"".join([_translated_record(record, known) for record in _each(records, whole)])


def _is_marked(raw: bytes) -> bool:
    return _MARKS[0] in raw or _MARKS[1] in raw


def _each(records: bytes, whole: bool) -> Iterator[Memory]:
    view = memoryview(records)
    at = 0
    while at < len(records):
        record = view[at : at + _SIZE.unpack_from(records, at)[0]]
        at += len(record)
        yield record if whole else without_long(record)


def _translated_record(record: Memory, known: dict[bytes, bytes]) -> Memory:
    """One record.

    Args:
        known: what properties become; messages of one sender often have equal ones.
    """
    body_size = _SIZE.unpack_from(record, RECORD_BODY_SIZE_AT)[0]
    topic_at = RECORD_BODY_AT + body_size
    width = 1 if _SIZE.unpack_from(record, RECORD_MAGIC_AT)[0] == MAGIC_V1 else 2
    topic_size = int.from_bytes(record[topic_at : topic_at + width], "big")
    size_at = topic_at + width + topic_size
    raw = bytes(record[size_at + _SHORT.size :])
    if not _is_marked(raw):
        return record
    raw = raw.partition(_CHECKSUM)[0]  # which stands at the end
    made = known.get(raw)
    if made is None:
        made = known[raw] = raw + _translated(raw)
    grown = size_at + _SHORT.size + len(made)
    return b"".join((_SIZE.pack(grown), record[_SIZE.size : size_at], _SHORT.pack(len(made)), made))


def _translated(raw: bytes) -> bytes:
    """The pairs that come to these properties."""
    properties = parse_properties(raw)
    found: dict[str, str | None] = {}
    if AMQP_PROPERTY in properties:
        found |= _of_amqp(properties[AMQP_PROPERTY])
    if MQTT5_PROPERTY in properties:
        found |= _of_mqtt(properties[MQTT5_PROPERTY])
    made = bytearray(b"" if raw.endswith(_END) else _END)
    room = PROPERTIES_BYTES_MAX - len(raw)
    for name, value in found.items():
        if value is None or name in properties:
            continue
        pair = b"%b\x01%b\x02" % (_bytes(name), _bytes(value))
        if len(made) + len(pair) <= room:
            made += pair
    return bytes(made)


def _of_amqp(packed: str) -> dict[str, str | None]:
    content = read_amqp_content(packed)
    named: dict[str, str | None] = {
        "KEYS": content.message_id,
        "content-type": content.content_type,
        "REPLY_TO": content.reply_to,
        "CORRELATION_ID": content.correlation_id,
        "TTL": content.expiration,
    }
    return _with_user_properties(named, content.headers)


def _of_mqtt(packed: str) -> dict[str, str | None]:
    content = read_mqtt_content(packed)
    correlation = correlation_text(content)
    topic, seconds, form = content.response_topic, content.expiry_seconds, content.payload_format
    named = {
        "content-type": content.content_type,
        "REPLY_TO": None if topic is None else reply_address(topic),
        "CORRELATION_ID": correlation,
        "TTL": None if seconds is None else str(seconds * 1000),
        PAYLOAD_FORMAT_NAME: None if form is None else str(form),
    }
    if content.correlation_data is not None and correlation is None:
        named[CORRELATION_BASE64] = b64encode(content.correlation_data).decode()
    return _with_user_properties(named, unique_user_properties(content))


def _with_user_properties(
    named: dict[str, str | None], user_properties: Mapping[str, str]
) -> dict[str, str | None]:
    """What has a name of its own first: a user property is not taken for it, as one that RocketMQ
    acts on is not taken at all."""
    for name, text in user_properties.items():
        if name and name not in NO_HEADERS and not name.startswith(RESERVED):
            named.setdefault(name, text)
    return named


def _bytes(text: str) -> bytes:
    """Text without the two characters that separate properties, which are escaped as in URLs."""
    raw = text.encode("utf-8", "surrogateescape")
    return raw.replace(b"\x01", b"%01").replace(b"\x02", b"%02")
