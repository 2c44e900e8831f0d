"""Long work lets others go first: some iterations of the loop pass between two of its steps.

A request over HTTP takes several iterations of the loop, each for a few microseconds. If long work
took a step in each of them, the request would wait for several steps instead of one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

PASSED_COUNT: Final = 8
"""Iterations that pass. With nothing to do they take a few hundredths of a step."""


def unhurried(
    call_soon: Callable[[Callable[[], None]], object],
) -> Callable[[Callable[[], None]], None]:
    """What calls back after some iterations of the loop have passed.

    Args:
        call_soon: calls back in the next one.
    """

    def later(callback: Callable[[], None], left: int = PASSED_COUNT) -> None:
        call_soon(partial(later, callback, left - 1) if left else callback)

    return later
