"""How long pages of the admin API take beside very many queues and sessions, and how long they hold
the event loop at once.

    python -m benchmarks.admin_pages --queues 100000 --sessions 10000

In one process, without HTTP: an engine over a store in a temporary directory. Times are those of
the processor (`time.thread_time`), so other programs on the machine hardly matter. A slice is what
runs between two steps of an answer: the loop serves clients after at most the slice and
`steps.SLICE_SECONDS`.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import tempfile
from collections.abc import Generator
from pathlib import Path
from time import thread_time
from typing import Any, Final
from unittest.mock import patch

import msgspec

from polymq.admin import mqtt_sessions, queues, readers, topics
from polymq.admin.api import read_query
from polymq.admin.operations import Call
from tests.broker.queue_bench import declare, publish
from tests.harness.broker import Broker, SpyLink, at_qos
from tests.polymq.admin.harness import groups_of

STEPPED: Final = 5_000
"""Queues or sessions that are made before the disk is waited for."""
REPEATS: Final = 5


def crowd(directory: Path, queues_count: int, sessions_count: int) -> Broker:
    """A broker with so many of both; every hundredth queue has a message."""
    broker = Broker(directory / "data", with_state_db=False)
    for number in range(queues_count):
        name = f"queue.{number * 7919 % queues_count:06}"
        declare(broker, name)
        if number % 100 == 0:
            publish(broker, name, b"x")
        if number % STEPPED == STEPPED - 1:
            broker.step()
    for number in range(sessions_count):
        session = broker.port.sessions.connect(
            f"device-{number * 7919 % sessions_count:06}",
            clean=False,
            expiry_seconds=None,
            link=SpyLink(),
            principal=f"user{number % 2}",
        )
        for topic in range(3):
            session.subscribe((f"t{number % 100}", f"{topic}"), at_qos(1))
        session.disconnect()
        if number % STEPPED == STEPPED - 1:
            broker.step()
    broker.step()
    return broker


class Watch:
    """Runs the steps of an answer, and remembers the longest."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def in_steps(self, steps: Generator[Any, Any, Any], _reading: object = None) -> Any:
        """In place of `polymq.steps.in_steps`."""
        while True:
            begin = thread_time()
            try:
                steps.send(None)
            except StopIteration as end:
                return end.value
            finally:
                self.longest = max(self.longest, thread_time() - begin)


def measure(broker: Broker, operation: str, **query: str) -> tuple[float, float, int]:
    """Seconds of a page, JSON included, and of its longest slice; the best of some; and the number
    of its bytes."""
    found = {one.name: one for group in groups_of(broker) for one in group.operations}[operation]
    call: Call[Any] = Call(
        path={},
        query=read_query(found.query, query.items()),
        body=None,
        caller="bench",
        port=broker.port,
        request=None,  # type: ignore[arg-type]  # no answer of these is a stream
    )
    results = []
    for _ in range(REPEATS):
        watch = Watch()

        async def ask() -> Any:
            return await found.handler(call)

        gc.collect()
        with (
            patch.object(queues, "in_steps", watch.in_steps),
            patch.object(mqtt_sessions, "in_steps", watch.in_steps),
            patch.object(readers, "in_steps", watch.in_steps),
            patch.object(topics, "in_steps", watch.in_steps),
        ):
            begin = thread_time()
            answer = asyncio.run(ask())
            content = msgspec.json.encode(answer)
        results.append((thread_time() - begin, watch.longest, len(content)))
    return min(results)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--queues", type=int, default=100_000)
    parser.add_argument("--sessions", type=int, default=10_000)
    options = parser.parse_args()
    last = f"queue.{options.queues - 200:06}"
    pages: list[tuple[str, dict[str, str]]] = [
        ("listQueues", {}),
        ("listQueues", {"limit": "500"}),
        ("listQueues", {"after": last}),
        ("listQueues", {"sort": "ready"}),
        ("listQueues", {"sort": "unacknowledged", "limit": "500"}),
        ("listQueues", {"sort": "consumers"}),
        ("listQueues", {"user": "ann"}),
        ("listQueues", {"kind": "subscription"}),
        ("listSessions", {}),
        ("listSessions", {"limit": "500"}),
        ("listSessions", {"sort": "queued"}),
        ("listSessions", {"state": "disconnected", "user": "user1"}),
        ("listReaders", {}),
        ("listReaders", {"limit": "500"}),
        ("listReaders", {"sort": "waiting"}),
        ("listReaders", {"sort": "waiting", "limit": "500"}),
        ("listReaders", {"kind": "queue", "sort": "waiting"}),
        ("listReaders", {"user": "ann"}),
        ("listReaders", {"prefix": "queue.01"}),
        ("listTopics", {}),
        ("listTopics", {"sort": "messages"}),
    ]
    with tempfile.TemporaryDirectory() as directory:
        broker = crowd(Path(directory), options.queues, options.sessions)
        print(f"{options.queues:,} queues, {options.sessions:,} sessions; processor time")
        print(f"{'page':<60}  {'page':>9}  {'slice':>9}  {'bytes':>9}")
        for operation, query in pages:
            took, longest, size = measure(broker, operation, **query)
            shown = f"{operation} {' '.join(f'{k}={v}' for k, v in query.items())}"
            print(f"{shown:<60}  {1e3 * took:>6.1f} ms  {1e3 * longest:>6.2f} ms  {size:>9,}")
        broker.stop()


if __name__ == "__main__":
    main()
