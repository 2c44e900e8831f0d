"""A small engine on a store, which knows exactly what the store has to have.

It publishes to three queues (and sometimes to more), flushes, checkpoints, drops queues, closes
and opens again, one step after the other as a seed drew them. Everything that it attempted is kept
in `Attempted`: the records' bytes, their index entries, and how many of them are promised. So what
is found after a crash is compared byte by byte, and nothing of it is decoded.
"""

from __future__ import annotations

import errno
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from core_log.errors import StorageFull, StoreRefused
from core_log.indexes import Preparation
from core_log.kernels.batch import Batch
from core_log.log_end import Span
from core_log.queue_index import widen
from core_log.record import RecordParts
from core_log.settings import StoreSettings
from core_log.store import Store
from tests.crash.disk import Disk
from tests.crash.losses import POWER_CUTS
from tests.harness.stores import DIRECTORY, OWN, PRIVATE, TEMPLATE

NOW_MS: Final = 1_700_000_000_000
WIDE_FIRST: Final = 100
"""Numbers of the queues that only some messages go to: this one and those after it."""
WIDE_COUNT: Final = 6
"""So many of them exist at one time."""

OPEN_ATTEMPTS_MAX: Final = 20
"""A disk is full for fewer calls than that."""

SEGMENTS: Final = (4096, 4096, 8192)
CHUNKS: Final = (512, 1024, 2048)
PACKS: Final = ((0, 1 << 20), (1 << 16, 0), (300, 500))
"""Bytes that an index may have in the packs, and slack of a pack: all indexes have files of their
own, all are packed, or they move."""


def draw_settings(random: Random) -> StoreSettings:
    """Settings so small that a few messages fill chunks, segments and index files."""
    packed_bytes_max, slack_bytes = random.choice(PACKS)
    return StoreSettings(
        segment_bytes=random.choice(SEGMENTS),
        chunk_bytes=random.choice(CHUNKS),
        tail_bytes_max=2048,
        unflushed_bytes_max=64 * 1024,
        message_bytes_max=2000,
        index_file_entries=random.choice((4, 16)),
        index_packed_bytes_max=packed_bytes_max,
        index_slack_bytes=slack_bytes,
    )


@dataclass(frozen=True, slots=True)
class Dropped:
    """A queue that was dropped.

    Attributes:
        position: where the log ended then. A crash that takes what stands before it, takes also
            what says that the queue is gone: then all of it has to be there.
        places: which messages it had got.
    """

    position: int
    places: list[int]


@dataclass(slots=True, kw_only=True)
class Attempted:
    """All messages in order, promised or not.

    Attributes:
        records, entries: each message's bytes in the log, and its entry in the own queue.
        ends: behind each record, its position.
        wide: which messages a queue beyond the three has got, by its number.
        batches: (first, end) of each atomic batch.
        promised: how many messages surely survive.
        dropped: queues that were dropped; after a crash they may be there again, whole.
    """

    records: list[bytes] = field(default_factory=list)
    entries: list[bytes] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    wide: dict[int, list[int]] = field(default_factory=dict)
    batches: list[tuple[int, int]] = field(default_factory=list)
    promised: int = 0
    dropped: dict[int, Dropped] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many messages were attempted."""
        return len(self.records)

    def add(self, span: Span, wide: Sequence[int]) -> None:
        """Take note of appended records."""
        at = span.start
        for place in range(0, len(span.entries), 20):
            entry = span.entries[place : place + 20]
            size = int.from_bytes(entry[8:12], "big")
            for number in wide:
                self.wide.setdefault(number, []).append(len(self.records))
            self.records.append(bytes(span.memory[at : at + size]))
            self.entries.append(entry)
            self.ends.append(int.from_bytes(entry[:8], "big") + size)
            at += size

    def copy(self) -> Attempted:
        """As it is now."""
        return replace(
            self,
            records=list(self.records),
            entries=list(self.entries),
            ends=list(self.ends),
            wide={number: list(places) for number, places in self.wide.items()},
            batches=list(self.batches),
            dropped=dict(self.dropped),
        )

    def forget_after(self, count: int) -> None:
        """Only the first `count` messages are there; all of them are promised from now on."""
        for values in (self.records, self.entries, self.ends):
            del values[count:]
        self.wide = {
            number: kept
            for number, places in self.wide.items()
            if (kept := [place for place in places if place < count])
        }
        self.dropped = {
            number: Dropped(gone.position, [place for place in gone.places if place < count])
            for number, gone in self.dropped.items()
        }
        self.batches = [batch for batch in self.batches if batch[1] <= count]
        self.promised = count


class Actor:
    """An open store, and what was attempted with it.

    Args:
        attempted: what earlier openings attempted; this one goes on from there.

    Raises:
        StoreError: as `Store.open`.
    """

    def __init__(self, disk: Disk, settings: StoreSettings, attempted: Attempted) -> None:
        self.disk = disk
        self.settings = settings
        self.attempted = attempted
        self.store = open_store(disk, settings)
        self.own = self.store.index(OWN, 20)
        self.private = [self.store.index(number, 32) for number in PRIVATE]
        self._prepared: Preparation | None = None

    # --- publishing -----------------------------------------------------------------------------

    def wide_numbers(self) -> list[int]:
        """The queues that wide messages may go to: some that were never dropped."""
        dropped = self.attempted.dropped
        numbers = range(WIDE_FIRST, WIDE_FIRST + len(dropped) + WIDE_COUNT)
        return [number for number in numbers if number not in dropped][:WIDE_COUNT]

    def publish(self, count: int, size: int, wide: Sequence[int] = ()) -> None:
        """One run of messages. Raises StorageFull, StorageFailed: nothing was appended."""
        batch = Batch(count)
        bodies = self._bodies(count, size)
        batch.buffer = b"".join(bodies) + b"x"
        for index in range(count):
            batch.add((0, 0), (index * size, size), (count * size, 1))
        spans = self.store.log.append_run(
            TEMPLATE,
            batch,
            0,
            count,
            targets=self._targets(wide),
            born_ms=NOW_MS,
            store_ms=NOW_MS,
        )
        self._take(spans, wide)

    def publish_atomic(self, count: int, size: int) -> None:
        """Messages that belong together. Raises as `publish`."""
        targets = self._targets(())
        records = [
            RecordParts(
                template=TEMPLATE,
                body=body,
                targets=[(number, offset + index) for number, offset in targets],
            )
            for index, body in enumerate(self._bodies(count, size))
        ]
        spans = self.store.log.append_atomic(records, store_ms=NOW_MS)
        first = self.attempted.count
        self._take(spans, ())
        self.attempted.batches.append((first, self.attempted.count))

    def _bodies(self, count: int, size: int) -> list[bytes]:
        first = self.attempted.count
        return [(b"%d " % number).ljust(size, b"+") for number in range(first, first + count)]

    def _targets(self, wide: Sequence[int]) -> list[tuple[int, int]]:
        queues = [self.own, *self.private, *(self.store.index(number, 32) for number in wide)]
        return [(queue.number, queue.end_offset) for queue in queues]

    def _take(self, spans: Sequence[Span], wide: Sequence[int]) -> None:
        queues = [*self.private, *(self.store.index(number, 32) for number in wide)]
        for span in spans:
            self.attempted.add(span, wide)
            self.own.append(span.entries)
            for queue in queues:
                queue.append(widen(span.entries, NOW_MS))

    # --- the disk -------------------------------------------------------------------------------

    def write(self) -> None:
        """Hand everything to the operating system. Raises StorageFull, StorageFailed."""
        self.store.log.write()

    def turn(self) -> None:
        """Let the flusher do what it was asked for. Raises StorageFailed."""
        self.store.flusher.step()
        flushed = self.store.flusher.collect()
        attempted = self.attempted
        attempted.promised = max(attempted.promised, bisect_right(attempted.ends, flushed))

    def flush(self) -> None:
        """Everything attempted is promised. Raises StorageFull, StorageFailed."""
        self.write()
        self.store.flusher.request()
        self.turn()

    def prepare(self) -> None:
        """Begin to prepare a checkpoint: `store_prepared` goes on, now or after other steps."""
        self._prepared = self.store.begin_checkpoint()
        self._prepared.gather(2)

    def store_prepared(self) -> None:
        """Write the checkpoint that was prepared. Raises StorageFull, StorageFailed."""
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            prepared.gather_all()
            prepared()

    def drop(self, number: int) -> None:
        """Drop a queue."""
        self.store.drop_index(number)
        places = self.attempted.wide.pop(number, [])
        self.attempted.dropped[number] = Dropped(self.store.log.appended, places)

    def drop_again(self) -> None:
        """What was dropped before a crash may be there again: drop it."""
        for number, gone in self.attempted.dropped.items():
            self.store.drop_index(number)
            self.attempted.dropped[number] = Dropped(self.store.log.appended, gone.places)

    def close(self) -> None:
        """Close in order. Raises StorageFull, StorageFailed."""
        self.store.close()
        self.attempted.promised = self.attempted.count


def open_store(disk: Disk, settings: StoreSettings) -> Store:
    """Open the store on a disk, with a flusher that is stepped. Raises StoreError."""
    return Store.open(
        DIRECTORY, files=disk, clock_ms=lambda: NOW_MS, settings=settings, stepped=True
    )


KINDS: Final = {
    "run": 8,
    "large": 2,
    "wide": 3,
    "atomic": 4,
    "write": 3,
    "request": 4,
    "turn": 4,
    "flush": 5,
    "prepare": 2,
    "store": 2,
    "checkpoint": 3,
    "drop": 3,
    "reopen": 1,
    "kill": 1,
    "crash": 1,
}
"""Every kind of step, and how often it is drawn."""


class Workload:
    """Steps drawn from a seed, carried out on a disk.

    Args:
        random: where the steps come from.
        settings: of the store.
        disk: an empty one.
    """

    def __init__(self, random: Random, settings: StoreSettings, disk: Disk) -> None:
        self._random = random
        self._settings = settings
        self.disk = disk
        self.attempted = Attempted()
        self.actor: Actor | None = None

    def run(self, steps_count: int) -> None:
        """Carry out so many steps. Raises StoreError when the disk fails for good."""
        self._open()
        kinds = self._random.choices(list(KINDS), list(KINDS.values()), k=steps_count)
        for kind in kinds:
            try:
                self._do(kind)
            except StorageFull:
                continue  # it was refused, and nothing has changed: the steps go on

    def _open(self) -> None:
        """Open; on a full disk try again, as an operator does."""
        for _ in range(OPEN_ATTEMPTS_MAX):
            try:
                self.actor = Actor(self.disk, self._settings, self.attempted)
                self.actor.drop_again()
            except StoreRefused:
                fault = self.disk.fault
                if fault is None or fault.error != errno.ENOSPC:
                    raise
            else:
                return
        raise AssertionError("the disk has room again, and the store does not open")

    def _do(self, kind: str) -> None:
        actor, random = self.actor, self._random
        count, size = random.randint(1, 6), random.choice((20, 20, 60))
        assert actor is not None
        if kind == "run":
            actor.publish(count, size)
        elif kind == "large":
            actor.publish(min(count, 3), 600)
        elif kind == "wide":
            numbers = actor.wide_numbers()
            actor.publish(min(count, 2), size, random.sample(numbers, random.randint(1, 6)))
        elif kind == "atomic":
            actor.publish_atomic(count + 1, size)
        elif kind == "request":
            actor.write()
            actor.store.flusher.request()
        elif kind == "checkpoint":
            actor.prepare()
            actor.store_prepared()
        elif kind == "drop":
            if actor.attempted.wide:
                actor.drop(random.choice(sorted(actor.attempted.wide)))
        elif kind == "reopen":
            self._reopen()
        elif kind in ("kill", "crash"):
            self._end_life(kind)
        else:
            {
                "write": actor.write,
                "turn": actor.turn,
                "flush": actor.flush,
                "prepare": actor.prepare,
                "store": actor.store_prepared,
            }[kind]()

    def _end_life(self, kind: str) -> None:
        """The process or the machine dies, and the next process goes on with what it finds."""
        if kind == "kill":
            found = self.disk.kill()
        else:
            loss = self._random.choice(list(POWER_CUTS.values()))
            found = self.disk.crash(loss(self.disk, self._random))
        found.on_change, found.fault = self.disk.on_change, self.disk.fault
        found.changes_count = self.disk.changes_count
        self.disk = found
        self._go_on()

    def _reopen(self) -> None:
        """Close and open. On a full disk the store is closed all the same."""
        assert self.actor is not None
        try:
            self.actor.close()
        except StorageFull:
            self._go_on()
        else:
            self._open()

    def _go_on(self) -> None:
        """Open, and take what is there for what there is."""
        promised = self.attempted.promised
        self._open()
        assert self.actor is not None
        kept = self.actor.own.end_offset
        assert promised <= kept <= self.attempted.count, "a promise is broken"
        self.attempted.forget_after(kept)
