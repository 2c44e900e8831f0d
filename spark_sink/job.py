"""The sink: a streaming query from the format `polymq` to Parquet files, and its life.

    report = run_sink(
        brokers=["127.0.0.1:10911"],   # a broker's port for readers by offset; several for failover
        topics=["sensors"],            # None: all topics, those that come later included
        topic_pattern=None,            # or those whose whole names match a regular expression
        exclude_topics=[],             # but not these
        output=Path("lake"),
        checkpoint=Path("lake-checkpoint"),
        once=False,                    # True: write what is there now, then return
        interval_seconds=30.0,         # between batches
        master="local[2]",             # or spark://host:7077; output and checkpoint are then shared
    )

`run_sink` returns when it is done (`once`) or was asked to stop: by SIGTERM or SIGINT if it runs
in the main thread, or by `stop`. It raises `SinkError` with one sentence for the user: a wrong
option, no Java, a directory in use, messages lost, a broker that does not answer. Messages about
progress go to the logger `polymq.sink`.

A batch that fails is tried again where that may help, by a new query from the same checkpoint: a
broker that is away, a Python worker of Spark that did not connect, a full disk (`retries`). The
end of Spark's Java process ends the sink, too.

What it promises stands in `output`, how it lays files out in `layout`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from polymq.remoting.client import ClientSettings
from polymq.remoting.signing import Credentials
from polymq.remoting.tls import Tls
from polymq.spark_sink import register
from polymq.spark_sink.errors import SinkError, SparkEnded
from polymq.spark_sink.java import java_home
from polymq.spark_sink.options import Options
from polymq.spark_sink.output import Run, manifests, open_run, renewed
from polymq.spark_sink.reading import connect, list_topics, sink_errors
from polymq.spark_sink.retries import FAILURES_MAX, Retries, failure_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

MESSAGES_PER_BATCH: Final = 1_000_000
"""A batch is read, written and renamed as a whole; a million is seconds of work. What a first run
finds in a year of messages is done in many such batches."""
LOOK_SECONDS: Final = 1
"""How often the driver looks whether it shall stop, and reports progress."""
_LOCAL_HOST: Final = "127.0.0.1"
_LEAN_JAVA: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Half the processor time for a run that starts Spark to write 5,000 messages (10 s instead of 22
on two cores), and no more for 500,000: the work is done in Arrow, Java mostly starts up."""

_log = logging.getLogger("polymq.sink")


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkReport:
    """What a run has written."""

    batch_count: int
    row_count: int
    file_count: int


def run_sink(
    *,
    brokers: Sequence[str],
    topics: Sequence[str] | None,
    output: Path,
    checkpoint: Path,
    topic_pattern: str | None = None,
    exclude_topics: Sequence[str] = (),
    once: bool = False,
    interval_seconds: float = 30.0,
    master: str = "local[2]",
    starting_offsets: str = "earliest",
    messages_per_batch: int = MESSAGES_PER_BATCH,
    fail_on_data_loss: bool = True,
    compression: str = "zstd",
    credentials: Credentials | None = None,
    tls: Tls | None = None,
    spark_settings: Mapping[str, str] | None = None,
    stop: threading.Event | None = None,
) -> SinkReport:
    """Write topics to Parquet; see the head of this file.

    Args:
        starting_offsets: for messages that are there at the very first start: `earliest`,
            `latest`, or JSON as in `offsets.starting_positions`.
        messages_per_batch: about; at least one per queue.
        fail_on_data_loss: stop when retention, or the deletion of a topic, took messages before
            they were written; if False, go on without them and log which.
        compression: of the Parquet files: zstd, snappy, gzip, none.
        credentials: who reads, where the server has users.
        tls: how to connect; None: without TLS.
        spark_settings: further settings of the Spark session.
        stop: set it to end the sink. A batch that is running then is given up, and run again by
            the next start.

    Raises:
        SinkError: see `errors`.
    """
    options = {
        "broker": ",".join(brokers),
        "startingOffsets": starting_offsets,
        "maxOffsetsPerTrigger": str(messages_per_batch),
        "failOnDataLoss": str(fail_on_data_loss).lower(),
        "withRange": "true",
    }
    if topics is not None:
        options["topic"] = json.dumps(list(topics))
    if topic_pattern is not None:
        options["topicPattern"] = topic_pattern
    if exclude_topics:
        options["excludeTopic"] = json.dumps(list(exclude_topics))
    if credentials is not None:
        options["accessKey"] = credentials.access_key
        options["secretKey"] = credentials.secret_key
    if tls is not None:
        options["tls"] = "true"
        options["tlsCa"] = tls.authorities
        options["tlsCheckNames"] = str(tls.check_names).lower()
    _check_topics(Options(options))
    os.environ["JAVA_HOME"] = str(java_home())
    # Executors must run the Python that this process runs: the first python3 on PATH may lack us.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    stop = stop or threading.Event()
    with open_run(output, checkpoint) as run, _stopping_on_signals(stop):
        spark = _session(master, spark_settings or {})

        def query(run: Run) -> StreamingQuery:
            rows = spark.readStream.format("polymq").options(**options).load()
            return _start(rows, run, once, interval_seconds, compression)

        try:
            register(spark)
            attempts = Attempts(query, stop)
            attempts.run(run)
            return _report(run.output, attempts.tokens)
        finally:
            with contextlib.suppress(Exception):  # it cannot be stopped once its Java is gone
                spark.stop()


def _check_topics(options: Options) -> None:
    """The mistakes that are better told now than by a failed batch."""
    wanted = options.selection
    with sink_errors(), connect(options.brokers, options, settings=ClientSettings()) as client:
        present = list_topics(client)
    for topic in sorted(wanted.topics or ()):
        if topic not in present:
            _log.warning("topic %r does not exist yet; it is written as soon as it does", topic)
    if wanted.pattern is not None and not any(map(wanted.wants, present)):
        _log.warning("no topic matches %r yet", wanted.pattern.pattern)


def _session(master: str, settings: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession  # noqa: PLC0415  (an extra, and slow to import)

    builder = SparkSession.builder.master(master).appName("polymq sink")
    defaults = {
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "16384",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(16 * 1024 * 1024),
        # Our tasks are not idempotent for free: a second attempt beside the first is work twice.
        "spark.speculation": "false",
    }
    if master.startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", _LOCAL_HOST)
        defaults |= {
            "spark.driver.host": _LOCAL_HOST,
            "spark.driver.bindAddress": _LOCAL_HOST,
            "spark.driver.extraJavaOptions": _LEAN_JAVA,
        }
    # Says at INFO that a connection was closed; one is, at every end.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    for key, value in {**defaults, **settings}.items():
        builder = builder.config(key, value)
    session: SparkSession = builder.getOrCreate()
    return session


def _start(
    rows: DataFrame, run: Run, once: bool, interval_seconds: float, compression: str
) -> StreamingQuery:
    writer = (
        rows.writeStream.format("polymq-parquet")
        .option("path", str(run.output))
        .option("checkpoint", str(run.checkpoint))
        .option("run", run.token)
        .option("compression", compression)
        .option("checkpointLocation", run.checkpoint.as_uri())
    )
    if once:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{round(interval_seconds * 1000)} milliseconds").start()


class Attempts:
    """Queries one after the other, until one ends in order.

    Attributes:
        tokens: of the runs that wrote.
    """

    def __init__(self, start: Callable[[Run], StreamingQuery], stop: threading.Event) -> None:
        self._start = start
        self._stop = stop
        self._retries = Retries()
        self._reported = -1  # the last batch that was logged
        self.tokens: set[str] = set()

    def run(self, run: Run) -> None:
        """Raises SinkError, with the failure that was one too many."""
        while True:
            self.tokens.add(run.token)
            began, reported = time.monotonic(), self._reported
            error = self._run_query(run)
            if error is None:
                return
            pause = self._retries.pause_after(
                error,
                has_written=self._reported > reported,
                seconds=time.monotonic() - began,
            )
            _log.warning(
                "a batch failed, and is tried again in %g seconds (%d of %d): %s",
                *(pause, self._retries.failure_count, FAILURES_MAX, error),
            )
            if self._stop.wait(pause):
                return
            run = renewed(run)  # what is left of the failed query can commit nothing any more

    def _run_query(self, run: Run) -> SinkError | None:
        """Start a query and wait until it ends or has to; returns why it failed, if it did.
        Raises SparkEnded."""
        from py4j.protocol import Py4JError, Py4JJavaError  # noqa: PLC0415
        from pyspark.errors import PySparkException  # noqa: PLC0415

        try:
            query = self._start(run)
            try:
                while not self._stop.is_set() and not query.awaitTermination(LOOK_SECONDS):
                    self._log_progress(query)
                if query.isActive:
                    query.stop()
            finally:
                self._log_progress(query)
        except (PySparkException, Py4JJavaError) as error:
            return failure_of(str(error))
        except (Py4JError, OSError) as error:
            raise SparkEnded(f"Spark's Java process ended, or does not answer: {error}") from error
        return None

    def _log_progress(self, query: StreamingQuery) -> None:
        for progress in query.recentProgress:
            text = getattr(progress, "json", None)
            batch: dict[str, Any] = progress if text is None else json.loads(text)
            number, count = int(batch["batchId"]), int(batch["numInputRows"])
            if number > self._reported and count:
                self._reported = number
                _log.info("batch %d: %d messages", number, count)


def _report(output: Path, tokens: Container[str]) -> SinkReport:
    mine = [manifest for manifest in manifests(output) if manifest["run"] in tokens]
    return SinkReport(
        batch_count=len(mine),
        row_count=sum(manifest["row_count"] for manifest in mine),
        file_count=sum(len(manifest["files"]) for manifest in mine),
    )


@contextlib.contextmanager
def _stopping_on_signals(stop: threading.Event) -> Iterator[None]:
    """SIGTERM and SIGINT set `stop`; only where handlers can be set at all."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
