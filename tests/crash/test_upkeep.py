"""A small part of `make crash` with upkeep and SQLite, and mistakes that it has to find."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from random import Random

import pytest

from polymq.broker.recovery.saving import StateSaving
from polymq.broker.state.database import Row, StateDb, json_text
from polymq.upkeep import Upkeep
from tests.crash.disk import Disk
from tests.crash.explore_upkeep import UpkeepExplorer
from tests.crash.faults import CAN_GIVE, Fault
from tests.crash.losses import POWER_CUTS, Parts
from tests.crash.sqlite_disk import DiskStateDb, is_reachable

pytestmark = pytest.mark.skipif(not is_reachable(), reason="SQLite is no library of its own here")


@pytest.mark.slow
def test_states_with_upkeep() -> None:
    """No violation; and the same seed gives the same states, so a failure can be repeated."""
    whole = UpkeepExplorer(1).run()
    assert whole.failures == []
    assert whole.states.total() > 40
    alone = [tally for index in range(8) if (tally := UpkeepExplorer(1, only=index).run()).images]
    assert alone
    for tally in alone:
        assert tally.states.total() == 1
        assert tally.images <= whole.images


def failures() -> list[str]:
    for seed in range(2, 8):
        found = UpkeepExplorer(seed).run().failures
        if found:
            return found
    return []


@pytest.mark.slow
def test_state_that_is_saved_before_the_log_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start would make it again from the log, so that alone shows nothing."""

    async def at_once(self: Upkeep, position: int) -> None:
        return

    monkeypatch.setattr(Upkeep, "_until_flushed", at_once)
    assert any("(f) state.db is of" in text for text in failures())


@pytest.mark.slow
def test_rows_that_are_made_too_late_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of one position that a worker makes when the engine has gone on."""

    def late(self: StateSaving) -> Iterator[Row]:
        for kind, key in self._rows:
            yield kind, key, json_text(self._row(kind, key))
        yield "number", "next", json_text(self._next_number)

    monkeypatch.setattr(StateSaving, "_all_rows", late)
    assert any("(d) " in text for text in failures())


# --- SQLite on the simulated disk -----------------------------------------------------------------

OLD = {f"k{number}": "[" + "1," * 200 + "1]" for number in range(60)}
"""Some pages of rows, all of which the second saving replaces."""


def saved_once() -> DiskStateDb:
    disk = Disk()
    disk.make_directory("/data")
    database = DiskStateDb(disk)
    database.save(1, 1, [("topic", key, text) for key, text in OLD.items()])
    return database


def save_again(database: StateDb) -> None:
    database.save(2, 1, [("topic", key, "2") for key in OLD])


def state_of(disk: Disk) -> int:
    """The position of the state that is found, all of which has to be of that position; 0 for
    none."""
    found = DiskStateDb(disk).load()
    if found is None:
        return 0
    texts = {text for _, text in found.rows["topic"]}
    assert texts == ({"2"} if found.position == 2 else set(OLD.values()))
    return found.position


def test_a_crash_leaves_the_state_before_a_saving_or_behind_it() -> None:
    """At whatever call of SQLite power is cut, and whatever is left of what was not synced."""
    database = saved_once()
    random = Random(1)
    seen = set()

    def look() -> None:
        seen.add(state_of(database.disk.kill()))
        for loss in POWER_CUTS.values():
            seen.add(state_of(database.disk.crash(loss(database.disk, random))))

    database.disk.sync_directory("/")
    database.disk.on_change = look
    save_again(database)
    look()
    assert seen == {1, 2}


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EMFILE, errno.ENOMEM])
def test_a_saving_that_meets_an_error_changes_nothing(code: int) -> None:
    """At whichever of SQLite's calls: it fails and the state of before is there, or it is done. A
    sync that failed may cost the state, as an error while it is read does, but never a part."""
    failed = 0
    for number in range(200):
        database = saved_once()
        disk = database.disk
        fault = NthOfAll(code, number)
        disk.fault = fault
        try:
            save_again(database)
        except (sqlite3.Error, OSError):
            failed += 1
            allowed = {1}
        else:
            allowed = {2}
        disk.fault = None
        if fault.failed == 0:
            assert number > 3
            break
        assert state_of(disk.kill()) in allowed
        for loss in POWER_CUTS.values():
            assert state_of(disk.crash(loss(disk, Random(number)))) in {0, 1, 2}
        save_again(database)
        assert state_of(disk.kill()) == 2
    assert failed >= 2


class NthOfAll(Fault):
    """One call fails, behind so many that can fail and do not."""

    def __init__(self, error: int, skipped: int) -> None:
        super().__init__(
            error=error,
            calls=[call for call, given in CAN_GIVE.items() if error in given],
            first=0,
            count=1,
            random=Random(skipped),
            loss=Parts(Random(skipped), 0.5),
        )
        self._skipped = skipped

    def _draw(self, call: str) -> int:
        error = super()._draw(call)
        if error and self._skipped:
            self._skipped -= 1
            return 0
        return error


def test_a_process_that_is_killed_in_a_saving_rolls_nothing_back() -> None:
    """Threads that end leave SQLite as it is: what comes behind never reaches the disk."""

    class Killed(BaseException):
        pass

    database = saved_once()
    disk = database.disk
    left = 8

    def kill() -> None:
        nonlocal left
        left -= 1
        if not left:
            raise Killed

    disk.on_change = kill
    count = disk.changes_count
    with pytest.raises(Killed):
        save_again(database)
    assert disk.changes_count == count + 8
    assert disk.open_count == 0
    disk.on_change = None
    assert state_of(disk) == 1
