"""The frame kernels in plain Python: the fallback without a compiler, and the oracle in tests.

Rules: the same functions, results and errors as `frames.pyx`, for every input. No state. Every
length from the network is checked against the bytes that are there before it is used.

`parse` takes what MQTT sends in bulk (PUBLISH and the four acknowledgements) and leaves every
other packet to the codec in `packets.py`. It checks what concerns frames; whether a topic is
UTF-8 without wildcards is asked once per distinct topic, in `mapping.py`.
"""

from __future__ import annotations

import re
from array import array
from typing import Final

from polymq.core_log.kernels.batch import (
    BODY_SIZE,
    BODY_START,
    COLUMNS,
    EXTRA_SIZE,
    EXTRA_START,
    FLAGS,
    Batch,
)
from polymq.gateways.mqtt.kernels.codes import (
    ACK_COLUMNS,
    ACK_REASON_SHIFT,
    ALIAS_SHIFT,
    CONTENT_TYPE,
    CORRELATION_DATA,
    EXPIRY_SHIFT,
    FLAG_EXPIRES,
    FLAG_PROPERTIES,
    FLAG_QOS,
    FLAG_QOS_SHIFT,
    FLAGS_STORED,
    IDENTIFIER_MAX,
    MALFORMED_ALIAS,
    MALFORMED_DUPLICATE,
    MALFORMED_FLAGS,
    MALFORMED_FORMAT,
    MALFORMED_IDENTIFIER,
    MALFORMED_LARGE,
    MALFORMED_LENGTH,
    MALFORMED_LONG_FORM,
    MALFORMED_PROPERTY,
    MALFORMED_QOS,
    MALFORMED_REASON,
    MALFORMED_RESPONSE,
    MALFORMED_SIZE,
    MALFORMED_SUBSCRIPTION,
    MALFORMED_TEXT,
    MALFORMED_TWICE,
    MESSAGE_EXPIRY,
    PACKET_READ,
    PAYLOAD_FORMAT,
    PAYLOAD_FORMAT_INVALID,
    REASON_STRING,
    REFUSED_BASE,
    REFUSED_SHIFT,
    RESPONSE_TOPIC,
    STOP_FULL,
    STOP_ORDER,
    STOP_OTHER,
    STOP_PARTIAL,
    SUBSCRIPTION_IDENTIFIER,
    TOPIC_ALIAS,
    TYPE_PUBCOMP,
    TYPE_PUBLISH,
    TYPE_PUBREC,
    TYPE_PUBREC_ERROR,
    TYPE_PUBREL,
    USER_PROPERTY,
)

Buffer = bytes | bytearray | memoryview

LONG_FORM: Final = -2
"""A number in more bytes than it needs."""

_DUPLICATE: Final = 0x08
_PUBREL_FLAGS: Final = 0x02
_ACK_BYTES: Final = (0, 0x40, 0x50, 0x50)  # by QoS: PUBACK, PUBREC; rows never have QoS 3
_NUMBERS: Final = {PAYLOAD_FORMAT: 1, MESSAGE_EXPIRY: 4, TOPIC_ALIAS: 2}
"""Bytes of the properties of a PUBLISH that are numbers."""
_FIELDS: Final = {CONTENT_TYPE: 1, RESPONSE_TOPIC: 1, CORRELATION_DATA: 1, USER_PROPERTY: 2}
"""Fields, each with its size in front, of the others."""
_REASONS: Final = frozenset({0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99})
"""Reason codes of PUBACK and PUBREC (5.0 parts 3.4.2.1 and 3.5.2.1)."""
_RELEASE_REASONS: Final = frozenset({0x00, 0x92})
"""Of PUBREL and PUBCOMP."""


def parse(
    buffer: Buffer,
    start: int,
    end: int,
    batch: Batch,
    runs: array[int],
    acks: array[int],
    packet_bytes_max: int,
    five: bool = False,
) -> tuple[int, int, int, int]:
    """Walk the packets of `buffer[start:end]` into rows and acknowledgement runs.

    Args:
        batch: rows are written from 0 on; `batch.count` is set. FLAGS holds QoS and RETAIN, and in
            MQTT 5 what `codes.py` lists; there the EXTRA columns have the properties.
        runs: gets the first row of each run (rows of equal topic bytes and equal flags).
        acks: gets (type and reason code, first packet id, count) for each stretch of consecutive
            packet ids that have both in common; after 65,535 comes 1.
        packet_bytes_max: longest packet, its header included.
        five: whether these are packets of MQTT 5.

    Returns:
        Why it stopped, the index up to which bytes are used, how many runs and how many
        acknowledgement runs there are. What is malformed is found as soon as its bytes are here;
        what stands before it is in the rows.
    """
    if not 0 <= start <= end <= len(buffer):
        raise ValueError("the range is not inside the buffer")
    rows = batch.rows
    row_max = len(rows) // COLUMNS
    run_max = len(runs)
    row = run_count = ack_count = 0
    last_topic: Buffer = b""
    last_flags = -1
    values: list[int] = []  # the rows, written in one piece: storing them one by one costs double
    exactly_once = released = False
    at = start
    while True:
        stop, topic_start, topic_end, identifier, properties, content, after, flags = _read_packet(
            buffer, at, end, packet_bytes_max, five
        )
        if stop != PACKET_READ:
            break
        first = buffer[at]
        kind = first >> 4
        if kind != TYPE_PUBLISH:
            if kind == TYPE_PUBREL:
                if exactly_once:
                    stop = STOP_ORDER
                    break
                released = True
            elif kind == TYPE_PUBREC and flags >= 0x80:
                kind = TYPE_PUBREC_ERROR
            kind |= flags << ACK_REASON_SHIFT
            ack_count = _add_ack(acks, ack_count, kind, identifier)
            if ack_count < 0:
                stop = STOP_FULL
                ack_count = len(acks) // ACK_COLUMNS
                break
            at = after
            continue
        quality = (flags & FLAG_QOS) >> FLAG_QOS_SHIFT
        if quality == 2 and released:
            stop = STOP_ORDER
            break
        topic = buffer[topic_start:topic_end]
        new_run = flags != last_flags or topic != last_topic
        if row == row_max or (new_run and run_count == run_max):
            stop = STOP_FULL
            break
        if new_run:
            runs[run_count] = row
            run_count += 1
            last_topic = topic
            last_flags = flags
        if quality == 2:
            exactly_once = True
        topic_size = topic_end - topic_start
        extra, extra_size = (0, 0)
        if flags & FLAG_PROPERTIES:
            extra, extra_size = properties, content - properties
        values += (topic_start, topic_size, content, after - content)
        values += (extra, extra_size, identifier, flags)
        row += 1
        at = after
    rows[: len(values)] = array("q", values)
    batch.count = row
    return stop, at, run_count, ack_count


class PacketReader:
    """One PUBLISH or acknowledgement, taken apart by the rules of `parse`.

    Attributes:
        first: the first byte.
        flags: of a PUBLISH, FLAGS of its row; of an acknowledgement, its reason code.
        packet_id: 0 at QoS 0.
        topic_start, topic_end: of a PUBLISH's topic name.
        properties: where those of a PUBLISH begin, which end at `body`.
        body, end: where what the application sent begins, and where the packet ends.
    """

    __slots__ = (
        "body",
        "end",
        "first",
        "flags",
        "packet_id",
        "properties",
        "topic_end",
        "topic_start",
    )

    def __init__(self) -> None:
        self.first = self.packet_id = self.flags = 0
        self.topic_start = self.topic_end = self.properties = self.body = self.end = 0

    def read(
        self, buffer: Buffer, start: int, end: int, packet_bytes_max: int, five: bool = False
    ) -> int:
        """Read the packet at the start of `buffer[start:end]`.

        Returns:
            `PACKET_READ`, or why it cannot be read: then the attributes say nothing.
        """
        if not 0 <= start <= end <= len(buffer):
            raise ValueError("the range is not inside the buffer")
        found = _read_packet(buffer, start, end, packet_bytes_max, five)
        stop, self.topic_start, self.topic_end, self.packet_id, self.properties = found[:5]
        self.body, self.end, self.flags = found[5:]
        if stop == PACKET_READ:
            self.first = buffer[start]
        return stop


_Read = tuple[int, int, int, int, int, int, int, int]
"""`PACKET_READ` or a stop, the start and end of the topic, the packet id, where the properties and
the body begin, where the packet ends, and the flags."""


def _stopped(stop: int) -> _Read:
    return stop, 0, 0, 0, 0, 0, 0, 0


def _read_packet(buffer: Buffer, at: int, end: int, packet_bytes_max: int, five: bool) -> _Read:
    """Read the PUBLISH or acknowledgement at `at`."""
    if at >= end:
        return _stopped(STOP_PARTIAL)
    first = buffer[at]
    kind = first >> 4
    if kind < TYPE_PUBLISH or kind > TYPE_PUBCOMP:
        return _stopped(STOP_OTHER)
    if kind == TYPE_PUBLISH:
        if first & FLAG_QOS == FLAG_QOS:
            return _stopped(MALFORMED_QOS)
        if first & FLAG_QOS == 0 and first & _DUPLICATE:
            return _stopped(MALFORMED_DUPLICATE)
    elif first & 0x0F != (_PUBREL_FLAGS if kind == TYPE_PUBREL else 0):
        return _stopped(MALFORMED_FLAGS)
    # Remaining Length: seven bits a byte, at most four bytes.
    length = shift = 0
    body = at + 1
    while True:
        if shift == 28:
            return _stopped(MALFORMED_LENGTH)
        if body >= end:
            return _stopped(STOP_PARTIAL)
        byte = buffer[body]
        body += 1
        length |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
    if five and byte == 0 and shift > 7:
        return _stopped(MALFORMED_LONG_FORM)
    if body - at + length > packet_bytes_max:
        return _stopped(MALFORMED_LARGE)
    # An acknowledgement is a packet id; a PUBLISH has room for the size of its topic at least.
    if length < 2 or (length > 2 and kind != TYPE_PUBLISH and not five):
        return _stopped(MALFORMED_SIZE)
    after = body + length
    if after > end:
        return _stopped(STOP_PARTIAL)
    if kind != TYPE_PUBLISH:
        identifier = buffer[body] << 8 | buffer[body + 1]
        if identifier == 0:
            return _stopped(MALFORMED_IDENTIFIER)
        reason = 0
        if length > 2:
            reason = buffer[body + 2]
            stop = _read_ack_reason(bytes(buffer[body + 2 : after]), kind)
            if stop != PACKET_READ:
                return _stopped(stop)
        return PACKET_READ, 0, 0, identifier, after, after, after, reason
    # Topic size, topic, packet id if there is an acknowledgement, properties in MQTT 5, body.
    topic = body + 2
    content = topic_end = topic + (buffer[body] << 8 | buffer[body + 1])
    identifier = 0
    if first & FLAG_QOS:
        content += 2
        if content > after:
            return _stopped(MALFORMED_SIZE)
        identifier = buffer[content - 2] << 8 | buffer[content - 1]
        if identifier == 0:
            return _stopped(MALFORMED_IDENTIFIER)
    elif content > after:
        return _stopped(MALFORMED_SIZE)
    flags = first & FLAGS_STORED
    properties = content
    if five:
        size, properties = _read_length(buffer, content, after)
        if size == LONG_FORM:
            return _stopped(MALFORMED_LONG_FORM)
        if size < 0 or size > after - properties:
            return _stopped(MALFORMED_SIZE)
        content = properties + size
        if size:
            stop, more = _read_publish_properties(bytes(buffer[properties:content]))
            if stop != PACKET_READ:
                return _stopped(stop)
            flags |= more
    return PACKET_READ, topic, topic_end, identifier, properties, content, after, flags


def _read_length(buffer: Buffer, at: int, end: int) -> tuple[int, int]:
    """The Variable Byte Integer at `at`, and what is behind it; -1: four bytes do not end it, or
    the range does; `LONG_FORM`: it takes more bytes than it needs."""
    value = 0
    for shift in range(0, 28, 7):
        if at >= end:
            break
        byte = buffer[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (LONG_FORM if byte == 0 and shift else value), at
    return -1, at


def _is_text(raw: bytes) -> bool:
    """Whether this is well-formed UTF-8 without U+0000."""
    try:
        return "\0" not in raw.decode()
    except UnicodeDecodeError:
        return False


def _read_publish_properties(block: bytes) -> tuple[int, int]:
    """Look at the properties of a PUBLISH: `PACKET_READ` and their FLAGS, or what is wrong."""
    flags = at = 0
    seen = set()
    while at < len(block):
        kind = block[at]
        at += 1
        if kind == SUBSCRIPTION_IDENTIFIER:
            return MALFORMED_SUBSCRIPTION, 0
        if kind not in _NUMBERS and kind not in _FIELDS:
            return MALFORMED_PROPERTY, 0
        if kind in seen and kind != USER_PROPERTY:
            return MALFORMED_TWICE, 0
        seen.add(kind)
        if kind != TOPIC_ALIAS:
            flags |= FLAG_PROPERTIES
        size = _NUMBERS.get(kind, 0)
        if size:
            if len(block) - at < size:
                return MALFORMED_SIZE, 0
            value = int.from_bytes(block[at : at + size], "big")
            at += size
            if kind == MESSAGE_EXPIRY:
                flags |= FLAG_EXPIRES | value << EXPIRY_SHIFT
            elif kind == TOPIC_ALIAS:
                if value == 0:
                    return MALFORMED_ALIAS, 0
                flags |= value << ALIAS_SHIFT
            elif value > 1:
                return MALFORMED_FORMAT, 0
            continue
        for _ in range(_FIELDS[kind]):
            begin = at
            stop, at = _read_field(block, at, is_text=kind != CORRELATION_DATA)
            if stop != PACKET_READ:
                return stop, 0
            if kind == RESPONSE_TOPIC and re.search(b"[+#]|^$", block[begin + 2 : at]):
                return MALFORMED_RESPONSE, 0
    return PACKET_READ, flags


def _read_field(block: bytes, at: int, *, is_text: bool) -> tuple[int, int]:
    """Look at the field at `at`: `PACKET_READ` and what is behind it, or what is wrong with it."""
    if len(block) - at < 2:
        return MALFORMED_SIZE, at
    end = at + 2 + int.from_bytes(block[at : at + 2], "big")
    if end > len(block):
        return MALFORMED_SIZE, at
    if is_text and not _is_text(block[at + 2 : end]):
        return MALFORMED_TEXT, at
    return PACKET_READ, end


def _read_ack_reason(content: bytes, kind: int) -> int:
    """Look at the reason code and the properties of an acknowledgement: `PACKET_READ`, or what is
    wrong with them."""
    if content[0] not in (_RELEASE_REASONS if kind >= TYPE_PUBREL else _REASONS):
        return MALFORMED_REASON
    if len(content) == 1:
        return PACKET_READ
    size, at = _read_length(content, 1, len(content))
    if size == LONG_FORM:
        return MALFORMED_LONG_FORM
    if size < 0 or at + size != len(content):
        return MALFORMED_SIZE
    explained = False
    while at < len(content):
        if content[at] == REASON_STRING:
            if explained:
                return MALFORMED_TWICE
            explained = True
        elif content[at] != USER_PROPERTY:
            return MALFORMED_PROPERTY
        fields = 1 if content[at] == REASON_STRING else 2
        at += 1
        for _ in range(fields):
            stop, at = _read_field(content, at, is_text=True)
            if stop != PACKET_READ:
                return stop
    return PACKET_READ


def _add_ack(acks: array[int], count: int, kind: int, identifier: int) -> int:
    """Count the packet id in the last of `count` runs, or begin a new run. Returns how many runs
    there are now; -1 if there is no room for one more."""
    at = count * ACK_COLUMNS
    if count and acks[at - 3] == kind and acks[at - 1] < IDENTIFIER_MAX:
        expected = (acks[at - 2] + acks[at - 1] - 1) % IDENTIFIER_MAX + 1
        if identifier == expected:
            acks[at - 1] += 1
            return count
    if at + ACK_COLUMNS > len(acks):
        return -1
    acks[at] = kind
    acks[at + 1] = identifier
    acks[at + 2] = 1
    return count + 1


def encode_acks(batch: Batch, first: int, last: int) -> bytes:
    """The answers to rows [first, last): PUBACK for QoS 1, PUBREC for QoS 2, none for QoS 0. Rows
    that were refused (MQTT 5, `codes.REFUSED_SHIFT`) are answered with their reason code."""
    if not 0 <= first <= last <= batch.count:
        raise ValueError("the rows are not in the batch")
    out = bytearray()
    for at in range(first * COLUMNS, last * COLUMNS, COLUMNS):
        identifier, flags = batch.rows[at + FLAGS - 1 : at + FLAGS + 1]
        quality = (flags & FLAG_QOS) >> FLAG_QOS_SHIFT
        if quality:
            refused = flags >> REFUSED_SHIFT
            out += bytes((_ACK_BYTES[quality], 3 if refused else 2))
            out += bytes((identifier >> 8 & 0xFF, identifier & 0xFF))
            if refused:
                out.append(REFUSED_BASE + refused)
    return bytes(out)


def refuse_payloads(batch: Batch, first: int, last: int) -> int:
    """Refuse those of rows [first, last) whose Payload Format Indicator says that the body is UTF-8
    text, which it is not: their FLAGS get the reason code (`codes.REFUSED_SHIFT`).

    Returns:
        How many these are.
    """
    if not 0 <= first <= last <= batch.count:
        raise ValueError("the rows are not in the batch")
    rows = batch.rows
    buffer = batch.buffer
    found = 0
    for at in range(first * COLUMNS, last * COLUMNS, COLUMNS):
        extra, extra_size = rows[at + EXTRA_START], rows[at + EXTRA_SIZE]
        body, body_size = rows[at + BODY_START], rows[at + BODY_SIZE]
        if min(extra, extra_size, body, body_size) < 0:
            raise ValueError("a row is not inside the buffer")
        if max(extra + extra_size, body + body_size) > len(buffer):
            raise ValueError("a row is not inside the buffer")
        if not _says_text(bytes(buffer[extra : extra + extra_size])):
            continue
        try:
            bytes(buffer[body : body + body_size]).decode()
        except UnicodeDecodeError:
            rows[at + FLAGS] |= (PAYLOAD_FORMAT_INVALID - REFUSED_BASE) << REFUSED_SHIFT
            found += 1
    return found


def _says_text(block: bytes) -> bool:
    """Whether the properties of a PUBLISH, which `parse` has read, say that its body is text."""
    at = 0
    while at < len(block):
        kind = block[at]
        at += 1
        if kind == PAYLOAD_FORMAT:
            return block[at : at + 1] == b"\1"
        if kind in _NUMBERS:
            at += _NUMBERS[kind]
            continue
        for _ in range(2 if kind == USER_PROPERTY else 1):
            at += 2 + int.from_bytes(block[at : at + 2].ljust(2, b"\xff"), "big")
    return False


def encode_ids(first_byte: int, first_packet_id: int, count: int) -> bytes:
    """`count` packets of two bytes of packet id each (PUBREL, PUBCOMP), ids counting up."""
    if not 0 <= first_byte <= 0xFF or not 1 <= first_packet_id <= IDENTIFIER_MAX or count < 0:
        raise ValueError("not a packet type, packet id and count")
    out = bytearray()
    identifier = first_packet_id
    for _ in range(count):
        out += bytes((first_byte, 2, identifier >> 8, identifier & 0xFF))
        identifier = identifier + 1 if identifier < IDENTIFIER_MAX else 1
    return bytes(out)
