"""Taking another broker's log, byte for byte.

Theory. The bytes come in order, cut anywhere. Whole records are checked (size, place, checksum, and
that atomic batches are whole) before they are appended; the rest waits in memory. They are appended
as they are, so that this log is the same as the other: the segments end where a blank record says
so, in both. Entries of queue indexes are made as recovery makes them.

Rules:

* Nothing is appended that recovery would cut: a piece ends at the end of a record, never inside an
  atomic batch.
* What does not belong at the log's end, or is damaged, is an error of the other side: nothing of it
  is appended.
* All of it belongs to the loop's thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from polymq.core_log.epochs import epochs_of, marks_of
from polymq.core_log.errors import CorruptRecord
from polymq.core_log.kernels import walking
from polymq.core_log.kernels.batch import BLANK_SIZE
from polymq.core_log.kernels.layout import (
    NO_BATCH,
    PROPERTY_EPOCH,
    REASONS,
    STOP_BLANK,
    STOP_END,
    STOP_SHORT,
    SYSTEM_TOPIC,
)
from polymq.core_log.record import Record, decode_record
from polymq.core_log.store import Store

SHORT: Final = (STOP_END, STOP_SHORT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What one piece of the other log brought.

    Attributes:
        end: where the log ends now.
        queues: number and first new offset of each queue that got messages.
        records: the whole records, one after the other.
    """

    end: int
    queues: tuple[tuple[int, int], ...]
    records: bytes

    def marked(self, system_flags: int) -> Iterator[Record]:
        """The system records of it, and those with one of these bits in their system flag."""
        memory = self.records
        for at in walking.find_marked(memory, 0, len(memory), SYSTEM_TOPIC, system_flags):
            yield decode_record(memory, at, verify=False)


class Following:
    """Appends what comes of another log to a store that was opened with `follows`.

    Attributes:
        waiting_bytes: how much came that is not whole yet.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rest = b""

    @property
    def end(self) -> int:
        """The log's end: what comes next belongs behind this and what waits."""
        return self._store.log.appended

    @property
    def waiting_bytes(self) -> int:
        """See above."""
        return len(self._rest)

    @property
    def wanted(self) -> int:
        """The position of the byte that has to come next."""
        return self._store.log.appended + len(self._rest)

    def forget(self) -> None:
        """The other side is gone: what is not whole will come again."""
        self._rest = b""

    def take(self, data: bytes) -> list[Taken]:
        """Append what is whole by now.

        Returns:
            What was appended; a segment's end divides it.

        Raises:
            CorruptRecord: the bytes are not what has to stand there.
            StorageFull, StorageFailed: nothing of this call was appended that is not told.
        """
        self._rest = self._rest + data if self._rest else data
        found = []
        while self._rest:
            log = self._store.log
            size, _, reason, batch = walking.scan(
                self._rest, 0, len(self._rest), log.appended, NO_BATCH
            )
            if batch != NO_BATCH:  # the rest of the batch has to come first
                size = batch[0] - log.appended
            if size:
                if size > log.remaining - BLANK_SIZE:
                    raise CorruptRecord(log.appended, "it would pass the end of its segment")
                found.append(self._append(self._rest[:size]))
                self._rest = self._rest[size:]
            if reason == STOP_BLANK and batch == NO_BATCH:
                if int.from_bytes(self._rest[:4], "big") != log.remaining:
                    raise CorruptRecord(log.appended, "the segment does not end there")
                log.roll_copy()
                self._rest = self._rest[BLANK_SIZE:]
                found.append(Taken(end=log.appended, queues=(), records=b""))
                continue
            if reason not in SHORT:
                raise CorruptRecord(log.appended, REASONS[reason])
            if len(self._rest) > log.remaining:
                raise CorruptRecord(log.appended, "it would pass the end of its segment")
            break
        return found

    def _append(self, records: bytes) -> Taken:
        store = self._store
        tables: dict[int, list[object]] = {}
        bad = walking.dispatch(records, 0, len(records), tables)
        if bad >= 0:
            raise CorruptRecord(store.log.appended + bad, "it does not follow in its queues")
        for number, (entry_size, first, *_) in tables.items():
            index = store.find_index(number)
            if index is not None and (index.entry_size != entry_size or index.end_offset != first):
                raise CorruptRecord(
                    store.log.appended, f"queue {number} goes on at {index.end_offset}, not {first}"
                )
        position = store.log.appended
        store.log.append_copy(records)
        queues = []
        for number, (entry_size, first, _, entries) in tables.items():
            assert isinstance(entry_size, int)
            assert isinstance(first, int)
            assert isinstance(entries, bytearray)
            store.begin_index(number, entry_size, first).append(bytes(entries))
            queues.append((number, first))
        for at in walking.find_system(records, 0, len(records), SYSTEM_TOPIC, PROPERTY_EPOCH):
            record = decode_record(records, at, verify=False)
            store.saw_epochs(epochs_of(record, position + at), marks_of(record))
        return Taken(end=store.log.appended, queues=tuple(queues), records=records)
