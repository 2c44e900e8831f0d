# cython: boundscheck=False, annotation_typing=False, initializedcheck=False
"""What is delivered and not yet acknowledged, as runs of integers.

Delivery tags (AMQP) and packet ids (MQTT) count up by one, and so do the offsets of the messages
behind them, because a delivery is a stretch of one queue. So what is unacknowledged is a short
list of runs, however many messages it covers, and acknowledging in order only moves the start of
the first run. Acknowledging out of order splits runs: at worst one run per message that is out.

This is one source, plain Python or compiled (`fast_unacked`); `broker.queues.unacked` says of what
type holders are.

Tags are never reused within one `UnackedRuns`; they start at 1 (AMQP 4.2.3: delivery-tag 0 means
all).
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any


class UnackedRuns:
    """Runs of (first tag, count, holder, first offset), in order of tags."""

    __slots__ = ("_first", "_runs", "count", "next_tag")

    def __init__(self) -> None:
        self.next_tag = 1
        """The tag that the next delivery gets."""
        self.count = 0
        """How many tags are unacknowledged."""
        self._first: list[int] = []  # first tag of each run, for bisection
        self._runs: list[tuple[int, Any, int]] = []  # (count, holder, first offset)

    def add(self, holder: Any, first_offset: int, count: int) -> int:
        """Hand out `count` tags for consecutive offsets of one holder; returns the first tag."""
        assert count > 0
        first_tag = self.next_tag
        self.next_tag += count
        self.count += count
        if self._runs:
            last_count, last_holder, last_offset = self._runs[-1]
            if (
                last_holder is holder
                and last_offset + last_count == first_offset
                and self._first[-1] + last_count == first_tag
            ):
                self._runs[-1] = (last_count + count, holder, last_offset)
                return first_tag
        self._first.append(first_tag)
        self._runs.append((count, holder, first_offset))
        return first_tag

    def copy(self) -> Any:
        """Another with the same runs."""
        found = type(self)()
        found.next_tag, found.count = self.next_tag, self.count
        found._first, found._runs = self._first[:], self._runs[:]
        return found

    @property
    def first_tag(self) -> int:
        """The oldest unacknowledged tag; `next_tag` if there is none."""
        return self.oldest()

    def oldest(self) -> int:
        """`first_tag`, for those who know of what type this is."""
        return self._first[0] if self._first else self.next_tag

    def __contains__(self, tag: int) -> bool:
        at = bisect_right(self._first, tag) - 1
        return at >= 0 and tag < self._first[at] + self._runs[at][0]

    def settle(self, first_tag: int, last_tag: int) -> list[tuple[Any, int, int]]:
        """Remove tags [first_tag, last_tag]; returns (holder, first offset, count) runs.

        Raises:
            KeyError: a tag of the range is not unacknowledged; its argument is the first such
                tag. Nothing was removed.
        """
        if self._first and self._first[0] == first_tag:
            taken = last_tag - first_tag + 1
            if 0 < taken <= self._runs[0][0]:
                return self._settle_first(taken)
        at = bisect_right(self._first, first_tag) - 1
        if at < 0 or last_tag < first_tag:
            raise KeyError(first_tag)
        end = at
        expected = first_tag
        while expected <= last_tag:
            if end >= len(self._runs):
                raise KeyError(expected)
            run_end = self._first[end] + self._runs[end][0]
            if not self._first[end] <= expected < run_end:
                raise KeyError(expected)
            expected = run_end
            end += 1
        return self._cut(at, end, first_tag, last_tag)

    def settle_unheld(self, first_tag: int, count: int) -> bool:
        """`settle_present` for the oldest tags, if nobody holds the messages behind them; returns
        whether that is so. If not, nothing was removed."""
        if not self._first or self._first[0] != first_tag or count < 1:
            return False
        run_count, holder, offset = self._runs[0]
        if holder is not None or count > run_count:
            return False
        if count < run_count:
            self._first[0] = first_tag + count
            self._runs[0] = (run_count - count, None, offset + count)
        else:
            del self._first[0], self._runs[0]
        self.count -= count
        return True

    def holders(self, first_tag: int, last_tag: int) -> list[Any]:
        """Who holds the messages behind these tags, as far as they are unacknowledged."""
        found: list[Any] = []
        at = max(0, bisect_right(self._first, first_tag) - 1)
        while at < len(self._runs) and self._first[at] <= last_tag:
            if first_tag < self._first[at] + self._runs[at][0]:
                found.append(self._runs[at][1])
            at += 1
        return found

    def settle_present(self, first_tag: int, last_tag: int) -> list[tuple[Any, int, int]]:
        """Like `settle`, but passes over tags that are not there (MQTT ignores unknown ids)."""
        if self._first and self._first[0] == first_tag:
            taken = last_tag - first_tag + 1
            if 0 < taken <= self._runs[0][0]:
                return self._settle_first(taken)
        settled: list[tuple[Any, int, int]] = []
        at = max(0, bisect_right(self._first, first_tag) - 1)
        while at < len(self._runs) and self._first[at] <= last_tag:
            first = max(first_tag, self._first[at])
            last = min(last_tag, self._first[at] + self._runs[at][0] - 1)
            if first > last:
                at += 1
                continue
            length = len(self._runs)
            settled += self._cut(at, at + 1, first, last)
            at += 1 + len(self._runs) - length
        return settled

    def _settle_first(self, taken: int) -> list[tuple[Any, int, int]]:
        """Remove so many tags, at least one, of the first run: the common case, the oldest ones in
        their order."""
        run_count, holder, offset = self._runs[0]
        if taken < run_count:
            self._first[0] += taken
            self._runs[0] = (run_count - taken, holder, offset + taken)
        else:
            del self._first[0], self._runs[0]
        self.count -= taken
        return [(holder, offset, taken)]

    def settle_to(self, last_tag: int) -> list[tuple[Any, int, int]]:
        """Remove all tags up to `last_tag` (AMQP `multiple`); an empty list if there are none."""
        if not self._first or self._first[0] > last_tag:
            return []
        end = bisect_right(self._first, last_tag)
        return self._cut(0, end, self._first[0], last_tag)

    def put_back(self, first_tag: int, holder: Any, first_offset: int, count: int) -> None:
        """Make tags that were settled unacknowledged again (AMQP's tx.rollback)."""
        assert count > 0
        assert first_tag + count <= self.next_tag
        at = bisect_right(self._first, first_tag)
        self._first.insert(at, first_tag)
        self._runs.insert(at, (count, holder, first_offset))
        self.count += count

    def drain(self) -> list[tuple[Any, int, int]]:
        """Remove everything."""
        runs = [(holder, offset, count) for count, holder, offset in self._runs]
        self._first.clear()
        self._runs.clear()
        self.count = 0
        return runs

    def runs(self) -> list[tuple[int, Any, int, int]]:
        """(first tag, holder, first offset, count) of every run, in order of tags."""
        return [
            (tag, holder, offset, count)
            for tag, (count, holder, offset) in zip(self._first, self._runs, strict=True)
        ]

    def _cut(self, at: int, end: int, first_tag: int, last_tag: int) -> list[tuple[Any, int, int]]:
        """Remove [first_tag, last_tag] from runs [at, end), keeping what is outside of it."""
        settled: list[tuple[Any, int, int]] = []
        kept_first: list[int] = []
        kept_runs: list[tuple[int, Any, int]] = []
        for index in range(at, end):
            tag = self._first[index]
            count, holder, offset = self._runs[index]
            low = max(tag, first_tag)
            high = min(tag + count - 1, last_tag)
            if low > tag:
                kept_first.append(tag)
                kept_runs.append((low - tag, holder, offset))
            settled.append((holder, offset + low - tag, high - low + 1))
            self.count -= high - low + 1
            if high < tag + count - 1:
                kept_first.append(high + 1)
                kept_runs.append((tag + count - 1 - high, holder, offset + high + 1 - tag))
        self._first[at:end] = kept_first
        self._runs[at:end] = kept_runs
        return settled
