"""All queue indexes of a store: finding, dropping, and storing them at a checkpoint.

Theory of a checkpoint. `prepare` runs on the loop and is quick: it takes note of the flushed
position and copies the entries before it that are not in files yet. `Preparation.run` runs in a
worker and may take its time: it writes and syncs those entries, then replaces the checkpoint file,
then removes the files of dropped queues. A crash between any two of these steps is one that
recovery knows: entries behind the checkpoint are made again, and files of dropped queues are named
by the checkpoint.

Rules:

* One preparation runs at a time. One that failed or never ran loses nothing: the next takes the
  same entries again.
* `index_sum` covers what the files hold below the checkpoint's position, nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable
from typing import Final

from core_log.checkpoint import (
    DROPPING_COUNT_MAX,
    Checkpoint,
    add_digests,
    index_digest,
    write_checkpoint,
)
from core_log.errors import FailureLatch
from core_log.files import Files
from core_log.queue_index import QueueIndex

INDEXES_NAME: Final = "consumequeue"


class Indexes:
    """The indexes of one store.

    Args:
        directory: the store's directory.
        file_entries: how many entries one file of an index holds.
    """

    def __init__(
        self, *, directory: str, files: Files, file_entries: int, failure: FailureLatch
    ) -> None:
        self._directory = directory
        self._files = files
        self._file_entries = file_entries
        self._failure = failure
        self._by_number: dict[int, QueueIndex] = {}
        self._changed: set[QueueIndex] = set()  # those with entries in memory
        self._digests: dict[int, int] = {}  # what each index adds to the sum
        self._sum = 0
        self._dropping: set[int] = set()  # dropped, files may be there
        self._removed: list[int] = []  # the worker's answer: files are gone
        self._checkpointing = threading.Lock()

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

    def add(self, number: int, entry_size: int, first_offset: int, end_offset: int) -> QueueIndex:
        """Take in an index whose files hold the entries [first_offset, end_offset)."""
        index = self._by_number[number] = QueueIndex(
            number=number,
            entry_size=entry_size,
            directory=f"{self._directory}/{INDEXES_NAME}/{number}",
            files=self._files,
            file_entries=self._file_entries,
            changed=self._changed,
            first_offset=first_offset,
            end_offset=end_offset,
        )
        self._note(index, end_offset)
        return index

    def find(self, number: int) -> QueueIndex | None:
        """The index of this number, or None."""
        return self._by_number.get(number)

    def drop(self, number: int) -> None:
        """Forget an index; its files go with the next checkpoint. No error if there is none."""
        index = self._by_number.pop(number, None)
        if index is not None:
            self._changed.discard(index)
            self._dropping.add(number)
            self._sum = add_digests(self._sum, 0, self._digests.pop(number, 0))

    def numbers(self) -> Collection[int]:
        """The numbers of all indexes."""
        return self._by_number.keys()

    @property
    def digest(self) -> tuple[int, int]:
        """How many indexes have entries in files, and the sum over them."""
        return len(self._digests), self._sum

    def _note(self, index: QueueIndex, end_offset: int) -> None:
        """Let the sum say that the files of an index hold its entries up to `end_offset`."""
        number = index.number
        digest = index_digest(number, index.entry_size, index.first_offset, end_offset)
        self._sum = add_digests(self._sum, digest, self._digests.pop(number, 0))
        if digest:
            self._digests[number] = digest

    def prepare(self, *, position: int, tail_start: int, store_ms: int) -> Preparation:
        """Take note of what a checkpoint at `position` has to store. Loop's thread.

        Args:
            position: the flushed position.
            tail_start: the oldest position in memory: entries before it need not stay in memory.
            store_ms: the present time, for the checkpoint.
        """
        work = []
        for index in tuple(self._changed):
            first, entries = index.take_dirty(position)
            if entries:
                work.append((index, first, entries))
                self._note(index, first + len(entries) // index.entry_size)
            index.trim(tail_start)
        while self._removed:
            self._dropping.discard(self._removed.pop())
        dropping = tuple(sorted(self._dropping)[:DROPPING_COUNT_MAX])
        count, total = self.digest
        checkpoint = Checkpoint(
            position=position,
            store_ms=store_ms,
            index_count=count,
            index_sum=total,
            dropping=dropping,
        )
        return Preparation(self, work, checkpoint)

    def spill(self, position: int) -> None:
        """Write entries of records before `position` without a checkpoint, to free their memory.
        Recovery only. Raises OSError."""
        for index in tuple(self._changed):
            first, entries = index.take_dirty(position)
            if entries:
                index.write_files(first, entries)
            index.trim(position)

    def store(self, work: Iterable[tuple[QueueIndex, int, bytes]], checkpoint: Checkpoint) -> None:
        """Write what `prepare` noted. Any thread; one at a time.

        Raises:
            StorageFull: try again with a new preparation. StorageFailed: final.
        """
        with self._checkpointing:
            self._failure.check()
            try:
                self._store(work, checkpoint)
            except OSError as error:
                raise self._failure.translate("writing a checkpoint", error) from error

    def _store(self, work: Iterable[tuple[QueueIndex, int, bytes]], checkpoint: Checkpoint) -> None:
        made = False
        for index, first, entries in work:
            made = index.write_files(first, entries) or made
        if made:
            self._files.sync_directory(f"{self._directory}/{INDEXES_NAME}")
        write_checkpoint(self._files, self._directory, checkpoint)
        for number in checkpoint.dropping:
            remove_index_files(self._files, self._directory, number)
        if checkpoint.dropping:
            self._files.sync_directory(f"{self._directory}/{INDEXES_NAME}")
            self._removed.extend(checkpoint.dropping)


class Preparation:
    """A checkpoint that was prepared: call it in a worker thread."""

    __slots__ = ("_indexes", "_work", "checkpoint")

    def __init__(
        self,
        indexes: Indexes,
        work: list[tuple[QueueIndex, int, bytes]],
        checkpoint: Checkpoint,
    ) -> None:
        self._indexes = indexes
        self._work = work
        self.checkpoint = checkpoint

    def __call__(self) -> None:
        """Write it. Raises StorageFull, StorageFailed."""
        self._indexes.store(self._work, self.checkpoint)


def remove_index_files(files: Files, directory: str, number: int) -> None:
    """Remove an index's files and its directory. Raises OSError."""
    path = f"{directory}/{INDEXES_NAME}/{number}"
    for name in files.list(path):
        files.unlink(f"{path}/{name}")
    files.remove_directory(path)
