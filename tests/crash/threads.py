"""The workload of `actor.py` with the store's threads, which take turns as a seed says.

The flusher and the thread that makes the next segment ready are the store's own. As in the program,
a worker stores checkpoints and removes files, readers read, and another thread notes what was
acknowledged. The steps of the workload are the loop. Each of them may hand on at every call of the
disk (`schedule.py`), and power may be cut there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping
from random import Random
from typing import Final

from polymq.core_log.acknowledged import Acknowledged, AcknowledgedFile
from polymq.core_log.errors import StorageFailed, StorageFull, StoreError, is_short
from polymq.core_log.settings import StoreSettings
from polymq.core_log.store import Store
from tests.crash.actor import NOW_MS, Actor, Workload
from tests.crash.attempted import Attempted
from tests.crash.disk import Disk
from tests.crash.schedule import Schedule, Task
from tests.harness.stores import DIRECTORY

READERS_MAX: Final = 2
KINDS: Final = {
    "run": 12,
    "large": 5,
    "burst": 10,
    "wide": 2,
    "atomic": 4,
    "write": 3,
    "request": 12,
    "turn": 8,
    "flush": 3,
    "prepare": 1,
    "store": 1,
    "checkpoint": 4,
    "forged": 1,
    "drop": 2,
    "retire": 3,
    "read": 4,
    "acknowledge": 3,
    "cut": 1,
    "reopen": 1,
    "kill": 1,
    "crash": 1,
}
"""Every kind of step, and how often it is drawn. The loop seldom waits for the disk, and a burst
fills a segment or two while the disk is busy with one call."""
SLICED: Final = {**KINDS, "sliced": 14, "write": 10}
"""The same with large records, which take several writes."""


class ThreadedActor(Actor):
    """An open store with its threads. Raises StoreError as `Store.open`, and OSError."""

    def __init__(
        self, disk: Disk, settings: StoreSettings, attempted: Attempted, schedule: Schedule
    ) -> None:
        self._schedule = schedule
        self._worker: Task | None = None
        self._answers: Task | None = None
        self._readers: list[Task] = []
        super().__init__(disk, settings, attempted)
        self._acknowledged: AcknowledgedFile | None = None

    def _open(self) -> Store:
        return Store.open(
            DIRECTORY, files=self.disk, clock_ms=lambda: NOW_MS, settings=self.settings
        )

    # --- the flusher ----------------------------------------------------------------------------

    def turn(self) -> None:
        self._schedule.pause()
        self._collect()

    def flush(self) -> None:
        self.write_all()
        log, flusher = self.store.log, self.store.flusher
        target = log.written
        flusher.request()
        while log.flushed < target:
            self._schedule.wait(lambda: self._schedule.events.is_readable(flusher.fileno()))
            self._collect()

    def _collect(self) -> None:
        flushed = self.store.flusher.collect()
        attempted = self.attempted
        attempted.promised = max(attempted.promised, bisect_right(attempted.ends, flushed))

    # --- workers --------------------------------------------------------------------------------

    def prepare(self) -> None:
        self.join()
        super().prepare()

    def store_prepared(self) -> None:
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            prepared.gather_all()
            self._work(prepared)

    def discard(self) -> None:
        self._work(self.store.discard)

    def _work(self, job: Callable[[], None]) -> None:
        """Give the worker a job; the next one waits for its end."""
        self.join()

        def work() -> None:
            try:
                job()
            except (StorageFull, StorageFailed, OSError):
                return  # what is final for the disk stops the loop, too; the rest is tried again

        self._worker = self._schedule.spawn(work, "worker")

    def join(self) -> None:
        worker = self._worker
        if worker is not None:
            self._schedule.wait(lambda: worker.done)

    def read(self, random: Random) -> None:
        first, end = self.own.first_offset, self.attempted.promised
        self._readers = [reader for reader in self._readers if not reader.done]
        if first >= end or len(self._readers) >= READERS_MAX:
            return
        offset = random.randrange(first, end)
        wanted = self.attempted.records[offset : random.randint(offset, end) + 1]
        reader = self._schedule.spawn(lambda: self._read(offset, wanted), "reader")
        self._readers.append(reader)

    def _read(self, offset: int, wanted: list[bytes]) -> None:
        """Messages are as they were sent, as long as nobody gives them up."""
        try:
            found, count = self.store.read_history(self.own, offset, len(wanted), 1 << 20)
        except (StoreError, OSError) as error:
            if offset < self.attempted.given_up or self._may_fail(error):
                return
            raise
        assert found == b"".join(wanted[:count]), f"messages from {offset} on are not as sent"

    def _may_fail(self, error: Exception) -> bool:
        """Whether the disk had an error that explains this one."""
        fault = self.disk.fault
        if fault is None:
            return False
        short = isinstance(error, OSError) and is_short(error)
        return short or isinstance(error, StorageFull) or fault.is_final

    def acknowledge(self) -> None:
        if self._answers is None or self._answers.done:
            position = self.store.log.flushed
            self._answers = self._schedule.spawn(lambda: self._note(position), "answers")

    def _note(self, position: int) -> None:
        try:
            if self._acknowledged is None:
                self._acknowledged = AcknowledgedFile(self.disk, DIRECTORY)
            self._acknowledged.write(Acknowledged(position=position, disks=2))
        except OSError:
            return  # nothing is acknowledged
        self.attempted.acknowledged = max(self.attempted.acknowledged, position)

    def close(self) -> None:
        tasks = [task for task in (self._worker, self._answers, *self._readers) if task is not None]
        self._schedule.wait(lambda: all(task.done for task in tasks))
        if self._acknowledged is not None:
            self._acknowledged.close()
        super().close()


class ThreadedWorkload(Workload):
    """Steps drawn from a seed, with threads.

    Args:
        random: where the steps come from.
        schedule: whose turn it is.
        kinds: the steps, and how often each is drawn.
    """

    def __init__(
        self,
        random: Random,
        settings: StoreSettings,
        disk: Disk,
        schedule: Schedule,
        kinds: Mapping[str, int] = KINDS,
    ) -> None:
        super().__init__(random, settings, disk, kinds)
        self._schedule = schedule
        disk.yields = schedule.point

    def run(self, steps_count: int) -> None:
        with self._schedule.installed():
            try:
                super().run(steps_count)
            finally:
                self._schedule.end_others()

    def _make_actor(self) -> Actor:
        return ThreadedActor(self.disk, self._settings, self.attempted, self._schedule)

    def _check_failed_sync(self) -> None:
        """Nothing: a thread may be on its way to say so."""

    def _do(self, kind: str) -> None:
        self._schedule.point()
        if kind != "burst":
            super()._do(kind)
            return
        actor, random = self.actor, self._random
        assert actor is not None
        for _ in range(random.randint(2, 6)):
            actor.publish(3, 600)
            actor.write()
            actor.store.flusher.request()
            self._schedule.point()

    def _end_run(self, kind: str) -> None:
        self._schedule.end_others()
        super()._end_run(kind)
