"""Which failures are tried again, and what is said about it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import StreamingQueryException

from polymq.spark_sink import retries
from polymq.spark_sink.errors import (
    BadOption,
    DataLoss,
    SinkError,
    SinkFailed,
    SparkEnded,
    Stale,
    Unavailable,
)
from polymq.spark_sink.job import Attempts
from polymq.spark_sink.output import Run, open_run
from polymq.spark_sink.retries import FAILURES_MAX, STEADY_SECONDS, Retries, failure_of

WORKER = (
    """[STREAM_FAILED] Query [id = 5] terminated with exception: Job aborted due to stage failure:
Task 0 in stage 3.0 failed 1 times: org.apache.spark.SparkException: Python worker failed to
connect back. SQLSTATE: XXKST
\tat org.apache.spark.api.python.PythonWorkerFactory.createSimpleWorker(x.scala:234)
"""
    + "\tat java.base/java.lang.Thread.run(Thread.java:1583)\n" * 50
)


def ours(name: str, text: str) -> str:
    """As Spark reports what Python raised, with a trace before and behind."""
    trace = f"File 'reading.py', line 5\n    raise X\nspark_sink.errors.{name}: {text}\n"
    return f"[STREAM_FAILED] ... PythonException: Traceback:\n{trace}\n\tat org.apache.spark...\n"


@pytest.mark.parametrize(
    "kind", [BadOption, DataLoss, SinkError, Stale, Unavailable], ids=lambda kind: kind.__name__
)
def test_our_own_errors_are_found_in_spark_s_report(kind: type[SinkError]) -> None:
    error = failure_of(ours(kind.__name__, "queue b/t/0: what it is "))
    assert type(error) is kind
    assert str(error) == "queue b/t/0: what it is"


def test_any_other_failure_becomes_one_line() -> None:
    error = failure_of(WORKER)
    assert type(error) is SinkFailed
    assert str(error).startswith("Job aborted due to stage failure: Task 0 in stage 3.0 failed")
    assert "Python worker failed to connect back." in str(error)
    assert "\n" not in str(error)
    assert len(str(error)) <= retries.CAUSE_CHARACTERS_MAX + 3
    short = "[STREAM_FAILED] Query [id = 5] terminated with exception: no space. SQLSTATE: X\n"
    assert str(failure_of(f"{short}=== Streaming Query ===\nId: 5")) == "no space. SQLSTATE: X"
    assert str(failure_of("")) == "Spark does not say why"


def test_pauses_grow_and_the_number_of_attempts_is_bounded() -> None:
    count = Retries()
    error = Unavailable("away")
    pauses = [count.pause_after(error, has_written=False, seconds=0) for _ in range(FAILURES_MAX)]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
    with pytest.raises(Unavailable):
        count.pause_after(error, has_written=False, seconds=0)


@pytest.mark.parametrize(("has_written", "seconds"), [(True, 0.0), (False, STEADY_SECONDS)])
def test_an_attempt_that_did_well_for_a_while_begins_the_count_anew(
    has_written: bool, seconds: float
) -> None:
    count = Retries()
    for _ in range(3 * FAILURES_MAX):
        pause = count.pause_after(SinkFailed("x"), has_written=has_written, seconds=seconds)
        assert pause == 1


@pytest.mark.parametrize("error", [BadOption("x"), DataLoss("x"), SinkError("x"), Stale("x")])
def test_what_comes_again_however_often_it_is_tried_ends_the_sink(error: SinkError) -> None:
    with pytest.raises(type(error)):
        Retries().pause_after(error, has_written=True, seconds=STEADY_SECONDS)


class Query:
    """A streaming query that ends as it is told, after it wrote some batches."""

    isActive = False  # noqa: N815  (Spark's name)

    def __init__(self, end: Exception | None = None, batches: tuple[int, ...] = ()) -> None:
        self.end = end
        self.recentProgress = [{"batchId": number, "numInputRows": 5} for number in batches]

    def awaitTermination(self, timeout: float) -> bool:  # noqa: N802
        if self.end is not None:
            raise self.end
        return True


def failed(report: str) -> StreamingQueryException:
    return StreamingQueryException(report)


@pytest.fixture
def stop(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Pauses take no time."""
    monkeypatch.setattr(retries, "PAUSE_FIRST_SECONDS", 0.0)
    return threading.Event()


@pytest.fixture
def run_all(tmp_path: Path, stop: threading.Event) -> Callable[..., tuple[Attempts, list[Run]]]:
    def run_all(*queries: Query) -> tuple[Attempts, list[Run]]:
        left, runs = list(queries), []

        def start(run: Run) -> Any:
            runs.append(run)
            return left.pop(0)

        attempts = Attempts(start, stop)
        with open_run(tmp_path / "lake", tmp_path / "checkpoint") as run:
            attempts.run(run)
        assert not left
        return attempts, runs

    return run_all


def test_a_batch_that_failed_is_tried_again_by_a_run_of_its_own(
    run_all: Callable[..., tuple[Attempts, list[Run]]], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "polymq.sink")
    attempts, runs = run_all(
        Query(failed(WORKER), (0, 1)), Query(failed(ours("Unavailable", "no answer"))), Query()
    )
    assert len({run.token for run in runs}) == 3
    assert attempts.tokens == {run.token for run in runs}
    said = [record.getMessage() for record in caplog.records]
    assert said[:2] == ["batch 0: 5 messages", "batch 1: 5 messages"]
    assert said[2].startswith(
        "a batch failed, and is tried again in 0 seconds (1 of 10): Job aborted"
    )
    assert said[3] == "a batch failed, and is tried again in 0 seconds (2 of 10): no answer"


def test_a_permanent_failure_is_not_tried_again(
    run_all: Callable[..., tuple[Attempts, list[Run]]],
) -> None:
    with pytest.raises(DataLoss, match=r"^gone$"):
        run_all(Query(failed(ours("DataLoss", "gone"))))


def test_the_end_of_java_is_one_clear_line(
    run_all: Callable[..., tuple[Attempts, list[Run]]],
) -> None:
    for error in (Py4JNetworkError("closed"), ConnectionRefusedError("refused")):
        with pytest.raises(SparkEnded, match="Spark's Java process ended"):
            run_all(Query(error))


def test_a_stop_ends_the_pause(
    run_all: Callable[..., tuple[Attempts, list[Run]]],
    stop: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And no further attempt is made."""
    monkeypatch.setattr(retries, "PAUSE_FIRST_SECONDS", 3600.0)
    query = Query(failed(WORKER))

    def awaited(_timeout: float) -> bool:
        stop.set()
        raise failed(WORKER)

    query.awaitTermination = awaited  # type: ignore[assignment,method-assign]
    _, runs = run_all(query)
    assert len(runs) == 1
