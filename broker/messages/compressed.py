"""Bodies that a RocketMQ producer compressed, for readers of other protocols.

RocketMQ's clients compress large bodies and say so in the record's system flag; the log keeps what
they sent, and their own consumers get it so. Everybody else gets what was meant: where a run of
such messages is handed to a gateway, its records are written anew in memory with plain bodies.

Rules:

* A body that does not decompress, or to more than its bound, is handed on as it was sent: it was
  accepted, and a reader must get something.
* What is handed on at once has a bound, too (`TURN_BYTES_MAX`): a thousand small bodies may mean
  gigabytes. The rest has its turn in a later iteration of the loop.
* Nothing of this happens on the way of other messages; a run's meta says whether it is one.
* How to decompress is handed in (`PlainBody`): the engine knows no formats of clients.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from typing import Final

from polymq.broker.messages.kernels.record_run import RecordRun
from polymq.core_log.kernels.batch import (
    RECORD_BODY_AT,
    RECORD_BODY_CRC_AT,
    RECORD_BODY_SIZE_AT,
    RECORD_SIZE_AT,
    RECORD_SYSTEM_FLAG_AT,
)

COMPRESSED: Final = 0x1
COMPRESSION_MASK: Final = 0x701
"""Bits of a system flag: whether, and how."""
TURN_BYTES_MAX: Final = 4 * 1024 * 1024
"""Plain bytes after which no further body is decompressed in this turn: 10 ms. The last one may be
longer, up to the bound of a body (16 MiB in a server: 35 ms)."""

PlainBody = Callable[[bytes, int], bytes | None]
"""From a body as it was sent, and its record's system flag: what it means; None if that cannot be
told. It bounds what it returns."""

_U32: Final = struct.Struct(">I")


def as_sent(_body: bytes, _system_flag: int) -> bytes | None:
    """A `PlainBody` that knows no way to decompress."""
    return None


def plain_runs(
    runs: Sequence[RecordRun],
    plain_body: PlainBody,
    shorten: Callable[[RecordRun, int], RecordRun] | None,
) -> tuple[Sequence[RecordRun], int]:
    """The runs with plain bodies: at least one message, and as many more as `TURN_BYTES_MAX`
    allows. Runs that have none but plain ones are handed on.

    Args:
        shorten: makes short records of the first long ones of a run (`long_properties.py`), until
            they have so many bytes; None: long ones are handed on.

    Returns:
        The runs, and how many messages they have.
    """
    if not any(run.meta.rewritten for run in runs):
        return runs, sum([run.count for run in runs])
    made: list[RecordRun] = []
    done = 0
    left = TURN_BYTES_MAX
    for run in runs:
        if left <= 0:
            break
        if run.meta.compressed:
            run = _plain(run, plain_body, left)
            left -= run.end
        elif run.meta.long and shorten is not None:
            run = shorten(run, left)
            left -= run.end
        made.append(run)
        done += run.count
    return made, done


def _plain(run: RecordRun, plain_body: PlainBody, bytes_max: int) -> RecordRun:
    """The first record of the run, and those behind it until they have so many bytes."""
    records = bytearray()
    at = run.start
    count = 0
    while at < run.end and (len(records) < bytes_max or not count):
        size = _U32.unpack_from(run.memory, at + RECORD_SIZE_AT)[0]
        records += _plain_record(bytes(run.memory[at : at + size]), plain_body)
        at += size
        count += 1
    return RecordRun(run.meta, records, 0, len(records), count)


def _plain_record(record: bytes, plain_body: PlainBody) -> bytes | bytearray:
    body_end = RECORD_BODY_AT + _U32.unpack_from(record, RECORD_BODY_SIZE_AT)[0]
    flag = _U32.unpack_from(record, RECORD_SYSTEM_FLAG_AT)[0]
    body = plain_body(record[RECORD_BODY_AT:body_end], flag)
    if body is None:
        return record
    made = bytearray(record[:RECORD_BODY_AT]) + body + record[body_end:]
    _U32.pack_into(made, RECORD_SIZE_AT, len(made))
    _U32.pack_into(made, RECORD_BODY_CRC_AT, zlib.crc32(body) & 0x7FFF_FFFF)
    _U32.pack_into(made, RECORD_SYSTEM_FLAG_AT, flag & ~COMPRESSION_MASK)
    _U32.pack_into(made, RECORD_BODY_SIZE_AT, len(body))
    return made
