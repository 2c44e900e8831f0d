"""How long a small request takes while other clients load the server: p99 and worst, for each load.

Each case has a server of its own, and a peer's where the peer speaks what the load speaks. What is
measured stands in `fairness_probe.py`, the loads in `fairness_cases.py`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

from benchmarks.errors import BenchmarkFailed
from benchmarks.fairness_cases import CASES
from benchmarks.fairness_stage import Case, Stage
from benchmarks.generators import build_generators
from benchmarks.machine import HOST, ROOT, Theft, describe_machine, pinned
from benchmarks.report import machine_lines
from benchmarks.scenarios import Protocol
from benchmarks.servers import PEERS, PolyMQ, Server

CLIENTS: Final[Mapping[str, Sequence[str]]] = {
    "mqtt": ("ping", "mqtt"),
    "amqp": ("amqp",),
    "http": ("http",),
    "rocketmq": ("rocketmq",),
}
"""The paced clients of each protocol."""
SETTLE_SECONDS: Final = 1.0
"""The paced clients are there before the load for so long, and after it."""
QUICK_SCALE: Final = 10
P99_WANTED_MS: Final = 50.0
WORST_WANTED_MS: Final = 150.0
OWN_MS_MAX: Final = 10.0
"""A paced client that was later than that by itself is named in the report."""
STOLEN_MAX: Final = 0.05
"""Of a core's time, by other machines on the same host. With more, a case is measured again."""
ATTEMPTS: Final = 4
"""How often at most; the attempt with the least is reported."""
METRICS_SECONDS_MAX: Final = 60.0
COLUMNS: Final[Mapping[str, tuple[str, Sequence[str]]]] = {
    "PolyMQ": ("PolyMQ", ("ping", "mqtt", "amqp", "http", "rocketmq")),
    "in MQTT": ("PolyMQ", CLIENTS["mqtt"]),
    "mosquitto": ("mosquitto", CLIENTS["mqtt"]),
    "in AMQP": ("PolyMQ", CLIENTS["amqp"]),
    "RabbitMQ": ("RabbitMQ", CLIENTS["amqp"]),
}
"""Of the table at the end: whose figures, and of which paced clients."""


class FairPolyMQ(PolyMQ):
    """Our server with all its protocols."""

    protocols: ClassVar[tuple[Protocol, ...]] = ("mqtt", "amqp", "http", "rocketmq")

    def metric(self, name: str) -> float:
        """The value of one of its metrics. Raises BenchmarkFailed if it has none of this name."""
        address = f"http://{HOST}:{self._admin_port}/metrics"
        with urllib.request.urlopen(address, timeout=METRICS_SECONDS_MAX) as answer:
            for line in answer.read().decode().splitlines():
                found, _, value = line.rpartition(" ")
                if found == name:
                    return float(value)
        raise BenchmarkFailed(f"there is no metric {name}")


class Probe:
    """The process of the paced clients."""

    def __init__(self, server: Server) -> None:
        clients = [
            f"{kind}={server.ports[protocol]}"
            for protocol in server.protocols
            for kind in CLIENTS[protocol]
        ]
        self._process = subprocess.Popen(
            [*pinned("generator"), sys.executable, "-m", "benchmarks.fairness_probe", *clients],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._line()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise BenchmarkFailed("the paced clients ended")
        return line

    def mark(self) -> dict[str, dict[str, float]]:
        """The figures of each client since the last mark."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        found: dict[str, dict[str, float]] = json.loads(self._line())
        return found

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(SETTLE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def measure_case(case: Case, server: Server, *, scale: int, seconds: float) -> dict[str, Any]:
    """One case on a started server. Raises BenchmarkFailed, OSError."""
    stage = Stage(server.ports, scale=scale, seconds=seconds)
    probe: Probe | None = None
    try:
        measured = case.prepare(stage)
        probe = Probe(server)
        time.sleep(SETTLE_SECONDS)
        ours = server if isinstance(server, FairPolyMQ) and case.counted else None
        before = 0.0 if ours is None else ours.metric(case.counted)
        probe.mark()
        theft = Theft()
        began = time.perf_counter()
        done = True
        try:
            measured()
        except TimeoutError:
            done = False
        took = time.perf_counter() - began
        time.sleep(SETTLE_SECONDS)
        clients = probe.mark()
        stolen = theft.share()
        own = clients.pop("own")
        if ours is not None and ours.metric(case.counted) <= before:
            raise BenchmarkFailed(f"{case.counted} is still {before:g} after {took:.1f} s of load")
        return {"seconds": took, "done": done, "clients": clients, "own": own, "stolen": stolen}
    finally:
        if probe is not None:
            probe.close()
        stage.close()


def measure_fairness(
    directory: Path, names: Sequence[str], peers: Sequence[str], *, quick: bool, kernels: str
) -> dict[str, Any]:
    """All cases, printed as they come; returns the figures for the JSON file.

    Args:
        names: of cases, or how they begin; empty: all.
        peers: which to compare with, of those that are installed.
    """
    build_generators()
    installed = [peer for peer in PEERS if peer.name.lower() in peers and peer.program()]
    versions = {peer.name: peer.version() for peer in installed}
    machine = describe_machine()
    print(*machine_lines(machine, versions), sep="\n")
    print("p99 and worst of each paced client, in milliseconds\n", flush=True)
    scale, seconds = (QUICK_SCALE, 1.0) if quick else (1, 5.0)
    found: dict[str, Any] = {}
    for case in CASES:
        if names and not any(case.name.startswith(name) for name in names):
            continue
        print(f"{case.name}: {case.title}", flush=True)
        for name, make in _servers(case, directory / "fairness", installed, kernels):
            figures = at_rest(partial(_measured, case, make, scale=scale, seconds=seconds))
            found.setdefault(case.name, {})[name] = figures
            print(fairness_line(name, figures), flush=True)
    print("", *fairness_table(found), sep="\n", flush=True)
    return {"machine": machine, "peers": versions, "scale": scale, "fairness": found}


def at_rest(measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The figures of an attempt in which other machines on the host took next to nothing; if there
    was none, those of the attempt in which they took least."""
    best: dict[str, Any] = {"stolen": 2.0}
    for _ in range(ATTEMPTS):
        figures = measure()
        if "failure" in figures:
            return figures
        if figures["stolen"] < best["stolen"]:
            best = figures
        if best["stolen"] <= STOLEN_MAX:
            break
    return best


def _measured(
    case: Case, make: Callable[[], Server], *, scale: int, seconds: float
) -> dict[str, Any]:
    """The figures of a case on a server that is made for it, or what failed."""
    server = make()
    try:
        server.start()
        return measure_case(case, server, scale=scale, seconds=seconds)
    except (BenchmarkFailed, OSError) as error:
        return {"failure": f"{error}"}
    finally:
        server.stop()
        shutil.rmtree(server.directory, ignore_errors=True)


def _servers(
    case: Case, directory: Path, peers: Sequence[type[Server]], kernels: str
) -> Iterator[tuple[str, Callable[[], Server]]]:
    """Those that are measured in this case, one after the other, by name, and how each is made in
    a new directory."""
    shutil.rmtree(directory, ignore_errors=True)
    make = partial(FairPolyMQ, directory / "ours", kernels=kernels, settings=case.settings)
    yield FairPolyMQ.name, make
    for peer in peers:
        if case.protocol in ("all", *peer.protocols):
            yield peer.name, partial(peer, directory / peer.name)


def fairness_line(name: str, figures: Mapping[str, Any]) -> str:
    """One line of the report; an exclamation mark where it is more than wanted."""
    if "failure" in figures:
        return f"  {name:10} {figures['failure']}"
    parts = []
    for kind, client in figures["clients"].items():
        over = client["p99_ms"] > P99_WANTED_MS or client["worst_ms"] > WORST_WANTED_MS
        mark = "!" if over else " "
        parts.append(f"{kind} {client['p99_ms']:5.0f} {client['worst_ms']:5.0f}{mark}")
    if not figures["done"]:
        parts.append("(and the load was not done then)")
    own = figures["own"]["worst_ms"]
    if own > OWN_MS_MAX:
        parts.append(f"(paced clients late by {own:.0f} themselves)")
    if figures["stolen"] > STOLEN_MAX:
        parts.append(f"(other machines took {figures['stolen']:.0%} of a core)")
    return f"  {name:10} {figures['seconds']:5.1f} s  {'  '.join(parts)}"


def fairness_table(found: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """All cases side by side, in Markdown: p99 and worst in milliseconds, each the largest of the
    paced clients that a column is about."""
    yield f"| case | {' | '.join(COLUMNS)} |"
    yield "|---" * (1 + len(COLUMNS)) + "|"
    for name, servers in found.items():
        cells = [
            _cell(servers.get(server, {}).get("clients", {}), kinds)
            for server, kinds in COLUMNS.values()
        ]
        yield f"| {name} | {' | '.join(cells)} |"


def _cell(clients: Mapping[str, Mapping[str, float]], kinds: Sequence[str]) -> str:
    chosen = [clients[kind] for kind in kinds if kind in clients]
    if not chosen:
        return ""
    p99 = max(client["p99_ms"] for client in chosen)
    worst = max(client["worst_ms"] for client in chosen)
    return f"{p99:.0f} / {worst:.0f}"
