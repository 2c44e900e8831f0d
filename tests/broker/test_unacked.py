"""Runs of unacknowledged tags: in order, out of order, and with tags that are not there."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymq.broker.messages.unacked import Unacked


def test_acknowledging_in_order_keeps_one_run() -> None:
    """A consumer that acks each message in turn costs no splitting."""
    unacked: Unacked[str] = Unacked()
    assert unacked.add("q", 100, 5) == 1
    assert unacked.add("q", 105, 5) == 6
    assert unacked.runs() == [(1, "q", 100, 10)]
    assert unacked.settle(1, 1) == [("q", 100, 1)]
    assert unacked.runs() == [(2, "q", 101, 9)]
    assert unacked.settle_to(4) == [[("q", 101, 3)]]
    assert unacked.count == 6


def test_a_tag_that_is_not_unacknowledged_changes_nothing() -> None:
    """A double ack is an error (AMQP 406), and what else the range names stays."""
    unacked: Unacked[str] = Unacked()
    unacked.add("a", 0, 3)
    unacked.settle(2, 2)
    with pytest.raises(KeyError):
        unacked.settle(1, 3)
    assert unacked.count == 2
    assert unacked.settle_present(1, 3) == [("a", 0, 1), ("a", 2, 1)]


@contextmanager
def blocks_of(runs: int) -> Iterator[None]:
    """Let a block have at most so many runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules[Unacked.__module__], "RUNS_MAX", runs)
        yield


class Model:
    """The same as `Unacked`, with an entry for each tag."""

    def __init__(self) -> None:
        self.tags: dict[int, tuple[str, int]] = {}
        self.next_tag = 1

    def add(self, holder: str, offset: int, count: int) -> None:
        for step in range(count):
            self.tags[self.next_tag + step] = (holder, offset + step)
        self.next_tag += count

    def take(self, first: int, last: int) -> list[tuple[str, int]]:
        return [self.tags.pop(tag) for tag in range(first, last + 1) if tag in self.tags]


def single(runs: Iterable[tuple[str, int, int]]) -> list[tuple[str, int]]:
    return [(holder, offset + step) for holder, offset, count in runs for step in range(count)]


def drained(unacked: Unacked[str]) -> list[tuple[str, int]]:
    return single(chain.from_iterable(unacked.drain()))


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.sampled_from("ab"), st.integers(1, 6)),
            st.tuples(
                st.sampled_from(
                    ["settle", "settle_present", "settle_to", "settle_unheld", "put_back"]
                ),
                st.integers(1, 60),
                st.integers(0, 12),
            ),
        ),
        max_size=60,
    ),
    st.sampled_from([2, 3, 1000]),
)
def test_runs_agree_with_a_dict_of_tags(steps: list[tuple[str, object, int]], block: int) -> None:
    """Anything done gives the same as one dict entry for each tag, in one block or in many."""
    unacked: Unacked[str] = Unacked()
    model = Model()
    offset = 0
    gone: list[tuple[int, str, int]] = []
    with blocks_of(block):
        for action, what, length in steps:
            if action == "add":
                assert isinstance(what, str)
                assert unacked.add(what, offset, length) == model.next_tag
                model.add(what, offset, length)
                offset += length + length % 2  # a gap, so that runs are not all joined
                continue
            assert isinstance(what, int)
            last = what + length
            before = dict(model.tags)
            if action == "settle" and any(tag not in before for tag in range(what, last + 1)):
                with pytest.raises(KeyError) as error:
                    unacked.settle(what, last)
                assert error.value.args[0] not in before
                assert all(tag in before for tag in range(what, error.value.args[0]))
            elif action == "settle":
                assert single(unacked.settle(what, last)) == model.take(what, last)
            elif action == "settle_present":
                assert single(unacked.settle_present(what, last)) == model.take(what, last)
            elif action == "settle_to":
                assert single(chain.from_iterable(unacked.settle_to(what))) == model.take(1, what)
            elif action == "settle_unheld":  # "a" and "b" hold everything
                assert not unacked.settle_unheld(what, length)
            elif gone:
                tag, holder, first = gone.pop(what % len(gone))
                unacked.put_back(tag, holder, first, 1)
                model.tags[tag] = (holder, first)
                before.pop(tag, None)
            gone += [(tag, *found) for tag, found in before.items() if tag not in model.tags]
            assert unacked.count == len(model.tags)
            assert unacked.oldest() == min(model.tags, default=model.next_tag)
        assert [tag in unacked for tag in range(70)] == [tag in model.tags for tag in range(70)]
        copy = unacked.copy()
        assert copy.runs() == unacked.runs()
        assert unacked.holders(1, model.next_tag) == [holder for _, holder, _, _ in copy.runs()]
        assert drained(unacked) == [model.tags[tag] for tag in sorted(model.tags)]
        assert unacked.runs() == []
        assert drained(copy) == [model.tags[tag] for tag in sorted(model.tags)]


def test_settling_out_of_order_moves_few_runs() -> None:
    """With 100,000 messages that are out, each ack moves the runs of one block only."""
    unacked: Unacked[str] = Unacked()
    with blocks_of(100):
        unacked.add("a", 0, 100_000)
        tags = list(range(1, 100_001))
        Random(1).shuffle(tags)
        for tag in tags[:50_000]:
            assert unacked.settle(tag, tag) == [("a", tag - 1, 1)]
        assert len(unacked.runs()) > 20_000
        blocks = [unacked._runs, *[runs for _, runs in unacked._blocks]]
        assert all(1 <= len(runs) <= 100 for runs in blocks)
        assert len(blocks) < 1_000
        for tag in tags[50_000:]:
            assert unacked.settle_present(tag, tag) == [("a", tag - 1, 1)]
        assert not unacked.count
        assert not unacked._blocks


@pytest.mark.parametrize("last_tag", [45, 50, 51, 95])
def test_settling_all_up_to_a_tag_hands_out_what_is_there(last_tag: int) -> None:
    """Tens of thousands of runs would take too long if each were made anew. Of the block in which
    the tag is, what is behind it stays."""
    with blocks_of(10):
        unacked: Unacked[str] = Unacked()
        for offset in range(0, 200, 2):
            unacked.add("a", offset, 1)
        blocks = [unacked._runs, *[runs for _, runs in unacked._blocks]]
        assert len(blocks) > 5
        settled = unacked.settle_to(last_tag)
        assert all(one is other for one, other in zip(settled[:-1], blocks, strict=False))
        assert sum(map(len, settled)) == last_tag
        assert unacked.count == 100 - last_tag
        assert unacked.first_tag == last_tag + 1


def test_runs_that_are_nobody_s_are_settled_in_their_order() -> None:
    """Also where they stand in several blocks."""
    unacked: Unacked[None] = Unacked()
    with blocks_of(2):
        for number in range(7):
            unacked.add(None, 10 * number, 3)
        for first in range(1, 19, 3):
            assert not unacked.settle_unheld(first + 1, 1)
            assert unacked.settle_unheld(first, 1)
            assert unacked.settle_unheld(first + 1, 2)
        assert unacked.runs() == [(19, None, 60, 3)]


def test_a_tag_that_no_client_can_have_is_not_unacknowledged() -> None:
    """Delivery tags have 64 bits, the highest of which no tag of ours has."""
    unacked: Unacked[str] = Unacked()
    unacked.add("a", 0, 3)
    assert 2**64 - 1 not in unacked
    with pytest.raises(KeyError):
        unacked.settle(2**64 - 1, 2**64 - 1)
