"""The engine and its store without sockets, in a process of its own: what queues and backlogs cost.

`python -m benchmarks.scale_engine ACTION DIRECTORY COUNT` does one thing and prints its figures as
JSON; `benchmarks.scale` runs the actions one after the other on one directory. The engine runs on a
manual loop, with a real disk and real flushes.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import select
import sys
import time
import tracemalloc
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from polymq.broker.engine import Engine
from polymq.broker.port import Delivery, Template
from polymq.broker.recovery.saving import StateSaving
from polymq.broker.state.database import StateDb
from polymq.core_log.files import RealFiles
from polymq.core_log.indexes import Preparation
from polymq.core_log.kernels.batch import Batch
from polymq.core_log.store import Store
from polymq.upkeep import GATHER_COUNT

DECLARES_PER_FLUSH: Final = 100
"""What a client that declares without waiting, or some that do, bring to one flush."""
TOUCHED_COUNT: Final = 5_000
"""Queues that get a message before a checkpoint is timed."""
FANOUT_COUNT: Final = 10
BODY: Final = b"x" * 100
RUN: Final = 1_000
"""Messages of one publish to a backlog."""
FLUSH_SECONDS_MAX: Final = 60
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
ALLOCATIONS_SHOWN: Final = 25


class Loop:
    """As much of an event loop as the engine uses. It moves when it is told to."""

    def __init__(self) -> None:
        self._soon: deque[Callable[[], object]] = deque()

    def call_soon(self, callback: Callable[[], object]) -> None:
        """In the next turn."""
        self._soon.append(callback)

    def call_later(self, _delay: float, callback: Callable[[], object]) -> None:
        """What is for later is done when the loop turns next: acks are written, nothing waits."""
        self._soon.append(callback)

    def turn(self) -> None:
        """What is due now."""
        for _ in range(len(self._soon)):
            self._soon.popleft()()


class InlineReaders:
    """History is read in this thread."""

    def submit(
        self, read: Callable[[], bytes], done: Callable[[bytes | None, Exception | None], None]
    ) -> None:
        """Read now."""
        done(read(), None)


class Drain:
    """A consumer that settles what it gets at once."""

    def __init__(self) -> None:
        self.registration: Any = None
        self.count = 0

    def credit(self) -> int:
        """As much as there is."""
        return 1_000

    def deliver(self, delivery: Delivery) -> None:
        """Settle it."""
        self.count += delivery.count
        self.registration.settle(delivery.first_offset, delivery.count)

    def cancelled(self) -> None:
        """The queue stays."""


class Parts:
    """An open engine.

    Attributes:
        open_seconds: how long opening took, state and indexes.
    """

    def __init__(self, directory: Path) -> None:
        start, cpu = time.perf_counter(), time.process_time()
        directory.mkdir(parents=True, exist_ok=True)
        self.loop = Loop()
        gc.disable()  # as the server does while it starts
        self.store = Store.open(
            str(directory / "store"),
            files=RealFiles(),
            clock_ms=lambda: time.time_ns() // 1_000_000,
        )
        self.store_seconds = time.perf_counter() - start
        names = itertools.count()
        self.engine = Engine(
            store=self.store,
            clock_ms=lambda: time.time_ns() // 1_000_000,
            scheduler=self.loop,
            readers=InlineReaders(),
            new_name=lambda: f"name{next(names)}",
            state_db=StateDb(directory / "state.db"),
        )
        gc.enable()
        self.open_seconds = time.perf_counter() - start
        self.open_cpu_seconds = time.process_time() - cpu

    def commit(self) -> None:
        """The end of a loop iteration, and the flush that it asked for."""
        core = self.engine.core
        core.commits.urgent = core.log.appended
        core.appended()
        self.loop.turn()
        while core.flush_pending:
            select.select([self.store.flusher.fileno()], [], [], FLUSH_SECONDS_MAX)
            core.flush_finished()
            self.loop.turn()

    def save(self) -> dict[str, float]:
        """Save state and indexes as the server does every few seconds.

        Returns:
            Milliseconds on the loop, in all and of the longest slice, and in the worker.
        """
        self.commit()
        state, state_ms, state_slice_ms = gather(self.engine.begin_snapshot())
        self.commit()
        indexes, indexes_ms, indexes_slice_ms = gather(self.store.begin_checkpoint())
        start = time.perf_counter()
        state()
        saved = time.perf_counter()
        indexes()
        stored = time.perf_counter()
        return {
            "state_loop_ms": state_ms,
            "state_slice_ms": state_slice_ms,
            "state_worker_ms": 1000 * (saved - start),
            "checkpoint_loop_ms": indexes_ms,
            "checkpoint_slice_ms": indexes_slice_ms,
            "checkpoint_worker_ms": 1000 * (stored - saved),
        }

    def template(self, name: str) -> Template:
        """How messages for the queue of this name are stored."""
        route = self.engine.port.exchanges.route("", name)
        assert route is not None
        return self.engine.port.topics.template(route, properties={"PMQ_PROTO": "amqp"})


def gather(saving: Preparation | StateSaving | None) -> tuple[Callable[[], None], float, float]:
    """Take note of what is to be saved, in slices; returns what writes it, and the milliseconds of
    all slices and of the longest."""
    if saving is None:
        return lambda: None, 0.0, 0.0
    total = longest = 0.0
    done = False
    while not done:
        start = time.perf_counter()
        done = saving.gather(GATHER_COUNT)
        milliseconds = 1000 * (time.perf_counter() - start)
        total += milliseconds
        longest = max(longest, milliseconds)
    return saving, total, longest


def declare(directory: Path, count: int) -> dict[str, Any]:
    """Declare durable queues, publish to some of them, and leave as `kill -9` does."""
    Parts(directory / "empty").store.close()  # what one needs in any case is not counted
    parts = Parts(directory)
    traced = bool(os.environ.get("POLYMQ_SCALE_TRACE"))
    gc.collect()
    before = resident_bytes()
    if traced:
        tracemalloc.start()
    start = time.perf_counter()
    for first in range(0, count, DECLARES_PER_FLUSH):
        for number in range(first, min(first + DECLARES_PER_FLUSH, count)):
            declare_queue(parts, f"device-{number:06d}")
        parts.commit()
    seconds = time.perf_counter() - start
    first_save = parts.save()
    gc.collect()
    if traced:
        print_allocations(count)
    after = resident_bytes()
    gc.freeze()  # as the server does when it has started
    batch = one_row(BODY)
    for number in range(min(TOUCHED_COUNT, count)):
        parts.engine.port.publish(parts.template(f"device-{number:06d}"), batch, 0, 1)
        if number % DECLARES_PER_FLUSH == 0:
            parts.commit()
    touched_save = parts.save()
    figures = {
        "touched": min(TOUCHED_COUNT, count),
        "declared_per_second": count / seconds,
        "bytes_each": (after - before) / count,
        "save_all": first_save,
        "save_touched": touched_save,
        "fanout_bytes": fan_out(parts, batch),
    }
    parts.commit()
    return figures


def fill(directory: Path, count: int) -> dict[str, Any]:
    """A message to each queue but a few, which makes it a topic, too: what was tried before has
    some of the topics that there may be."""
    parts = Parts(directory)
    gc.freeze()  # as the server does when it has started
    batch = one_row(BODY)
    for number in range(count - FANOUT_COUNT):
        parts.engine.port.publish(parts.template(f"device-{number:06d}"), batch, 0, 1)
        if number % DECLARES_PER_FLUSH == 0:
            parts.commit()
    parts.save()
    parts.store.close()
    return {"topics": parts.engine.topics.shown_count}


def fan_out(parts: Parts, batch: Batch) -> int:
    """Bytes that the log grows by when one message goes to some of all the queues."""
    engine = parts.engine
    engine.port.exchanges.declare(
        "group", type="fanout", durable=True, auto_delete=False, internal=False, arguments={}
    )
    for number in range(FANOUT_COUNT):
        engine.port.exchanges.bind_queue(f"device-{number:06d}", "group", "", {}, owner=None)
    route = engine.port.exchanges.route("group", "")
    assert route is not None
    template = engine.port.topics.template(route, properties={"PMQ_PROTO": "amqp"})
    parts.commit()
    before = parts.store.log.appended
    engine.port.publish(template, batch, 0, 1)
    return parts.store.log.appended - before


def open_and_close(directory: Path, count: int) -> dict[str, Any]:
    """Open what is there, see that it is all there, and close it in order."""
    Parts(directory / "empty").store.close()  # what one needs in any case is not counted
    before = resident_bytes()
    parts = Parts(directory)
    gc.collect()
    after = resident_bytes()
    held = len(parts.engine.exchanges.queues)
    if held != count:
        raise SystemExit(f"{held} of {count} queues are there")
    figures = {
        "seconds": parts.open_seconds,
        "cpu_seconds": parts.open_cpu_seconds,
        "store_seconds": parts.store_seconds,
        "bytes_each": (after - before) / count,
        "clean": parts.store.recovery.clean,
        "rebuilt_queues": len(parts.store.recovery.rebuilt),
    }
    parts.commit()
    parts.save()
    parts.store.close()
    return figures


def backlog(directory: Path, count: int) -> dict[str, Any]:
    """Put messages into one queue that nobody reads, then read and settle all of them."""
    parts = Parts(directory)
    declare_queue(parts, "backlog")
    parts.commit()
    template = parts.template("backlog")
    batch = Batch(RUN)
    batch.buffer = BODY
    for _ in range(RUN):
        batch.add((0, 0), (0, len(BODY)))
    gc.collect()
    before = resident_bytes()
    longest = 0.0
    start = time.perf_counter()
    for number in range(count // RUN):
        parts.engine.port.publish(template, batch, 0, RUN)
        parts.commit()
        if number % 100 == 99:
            checkpoint, _, milliseconds = gather(parts.store.begin_checkpoint())
            longest = max(longest, milliseconds)
            checkpoint()
    filled = time.perf_counter()
    parts.save()
    parts.save()
    gc.collect()
    after = resident_bytes()
    drain = Drain()
    begun = time.perf_counter()
    drain.registration = parts.engine.port.queues.consume(
        "backlog", drain, exclusive=False, owner=None
    )
    drain.registration.ready()
    while drain.count < count:
        seen = drain.count
        parts.commit()
        if drain.count == seen:
            raise SystemExit(f"only {seen} of {count} messages came back")
    drained = time.perf_counter()
    peak = resident_bytes()
    parts.store.close()
    tail = parts.store.log.appended - parts.store.log.tail_start
    return {
        "count": count,
        "slice_ms": longest,
        "fill_seconds": filled - start,
        "drain_seconds": drained - begun,
        "memory_bytes": after - before,
        "tail_bytes": tail,
        "drained_memory_bytes": peak - before,
    }


def route(directory: Path, count: int) -> dict[str, Any]:
    """Nanoseconds per publish to a queue while more and more exact subscriptions exist that do not
    match."""
    parts = Parts(directory)
    declare_queue(parts, "measured")
    parts.commit()
    template = parts.template("measured")
    batch = one_row(BODY)
    figures = {}
    made = 0
    step = 10
    while step <= count:
        while made < step:
            parts.engine.exchanges.topics.router.subscribe(
                (f"topic-{made}", "exact"), parts.engine.queue_store.volatile_queue(10)
            )
            made += 1
        gc.collect()
        best = float("inf")
        for _ in range(5):
            start = time.perf_counter_ns()
            for _ in range(2_000):
                parts.engine.port.publish(template, batch, 0, 1)
            best = min(best, (time.perf_counter_ns() - start) / 2_000)
            parts.commit()
        figures[str(step)] = best
        step *= 10
    parts.store.close()
    return figures


def declare_queue(parts: Parts, name: str) -> None:
    """One durable queue, as an AMQP client declares it."""
    parts.engine.port.queues.declare(
        name, durable=True, exclusive=False, auto_delete=False, arguments={}, owner=None
    )


def one_row(body: bytes) -> Batch:
    """A batch of one message."""
    batch = Batch(1)
    batch.buffer = body
    batch.add((0, 0), (0, len(body)))
    return batch


def resident_bytes() -> int:
    """Memory of this process that is in use now."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * PAGE_BYTES


def print_allocations(count: int) -> None:
    """Who holds the memory, by line of source: bytes for each queue. On stderr."""
    for line in tracemalloc.take_snapshot().statistics("lineno")[:ALLOCATIONS_SHOWN]:
        frame = line.traceback[0]
        each = f"{line.size / count:8.1f} B {line.count / count:5.2f}x"
        print(f"{each}  {frame.filename}:{frame.lineno}", file=sys.stderr)


ACTIONS: Final = {
    "declare": declare,
    "open": open_and_close,
    "fill": fill,
    "backlog": backlog,
    "route": route,
}


def main() -> None:
    """One action, then the end of the process without tidying up."""
    action, directory, count = sys.argv[1:]
    figures = ACTIONS[action](Path(directory), int(count))
    print(json.dumps(figures), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
