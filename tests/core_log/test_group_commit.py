"""A flush waits a moment for those who will surely join it, and for nobody else."""

from __future__ import annotations

import select
import time

import pytest

from polymq.core_log import flusher as flusher_module
from polymq.core_log.flusher import Flusher
from polymq.core_log.group_commit import REST_FLUSHES, RUNS_MIN, TRIES_MAX, GroupCommit
from polymq.core_log.settings import StoreSettings
from tests.harness.files import HeldFiles, MemoryFiles
from tests.harness.stores import Bench, numbered

LONG: float = 20.0
"""Seconds that a flush is put off where a test wants to see that it is."""
ROOMY = StoreSettings(segment_bytes=1 << 20)


def readable(flusher: Flusher, seconds: float) -> bool:
    return bool(select.select([flusher.fileno()], [], [], seconds)[0])


def publish_and_request(bench: Bench, runs: int) -> None:
    """So many loop iterations with one run each."""
    for _ in range(runs):
        bench.publish(numbered(len(bench.sent), 1))
        bench.store.log.write()
        bench.store.flusher.request()


def flush_of(files: HeldFiles, runs: int) -> Bench:
    """A store whose last flush covered so many runs, and was collected."""
    bench = Bench(files, settings=ROOMY)
    for number in range(runs):
        bench.publish(numbered(number, 1))
    bench.store.log.write()
    bench.store.flusher.request()
    assert readable(bench.store.flusher, 30)
    assert bench.store.flusher.collect() == bench.store.log.written
    return bench


@pytest.mark.parametrize("runs", [0, 1, RUNS_MIN - 1])
def test_a_flush_behind_a_small_one_is_not_put_off(runs: int) -> None:
    group_commit = GroupCommit()
    group_commit.flushed(runs)
    group_commit.reported(runs)
    assert not group_commit.open
    assert not group_commit.waits(runs)


def test_a_group_is_complete_when_nearly_as_many_came_as_were_served() -> None:
    """Behind 40 runs, of which 100 were appended when their acks left: 35 of 40 are enough."""
    group_commit = GroupCommit()
    group_commit.flushed(40)
    assert group_commit.waits(99), "what came before the acks left says nothing"
    group_commit.reported(100)
    group_commit.reported(120)  # somebody only looks where the flusher stands
    assert group_commit.waits(134)
    assert not group_commit.waits(135)
    group_commit.complete_in_time()
    assert not group_commit.waits(100)


def test_clients_that_do_not_come_back_are_not_waited_for_again_and_again() -> None:
    group_commit = GroupCommit()
    for _ in range(TRIES_MAX):
        group_commit.flushed(50)
        assert group_commit.open
        group_commit.given_up()
    for _ in range(REST_FLUSHES):
        group_commit.flushed(50)
        assert not group_commit.open
    group_commit.flushed(50)
    assert group_commit.open


def test_one_success_forgets_the_failures_before() -> None:
    group_commit = GroupCommit()
    for _ in range(3 * TRIES_MAX):
        for end in [group_commit.given_up] * (TRIES_MAX - 1) + [group_commit.complete_in_time]:
            group_commit.flushed(50)
            assert group_commit.open
            end()


def test_one_sync_serves_all_who_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen clients got their acks by one flush. Their next messages come one by one, and the
    disk works once: when the fourteenth is there."""
    monkeypatch.setattr(flusher_module, "WAIT_SECONDS_MAX", LONG)
    files = HeldFiles(MemoryFiles())
    bench = flush_of(files, 16)
    before = files.syncs_count
    publish_and_request(bench, 13)
    assert not readable(bench.store.flusher, 0.05)
    publish_and_request(bench, 1)
    assert readable(bench.store.flusher, 10)
    assert bench.store.flusher.collect() == bench.store.log.written
    assert files.syncs_count == before + 1


def test_what_came_during_a_flush_joins_those_who_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else two groups of clients take turns, and each waits for the flush of the other."""
    monkeypatch.setattr(flusher_module, "WAIT_SECONDS_MAX", LONG)
    files = HeldFiles(MemoryFiles())
    bench = Bench(files, settings=ROOMY)
    log, flusher = bench.store.log, bench.store.flusher
    for position in range(10):
        bench.publish(numbered(position, 1))
    log.write()
    files.block()
    flusher.request()
    files.wait_until_held()
    publish_and_request(bench, 10)
    files.release()
    assert readable(flusher, 10)
    assert flusher.collect() < log.written
    assert not readable(flusher, 0.05), "the second group was flushed by itself"
    publish_and_request(bench, 9)
    assert readable(flusher, 10)
    assert flusher.collect() == log.written


def test_a_group_that_stays_incomplete_is_flushed_all_the_same() -> None:
    bench = flush_of(HeldFiles(MemoryFiles()), 16)
    publish_and_request(bench, 1)
    assert readable(bench.store.flusher, 10)
    assert bench.store.flusher.collect() == bench.store.log.written


def test_a_request_behind_a_group_of_which_nobody_came_is_heard() -> None:
    bench = flush_of(HeldFiles(MemoryFiles()), 16)
    for _ in range(200):  # before, while and after the thread gives up
        publish_and_request(bench, 1)
        assert readable(bench.store.flusher, 10)
        assert bench.store.flusher.collect() == bench.store.log.written


def test_stop_does_not_wait_for_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flusher_module, "WAIT_SECONDS_MAX", LONG)
    bench = flush_of(HeldFiles(MemoryFiles()), 16)
    publish_and_request(bench, 1)
    began = time.monotonic()
    bench.store.flusher.stop()
    assert time.monotonic() - began < LONG / 2
    assert bench.store.log.flushed == bench.store.log.written
