"""What is known of the backlog of one session that has a bound (`backlogs.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from polymq.broker.core import Core
from polymq.broker.queues.heads import positions_of, sizes_of
from polymq.broker.queues.ready_bytes import ReadyBytes
from polymq.broker.sessions.uncounted import ReaderGroup, Uncounted

HEAD_COUNT: Final = 64
"""Entries at the head of a subscription that are looked at together."""
NO_BOUND: Final = 1 << 62


class Head(NamedTuple):
    """Messages at the head of a subscription.

    Attributes:
        positions: where they stand in the log; none while that is being read.
        sizes: their bytes.
        flags: a byte for each: 1 if it does not count.
    """

    positions: Sequence[int] = ()
    sizes: Sequence[int] = ()
    flags: bytes = b""


class Heads:
    """The heads of some groups: of the subscriptions of a session, or of all shares.

    Attributes:
        reading: those whose heads are on their way from the disk.
    """

    __slots__ = ("_core", "_known", "_uncounted", "reading")

    def __init__(self, core: Core, uncounted: Uncounted) -> None:
        self._core = core
        self._uncounted = uncounted
        self._known: dict[ReaderGroup, tuple[int, Head]] = {}
        self.reading: set[ReaderGroup] = set()

    def forget(self, group: ReaderGroup) -> None:
        """Of this group nothing has to be dropped."""
        self._known.pop(group, None)

    def clear(self) -> None:
        """Forget them: what does not count has changed, or nothing has to be dropped."""
        self._known.clear()

    def limit(self, count: int) -> None:
        """Forget them if they are of more subscriptions than so many."""
        if len(self._known) > count:
            self._known.clear()

    def of(self, group: ReaderGroup, changed: Callable[[], None]) -> Head:
        """The head of a group.

        Args:
            changed: called when it is there, if it has to be read.
        """
        index, cursor = group.queue.index, group.cursor
        if cursor.floor < index.first_offset:
            cursor.skip_to(index.first_offset)
        waiting = cursor.peek(HEAD_COUNT, group.queue.visible)
        if waiting is None:
            return Head()
        first, count = waiting
        start, known = self._known.get(group, (0, Head()))
        if not 0 <= first - start < len(known.positions):
            entries = index.read_hot(first, count)
            if not entries:
                if group not in self.reading:
                    self._read(group, first, changed)
                return Head()
            start, known = self._take(group, first, entries)
        found = slice(first - start, first - start + count)
        return Head(known.positions[found], known.sizes[found], known.flags[found])

    def _take(self, group: ReaderGroup, first: int, entries: bytes) -> tuple[int, Head]:
        flags = self._uncounted.flags(group, first, entries)
        taken = first, Head(positions_of(entries), sizes_of(entries), flags)
        self._known[group] = taken
        return taken

    def _read(self, group: ReaderGroup, first: int, changed: Callable[[], None]) -> None:
        def took(first: int, entries: bytes | None) -> None:
            self.reading.discard(group)
            if entries:  # else the read failed, which was told: the next message asks again
                self._take(group, first, entries)
                ready = group.cursor.watch
                if isinstance(ready, ReadyBytes):
                    ready.looked_at = first, sizes_of(entries)
                changed()

        self.reading.add(group)
        self._core.reading.entries(group.queue.index, first, HEAD_COUNT, took)


class Excess:
    """How much is too much: messages, and bytes; below 0: so much more may come."""

    __slots__ = ("bytes", "count")

    def __init__(self, count: int, size: int) -> None:
        self.count = count
        self.bytes = size

    def __bool__(self) -> bool:
        return self.count > 0 or self.bytes > 0

    def portion(self, head: Head, before: int) -> tuple[int, int, int]:
        """What of a head has to go, of what stands in the log before a position, and the first
        message in any case: it is none too much any more.

        Returns:
            How many messages, how many of them do not count, and the bytes of those.
        """
        count = uncounted = size = 0
        for position, one_size, flag in zip(head.positions, head.sizes, head.flags, strict=True):
            if count and (position >= before or not self):
                break
            count += 1
            if flag:
                uncounted += 1
                size += one_size
            else:
                self.count -= 1
                self.bytes -= one_size
        return count, uncounted, size


class Backlog:
    """What is known of one session.

    Attributes:
        uncounted: how much of what waits does not count.
        heads: the heads of its subscriptions; of a session that drops its oldest, and has several
            of them, or messages that do not count, or too many bytes.
        room: at least so many messages may still come before they have to be counted again.
        free: the same of bytes.
        dropped_count: messages that it lost since the start.
        full_until_ms: until when it is taken for full.
        is_full_of_bytes: it last lost something for the bound of bytes.
        logged_count, logged_ms: how many had been lost when that was last logged.
    """

    __slots__ = (
        "dropped_count",
        "free",
        "full_until_ms",
        "heads",
        "is_full_of_bytes",
        "logged_count",
        "logged_ms",
        "room",
        "uncounted",
    )

    def __init__(self, core: Core, uncounted: Uncounted, *, free: int) -> None:
        self.uncounted = uncounted
        self.heads = Heads(core, uncounted)
        self.room = 0
        self.free = free
        self.dropped_count = 0
        self.full_until_ms = 0
        self.is_full_of_bytes = False
        self.logged_count = 0
        self.logged_ms = 0
