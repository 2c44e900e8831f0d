"""The cache of the folded state: written whole or not, and never trusted when damaged."""

from __future__ import annotations

from pathlib import Path

from broker.state_db import DECODED_COUNT, StateDb


def test_rows_are_replaced_and_deleted_with_their_position(tmp_path: Path) -> None:
    """The last save counts; None deletes an entity."""
    database = StateDb(tmp_path / "state.db")
    assert database.load() is None
    database.save(100, 1, [("topic", "a", 1), ("topic", "b", 2)])
    database.save(200, 2, [("topic", "a", {"x": 3}), ("topic", "b", None)])
    folded = database.load()
    assert folded is not None
    assert (folded.position, folded.epoch) == (200, 2)
    assert list(folded.take("topic")) == [("a", {"x": 3})]
    assert list(folded.take("topic")) == list(folded.take("queue")) == []


def test_many_rows_come_back_in_order_each_with_its_key(tmp_path: Path) -> None:
    """More than are decoded at a time, and a number of them that does not divide."""
    database = StateDb(tmp_path / "state.db")
    names = [f"{number:05d}" for number in range(2 * DECODED_COUNT + 7)]
    database.save(1, 1, [("queue", name, [name, {"n": int(name)}]) for name in names])
    folded = database.load()
    assert folded is not None
    assert list(folded.take("queue")) == [(name, [name, {"n": int(name)}]) for name in names]


def test_a_damaged_file_is_no_cache(tmp_path: Path) -> None:
    """Garbage where the database was: the log is folded from its beginning."""
    path = tmp_path / "state.db"
    database = StateDb(path)
    database.save(100, 1, [("topic", "a", 1)])
    database.discard()
    path.write_bytes(b"garbage" * 1000)
    assert database.load() is None


def test_others_may_not_read_it(tmp_path: Path) -> None:
    """It holds names of topics and clients: mode 0600."""
    path = tmp_path / "state.db"
    StateDb(path).save(1, 1, [])
    assert path.stat().st_mode & 0o777 == 0o600
