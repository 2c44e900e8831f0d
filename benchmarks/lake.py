"""Topics to Parquet: by `polymq export`, by a query of Spark that is warm, and beside both the bare
write of the same rows by pyarrow.

The server fills a topic for each case, once. Each engine is a process of its own
(`lake_engine.py`), and measures itself; the server's processor time is that of the same rounds. On
two cores, the engine and the server share them as the scheduler likes: nothing is pinned, because
an engine has several threads.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.errors import BenchmarkFailed
from benchmarks.fairness_wire import expect, mqtt_connect, mqtt_publish
from benchmarks.machine import HOST, ROOT
from benchmarks.servers import PolyMQ

RUN: Final = 1_000
"""Messages that are published in one piece, and acknowledged before the next."""
ENGINE_SECONDS_MAX: Final = 900
ENGINES: Final = ("export", "spark")


class LakeServer(PolyMQ):
    """The server, with the listeners that are filled and read here."""

    protocols = ("mqtt", "http", "rocketmq")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A topic that becomes Parquet.

    Attributes:
        count: messages; a tenth of them for a look.
        body_bytes: of each message.
        fill: publishes messages with the numbers of a range.
    """

    name: str
    title: str
    topic: str
    count: int
    body_bytes: int
    fill: Callable[[LakeServer, Case, int], None]


def fill_by_mqtt(server: LakeServer, case: Case, count: int) -> None:
    """Random letters, so that they do not compress to nothing. Raises BenchmarkFailed."""
    with socket.create_connection((HOST, server.ports["mqtt"])) as opened:
        mqtt_connect(opened, "lake")
        for start in range(0, count, RUN):
            numbers = range(min(RUN, count - start))
            opened.sendall(
                b"".join(
                    mqtt_publish(
                        f"{case.topic}/room1/temp", body_of(case.body_bytes), packet_id=number + 1
                    )
                    for number in numbers
                )
            )
            expect(opened, 4 * len(numbers))


def fill_by_http(server: LakeServer, case: Case, count: int) -> None:
    """CloudEvents in batches, each with an id and a time of its own. Raises BenchmarkFailed."""
    url = f"http://{HOST}:{server.ports['http']}/topics/{case.topic}"
    headers = {"Content-Type": "application/cloudevents-batch+json"}
    for start in range(0, count, RUN):
        events = [
            event_of(number, case.body_bytes) for number in range(start, min(start + RUN, count))
        ]
        request = urllib.request.Request(url, json.dumps(events).encode(), headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            if answer.status >= 300:
                raise BenchmarkFailed(f"the server answered {answer.status} to a batch of events")


def body_of(size: int) -> bytes:
    """Letters of so many bytes, half of them random."""
    return os.urandom(size // 2).hex().encode()


def event_of(number: int, size: int) -> dict[str, Any]:
    """An event as a sensor's gateway sends it."""
    return {
        "specversion": "1.0",
        "id": f"{number:08x}-{os.urandom(8).hex()}",
        "source": f"/plants/{number % 7}",
        "type": "reading.temperature",
        "subject": f"room{number % 100}",
        "time": f"2026-03-01T12:{number // 60 % 60:02}:{number % 60:02}Z",
        "datacontenttype": "text/plain",
        "data": body_of(size).decode(),
    }


CASES: Final = (
    Case(
        name="mqtt",
        title="MQTT, 100 bytes",
        topic="readings",
        count=1_000_000,
        body_bytes=100,
        fill=fill_by_mqtt,
    ),
    Case(
        name="events",
        title="CloudEvents with ids, 100 bytes",
        topic="events",
        count=300_000,
        body_bytes=100,
        fill=fill_by_http,
    ),
    Case(
        name="mqtt-1k",
        title="MQTT, 1 KiB",
        topic="pictures",
        count=200_000,
        body_bytes=1024,
        fill=fill_by_mqtt,
    ),
)


def measure_lake(directory: Path, *, rounds: int, quick: bool) -> dict[str, Any]:
    """All cases; with `quick`, a tenth of the messages. Raises BenchmarkFailed."""
    directory = directory / "lake"
    shutil.rmtree(directory, ignore_errors=True)
    figures: dict[str, Any] = {}
    server = LakeServer(directory / "server")
    try:
        server.start()
        for case in CASES:
            count = case.count // 10 if quick else case.count
            case.fill(server, case, count)
            figures[case.name] = {}
            for engine in ENGINES:
                figures[case.name] |= measure_engine(server, case, engine, directory, rounds)
    finally:
        server.stop()
        shutil.rmtree(directory, ignore_errors=True)
    return figures


def measure_engine(
    server: LakeServer, case: Case, engine: str, directory: Path, rounds: int
) -> dict[str, Any]:
    """What an engine does with a case, by the kind of run. Raises BenchmarkFailed."""
    before = server.cpu_seconds()
    arguments = [engine, str(server.ports["rocketmq"]), case.topic, str(directory / engine)]
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.lake_engine", *arguments, str(rounds)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=ENGINE_SECONDS_MAX,
    )
    if ended.returncode:
        raise BenchmarkFailed(f"{engine}: {ended.stderr.strip()[-2000:]}")
    found: Mapping[str, Sequence[Mapping[str, float]]] = json.loads(ended.stdout)
    # An export reads twice in each round, and Spark once more than it has rounds.
    reads = 2 * rounds if engine == "export" else rounds + 1
    rows = found[engine][0]["rows"] * reads
    server_us = (server.cpu_seconds() - before) / rows * 1e6
    return {
        kind: {**summary(runs, case.body_bytes), "server_us": None if kind == "bare" else server_us}
        for kind, runs in found.items()
    }


def summary(runs: Sequence[Mapping[str, float]], body_bytes: int) -> dict[str, float]:
    """Medians of rounds."""
    rate = statistics.median(run["rows"] / run["seconds"] for run in runs)
    return {
        "rows": runs[0]["rows"],
        "rows_per_second": rate,
        "megabytes_per_second": rate * body_bytes / 1e6,
        "cpu_us": statistics.median(run["cpu_seconds"] / run["rows"] * 1e6 for run in runs),
    }


TITLES: Final = {"export": "polymq export", "bare": "pyarrow alone", "spark": "Spark, warm"}


def lake_lines(figures: Mapping[str, Any]) -> list[str]:
    """The figures for a reader."""
    lines = [f"{'topic to Parquet':34} {'rows/s':>10} {'MB/s':>7} {'us CPU/row':>11} {'server':>7}"]
    for case in CASES:
        runs = figures[case.name]
        lines.append(f"{case.title}, {runs['export']['rows']:,.0f} messages")
        for kind, title in TITLES.items():
            run = runs[kind]
            server = "" if run["server_us"] is None else f"{run['server_us']:7.2f}"
            lines.append(
                f"  {title:32} {run['rows_per_second']:10,.0f} {run['megabytes_per_second']:7.0f} "
                f"{run['cpu_us']:11.2f} {server}"
            )
    return lines
