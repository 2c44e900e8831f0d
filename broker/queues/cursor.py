"""How far one consumer (or one group of equal consumers) is in a queue.

A cursor is `floor` (everything below is settled), `next` (nothing at or above was delivered), and
one byte for each offset between: outstanding (delivered, not settled), settled, or requeued. The
bytes cost one per message of the window between the oldest unsettled and the newest delivered
message; what is ready and what is settled below costs nothing.

A cursor may have a `stop`: what is in the queue from there on is not for its consumer, because too
much waits already (`sessions/backlogs.py`). It goes on behind what it left out (`skip_waiting`).

Requeued messages come first, in their original order, flagged redelivered. That is what RabbitMQ's
classic queues do: after nack of c and then a, the next two deliveries are a and c.

All operations take stretches of offsets; searching is done by `bytearray.find`, in C.
"""

from __future__ import annotations

import re
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator
from typing import Final

OUTSTANDING: Final = 0
SETTLED: Final = 1
REQUEUED: Final = 2

NO_STOP: Final = 1 << 62
"""Behind all offsets."""

STRETCHES_MAX: Final = 1_000
"""Settled stretches that a snapshot lists one by one."""

_NO_STATES: Final = bytearray()
"""What a cursor has that has nothing outstanding since it was made: one for all, never added to."""
_SETTLED_BYTE: Final = b"\x01"
_REQUEUED_BYTE: Final = b"\x02"
_SETTLED_STRETCH: Final = re.compile(b"\x01+")
_OUTSTANDING_STRETCH: Final = re.compile(b"\x00+")
_REQUEUED_STRETCH: Final = re.compile(b"\x02+")
_OTHER_STRETCH: Final = re.compile(b"[^\x02]+")
_OTHERS_TO_OUTSTANDING: Final = bytes.maketrans(b"\x02", b"\x00")
_OUTSTANDING_TO_REQUEUED: Final = bytes.maketrans(b"\x00", b"\x02")


Watch = Callable[[int, int, int], None]


class Cursor:
    """Floor, next, and the states between. Offsets are those of one queue."""

    __slots__ = ("_settled", "_states", "floor", "next", "requeued_count", "stop", "watch")

    def __init__(self, offset: int) -> None:
        self.floor = offset
        """All offsets below are settled."""
        self.next = offset
        """The first offset that was never delivered."""
        self.stop = NO_STOP
        """From this offset on nothing is for the consumer."""
        self.requeued_count = 0
        self.watch: Watch | None = None
        """Told of (first, count) that are not ready any more (-1) or are again (1); of a purge it
        is not."""
        self._settled: list[list[int]] | None = None
        """(first, count) stretches settled since the last `take_settled`: what a record of acks
        has to say. None while there are none, as in nearly all queues."""
        self._states = _NO_STATES

    def ready_count(self, end: int) -> int:
        """How many messages wait, in a queue that ends before offset `end`."""
        if end > self.stop:
            end = self.stop
        new = end - self.next
        return self.requeued_count + new if new > 0 else self.requeued_count

    def has_requeued(self) -> bool:
        """Whether something comes before what is new."""
        return self.requeued_count > 0

    @property
    def outstanding_count(self) -> int:
        """Delivered and neither settled nor requeued."""
        return self._states.count(OUTSTANDING)

    def take(self, limit: int, end: int) -> tuple[int, int, bool] | None:
        """Hand out up to `limit` consecutive offsets below `end`: (first, count, redelivered)."""
        assert limit > 0
        if self.requeued_count:
            at = self._states.find(REQUEUED)
            window = self._states[at : at + limit]
            count = len(window) - len(window.lstrip(_REQUEUED_BYTE))
            self._states[at : at + count] = bytes(count)
            self.requeued_count -= count
            if self.watch is not None:
                self.watch(self.floor + at, count, -1)
            return self.floor + at, count, True
        first = self.next
        if end > self.stop:
            end = self.stop
        if first >= end:
            return None
        count = min(limit, end - first)
        if self._states:
            self._states.extend(bytes(count))
        else:
            self._states = bytearray(count)
        self.next += count
        if self.watch is not None:
            self.watch(first, count, -1)
        return first, count, False

    def peek(self, limit: int, end: int) -> tuple[int, int] | None:
        """The stretch that `take` would hand out next, or the start of it: (first, count)."""
        if self.requeued_count:
            at = self._states.find(REQUEUED)
            window = self._states[at : at + limit]
            return self.floor + at, len(window) - len(window.lstrip(_REQUEUED_BYTE))
        if end > self.stop:
            end = self.stop
        if self.next >= end:
            return None
        return self.next, min(limit, end - self.next)

    def requeued(self, first: int = 0, end: int = NO_STOP) -> Iterator[tuple[int, int]]:
        """(first, count) stretches in [first, end) that were given back, in order."""
        low, high = max(first - self.floor, 0), max(end - self.floor, 0)
        for stretch in _REQUEUED_STRETCH.finditer(self._states, low, high):
            yield self.floor + stretch.start(), len(stretch[0])

    def pass_over(self, count: int) -> None:
        """The next `count` offsets, which nobody had, are done with."""
        first = self.next
        if self.watch is not None:
            self.watch(first, count, -1)
        self.next += count
        if self._states:
            self._states.extend(_SETTLED_BYTE * count)
        else:
            self.floor = self.next
        self._note(first, count)

    def untake(self, first: int, count: int, redelivered: bool) -> None:
        """Give back the end of what was just taken, as if it had not been handed out."""
        if first + count == self.next and first >= self.floor and not redelivered:
            del self._states[first - self.floor :]
            self.next = first
            if self.watch is not None:
                self.watch(first, count, 1)
        else:
            self.requeue(first, count)

    def settle(self, first: int, count: int) -> None:
        """These are done with. Offsets below the floor are passed over (settling is idempotent)."""
        if first < self.floor:
            count -= self.floor - first
            first = self.floor
        if count <= 0:
            return
        if first + count > self.next:  # a replayed record of acks may run ahead of deliveries
            self._extend(first + count)
        self._note(first, count)
        start = first - self.floor
        if self.requeued_count:
            if self.watch is not None:
                for stretch in _REQUEUED_STRETCH.finditer(self._states, start, start + count):
                    self.watch(self.floor + stretch.start(), len(stretch[0]), -1)
            self.requeued_count -= self._states.count(REQUEUED, start, start + count)
        if start:
            self._states[start : start + count] = _SETTLED_BYTE * count
            return
        del self._states[:count]
        self.floor += count
        if self._states and self._states[0] == SETTLED:
            self._advance()

    def requeue(self, first: int, count: int) -> None:
        """Back to their places, to be delivered again before anything newer."""
        if first < self.floor:  # dropped meanwhile (`skip_to`)
            count -= self.floor - first
            first = self.floor
        if count <= 0:
            return
        start = first - self.floor
        assert first + count <= self.next
        outstanding = self._states.count(OUTSTANDING, start, start + count)
        if self.watch is not None:
            for stretch in _OUTSTANDING_STRETCH.finditer(self._states, start, start + count):
                self.watch(self.floor + stretch.start(), len(stretch[0]), 1)
        if outstanding == count:
            self._states[start : start + count] = _REQUEUED_BYTE * count
        else:  # some were settled in between (purge): they stay settled
            window = self._states[start : start + count]
            self._states[start : start + count] = window.translate(_OUTSTANDING_TO_REQUEUED)
        self.requeued_count += outstanding

    def put_back(self, first: int, count: int) -> None:
        """These are not done with, though they may have been settled: back to their places."""
        assert first + count <= self.next
        if first < self.floor:
            self._states = bytearray(_SETTLED_BYTE * (self.floor - first)) + self._states
            self.floor = first
        start = first - self.floor
        ready = self._states.count(REQUEUED, start, start + count)
        if self.watch is not None:
            for stretch in _OTHER_STRETCH.finditer(self._states, start, start + count):
                self.watch(self.floor + stretch.start(), len(stretch[0]), 1)
        self._states[start : start + count] = _REQUEUED_BYTE * count
        self.requeued_count += count - ready

    def settle_ready(self, end: int) -> int:
        """Settle everything that waits (purge); what is outstanding stays. Returns the count."""
        count = self.ready_count(end)
        watch, self.watch = self.watch, None
        at = self._states.find(REQUEUED)
        while at >= 0:
            window = self._states[at:]
            length = len(window) - len(window.lstrip(_REQUEUED_BYTE))
            floor = self.floor
            self.settle(floor + at, length)
            at = self._states.find(REQUEUED)
        end = min(end, self.stop)
        if end > self.next:
            self.settle(self.next, end - self.next)
        self.watch = watch
        return count

    def drop(self, limit: int, end: int) -> tuple[int, int] | None:
        """Settle the oldest messages that wait, without a note: up to `limit` of the stretch at the
        head, in a queue that ends before offset `end`. What is outstanding stays.

        Returns:
            (first, count) of what was dropped; None if nothing waits.
        """
        head = self.peek(limit, end)
        if head is None:
            return None
        first, count = head
        if self.watch is not None:
            self.watch(first, count, -1)
        if first < self.next:
            at = first - self.floor
            self._states[at : at + count] = _SETTLED_BYTE * count
            self.requeued_count -= count
        elif self._states:
            self._states.extend(_SETTLED_BYTE * count)
            self.next += count
        else:
            self.floor = self.next = first + count
        if self._states and self._states[0] == SETTLED:
            self._advance()
        return head

    def skip_waiting(self, offset: int) -> int:
        """Drop everything below `offset` that waits, also what is behind the stop, and go on there.
        What is outstanding stays. Returns how many were dropped."""
        if self.stop <= offset:
            self.stop = NO_STOP
        dropped = 0
        while (head := self.peek(offset, offset)) is not None and head[0] < offset:
            found = self.drop(min(head[1], offset - head[0]), offset)
            assert found is not None
            dropped += found[1]
        return dropped

    def skip_to(self, offset: int) -> int:
        """Settle everything below `offset` without a note (dropped by overflow or retention).

        Returns:
            How many offsets were neither settled nor delivered: what a consumer will miss.
        """
        if offset <= self.floor:
            return 0
        if self.watch is not None:
            self._watch_skipped(self.watch, offset)
        missed = max(0, min(offset, self.stop) - max(self.next, self.floor))
        window = self._states[: offset - self.floor]
        missed += window.count(REQUEUED)
        self.requeued_count -= window.count(REQUEUED)
        del self._states[: offset - self.floor]
        self.floor = offset
        self.next = max(self.next, offset)
        if self._states and self._states[0] == SETTLED:
            self._advance()
        return missed

    def _watch_skipped(self, watch: Watch, offset: int) -> None:
        """Tell of what is ready below `offset` and will not be any more."""
        for first, count in list(self.requeued()):
            if first < offset:
                watch(first, min(count, offset - first), -1)
        if offset > self.next:
            watch(self.next, offset - self.next, -1)

    def is_settled(self, offset: int) -> bool:
        """Whether the offset is done with."""
        if offset < self.floor:
            return True
        return offset < self.next and self._states[offset - self.floor] == SETTLED

    def is_requeued(self, offset: int) -> bool:
        """Whether the offset was delivered and given back."""
        return self.floor <= offset < self.next and self._states[offset - self.floor] == REQUEUED

    def settled_flags(self, first: int, count: int) -> bytes:
        """One byte for each of `count` offsets from `first` on: 1 if it is settled, else 0."""
        assert first >= self.floor
        start = first - self.floor
        flags = self._states[start : start + count].translate(_OTHERS_TO_OUTSTANDING)
        return bytes(flags).ljust(count, b"\x00")

    def take_settled(self) -> list[list[int]]:
        """The (first, count) stretches settled since the last call, for a record of acks."""
        settled, self._settled = self._settled, None
        return settled or []

    def give_back_settled(self, settled: list[list[int]]) -> None:
        """Undo `take_settled`: the record was not written."""
        self._settled = settled + (self._settled or [])

    def forget_settled(self) -> None:
        """Nobody writes a record of what was settled so far."""
        self._settled = None

    # --- keeping and restoring ------------------------------------------------------------

    def snapshot(self) -> dict[str, object]:
        """Floor, next, and what is settled between, as a JSON value.

        That is (first, count) stretches; where there are many (delayed messages leave in the order
        of their times), one byte an offset, compressed, in base64.
        """
        settled: object = None
        if self._states.count(b"\x00\x01") > STRETCHES_MAX:
            mask = self._states.translate(_OTHERS_TO_OUTSTANDING)
            settled = b64encode(zlib.compress(mask, 1)).decode("ascii")
        else:
            settled = [
                [self.floor + stretch.start(), stretch.end() - stretch.start()]
                for stretch in _SETTLED_STRETCH.finditer(self._states)
            ]
        row: dict[str, object] = {"floor": self.floor, "next": self.next, "settled": settled}
        return row if self.stop == NO_STOP else {**row, "stop": self.stop}

    @classmethod
    def restore(
        cls,
        floor: int,
        next_offset: int,
        settled: Iterable[Iterable[int]] | str,
        stop: int = NO_STOP,
    ) -> Cursor:
        """The cursor of a snapshot. What was outstanding is outstanding still: see `reopen`."""
        cursor = cls(floor)
        cursor.next = next_offset
        cursor.stop = stop
        if isinstance(settled, str):
            cursor._states = bytearray(zlib.decompress(b64decode(settled)))
            assert len(cursor._states) == next_offset - floor
            return cursor
        cursor._states = bytearray(next_offset - floor) if next_offset > floor else _NO_STATES
        for first, count in settled:
            cursor.settle(first, count)
        cursor.forget_settled()
        return cursor

    def delivered_to(self, next_offset: int) -> None:
        """Replay: deliveries had reached `next_offset`."""
        if next_offset > self.next:
            self._extend(next_offset)

    def _extend(self, next_offset: int) -> None:
        """What lies before `next_offset` counts as delivered."""
        if self.watch is not None:
            self.watch(self.next, next_offset - self.next, -1)
        if self._states:
            self._states.extend(bytes(next_offset - self.next))
        else:
            self._states = bytearray(next_offset - self.next)
        self.next = next_offset

    def reopen(self, keep: Iterable[tuple[int, int]] = ()) -> None:
        """After a restart no connection holds anything: requeue what is outstanding.

        Args:
            keep: (first, count) stretches that stay outstanding: in flight in an MQTT session.
        """
        if not self._states:
            self._states, self.requeued_count = _NO_STATES, 0
            return
        states = bytearray(self._states.translate(_OUTSTANDING_TO_REQUEUED))
        for first, count in keep:
            low = max(first, self.floor)
            for offset in range(low, min(first + count, self.next)):
                if states[offset - self.floor] == REQUEUED:
                    states[offset - self.floor] = OUTSTANDING
        self._states = states
        self.requeued_count = states.count(REQUEUED)

    def clamp(self, first: int, end: int) -> None:
        """Forget what the queue does not have: offsets at or above `end`, or below `first`."""
        if self.next > end:
            del self._states[max(0, end - self.floor) :]
            self.next = max(end, self.floor)
            self.requeued_count = self._states.count(REQUEUED)
        if self.floor > end:
            self.floor = self.next = end
        if first > self.floor:
            self.skip_to(first)

    def _note(self, first: int, count: int) -> None:
        settled = self._settled
        if settled is None:
            self._settled = [[first, count]]
            return
        if settled and settled[-1][0] + settled[-1][1] == first:
            settled[-1][1] += count
        else:
            settled.append([first, count])

    def _advance(self) -> None:
        states = self._states
        end = states.find(OUTSTANDING)
        if end < 0:
            end = len(states)
        if self.requeued_count:
            requeued = states.find(REQUEUED)
            if 0 <= requeued < end:
                end = requeued
        del states[:end]
        self.floor += end
