"""The cache of the folded state: written whole or not, and never trusted when damaged."""

from __future__ import annotations

import errno
import sqlite3
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from polymq.broker.state.database import DECODED_COUNT, StateDb, json_text


def test_rows_are_replaced_and_deleted_with_their_position(tmp_path: Path) -> None:
    """The last save counts; None deletes an entity."""
    database = StateDb(tmp_path / "state.db")
    assert database.load() is None
    database.save(100, 1, [("topic", "a", "1"), ("topic", "b", "2")])
    database.save(200, 2, [("topic", "a", '{"x":3}'), ("topic", "b", None)])
    folded = database.load()
    assert folded is not None
    assert (folded.position, folded.epoch) == (200, 2)
    assert list(folded.take("topic")) == [("a", {"x": 3})]
    assert list(folded.take("topic")) == list(folded.take("queue")) == []


def test_many_rows_come_back_in_order_each_with_its_key(tmp_path: Path) -> None:
    """More than are decoded at a time, and a number of them that does not divide."""
    database = StateDb(tmp_path / "state.db")
    names = [f"{number:05d}" for number in range(2 * DECODED_COUNT + 7)]
    database.save(1, 1, [("queue", name, f'["{name}",{{"n":{int(name)}}}]') for name in names])
    folded = database.load()
    assert folded is not None
    assert list(folded.take("queue")) == [(name, [name, {"n": int(name)}]) for name in names]


def test_a_damaged_file_is_no_cache(tmp_path: Path) -> None:
    """Garbage where the database was: the log is folded from its beginning."""
    path = tmp_path / "state.db"
    database = StateDb(path)
    database.save(100, 1, [("topic", "a", "1")])
    database.discard()
    path.write_bytes(b"garbage" * 1000)
    assert database.load() is None


def test_no_flipped_bit_makes_a_wrong_state(tmp_path: Path) -> None:
    """SQLite itself would give back most of these rows as if they were right. What is loaded is
    what was saved, or nothing."""
    path = tmp_path / "state.db"
    rows = [("topic", f"t{number}", f"[{number},{number + 1}]") for number in range(60)]
    StateDb(path).save(1234, 5, rows)
    sound = path.read_bytes()
    random = Random(7)
    refused = 0
    for _ in range(400):
        data = bytearray(sound)
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)
        path.write_bytes(data)
        folded = StateDb(path).load()
        if folded is None:
            refused += 1
        else:
            assert (folded.position, folded.epoch) == (1234, 5)
            found = [("topic", key, json_text(value)) for key, value in folded.take("topic")]
            assert sorted(found) == sorted(rows)
            assert not folded.rows
    assert refused > 50


def test_a_row_that_disappeared_is_missed(tmp_path: Path) -> None:
    """A page that is not reached any more takes its rows away without an error."""
    path = tmp_path / "state.db"
    database = StateDb(path)
    database.save(1, 1, [("topic", "a", "1"), ("topic", "b", "2")])
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM entity WHERE key='a'")
    database.save(2, 1, [("topic", "b", "3")])
    assert StateDb(path).load() is None


def test_a_file_that_was_removed_meanwhile_is_not_begun_anew(tmp_path: Path) -> None:
    """What has changed since the last save is not all: it would pass for a whole state."""
    path = tmp_path / "state.db"
    database = StateDb(path)
    database.save(1, 1, [("topic", "a", "1")])
    path.unlink()
    with pytest.raises(sqlite3.DatabaseError, match="removed"):
        database.save(2, 1, [("topic", "b", "2")])
    database.discard()
    database.save(3, 1, [("topic", "a", "1"), ("topic", "b", "2")])
    assert StateDb(path).load() is not None


def test_others_may_not_read_it(tmp_path: Path) -> None:
    """It holds names of topics and clients: mode 0600."""
    path = tmp_path / "state.db"
    StateDb(path).save(1, 1, [])
    assert path.stat().st_mode & 0o777 == 0o600


# --- errors of the file system --------------------------------------------------------------------


class Failing(StateDb):
    """A file system that refuses calls."""

    refuses_to_open = False
    refuses_to_remove = False

    def _open(self) -> sqlite3.Connection:
        if self.refuses_to_open:
            raise OSError(errno.EMFILE, "no descriptor")
        return super()._open()

    def _remove(self) -> None:
        if self.refuses_to_remove:
            raise OSError(errno.EIO, "it cannot be removed")
        super()._remove()


def test_a_file_that_can_not_be_opened_is_no_cache(tmp_path: Path) -> None:
    """For want of a descriptor, say. It ended a start with a traceback."""
    database = Failing(tmp_path / "state.db")
    database.save(1, 1, [("topic", "a", "1")])
    database.refuses_to_open = True
    assert database.load() is None
    database.refuses_to_open = False
    assert database.load() is not None


def test_a_file_that_can_not_be_removed_is_not_added_to(tmp_path: Path) -> None:
    """A start could not use it, so the state was made from the log, and saves know what changed
    since. The rows of the old file that are in none of them would come back as ghosts."""
    path = tmp_path / "state.db"
    StateDb(path).save(5, 1, [("topic", "a", "1"), ("topic", "ghost", "1")])
    database = Failing(path)
    database.refuses_to_remove = True
    database.discard()
    assert database.load() is None
    with pytest.raises(OSError, match="removed"):
        database.save(9, 2, [("topic", "a", "2")])
    found = StateDb(path).load()  # what another process finds is of one time
    assert found is not None
    assert (found.position, len(found.rows["topic"])) == (5, 2)
    database.refuses_to_remove = False
    database.save(9, 2, [("topic", "a", "2")])
    found = database.load()
    assert found is not None
    assert (found.position, found.rows) == (9, {"topic": [("a", "2")]})
