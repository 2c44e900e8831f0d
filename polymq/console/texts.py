"""Numbers, sizes and times as people read them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
SPARK_WIDTH: Final = 80
SPARK_HEIGHT: Final = 20


def number(value: float | None) -> str:
    """With separators; `-` if it is not known."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 100 else f"{value:,.1f}"


def size(count: float | None) -> str:
    """Bytes in the unit that has at most four digits."""
    if count is None:
        return "-"
    at = 0
    while count >= 1024 and at < len(_UNITS) - 1:
        count /= 1024
        at += 1
    return f"{count:,.0f} {_UNITS[at]}" if at == 0 else f"{count:,.1f} {_UNITS[at]}"


def duration(seconds: float | None) -> str:
    """In its two largest units."""
    if seconds is None:
        return "-"
    left = round(seconds)
    if left < 1:
        return f"{seconds:.1f} s"
    parts = []
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, left = divmod(left, length)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


def moment(ms: int | None) -> str:
    """A time in milliseconds since 1970, in UTC."""
    if ms is None:
        return "-"
    try:
        return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
    except (OverflowError, ValueError, OSError):
        return "after the year 9999"


def milliseconds(text: str) -> int | None:
    """A time as people type it, in UTC unless it says otherwise; None for nothing. Raises
    ValueError."""
    if not text.strip():
        return None
    found = datetime.fromisoformat(text.strip())
    if found.tzinfo is None:
        found = datetime.fromisoformat(text.strip() + "+00:00")
    return int(found.timestamp() * 1000)


def sparkline(values: Sequence[float]) -> str:
    """An SVG of a line through the values, oldest first; empty for fewer than two."""
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    if low == high:  # a line in the middle
        low, high = low - 1, high + 1
    span = high - low
    step = SPARK_WIDTH / (len(values) - 1)
    points = " ".join(
        f"{at * step:.1f},{SPARK_HEIGHT - 2 - (value - low) / span * (SPARK_HEIGHT - 4):.1f}"
        for at, value in enumerate(values)
    )
    return (
        f'<svg width="{SPARK_WIDTH}" height="{SPARK_HEIGHT}" role="img" '
        f'aria-label="from {number(values[0])} to {number(values[-1])}">'
        f'<polyline points="{points}" fill="none" stroke="currentColor" stroke-width="1.5"/></svg>'
    )
