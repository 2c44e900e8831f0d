"""PUBLISH packets from records of the log, in plain Python: the fallback without a compiler, and
the oracle in tests.

Rules: the same functions, results and errors as `publishes.pyx`, for every input. No state. Nothing
in a record is believed before it is checked against the bytes that are there.

A packet of MQTT 5 has the properties that came with its message (`PMQ_MQTT5`), but for two of them:
a Topic Alias is of the publisher's connection only [MQTT-3.3.2-7], and of a Message Expiry Interval
is sent what is left [MQTT-3.3.2-6]. Behind these stands what the receiver's connection or
subscription adds to each of them.
"""

from __future__ import annotations

import binascii
import struct
from collections.abc import Iterator
from typing import Final

from polymq.core_log.kernels.batch import (
    RECORD_BODY_AT,
    RECORD_BODY_SIZE_AT,
    RECORD_BORN_MS_AT,
    VALUE_END,
)
from polymq.gateways.mqtt.kernels.codes import (
    BLOCK_HEAD,
    IDENTIFIER_MAX,
    MESSAGE_EXPIRY,
    PAYLOAD_FORMAT,
    RECORD_SIZE_MIN,
    REMAINING_LENGTH_MAX,
    TOPIC_ALIAS,
    USER_PROPERTY,
)

Buffer = bytes | bytearray | memoryview

_SIZES: Final = struct.Struct(f">I{RECORD_BODY_SIZE_AT - 4}xI")  # of a record and of its body
_HEAD: Final = struct.Struct(
    f">I{RECORD_BORN_MS_AT - 4}xq{RECORD_BODY_SIZE_AT - RECORD_BORN_MS_AT - 8}xI"
)
"""The same, with the time when it was published between."""


def encode_publishes(
    memory: Buffer, start: int, end: int, topic: bytes, first_byte: int, first_packet_id: int
) -> bytes:
    """The commit-log records of `memory[start:end]` as PUBLISH packets.

    Args:
        topic: the topic field: two bytes of size and the topic name.
        first_byte: packet type and flags; its QoS bits say whether there are packet ids.
        first_packet_id: counts up from record to record; after 65,535 comes 1. Unused at QoS 0.

    Raises:
        ValueError: the range does not hold whole records, or a packet would be too long.
    """
    if not 0 <= start <= end <= len(memory):
        raise ValueError("the range is not inside the memory")
    if not 0 <= first_byte <= 0xFF:
        raise ValueError("not a first byte")
    numbered = first_byte & 0x06 != 0
    if numbered and not 1 <= first_packet_id <= IDENTIFIER_MAX:
        raise ValueError("not a packet id")
    overhead = len(topic) + (2 if numbered else 0)
    identifier = first_packet_id
    parts: list[Buffer] = []
    at = start
    while at < end:
        if end - at < RECORD_SIZE_MIN:
            raise ValueError("the range does not hold whole records")
        size, body_size = _SIZES.unpack_from(memory, at)
        if size > end - at or size < RECORD_SIZE_MIN or body_size > size - RECORD_SIZE_MIN:
            raise ValueError("the range does not hold whole records")
        length = overhead + body_size
        if length > REMAINING_LENGTH_MAX:
            raise ValueError("the packet would be too long for MQTT")
        head = bytearray((first_byte,))
        while length > 0x7F:
            head.append(length & 0x7F | 0x80)
            length >>= 7
        head.append(length)
        head += topic
        if numbered:
            head += identifier.to_bytes(2, "big")
            identifier = identifier + 1 if identifier < IDENTIFIER_MAX else 1
        parts += (head, memory[at + RECORD_BODY_AT : at + RECORD_BODY_AT + body_size])
        at += size
    return b"".join(parts)


def encode_publishes_5(
    memory: Buffer,
    start: int,
    end: int,
    topic: bytes,
    first_byte: int,
    first_packet_id: int,
    prefix_size: int,
    plain: bytes,
    more: bytes,
    now_ms: int,
    size_max: int = REMAINING_LENGTH_MAX + 5,
    again: bytes | None = None,
) -> tuple[bytes, int]:
    """The same as packets of MQTT 5, and how many are left out.

    Args:
        prefix_size: of the constant part of the records' properties.
        plain: the property block of records that have none of their own.
        more: properties behind those of each record.
        now_ms: by it and the time when it was published, what is left of an expiry interval.
        size_max: packets that are larger are left out; they have had their packet ids
            [MQTT-3.1.2-25].
        again: the topic field of packets behind the first one that is not left out, where that has
            told the client a Topic Alias; not longer than `topic`. None: as that of the first.

    Raises:
        ValueError: as `encode_publishes`, or a property block is damaged.
    """
    if not 0 <= first_byte <= 0xFF:
        raise ValueError("not a first byte")
    if prefix_size < 0:
        raise ValueError("not a size")
    numbered = first_byte & 0x06 != 0
    if numbered and not 1 <= first_packet_id <= IDENTIFIER_MAX:
        raise ValueError("not a packet id")
    if again is not None and len(again) > len(topic):
        raise ValueError("the topic field is longer where it is repeated")
    if not 0 <= start <= end <= len(memory):
        raise ValueError("the range is not inside the memory")
    found = []
    for record in _take_apart(memory, start, end, prefix_size):
        _, _, body_size, text = record
        room = len(more) + (len(plain) if text is None else len(text) // 4 * 3)
        if len(topic) + 2 + len(_length(room)) + room + body_size > REMAINING_LENGTH_MAX:
            raise ValueError("the packet would be too long for MQTT")
        found.append(record)
    identifier = first_packet_id
    dropped = 0
    parts: list[Buffer] = []
    for body, born_ms, body_size, text in found:
        properties = plain
        if text is not None:
            properties = _to_forward(_decode(text), max(0, now_ms - born_ms) // 1000)
        properties += more
        head = topic
        if numbered:
            head += identifier.to_bytes(2, "big")
            identifier = identifier + 1 if identifier < IDENTIFIER_MAX else 1
        head += _length(len(properties)) + properties
        start_of_packet = bytes((first_byte,)) + _length(len(head) + body_size)
        if len(start_of_packet) + len(head) + body_size > size_max:
            dropped += 1
            continue
        parts += (start_of_packet, head, memory[body : body + body_size])
        if again is not None:
            topic = again
    return b"".join(parts), dropped


def _length(size: int) -> bytes:
    """A Variable Byte Integer (5.0 part 1.5.5)."""
    out = bytearray()
    while size > 0x7F:
        out.append(size & 0x7F | 0x80)
        size >>= 7
    out.append(size)
    return bytes(out)


def _take_apart(
    memory: Buffer, at: int, end: int, prefix_size: int
) -> Iterator[tuple[int, int, int, bytes | None]]:
    """Of each record where its body begins, when it was published, the size of its body, and the
    base64 text of its property block."""
    while at < end:
        if end - at < RECORD_SIZE_MIN:
            raise ValueError("the range does not hold whole records")
        size, born_ms, body_size = _HEAD.unpack_from(memory, at)
        if size > end - at or size < RECORD_SIZE_MIN or body_size > size - RECORD_SIZE_MIN:
            raise ValueError("the range does not hold whole records")
        properties = at + RECORD_BODY_AT + body_size
        properties += 1 + memory[properties]
        if properties + 2 > at + size:
            raise ValueError("the range does not hold whole records")
        properties_end = properties + 2 + (memory[properties] << 8 | memory[properties + 1])
        if properties_end > at + size:
            raise ValueError("the range does not hold whole records")
        raw = bytes(memory[properties + 2 + prefix_size : properties_end])
        yield at + RECORD_BODY_AT, born_ms, body_size, _block_text(raw)
        at += size


def _block_text(properties: bytes) -> bytes | None:
    """The value of `PMQ_MQTT5` among the properties of one message, if they have it."""
    at = 0
    while at < len(properties):
        value_end = properties.find(VALUE_END, at)
        if value_end < 0:
            raise ValueError("the range does not hold whole records")
        if properties.startswith(BLOCK_HEAD, at, value_end):
            text = properties[at + len(BLOCK_HEAD) : value_end]
            if len(text) % 4:
                raise ValueError("the range does not hold whole records")
            return text
        at = value_end + 1
    return None


def _decode(text: bytes) -> bytes:
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except binascii.Error as error:
        raise ValueError("a property block is damaged") from error


def _to_forward(block: bytes, waited_seconds: int) -> bytes:
    """What is sent to others of a client's property block."""
    out = bytearray()
    at = 0
    while at < len(block):
        begin = at
        kind = block[at]
        at += 1
        if kind == TOPIC_ALIAS:
            at += 2
        elif kind == PAYLOAD_FORMAT:
            at += 1
        elif kind == MESSAGE_EXPIRY:
            at += 4
        else:
            for _ in range(2 if kind == USER_PROPERTY else 1):
                at += 2 + int.from_bytes(block[at : at + 2].ljust(2, b"\xff"), "big")
        if at > len(block):
            raise ValueError("a property block is damaged")
        if kind == MESSAGE_EXPIRY:
            left = max(0, int.from_bytes(block[begin + 1 : at], "big") - waited_seconds)
            out.append(kind)
            out += left.to_bytes(4, "big")
        elif kind != TOPIC_ALIAS:
            out += block[begin:at]
    return bytes(out)
