"""Topics to Parquet through Spark, read back by a reader that is not Spark.

What must be in the files is asked of the server itself, offset by offset, through the RocketMQ
listener; what is in them is asked of DuckDB by a plain glob.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import duckdb

from examples.demo.server import POLYMQ, DemoServer
from examples.demo.workers import DemoFailed
from polymq.remoting.driver_blocking import BlockingClient
from polymq.remoting.records import iterate_records

SINK_SECONDS_MAX = 240.0
PULL_COUNT = 1000
PULL_BYTES = 4 * 1024 * 1024

Row = tuple[str, int, int, str]
"""(topic, queue, offset, SHA-256 of the body)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lake:
    """What the files hold, and what they should."""

    seconds: float
    expected: Counter[Row]
    found: Counter[Row]
    summary: list[str] = field(default_factory=list)

    @property
    def held(self) -> bool:
        """Whether every message is there exactly once, unaltered."""
        return self.expected == self.found

    def problem(self) -> str:
        """What differs, for a person."""
        missing = sum((self.expected - self.found).values())
        surplus = sum((self.found - self.expected).values())
        return f"{missing} messages are not in the files, {surplus} rows are no messages"


class Sink:
    """`polymq sink --once`, from its start on. It takes its time: Java and Spark have to start."""

    def __init__(self, server: DemoServer, directory: Path) -> None:
        self._server = server
        self._output = directory / "lake"
        self._started = time.monotonic()
        self._process = server.processes.start(
            [
                *POLYMQ,
                "sink",
                "--once",
                "--broker",
                server.address("rocketmq"),
                "--output",
                self._output,
                "--checkpoint",
                directory / "lake-checkpoint",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=directory,
            # Java compiles less: it would pay only in a longer run.
            env={**os.environ, "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"},
        )

    def finish(self) -> Lake:
        """Wait for its end, and compare its files with what the server holds."""
        try:
            _, errors = self._process.communicate(timeout=SINK_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            raise DemoFailed(f"polymq sink was not done within {SINK_SECONDS_MAX:.0f} s") from None
        if self._process.returncode:
            tail = "\n".join(errors.splitlines()[-20:])
            raise DemoFailed(f"polymq sink ended with code {self._process.returncode}:\n{tail}")
        address, glob = self._server.address("rocketmq"), str(self._output / "**" / "*.parquet")
        return Lake(
            seconds=time.monotonic() - self._started,
            expected=rows_of_server(address),
            found=rows_of_files(glob),
            summary=summarise(glob),
        )


def rows_of_server(address: str) -> Counter[Row]:
    """Every message of every topic, read by offset."""
    rows: Counter[Row] = Counter()
    with BlockingClient([address]) as client:
        for named in client.topics():
            topic = named.user or named.stored
            for broker in client.route(topic).brokers:
                for queue in range(broker.queue_count):
                    bounds = client.bounds(topic, broker.broker, queue)
                    offset = bounds.first
                    while offset < bounds.end:
                        pulled = client.pull(
                            topic,
                            broker.broker,
                            queue,
                            offset,
                            count_max=PULL_COUNT,
                            bytes_max=PULL_BYTES,
                        )
                        for record in iterate_records(pulled.records):
                            digest = hashlib.sha256(record.plain_body).hexdigest()
                            rows[topic, queue, record.queue_offset, digest] += 1
                            offset = record.queue_offset + 1
    return rows


def rows_of_files(glob: str) -> Counter[Row]:
    """Every row of every file, read by DuckDB."""
    query = f"""
        SELECT topic, queue_id, queue_offset, sha256(body)
        FROM read_parquet('{glob}', hive_partitioning = true)
    """
    return Counter(duckdb.execute(query).fetchall())


def summarise(glob: str) -> list[str]:
    """A few lines of what an analyst sees."""
    query = f"""
        SELECT topic, split_part(tag, '.', 1) AS publisher, count(*) AS messages,
               sum(octet_length(body)) AS bytes, min(queue_offset), max(queue_offset)
        FROM read_parquet('{glob}', hive_partitioning = true)
        GROUP BY ALL ORDER BY ALL
    """
    return [
        f"topic {topic}, published by {publisher:<5} {messages:>6,} messages, {size:>11,} bytes, "
        f"offsets {first} to {last}"
        for topic, publisher, messages, size, first, last in duckdb.execute(query).fetchall()
    ]
