"""A small part of `make crash` with upkeep and SQLite, and mistakes that it has to find."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from broker.state_db import Row, StateDb, json_text
from broker.state_saving import StateSaving
from polymq.upkeep import Upkeep
from tests.crash.explore_upkeep import UpkeepExplorer
from tests.crash.sqlite_files import NAME, CrashingStateDb, write_image


@pytest.mark.slow
def test_states_with_upkeep() -> None:
    """No violation; and the same seed gives the same states, so a failure can be repeated."""
    whole = UpkeepExplorer(1).run()
    assert whole.failures == []
    assert whole.states.total() > 40
    alone = [tally for place in range(8) if (tally := UpkeepExplorer(1, only=place).run()).images]
    assert alone
    for tally in alone:
        assert tally.states.total() == 1
        assert tally.images <= whole.images


def failures() -> list[str]:
    for seed in range(2, 6):
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


# --- what a crash leaves of SQLite's files --------------------------------------------------------


def test_a_crash_leaves_the_state_before_a_saving_or_behind_it(tmp_path: Path) -> None:
    """Whatever it leaves of the files, at each stage; and in the end what was saved."""
    files, found = tmp_path / "files", tmp_path / "found"
    files.mkdir()
    found.mkdir()
    random = Random(1)
    database = CrashingStateDb(files, random, 0.0)
    rows = {f"k{number}": "[" + "1," * 200 + "1]" for number in range(60)}
    database.save(1, 1, [("topic", key, value) for key, value in rows.items()])
    seen = set()

    def look() -> None:
        for kill in (False, False, False, True):
            image = database.left_by_kill() if kill else database.left_by_power_cut(random)
            write_image(found, image)
            left = StateDb(found / NAME).load()
            assert left is not None
            texts = {text for _, text in left.rows["topic"]}
            assert texts == ({"2"} if left.position == 2 else set(rows.values()))
            seen.add((database._stage, left.position))

    database.on_change = look
    database.save(2, 1, [("topic", key, "2") for key in rows])
    look()
    assert seen == {("writing", 1), ("committed", 1), ("committed", 2), ("closed", 2), ("", 2)}


def test_a_saving_that_fails_changes_nothing(tmp_path: Path) -> None:
    database = CrashingStateDb(tmp_path, Random(1), 0.0)
    database.save(1, 1, [("topic", "a", "1")])
    database._failing = 1.0
    with pytest.raises(Exception, match="disk I/O"):
        database.save(2, 1, [("topic", "a", "2")])
    left = database.load()
    assert left is not None
    assert (left.position, left.rows["topic"]) == (1, [("a", "1")])
