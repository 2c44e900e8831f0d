"""A small part of `make crash`: the same states every time, and the explorer's own promises."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from random import Random

import pytest

from polymq.broker.queues.store import QueueStore
from polymq.core_log import recovery
from polymq.core_log.reader import LogReader
from polymq.core_log.recovery import Recovery
from polymq.core_log.segments import Segments
from tests.crash.disk import Disk, File
from tests.crash.explore import Explorer
from tests.crash.explore_engine import FIRST_NUMBER, EngineExplorer
from tests.crash.explore_faults import FaultsExplorer
from tests.crash.losses import EVERYTHING, NOTHING, Parts, Subset
from tests.crash.notes import Sum, read_notes, write_note
from tests.crash.seeds import explore


@pytest.mark.slow(seconds=15)
def test_states_of_a_seed() -> None:
    """Some hundreds of states, of every kind, and no violation."""
    tally = explore(3)
    assert tally.failures == []
    assert tally.states.total() > 200
    assert sum(count for kind, count in tally.states.items() if kind.startswith("engine")) > 10
    assert tally.deeper > 50
    assert tally.faults > 7
    assert sum(count for kind, count in tally.states.items() if kind.startswith("shortages")) > 20


@pytest.mark.slow(seconds=15)
def test_the_same_seed_gives_the_same_states() -> None:
    """Else a failure could not be repeated."""
    first, second = explore(5), explore(5)
    assert first == second
    assert len(first.images) > 100


@pytest.mark.slow
def test_one_state_can_be_repeated_alone() -> None:
    """With the same disk as among all others."""
    explored = ((Explorer, 130), (EngineExplorer, FIRST_NUMBER + 40), (FaultsExplorer, 20))
    for explorer, number in explored:
        whole = explorer(4).run()
        found = [
            alone
            for index in range(number, number + 8)
            if (alone := explorer(4, only=index).run()).images
        ]
        assert found
        for alone in found:
            assert alone.states.total() == 1
            assert alone.images <= whole.images


# --- broken on purpose: a suite that finds nothing proves nothing ---------------------------------


def failures(
    monkeypatch: pytest.MonkeyPatch,
    owner: object,
    name: str,
    value: object,
    seeds: Iterable[int] = range(4),
) -> list[str]:
    monkeypatch.setattr(owner, name, value)
    for seed in seeds:
        found = Explorer(seed).run().failures
        if found:
            return found
    return []


def test_a_sync_that_does_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert failures(monkeypatch, Segments, "sync", lambda self, start, end: None)


def test_a_torn_tail_that_is_not_cut_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert failures(monkeypatch, Recovery, "_cut", lambda self, segments, start, end: None)


def test_a_directory_that_is_not_synced_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def sync(self: Segments, start: int, end: int) -> None:
        for segment in self.between(start, end):
            self._files.fdatasync(segment.handle)

    assert failures(monkeypatch, Segments, "sync", sync)


def test_a_lost_atomic_batch_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan that ends within a batch keeps a part of it."""

    def scan(
        self: Recovery, reader: LogReader, start: int
    ) -> tuple[int, int, list[tuple[int, int]]]:
        walk = reader.walk(start)
        epochs = recovery.find_epochs(walk, self._marks)
        return walk.position, walk.reason, epochs

    found = failures(monkeypatch, Recovery, "_scan", scan, seeds=(7,))
    assert any("(b) a part of an atomic batch" in text for text in found)


def test_state_that_is_not_folded_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settlements that a start forgets: the state differs from that of state.db."""
    monkeypatch.setattr(QueueStore, "_apply_acks", lambda self, op: [])
    assert any(EngineExplorer(seed).run().failures for seed in range(6))


# --- the disk -------------------------------------------------------------------------------------


def test_what_a_power_cut_leaves_of_a_file() -> None:
    file = File()
    file.change(0, b"a" * 1000)
    file.sync()
    file.change(900, b"b" * 1000)
    assert file.left_by(NOTHING) == b"a" * 1000
    assert file.left_by(EVERYTHING) == b"a" * 900 + b"b" * 1000
    for seed in range(20):
        left = file.left_by(Parts(Random(seed), 0.5))
        assert left[:900] == b"a" * 900
        assert set(left) <= set(b"ab\0")


def test_all_subsets_of_a_few_changes_are_gone_through() -> None:
    disk = Disk()
    disk.make_directory("/d")
    handle = disk.open("/d/f", create=True)
    disk.pwritev(handle, (b"x" * 1024,), 0)
    count = Subset(0)
    disk.crash(count)
    assert count.asked == 1, "without its directory, nothing else can be there"
    images = {str(disk.crash(Subset(mask)).image()) for mask in range(16)}
    assert len(images) == 1 + 1 + 4 - 1  # no name, or with 0 to 2 sectors in any place


def test_a_failed_sync_leaves_clean_pages() -> None:
    file = File()
    file.change(0, b"a" * 512)
    file.fail_sync(NOTHING)
    assert bytes(file.data) == b"a" * 512
    file.sync()
    assert file.left_by(EVERYTHING) == b""
    file.drop_cache()
    assert bytes(file.data) == b""


# --- pieces ---------------------------------------------------------------------------------------


@pytest.mark.slow(seconds=15)
def test_a_night_in_pieces_adds_up(tmp_path: Path) -> None:
    """Each piece begins where the last one ended, and the sum is that of one run."""
    path = tmp_path / "notes"
    for seed in (40, 41):
        noted = read_notes(path, 40)
        assert (noted.first_seed + noted.seeds_count) == seed
        piece = Sum(seed)
        piece.add(EngineExplorer(seed).run(), 1, 0.5)
        write_note(path, piece)
    total = read_notes(path, 99)
    whole = Sum(40)
    for seed in (40, 41):
        whole.add(EngineExplorer(seed).run(), 1, 0.5)
    assert total == whole
