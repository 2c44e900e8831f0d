"""Tasks that run as long as the server does."""

from __future__ import annotations

import asyncio


def report_bug(task: asyncio.Task[None]) -> None:
    """For a task that does not end by itself: what ended it, other than a stop, nobody foresaw. The
    loop's exception handler is told."""
    if not task.cancelled() and (error := task.exception()) is not None:
        context = {"message": "a lasting task ended", "exception": error, "task": task}
        task.get_loop().call_exception_handler(context)
