"""Very many names in order, without a step that takes long. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

STRETCH: Final = 1_000
"""Names that are sorted in one step: about half a millisecond."""


def in_order(names: Iterable[str]) -> Iterator[str | None]:
    """The names that there are now, in order; None where others may have their turn."""
    left = iter(list(names))
    stretches: list[list[str]] = []
    while some := list(islice(left, STRETCH)):
        stretches.append(sorted(some))
        yield None
    yield from heapq.merge(*stretches)
