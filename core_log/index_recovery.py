"""Recovery's last pass: the queue indexes.

Theory. The log is the truth: every record names its queues and its offset in each. So an index is
a cache that is synced up to the checkpoint, and its entries behind the checkpoint are always made
again from the log. What remains is to find out where each index ends at the checkpoint, and
whether one is missing or damaged:

* The checkpoint names the pack and its length; what is behind is cut. The pack is read from its
  beginning: it says of each index what counts, and its frames have checksums.
* Of an index with files of its own, the files have to be as long as the pack says, and the record
  of the last entry has to name this queue and this offset. What is behind is cut.
* Files of indexes that the pack does not speak of, and other packs, are removed.

Entries that were made again stay in memory, as if their records had just been appended: the next
checkpoint stores them, while the server runs. To store those of a hundred thousand queues takes
longer than to make them again, and a crash before that checkpoint leaves what this one left: the
next recovery does the same. Only where something was damaged does recovery end with a checkpoint.

If an index's own files are not as they should be, they are made again from the log, and no other
index is touched (`index_mending.py`). That reads the whole log. A damaged record that its entry
names rightly is no reason: reading that message is an error, as it is anywhere.

If the pack is not as it should be, the checkpoint is removed, all indexes are removed, and all are
made again from the log's beginning. If a record of it is damaged, it is said before anything is
removed: without the checkpoint, the log would seem to end there.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from polymq.core_log.checkpoint import CHECKPOINT_NAME, Checkpoint
from polymq.core_log.errors import (
    CorruptRecord,
    FailureLatch,
    StorageFailed,
    StorageFull,
    StoreCorrupt,
)
from polymq.core_log.files import Files, sync_file, sync_names
from polymq.core_log.index_files import MENDING_SUFFIX
from polymq.core_log.index_mending import Contradiction, Mending, mend
from polymq.core_log.indexes import INDEXES_NAME, Indexes
from polymq.core_log.kernels import walking, writing
from polymq.core_log.kernels.batch import DISPATCH_TARGETS_MAX
from polymq.core_log.kernels.layout import ENTRY_SIZE, REASONS, RECORD_SIZE_MIN
from polymq.core_log.packs import BLOCK, DROPPED, FILED, PACKED, PACKS_NAME, PackDamaged
from polymq.core_log.queue_index import QueueIndex
from polymq.core_log.reader import LogReader
from polymq.core_log.record import decode_record
from polymq.core_log.segments import NAME_DIGITS
from polymq.core_log.settings import StoreSettings

SPILL_BYTES_MAX: Final = 128 << 20
"""Entries made again that may be in memory before they are written, with what indexes need to hold
them. Half as much of the log is read before the indexes get the entries of its records."""
TAIL_BYTES: Final = 512
"""What an index needs to hold entries in memory."""
DAMAGED: Final = "an index is missing or damaged"
CHECKPOINT_DAMAGED: Final = "the checkpoint is damaged"
"""No crash does that, as it is replaced whole: then more may be damaged."""


@dataclass(slots=True, kw_only=True)
class IndexRecovery:
    """What was found and done."""

    indexes: Indexes
    removed: list[str] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)
    rebuilt: dict[int, int] = field(default_factory=dict)
    rebuilt_all: str = ""
    mended: list[str] = field(default_factory=list)


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
        StoreCorrupt: the log contradicts itself, or is damaged below the checkpoint and needed.
        StorageFull, StorageFailed, OSError: try again.
    """
    passes = _Passes(directory, files, reader, settings, failure)
    try:
        if checkpoint is None:
            raise Mismatch(passes.why_no_checkpoint())
        result = passes.take_over(checkpoint, now_ms)
        passes.rebuild(result, checkpoint.position, end)
    except Mismatch as mismatch:
        if checkpoint is not None:  # else the scan has just read it all
            passes.check_log(start, end, str(mismatch))
        checkpoint = None
        result = passes.start_anew()
        # Nothing is lost where the log is empty, and nothing is worth a word but damage.
        is_reported = start < end or str(mismatch) == CHECKPOINT_DAMAGED
        result.rebuilt_all = str(mismatch) if is_reported else ""
        try:
            passes.rebuild(result, start, end)
        except Mismatch as contradiction:
            raise StoreCorrupt(
                f"{directory}: the log contradicts itself: {contradiction}"
            ) from None
    result.indexes.checkpointed = 0 if checkpoint is None else checkpoint.position
    if checkpoint is None or result.mended:
        preparation = result.indexes.prepare(position=end, tail_start=end, store_ms=now_ms)
        preparation.gather_all()
        with suppress(StorageFull):  # what was made again stays in memory until there is room
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
        self._packs = f"{directory}/{PACKS_NAME}"
        self._files = files
        self._reader = reader
        self._settings = settings
        self._failure = failure
        self._half_made: set[int] = set()  # indexes whose mending did not come to its end

    def _begin(self, generation: int, length: int) -> IndexRecovery:
        indexes = Indexes(
            directory=self._root,
            files=self._files,
            settings=self._settings,
            failure=self._failure,
            generation=generation,
            length=length,
        )
        indexes.make_again_from(self._reader)
        return IndexRecovery(indexes=indexes)

    def _numbers(self, result: IndexRecovery) -> list[int]:
        """The indexes that have a directory. Other names are strays, or notes that an index was
        being made again."""
        numbers = []
        for name in self._files.list(self._directory):
            number = name.removesuffix(MENDING_SUFFIX)
            if not (number.isascii() and number.isdigit() and str(int(number)) == number):
                result.strays.append(f"{self._directory}/{name}")
            elif number == name:
                numbers.append(int(name))
            else:
                self._half_made.add(int(number))
        return numbers

    def _generations(self, result: IndexRecovery) -> list[int]:
        """The packs that there are. Other names are strays."""
        generations = []
        for name in self._files.list(self._packs):
            if len(name) == NAME_DIGITS and name.isascii() and name.isdigit():
                generations.append(int(name))
            else:
                result.strays.append(f"{self._packs}/{name}")
        return generations

    def why_no_checkpoint(self) -> str:
        """Why there is no sound checkpoint."""
        there = CHECKPOINT_NAME in self._files.list(self._root)
        return CHECKPOINT_DAMAGED if there else "there is no checkpoint"

    # --- taking over what is there --------------------------------------------------------------

    def take_over(self, checkpoint: Checkpoint, now_ms: int) -> IndexRecovery:
        """The indexes as the checkpoint left them. Raises Mismatch."""
        result = self._begin(checkpoint.pack_generation, checkpoint.pack_length)
        indexes = result.indexes
        found = read_catalogue(indexes)
        numbers = self._numbers(result)
        filed = {  # without a call for each of many indexes
            number
            for number, index in found.items()
            if (index.extents or (index.stored_offset,))[0] > index.first_offset
        }
        damaged = [
            number
            for number in sorted(filed)
            if number in self._half_made
            or number not in numbers
            or not self._are_sound(indexes, number, found[number])
        ]
        firsts = self._mend(result, {n: found[n] for n in damaged}, checkpoint.position, now_ms)
        for number in self._half_made - filed:
            indexes.own.end_mending(number)
        indexes.take_over(found, filed)
        useless = [number for number in numbers if number not in filed]
        for number in useless:
            indexes.own.remove(number)
            result.removed.append(f"{self._directory}/{number}: none of its entries counts")
        for number in sorted(filed):
            index = found[number]
            indexes.own.cut(number, index.entry_size, index.filed_offset)
            indexes.own.remove_before(number, index.entry_size, index.first_offset)
        for number, first in firsts.items():
            found[number].trim_before(first)
        if useless:
            sync_names(self._files, self._directory)
        self._clean_packs(result, checkpoint)
        return result

    def _mend(
        self, result: IndexRecovery, damaged: dict[int, QueueIndex], stop: int, now_ms: int
    ) -> dict[int, int]:
        """Make the files of damaged indexes again. Returns where each begins now. Raises
        Mismatch."""
        mendings = {
            number: Mending(
                number, index.entry_size, index.first_offset, index.filed_offset, index.first_offset
            )
            for number, index in damaged.items()
        }
        if not mendings:
            return {}
        own = result.indexes.own
        try:
            mend(mendings, own=own, reader=self._reader, stop=stop, now_ms=now_ms)
        except Contradiction as error:
            raise Mismatch(DAMAGED) from error
        for number, mending in mendings.items():
            text = f"the index of queue {number} was damaged, and is made again from the log"
            if mending.lost:
                text += f"; {mending.lost} of its messages are behind a damaged record"
            result.mended.append(text)
        return {number: mending.first for number, mending in mendings.items()}

    def _are_sound(self, indexes: Indexes, number: int, index: QueueIndex) -> bool:
        """Whether an index's own files hold what they should, as far as sizes and the last entry
        tell."""
        size, filed = index.entry_size, index.filed_offset
        last = filed - 1
        if not indexes.own.covers(number, size, index.first_offset, filed):
            return False
        try:
            entry = indexes.own.read(number, size, last, 1)
        except StorageFailed:
            return False
        if size != ENTRY_SIZE and writing.find_damaged(entry) >= 0:
            return False
        position = int.from_bytes(entry[:8], "big")
        record_size = int.from_bytes(entry[8:12], "big")
        return record_size >= RECORD_SIZE_MIN and self._names_it(
            position, record_size, number, last, size == ENTRY_SIZE
        )

    def _names_it(self, position: int, size: int, number: int, offset: int, own: bool) -> bool:
        """Whether the record there names this queue and offset; or is damaged, but looks like the
        record that the entry speaks of."""
        try:
            record = self._reader.record_at(position)
        except CorruptRecord:
            return True  # the disk cannot read it: the entry is not to blame
        if record is None:
            return self._reader.looks_like_record(position, size)
        if record.size != size:
            return False
        targets = record.targets
        if own:
            return targets[:1] == ((number, offset),)
        return (number, offset) in targets[1:] or len(targets) == DISPATCH_TARGETS_MAX

    def _clean_packs(self, result: IndexRecovery, checkpoint: Checkpoint) -> None:
        """Cut what the checkpoint does not speak of."""
        packs, files = result.indexes.packs, self._files
        for generation in self._generations(result):
            path = packs.path(generation)
            if generation != checkpoint.pack_generation:
                files.unlink(path)
                result.removed.append(f"{path}: the checkpoint names another pack")
                continue
            handle = files.open(path)
            try:
                if files.size(handle) > checkpoint.pack_length:
                    files.truncate(handle, checkpoint.pack_length)
                    sync_file(files, handle)
            finally:
                files.close(handle)

    # --- making entries again -------------------------------------------------------------------

    def check_log(self, start: int, end: int, why: str) -> None:
        """Raise StoreCorrupt unless all records of [start, end) are sound. Changes nothing."""
        walk = self._reader.walk(start)
        for _ in walk.stretches():
            pass
        if walk.position < end:
            raise StoreCorrupt(
                f"{self._root}: {why}, so the indexes have to be made again from the log, whose"
                f" record at {walk.position} is damaged ({REASONS[walk.reason]}): restore that"
                " file of the log, or the directory, from a copy"
            )

    def start_anew(self) -> IndexRecovery:
        """No indexes at all, and no checkpoint that could mistake half-made ones for whole."""
        self._files.unlink(f"{self._root}/{CHECKPOINT_NAME}")
        sync_names(self._files, self._root)
        result = self._begin(0, 0)
        for number in self._numbers(result):
            result.indexes.own.remove(number)
        for number in self._half_made:
            result.indexes.own.end_mending(number)
        sync_names(self._files, self._directory)
        packs = result.indexes.packs
        generations = self._generations(result)
        if generations:  # a new name: an old file that comes back cannot be taken for it
            packs.begin(max(generations) + 1)
            for generation in generations:
                self._files.unlink(packs.path(generation))
            sync_names(self._files, self._packs)
        return result

    def rebuild(self, result: IndexRecovery, start: int, end: int) -> None:
        """Make the entries of the records [start, end) again. Raises Mismatch."""
        tables: dict[int, list[object]] = {}
        read = held = 0  # bytes of the log whose entries are in the tables; of those in indexes
        walk = self._reader.walk(start)
        for memory, size, position in walk.stretches():
            bad = walking.dispatch(memory, 0, size, tables)
            if bad >= 0:
                record = decode_record(memory, bad, verify=False)
                raise Mismatch(f"the record at {record.position} does not follow in its queues")
            read += size
            if read > SPILL_BYTES_MAX // 2:
                held += self._merge(result, tables)
                read = 0
                if held > SPILL_BYTES_MAX:
                    result.indexes.spill(position + size)
                    held = 0
        self._merge(result, tables)
        if walk.position != end:
            raise Mismatch(f"the records behind {walk.position} are not sound any more")

    def _merge(self, result: IndexRecovery, tables: dict[int, list[object]]) -> int:
        """Append what the tables gathered to the indexes, and empty the tables. Returns how many
        bytes of memory that takes, or a little less."""
        size = len(tables) * TAIL_BYTES
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
            size += len(entries)
            result.rebuilt.setdefault(number, first)
        tables.clear()
        return size


def read_catalogue(indexes: Indexes) -> dict[int, QueueIndex]:
    """The indexes that the pack speaks of, as its blocks say. Raises Mismatch.

    A start with a hundred thousand queues comes here for each of two hundred thousand blocks: so
    nearly all of them, the first of an index that has entries, are dealt with first.
    """
    home, unpack = indexes.home, BLOCK.unpack_from
    found: dict[int, QueueIndex] = {}
    known = found.get
    try:
        for body, count, location in indexes.packs.frames():
            at = 0
            for _ in range(count):
                number, kind, size, _, index_first, first, entries, _ = unpack(body, at)
                index, end = known(number), first + entries
                if kind == PACKED:
                    if index is None:
                        begin = min(end, index_first)
                        extents = (first, location + at)
                        found[number] = QueueIndex(number, size, home, begin, end, extents)
                    else:
                        _go_on(index, first, location + at)
                        index.stored_offset = index.end_offset = end
                        index.first_offset = min(index_first, end)
                    at += entries * size
                elif kind == DROPPED:
                    found.pop(number, None)
                elif index is None:
                    found[number] = QueueIndex(number, size, home, min(index_first, end), end)
                else:
                    if kind == FILED:
                        index.extents = ()
                        index.stored_offset = index.end_offset = end
                    index.first_offset = min(index_first, index.end_offset)
                at += BLOCK.size
    except PackDamaged as error:
        raise Mismatch(DAMAGED) from error
    return found


def _go_on(index: QueueIndex, first: int, location: int) -> None:
    """A later block has the entries from `first` on. Raises Mismatch."""
    extents, end = index.extents, index.end_offset
    while extents and extents[-2] >= first:
        end = extents[-2]
        extents = extents[:-2]
    if first != end:
        raise Mismatch(DAMAGED)
    index.extents = (*extents, first, location)
