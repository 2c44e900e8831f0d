"""A small engine on a store, which knows exactly what the store has to have.

It publishes to three queues (and sometimes to more), flushes, checkpoints, drops queues, lets the
log's oldest segments go, cuts its end off, closes and opens again, one step after the other as a
seed drew them. Everything that it attempted is kept in `Attempted`: the records' bytes, their index
entries, and how many of them are promised. So what is found after a crash is compared byte by byte.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Final

from polymq.core_log.atomic import row_of
from polymq.core_log.cutting import cut_log
from polymq.core_log.errors import CorruptRecord, StorageFull, StorageShort, StoreRefused, is_short
from polymq.core_log.indexes import Preparation
from polymq.core_log.kernels import writing
from polymq.core_log.kernels.batch import RECORD_BODY_AT, Batch, LargeBatch
from polymq.core_log.kernels.log_end import Span
from polymq.core_log.queue_index import widen
from polymq.core_log.record import RecordParts, encode_host
from polymq.core_log.settings import StoreSettings
from polymq.core_log.store import Store
from tests.crash.attempted import Attempted, Dropped
from tests.crash.disk import Disk
from tests.crash.losses import POWER_CUTS
from tests.harness.stores import DIRECTORY, OWN, PRIVATE, TEMPLATE

NOW_MS: Final = 1_700_000_000_000
WIDE_FIRST: Final = 100
"""Numbers of the queues that only some messages go to: this one and those after it."""
SLICES_MAX: Final = 1000
"""Writes that whatever waits in memory takes at the most."""
FORGERIES_BYTES: Final = 1500
FORGED: Final = b"forged"
MARK_BYTES: Final = 8
"""A body's number takes less."""
HOSTS: Final = encode_host("127.0.0.1", 10911)
WIDE_COUNT: Final = 6
"""So many of them exist at one time."""

ATTEMPTS_MAX: Final = 200
"""So many openings in a row do not all meet one of the errors that pass."""

SEGMENTS: Final = (4096, 4096, 8192)
CHUNKS: Final = (512, 1024, 2048)
PACKS: Final = ((0, 1 << 20), (1 << 16, 0), (300, 500))
"""Bytes that an index may have in the packs, and slack of a pack: all indexes have files of their
own, all are packed, or they move."""

ZEROED_SYNC_BYTES_MAX: Final = {1: 128 * 1024, 2: 10}
"""By the number of spares: zeros always, or after an opening's first syncs no more."""


def draw_settings(random: Random) -> StoreSettings:
    """Settings so small that a few messages fill chunks, segments and index files."""
    packed_bytes_max, slack_bytes = random.choice(PACKS)
    segment_bytes = random.choice(SEGMENTS)
    spares = random.choice((1, 2))
    return StoreSettings(
        segment_bytes=segment_bytes,
        zeroed_sync_bytes_max=ZEROED_SYNC_BYTES_MAX[spares],
        spare_segments_max=spares,
        chunk_bytes=random.choice(CHUNKS),
        tail_bytes_max=2048,
        unflushed_bytes_max=64 * 1024,
        message_bytes_max=2000,
        index_file_entries=random.choice((4, 16)),
        index_packed_bytes_max=packed_bytes_max,
        index_slack_bytes=slack_bytes,
    )


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
        self.store = self._open()
        self.store.log.on_unwritten = self._left_unwritten
        for _ in attempted.begin_queues(self.store):
            pass
        self.own = self.store.index(OWN, 20)
        self.private = [self.store.index(number, 32) for number in PRIVATE]
        self._prepared: Preparation | None = None

    def _open(self) -> Store:
        return open_store(self.disk, self.settings)

    def _left_unwritten(self) -> None:
        """A slice of a large record was written: a later step writes the next one."""

    # --- publishing -----------------------------------------------------------------------------

    def wide_numbers(self) -> list[int]:
        """The queues that wide messages may go to: some that were never dropped."""
        dropped = self.attempted.dropped
        numbers = range(WIDE_FIRST, WIDE_FIRST + len(dropped) + WIDE_COUNT)
        return [number for number in numbers if number not in dropped][:WIDE_COUNT]

    def publish(self, count: int, size: int, wide: Sequence[int] = ()) -> None:
        """One run of messages. Raises StorageFull, StorageFailed: nothing was appended."""
        self._publish(self._bodies(count, size), wide)

    def publish_large(self, size: int) -> None:
        """A message whose memory becomes its record, as gateways fill it. Raises as `publish`."""
        (body,) = self._bodies(1, size)
        batch = LargeBatch(bytearray(RECORD_BODY_AT) + body + b"x", zlib.crc32(body))
        end = RECORD_BODY_AT + size
        batch.add((end, 0), (RECORD_BODY_AT, size), (end, 1))
        self._append(batch, 1, ())

    def publish_forgeries(self, segments_ahead: int) -> None:
        """A message that is full of what looks like sound records, of the places that its bytes
        have in a later segment: should that be written into this one's file, and end there."""
        at = self.store.log.appended + segments_ahead * self.settings.segment_bytes
        body = b""
        while len(body) < FORGERIES_BYTES:
            at_byte = at + RECORD_BODY_AT + len(body)
            self.attempted.forged.append(at_byte)
            body += self._forged(at_byte)
        self._publish([body], ())

    def publish_up_to_a_forgery(self) -> None:
        """A message after which the log ends where one of those would stand, if there is one; and
        it stays there for a while. Raises StorageFull, StorageFailed."""
        end = self.store.log.appended
        first = end + len(self._forged(end)) - len(FORGED)
        segment = end // self.settings.segment_bytes
        sizes = [
            at_byte - first
            for at_byte in self.attempted.forged
            if at_byte // self.settings.segment_bytes == segment
        ]
        size = min((size for size in sizes if MARK_BYTES <= size < FORGERIES_BYTES), default=600)
        self.publish(1, size)
        self.flush()
        self.prepare()
        self.store_prepared()

    def _forged(self, position: int) -> bytes:
        """A sound record of that place, which was never published."""
        memory = bytearray(FORGERIES_BYTES)
        _, end, _ = writing.append_run(
            *(memory, 0, len(memory), position, TEMPLATE.form, HOSTS, b""),
            *(self._targets(()), 0, row_of(FORGED, b"x"), 0, 1, NOW_MS, NOW_MS),
        )
        return bytes(memory[:end])

    def _publish(self, bodies: Sequence[bytes], wide: Sequence[int]) -> None:
        count, size = len(bodies), len(bodies[0])
        batch = Batch(count)
        batch.buffer = b"".join(bodies) + b"x"
        for index in range(count):
            batch.add((0, 0), (index * size, size), (count * size, 1))
        self._append(batch, count, wide)

    def _append(self, batch: Batch, count: int, wide: Sequence[int]) -> None:
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
        """Hand what was appended to the operating system: of a large record one slice.

        Raises:
            StorageFull, StorageFailed.
        """
        self.store.log.write()

    def write_all(self) -> None:
        """The same, to the last slice."""
        log = self.store.log
        for _ in range(SLICES_MAX):
            self.write()
            if log.written == log.appended:
                return
        raise AssertionError("slice after slice is written, and it comes to no end")

    def turn(self) -> None:
        """Let the flusher do what it was asked for. Raises StorageFailed."""
        self.store.flusher.step()
        flushed = self.store.flusher.collect()
        attempted = self.attempted
        attempted.promised = max(attempted.promised, bisect_right(attempted.ends, flushed))

    def flush(self) -> None:
        """Everything attempted is promised. Raises StorageFull, StorageFailed."""
        self.write_all()
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
        positions = self.attempted.wide.pop(number, [])
        self.attempted.dropped[number] = Dropped(self.store.log.appended, positions)

    def drop_again(self) -> None:
        """What was dropped before a crash may be there again: drop it."""
        for number, gone in self.attempted.dropped.items():
            self.store.drop_index(number)
            self.attempted.dropped[number] = Dropped(self.store.log.appended, gone.positions)

    def retire(self, part: float) -> None:
        """What retention does: give up the messages of this part of the log's segments, and let
        their files go. Raises StorageFull, StorageFailed."""
        self.flush()
        store, attempted = self.store, self.attempted
        if store.log.flushed < store.log.appended:
            return  # it was short of something; a later round goes on
        ends = [end for _, end in store.segments()[:-1]]
        position = ([store.log.start, *ends])[int(part * (len(ends) + 1))]
        attempted.given_up = max(attempted.given_up, bisect_right(attempted.ends, position))
        for number in (OWN, *PRIVATE, *attempted.wide):
            found = store.find_index(number)
            if found is not None:
                found.trim_before(attempted.gone_from(number))
        self.prepare()
        self.store_prepared()
        self.join()
        if store.checkpointed >= position:  # else the disk had no room for it
            store.retire(position)
            self.discard()

    def join(self) -> None:
        """Wait until what was stored is stored."""

    def discard(self) -> None:
        """Let the files of retired segments go. Raises StorageFailed."""
        try:
            self.store.discard()
        except OSError:
            return  # the next call tries again

    def read(self, random: Random) -> None:
        """Read some messages of the log that are flushed. Raises StorageShort, CorruptRecord."""
        first, end = self.own.first_offset, self.attempted.promised
        if first >= end:
            return
        offset = random.randrange(first, end)
        count = random.randint(1, end - offset)
        try:
            found, taken = self.store.read_history(self.own, offset, count, 1 << 20)
        except OSError as error:
            if is_short(error):
                raise StorageShort(str(error)) from error
            raise CorruptRecord(offset, str(error)) from error
        wanted = b"".join(self.attempted.records[offset : offset + taken])
        assert found == wanted, f"messages {offset} to {offset + taken} are not as they were sent"

    def acknowledge(self) -> None:
        """Note how far records may have been acknowledged."""

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
    "large": 3,
    "aimed": 3,
    "wide": 3,
    "atomic": 4,
    "write": 3,
    "request": 4,
    "turn": 4,
    "flush": 5,
    "prepare": 2,
    "store": 2,
    "checkpoint": 3,
    "forged": 2,
    "drop": 3,
    "retire": 3,
    "cut": 1,
    "reopen": 1,
    "kill": 1,
    "crash": 1,
}
"""Every kind of step, and how often it is drawn."""
READING: Final = {**KINDS, "read": 4}
"""The same, with readers."""
SLICED: Final = {**READING, "sliced": 12, "write": 8, "turn": 6}
"""The same with large records, which take several writes."""
TURNOVER: Final = {
    "run": 3,
    "forged": 5,
    "aimed": 12,
    "retire": 5,
    "drop": 1,
}
"""The same for a log whose files are used again and again, by clients who know that."""
TURNOVER_CHANCE: Final = 0.25


class Workload:
    """Steps drawn from a seed, carried out on a disk.

    Args:
        random: where the steps come from.
        settings: of the store.
        disk: an empty one.
        kinds: the steps, and how often each is drawn.
    """

    def __init__(
        self,
        random: Random,
        settings: StoreSettings,
        disk: Disk,
        kinds: Mapping[str, int] = KINDS,
    ) -> None:
        self._random = random
        self._settings = settings
        self.disk = disk
        self.attempted = Attempted()
        self.actor: Actor | None = None
        self._kinds = kinds

    def run(self, steps_count: int) -> None:
        """Carry out so many steps. Raises StoreError when the disk fails for good."""
        self._open()
        often = TURNOVER if self._random.random() < TURNOVER_CHANCE else self._kinds
        kinds = self._random.choices(list(often), list(often.values()), k=steps_count)
        for kind in kinds:
            try:
                self._do(kind)
            except StorageFull:
                pass  # it was refused, and nothing has changed: the steps go on
            self._check_failed_sync()

    def _check_failed_sync(self) -> None:
        """Whichever file it was of: a sync that failed is final."""
        fault, actor = self.disk.fault, self.actor
        if fault is not None and fault.sync_failed and actor is not None:
            assert actor.store._failure.failed, f"{fault.last}, and the store goes on"

    def _open(self) -> None:
        self._until_there_is_room(self._open_once)

    def _open_once(self) -> None:
        if self.disk.fault is not None:
            self.disk.fault.sync_failed = False
        self.actor = self._make_actor()
        self.actor.drop_again()

    def _make_actor(self) -> Actor:
        return Actor(self.disk, self._settings, self.attempted)

    def _until_there_is_room(self, step: Callable[[], None]) -> None:
        """What a full disk or a shortage refuses is tried again, as an operator does."""
        for _ in range(ATTEMPTS_MAX):
            try:
                step()
            except StoreRefused:
                fault = self.disk.fault
                if fault is None or fault.is_final:
                    raise
            else:
                return
        raise AssertionError("what was short is there again, and the store does not open")

    def _do(self, kind: str) -> None:
        actor, random = self.actor, self._random
        count, size = random.randint(1, 6), random.choice((20, 20, 60))
        assert actor is not None
        if kind == "run":
            actor.publish(count, size)
        elif kind == "sliced":
            actor.publish_large(random.randint(600, self._settings.message_bytes_max))
        elif kind == "large":
            actor.publish(min(count, 3), 600)
        elif kind == "aimed":
            actor.publish_up_to_a_forgery()
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
        elif kind == "forged":
            actor.publish_forgeries(random.randint(1, 3))
        elif kind == "retire":
            actor.retire(random.random())
        elif kind == "read":
            actor.read(random)
        elif kind == "acknowledge":
            actor.acknowledge()
        elif kind == "cut":
            self._cut(actor)
        elif kind == "reopen":
            self._reopen()
        elif kind in ("kill", "crash"):
            self._end_run(kind)
        else:
            {
                "write": actor.write,
                "turn": actor.turn,
                "flush": actor.flush,
                "prepare": actor.prepare,
                "store": actor.store_prepared,
            }[kind]()

    def _end_run(self, kind: str) -> None:
        """The process or the machine dies, and the next process goes on with what it finds."""
        if kind == "kill":
            found = self.disk.kill()
        else:
            loss = self._random.choice(list(POWER_CUTS.values()))
            found = self.disk.crash(loss(self.disk, self._random))
        found.on_change, found.fault = self.disk.on_change, self.disk.fault
        found.yields = self.disk.yields
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

    def _cut(self, actor: Actor) -> None:
        """The log is cut to a place that it shares with another one's: the messages behind it go,
        also those that were flushed."""
        attempted = self.attempted
        if attempted.given_up == attempted.count:
            return
        count = self._random.randint(attempted.given_up + 1, attempted.count)
        for first, end in attempted.batches:
            if first < count < end:
                count = end
        try:
            actor.close()
        except StorageFull:
            self._go_on()
            return
        attempted.promised = min(attempted.promised, count)
        attempted.acknowledged = 0
        self._until_there_is_room(lambda: cut_log(self.disk, DIRECTORY, attempted.ends[count - 1]))
        attempted.forget_after(count)
        self._open()

    def _go_on(self) -> None:
        """Open, and take what is there for what there is."""
        promised = self.attempted.promised
        self._open()
        assert self.actor is not None
        remaining = self.actor.own.end_offset
        assert promised <= remaining <= self.attempted.count, "a promise is broken"
        self.attempted.forget_after(remaining)
