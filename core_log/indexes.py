"""All queue indexes of a store: finding, dropping, and storing them at a checkpoint.

Theory of a checkpoint. It is prepared on the loop: it takes note of the flushed position and of the
entries before it that are not stored yet, large ones as views, not copies (`index_work.py`). With
many changed queues that is done in slices (`gather`), between which the loop does other things:
what is appended meanwhile stands behind the position and belongs to the next checkpoint. Then it is
run in a worker, which may take its time: it appends what is new to the pack, moves indexes that
have grown large to files of their own, syncs both, replaces the checkpoint file, and at last
removes the files of dropped queues and of an old pack. A crash between any two of these steps is
one that recovery knows: what the checkpoint does not speak of is cut, and made again from the log.

Rules:

* One checkpoint runs at a time. One that failed or never ran loses nothing: the next takes the
  same entries again. One that comes later than a newer one does nothing.
* To a checkpoint, an index is dropped only if the log says so before its position. Until then it is
  stored, and moved, as the others are: records behind the position may go on in it, and a crash may
  take what says that it was dropped.
* Only the worker changes `extents` and `stored_offset` of an index, after what they say is synced.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from typing import Final

from polymq.core_log.checkpoint import Checkpoint, write_checkpoint
from polymq.core_log.errors import FailureLatch
from polymq.core_log.files import Files
from polymq.core_log.index_files import IndexFiles
from polymq.core_log.index_mending import entry_again
from polymq.core_log.index_work import Locations, Work
from polymq.core_log.packs import (
    BLOCK,
    DROPPED,
    FILED,
    FIRST,
    PACKED,
    PACKS_NAME,
    Packs,
    PackWriter,
)
from polymq.core_log.queue_index import Extents, IndexHome, QueueIndex
from polymq.core_log.reader import LogReader
from polymq.core_log.settings import StoreSettings

INDEXES_NAME: Final = "consumequeue"

MOVES_MAX: Final = 256
"""Indexes that move from the packs to files of their own in one checkpoint: each costs a sync. The
others stay where they are and move later."""


class Indexes:
    """The indexes of one store.

    Args:
        directory: the store's directory.
        generation, length: the current pack.
    """

    def __init__(
        self,
        *,
        directory: str,
        files: Files,
        settings: StoreSettings,
        failure: FailureLatch,
        generation: int = 0,
        length: int = 0,
    ) -> None:
        self._directory = directory
        self._files = files
        self._failure = failure
        self._packed_bytes_max = settings.index_packed_bytes_max
        self._slack_bytes = settings.index_slack_bytes
        self.own = IndexFiles(
            directory=f"{directory}/{INDEXES_NAME}",
            files=files,
            file_entries=settings.index_file_entries,
        )
        self.packs = Packs(
            directory=f"{directory}/{PACKS_NAME}", files=files, generation=generation, length=length
        )
        self.home = IndexHome(self.own, self.packs)
        """What all of them share."""
        self._by_number: dict[int, QueueIndex] = {}
        # Dropped, and the catalogue does not say so: where the log ended then, by number.
        self._dropping: dict[int, tuple[QueueIndex, int]] = {}
        self._prepared_count = 0
        # The worker's answers, for the loop to take at the next preparation.
        self._done_drops: list[int] = []
        self._done_trims: list[tuple[QueueIndex, int]] = []
        # The worker's own.
        self._storing = threading.Lock()
        self._stored_serial = 0
        self._filed: set[int] = set()  # numbers that have a directory
        self._old_packs: list[int] = []  # generations that no checkpoint needs any more
        self.before_checkpoint: Callable[[], None] = lambda: None
        """What else has to be on the disk before a checkpoint says so. Raises OSError."""
        self.checkpointed = 0
        """The position of the last checkpoint that was written."""

    # --- the loop's side ------------------------------------------------------------------------

    def get(self, number: int, entry_size: int) -> QueueIndex:
        """The index of this number, made if there is none.

        Raises:
            ValueError: it exists with another entry size, or was dropped.
        """
        index = self._by_number.get(number)
        if index is None:
            if number in self._dropping:
                raise ValueError(f"queue {number} was dropped; numbers are not used again")
            index = self.add(number, entry_size, 0, 0)
        elif index.entry_size != entry_size:
            raise ValueError(f"queue {number} has entries of {index.entry_size} bytes")
        return index

    def add(
        self,
        number: int,
        entry_size: int,
        first_offset: int,
        end_offset: int,
        extents: Extents = (),
    ) -> QueueIndex:
        """Take in an index of which the entries [first_offset, end_offset) are stored."""
        index = self._by_number[number] = QueueIndex(
            number, entry_size, self.home, first_offset, end_offset, extents
        )
        if end_offset:
            self.packs.live_bytes += live_bytes(index, extents, end_offset)
            if index.filed_offset > first_offset:
                self._filed.add(number)
        return index

    def take_over(self, found: dict[int, QueueIndex], filed: Collection[int]) -> None:
        """Take in all indexes of the catalogue, at a start.

        Args:
            found: they, by number. They were made with `home`.
            filed: those that have files of their own.
        """
        self._by_number = found
        self._filed.update(filed)
        self.packs.live_bytes = sum(
            live_bytes(index, index.extents, index.stored_offset) for index in found.values()
        )

    def make_again_from(self, reader: LogReader) -> None:
        """Where damaged entries are made again from."""

        def again(number: int, offset: int, position: int | None) -> bytes | None:
            made = None if position is None else entry_again(reader, number, offset, position)
            return entry_again(reader, number, offset, reader.start) if made is None else made

        self.home.entry_again = again

    def find(self, number: int) -> QueueIndex | None:
        """The index of this number, or None."""
        return self._by_number.get(number)

    def drop(self, number: int, position: int) -> None:
        """Forget an index. What is stored of it goes with a checkpoint that is not before
        `position`, where the log ends now. No error if there is none."""
        index = self._by_number.get(number)
        if index is not None:
            self._dropping[number] = index, position  # first: the worker looks there last
            del self._by_number[number]

    def numbers(self) -> Collection[int]:
        """The numbers of all indexes."""
        return self._by_number.keys()

    def prepare(self, *, position: int, tail_start: int, store_ms: int) -> Preparation:
        """Begin to take note of what a checkpoint at `position` has to store. Loop's thread.

        Args:
            position: the flushed position.
            tail_start: the oldest position in memory: entries before it need not stay in memory.
            store_ms: the present time, for the checkpoint.
        """
        while self._done_drops:
            self._dropping.pop(self._done_drops.pop(), None)
        while self._done_trims:
            index, first = self._done_trims.pop()
            if index.first_offset == first:
                self.home.trimmed.pop(index, None)
        dropping = []
        for number, (index, dropped_at) in self._dropping.items():
            if dropped_at <= position:
                self.home.changed.pop(index, None)
                self.home.trimmed.pop(index, None)
                dropping.append(number)
        self._prepared_count += 1
        return Preparation(
            self, self.home, position, tail_start, store_ms, self._prepared_count, dropping
        )

    def spill(self, position: int) -> None:
        """Store entries of records before `position` without a checkpoint, to free their memory.
        Recovery only. Raises OSError."""
        preparation = self.prepare(position=position, tail_start=position, store_ms=0)
        preparation.gather_all()
        self._append(preparation.work, ())
        for index in list(self.home.changed):
            if not index.trim(position):
                del self.home.changed[index]

    # --- the worker's side ----------------------------------------------------------------------

    def store(self, preparation: Preparation) -> None:
        """Store what was gathered, and replace the checkpoint. Any thread; one at a time.

        Raises:
            StorageFull: try again with a new preparation. StorageFailed: final.
        """
        with self._storing:
            self._failure.check()
            if preparation.serial < self._stored_serial:
                return  # what it says is stored, and more
            try:
                self._store(preparation)
            except OSError as error:
                raise self._failure.translate("writing a checkpoint", error) from error
            self._stored_serial = preparation.serial
            self.checkpointed = preparation.position

    def _store(self, preparation: Preparation) -> None:
        dropping, work = preparation.dropping, preparation.work
        self._append(work, dropping)
        packs = self.packs
        if packs.length > 2 * packs.live_bytes + self._slack_bytes:
            self._compact(dropping)
        checkpoint = Checkpoint(
            position=preparation.position,
            store_ms=preparation.store_ms,
            pack_generation=packs.generation,
            pack_length=packs.length,
        )
        self.before_checkpoint()
        write_checkpoint(self._files, self._directory, checkpoint)
        # From here on nothing has to be done: recovery would do it too.
        while self._old_packs:
            self._files.unlink(packs.path(self._old_packs[-1]))
            self._old_packs.pop()
        for number in dropping:
            if number in self._filed:
                self.own.remove(number)
                self._filed.discard(number)
        trimmed = self.home.trimmed
        for index, begin in work.begins():
            if begin and index.number in self._filed:
                if begin < index.filed_offset:
                    self.own.remove_before(index.number, index.entry_size, begin)
                else:
                    self.own.remove(index.number)
                    self._filed.discard(index.number)
            if index in trimmed:
                self._done_trims.append((index, begin))
        self._done_drops.extend(dropping)

    def _append(self, work: Work, dropping: Collection[int]) -> None:
        """Append what is new to the pack and to files, and sync. Raises OSError."""
        if not work and not dropping:
            return
        task = _Appending(self.packs.writer(), self.own, self._packed_bytes_max)
        try:
            for index, first, views, count, index_first in work:
                task.store(index, first, views, count, index_first)
            for number in dropping:
                task.writer.add(number, DROPPED, 0, 0, 0)
            task.writer.finish()
        finally:
            task.writer.close()
        self.own.sync_names()
        self._filed.update(task.filed)
        self._publish(task.locations)
        for number in dropping:
            if number in self._dropping:
                gone, _ = self._dropping[number]
                self.packs.live_bytes -= live_bytes(gone, gone.extents, gone.stored_offset)
                gone.extents, gone.stored_offset = (), 0

    def _publish(self, locations: Locations) -> None:
        """Let readers find what is synced."""
        for index, extents, end in locations:
            self.packs.live_bytes += live_bytes(index, extents, end)
            self.packs.live_bytes -= live_bytes(index, index.extents, index.stored_offset)
            index.extents = extents
            index.stored_offset = end

    def _compact(self, dropping: Collection[int]) -> None:
        """Write what counts of the pack to a new one. Raises OSError."""
        packs = self.packs
        old, old_length = packs.generation, packs.length
        locations = Locations()
        handle = self._files.open(packs.path(old))
        try:
            packs.begin(old + 1)
            writer = packs.writer()
            try:
                for index in self._all_but(dropping):
                    if index.stored_offset:
                        extents = self._copy(index, writer, handle)
                        locations.add(index, extents, index.stored_offset)
                writer.finish()
            finally:
                writer.close()
        except BaseException:
            packs.generation, packs.length = old, old_length
            raise
        finally:
            self._files.close(handle)
        packs.live_bytes = 0
        for index, extents, end in locations:
            packs.live_bytes += live_bytes(index, extents, end)
            index.extents = extents
        self._old_packs.append(old)

    def _all_but(self, dropping: Collection[int]) -> Collection[QueueIndex]:
        """All indexes, also those that the loop drops meanwhile, without these."""
        gone = set(dropping)
        found = dict(list(self._by_number.items()))
        for number, (index, _) in list(self._dropping.items()):
            if number not in gone:
                found[number] = index
        return found.values()

    def _copy(self, index: QueueIndex, writer: PackWriter, handle: int) -> Extents:
        """One index in the new pack: where its extents are now."""
        number, size, first = index.number, index.entry_size, index.first_offset
        extents, end = index.extents, index.stored_offset
        first = min(first, end)
        filed = index.filed_offset
        if filed > first or not extents:
            writer.add(number, FILED, size, first, max(filed, first))
        if not extents:
            return ()
        pieces = []
        for at in range(0, len(extents), 2):
            expected = (stored_end(extents, at, end) - extents[at]) * size
            pieces.append(self.packs.read_from(handle, extents[at + 1], number, expected)[1])
        location = writer.add(number, PACKED, size, first, extents[0], end - extents[0], pieces)
        return extents[0], location


class _Appending:
    """The entries of one checkpoint on their way to the disk."""

    def __init__(self, writer: PackWriter, own: IndexFiles, packed_bytes_max: int) -> None:
        self.writer = writer
        self.own = own
        self.packed_bytes_max = packed_bytes_max
        self.filed: list[int] = []
        self.locations = Locations()
        self._moves_left = MOVES_MAX

    def store(
        self, index: QueueIndex, first: int, views: list[memoryview], count: int, index_first: int
    ) -> None:
        """Store entries [first, first + count) of an index, and that it begins at
        `index_first`."""
        size = index.entry_size
        stored = index.stored_offset
        end = first + count
        if end > stored > first:  # an earlier checkpoint, prepared at the same time, has some
            views = skip_bytes(views, (stored - first) * size)
        extents = self._forget(index, index_first)
        if end <= stored:
            self.writer.add(index.number, FIRST, size, index_first, index_first)
            self.locations.add(index, extents, stored)
            return
        packed_from = extents[0] if extents else stored
        new_bytes = (end - stored) * size
        if (end - packed_from) * size > self.packed_bytes_max and (
            new_bytes > self.packed_bytes_max or self._moves_left > 0
        ):
            self._moves_left -= 1
            pieces = [*self._read(index, extents, stored), *views]
            self.own.write(index.number, size, packed_from, pieces)
            self.filed.append(index.number)
            self.writer.add(index.number, FILED, size, index_first, end)
            self.locations.add(index, (), end)
            return
        # Extents of about one size become one: there are as many as the count has binary digits.
        at = len(extents)
        start = stored
        while at and start - extents[at - 2] <= end - start:
            start = extents[at - 2]
            at -= 2
        pieces = [*self._read(index, extents[at:], stored), *views]
        location = self.writer.add(
            index.number, PACKED, size, index_first, start, end - start, pieces
        )
        self.locations.add(index, (*extents[:at], start, location), end)

    def _forget(self, index: QueueIndex, index_first: int) -> Extents:
        """The extents without those that end before the index begins."""
        extents = index.extents
        while len(extents) > 2 and extents[2] <= index_first:
            extents = extents[2:]
        return extents

    def _read(self, index: QueueIndex, extents: Extents, stored: int) -> list[memoryview]:
        """The entries of these extents, which are the last."""
        pieces = []
        for at in range(0, len(extents), 2):
            expected = (stored_end(extents, at, stored) - extents[at]) * index.entry_size
            found = self.writer.read(extents[at + 1], index.number, expected)[1]
            pieces.append(memoryview(found))
        return pieces


class Preparation:
    """A checkpoint that is prepared: `gather` on the loop until it is done, then call it in a
    worker thread.

    Attributes:
        position: the checkpoint's.
        serial: grows with each preparation.
        work: what there is to store.
        dropping: numbers of indexes that were dropped.
    """

    def __init__(
        self,
        indexes: Indexes,
        home: IndexHome,
        position: int,
        tail_start: int,
        store_ms: int,
        serial: int,
        dropping: Collection[int],
    ) -> None:
        self._indexes = indexes
        self.home = home
        self.position = position
        self.store_ms = store_ms
        self.serial = serial
        self.work = Work()
        self.dropping = tuple(dropping)
        self._tail_start = tail_start
        self._changed = list(home.changed)
        self._trimmed = list(home.trimmed)

    def gather(self, count_max: int) -> bool:
        """Take note of up to `count_max` more indexes. Returns whether that was all."""
        changed = self._changed
        for _ in range(min(count_max, len(changed))):
            index = changed.pop()
            first, views, count = index.take_dirty(self.position)
            if count:
                self.work.add(index, first, views, count, index.first_offset)
            if not index.trim(self._tail_start):
                self.home.changed.pop(index, None)
        if changed:
            return False
        for index in self._trimmed:
            if index not in self.work:
                self.work.add(index, index.stored_offset, [], 0, index.first_offset)
        self._trimmed = []
        return True

    def gather_all(self) -> None:
        """All of it at once."""
        self.gather(len(self._changed))

    def __call__(self) -> None:
        """Write it. Raises StorageFull, StorageFailed."""
        self._indexes.store(self)


def stored_end(extents: Extents, at: int, stored: int) -> int:
    """Where the extent at `at` ends."""
    return extents[at + 2] if at + 2 < len(extents) else stored


def live_bytes(index: QueueIndex, extents: Extents, end: int) -> int:
    """What a compacted pack would hold of an index with these extents."""
    if not end:
        return 0
    entries = (end - extents[0]) * index.entry_size if extents else 0
    return 2 * BLOCK.size + entries


def skip_bytes(views: list[memoryview], count: int) -> list[memoryview]:
    """Consecutive views without their first `count` bytes."""
    left = []
    for view in views:
        if count < len(view):
            left.append(view[count:])
        count = max(count - len(view), 0)
    return left
