"""Runs of unacknowledged tags: in order, out of order, and with tags that are not there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymq.broker.queues.unacked import Unacked


def test_acknowledging_in_order_keeps_one_run() -> None:
    """A consumer that acks each message in turn costs no splitting."""
    unacked: Unacked[str] = Unacked()
    assert unacked.add("q", 100, 5) == 1
    assert unacked.add("q", 105, 5) == 6
    assert unacked.runs() == [(1, "q", 100, 10)]
    assert unacked.settle(1, 1) == [("q", 100, 1)]
    assert unacked.runs() == [(2, "q", 101, 9)]
    assert unacked.settle_to(4) == [("q", 101, 3)]
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


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 6)), min_size=1, max_size=12),
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 40), st.integers(0, 10)), max_size=30),
)
def test_runs_agree_with_a_dict_of_tags(
    added: list[tuple[str, int]], settled: list[tuple[int, int, int]]
) -> None:
    """Any settling gives the same as one dict entry per tag."""
    unacked: Unacked[str] = Unacked()
    model: dict[int, tuple[str, int]] = {}
    offsets = {"a": 0, "b": 0}
    for holder, count in added:
        first = unacked.add(holder, offsets[holder], count)
        for step in range(count):
            model[first + step] = (holder, offsets[holder] + step)
        offsets[holder] += count + 1  # a gap, so that runs are not all joined
    for action, tag, length in settled:
        last = tag + length
        expected = [model[t] for t in range(tag, last + 1) if t in model]
        if action == 0:
            if len(expected) == length + 1:
                got = unacked.settle(tag, last)
            else:
                with pytest.raises(KeyError):
                    unacked.settle(tag, last)
                continue
        elif action == 1:
            got = unacked.settle_present(tag, last)
        else:
            expected = [model[t] for t in sorted(model) if t <= tag]
            last = tag
            tag = 0
            got = unacked.settle_to(last)
        assert [(h, o + i) for h, o, n in got for i in range(n)] == expected
        for gone in range(tag, last + 1):
            model.pop(gone, None)
        assert unacked.count == len(model)
        assert all((t in unacked) == (t in model) for t in range(50))
