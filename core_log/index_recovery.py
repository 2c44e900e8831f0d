"""Recovery's last pass: the queue indexes.

Theory. The log is the truth: every record names its queues and its offset in each. So an index is
a cache that is synced up to the checkpoint, and its entries behind the checkpoint are always made
again from the log. What remains is to find out where each index ends at the checkpoint, and
whether one is missing or damaged:

* An entry counts only if its record stands before the checkpoint and names this queue and this
  offset. The last entry that counts is looked for from the file's end backwards. What is behind it
  is cut.
* The entry size is not written anywhere. It is the one with which an entry counts.
* The checkpoint holds a sum over all indexes. If what is found has another sum, the checkpoint is
  removed, all indexes are removed, and all are made again from the log's beginning.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from core_log import kernels
from core_log.checkpoint import CHECKPOINT_NAME, Checkpoint
from core_log.errors import CorruptRecord, FailureLatch, StoreCorrupt
from core_log.files import Files
from core_log.indexes import INDEXES_NAME, Indexes, remove_index_files
from core_log.kernels.batch import DISPATCH_TARGETS_MAX
from core_log.kernels.layout import ENTRY_SIZE, PRIVATE_ENTRY_SIZE, RECORD_SIZE_MIN
from core_log.reader import LogReader
from core_log.record import decode_record
from core_log.segments import NAME_DIGITS
from core_log.settings import StoreSettings

READ_ENTRIES: Final = 3200
"""Entries of one read while looking backwards."""
WRONG_ENTRIES_MAX: Final = 100
"""Entries below the checkpoint that do not count, before an index is given up as damaged: a sound
index has none."""
SPILL_BYTES_MAX: Final = 64 << 20
"""Entries made again that may be in memory before they are written."""


@dataclass(slots=True, kw_only=True)
class IndexRecovery:
    """What was found and done."""

    indexes: Indexes
    removed: list[str] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)
    rebuilt: dict[int, int] = field(default_factory=dict)
    rebuilt_all: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundIndex:
    """An index as its files show it: the entries [first_offset, end_offset) count."""

    number: int
    entry_size: int
    first_offset: int
    end_offset: int


class Mismatch(Exception):
    """The indexes do not belong to this log and checkpoint; the text says why."""


def recover_indexes(
    *,
    directory: str,
    files: Files,
    reader: LogReader,
    settings: StoreSettings,
    failure: FailureLatch,
    checkpoint: Checkpoint | None,
    start: int,
    end: int,
    now_ms: int,
) -> IndexRecovery:
    """The indexes of a log that has the records [start, end).

    Raises:
        StoreCorrupt: the log contradicts itself. StorageFull, StorageFailed, OSError: try again.
    """
    passes = _Passes(directory, files, reader, settings, failure)
    try:
        if checkpoint is None:
            raise Mismatch("there is no sound checkpoint")
        result = passes.take_over(checkpoint)
        passes.rebuild(result, checkpoint.position, end)
    except Mismatch as mismatch:
        checkpoint = None
        result = passes.start_anew()
        # Nothing is lost where the log is empty, and nothing is worth a word.
        result.rebuilt_all = str(mismatch) if start < end else ""
        try:
            passes.rebuild(result, start, end)
        except Mismatch as contradiction:
            raise StoreCorrupt(
                f"{directory}: the log contradicts itself: {contradiction}"
            ) from None
    preparation = result.indexes.prepare(position=end, tail_start=end, store_ms=now_ms)
    known = None if checkpoint is None else (checkpoint.position, checkpoint.index_sum)
    if known != (end, preparation.checkpoint.index_sum) or (checkpoint and checkpoint.dropping):
        preparation()
    return result


class _Passes:
    def __init__(
        self,
        directory: str,
        files: Files,
        reader: LogReader,
        settings: StoreSettings,
        failure: FailureLatch,
    ) -> None:
        self._root = directory
        self._directory = f"{directory}/{INDEXES_NAME}"
        self._files = files
        self._reader = reader
        self._file_entries = settings.index_file_entries
        self._failure = failure

    def _empty(self) -> IndexRecovery:
        return IndexRecovery(
            indexes=Indexes(
                directory=self._root,
                files=self._files,
                file_entries=self._file_entries,
                failure=self._failure,
            )
        )

    # --- taking over what is there --------------------------------------------------------------

    def take_over(self, checkpoint: Checkpoint) -> IndexRecovery:
        """The indexes as the checkpoint left them. Raises Mismatch."""
        result = self._empty()
        found: list[FoundIndex] = []
        useless: list[int] = []
        for name in self._files.list(self._directory):
            if not (name.isascii() and name.isdigit() and str(int(name)) == name):
                result.strays.append(f"{self._directory}/{name}")
            elif int(name) in checkpoint.dropping:
                useless.append(int(name))
            else:
                index = self._measure(int(name), checkpoint.position)
                if index is None:
                    useless.append(int(name))
                else:
                    found.append(index)
        for index in found:
            result.indexes.add(index.number, index.entry_size, index.first_offset, index.end_offset)
        if result.indexes.digest != (checkpoint.index_count, checkpoint.index_sum):
            raise Mismatch("an index is missing or damaged")
        for number in useless:
            remove_index_files(self._files, self._root, number)
            result.removed.append(f"{self._directory}/{number}: none of its entries counts")
        for index in found:
            self._cut(index)
        if useless:
            self._files.sync_directory(self._directory)
        return result

    def _measure(self, number: int, position: int) -> FoundIndex | None:
        """What of an index's files counts at the log position `position`; None if nothing."""
        names = self._names(number)
        sizes = []
        for name in names:
            handle = self._files.open(f"{self._directory}/{number}/{name}")
            try:
                sizes.append(self._files.size(handle))
            finally:
                self._files.close(handle)
        for entry_size in (ENTRY_SIZE, PRIVATE_ENTRY_SIZE):
            found = self._measure_as(number, entry_size, names, sizes, position)
            if found is not None:
                return found
        return None

    def _names(self, number: int) -> list[str]:
        return [
            name
            for name in self._files.list(f"{self._directory}/{number}")
            if len(name) == NAME_DIGITS and name.isdigit()
        ]

    def _measure_as(
        self, number: int, entry_size: int, names: list[str], sizes: list[int], position: int
    ) -> FoundIndex | None:
        """The same, if the entries have this size."""
        whole = entry_size * self._file_entries
        if any(int(name) % whole for name in names):
            return None
        for place in range(len(names) - 1, -1, -1):
            base = int(names[place])
            count = min(sizes[place], whole) // entry_size
            end = self._last_that_counts(number, entry_size, names[place], count, position)
            if end is None:
                continue
            for before in range(place):
                if sizes[before] < whole or int(names[before]) + whole != int(names[before + 1]):
                    return None
            first = self._first_that_is_set(number, entry_size, names[0])
            return FoundIndex(
                number=number,
                entry_size=entry_size,
                first_offset=int(names[0]) // entry_size + first,
                end_offset=base // entry_size + end,
            )
        return None

    def _read(self, number: int, name: str, start: int, size: int) -> bytes:
        handle = self._files.open(f"{self._directory}/{number}/{name}")
        try:
            return self._files.pread(handle, size, start)
        finally:
            self._files.close(handle)

    def _last_that_counts(
        self, number: int, entry_size: int, name: str, count: int, position: int
    ) -> int | None:
        """How many of a file's first `count` entries count: the last one that does, plus one."""
        base = int(name) // entry_size
        wrong = 0
        while count > 0:
            first = max(count - READ_ENTRIES, 0)
            entries = self._read(number, name, first * entry_size, (count - first) * entry_size)
            for index in range(len(entries) // entry_size - 1, -1, -1):
                at = index * entry_size
                place = int.from_bytes(entries[at : at + 8], "big")
                size = int.from_bytes(entries[at + 8 : at + 12], "big")
                if place >= position or size < RECORD_SIZE_MIN:
                    continue
                own = entry_size == ENTRY_SIZE
                if self._names_it(place, size, number, base + first + index, own):
                    return first + index + 1
                wrong += 1
                if wrong > WRONG_ENTRIES_MAX:
                    return None
            count = first
        return None

    def _names_it(self, position: int, size: int, number: int, offset: int, own: bool) -> bool:
        """Whether the record there names this queue and offset."""
        try:
            record = self._reader.record_at(position)
        except CorruptRecord:
            return False
        if record is None or record.size != size:
            return False
        targets = record.targets
        if own:
            return targets[:1] == ((number, offset),)
        return (number, offset) in targets[1:] or len(targets) == DISPATCH_TARGETS_MAX

    def _first_that_is_set(self, number: int, entry_size: int, name: str) -> int:
        """How many entries at a file's start were never written (a queue known in part)."""
        skipped = 0
        while True:  # ends at the entry that counts, at the latest
            entries = self._read(number, name, skipped * entry_size, READ_ENTRIES * entry_size)
            unset = len(entries) - len(entries.lstrip(b"\0"))
            skipped += unset // entry_size
            if unset < len(entries) or not entries:
                return skipped

    def _cut(self, index: FoundIndex) -> None:
        """Remove entries behind the end."""
        size = index.entry_size
        end = index.end_offset * size
        for name in reversed(self._names(index.number)):
            path = f"{self._directory}/{index.number}/{name}"
            if int(name) >= end:
                self._files.unlink(path)
                continue
            handle = self._files.open(path)
            try:
                if self._files.size(handle) > end - int(name):
                    self._files.truncate(handle, end - int(name))
                    self._files.fdatasync(handle)
            finally:
                self._files.close(handle)
            return

    # --- making entries again -------------------------------------------------------------------

    def start_anew(self) -> IndexRecovery:
        """No indexes at all, and no checkpoint that could mistake half-made ones for whole."""
        self._files.unlink(f"{self._root}/{CHECKPOINT_NAME}")
        self._files.sync_directory(self._root)
        result = self._empty()
        for name in self._files.list(self._directory):
            if name.isascii() and name.isdigit() and str(int(name)) == name:
                remove_index_files(self._files, self._root, int(name))
            else:
                result.strays.append(f"{self._directory}/{name}")
        self._files.sync_directory(self._directory)
        return result

    def rebuild(self, result: IndexRecovery, start: int, end: int) -> None:
        """Make the entries of the records [start, end) again. Raises Mismatch."""
        tables: dict[int, list[object]] = {}
        held = 0
        for memory, size, position in self._reader.walk(start).stretches():
            bad = kernels.dispatch(memory, 0, size, tables)
            if bad >= 0:
                record = decode_record(memory, bad, verify=False)
                raise Mismatch(f"the record at {record.position} does not follow in its queues")
            held += size
            if held > SPILL_BYTES_MAX:
                self._merge(result, tables)
                result.indexes.spill(position + size)
                held = 0
        self._merge(result, tables)
        assert start <= end

    def _merge(self, result: IndexRecovery, tables: dict[int, list[object]]) -> None:
        """Append what the tables gathered to the indexes, and empty the tables."""
        for number, (entry_size, first, _next, entries) in tables.items():
            assert isinstance(entry_size, int)
            assert isinstance(first, int)
            assert isinstance(entries, bytearray)
            index = result.indexes.find(number)
            if index is None:
                index = result.indexes.add(number, entry_size, first, first)
            if index.entry_size != entry_size or index.end_offset != first:
                raise Mismatch(f"queue {number} goes on at {first}, not at {index.end_offset}")
            index.append(bytes(entries))
            result.rebuilt.setdefault(number, first)
        tables.clear()
