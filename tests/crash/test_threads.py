"""A small part of `make crash` with threads, and races that it has to find."""

from __future__ import annotations

from random import Random

import pytest

from polymq.core_log.flusher import Flusher
from polymq.core_log.next_segment import NextSegment
from polymq.core_log.settings import StoreSettings
from tests.crash.actor import Actor, open_store
from tests.crash.attempted import Attempted
from tests.crash.checks import check_contents
from tests.crash.disk import Disk
from tests.crash.explore_threads import ThreadsExplorer
from tests.crash.losses import NOTHING
from tests.crash.schedule import Schedule
from tests.crash.seeds import explore

ROOM = StoreSettings(
    segment_bytes=4096,
    segments_zeroed=False,  # else the next file's own sync of the directory would do
    chunk_bytes=1024,
    tail_bytes_max=2048,
    message_bytes_max=2000,
    index_file_entries=16,
)


def test_states_with_threads() -> None:
    """No violation; and the same seed gives the same turns, so a failure can be repeated."""
    first, second = ThreadsExplorer(3).run(), ThreadsExplorer(3).run()
    assert first.failures == []
    assert first.states.total() > 80
    assert first == second
    alone = ThreadsExplorer(3, only=20).run()
    assert alone.states.total() == 1
    assert alone.images <= first.images


@pytest.mark.parametrize(("seed", "state"), [(148114, 500131), (995576, 500161)])
def test_a_second_start_changed_what_the_first_had_left(seed: int, state: int) -> None:
    """Files of an index that was made again, and of which retention had taken all."""
    assert explore(seed, state, "").failures == []


@pytest.mark.parametrize("when", [1, 2, 3, 4])
def test_a_segment_begun_while_the_directory_is_synced_is_not_named_yet(when: int) -> None:
    """The flusher syncs the names of new segments. One that the loop begins meanwhile is not among
    them, so the next flush has to do it again."""
    disk = Disk()
    actor = Actor(disk, ROOM, Attempted())
    segments = actor.store._segments
    while segments.last.start == 0:
        actor.publish(3, 600)
    actor.write()
    actor.store.flusher.request()
    left = when
    rolled = 0

    def meanwhile() -> None:
        nonlocal left, rolled
        left -= 1
        if left == 0:
            begun = segments.last.start
            while segments.last.start == begun:
                actor.publish(3, 600)
            rolled = segments.last.start

    syncs = disk.sync_directory

    def sync_directory(path: str) -> None:
        disk.yields = meanwhile
        try:
            syncs(path)
        finally:
            disk.yields = None

    disk.sync_directory = sync_directory  # type: ignore[method-assign]
    actor.turn()
    actor.flush()
    assert actor.store.log.flushed > rolled
    found = open_store(disk.crash(NOTHING), ROOM)
    assert check_contents(found, actor.attempted) == actor.attempted.count
    assert bool(rolled) == (when <= 3)


def test_a_flusher_that_is_not_woken_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then all threads wait, each for another one."""
    monkeypatch.setattr(Flusher, "_awaken", lambda self: None)
    assert any("wait" in text for text in ThreadsExplorer(1).run().failures)


def test_a_file_taken_under_its_writer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros that are written without a look whether the log has taken the file meanwhile."""

    def zero(self: NextSegment, serial: int) -> None:
        handle, files = self._work_handle, self._files
        assert handle is not None
        files.sync_directory(self._directory)
        while self._written < self._segment_bytes and self._handle is not None:
            files.pwritev(handle, (bytes(512),), self._written)
            self._written += 512
        files.fdatasync(handle)
        self._synced = self._written
        self._end_work()

    monkeypatch.setattr(NextSegment, "_zero_slice", zero)
    assert any(ThreadsExplorer(seed).run().failures for seed in range(4))


# --- the schedule ---------------------------------------------------------------------------------


def count_to_two(seed: int) -> int:
    """Two threads that add one without a lock."""
    schedule = Schedule(Random(seed), 0.5)
    total = [0]

    def add() -> None:
        schedule.point()
        found = total[0]
        schedule.point()
        total[0] = found + 1

    tasks = [schedule.spawn(add, "adder") for _ in range(2)]
    schedule.wait(lambda: all(task.done for task in tasks))
    return total[0]


def test_a_race_is_found_by_some_seeds_and_by_these_always() -> None:
    found = [count_to_two(seed) for seed in range(30)]
    assert set(found) == {1, 2}
    assert found == [count_to_two(seed) for seed in range(30)]


def test_what_a_thread_raises_is_raised_in_the_first_one() -> None:
    schedule = Schedule(Random(1), 0.5)

    def fail() -> None:
        raise ValueError("of the thread")

    schedule.spawn(fail, "failing")
    with pytest.raises(ValueError, match="of the thread"):
        schedule.wait(lambda: False)


def test_who_is_killed_ends_where_it_waits() -> None:
    schedule = Schedule(Random(1), 1.0)
    reached = []

    def work() -> None:
        reached.append("the wait")
        try:
            schedule.wait(lambda: False)
            reached.append("what is behind it")
        finally:
            reached.append("the end")

    schedule.spawn(work, "waiting")
    schedule.wait(lambda: bool(reached))
    schedule.end_others()
    assert reached == ["the wait", "the end"]
