"""The comparison: every scenario against our server and, in turn, against the peer.

The turns (A B A B ...) matter on a machine that does other work too: what slows one slows the
other, and the medians stay comparable.
"""

from __future__ import annotations

import contextlib
import shutil
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.errors import BenchmarkFailed
from benchmarks.generators import Load, run_generator
from benchmarks.scenarios import Scenario
from benchmarks.servers import PEERS, PolyMQ, PolyMQPageCache, Server
from benchmarks.subscriptions import OtherSubscriptions

OURS: Final = (PolyMQ, PolyMQPageCache)
OUR_NAMES: Final = tuple(kind.name for kind in OURS)


@dataclass(slots=True)
class Figures:
    """What one server did in one scenario, over all rounds.

    Attributes:
        records: for each run, how many records the log grew by; only for our server.
        failure: why there are fewer runs than rounds.
    """

    loads: list[Load] = field(default_factory=list)
    records: list[int] = field(default_factory=list)
    failure: str = ""

    def median(self, name: str) -> float:
        """The median of an attribute of `Load` over the runs."""
        return float(statistics.median(getattr(load, name) for load in self.loads))

    @property
    def problem(self) -> str:
        """What is wrong with these figures; empty if nothing is."""
        if self.failure:
            return self.failure
        if not all(load.exact for load in self.loads):
            return "messages were lost, doubled, reordered or changed"
        for load, records in zip(self.loads, self.records, strict=False):
            if records != load.sent:
                return f"the log grew by {records} records for {load.sent} messages"
        return ""

    def value(self) -> dict[str, Any]:
        """For the JSON file."""
        names = ("cpu_us_per_message", "messages_per_second", "p50_us", "p99_us")
        return {
            "median": {name: self.median(name) for name in names} if self.loads else None,
            "runs": [asdict(load)["report"] for load in self.loads],
            "log_records": self.records,
            "problem": self.problem,
        }


@dataclass(slots=True)
class Comparison:
    """One scenario's figures: ours first, then the peer's if it is installed."""

    scenario: Scenario
    figures: dict[str, Figures]

    @property
    def peer(self) -> str | None:
        """The name of the server that ours is compared with."""
        return next((name for name in self.figures if name not in OUR_NAMES), None)

    def ratio(self, name: str, server: str) -> float | None:
        """How many times the figure of this server of ours is the peer's."""
        ours = self.figures[server]
        peer = self.figures[self.peer] if self.peer else None
        if peer is None or not ours.loads or not peer.loads or not ours.median(name):
            return None
        return peer.median(name) / ours.median(name)

    def value(self) -> dict[str, Any]:
        """For the JSON file."""
        return {
            "name": self.scenario.name,
            "title": self.scenario.title,
            "options": self.scenario.options,
            "servers": {name: figures.value() for name, figures in self.figures.items()},
            "peer_cpu_ratio": {
                server: self.ratio("cpu_us_per_message", server)
                for server in self.figures
                if server in OUR_NAMES
            },
        }


class Bench:
    """Runs comparisons. A context: what it started is gone after it.

    Args:
        directory: where the servers keep their data; its disk is part of what is measured.
        subscriptions_count: subscriptions of other clients on the MQTT servers.
        peers: names of the peers to compare with.
    """

    def __init__(
        self,
        *,
        directory: Path,
        rounds: int,
        seconds: float,
        subscriptions_count: int,
        kernels: str,
        peers: Sequence[str],
    ) -> None:
        self._rounds = rounds
        self._seconds = seconds
        self._subscriptions_count = subscriptions_count
        self._kernels = kernels
        self._peers = {
            peer.name: peer for peer in PEERS if peer.name.lower() in peers and peer.program()
        }
        self._running: dict[str, Server] = {}
        self._started_count = 0
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = Path(tempfile.mkdtemp(prefix="servers-", dir=directory))
        self.kernels: dict[str, str] = {}
        """Which form our server's kernels had, known after the first comparison."""

    @property
    def versions(self) -> dict[str, str]:
        """Of the peers that are installed and wanted."""
        return {name: peer.version() for name, peer in self._peers.items()}

    def close(self) -> None:
        """Stop what runs, and delete all data."""
        for server in self._running.values():
            server.stop()
        self._running.clear()
        shutil.rmtree(self._directory, ignore_errors=True)

    def compare(self, scenario: Scenario) -> Comparison:
        """All rounds of one scenario."""
        names = [name for name, peer in self._peers.items() if scenario.protocol in peer.protocols]
        kinds = OURS if scenario.acknowledged else OURS[:1]
        found = {name: Figures() for name in (*(kind.name for kind in kinds), *names)}
        comparison = Comparison(scenario, found)
        with contextlib.ExitStack() as stack:
            servers: list[Server] = [stack.enter_context(self._ours(kind)) for kind in kinds]
            servers += [self._peer(name) for name in names]
            with contextlib.ExitStack() as subscriptions:
                for server in servers:
                    if "mqtt" in server.protocols and self._subscriptions_count:
                        others = OtherSubscriptions(server.ports["mqtt"], self._subscriptions_count)
                        subscriptions.enter_context(others)
                for number in range(self._rounds):
                    for server in servers:
                        figures = comparison.figures[server.name]
                        if not figures.failure:
                            self._run(scenario, server, number, figures)
        return comparison

    def _run(self, scenario: Scenario, server: Server, number: int, figures: Figures) -> None:
        options = scenario.options.split()
        if scenario.protocol == "amqp":
            # What a failed run left in its queue is not for the next one.
            options += ["-t", f"bench-{number}"]
        try:
            before = server.stored_count() if isinstance(server, PolyMQ) else 0
            load = run_generator(
                scenario.generator,
                options,
                port=server.ports[scenario.protocol],
                seconds=self._seconds,
                process_ids=server.process_ids,
            )
            if isinstance(server, PolyMQ):
                figures.records.append(server.wait_stored(before + load.sent) - before)
            figures.loads.append(load)
        except (BenchmarkFailed, OSError) as error:
            figures.failure = f"{error}"

    @contextlib.contextmanager
    def _ours(self, kind: type[PolyMQ]) -> Iterator[PolyMQ]:
        """A fresh server of ours: the log of one scenario is not the start of the next."""
        server = kind(self._next_directory(), kernels=self._kernels)
        try:
            server.start()
            self.kernels = server.kernels
            yield server
        finally:
            server.stop()
            shutil.rmtree(server.directory, ignore_errors=True)

    def _peer(self, name: str) -> Server:
        """The peer, started when it is first needed: RabbitMQ takes its time for that."""
        if name not in self._running:
            server = self._peers[name](self._next_directory())
            self._running[name] = server
            server.start()
        return self._running[name]

    def _next_directory(self) -> Path:
        self._started_count += 1
        return self._directory / str(self._started_count)
