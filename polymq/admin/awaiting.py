"""Waiting for callbacks of the engine: answers that come from the disk, in a reader thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeVar

from polymq.broker.engine import Engine
from polymq.broker.errors import Reason, Refused

Answer = TypeVar("Answer")

ANSWER_SECONDS_MAX: Final = 30.0
"""A read that takes longer than that is answered 503: the disk is busy, or a log is searched for
the first time. The search goes on, and the next one is quick."""


async def answer_of(ask: Callable[[Callable[[Answer], None]], object]) -> Answer:
    """What a callback is called with.

    Args:
        ask: is given the callback, and raises what the engine refuses.

    Raises:
        Refused: READ_ONLY, it takes too long; or what `ask` raises.
    """
    answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def called(value: Answer) -> None:
        if not answer.done():  # nobody may wait any more
            answer.set_result(value)

    ask(called)
    try:
        return await asyncio.wait_for(answer, ANSWER_SECONDS_MAX)
    except TimeoutError as error:
        raise Refused(
            Reason.READ_ONLY, "the search is not finished yet: try again later"
        ) from error


async def in_reader(engine: Engine, work: Callable[[], Answer]) -> Answer:
    """Do work that takes some milliseconds in a thread that reads history. Raises what it raises,
    and Refused: READ_ONLY."""
    result: tuple[Any, Exception | None] = await answer_of(
        lambda called: engine.core.reading.readers.submit(
            work,  # type: ignore[arg-type]  # readers take functions of any result
            lambda value, error: called((value, error)),
        )
    )
    value, error = result
    if error is not None:
        raise error
    made: Answer = value
    return made
