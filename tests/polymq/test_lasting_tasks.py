"""A task that was to last and ended is not passed over in silence."""

from __future__ import annotations

import asyncio
from typing import Any

from polymq.lasting_tasks import report_bug


async def fails() -> None:
    raise ZeroDivisionError


async def lasts() -> None:
    await asyncio.Event().wait()


def reported(task_of: Any, *, cancel: bool) -> list[type[BaseException]]:
    """What the loop's exception handler is told of a task."""

    async def run() -> list[type[BaseException]]:
        found: list[type[BaseException]] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, context: found.append(type(context["exception"])))
        task = loop.create_task(task_of())
        task.add_done_callback(report_bug)
        await asyncio.sleep(0)
        if cancel:
            task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(0)
        return found

    return asyncio.run(run())


def test_a_bug_is_told() -> None:
    assert reported(fails, cancel=False) == [ZeroDivisionError]


def test_a_stop_is_none() -> None:
    assert reported(lasts, cancel=True) == []
