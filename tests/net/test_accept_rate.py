"""How many connections are accepted in a second."""

from __future__ import annotations

from polymq.net.accept_rate import AcceptRate


def test_a_burst_and_then_the_rate() -> None:
    rate = AcceptRate(10, 100.0)
    assert sum(rate.take(100.0) for _ in range(50)) == 10
    assert sum(rate.take(100.0 + step / 100) for step in range(1, 201)) == 20
    assert sum(rate.take(1000.0) for _ in range(50)) == 10


def test_less_than_one_in_a_second() -> None:
    rate = AcceptRate(0.5, 0.0)
    assert [rate.take(at) for at in (0.0, 1.0, 2.0, 2.1, 4.0)] == [True, False, True, False, True]
