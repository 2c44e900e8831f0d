"""The answer of `/metrics`: the same as prometheus-client's, in steps, and made once for all who
ask at a time."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import prometheus_client
import pytest

from polymq import steps
from polymq.core_log.durations import Durations
from polymq.metrics.exposition import SAMPLES_AT_ONCE, Exposition, Steps
from polymq.metrics.registry import Probe, counter, gauge, histogram
from tests.polymq.metrics.registries import make_registry

SLICE_MAX = 0.005
"""Seconds that one answer may hold the loop at a time."""
LOOK_SECONDS = 0.0005
"""What a step of a survey takes here, several times what it takes."""
SAMPLE_SECONDS = 0.00002
"""What a series takes to be rendered here, likewise."""


class Clock:
    """Moves by what the work costs."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Survey:
    """Looks at very much."""

    def __init__(self, clock: Clock, step_count: int = 3_000, series_count: int = 5_000) -> None:
        self._clock = clock
        self._step_count = step_count
        self._series_count = series_count
        self.looks = 0

    def steps(self) -> Steps:
        self.looks += 1
        for _ in range(self._step_count):
            self._clock.now += LOOK_SECONDS
            yield None

    def probes(self) -> list[Probe]:
        many: dict[tuple[str, ...], float] = {
            (str(number), "x"): number for number in range(self._series_count)
        }
        return [
            gauge(
                "polymq_many",
                "One for each of very many.",
                lambda: many,
                labels=("name", "topic"),
            )
        ]


def plain_probes() -> list[Probe]:
    durations = Durations((0.1, 1.0))
    durations.observe(0.5, 7)
    return [
        counter("polymq_all", "All.", lambda: 3),
        gauge("polymq_none", "Of nothing yet.", dict, label="reason"),
        gauge("polymq_escaped", "Text\nin two lines.", lambda: {'a"b\\\n': 1.5}, label="name"),
        histogram("polymq_some_seconds", "Durations.", durations),
    ]


def lines(text: bytes) -> list[bytes]:
    """Without those that differ from moment to moment."""
    return [line for line in text.splitlines() if b"polymq_" in line]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of steps, which rendering moves, too."""
    made = Clock()
    monkeypatch.setattr(steps, "perf_counter", made)
    render = prometheus_client.generate_latest

    def slow(part: Any) -> bytes:
        for metric in part.collect():
            assert len(metric.samples) <= SAMPLES_AT_ONCE
            made.now += SAMPLE_SECONDS * len(metric.samples)
        return render(part)

    monkeypatch.setattr(prometheus_client, "generate_latest", slow)
    return made


def test_the_answer_is_that_of_prometheus_client(clock: Clock) -> None:
    """Also where a metric has very many series: what describes it comes once."""
    survey = Survey(clock, series_count=3 * SAMPLES_AT_ONCE + 1)
    probes = plain_probes()
    expected = prometheus_client.exposition.generate_latest(
        make_registry([*probes, *survey.probes()])
    )
    answer = asyncio.run(Exposition(probes, [survey]).text())
    assert lines(answer) == lines(expected)
    assert answer.count(b"# TYPE polymq_many gauge\n") == 1
    assert b"process_open_fds" in answer
    assert b"python_info" in answer


def test_no_answer_holds_the_loop(clock: Clock) -> None:
    """Others have their turn after some milliseconds at the latest, by a clock that the work
    moves."""
    survey = Survey(clock)

    async def scenario() -> list[float]:
        answer = asyncio.ensure_future(Exposition(plain_probes(), [survey]).text())
        turns = [clock.now]
        while not answer.done():
            await asyncio.sleep(0)
            turns.append(clock.now)
        return turns

    turns = asyncio.run(scenario())
    assert turns[-1] > 1.5, "all of it was done"
    slices = [after - before for before, after in itertools.pairwise(turns)]
    assert max(slices) <= SLICE_MAX


def test_who_asks_meanwhile_gets_the_same_answer(clock: Clock) -> None:
    """The work is done once. Who has gone leaves the others theirs, and who comes later has a new
    one."""
    survey = Survey(clock)
    exposition = Exposition([], [survey])

    async def scenario() -> None:
        asking = [asyncio.ensure_future(exposition.text()) for _ in range(5)]
        await asyncio.sleep(0)
        asking[0].cancel()
        found = await asyncio.gather(*asking, return_exceptions=True)
        assert isinstance(found[0], asyncio.CancelledError)
        assert all(one is found[1] for one in found[1:])
        assert survey.looks == 1
        await exposition.text()
        assert survey.looks == 2

    asyncio.run(scenario())


def test_a_stop_gives_up_what_is_being_made(clock: Clock) -> None:
    async def scenario() -> None:
        exposition = Exposition([], [Survey(clock)])
        asking = asyncio.ensure_future(exposition.text())
        await asyncio.sleep(0)
        await exposition.stop()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await exposition.stop()

    asyncio.run(scenario())
