"""`make model`: clients of all protocols, a server that dies again and again, and a ledger.

    python -m interop_tests.model [--seconds 60] [--episodes 1] [--seed N]

An episode is a server with an empty directory and small segments. Publishers and readers of all
protocols work all the time. Meanwhile the server is killed, stopped in order, and, where this
program may mount a file system, its disk is filled and it is killed and started on the full disk.
In the end the publishers stop, the server is killed once more, the readers read to the end, and the
ledger (`ledger.py`) is judged. The exit code is 1 if a promise was not kept.

The seed decides what the clients and the disturber choose, and not how threads meet. So a seed that
found something finds it again often, not always. The directory of an episode that failed is kept.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from interop_tests.conftest import Server
from interop_tests.ledger.ports import lasting_ports
from interop_tests.model.clients import Client, Ports, Publisher
from interop_tests.model.ledger import Ledger
from interop_tests.model.publishers import (
    AmqpPublisher,
    AmqpTransactions,
    DelayedPublisher,
    HttpPublisher,
    MqttPublisher,
    RetainedPublisher,
    RocketmqPublisher,
)
from interop_tests.model.readers import AmqpReader, HttpReader, MqttReader, OffsetReader

DISK_MIB = 192
DRAIN_SECONDS_MAX = 120.0
LOOK_SECONDS = 0.1
DISTURBANCES = ("kill", "kill", "kill", "stop", "fill", "fill and kill")
OPTIONS: dict[str, object] = {
    "storage.segment_bytes": 1024 * 1024,
    "storage.save_seconds": 0.2,
    "storage.disk_reserve_bytes": 4 * 1024 * 1024,
    "storage.disk_early_bytes": 4 * 1024 * 1024,
    "storage.disk_check_seconds": 0.2,
}


class Disk:
    """Where the server keeps its data: a small file system of its own, if that may be mounted."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory / "disk"
        self.directory.mkdir()
        self._ballast = self.directory / "ballast"
        command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "polymq", str(self.directory)]
        self.can_fill = (
            os.geteuid() == 0
            and shutil.which("mount") is not None
            and subprocess.run(command, capture_output=True, check=False).returncode == 0
        )

    def fill(self) -> None:
        """Leave no room."""
        with contextlib.suppress(OSError), self._ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(64 * 1024))

    def clear(self) -> None:
        """Give the room back."""
        self._ballast.unlink(missing_ok=True)

    def close(self) -> None:
        """Unmount."""
        if self.can_fill:
            subprocess.run(["umount", self.directory], check=True)


class Episode:
    """One server and its clients."""

    def __init__(self, directory: Path, seed: int) -> None:
        self._chance = random.Random(seed)
        self.ledger = Ledger()
        self.done: Counter[str] = Counter()
        self.disk = Disk(directory)
        self._server = Server(
            directory, {**OPTIONS, **lasting_ports()}, {}, (sys.executable, "-m", "polymq")
        )
        self._server.data_directory = self.disk.directory / "data"
        self._server.start()
        server = self._server
        ports = Ports(server.mqtt_port, server.amqp_port, server.http_port, server.rocketmq_port)

        def having(name: str) -> tuple[str, Ports, Ledger, random.Random]:
            return name, ports, self.ledger, random.Random(f"{seed} {name}")

        self._readers: list[Client] = [
            MqttReader(1, *having("session1")),
            MqttReader(2, *having("session2")),
            AmqpReader(*having("queue1")),
            HttpReader(*having("subscription1")),
            OffsetReader(*having("offsets1")),
        ]
        self._publishers: list[Publisher] = [
            *(MqttPublisher(*having(f"mqtt{n}")) for n in range(2)),
            RetainedPublisher(*having("retained0")),
            DelayedPublisher(*having("delayed0")),
            *(AmqpPublisher(*having(f"amqp{n}")) for n in range(2)),
            AmqpTransactions(*having("tx0")),
            HttpPublisher(*having("http0")),
            RocketmqPublisher(*having("rocketmq0")),
        ]

    def run(self, seconds: float) -> None:
        """Work, disturb, and read to the end."""
        self._begin()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._pause(self._chance.uniform(0.2, 3.0))
            what = self._chance.choice(DISTURBANCES)
            if what.startswith("fill") and not self.disk.can_fill:
                continue
            self.done[what] += 1
            self._disturb(what)
        self._finish()

    def _begin(self) -> None:
        """Every reader is there before the first message."""
        for reader in self._readers:
            reader.start()
        self._pause(2.0)
        for publisher in self._publishers:
            publisher.start()

    def _disturb(self, what: str) -> None:
        if what == "kill":
            self._kill()
        elif what == "stop":
            if self._server.terminate() != 0:
                self.ledger.fault("the server did not end in order")
        else:
            self.disk.fill()
            self._pause(self._chance.uniform(0.2, 1.5))
            if what == "fill and kill":
                self._kill()
                self._server.start()  # on the full disk
                self._pause(0.5)
            self.disk.clear()
        if self._server.process.poll() is not None:
            self._server.start()

    def _kill(self) -> None:
        self._server.kill()
        self.ledger.kills.append(time.time())

    def _finish(self) -> None:
        for publisher in self._publishers:
            publisher.resting.set()
        self._wait(lambda: all(one.idle.is_set() for one in self._publishers), "publishers rest")
        self._kill()
        self._server.start()
        for reader in self._readers:
            reader.resting.set()
        books = self.ledger.readers
        self._wait(lambda: not any(self.ledger.missing(book) for book in books), "all is read")
        self._pause(4.0)  # what is delayed or should not come has come by then
        for client in [*self._publishers, *self._readers]:
            client.end()
        if self._server.terminate() != 0:
            self.ledger.fault("the server did not end in order")

    def _wait(self, condition: object, what: str) -> None:
        assert callable(condition)
        deadline = time.monotonic() + DRAIN_SECONDS_MAX
        while not condition():
            if time.monotonic() > deadline:
                self.ledger.fault(f"not in {DRAIN_SECONDS_MAX:g} s: {what}")
                return
            self._pause(LOOK_SECONDS)

    def _pause(self, seconds: float) -> None:
        threading.Event().wait(seconds)

    def close(self) -> None:
        """End what is left."""
        if self._server.process.poll() is None:
            self._server.kill()
        self.disk.close()


@contextlib.contextmanager
def episode(seed: int) -> Iterator[tuple[Episode, Path]]:
    """An episode in a directory of its own."""
    directory = Path(tempfile.mkdtemp(prefix="polymq-model-"))
    made = Episode(directory, seed)
    try:
        yield made, directory
    finally:
        made.close()


def main() -> int:
    """Run episodes; returns the exit code."""
    parser = argparse.ArgumentParser(description="See the head of the file.")
    parser.add_argument("--seconds", type=float, default=60.0, help="of one episode")
    parser.add_argument("--episodes", type=int, default=1)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    first = random.randrange(10**6) if options.seed is None else options.seed
    for seed in range(first, first + options.episodes):
        with episode(seed) as (one, directory):
            one.run(options.seconds)
        faults = one.ledger.judge()
        done = ", ".join(f"{count} {what}" for what, count in sorted(one.done.items()))
        print(f"seed {seed}: {one.ledger.figures()}; {done}", flush=True)
        if not one.disk.can_fill:
            print("  no full disks: they need the right to mount a file system")
        if faults:
            print(*(f"  {fault}" for fault in faults), f"  see {directory}", sep="\n")
            named = {key for fault in faults for key in re.findall(r"'(\w+:\d+)'", fault)}
            (directory / "history").write_text("\n".join(one.ledger.history(sorted(named))))
            return 1
        shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    import logging

    logging.getLogger("pika").setLevel(logging.CRITICAL)
    sys.exit(main())
