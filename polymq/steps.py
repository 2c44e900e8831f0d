"""Long answers of the operator's listener, put together in steps between which the loop goes
on."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator, Sequence
from time import perf_counter
from typing import Any, Final, TypeVar

from polymq.broker.messages.readers import Reading
from polymq.broker.queues.inspection import Need, NeedRecord

Result = TypeVar("Result")
Entry = TypeVar("Entry")

RECORD_BYTES: Final = 4_096
"""Of a record that a step needs: more of it is looked at only where it has more."""

SLICE_SECONDS: Final = 0.002
"""How long the steps of an answer take before others have their turn."""


async def in_steps(steps: Generator[Any, Any, Result], reading: Reading | None = None) -> Result:
    """Run a generator to its end, and return what it returns.

    Args:
        reading: reads what a step needs from the disk (`Need`, `NeedRecord`).
    """
    needed: object = None
    begin = perf_counter()
    while True:
        try:
            step = steps.send(needed)
        except StopIteration as end:
            result: Result = end.value
            return result
        needed = None
        if isinstance(step, Need) and reading is not None:
            needed = await _entries(reading, step)
            begin = perf_counter()
        elif isinstance(step, NeedRecord) and reading is not None:
            needed = await _record(reading, step)
            begin = perf_counter()
        elif perf_counter() - begin > SLICE_SECONDS:
            await asyncio.sleep(0)
            begin = perf_counter()


def stretches(entries: Sequence[Entry], step: int) -> Iterator[Sequence[Entry]]:
    """The entries, at most so many at a time."""
    return (entries[first : first + step] for first in range(0, len(entries), step))


async def _entries(reading: Reading, need: Need) -> bytes | None:
    found: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()

    def took(_first: int, entries: bytes | None) -> None:
        if not found.done():
            found.set_result(entries)

    reading.entries(need.index, need.first, need.count, took)
    return await found


async def _record(reading: Reading, need: NeedRecord) -> bytes | None:
    found: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()

    def took(records: bytes | None, _count: int) -> None:
        if not found.done():
            found.set_result(records)

    reading.read(need.index, need.offset, 1, RECORD_BYTES, took, large_as_view=True)
    return await found
