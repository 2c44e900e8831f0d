"""The inner loop over frames, in plain Python; those over properties and records are
in `plain_properties.py` and `plain_deliveries.py`.

The fallback where no compiler is at hand, and the oracle that the compiled twin (`frames.pyx`) is
tested against: same functions, same results and same errors for every input.

`parse` takes only what is entirely in order. Whatever is odd (another method, content in several
frames, a wrong byte) stops it at the start of that frame, and the connection core looks at it.

A publisher mostly sends the same method and header frame from message to message. So the frames of
the last publish are remembered, and what begins with the same bytes is not taken apart again.
"""

from __future__ import annotations

import struct
from array import array
from typing import Final

from polymq.core_log.kernels.batch import COLUMNS, Batch
from polymq.gateways.amqp.kernels.codes import (
    ADDRESS_AT,
    BAD_END,
    BAD_TYPE,
    CHANNEL_SHIFT,
    FRAME,
    FULL,
    MANDATORY,
    MULTIPLE,
    NEED_DATA,
    NEGATIVE,
    OVERSIZE,
    REQUEUE,
    SETTLEMENT_BITS,
    SETTLEMENT_CHANNEL,
    SETTLEMENT_COLUMNS,
    SETTLEMENT_COUNT,
    SETTLEMENT_FIRST,
)
from polymq.gateways.amqp.kernels.plain_deliveries import encode_deliveries
from polymq.gateways.amqp.kernels.plain_properties import scan_properties

__all__ = ["encode_deliveries", "parse", "scan_properties"]


TAG_MAX: Final = 2**63 - 1

_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
_FRAME: Final = struct.Struct(">BHI")
_METHOD: Final = struct.Struct(">BHIHH")
"""A frame's head, class and method."""
_HEADER: Final = struct.Struct(">BHIHHQ")
"""A frame's head, class, weight and body size."""
_FRAME_OVERHEAD: Final = 8
_SETTLEMENT_SIZE: Final = 21
"""Of the frame of an ack, nack or reject."""

Buffer = bytes | bytearray | memoryview


def parse(
    buffer: Buffer,
    start: int,
    end: int,
    payload_max: int,
    body_max: int,
    batch: Batch,
    runs: array[int],
    settlements: array[int],
) -> tuple[int, int, int, int]:
    """Take publishes and settlements from the frames in [start, end).

    A publish is a basic.publish method frame, its header frame and at most one body frame, whole,
    one after the other, on one channel. It becomes a row: TOPIC is the bytes of exchange and
    routing key as they stand in the method (each with its size octet), EXTRA the property flags
    and properties, IDENTIFIER its number in the batch.

    Args:
        payload_max: largest payload of a frame.
        body_max: largest body that is taken here.
        batch: filled from its first row on.
        runs: gets the first row of each stretch of rows with equal TOPIC bytes and FLAGS.
        settlements: gets acks, nacks and rejects (see the columns above).

    Returns:
        (where it stopped, why, count of runs, count of settlements).
    """
    rows = batch.rows
    capacity = min(len(rows) // COLUMNS, len(runs))
    source = bytes(buffer) if isinstance(buffer, memoryview) else buffer
    values: list[int] = []  # the rows, written in one piece: storing them one by one costs double
    at, stop, run_count, settlement_count = _walk(
        source, start, end, payload_max, body_max, values, capacity, runs, settlements
    )
    rows[: len(values)] = array("q", values)
    batch.buffer = buffer
    batch.count = len(values) // COLUMNS
    return at, stop, run_count, settlement_count


def _walk(
    source: bytes | bytearray,
    at: int,
    end: int,
    payload_max: int,
    body_max: int,
    values: list[int],
    capacity: int,
    runs: array[int],
    settlements: array[int],
) -> tuple[int, int, int, int]:
    """What `parse` does, with rows as a list of at most `capacity` times their columns."""
    count = run_count = settlement_count = 0
    # Of the last publish: its method frame, the size of exchange and routing key, its bits; its
    # header frame, how many bytes of body that announces, what its properties say.
    method: bytes | bytearray = b""
    address_size = channel = method_flags = 0
    header: bytes | bytearray = b""
    body_size = found = 0
    last_flags = -1
    last_address: bytes | bytearray = b""
    while True:
        known = bool(method) and source.startswith(method, at, end)
        if not known:
            stop = _check_frame(source, at, end, payload_max)
            if stop >= 0:
                break
            stop = FRAME
            size = _FRAME.unpack_from(source, at)[2]
            if size < 4:
                break
            kind, new_channel, _, class_id, method_id = _METHOD.unpack_from(source, at)
            if kind != 1 or new_channel == 0 or class_id != 60:
                break
            if method_id != 40:
                at, settlement_count, stop = _take_settlements(
                    source, at, settlements, settlement_count, count
                )
                if stop >= 0:
                    break
                continue
        if count >= capacity:
            stop = FULL
            break
        if not known:
            address_size = _address_size(source, at, size)
            bits_at = at + ADDRESS_AT + address_size
            if address_size < 0 or source[bits_at] & 2:
                break  # immediate is refused where there is a text for it
            channel = new_channel
            method = source[at : at + size + _FRAME_OVERHEAD]
            method_flags = source[bits_at] & MANDATORY | channel << CHANNEL_SHIFT
            header = b""  # it may be of another channel
        header_at = at + len(method)
        if not (header and source.startswith(header, header_at, end)):
            stop, size, body_size = _read_header(source, header_at, end, channel, payload_max)
            if stop >= 0:
                break
            header = source[header_at : header_at + size + _FRAME_OVERHEAD]
            found = scan_properties(header, _HEADER.size, len(header) - 1)
            if found < 0 or body_size > body_max:
                stop = FRAME
                break
        next_at = header_at + len(header)
        header_end = next_at - 1
        body = 0
        if body_size:
            stop = _check_body(source, next_at, end, channel, body_size, payload_max)
            if stop >= 0:
                break
            body = next_at + _FRAME.size
            next_at = body + body_size + 1
        flags = method_flags | found
        address_at = at + ADDRESS_AT
        if flags != last_flags or not known:
            address = source[address_at : address_at + address_size]
            if flags != last_flags or address != last_address:
                runs[run_count] = count
                run_count += 1
                last_flags = flags
                last_address = address
        values += (
            address_at,
            address_size,
            body,
            body_size,
            header_at + _HEADER.size,
            header_end - header_at - _HEADER.size,
            count,
            flags,
        )
        count += 1
        at = next_at
    return at, stop, run_count, settlement_count


def _check_frame(buffer: Buffer, at: int, end: int, payload_max: int) -> int:
    """-1 if a whole frame stands at `at`, else why not."""
    if end - at < 7:
        return NEED_DATA
    kind = buffer[at]
    if kind not in (1, 2, 3, 8):
        return BAD_TYPE
    size = _U32.unpack_from(buffer, at + 3)[0]
    if size > payload_max:
        return OVERSIZE
    if end - at < size + 8:
        return NEED_DATA
    return -1 if buffer[at + 7 + size] == 0xCE else BAD_END


# --- publishes --------------------------------------------------------------------------------


def _address_size(buffer: Buffer, at: int, size: int) -> int:
    """Bytes of exchange and routing key in the basic.publish whose frame is at `at`; -1 if they
    and an octet of bits are not what its payload of `size` bytes holds."""
    end = at + 7 + size
    address = at + ADDRESS_AT
    middle = address + 1 + buffer[address] if address < end else end
    bits_at = middle + 1 + buffer[middle] if middle < end else end
    return bits_at - address if bits_at == end - 1 else -1


def _read_header(
    buffer: Buffer, at: int, end: int, channel: int, payload_max: int
) -> tuple[int, int, int]:
    """Why no content header of the channel stands at `at` (-1: one does); the size of its payload,
    and how many bytes of body it announces."""
    stop = _check_frame(buffer, at, end, payload_max)
    if stop >= 0:
        return NEED_DATA if stop == NEED_DATA else FRAME, 0, 0
    if _FRAME.unpack_from(buffer, at)[2] < 14:
        return FRAME, 0, 0
    kind, its_channel, size, class_id, weight, body_size = _HEADER.unpack_from(buffer, at)
    if kind != 2 or its_channel != channel or class_id != 60 or weight != 0:
        return FRAME, 0, 0
    return -1, size, body_size


def _check_body(
    buffer: Buffer, at: int, end: int, channel: int, body_size: int, payload_max: int
) -> int:
    """-1 if the channel's whole body stands in the frame at `at`, else why not."""
    stop = _check_frame(buffer, at, end, payload_max)
    if stop >= 0:
        return NEED_DATA if stop == NEED_DATA else FRAME
    return -1 if _FRAME.unpack_from(buffer, at) == (3, channel, body_size) else FRAME


# --- settlements ------------------------------------------------------------------------------


def _take_settlements(
    source: bytes | bytearray, at: int, settlements: array[int], count: int, rows: int
) -> tuple[int, int, int]:
    """Note the ack, nack or reject whose frame stands, whole, at `at`.

    Args:
        count: how many settlements there are so far.
        rows: how many rows the batch has.

    Returns:
        Where the next frame stands, how many settlements there are now, why it stopped or -1.
    """
    _, channel, size, _, method_id = _METHOD.unpack_from(source, at)
    bits = _settlement_bits(source, at, method_id, size)
    tag = _U64.unpack_from(source, at + 11)[0] if bits >= 0 else 0
    if bits < 0 or tag > TAG_MAX:
        return at, count, FRAME
    last = (count - 1) * SETTLEMENT_COLUMNS
    if count and _extends(settlements, last, channel, tag, bits):
        settlements[last + SETTLEMENT_COUNT] += 1
    elif count >= len(settlements) // SETTLEMENT_COLUMNS:
        return at, count, FULL
    else:
        last += SETTLEMENT_COLUMNS
        settlement = array("q", (channel, tag, 1, bits, rows))
        settlements[last : last + SETTLEMENT_COLUMNS] = settlement
        count += 1
    return at + _SETTLEMENT_SIZE, count, -1


def _settlement_bits(buffer: Buffer, at: int, method_id: int, size: int) -> int:
    """The bits of an ack, nack or reject; -1 if the method is none of them or not as it should."""
    if size != 13:
        return -1
    bits = buffer[at + 19]
    if method_id == 80:
        return bits & MULTIPLE
    if method_id == 120:
        return NEGATIVE | bits & (MULTIPLE | REQUEUE)
    if method_id == 90:
        return NEGATIVE | (REQUEUE if bits & 1 else 0)
    return -1


def _extends(settlements: array[int], last: int, channel: int, tag: int, bits: int) -> bool:
    """Whether a settlement continues the one that stands at `last`."""
    return (
        not bits & MULTIPLE
        and settlements[last + SETTLEMENT_CHANNEL] == channel
        and settlements[last + SETTLEMENT_BITS] == bits
        and settlements[last + SETTLEMENT_FIRST] + settlements[last + SETTLEMENT_COUNT] == tag
    )
