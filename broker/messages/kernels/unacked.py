# cython: boundscheck=False, annotation_typing=False, initializedcheck=False
"""What is delivered and not yet acknowledged, as runs of integers.

Delivery tags (AMQP) and packet ids (MQTT) count up by one, and so do the offsets of the messages
behind them, because a delivery is a stretch of one queue. So what is unacknowledged is a short
list of runs, however many messages it covers, and acknowledging in order only moves the start of
the first run. Acknowledging out of order splits runs: at worst one run per message that is out.
The runs are kept in blocks, so that splitting one moves the runs of its block only.

This is one source, plain Python or compiled (`unacked`); `broker.messages.unacked` says of what
type holders are.

Tags are never reused within one `UnackedRuns`; they start at 1 (AMQP 4.2.3: delivery-tag 0 means
all).
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

RUNS_MAX = 1024
"""Of a block; a longer one becomes two."""


class UnackedRuns:
    """Runs of (first tag, holder, first offset, count), in order of tags.

    Nearly always there is one block, which `_first` and `_runs` are: it is empty only if there are
    no runs at all. Further blocks stand in `_blocks`, none of them empty. `_starts` has a tag for
    each: its first run begins there or later, and the runs of the block before it end earlier.
    """

    __slots__ = ("_blocks", "_first", "_runs", "_starts", "count", "next_tag")

    def __init__(self) -> None:
        self.next_tag = 1
        """The tag that the next delivery gets."""
        self.count = 0
        """How many tags are unacknowledged."""
        self._first: list[int] = []  # first tag of each run, for bisection
        self._runs: list[tuple[Any, int, int]] = []  # (holder, first offset, count)
        self._starts: list[int] = []
        self._blocks: list[tuple[list[int], list[tuple[Any, int, int]]]] = []

    def add(self, holder: Any, first_offset: int, count: int) -> int:
        """Hand out `count` tags for consecutive offsets of one holder; returns the first tag."""
        assert count > 0
        first_tag = self.next_tag
        self.next_tag += count
        self.count += count
        first, runs = self._blocks[-1] if self._blocks else (self._first, self._runs)
        if runs:
            last_holder, last_offset, last_count = runs[-1]
            if (
                last_holder is holder
                and last_offset + last_count == first_offset
                and first[-1] + last_count == first_tag
            ):
                runs[-1] = (holder, last_offset, last_count + count)
                return first_tag
            if len(runs) >= RUNS_MAX:
                self._starts.append(first_tag)
                self._blocks.append(([first_tag], [(holder, first_offset, count)]))
                return first_tag
        first.append(first_tag)
        runs.append((holder, first_offset, count))
        return first_tag

    def copy(self) -> Any:
        """Another with the same runs."""
        found = type(self)()
        found.next_tag, found.count = self.next_tag, self.count
        found._first, found._runs = self._first[:], self._runs[:]
        found._starts = self._starts[:]
        found._blocks = [(first[:], runs[:]) for first, runs in self._blocks]
        return found

    @property
    def first_tag(self) -> int:
        """The oldest unacknowledged tag; `next_tag` if there is none."""
        return self.oldest()

    def oldest(self) -> int:
        """`first_tag`, for those who know of what type this is."""
        return self._first[0] if self._first else self.next_tag

    def __contains__(self, tag: int) -> bool:
        first, runs = self._block(self._block_of(tag))
        at = bisect_right(first, tag) - 1
        return at >= 0 and tag < first[at] + runs[at][2]

    def settle(self, first_tag: int, last_tag: int) -> list[tuple[Any, int, int]]:
        """Remove tags [first_tag, last_tag]; returns (holder, first offset, count) runs.

        Raises:
            KeyError: a tag of the range is not unacknowledged; its argument is the first such
                tag. Nothing was removed.
        """
        if self._first and self._first[0] == first_tag:
            taken = last_tag - first_tag + 1
            if 0 < taken <= self._runs[0][2]:
                return self._settle_first(taken)
        block = self._block_of(first_tag)
        first, runs = self._block(block)
        at = bisect_right(first, first_tag) - 1
        if at < 0 or last_tag < first_tag:
            raise KeyError(first_tag)
        expected = first_tag
        while expected <= last_tag:
            if at == len(runs):
                block += 1
                if block > len(self._blocks):
                    raise KeyError(expected)
                first, runs = self._block(block)
                at = 0
            run_end = first[at] + runs[at][2]
            if not first[at] <= expected < run_end:
                raise KeyError(expected)
            expected = run_end
            at += 1
        return self._cut(first_tag, last_tag)

    def settle_unheld(self, first_tag: int, count: int) -> bool:
        """`settle_present` for the oldest tags, if nobody holds the messages behind them; returns
        whether that is so. If not, nothing was removed."""
        if not self._first or self._first[0] != first_tag or count < 1:
            return False
        holder, offset, run_count = self._runs[0]
        if holder is not None or count > run_count:
            return False
        if count < run_count:
            self._first[0] = first_tag + count
            self._runs[0] = (None, offset + count, run_count - count)
        else:
            self._remove_first()
        self.count -= count
        return True

    def holders(self, first_tag: int, last_tag: int) -> list[Any]:
        """Who holds the messages behind these tags, as far as they are unacknowledged."""
        found: list[Any] = []
        for block in range(self._block_of(first_tag), self._block_of(last_tag) + 1):
            first, runs = self._block(block)
            at = max(0, bisect_right(first, first_tag) - 1)
            while at < len(runs) and first[at] <= last_tag:
                if first_tag < first[at] + runs[at][2]:
                    found.append(runs[at][0])
                at += 1
        return found

    def settle_present(self, first_tag: int, last_tag: int) -> list[tuple[Any, int, int]]:
        """Like `settle`, but passes over tags that are not there (MQTT ignores unknown ids)."""
        if self._first and self._first[0] == first_tag:
            taken = last_tag - first_tag + 1
            if 0 < taken <= self._runs[0][2]:
                return self._settle_first(taken)
        return self._cut(first_tag, last_tag)

    def _settle_first(self, taken: int) -> list[tuple[Any, int, int]]:
        """Remove so many tags, at least one, of the first run: the common case, the oldest ones in
        their order."""
        holder, offset, run_count = self._runs[0]
        if taken < run_count:
            self._first[0] += taken
            self._runs[0] = (holder, offset + taken, run_count - taken)
        else:
            self._remove_first()
        self.count -= taken
        return [(holder, offset, taken)]

    def settle_to(self, last_tag: int) -> list[list[tuple[Any, int, int]]]:
        """Remove all tags up to `last_tag` (AMQP `multiple`), if there are any.

        Returns:
            (holder, first offset, count) runs, in lists of at most `RUNS_MAX`. They are those that
            were here, so this takes little time, however many there are.
        """
        settled: list[list[tuple[Any, int, int]]] = []
        while self._starts and self._starts[0] <= last_tag + 1:
            settled.append(self._runs)
            self.count -= sum([count for _, _, count in self._runs])
            self._remove_block(0)
        if self._first and self._first[0] <= last_tag:
            settled.append(self._cut(self._first[0], last_tag))
        return settled

    def put_back(self, first_tag: int, holder: Any, first_offset: int, count: int) -> None:
        """Make tags that were settled unacknowledged again (AMQP's tx.rollback)."""
        assert count > 0
        assert first_tag + count <= self.next_tag
        block = self._block_of(first_tag)
        first, runs = self._block(block)
        at = bisect_right(first, first_tag)
        first.insert(at, first_tag)
        runs.insert(at, (holder, first_offset, count))
        self.count += count
        self._split(block)

    def drain(self) -> list[list[tuple[Any, int, int]]]:
        """Remove everything, as `settle_to` does."""
        return self.settle_to(self.next_tag)

    def runs(self) -> list[tuple[int, Any, int, int]]:
        """(first tag, holder, first offset, count) of every run, in order of tags."""
        return [run for number in range(len(self._blocks) + 1) for run in self.runs_of(number)]

    def runs_of(self, block: int) -> list[tuple[int, Any, int, int]]:
        """The same of one block, at most `RUNS_MAX`; none if there is no such block."""
        if block > len(self._blocks):
            return []
        first, runs = self._block(block)
        return [
            (tag, holder, offset, count)
            for tag, (holder, offset, count) in zip(first, runs, strict=True)
        ]

    @property
    def block_count(self) -> int:
        """How many blocks there are; at least one."""
        return len(self._blocks) + 1

    def _cut(self, first_tag: int, last_tag: int) -> list[tuple[Any, int, int]]:
        """Remove what there is of tags [first_tag, last_tag]."""
        settled: list[tuple[Any, int, int]] = []
        block = self._block_of(first_tag)
        left = self._block_of(last_tag) - block
        while left >= 0:
            left -= 1
            first, _ = self._block(block)
            self._cut_block(block, first_tag, last_tag, settled)
            if first:
                block += 1 + self._split(block)
            elif self._blocks:
                self._remove_block(block)
        return settled

    def _cut_block(
        self, block: int, first_tag: int, last_tag: int, settled: list[tuple[Any, int, int]]
    ) -> None:
        """`_cut` in one block, of which runs may be left that are too many, or none."""
        first, runs = self._block(block)
        at = max(0, bisect_right(first, first_tag) - 1)
        end = bisect_right(first, last_tag)
        left_first: list[int] = []
        left_runs: list[tuple[Any, int, int]] = []
        for index in range(at, end):
            tag = first[index]
            holder, offset, count = runs[index]
            low = max(tag, first_tag)
            high = min(tag + count - 1, last_tag)
            if low > high:  # the run before the tags
                left_first.append(tag)
                left_runs.append((holder, offset, count))
                continue
            if low > tag:
                left_first.append(tag)
                left_runs.append((holder, offset, low - tag))
            settled.append((holder, offset + low - tag, high - low + 1))
            self.count -= high - low + 1
            if high < tag + count - 1:
                left_first.append(high + 1)
                left_runs.append((holder, offset + high + 1 - tag, tag + count - 1 - high))
        first[at:end] = left_first
        runs[at:end] = left_runs

    # --- blocks -----------------------------------------------------------------------------

    def _block_of(self, tag: int) -> int:
        """The number of the only block that may have this tag."""
        return bisect_right(self._starts, tag) if self._starts else 0

    def _block(self, number: int) -> tuple[list[int], list[tuple[Any, int, int]]]:
        return self._blocks[number - 1] if number else (self._first, self._runs)

    def _split(self, number: int) -> int:
        """Make a block that became too long two; returns how many there are more now."""
        first, runs = self._block(number)
        if len(first) <= RUNS_MAX:
            return 0
        middle = len(first) // 2
        self._starts.insert(number, first[middle])
        self._blocks.insert(number, (first[middle:], runs[middle:]))
        del first[middle:], runs[middle:]
        return 1

    def _remove_first(self) -> None:
        """Forget the first run."""
        del self._first[0], self._runs[0]
        if not self._first and self._blocks:
            self._remove_block(0)

    def _remove_block(self, number: int) -> None:
        """Forget an empty block; there are others."""
        if not number:
            self._first, self._runs = self._blocks[0]
            number = 1
        del self._starts[number - 1], self._blocks[number - 1]
