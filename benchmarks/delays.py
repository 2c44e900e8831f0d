"""Delayed messages: what a waiting one costs, how late it is, and how long a start takes with them.

`python -m benchmarks.delays` fills a store with messages that are due within a month, starts again
on it, and then releases others at a steady rate while those wait; last, many that are due in the
same millisecond. Each step is a process of its own over the engine and its store: a real loop, a
real disk and real flushes, no sockets.

How late a message is: from its due time until a consumer has it, its fdatasync included.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import uvloop

from polymq.broker.engine import Engine
from polymq.broker.port import Delivery, Durability, Template
from polymq.broker.state.database import StateDb
from polymq.core_log.files import RealFiles
from polymq.core_log.kernels.batch import RECORD_BODY_AT, Batch
from polymq.core_log.store import Store

QUEUE: Final = "due"
BODY_SIZE: Final = 100
DUE: Final = struct.Struct(">Q")
PENDING_MS: Final = (3_600_000, 30 * 86_400_000)
"""When the waiting messages are due: in an hour to a month."""
RATED_MS: Final = (1_000, 5_000)
"""When those of the steady rate are due."""
TICK_SECONDS: Final = 0.01
AT_ONCE_MS: Final = 3_000
WAIT_SECONDS_MAX: Final = 120.0
FLUSHED_EVERY: Final = 1_000


def now_ms() -> int:
    """The wall clock."""
    return time.time_ns() // 1_000_000


class Readers:
    """Reader threads, as the server has them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._threads = ThreadPoolExecutor(2)

    def submit(
        self, read: Callable[[], bytes], done: Callable[[bytes | None, Exception | None], None]
    ) -> None:
        """Read in a thread, tell on the loop."""

        def work() -> None:
            try:
                result = read()
            except Exception as error:  # noqa: BLE001  (handed on)
                self._loop.call_soon_threadsafe(done, None, error)
            else:
                self._loop.call_soon_threadsafe(done, result, None)

        self._threads.submit(work)


class Broker:
    """An open engine on a running loop.

    Attributes:
        open_seconds: how long the start took.
    """

    def __init__(self, directory: Path) -> None:
        loop = asyncio.get_running_loop()
        start = time.perf_counter()
        self.store = Store.open(str(directory / "store"), files=RealFiles(), clock_ms=now_ms)
        names = itertools.count()
        self.engine = Engine(
            store=self.store,
            clock_ms=now_ms,
            scheduler=loop,
            readers=Readers(loop),
            new_name=lambda: f"name{next(names)}",
            state_db=StateDb(directory / "state.db"),
        )
        self.open_seconds = time.perf_counter() - start
        loop.add_reader(self.store.flusher.fileno(), self.engine.core.flush_finished)

    def template(self) -> Template:
        """Messages to the queue."""
        self.engine.port.queues.declare(
            QUEUE, durable=True, exclusive=False, auto_delete=False, arguments={}, owner=self
        )
        route = self.engine.port.exchanges.route("", QUEUE)
        assert route is not None
        return self.engine.port.topics.template(route, properties={"PMQ_PROTO": "amqp"})

    async def flushed(self) -> None:
        """Return when everything that was appended is on the disk."""
        done = asyncio.get_running_loop().create_future()
        self.engine.port.when_committed(
            self.engine.core.end(), Durability.FLUSHED, done.set_result, None
        )
        await done

    async def close(self) -> None:
        """Save everything and close, as a server does that stops."""
        await self.flushed()
        snapshot = self.engine.snapshot()
        await self.flushed()
        if snapshot is not None:
            snapshot()
        self.store.close()


class Late:
    """A consumer that notes how late each message came, in ms."""

    def __init__(self) -> None:
        self.registration: Any = None
        self.late: list[int] = []
        self.dues: list[int] = []

    def credit(self) -> int:
        """As many as there are."""
        return 100_000

    def deliver(self, delivery: Delivery) -> None:
        """Note and settle."""
        now = now_ms()
        for run in delivery.runs:
            at = run.start
            while at < run.end:
                (due,) = DUE.unpack_from(run.memory, at + RECORD_BODY_AT)
                self.late.append(now - due)
                self.dues.append(due)
                at += int.from_bytes(run.memory[at : at + 4], "big")
        self.registration.settle(delivery.first_offset, delivery.count)

    def cancelled(self) -> None:
        """The queue stays."""


def batch_of(due_ms: int, count: int = 1) -> Batch:
    """Messages that say when they are due."""
    batch = Batch(count)
    batch.buffer = DUE.pack(due_ms) + bytes(BODY_SIZE - DUE.size)
    for _ in range(count):
        batch.add((0, 0), (0, BODY_SIZE))
    return batch


def resident_bytes() -> int:
    """Memory of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


# --- the steps ---------------------------------------------------------------------------------


async def fill(directory: Path, count: int, _rate: int) -> dict[str, float]:
    """Publish messages that are due in an hour to a month, each at a time of its own."""
    broker = Broker(directory)
    template = broker.template()
    random_ = random.Random(1)
    start = time.process_time()
    for number in range(count):
        due = now_ms() + random_.randint(*PENDING_MS)
        broker.engine.port.delays.publish_later(template, batch_of(due), 0, 1, deliver_ms=due)
        if number % FLUSHED_EVERY == 0:
            await broker.flushed()
    seconds = time.process_time() - start
    await broker.close()
    return {"publish_us": 1e6 * seconds / max(count, 1)}


async def start(directory: Path, _count: int, _rate: int) -> dict[str, float]:
    """Start with the messages that wait: how long it takes, and the memory of the process."""
    broker = Broker(directory)
    seconds = broker.open_seconds
    resident = resident_bytes()
    waiting = broker.engine.delays.waiting_count
    snapshot_start = time.perf_counter()
    broker.engine.core.journal.dirty.add(("group", str(_group_number(broker))))
    broker.engine.snapshot()
    snapshot_seconds = time.perf_counter() - snapshot_start
    return {
        "waiting": waiting,
        "start_seconds": seconds,
        "resident_mib": resident / (1 << 20),
        "snapshot_ms": 1000 * snapshot_seconds,
    }


def _group_number(broker: Broker) -> int:
    row = broker.engine.delays.row()
    return 0 if row is None else int(row["n"])


async def steady(directory: Path, count: int, rate: int) -> dict[str, float]:
    """Publish at a rate for times some seconds ahead, and see how late they come."""
    broker = Broker(directory)
    template = broker.template()
    late = Late()
    late.registration = broker.engine.port.queues.consume(
        QUEUE, late, exclusive=False, owner=broker
    )
    late.registration.ready()
    random_ = random.Random(2)
    loop = asyncio.get_running_loop()
    begin = loop.time()
    cpu = time.process_time()
    sent = 0
    while sent < count:
        wanted = min(count, int((loop.time() - begin) * rate))
        for _ in range(sent, wanted):
            due = now_ms() + random_.randint(*RATED_MS)
            broker.engine.port.delays.publish_later(template, batch_of(due), 0, 1, deliver_ms=due)
        sent = wanted
        await asyncio.sleep(TICK_SECONDS)
    await _arrived(late, count)
    cpu = time.process_time() - cpu
    figures = _figures(late)
    await broker.close()
    return {**figures, "cpu_us": 1e6 * cpu / count}


async def at_once(directory: Path, count: int, _rate: int) -> dict[str, float]:
    """Many messages that are due in the same millisecond: when does the last one come?"""
    broker = Broker(directory)
    template = broker.template()
    late = Late()
    late.registration = broker.engine.port.queues.consume(
        QUEUE, late, exclusive=False, owner=broker
    )
    late.registration.ready()
    due = now_ms() + AT_ONCE_MS
    left = count
    while left:
        run = min(left, FLUSHED_EVERY)
        delays = broker.engine.port.delays
        delays.publish_later(template, batch_of(due, run), 0, run, deliver_ms=due)
        left -= run
        await asyncio.sleep(0)
    await _arrived(late, count)
    figures = _figures(late)
    await broker.close()
    return {**figures, "per_second": 1000 * count / max(figures["late_max_ms"], 1)}


async def _arrived(late: Late, count: int) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while len(late.late) < count:
        if time.monotonic() > deadline:
            raise SystemExit(f"only {len(late.late)} of {count} messages came in time")
        await asyncio.sleep(TICK_SECONDS)


def _figures(late: Late) -> dict[str, float]:
    values = sorted(late.late)
    early = sum(value < 0 for value in values)
    if early:
        raise SystemExit(f"{early} messages came before their time")
    return {
        "late_p50_ms": values[len(values) // 2],
        "late_p99_ms": values[len(values) * 99 // 100],
        "late_max_ms": values[-1],
        "out_of_order": sum(a > b for a, b in itertools.pairwise(late.dues)),
    }


STEPS: Final = {"fill": fill, "start": start, "steady": steady, "at_once": at_once}


# --- the whole -----------------------------------------------------------------------------------


def step(name: str, directory: Path, count: int, rate: int) -> dict[str, float]:
    """Run one step in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.delays", "--step", name, str(directory)]
    command += ["--pending", str(count), "--rate", str(rate)]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, float] = json.loads(answer.stdout.splitlines()[-1])
    return figures


def main() -> None:
    """See the head of this file."""
    parser = argparse.ArgumentParser(
        description="What delayed messages cost, and how late they are."
    )
    parser.add_argument("--pending", type=int, default=1_000_000, help="messages that wait")
    parser.add_argument("--rate", type=int, default=2_000, help="releases a second")
    parser.add_argument("--seconds", type=int, default=10, help="how long at that rate")
    parser.add_argument("--at-once", type=int, default=100_000, help="due in one millisecond")
    parser.add_argument("--directory", type=Path, help="where the store is made; else temporary")
    parser.add_argument("--step", nargs=2, metavar=("NAME", "DIRECTORY"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step is not None:
        name, directory = options.step
        work = STEPS[name](Path(directory), options.pending, options.rate)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            print(json.dumps(runner.run(work)))
        return
    with tempfile.TemporaryDirectory(dir=options.directory) as made:
        full, empty = Path(made) / "full", Path(made) / "empty"
        for directory in (full, empty):
            directory.mkdir()
        step("fill", empty, 1, 0)
        nothing = step("start", empty, 0, 0)
        filled = step("fill", full, options.pending, 0)
        started = step("start", full, 0, 0)
        memory = (started["resident_mib"] - nothing["resident_mib"]) * (1 << 20) / options.pending
        print(f"{options.pending:,} waiting: {filled['publish_us']:.0f} us CPU to publish one")
        print(f"  memory of each: {memory:.0f} bytes")
        print(f"  start: {started['start_seconds']:.2f} s, of {started['waiting']:,.0f} that wait")
        print(f"  snapshot of their queue: {started['snapshot_ms']:.1f} ms on the loop")
        steady = step("steady", full, options.rate * options.seconds, options.rate)
        print(
            f"{options.rate:,} a second: late by {steady['late_p50_ms']:.0f} ms (half), "
            f"{steady['late_p99_ms']:.0f} ms (99 of 100), {steady['late_max_ms']:.0f} ms (worst); "
            f"{steady['cpu_us']:.0f} us CPU to publish, release and deliver one; "
            f"{steady['out_of_order']:.0f} out of order"
        )
        burst = step("at_once", full, options.at_once, 0)
        print(
            f"{options.at_once:,} at once: the last one late by {burst['late_max_ms']:,.0f} ms, "
            f"{burst['per_second']:,.0f} a second"
        )


if __name__ == "__main__":
    main()
