"""What a message costs that comes alone: one PUBLISH in a read, one PUBACK in a read.

The parts of a server on a manual loop, as in `benchmarks.path`, with pairs of clients: each
publisher has a topic of its own, and each topic one subscriber. An iteration of the loop takes a
number of reads and then ends: few on a server with little to do, many on a busy one. Sockets, disk
and the loop's own work are left out; what is left is what our code adds to each message.

    python -m benchmarks.sparse [page_cache|fsync] [reads of an iteration ...]
"""

from __future__ import annotations

import gc
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.path import Client, Loop, NoReaders, UnsyncedFiles, commit_all, publish, string
from polymq.broker.engine import Engine
from polymq.broker.port import APPENDED, FLUSHED
from polymq.broker.topics.settings import TopicSettings
from polymq.core_log.settings import StoreSettings
from polymq.core_log.store import Store
from polymq.gateways.mqtt.limits import Limits
from polymq.gateways.mqtt.mapping import TopicMapping
from polymq.gateways.mqtt.shared import Shared
from polymq.net.connection import Context

PAIRS: Final = 50
READS: Final = (1, 5, 25)
"""PUBLISH packets of an iteration; as many acknowledgements come in the next."""
WARM_UP_ROUNDS: Final = 40
SAMPLES: Final = 9
SAMPLE_ROUNDS: Final = 200


class Pairs:
    """The server's parts, and pairs of clients.

    Args:
        durability: what an acknowledgement waits for.
    """

    def __init__(self, directory: Path, durability: str) -> None:
        self.loop = Loop()
        self.store = Store.open(
            str(directory),
            files=UnsyncedFiles(),
            clock_ms=lambda: time.time_ns() // 1_000_000,
            settings=StoreSettings(segment_bytes=256 << 20),
        )
        context: Any = Context(self.loop)  # type: ignore[arg-type]
        self.engine = Engine(
            store=self.store,
            clock_ms=lambda: time.time_ns() // 1_000_000,
            scheduler=context,
            readers=NoReaders(),
            new_name=lambda: "name",
            topic_defaults=TopicSettings(
                durability=APPENDED if durability == "page_cache" else FLUSHED
            ),
        )
        limits = Limits()
        shared = Shared(
            port=self.engine.port,
            context=context,
            limits=limits,
            mapping=TopicMapping(port=self.engine.port, limits=limits, fixed_topic=None),
            new_client_id=lambda: "x",
        )
        self.publishers = [Client(shared, b"p%d" % i) for i in range(PAIRS)]
        self.subscribers = [Client(shared, b"s%d" % i) for i in range(PAIRS)]
        self.commit()
        for index, subscriber in enumerate(self.subscribers):
            content = b"\x00\x01" + string(b"bench/%02d" % index) + b"\x01"
            subscriber.receive(b"\x82" + bytes((len(content),)) + content)
        self.commit()
        self.reads = [publish(b"bench/%02d" % index, 1) for index in range(PAIRS)]
        for client in (*self.publishers, *self.subscribers):
            client.wire.written.clear()

    def commit(self) -> None:
        """The end of a loop iteration, and the flush that it asked for."""
        commit_all(self.loop, self.engine, self.store)

    def round(self, reads: int) -> None:
        """A message from each publisher, `reads` of them in an iteration."""
        for first in range(0, PAIRS, reads):
            for index in range(first, first + reads):
                self.publishers[index].receive(self.reads[index])
            self.commit()
            for index in range(first, first + reads):
                wire = self.subscribers[index].wire
                (frame,) = wire.written
                wire.written.clear()
                self.subscribers[index].receive(b"\x40\x02" + frame[12:14])
        for publisher in self.publishers:
            assert publisher.wire.written == [b"\x40\x02\x00\x01"]
            publisher.wire.written.clear()


def measure(durability: str, reads: int) -> float:
    """Nanoseconds of processor time for a message, the clients' part of the loop included."""
    directory = Path(tempfile.mkdtemp(prefix="polymq-sparse-"))
    try:
        pairs = Pairs(directory, durability)
        gc.collect()
        gc.freeze()
        for _ in range(WARM_UP_ROUNDS):
            pairs.round(reads)
        samples = []
        for _ in range(SAMPLES):
            start = time.thread_time_ns()
            for _ in range(SAMPLE_ROUNDS):
                pairs.round(reads)
            samples.append((time.thread_time_ns() - start) / (SAMPLE_ROUNDS * PAIRS))
        pairs.store.close()
        return min(samples)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def main(arguments: list[str]) -> None:
    """Print the figures that the arguments ask for."""
    durability = arguments[0] if arguments else "page_cache"
    for reads in [int(argument) for argument in arguments[1:]] or READS:
        print(f"{durability}, {reads} in an iteration: {measure(durability, reads):,.0f} ns")


if __name__ == "__main__":
    main(sys.argv[1:])
