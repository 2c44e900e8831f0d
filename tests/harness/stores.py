"""A store with a small engine on it: two queues, messages that say who they are, and the memory of
what was promised."""

from __future__ import annotations

import select
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from polymq.core_log.errors import FailureLatch, StorageFailed
from polymq.core_log.files import Files
from polymq.core_log.kernels import writing
from polymq.core_log.kernels.batch import EXTRA_BASE64, Batch
from polymq.core_log.kernels.layout import ENTRY_AT_MOST_ONCE, SYSTEM_FLAG_AT_MOST_ONCE
from polymq.core_log.kernels.log_end import Span
from polymq.core_log.queue_index import Index, widen
from polymq.core_log.record import (
    Record,
    RecordParts,
    RecordTemplate,
    decode_record,
    encode_properties,
    java_hash,
)
from polymq.core_log.recovery import RecoveryReport, recover
from polymq.core_log.settings import StoreSettings
from polymq.core_log.store import Store, take_lock

DIRECTORY: Final = "/data/store"
OWN: Final = 1
"""The number of the topic's own queue; the others are `PRIVATE`."""
PRIVATE: Final = (2, 3)

TINY: Final = StoreSettings(
    segment_bytes=4096,
    segments_zeroed=False,  # a thread's own syncs and writes would meet the faults of a test
    chunk_bytes=1024,
    tail_bytes_max=2048,
    unflushed_bytes_max=64 * 1024,
    message_bytes_max=2000,
    index_file_entries=16,
    index_packed_bytes_max=0,
)

PACKED: Final = replace(TINY, index_packed_bytes_max=1 << 16, index_slack_bytes=0)
"""All indexes in the packs, which are written anew as soon as half of them is out of date."""
MIXED: Final = replace(TINY, index_packed_bytes_max=300, index_slack_bytes=500)
"""Indexes that begin in the packs and move to files of their own."""

TEMPLATE: Final = RecordTemplate(
    b"sensors",
    0,
    encode_properties({"TAGS": "room1.temp"}),
    java_hash("room1.temp"),
    extra_kind=EXTRA_BASE64,
    extra_name=b"PMQ_X",
)
LIVES: Final = RecordTemplate(
    b"sensors",
    0,
    encode_properties({"PMQ_P": "001c", "PMQ_X": "0102030407", "TAGS": "room1.temp"}),
    java_hash("room1.temp"),
    extra_kind=EXTRA_BASE64,
    extra_name=b"PMQ_X",
)
"""Messages with a time to live and a priority, as their private entries have them, too."""
LIVES_ONCE: Final = replace(LIVES, system_flag=SYSTEM_FLAG_AT_MOST_ONCE)
"""The same for delivery at most once, which those entries say as well."""


class Bench:
    """An open store, and what was appended to it and promised.

    Attributes:
        sent: the bodies of queue `OWN`, in order, flushed or not.
        promised: how many of them are covered by a flush.
    """

    def __init__(
        self,
        files: Files,
        *,
        directory: str = DIRECTORY,
        settings: StoreSettings = TINY,
        sent: Sequence[bytes] = (),
    ) -> None:
        self.now_ms = 1_700_000_000_000
        self.store = Store.open(
            directory, files=files, clock_ms=lambda: self.now_ms, settings=settings
        )
        self.own = self.store.index(OWN, 20)
        self.template = TEMPLATE
        self.private = [self.store.index(number, 32) for number in PRIVATE]
        self.sent = list(sent)
        self.promised = len(self.sent)

    def targets(self, wide: int = 0) -> list[tuple[int, int]]:
        """Where the next message goes; `wide` more queues, each with the offsets of the own."""
        queues = [self.own, *self.private]
        targets = [(queue.number, queue.end_offset) for queue in queues]
        for number in range(100, 100 + wide):
            targets.append((number, self.store.index(number, 32).end_offset))
        return targets

    def take(self, spans: Sequence[Span], wide: int = 0) -> None:
        """Let the queues take what was appended."""
        for span in spans:
            self.own.append(span.entries)
            lifetime = (7, 0x0102_0304) if self.template in (LIVES, LIVES_ONCE) else (0, 0)
            once = self.template.system_flag & SYSTEM_FLAG_AT_MOST_ONCE
            stored_ms = self.now_ms | ENTRY_AT_MOST_ONCE if once else self.now_ms
            private = widen(span.entries, stored_ms, *lifetime)
            for queue in self.private:
                queue.append(private)
            for number in range(100, 100 + wide):
                self.store.index(number, 32).append(private)

    def publish(self, bodies: Sequence[bytes], *, extra: bytes = b"e", wide: int = 0) -> list[Span]:
        """One run of messages."""
        batch = Batch(len(bodies) or 1)
        batch.buffer = b"".join(bodies) + extra
        at = 0
        for body in bodies:
            batch.add((0, 0), (at, len(body)), (len(batch.buffer) - len(extra), len(extra)))
            at += len(body)
        spans = self.store.log.append_run(
            self.template,
            batch,
            0,
            batch.count,
            targets=self.targets(wide),
            born_ms=self.now_ms,
            store_ms=self.now_ms,
        )
        self.take(spans, wide)
        self.sent += bodies
        return spans

    def publish_atomic(self, bodies: Sequence[bytes]) -> list[Span]:
        """Messages that belong together."""
        targets = self.targets()
        spans = self.store.log.append_atomic(
            [
                RecordParts(
                    template=self.template,
                    body=body,
                    targets=[(number, offset + index) for number, offset in targets],
                )
                for index, body in enumerate(bodies)
            ],
            store_ms=self.now_ms,
        )
        self.take(spans)
        self.sent += bodies
        return spans

    def flush(self) -> int:
        """Write, and wait until it is flushed: everything sent is promised."""
        log, flusher = self.store.log, self.store.flusher
        log.write()
        target = log.written
        flusher.request()
        while flusher.collect() < target:
            assert select_readable(flusher.fileno()), "the flusher does not answer"
        self.promised = len(self.sent)
        return log.flushed

    def checkpoint(self) -> None:
        """A checkpoint of what is flushed."""
        self.store.prepare_checkpoint()()

    def abandon(self) -> None:
        """End the thread of a store that is not closed. Take the image of a crash before."""
        try:
            self.store.flusher.stop()
        except StorageFailed:
            return  # power was cut: it could not sync once more

    def history(self, number: int = OWN) -> list[Record]:
        """All messages of a queue, read from the disk, checked."""
        index = self.store.index(number, 20 if number == OWN else 32)
        found: list[Record] = []
        offset = index.first_offset
        while offset < index.end_offset:
            entries = index.read_hot(offset, 7) or index.read_cold(offset, 7)
            memory = self.store.log.read_cold(entries, index.entry_size)
            records = decode_all(memory)
            for ordinal, record in enumerate(records):
                assert (number, offset + ordinal) in record.targets
            found += records
            offset += len(records)
        return found

    def bodies(self, number: int = OWN) -> list[bytes]:
        """The bodies of `history`."""
        return [record.body for record in self.history(number)]


MESSAGE_SIZE: Final = 232
"""Bytes of the record of a `numbered` body."""


def recover_only(files: Files, settings: StoreSettings = TINY) -> RecoveryReport:
    """Recovery alone, without an opening and its epoch."""
    lock = take_lock(files, DIRECTORY)
    try:
        recovered = recover(
            directory=DIRECTORY, files=files, settings=settings, failure=FailureLatch(), now_ms=1
        )
        recovered.segments.close()
        return recovered.report
    finally:
        files.close(lock)


def read_messages(
    store: Store, index: Index, first: int, count: int, bytes_max: int = 1 << 20
) -> tuple[bytes, int]:
    """Messages of a queue, as the engine reads them: by entries in memory where they are there, as
    those are that recovery made again; else as of `Store.read_history`."""
    entries = index.read_hot(first, count)
    if not entries:
        return store.read_history(index, first, count, bytes_max)
    taken = writing.fit(entries, index.entry_size, count, bytes_max)
    return store.log.read_cold(entries[: taken * index.entry_size], index.entry_size), taken


def decode_all(memory: bytes) -> list[Record]:
    """The records that stand one after the other in memory, each checked."""
    records = []
    at = 0
    while at < len(memory):
        record = decode_record(memory, at)
        records.append(record)
        at += record.size
    return records


def select_readable(descriptor: int) -> bool:
    """Whether the descriptor becomes readable within half a minute."""
    return bool(select.select([descriptor], [], [], 30)[0])


def numbered(first: int, count: int, size: int = 20) -> list[bytes]:
    """Bodies of one size that say which they are."""
    return [(b"message %d " % number).ljust(size, b".") for number in range(first, first + count)]
