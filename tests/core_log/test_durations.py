"""Durations as counts by size."""

from __future__ import annotations

import pytest

from polymq.core_log.durations import Durations


def test_durations_are_counted_by_their_size() -> None:
    """One that equals a bound is not above it."""
    durations = Durations((0.1, 1.0))
    for seconds in (0.05, 0.1, 0.5, 7.0):
        durations.observe(seconds)
    assert durations.counts == [2, 1, 1]
    assert durations.total == pytest.approx(7.65)


def test_one_observation_may_stand_for_many_messages() -> None:
    durations = Durations((0.1, 1.0))
    durations.observe(0.5, 300)
    assert durations.counts == [0, 300, 0]
    assert durations.total == pytest.approx(150)
