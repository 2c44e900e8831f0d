"""Messages that came over AMQP, for RocketMQ's consumers: their properties in RocketMQ's words.

An AMQP message's own properties are one property in the log, in base64. Where a pull gives such
messages, their records are written anew in memory, with the same words besides:

    message_id       KEYS             content_type     content-type
    reply_to         REPLY_TO         correlation_id   CORRELATION_ID
    expiration       TTL              a header         a user property of the same name

Rules:

* Nothing is taken away: the property in base64 stays, so what has no counterpart (tables, arrays)
  is there for who can read it. Only the record's checksum goes, which is of the bytes in the log.
* A property that is there already stays as it is, and no header becomes one that RocketMQ's clients
  understand (a message with a header `DELAY` is not to be delayed when it is sent on) or the
  broker's own.
* What would make the properties longer than RocketMQ's 32,767 bytes is left out; a record that is
  not written anew goes as it is.
* A message with more headers than that has a short form of them, and the rest in front of its body,
  where only readers look that ask for whole records. All others get the body alone
  (`broker/messages/long_properties.py`).
* Other messages cost one search for the property's name in all that was read.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final
from urllib.parse import quote

from polymq.broker.port import AMQP_PROPERTY, read_amqp_content, without_long
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
_MARK: Final = AMQP_PROPERTY.encode() + b"\x01"
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
    """Records one after the other, as a pull reads them; those that came over AMQP with
    RocketMQ's properties.

    Args:
        whole: with all of AMQP's properties, where these stand in front of the body.
    """
    if _MARK not in records:
        return records
    known: dict[bytes, bytes] = {}
    return b"".join([_translated_record(record, known) for record in _each(records, whole)])


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
    if _MARK not in raw:
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
    content = read_amqp_content(properties.get(AMQP_PROPERTY, ""))
    found: dict[str, str | None] = {
        "KEYS": content.message_id,
        "content-type": content.content_type,
        "REPLY_TO": content.reply_to,
        "CORRELATION_ID": content.correlation_id,
        "TTL": content.expiration,
    }
    for header, text in content.headers.items():
        if header and header not in NO_HEADERS and not header.startswith(RESERVED):
            found.setdefault(header, text)
    made = b"" if raw.endswith(_END) else _END
    room = PROPERTIES_BYTES_MAX - len(raw)
    for name, value in found.items():
        if value is None or name in properties:
            continue
        pair = b"%b\x01%b\x02" % (_bytes(name), _bytes(value))
        if len(made) + len(pair) <= room:
            made += pair
    return made


def _bytes(text: str) -> bytes:
    """Text without the two characters that separate properties, which are escaped as in URLs."""
    for separator in "\x01\x02":
        text = text.replace(separator, quote(separator))
    return text.encode("utf-8", "surrogateescape")
