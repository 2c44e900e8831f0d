"""The threads beside the loop, when the server ends."""

from __future__ import annotations

import asyncio
import threading

from polymq.workers import Workers


def test_who_asks_after_the_end_gets_no_answer_and_no_error() -> None:
    """A timer that falls due, or the answer to an earlier read, may ask for one read more."""

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        reported: list[object] = []
        loop.set_exception_handler(lambda _, what: reported.append(what))
        workers = Workers(loop, name="test", count=1)
        busy, go = threading.Event(), threading.Event()
        heard: list[object] = []

        def work() -> str:
            busy.set()
            go.wait(10)
            return "done"

        workers.submit(work, lambda *answer: heard.append(answer))
        workers.submit(lambda: "never begun", lambda *answer: heard.append(answer))
        assert busy.wait(10)
        loop.call_later(0, go.set)
        await asyncio.to_thread(workers.close)
        workers.submit(lambda: "too late", lambda *answer: heard.append(answer))
        for _ in range(10):
            await asyncio.sleep(0)
        assert heard == [("done", None)]
        assert not reported

    asyncio.run(scenario())
