"""Which messages are due when: a timing wheel over index entries, 20 bytes a message.

Theory. A *slot* holds the messages that are due within a stretch of time. There are four levels of
slots, each as wide as many of the level below:

    0   1 ms        all messages of a slot are due at once
    1   50 ms
    2   1 minute
    3   6 hours     1,460 of them are a year

A message goes into a wide slot if its time is far, and into a narrow one if it is near. A wide slot
is *refined* into narrower ones a little before its time (`LEADS_MS`), some thousand messages a
call. So a message moves at most three times, and a slot that is not there costs nothing.

An item is the message's index entry, 20 bytes: position and size as they are, and in place of the
tag hash what the slot does not say: milliseconds from the slot's start (25 bits) and the offset in
the queue (its lower 39 bits). So what a slot of level 0 holds is what the log reads from.

Rules:

* Messages that are due in the same millisecond come out in the order in which they were added. For
  that, a message goes into the widest slot that is there for its time, so that nothing overtakes
  those that wait there to be refined.
* Pure: times and places come in, items go out. Times in the past are as good as others: they come
  out first, in their order.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from polymq.core_log.kernels.layout import ENTRY_SIZE

WIDTHS_MS: Final = (1, 50, 60_000, 6 * 3_600_000)
"""Of a slot of each level; each a multiple of the one before."""
NEAR_MS: Final = (0, 120_000, 12 * 3_600_000)
"""A message further away than this goes into a slot of a higher level."""
LEADS_MS: Final = (0, 0, 10_000, 600_000)
"""How long before its start a slot is refined: a million messages take about two seconds. Shorter
than `NEAR_MS` less the slot's width, so that no wide slot comes to be over narrow ones."""
OFFSET_BITS: Final = 39
_OFFSET_MASK: Final = (1 << OFFSET_BITS) - 1
"""Offsets are told from their lower bits and `floor`: two that wait at the same time are never this
far apart."""

_ITEM: Final = struct.Struct(">12sQ")
_PARTS: Final = struct.Struct(">QIQ")
_EXTENT: Final = struct.Struct(">QI")
assert _ITEM.size == ENTRY_SIZE


class Taken(NamedTuple):
    """Messages that are due, in the order of their times.

    Attributes:
        entries: 20 bytes each, as the log reads them.
        offsets: in the queue.
    """

    entries: bytes
    offsets: list[int]


class Wheel:
    """See the head of this file.

    Attributes:
        count: how many messages are in it.
        bytes: the sum of their records' sizes.
    """

    __slots__ = ("_heaps", "_levels", "bytes", "count")

    def __init__(self) -> None:
        self._levels: tuple[dict[int, bytearray], ...] = ({}, {}, {}, {})
        self._heaps: tuple[list[int], ...] = ([], [], [], [])  # the numbers of the slots
        self.count = 0
        self.bytes = 0

    def add(self, due_ms: int, entry: bytes, offset: int, now_ms: int) -> None:
        """One message, whose entry begins with position and size."""
        level = self._level(due_ms, now_ms)
        width = WIDTHS_MS[level]
        key = due_ms % width << OFFSET_BITS | offset & _OFFSET_MASK
        self._slot(level, due_ms // width).extend(entry[:12] + key.to_bytes(8, "big"))
        self.count += 1
        self.bytes += int.from_bytes(entry[8:12], "big")

    def add_run(self, due_ms: int, entries: bytes, first_offset: int, now_ms: int) -> None:
        """Messages with consecutive offsets that are due at the same time."""
        level = self._level(due_ms, now_ms)
        width = WIDTHS_MS[level]
        base = due_ms % width << OFFSET_BITS
        items = bytearray()
        offset = first_offset
        for extent, _ in _ITEM.iter_unpack(entries):
            items += _ITEM.pack(extent, base | offset & _OFFSET_MASK)
            offset += 1
            self.bytes += _EXTENT.unpack(extent)[1]
        self._slot(level, due_ms // width).extend(items)
        self.count += offset - first_offset

    def fill(
        self, entries: bytes, times: Sequence[int], skipped: bytes, first_offset: int, now_ms: int
    ) -> None:
        """Messages with consecutive offsets, each with a time of its own: what a start finds.

        Args:
            times: when each is due.
            skipped: one byte for each; those with another than zero are left out.
        """
        near, far = NEAR_MS[1], NEAR_MS[2]
        levels = self._levels
        offset = first_offset
        for (position, size, _), due_ms, skip in zip(
            _PARTS.iter_unpack(entries), times, skipped, strict=True
        ):
            if not skip:
                distance = abs(due_ms - now_ms)
                level = 1 if distance < near else 2 if distance < far else 3
                number, rest = divmod(due_ms, WIDTHS_MS[level])
                slot = levels[level].get(number)
                if slot is None:
                    slot = self._slot(level, number)
                slot += _PARTS.pack(position, size, rest << OFFSET_BITS | offset & _OFFSET_MASK)
                self.count += 1
                self.bytes += size
            offset += 1

    def replace(
        self, due_ms: int, entry: bytes, offset: int, new_entry: bytes, new_offset: int
    ) -> bool:
        """A message stands somewhere else now. It keeps its place among those of the same time.

        Returns:
            Whether it was found.
        """
        for level in (3, 2, 1, 0):
            width = WIDTHS_MS[level]
            slot = self._levels[level].get(due_ms // width)
            if slot is None:
                continue
            rest = due_ms % width << OFFSET_BITS
            at = _find(slot, _ITEM.pack(entry[:12], rest | offset & _OFFSET_MASK))
            if at >= 0:
                item = _ITEM.pack(new_entry[:12], rest | new_offset & _OFFSET_MASK)
                slot[at : at + ENTRY_SIZE] = item
                self.bytes += _EXTENT.unpack(new_entry[:12])[1] - _EXTENT.unpack(entry[:12])[1]
                return True
        return False

    def _level(self, due_ms: int, now_ms: int) -> int:
        """The level of the slot for a time: the widest that is there, else by its distance."""
        for level in (3, 2, 1):
            if due_ms // WIDTHS_MS[level] in self._levels[level]:
                return level
        if due_ms in self._levels[0]:
            return 0
        distance = abs(due_ms - now_ms)
        return 1 if distance < NEAR_MS[1] else 2 if distance < NEAR_MS[2] else 3

    def _slot(self, level: int, number: int) -> bytearray:
        slots = self._levels[level]
        slot = slots.get(number)
        if slot is None:
            slot = slots[number] = bytearray()
            heapq.heappush(self._heaps[level], number)
        return slot

    def next_ms(self) -> int | None:
        """When there is something to do next (`take`); None if the wheel is empty."""
        return min(
            (
                heap[0] * width - lead
                for heap, width, lead in zip(self._heaps, WIDTHS_MS, LEADS_MS, strict=True)
                if heap
            ),
            default=None,
        )

    def take(
        self, now_ms: int, *, floor: int, count_max: int, bytes_max: int, refine_max: int
    ) -> Taken:
        """What is due, at most `count_max` messages and `bytes_max` bytes of records (but one).

        Nothing while more than `refine_max` messages have to be refined first: call again.

        Args:
            floor: no offset in the wheel is lower.
        """
        if not self._refine(now_ms, refine_max):
            return Taken(b"", [])
        slots, heap = self._levels[0], self._heaps[0]
        entries = bytearray()
        offsets: list[int] = []
        size = 0
        while heap and heap[0] <= now_ms and len(offsets) < count_max:
            slot = slots[heap[0]]
            taken = 0
            for extent, key in _ITEM.iter_unpack(slot):
                record_size = _EXTENT.unpack(extent)[1]
                if len(offsets) == count_max or (offsets and size + record_size > bytes_max):
                    break
                size += record_size
                offsets.append(floor + ((key - floor) & _OFFSET_MASK))
                taken += ENTRY_SIZE
            entries += slot[:taken]
            if taken < len(slot):
                del slot[:taken]
                break
            del slots[heapq.heappop(heap)]
        self.count -= len(offsets)
        self.bytes -= size
        return Taken(bytes(entries), offsets)

    def _refine(self, now_ms: int, count_max: int) -> bool:
        """Refine what is near; returns whether nothing is left to be refined."""
        for level in (3, 2, 1):
            slots, heap = self._levels[level], self._heaps[level]
            while heap and heap[0] * WIDTHS_MS[level] - LEADS_MS[level] <= now_ms:
                if count_max <= 0:
                    return False
                slot = slots[heap[0]]
                count = min(count_max, len(slot) // ENTRY_SIZE)
                self._spread(level, heap[0] * WIDTHS_MS[level], slot[: count * ENTRY_SIZE])
                count_max -= count
                if count * ENTRY_SIZE < len(slot):
                    del slot[: count * ENTRY_SIZE]
                else:
                    del slots[heapq.heappop(heap)]
        return True

    def _spread(self, level: int, start_ms: int, items: bytearray) -> None:
        """Distribute items of a slot that starts at `start_ms` over the next lower level."""
        width = WIDTHS_MS[level - 1]
        first = start_ms // width
        slots = self._levels[level - 1]
        for extent, key in _ITEM.iter_unpack(items):
            number, rest = divmod(key >> OFFSET_BITS, width)
            slot = slots.get(first + number)
            if slot is None:
                slot = self._slot(level - 1, first + number)
            slot += _ITEM.pack(extent, rest << OFFSET_BITS | key & _OFFSET_MASK)

    def slots(self) -> Iterator[tuple[int, int]]:
        """(width in ms, messages) of every slot: for tests and figures."""
        for width, slots in zip(WIDTHS_MS, self._levels, strict=True):
            for slot in slots.values():
                yield width, len(slot) // ENTRY_SIZE


def _find(slot: bytearray, item: bytes) -> int:
    """Where the item stands, or -1. Those that are looked for are the oldest: near the start."""
    at = slot.find(item)
    while at > 0 and at % ENTRY_SIZE:
        at = slot.find(item, at + 1)
    return at
