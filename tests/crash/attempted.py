"""What a workload attempted with a store: the measure for what is found after a crash.

All of it is kept as bytes: nothing that is found has to be decoded to be compared.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from polymq.core_log.kernels.log_end import Span
from polymq.core_log.store import Store
from tests.harness.stores import OWN, PRIVATE


@dataclass(frozen=True, slots=True)
class Dropped:
    """A queue that was dropped.

    Attributes:
        position: where the log ended then. A crash that takes what stands before it, takes also
            what says that the queue is gone: then all of it has to be there.
        positions: which messages it had got.
    """

    position: int
    positions: list[int]


@dataclass(slots=True, kw_only=True)
class Attempted:
    """All messages in order, promised or not.

    Attributes:
        records, entries: each message's bytes in the log, and its entry in the own queue.
        ends: behind each record, its position.
        wide: which messages a queue beyond the three has got, by its number.
        batches: (first, end) of each atomic batch.
        promised: how many messages surely survive.
        given_up: how many of the first messages nobody wants any more: they may have left the log.
        forged: positions for which a body holds what looks like a sound record there.
        acknowledged: the position that was noted last (`core_log.acknowledged`).
        dropped: queues that were dropped; after a crash they may be there again, whole.
    """

    records: list[bytes] = field(default_factory=list)
    entries: list[bytes] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    wide: dict[int, list[int]] = field(default_factory=dict)
    batches: list[tuple[int, int]] = field(default_factory=list)
    promised: int = 0
    given_up: int = 0
    forged: list[int] = field(default_factory=list)
    acknowledged: int = 0
    dropped: dict[int, Dropped] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many messages were attempted."""
        return len(self.records)

    def add(self, span: Span, wide: Sequence[int]) -> None:
        """Take note of appended records."""
        at = span.start
        for offset in range(0, len(span.entries), 20):
            entry = span.entries[offset : offset + 20]
            size = int.from_bytes(entry[8:12], "big")
            for number in wide:
                self.wide.setdefault(number, []).append(len(self.records))
            self.records.append(bytes(span.memory[at : at + size]))
            self.entries.append(entry)
            self.ends.append(int.from_bytes(entry[:8], "big") + size)
            at += size

    def gone_from(self, number: int) -> int:
        """How many of the first messages of a queue may have left the log."""
        if number in (OWN, *PRIVATE):
            return self.given_up
        dropped = self.dropped.get(number)
        positions = self.wide.get(number, ()) if dropped is None else dropped.positions
        return bisect_left(positions, self.given_up)

    def begin_queues(self, store: Store, extra: Sequence[int] = ()) -> Iterator[tuple[int, int]]:
        """Let each queue begin where it was told to, as an engine does at its start: an index that
        has nothing left in the log does not know how far it had come.

        Args:
            extra: queues that were dropped, and are there.

        Yields:
            The number of each queue, and where it begins in what was found.
        """
        for number in (OWN, *PRIVATE, *self.wide, *extra):
            index = store.index(number, 20 if number == OWN else 32)
            yield number, index.first_offset
            index.begin_at(self.gone_from(number))

    def copy(self) -> Attempted:
        """As it is now."""
        return replace(
            self,
            records=list(self.records),
            entries=list(self.entries),
            ends=list(self.ends),
            wide={number: list(positions) for number, positions in self.wide.items()},
            batches=list(self.batches),
            forged=list(self.forged),
            dropped=dict(self.dropped),
        )

    def forget_after(self, count: int) -> None:
        """Only the first `count` messages are there; all of them are promised from now on."""
        for values in (self.records, self.entries, self.ends):
            del values[count:]
        self.wide = {
            number: remaining
            for number, positions in self.wide.items()
            if (remaining := [offset for offset in positions if offset < count])
        }
        self.dropped = {
            number: Dropped(gone.position, [offset for offset in gone.positions if offset < count])
            for number, gone in self.dropped.items()
        }
        self.batches = [batch for batch in self.batches if batch[1] <= count]
        self.promised = count
