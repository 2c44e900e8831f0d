"""Messages that leave a queue for another place: dead letters, and delayed messages that are due.

Theory. A move is a new record that carries the settlement of the entry that it replaces, as the
property `PMQ_S` (the old entry's group and offset, in hex) behind the message's own properties. A
record is in the log whole or not at all, so after a crash exactly one of the two counts: the old
entry where the record is missing, the new message where it is there. The record has the system
flag `SYSTEM_FLAG_STATE`, by which a restart finds and folds it.

What a message is stays: body, constant and extra properties, the time when it was born. What was
bound to the old record (its queues, its batch, whose settlement it carried) does not come along.

Rules:

* A message that moves was taken from its group's cursor before, so nobody else gets it meanwhile.
  If the move fails it is still taken: whoever moves it gives it back, or tries again.
* Records are read and written by runs of one kind that were born in the same millisecond.
* The entry of a group that does not survive a restart needs no settlement in the record.
"""

from __future__ import annotations

import dataclasses
import struct
from binascii import b2a_base64
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from polymq.broker.core import SYSTEM_FLAG_STATE, Core
from polymq.broker.errors import Refused
from polymq.broker.messages.kernels.record_run import RecordRun
from polymq.broker.messages.records import properties_span
from polymq.broker.messages.runs import RunMeta
from polymq.broker.port.values import Position
from polymq.broker.queues.queue import Group
from polymq.broker.queues.store import QueueStore
from polymq.broker.state.journal import Touched
from polymq.broker.topics.retained import ORIGIN_PROPERTY
from polymq.broker.topics.topic import TopicTemplate
from polymq.broker.topics.topics import Topics
from polymq.core_log.kernels.batch import (
    BODY_SIZE,
    BODY_START,
    COLUMNS,
    EXTRA_BASE64,
    EXTRA_NONE,
    EXTRA_SIZE,
    EXTRA_START,
    EXTRA_VERBATIM,
    PROPERTY_CRC,
    PROPERTY_DISPATCH,
    RECORD_BODY_AT,
    RECORD_BODY_SIZE_AT,
    RECORD_BORN_MS_AT,
    RECORD_POSITION_AT,
    Batch,
)
from polymq.core_log.record import Record

SETTLES_PROPERTY: Final = "PMQ_S"
"""(group number, offset) in hex, with a dot between: the entry that this message replaces."""
REPLACED_PROPERTY: Final = "PMQ_WAS"
"""The position of the record that this one replaces, in hex: for people who ask for its way."""
REPLACED_ROOM: Final = 16 * 1024
"""Bytes of properties up to which a record says it: those of 32 KiB may need all of their room."""
QOS2_PROPERTY: Final = "PMQ_QOS2"
"""(session number, packet id) of an inbound QoS 2 message, in hex: stored with the message."""
WILL_PROPERTY: Final = "PMQ_WILL"
"""The number of the will that became this message, in hex: that has ended (`sessions/wills.py`)."""
SENT_ON_PROPERTY: Final = "PMQ_RD"
"""The dead letter of a topic that this message was, in hex: see `redrives.py`."""
OWNER_PROPERTY: Final = "PMQ_BY"
"""The user who prepared a half message."""

_BOUND: Final = frozenset(
    {
        PROPERTY_DISPATCH,
        b"PMQ_B",
        PROPERTY_CRC,
        SETTLES_PROPERTY.encode(),
        REPLACED_PROPERTY.encode(),
        QOS2_PROPERTY.encode(),
        WILL_PROPERTY.encode(),
        OWNER_PROPERTY.encode(),
        SENT_ON_PROPERTY.encode(),
        ORIGIN_PROPERTY.encode(),
    }
)
"""Properties behind the constant part that belong to one record, not to its message."""
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")

Target = Callable[[RunMeta], TopicTemplate | None]
"""Where messages of a kind go; None for nowhere: they are only settled. May raise Refused."""
Done = Callable[[int, Exception | None], None]
"""How many were moved, from the first on, and what stopped it; None if all of them were."""


class Row(NamedTuple):
    """One message on its way: when it was born, its extra properties as they stand in a record,
    its body, and where it stands in the log now; 0: that is not known."""

    born_ms: int
    extra: bytes
    body: bytes
    position: int = 0


class Moves:
    """Moves messages of one engine."""

    def __init__(self, core: Core, queue_store: QueueStore, topics: Topics) -> None:
        self._core = core
        self._queue_store = queue_store
        self._topics = topics

    def take_message(self, record: Record) -> Touched:
        """A message of the log that changes state: it may have taken the place of another one."""
        replaced = settled_by(record.properties)
        if replaced is None or replaced[0] not in self._queue_store.groups:
            return ()
        number, offset = replaced
        self._queue_store.groups[number].cursor.settle(offset, 1)
        return (("group", str(number)),)

    def publish(
        self,
        template: TopicTemplate,
        batch: Batch,
        row: int,
        group: Group,
        offset: int,
        position: int,
    ) -> Position:
        """A row of the batch takes the place of the group's message at `offset`, whose record is at
        this position (0: that is not known).

        Raises:
            Refused: as `BrokerPort.publish`; nothing was stored, nothing was settled.
        """
        (made,) = rows_of_batch(template, batch, row, row + 1)
        return self.append_rows(template, (made._replace(position=position),), group, (offset,))

    def move(
        self,
        group: Group,
        first: int,
        count: int,
        target: Target,
        done: Done,
        dropped: Callable[[int], None] | None = None,
    ) -> None:
        """Messages [first, first + count) of the group go where `target` says.

        At once if they are in memory, else when a reader thread has them; `done` is called at the
        end either way, from within this call or later. A run that the log refuses, and everything
        behind it, stays as it is: taken and not settled. `dropped` is told how many of those that
        count as moved went nowhere.
        """
        _Move(self, self._core, group, first, count, target, done, dropped).read()

    def append_run(self, run: RecordRun, template: TopicTemplate, group: Group, offset: int) -> int:
        """Append a run of records anew in place of the messages from `offset` on; returns how
        many. Raises Refused: then those before the one at fault are moved (`group` knows)."""
        rows = list(rows_of_run(run))
        first = 0
        for at in range(1, len(rows) + 1):
            if at == len(rows) or rows[at].born_ms != rows[first].born_ms:
                self.append_rows(
                    template, rows[first:at], group, range(offset + first, offset + at)
                )
                first = at
        return len(rows)

    def append_rows(
        self,
        template: TopicTemplate,
        rows: Sequence[Row],
        group: Group,
        offsets: Sequence[int],
        *,
        apart: bool = False,
    ) -> Position:
        """Append messages that were born in the same millisecond; row k takes the place of the
        group's message at offsets[k].

        Args:
            apart: the settlement is a record of its own, for messages that leave no room for it.
                Both are written in one piece, but a power cut may tear it: then the message is
                there twice.

        Raises:
            Refused: as `BrokerPort.publish`; the first `Refused.stored` were moved, no other.
        """
        record = dataclasses.replace(template.record, extra_kind=EXTRA_VERBATIM, extra_name=b"")
        number = 0 if apart else group.number
        if number:
            record = dataclasses.replace(record, system_flag=record.system_flag | SYSTEM_FLAG_STATE)
        try:
            position = self._topics.publish(
                template,
                settling_batch(
                    rows, number, offsets, constant_bytes=len(template.record.properties)
                ),
                0,
                len(rows),
                record=record,
                born_ms=rows[0].born_ms or None,
            )
        except Refused as error:
            _settle(group, offsets[: error.stored])
            raise
        _settle(group, offsets)
        if apart:
            self._queue_store.write_acks()
        return position


class _Move:
    """One call of `Moves.move`."""

    def __init__(
        self,
        moves: Moves,
        core: Core,
        group: Group,
        first: int,
        count: int,
        target: Target,
        done: Done,
        dropped: Callable[[int], None] | None,
    ) -> None:
        self._dropped = dropped
        self._moves = moves
        self._core = core
        self._group = group
        self._first = first
        self._count = count
        self._target = target
        self._done = done
        self._moved = 0

    def read(self) -> None:
        """Get the next records, as many as one turn may have."""
        reading = self._core.reading
        reading.read(
            self._group.queue.index,
            self._first + self._moved,
            min(self._count - self._moved, reading.limits.pump_count_max),
            reading.limits.pump_bytes_max,
            self._write,
        )

    def _write(self, records: bytes | None, found: int) -> None:
        if records is None:
            self._done(self._moved, self._core.last_read_error or RuntimeError("not readable"))
            return
        if not found:  # a queue in memory has let go of them
            self._group.settle(self._first + self._moved, self._count - self._moved)
            self._done(self._count, None)
            return
        try:
            for run in self._core.metas.runs(records, 0, len(records)):
                self._write_run(run)
        except Refused as error:
            self._done(self._moved, error)
            return
        if self._moved < self._count:
            self._core.reading.schedule(self.read)
        else:
            self._done(self._moved, None)

    def _write_run(self, run: RecordRun) -> None:
        offset = self._first + self._moved
        template = self._target(run.meta)
        if template is None:
            self._core.reading.say_why(self._group, offset, run.count, "nowhere to go")
            self._group.settle(offset, run.count)
            if self._dropped is not None:
                self._dropped(run.count)
        else:
            try:
                self._moves.append_run(run, template, self._group, offset)
            except Refused:
                while self._group.cursor.is_settled(self._first + self._moved):
                    self._moved += 1
                raise
        self._moved += run.count


def settled_by(properties: dict[str, str]) -> tuple[int, int] | None:
    """(group number, offset) of the entry that a record with these properties replaces."""
    value = properties.get(SETTLES_PROPERTY)
    if value is None:
        return None
    number, _, offset = value.partition(".")
    return int(number, 16), int(offset, 16)


# --- rows -----------------------------------------------------------------------------------


def rows_of_batch(template: TopicTemplate, batch: Batch, first: int, last: int) -> Sequence[Row]:
    """Rows of a gateway's batch, their extra properties as a record has them."""
    kind, name = template.record.extra_kind, template.record.extra_name
    rows = []
    for row in range(first, last):
        at = row * COLUMNS
        start, size = batch.rows[at + EXTRA_START], batch.rows[at + EXTRA_SIZE]
        extra = b"" if kind == EXTRA_NONE else bytes(batch.buffer[start : start + size])
        if kind == EXTRA_BASE64:
            extra = b"%b\x01%b\x02" % (name, b2a_base64(extra, newline=False))
        start, size = batch.rows[at + BODY_START], batch.rows[at + BODY_SIZE]
        rows.append(Row(0, extra, bytes(batch.buffer[start : start + size])))
    return rows


def rows_of_run(run: RecordRun) -> Iterator[Row]:
    """The messages of a run of records."""
    memory = run.memory
    at = run.start
    while at < run.end:
        _, _, first, last = properties_span(memory, at)
        body_size = _U32.unpack_from(memory, at + RECORD_BODY_SIZE_AT)[0]
        yield Row(
            _U64.unpack_from(memory, at + RECORD_BORN_MS_AT)[0],
            message_properties(bytes(memory[first + run.meta.prefix_size : last])),
            bytes(memory[at + RECORD_BODY_AT : at + RECORD_BODY_AT + body_size]),
            _U64.unpack_from(memory, at + RECORD_POSITION_AT)[0],
        )
        at += _U32.unpack_from(memory, at)[0]


def message_properties(raw: bytes) -> bytes:
    """Encoded properties without those that belong to the old record."""
    pairs = (pair for pair in raw.split(b"\x02") if pair)
    return b"".join(pair + b"\x02" for pair in pairs if pair.partition(b"\x01")[0] not in _BOUND)


def settling_batch(
    rows: Sequence[Row], number: int, offsets: Sequence[int], *, constant_bytes: int = 0
) -> Batch:
    """The rows as a batch; row k settles offsets[k] of the group `number`, if it has one.

    Args:
        constant_bytes: how many bytes of properties the template has.
    """
    batch = Batch(len(rows))
    parts: list[bytes] = []
    at = 0
    for row, offset in zip(rows, offsets, strict=True):
        extra = row.extra
        if number:
            extra += f"{SETTLES_PROPERTY}\x01{number:x}.{offset:x}\x02".encode()
            extra += replaced_property(row, constant_bytes)
        parts += (extra, row.body)
        body_at = at + len(extra)
        batch.add((at, 0), (body_at, len(row.body)), (at, len(extra)))
        at = body_at + len(row.body)
    batch.buffer = b"".join(parts)
    return batch


def replaced_property(row: Row, constant_bytes: int) -> bytes:
    """The property that says which record another one replaces; nothing if that is not known, or
    may not fit."""
    if not row.position or constant_bytes + len(row.extra) > REPLACED_ROOM:
        return b""
    return f"{REPLACED_PROPERTY}\x01{row.position:x}\x02".encode()


def _settle(group: Group, offsets: Sequence[int]) -> None:
    for first, count in _stretches(offsets):
        group.settle(first, count)


def _stretches(offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Offsets as (first, count) of those that follow each other."""
    first = 0
    for at in range(1, len(offsets) + 1):
        if at == len(offsets) or offsets[at] != offsets[at - 1] + 1:
            yield offsets[first], at - first
            first = at
