"""Properties of a message that are too long for a record's properties, or for a client's frames.

Those of a record have room for 16 KiB (`codes.LONG_BYTES`) of AMQP's properties. Longer ones stand
in front of the body, as `broker/messages/long_properties.py` describes. Such messages are stored
one by one, with templates of their own.

Rule: what is left out, in the short form that other protocols read and where a client's frames are
too small, is headers, never another property. Headers that fit are kept, in their order.
"""

from __future__ import annotations

import struct
from typing import Final

from polymq.broker.port import Reason, Refused, in_front, size_in_front
from polymq.core_log.kernels.batch import (
    BODY_SIZE,
    BODY_START,
    COLUMNS,
    EXTRA_SIZE,
    EXTRA_START,
    RECORD_BODY_AT,
    Batch,
    LargeBatch,
)
from polymq.gateways.amqp.kernels.codes import LONG_BYTES
from polymq.gateways.amqp.limits import FRAME_OVERHEAD, Limits
from polymq.gateways.amqp.mapping import headers_span
from polymq.gateways.amqp.rows import is_long
from polymq.gateways.amqp.tables import encode_pairs, split_pairs

SHORT_BYTES: Final = 8 * 1024
"""Of the short form. RocketMQ's consumers get its headers a second time, in their own words."""
HEADER_BYTES: Final = 12
"""Class, weight and body size in a header frame, before the property flags."""
ROOMY_FRAME_BYTES: Final = FRAME_OVERHEAD + HEADER_BYTES + LONG_BYTES
"""A frame that holds all properties that are not long."""
LEFT_OUT: Final = "x-headers-left-out"
"""A header of ours: how many headers did not fit into a frame of the client's."""
_U32: Final = struct.Struct(">I")


def check_size(batch: Batch, row: int, limits: Limits) -> None:
    """Look at the sizes of a long row.

    Raises:
        Refused: TOO_LARGE. No frame that we send holds its properties: frames that come may be
            eight bytes longer, because some clients do not count what stands around a payload.
            Or they leave the body too little of what a record's body may have.
    """
    size = batch.rows[row * COLUMNS + EXTRA_SIZE]
    most = limits.frame_bytes_max - FRAME_OVERHEAD - HEADER_BYTES
    if size > most:
        raise Refused(
            Reason.TOO_LARGE,
            f"properties and headers of {size} bytes: at most {most} fit into a frame",
        )
    total = len(in_front(b"")) + size + batch.rows[row * COLUMNS + BODY_SIZE]
    if total > limits.body_bytes_max:
        raise Refused(
            Reason.TOO_LARGE,
            f"message of {total} bytes is larger than configured max size "
            f"{limits.body_bytes_max}: headers of more than {LONG_BYTES} bytes count",
        )


def as_stored(batch: Batch, first: int, last: int) -> tuple[Batch, int, int]:
    """Rows of a publish as the log keeps them: as they are, or the only one, if it is long, as the
    row of another batch."""
    if not is_long(batch, first):
        return batch, first, last
    assert last - first == 1
    return _long_row(batch, first), 0, 1


def _long_row(batch: Batch, row: int) -> Batch:
    at = row * COLUMNS
    start, size = batch.rows[at + EXTRA_START], batch.rows[at + EXTRA_SIZE]
    properties = bytes(batch.buffer[start : start + size])
    short = fitting(properties, SHORT_BYTES)
    address, address_size = batch.rows[at], batch.rows[at + 1]
    body, body_size = batch.rows[at + BODY_START], batch.rows[at + BODY_SIZE]
    if isinstance(batch, LargeBatch):  # they stand there already
        memory = batch.buffer
        assert isinstance(memory, bytearray)
        assert body == RECORD_BODY_AT + size_in_front(memory, RECORD_BODY_AT)
        made: Batch = LargeBatch(memory, batch.body_crc)
        spans = (address, RECORD_BODY_AT, len(memory))
        memory += short
    else:
        made = Batch(1)
        parts = (
            batch.topic(row),
            in_front(properties),
            bytes(batch.buffer[body : body + body_size]),
        )
        made.buffer = b"".join((*parts, short))
        spans = (0, address_size, len(made.buffer) - len(short))
    front = len(in_front(b"")) + size
    made.add((spans[0], address_size), (spans[1], front + body_size), (spans[2], len(short)))
    return made


def fitting(properties: bytes, size_max: int, *, marked: bool = False) -> bytes:
    """Well-formed properties in at most `size_max` bytes, without the headers that do not fit.

    Args:
        marked: with a header that says how many are left out.
    """
    if len(properties) <= size_max:
        return properties
    start, end = headers_span(properties)
    room = size_max - (len(properties) - (end - start))
    if marked:
        room -= len(encode_pairs({LEFT_OUT: end - start}))
    fitting: list[bytes] = []
    left_out = 0
    for _, pair in split_pairs(properties[start:end]):
        if len(pair) <= room:
            room -= len(pair)
            fitting.append(pair)
        else:
            left_out += 1
    if marked:
        fitting.insert(0, encode_pairs({LEFT_OUT: left_out}))
    pairs = b"".join(fitting)
    return properties[: start - 4] + _U32.pack(len(pairs)) + pairs + properties[end:]
