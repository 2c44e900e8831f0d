"""Atomic batches: records that belong together, as the pieces that are written for them.

A record with more queues than one `PMQ_Q` names is continued: it is followed, in the same batch,
by system records that name it by position, size and tag hash (`PMQ_OF`) and list more targets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polymq.core_log.kernels.batch import COLUMNS, DISPATCH_TARGETS_MAX, Batch
from polymq.core_log.kernels.layout import (
    ENTRY_SIZE,
    PROPERTY_BATCH,
    PROPERTY_CONSTANT,
    PROPERTY_CONSTANT_SIZE,
    PROPERTY_OF,
    PROPERTY_TTL,
    PROPERTY_TTL_SIZE,
    SYSTEM_FLAG_AT_MOST_ONCE,
)
from polymq.core_log.record import SYSTEM_TOPIC, RecordParts, RecordTemplate


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One record as it will be written.

    Attributes:
        continues: the index of the piece whose targets go on here, or None for a record of the
            caller.
    """

    template: RecordTemplate
    body: bytes
    extra: bytes
    targets: Sequence[tuple[int, int]]
    born_ms: int
    continues: int | None = None


def continuation(entry: bytes, continued: RecordTemplate) -> RecordTemplate:
    """The template of a record that continues the targets of a record of the template `continued`
    with this entry."""
    name = PROPERTY_OF + b"\x01" + entry.hex().encode() + b"\x02"
    flag = continued.system_flag & SYSTEM_FLAG_AT_MOST_ONCE
    return RecordTemplate(SYSTEM_TOPIC, 0, name + _ttl_of(continued), system_flag=flag)


def _ttl_of(template: RecordTemplate) -> bytes:
    """The `PMQ_X` of this template's records, encoded; empty where they have none."""
    start = PROPERTY_CONSTANT_SIZE
    ttl = template.properties[start : start + PROPERTY_TTL_SIZE]
    named = template.properties.startswith(PROPERTY_CONSTANT + b"\x01")
    return ttl if named and ttl.startswith(PROPERTY_TTL + b"\x01") else b""


def expand(records: Sequence[RecordParts]) -> list[Piece]:
    """The pieces of these records, continuations right behind the record that they continue."""
    pieces: list[Piece] = []
    for record in records:
        targets = record.targets
        index = len(pieces)
        pieces.append(
            Piece(
                template=record.template,
                body=record.body,
                extra=record.extra,
                targets=targets[:DISPATCH_TARGETS_MAX],
                born_ms=record.born_ms,
            )
        )
        pieces.extend(
            Piece(
                template=continuation(bytes(ENTRY_SIZE), record.template),
                body=b"",
                extra=b"",
                targets=targets[at : at + DISPATCH_TARGETS_MAX],
                born_ms=record.born_ms,
                continues=index,
            )
            for at in range(DISPATCH_TARGETS_MAX, len(targets), DISPATCH_TARGETS_MAX)
        )
    return pieces


def batch_property(identifier: int, index: int, count: int) -> bytes:
    """`PMQ_B` of record `index` of an atomic batch of `count`."""
    return b"%b\x01%016x%04x%04x\x02" % (PROPERTY_BATCH, identifier, index, count)


def row_of(body: bytes, extra: bytes) -> Batch:
    """A batch of one row with this body and these extra bytes."""
    batch = Batch(1)
    batch.buffer = body + extra if extra else body
    batch.add((0, 0), (0, len(body)), (len(body), len(extra)))
    return batch


def part_of(batch: Batch, row: int, column: int) -> bytes:
    """The bytes of one part of a row: `column` is the part's START column."""
    at = row * COLUMNS + column
    start = batch.rows[at]
    return bytes(memoryview(batch.buffer)[start : start + batch.rows[at + 1]])
