"""What the benchmark of topics as tables counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.lake import CASES, Case, event_of, lake_lines, summary
from benchmarks.lake_engine import run_export
from tests.spark_sink.topic_server import topic_server


def test_an_export_and_the_bare_write_are_of_the_same_rows(tmp_path: Path) -> None:
    with topic_server() as server:
        server.port.create("t", queues=2)
        server.port.append("t", b"a", b"b")
        server.port.append("t", b"c", queue_id=1)
        found = run_export(server.address, "t", tmp_path, rounds=2)
    assert {kind: [run["rows"] for run in runs] for kind, runs in found.items()} == {
        "export": [3, 3],
        "bare": [3, 3],
    }
    assert all(run["seconds"] > 0 for runs in found.values() for run in runs)


def test_figures_are_medians_of_rounds() -> None:
    runs = [
        {"rows": 1000, "seconds": seconds, "cpu_seconds": cpu}
        for seconds, cpu in ((0.5, 0.003), (0.1, 0.001), (9, 0.002))
    ]
    found = summary(runs, body_bytes=100)
    assert (found["rows_per_second"], found["megabytes_per_second"]) == (2000, 0.2)
    assert found["cpu_us"] == pytest.approx(2)
    run = {**found, "server_us": None}
    figures = {case.name: {"export": run, "bare": run, "spark": run} for case in CASES}
    lines = lake_lines(figures)
    assert len(lines) == 1 + 4 * len(CASES)
    assert lines[2].split() == ["polymq", "export", "2,000", "0", "2.00"]


def test_each_event_has_an_id_of_its_own() -> None:
    events = [event_of(number, 100) for number in range(100)]
    assert len({event["id"] for event in events}) == 100
    assert {len(event["data"]) for event in events} == {100}


def test_topics_of_cases_are_their_own() -> None:
    """A case reads what it has filled, and nothing else."""
    topics: list[Case] = list(CASES)
    assert len({case.topic for case in topics}) == len(CASES)
