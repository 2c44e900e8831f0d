"""The frame kernels in plain Python: the fallback without a compiler, and the oracle in tests.

Rules: the same functions, results and errors as `frames.pyx`, for every input. No state. Every
length from the network is checked against the bytes that are there before it is used.

`parse` takes what MQTT sends in bulk (PUBLISH and the four acknowledgements) and leaves every
other packet to the codec in `packets.py`. It checks what concerns frames; whether a topic is
UTF-8 without wildcards is asked once per distinct topic, in `mapping.py`.
"""

from __future__ import annotations

import struct
from array import array
from typing import Final

from polymq.core_log.kernels.batch import COLUMNS, RECORD_BODY_AT, RECORD_BODY_SIZE_AT, Batch
from polymq.gateways.mqtt.kernels.codes import (
    ACK_COLUMNS,
    FLAG_QOS,
    FLAG_QOS_SHIFT,
    FLAGS_STORED,
    IDENTIFIER_MAX,
    MALFORMED_DUPLICATE,
    MALFORMED_FLAGS,
    MALFORMED_IDENTIFIER,
    MALFORMED_LARGE,
    MALFORMED_LENGTH,
    MALFORMED_QOS,
    MALFORMED_SIZE,
    PACKET_READ,
    RECORD_SIZE_MIN,
    REMAINING_LENGTH_MAX,
    STOP_FULL,
    STOP_ORDER,
    STOP_OTHER,
    STOP_PARTIAL,
    TYPE_PUBCOMP,
    TYPE_PUBLISH,
    TYPE_PUBREL,
)

Buffer = bytes | bytearray | memoryview

_DUPLICATE: Final = 0x08
_PUBREL_FLAGS: Final = 0x02
_ACK_BYTES: Final = (0, 0x40, 0x50, 0x50)  # by QoS: PUBACK, PUBREC; rows never have QoS 3
_SIZES: Final = struct.Struct(f">I{RECORD_BODY_SIZE_AT - 4}xI")  # of a record and of its body


def parse(
    buffer: Buffer,
    start: int,
    end: int,
    batch: Batch,
    runs: array[int],
    acks: array[int],
    packet_bytes_max: int,
) -> tuple[int, int, int, int]:
    """Walk the packets of `buffer[start:end]` into rows and acknowledgement runs.

    Args:
        batch: rows are written from 0 on; `batch.count` is set. FLAGS holds QoS and RETAIN.
        runs: gets the first row of each run (rows of equal topic bytes and equal flags).
        acks: gets (type, first packet id, count) for each stretch of consecutive packet ids of
            one type; after 65,535 comes 1.
        packet_bytes_max: longest packet, its header included.

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
        stop, topic_start, topic_end, identifier, content, after = _read_packet(
            buffer, at, end, packet_bytes_max
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
            ack_count = _add_ack(acks, ack_count, kind, identifier)
            if ack_count < 0:
                stop = STOP_FULL
                ack_count = len(acks) // ACK_COLUMNS
                break
            at = after
            continue
        quality = (first & FLAGS_STORED) >> FLAG_QOS_SHIFT
        if quality == 2 and released:
            stop = STOP_ORDER
            break
        flags = first & FLAGS_STORED
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
        values += (topic_start, topic_size, content, after - content, 0, 0, identifier, flags)
        row += 1
        at = after
    rows[: len(values)] = array("q", values)
    batch.count = row
    return stop, at, run_count, ack_count


class PacketReader:
    """One PUBLISH or acknowledgement, taken apart by the rules of `parse`.

    Attributes:
        first: the first byte.
        packet_id: 0 at QoS 0.
        topic_start, topic_end: of a PUBLISH's topic name.
        body, end: where what the application sent begins, and where the packet ends.
    """

    __slots__ = ("body", "end", "first", "packet_id", "topic_end", "topic_start")

    def __init__(self) -> None:
        self.first = self.packet_id = 0
        self.topic_start = self.topic_end = self.body = self.end = 0

    def read(self, buffer: Buffer, start: int, end: int, packet_bytes_max: int) -> int:
        """Read the packet at the start of `buffer[start:end]`.

        Returns:
            `PACKET_READ`, or why it cannot be read: then the attributes say nothing.
        """
        if not 0 <= start <= end <= len(buffer):
            raise ValueError("the range is not inside the buffer")
        found = _read_packet(buffer, start, end, packet_bytes_max)
        stop, self.topic_start, self.topic_end, self.packet_id, self.body, self.end = found
        if stop == PACKET_READ:
            self.first = buffer[start]
        return stop


def _stopped(stop: int) -> tuple[int, int, int, int, int, int]:
    return stop, 0, 0, 0, 0, 0


def _read_packet(
    buffer: Buffer, at: int, end: int, packet_bytes_max: int
) -> tuple[int, int, int, int, int, int]:
    """Read the PUBLISH or acknowledgement at `at`.

    Returns:
        `PACKET_READ` or a stop, the start and end of the topic, the packet id, where the body
        begins, and where the packet ends.
    """
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
    if body - at + length > packet_bytes_max:
        return _stopped(MALFORMED_LARGE)
    # An acknowledgement is a packet id; a PUBLISH has room for the size of its topic at least.
    if length < 2 or (length > 2 and kind != TYPE_PUBLISH):
        return _stopped(MALFORMED_SIZE)
    after = body + length
    if after > end:
        return _stopped(STOP_PARTIAL)
    if kind != TYPE_PUBLISH:
        identifier = buffer[body] << 8 | buffer[body + 1]
        if identifier == 0:
            return _stopped(MALFORMED_IDENTIFIER)
        return PACKET_READ, 0, 0, identifier, after, after
    # Topic size, topic, packet id if there is an acknowledgement, body.
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
    return PACKET_READ, topic, topic_end, identifier, content, after


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
    """The answers to rows [first, last): PUBACK for QoS 1, PUBREC for QoS 2, none for QoS 0."""
    if not 0 <= first <= last <= batch.count:
        raise ValueError("the rows are not in the batch")
    out = bytearray()
    for row in range(first, last):
        identifier, flags = batch.rows[row * COLUMNS + 6 : row * COLUMNS + 8]
        quality = (flags & FLAGS_STORED) >> FLAG_QOS_SHIFT
        if quality:
            out += bytes((_ACK_BYTES[quality], 2, identifier >> 8 & 0xFF, identifier & 0xFF))
    return bytes(out)


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
