"""Bodies that a RocketMQ producer compressed, for readers of other protocols.

RocketMQ's clients compress large bodies and say so in the record's system flag; the log keeps what
they sent, and their own consumers get it so. Everybody else gets what was meant: where a run of
such messages is handed to a gateway, its records are written anew in memory with plain bodies.

Rules:

* A body that does not decompress, or to more than `BODY_BYTES_MAX`, is handed on as it was sent: it
  was accepted, and a reader must get something.
* Nothing of this happens on the way of other messages; a run's meta says whether it is one.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Final

from broker.runs import RecordRun
from core_log.kernels.batch import (
    RECORD_BODY_AT,
    RECORD_BODY_CRC_AT,
    RECORD_BODY_SIZE_AT,
    RECORD_SIZE_AT,
    RECORD_SYSTEM_FLAG_AT,
)

COMPRESSED: Final = 0x1
COMPRESSION_MASK: Final = 0x701
"""Bits of a system flag: whether, and how."""
BODY_BYTES_MAX: Final = 16 * 1024 * 1024
"""Four times what may be sent: text compresses to a quarter. A bomb of 4 MiB would be 4 GiB."""

_U32: Final = struct.Struct(">I")


def plain_runs(runs: Sequence[RecordRun]) -> Sequence[RecordRun]:
    """The runs with plain bodies; those that have none but plain ones are handed on."""
    if not any(run.meta.compressed for run in runs):
        return runs
    return [_plain(run) if run.meta.compressed else run for run in runs]


def _plain(run: RecordRun) -> RecordRun:
    records = bytearray()
    at = run.start
    while at < run.end:
        size = _U32.unpack_from(run.memory, at + RECORD_SIZE_AT)[0]
        records += _plain_record(bytes(run.memory[at : at + size]))
        at += size
    return RecordRun(run.meta, records, 0, len(records), run.count)


def _plain_record(record: bytes) -> bytes | bytearray:
    body_end = RECORD_BODY_AT + _U32.unpack_from(record, RECORD_BODY_SIZE_AT)[0]
    body = plain_body(record[RECORD_BODY_AT:body_end])
    if body is None:
        return record
    made = bytearray(record[:RECORD_BODY_AT]) + body + record[body_end:]
    flag = _U32.unpack_from(record, RECORD_SYSTEM_FLAG_AT)[0] & ~COMPRESSION_MASK
    _U32.pack_into(made, RECORD_SIZE_AT, len(made))
    _U32.pack_into(made, RECORD_BODY_CRC_AT, zlib.crc32(body) & 0x7FFF_FFFF)
    _U32.pack_into(made, RECORD_SYSTEM_FLAG_AT, flag)
    _U32.pack_into(made, RECORD_BODY_SIZE_AT, len(body))
    return made


def plain_body(body: bytes) -> bytes | None:
    """What a body that was compressed with zlib means; None if it cannot be told."""
    inflate = zlib.decompressobj()
    try:
        plain = inflate.decompress(body, BODY_BYTES_MAX)
    except zlib.error:
        return None
    return plain if inflate.eof else None
