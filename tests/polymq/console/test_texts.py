"""Numbers, sizes and times as the console shows them."""

from __future__ import annotations

import pytest

from polymq.console.texts import duration, moment, number, size, sparkline


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0, "0"), (1234567, "1,234,567"), (0.25, "0.2"), (123.4, "123")],
)
def test_numbers(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (1023, "1,023 B"),
        (1536, "1.5 KiB"),
        (1 << 30, "1.0 GiB"),
        (1 << 80, "1,073,741,824.0 PiB"),
    ],
)
def test_sizes(value: float | None, text: str) -> None:
    assert size(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0.04, "0.0 s"), (59, "59 s"), (3661, "1 h 1 min"), (200_000, "2 d 7 h")],
)
def test_durations(value: float | None, text: str) -> None:
    assert duration(value) == text


def test_moments() -> None:
    assert moment(None) == "-"
    assert moment(0) == "1970-01-01 00:00:00 UTC"
    assert moment(1 << 62) == "after the year 9999"


def test_lines() -> None:
    assert sparkline([1]) == ""
    assert 'points="0.0,10.0 80.0,10.0"' in sparkline([5, 5]), "one that does not change"
    assert 'points="0.0,18.0 40.0,2.0 80.0,10.0"' in sparkline([0, 2, 1])
