"""AMQP properties that are too long for the properties of a record.

A record keeps the size of its properties in two bytes, of which RocketMQ's readers take 32,767 at
most. AMQP's content header may have 128 KiB. The properties of such a message stand in front of its
body, as a part of what the record calls its body:

    size of the properties (4 bytes) | AMQP properties as they came | body of the message

The constant property `PMQ_LONG` with the value 1 says so. `PMQ_AMQP` has a short form of the
properties, without the headers that did not fit: for the key index, and for readers of other
protocols.

Rules:

* The store, replicas, and whatever moves a message (dead letters, delays, transactions) see an
  ordinary record with an ordinary body.
* Readers of AMQP get the record as it is in the log. For all others it is written anew, in memory,
  without what stands in front of the body. `PMQ_LONG` is 0 then, which says that headers were left
  out.
* `PMQ_LONG` counts in the constant part only, which no client can write.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

from polymq.broker.messages.constant_part import Memory, constant_size
from polymq.core_log.kernels.batch import (
    RECORD_BODY_AT,
    RECORD_BODY_CRC_AT,
    RECORD_BODY_SIZE_AT,
    RECORD_SIZE_AT,
)
from polymq.core_log.large_record import CRC_MASK, combined_crc

LONG_PROPERTY: Final = "PMQ_LONG"
IN_FRONT: Final = "1"
"""The value of `LONG_PROPERTY` where the properties stand in front of the body."""
LEFT_OUT: Final = "0"
"""The value where they were taken away."""
IN_FRONT_SIZE: Final = 4
"""Bytes of the size before the properties."""

_MARK: Final = f"\x02{LONG_PROPERTY}\x01{IN_FRONT}\x02".encode()
_MARK_LEFT_OUT: Final = f"\x02{LONG_PROPERTY}\x01{LEFT_OUT}\x02".encode()
_U32: Final = struct.Struct(">I")

LONG_CONSTANT: Final = {LONG_PROPERTY: IN_FRONT}
"""What the constant properties of such messages have beside the others."""


def in_front(properties: bytes) -> bytes:
    """AMQP properties in the form in which a body follows them."""
    return _U32.pack(len(properties)) + properties


def size_in_front(memory: Memory, body_at: int) -> int:
    """The bytes in front of the message's body, in a record body that starts at `body_at`."""
    return IN_FRONT_SIZE + int(_U32.unpack_from(memory, body_at)[0])


def split_body(body: bytes) -> tuple[bytes, bytes]:
    """The AMQP properties and the message's body that a record's body consists of."""
    end = size_in_front(body, 0)
    return body[IN_FRONT_SIZE:end], body[end:]


def is_long(constant: bytes) -> bool:
    """Whether records with these constant properties have AMQP properties in front of their
    bodies."""
    return _MARK in constant


def without_long(record: bytes | memoryview) -> bytes | memoryview:
    """A record as readers get it that know nothing of all this: a short one, or the same if it is
    none of these."""
    topic_at = RECORD_BODY_AT + _U32.unpack_from(record, RECORD_BODY_SIZE_AT)[0]
    first = topic_at + 1 + record[topic_at] + 2
    size = constant_size(record, first, len(record))
    if not is_long(bytes(record[first : first + size])):
        return record
    return short_record(record, 0, len(record), first, first + size)


def short_record(
    memory: Memory, start: int, end: int, constant_at: int, constant_end: int
) -> bytes:
    """The long record in [start, end) without what stands in front of its body.

    Its body has a checksum of its own, which follows from that of both parts, so that a body of a
    hundred megabytes is not walked over.

    Args:
        constant_at, constant_end: where its constant properties stand.
    """
    body_at = start + RECORD_BODY_AT
    front = size_in_front(memory, body_at)
    body_size = _U32.unpack_from(memory, start + RECORD_BODY_SIZE_AT)[0] - front
    crc = _U32.unpack_from(memory, start + RECORD_BODY_CRC_AT)[0]
    crc = combined_crc(zlib.crc32(memory[body_at : body_at + front]), crc, body_size) & CRC_MASK
    head = bytearray(memory[start:body_at])
    _U32.pack_into(head, RECORD_SIZE_AT, end - start - front)
    _U32.pack_into(head, RECORD_BODY_CRC_AT, crc)
    _U32.pack_into(head, RECORD_BODY_SIZE_AT, body_size)
    constant = bytes(memory[constant_at:constant_end]).replace(_MARK, _MARK_LEFT_OUT, 1)
    with memoryview(memory) as view:
        return b"".join(
            (head, view[body_at + front : constant_at], constant, view[constant_end:end])
        )
