"""How long RabbitMQ's management API needs for lists of very many queues, and how long it holds the
event loop at once; and the same of a document of definitions.

    python -m benchmarks.management_lists --queues 100000

In one process, without HTTP: an engine over a store in a temporary directory. Times are those of
the processor (`time.thread_time`), so other programs on the machine hardly matter. A slice is what
runs between two steps of an answer: the loop serves clients after at most the slice and
`steps.SLICE_SECONDS`.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from time import thread_time
from urllib.parse import parse_qsl

from benchmarks.admin_pages import crowd
from polymq.admin.gateways import Gateways
from polymq.admin.written_answers import Steps
from polymq.definitions.document import write_document
from polymq.definitions.group import kinds_of
from polymq.management.bodies import Body
from polymq.management.callers import Caller, Rank
from polymq.management.compose import make_routes
from polymq.management.context import Node
from polymq.management.lists import Items, Sections, wanted_of, write_list, write_sections
from polymq.management.routing import Call, Table
from tests.harness.broker import Broker

PATHS = (
    "/api/queues",
    "/api/queues?page=1&page_size=100",
    "/api/queues?page=1&page_size=100&sort=messages&sort_reverse=true",
    "/api/queues?page=900&page_size=100&sort=name",
    "/api/queues?page=1&name=5&use_regex=true",
    "/api/queues?columns=name,messages",
    "/api/bindings",
    "/api/definitions",
)


class Lists:
    """The lists of one broker."""

    def __init__(self, broker: Broker) -> None:
        node = Node(
            name="polymq@bench",
            cluster="bench",
            version="0",
            data_directory="",
            started_ms=0,
            listeners=tuple,
            health=lambda: "ok",
            connections=tuple,
        )
        self._broker = broker
        self._table = Table(make_routes(broker.engine, node))

    def steps(self, path: str) -> Steps:
        """The answer to a GET."""
        bare, _, query = path.partition("?")
        route, names = self._table.find("GET", bare)
        asked = dict(parse_qsl(query))
        port = self._broker.port
        caller = Caller(name="a", rank=Rank.ADMINISTRATOR, port=port, rules=None, tags=[])
        call = Call(names=names, query=asked, body=Body(b"", ""), caller=caller, headers={})
        found = _found(route.handler(call))
        if isinstance(found, Sections):
            return write_sections(found)
        assert isinstance(found, Items)
        return write_list(found, wanted_of(asked))


def _found(answer: Awaitable[object]) -> object:
    """What a handler returns that waits for nothing."""
    try:
        answer.__await__().send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")


def measure(make: Callable[[], Steps]) -> tuple[float, float, float, int]:
    """Seconds of an answer, of its longest slice and of its beginning, and its bytes."""
    gc.collect()
    gc.freeze()
    longest, size = 0.0, 0
    begin = last = thread_time()
    steps = make()
    first = thread_time() - begin
    for part in steps:
        now = thread_time()
        longest, last = max(longest, now - last), now
        size += len(part or b"")
        last = thread_time()
    gc.unfreeze()
    return thread_time() - begin, longest, first, size


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--queues", type=int, default=100_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        broker = crowd(Path(directory), options.queues, 0)
        lists = Lists(broker)
        print(f"{options.queues:,} queues; processor time")
        print(f"{'answer':<70}  {'whole':>9}  {'slice':>9}  {'bytes':>12}")
        kinds = kinds_of(broker.engine, Gateways())
        found: list[tuple[str, Callable[[], Steps]]] = [
            (path, partial(lists.steps, path)) for path in PATHS
        ]
        found.append(("/api/v1/definitions", lambda: write_document(kinds)))
        for name, make in found:
            took, longest, first, size = measure(make)
            longest = max(longest, first)
            print(f"{name:<70}  {1e3 * took:>6.0f} ms  {1e3 * longest:>6.2f} ms  {size:>12,}")
        broker.stop()


if __name__ == "__main__":
    main()
