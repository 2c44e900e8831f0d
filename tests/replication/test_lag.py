"""How far behind a copy is, in seconds."""

from __future__ import annotations

from polymq.replication.lag import Lag


def test_a_copy_that_has_all_is_level() -> None:
    """And is behind by the time since, when it gets no more."""
    lag = Lag(10.0)
    lag.heard(11.0, 100, 100)
    assert lag.seconds(11.0) == 0
    lag.heard(12.0, 200, 100)
    assert lag.seconds(14.0) == 3


def test_a_copy_that_is_always_a_little_behind_is_so_by_a_little() -> None:
    """Under load it never has all; but what it has was all a second ago."""
    lag = Lag(0.0)
    for second in range(1, 100):
        lag.heard(float(second), second * 100, (second - 1) * 100)
    assert lag.seconds(99.0) <= 2


def test_a_copy_that_falls_behind_is_behind_by_more_and_more() -> None:
    """It takes half of what comes."""
    lag = Lag(0.0)
    for second in range(1, 101):
        lag.heard(float(second), second * 100, second * 50)
    assert 40 <= lag.seconds(100.0) <= 80
