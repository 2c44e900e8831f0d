"""From offsets to records: out of memory at once, or by a reader thread.

A group says which messages of its queue it wants; whether they are still in the log's tail, or
have to come from the disk, is decided here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol

from polymq.broker.limits import Limits
from polymq.broker.messages.records import Metas
from polymq.broker.pacing.latencies import DeliveryTimes
from polymq.broker.pacing.share import Share
from polymq.core_log.errors import StorageShort, is_short
from polymq.core_log.kernels.layout import ENTRY_SIZE
from polymq.core_log.kernels.writing import fit
from polymq.core_log.queue_index import Index
from polymq.core_log.store import Store

AGAIN_SECONDS: Final = 0.2
"""Between two attempts at a read for which the process had no descriptor."""


class Readers(Protocol):
    """Threads that read history. Implemented where the program is composed."""

    def submit(
        self, read: Callable[[], bytes], done: Callable[[bytes | None, Exception | None], None]
    ) -> None:
        """Run `read` in a thread; then `done` with its result or its error, on the loop."""


def _say_nothing(_group: Any, _first: int, _count: int, _why: str) -> None:
    """Where no log says why messages were settled."""


class PatientReaders:
    """Readers that try again where the process had no descriptor or no memory for a read: that says
    nothing of the disk, and whoever waits for the messages gets them later.

    Args:
        readers: the threads.
        later: calls back in so many seconds.

    Attributes:
        repeated_count: how many reads were tried again.
    """

    def __init__(self, readers: Readers, later: Callable[[float, Callable[[], None]], Any]) -> None:
        self._readers = readers
        self._later = later
        self.repeated_count = 0

    def submit(
        self, read: Callable[[], Any], done: Callable[[Any, Exception | None], None]
    ) -> None:
        """See `Readers.submit`."""
        self._readers.submit(read, partial(self._finished, read, done))

    def _finished(
        self,
        read: Callable[[], Any],
        done: Callable[[Any, Exception | None], None],
        result: Any,
        error: Exception | None,
    ) -> None:
        if isinstance(error, StorageShort) or (isinstance(error, OSError) and is_short(error)):
            self.repeated_count += 1
            self._later(AGAIN_SECONDS, partial(self.submit, read, done))
        else:
            done(result, error)


class Reading:
    """What groups need to turn offsets into records: passed on, not reached for."""

    def __init__(
        self,
        *,
        store: Store,
        metas: Metas,
        readers: Readers,
        limits: Limits,
        schedule: Callable[[Callable[[], None]], None],
        failed: Callable[[Exception], None],
        clock_ms: Callable[[], int],
    ) -> None:
        self.store = store
        self.metas = metas
        self.readers = readers
        self.limits = limits
        self.schedule = schedule
        """Call something in the next loop iteration."""
        self.share = Share(schedule)
        """What groups may hand out before the loop has its turn."""
        self.failed = failed
        """Told of a read that failed (corrupt record, disk error)."""
        self.delivery_times = DeliveryTimes(clock_ms)
        """How long messages wait for their delivery, by samples."""
        self.redelivered_count = 0
        """Messages that were delivered again, for metrics: groups count them here, where they meet
        in any case."""
        self.rejected_count = 0
        """Messages that consumers of plain queues did not want, likewise."""
        self.say_why: Callable[[Any, int, int, str], None] = _say_nothing
        """Told of (group, first, count) that are settled without being acknowledged, and why."""

    def read(
        self,
        index: Index,
        first: int,
        count: int,
        bytes_max: int,
        done: Callable[[Any, int], None],
        *,
        large_as_view: bool = False,
    ) -> None:
        """Read messages of a queue: `done(records, how many)`, at once if they are in memory.

        Fewer than `count` are read where `bytes_max` or a file ends; None means a failed read,
        which was reported.

        Args:
            large_as_view: one record that is larger than `bytes_max` may come as a view of the
                log's memory instead of a copy.
        """
        store = self.store
        entries = index.read_hot(first, count)
        if entries is not None:
            fitting = fit(entries, index.entry_size, count, bytes_max)
            if large_as_view and fitting == 1:
                view = store.log.view_hot(entries)
                if view is not None and len(view) > bytes_max:
                    done(view, 1)
                    return
            records = store.log.read_hot(entries[: fitting * index.entry_size], index.entry_size)
            if records is not None:
                done(records, fitting)
                return
        found = 0

        def read() -> bytes:
            nonlocal found
            if entries is None:
                records, found = store.read_history(index, first, count, bytes_max)
                return records
            found = fit(entries, index.entry_size, count, bytes_max)
            return store.log.read_cold(entries[: found * index.entry_size], index.entry_size)

        def finished(records: bytes | None, error: Exception | None) -> None:
            if records is None:
                self.failed(error or RuntimeError("a reader gave no answer"))
            done(records, found)

        self.readers.submit(read, finished)

    def entries(
        self, index: Index, first: int, count: int, done: Callable[[int, bytes | None], None]
    ) -> None:
        """Entries of a queue from the disk: `done(first, entries)`; None means a failed read,
        which was reported."""

        def finished(entries: bytes | None, error: Exception | None) -> None:
            if entries is None:
                self.failed(error or RuntimeError("a reader gave no answer"))
            done(first, entries)

        self.readers.submit(lambda: index.read_cold(first, count), finished)

    def read_entries(self, entries: bytes, done: Callable[[bytes | None, int], None]) -> None:
        """The records of 20-byte index entries from anywhere, in the same way, all of them."""
        log = self.store.log
        count = len(entries) // ENTRY_SIZE
        records = log.read_hot(entries, ENTRY_SIZE)
        if records is not None:
            done(records, count)
            return

        def finished(records: bytes | None, error: Exception | None) -> None:
            if records is None:
                self.failed(error or RuntimeError("a reader gave no answer"))
            done(records, count)

        self.readers.submit(lambda: log.read_cold(entries, ENTRY_SIZE), finished)
