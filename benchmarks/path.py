"""What a message costs on its whole way through gateway, engine and log, without sockets or disk.

An MQTT server of ours gets reads as a socket would hand them over, from publishers with a given
number of messages per read; a subscriber acknowledges what it is sent. The operating system's part
is left out: transports take bytes and forget them, and fdatasync returns at once. What remains is
our own code, in the form of the kernels that this process runs, by the size of the batch: the
fewer messages a read holds, the more its fixed price shows.

Run as a program it prints its figures as JSON: a process has its kernels in one form only.
"""

from __future__ import annotations

import gc
import json
import os
import select
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.errors import BenchmarkFailed
from benchmarks.machine import ROOT
from polymq.broker.engine import Engine
from polymq.core_log.files import RealFiles
from polymq.core_log.settings import StoreSettings
from polymq.core_log.store import Store
from polymq.gateways.mqtt.connection import Connection as MqttConnection
from polymq.gateways.mqtt.limits import Limits
from polymq.gateways.mqtt.mapping import TopicMapping
from polymq.gateways.mqtt.shared import Shared
from polymq.net.connection import Context

LOADS: Final = ((50, 1), (50, 20), (4, 250))
"""(publishers, messages in each of their reads); a round is one read of each."""
BODY_BYTES: Final = 100
WARM_UP_ROUNDS: Final = 20
SAMPLES: Final = 9
SAMPLE_MESSAGES: Final = 20_000
FLUSH_SECONDS_MAX: Final = 10
TOPIC: Final = b"bench/0"


class Loop:
    """As much of an event loop as the parts use. It moves when it is told to."""

    def __init__(self) -> None:
        self._soon: deque[Callable[[], object]] = deque()

    def call_soon(self, callback: Callable[[], object]) -> None:
        """In the next turn."""
        self._soon.append(callback)

    def call_later(self, _delay: float, _callback: Callable[[], object]) -> None:
        """Never: nothing that is measured here waits for a clock."""

    def time(self) -> float:
        """A clock that stands still."""
        return 0.0

    def turn(self) -> None:
        """What is due now, and what that makes due."""
        while self._soon:
            self._soon.popleft()()


class Wire:
    """A transport that counts what it is given."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        """To nowhere."""
        self.written.append(data)

    def get_extra_info(self, _name: str) -> None:
        """There is no peer."""

    def set_write_buffer_limits(self, _high: int, _low: int) -> None:
        """It takes everything."""

    def is_reading(self) -> bool:
        """Always."""
        return True

    def close(self) -> None:
        """Nothing to close."""


class UnsyncedFiles(RealFiles):
    """A disk that is never waited for."""

    def fdatasync(self, handle: int) -> None:
        """At once."""


class NoReaders:
    """History is not read here."""

    def submit(self, _read: Callable[[], bytes], _done: Callable[..., None]) -> None:
        raise AssertionError("a subscriber fell behind: what is measured is another path")


class Client:
    """A connected client, seen from the other end of its socket."""

    def __init__(self, shared: Shared, name: bytes, *, clean: bool = True) -> None:
        self.wire = Wire()
        self.connection = MqttConnection(shared)
        self.connection.connection_made(self.wire)  # type: ignore[arg-type]
        content = b"\x00\x04MQTT\x04" + bytes((2 * clean, 0, 0)) + string(name)
        self.receive(b"\x10" + bytes((len(content),)) + content)

    def receive(self, data: bytes) -> None:
        """A read: the server gets these bytes from the client."""
        buffer = self.connection.get_buffer(len(data))
        buffer[: len(data)] = data
        self.connection.buffer_updated(len(data))


def commit_all(loop: Loop, engine: Engine, store: Store) -> None:
    """The end of a loop iteration, and the flush that it asked for."""
    loop.turn()
    while engine.core.flush_pending:
        select.select([store.flusher.fileno()], [], [], FLUSH_SECONDS_MAX)
        engine.core.flush_finished()
        loop.turn()


class ServerParts:
    """The server's parts on a manual loop, a subscriber, and its publishers.

    Args:
        filters: what the subscriber subscribes to, with QoS 1.
        clean: its session ends with its connection.
        loop: what the parts run on.
    """

    def __init__(
        self,
        directory: Path,
        publishers_count: int,
        *,
        filters: Sequence[bytes] = (TOPIC,),
        clean: bool = True,
        loop: Loop | None = None,
    ) -> None:
        self.loop = loop or Loop()
        self.store = Store.open(
            str(directory),
            files=UnsyncedFiles(),
            clock_ms=lambda: time.time_ns() // 1_000_000,
            settings=StoreSettings(segment_bytes=256 << 20),
        )
        context: Any = Context(self.loop)  # type: ignore[arg-type]
        context.turns.clock = self.loop.time  # a read is one turn, also on a busy machine
        self.engine = Engine(
            store=self.store,
            clock_ms=lambda: time.time_ns() // 1_000_000,
            scheduler=context,
            readers=NoReaders(),
            new_name=lambda: "name",
        )
        limits = Limits()
        mapping = TopicMapping(port=self.engine.port, limits=limits, fixed_topic=None)
        shared = Shared(
            port=self.engine.port,
            context=context,
            limits=limits,
            mapping=mapping,
            new_client_id=lambda: "x",
        )
        self.subscriber = Client(shared, b"subscriber", clean=clean)
        self.publishers = [Client(shared, b"p%d" % i) for i in range(publishers_count)]
        self.commit()
        content = b"\x00\x01" + b"".join(string(name) + b"\x01" for name in filters)
        self.subscriber.receive(b"\x82" + bytes((len(content),)) + content)
        self.commit()
        self.subscriber.wire.written.clear()
        self._next_id = 1

    def commit(self) -> None:
        """The end of a loop iteration, and the flush that it asked for."""
        commit_all(self.loop, self.engine, self.store)

    def round(self, read: bytes, count: int) -> int:
        """Every publisher sends a read; the subscriber gets and acknowledges all of it, at first in
        portions: its window grows while it is quick.

        Returns:
            Nanoseconds of processor time of this thread.
        """
        total = count * len(self.publishers)
        ids = [(self._next_id + i - 1) % 65_535 + 1 for i in range(total)]
        self._next_id = (self._next_id + total - 1) % 65_535 + 1
        pubacks = b"".join(b"\x40\x02" + i.to_bytes(2, "big") for i in ids)
        start = time.thread_time_ns()
        for publisher in self.publishers:
            publisher.receive(read)
        self.commit()
        frames = self.subscriber.wire.written
        acked = 0
        while acked < total:
            arrived = sum(map(len, frames)) * count // len(read)
            assert acked < arrived <= total
            for at in range(acked, arrived, count):
                self.subscriber.receive(pubacks[4 * at : 4 * min(at + count, arrived)])
            acked = arrived
            self.loop.turn()
            if acked < total:
                self.commit()
        used = time.thread_time_ns() - start
        assert sum(map(len, frames)) == total * len(read) // count
        frames.clear()
        return used


def measure_path(*, by_stage: bool = False) -> list[dict[str, Any]]:
    """Nanoseconds per message by the size of a read: a column per form that is here.

    Args:
        by_stage: each figure is a table of stages instead (`benchmarks.path_stages`).
    """
    rows: dict[int, dict[str, Any]] = {}
    options = ["by-stage"] if by_stage else []
    for form in ("pure", "compiled"):
        ended = subprocess.run(
            [sys.executable, "-m", "benchmarks.path", *options],
            cwd=ROOT,
            env={**os.environ, "POLYMQ_KERNELS": form},
            capture_output=True,
            text=True,
            check=False,
        )
        if ended.returncode and "ImportError" in ended.stderr and form == "compiled":
            continue  # not compiled here: its column says so
        if ended.returncode:
            raise BenchmarkFailed(f"benchmarks.path: {ended.stderr.strip()}")
        for count, nanoseconds in json.loads(ended.stdout):
            row = rows.setdefault(count, {"messages_per_read": count})
            row[form] = nanoseconds
    return list(rows.values())


def measure_here() -> list[tuple[int, float]]:
    """(messages per read, nanoseconds per message) in this process."""
    figures = []
    for publishers_count, count in LOADS:
        directory = Path(tempfile.mkdtemp(prefix="polymq-path-"))
        try:
            parts = ServerParts(directory, publishers_count)
            # As the server does: what it needs for ever is nothing for the garbage collector.
            gc.collect()
            gc.freeze()
            figures.append((count, _sample(parts, publishers_count, count)))
            parts.store.close()
        finally:
            shutil.rmtree(directory, ignore_errors=True)
    return figures


def _sample(parts: ServerParts, publishers_count: int, count: int) -> float:
    read = b"".join(publish(TOPIC, packet_id) for packet_id in range(1, count + 1))
    per_round = publishers_count * count
    rounds = max(1, SAMPLE_MESSAGES // per_round)
    for _ in range(WARM_UP_ROUNDS):
        parts.round(read, count)
    samples = [
        sum(parts.round(read, count) for _ in range(rounds)) / (rounds * per_round)
        for _ in range(SAMPLES)
    ]
    return float(statistics.median(samples))


def publish(topic: bytes, packet_id: int) -> bytes:
    """A PUBLISH with QoS 1."""
    content = string(topic) + packet_id.to_bytes(2, "big") + b"x" * BODY_BYTES
    return b"\x32" + bytes((len(content),)) + content


def string(text: bytes) -> bytes:
    """MQTT's form of a string."""
    return len(text).to_bytes(2, "big") + text


def stages_here() -> list[tuple[int, dict[str, float]]]:
    """(messages per read, nanoseconds per message by stage) in this process."""
    from benchmarks.path_stages import StageClock  # noqa: PLC0415  (it wraps what it imports)

    clock = StageClock()
    clock.clear()
    tables = []
    for publishers_count, count in LOADS:
        directory = Path(tempfile.mkdtemp(prefix="polymq-path-"))
        try:
            parts = ServerParts(directory, publishers_count)
            read = b"".join(publish(TOPIC, packet_id) for packet_id in range(1, count + 1))
            samples = []
            for number in range(WARM_UP_ROUNDS + SAMPLES * 10):
                clock.clear()
                start = time.thread_time_ns()
                parts.round(read, count)
                rest = time.thread_time_ns() - start - sum(clock.taken.values())
                if number >= WARM_UP_ROUNDS:
                    samples.append({**clock.taken, "rest": rest})
            messages = publishers_count * count
            table = {
                stage: statistics.median(sample[stage] for sample in samples) / messages
                for stage in samples[0]
            }
            tables.append((count, table))
            parts.store.close()
        finally:
            shutil.rmtree(directory, ignore_errors=True)
    return tables


if __name__ == "__main__":
    print(json.dumps(stages_here() if sys.argv[1:] == ["by-stage"] else measure_here()))
