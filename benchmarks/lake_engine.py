"""One engine that turns a topic into Parquet, in a process of its own.

    python -m benchmarks.lake_engine export|spark PORT TOPIC DIRECTORY ROUNDS

`export` is what `polymq export` calls. After each round, the same rows are written once more from
memory, which is pyarrow's part of the work. `spark` is a batch query, from the format `polymq` to
Spark's own Parquet files, in a session that has run it before.

It prints a line of JSON: for each kind of run, its rounds.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from benchmarks.machine import HOST, process_tree
from polymq.remoting.signing import Credentials
from polymq.remoting.tls import Tls
from polymq.spark_sink import register
from polymq.spark_sink.exporting import Part, plan_export, read_ranges, write_rows
from polymq.spark_sink.java import java_home

TASKS: Final = 2
"""Of a query of Spark: one for each of its threads."""

Round = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How the server is reached: as nobody."""

    credentials: Credentials | None = None
    tls: Tls | None = None


def measured(work: Callable[[], int]) -> Round:
    """Seconds and processor time of work that returns a number of rows, with all processes that it
    has started."""
    cpu_before, before = cpu_seconds(), time.perf_counter()
    rows = work()
    seconds = time.perf_counter() - before
    return {"rows": rows, "seconds": seconds, "cpu_seconds": cpu_seconds() - cpu_before}


def cpu_seconds() -> float:
    """Of this process and its descendants. The clocks of processes count in hundredths."""
    ticks = 0
    for process_id in process_tree(os.getpid()):
        try:
            fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def write(batches: Iterable[pa.RecordBatch], path: Path) -> int:
    """Write a Parquet file as an export does; returns the number of rows."""
    rows = 0

    def advance(count: int) -> None:
        nonlocal rows
        rows += count

    with path.open("wb") as file:
        write_rows((batch for batch in batches), file, "parquet", advance=advance)
    return rows


def run_export(broker: str, topic: str, directory: Path, rounds: int) -> dict[str, list[Round]]:
    """An export, and the bare write of the same rows, in turn."""

    def read() -> Iterable[pa.RecordBatch]:
        return read_ranges(plan_export([broker], Access(), topic, Part()), [broker], Access())

    path = directory / "rows.parquet"
    exported, bare = [], []
    for _ in range(rounds):
        exported.append(measured(lambda: write(read(), path)))
        batches = list(read())
        bare.append(measured(lambda: write(batches, path)))  # noqa: B023  (called at once)
    return {"export": exported, "bare": bare}


def run_spark(broker: str, topic: str, directory: Path, rounds: int) -> dict[str, list[Round]]:
    """A batch query; the first round is not counted."""
    from pyspark.sql import SparkSession  # noqa: PLC0415  (slow to import)

    os.environ["JAVA_HOME"] = str(java_home())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(f"local[{TASKS}]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.log.level", "OFF").config("spark.driver.memory", "2g")
    spark = builder.config("spark.sql.parquet.compression.codec", "zstd").getOrCreate()
    register(spark)
    ranges = plan_export([broker], Access(), topic, Part())
    rows = sum(wanted.end - wanted.first for wanted in ranges)
    options = {"broker": broker, "topic": topic, "maxRecordsPerTask": str(-(-rows // TASKS))}

    def query() -> int:
        table = spark.read.format("polymq").options(**options).load()
        table.write.mode("overwrite").parquet(str(directory / "rows"))
        return rows

    found = [measured(query) for _ in range(rounds + 1)]
    spark.stop()
    return {"spark": found[1:]}


def main(values: list[str]) -> None:
    """Measure, and print the figures."""
    engine, port, topic, where, rounds = values
    directory = Path(where)
    directory.mkdir(parents=True, exist_ok=True)
    run: Any = {"export": run_export, "spark": run_spark}[engine]
    print(json.dumps(run(f"{HOST}:{port}", topic, directory, int(rounds))))
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])
