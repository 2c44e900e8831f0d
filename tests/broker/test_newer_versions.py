"""A log that a newer version wrote: the start ends with a sentence, and nothing is guessed."""

from __future__ import annotations

from pathlib import Path

import pytest

from polymq.broker.errors import UnknownChange
from polymq.broker.state.database import StateDb
from polymq.core_log.errors import StoreError
from tests.harness.broker import Broker


def test_a_change_that_only_a_newer_version_knows(tmp_path: Path) -> None:
    """The text names it, and says what to do; it is an error of the store, which has an exit
    code."""
    broker = Broker(tmp_path / "data", with_state_db=False)
    broker.engine.core.journal.handle("newer+", lambda op: [])
    broker.engine.core.journal.write({"op": "newer+"})
    broker.step()
    with pytest.raises(
        UnknownChange, match=r"has the change 'newer\+', which .* Start that"
    ) as error:
        broker.restart()
    assert isinstance(error.value, StoreError)
    assert "\n" not in str(error.value)


def test_rows_that_only_a_newer_version_knows(tmp_path: Path) -> None:
    """The cached state stands for a part of the log that is not read again."""
    broker = Broker(tmp_path / "data")
    broker.engine.users.add("ann", "x")
    broker.step()
    broker.stop()
    database = StateDb(tmp_path / "data" / "state.db")
    folded = database.load()
    assert folded is not None
    database.save(folded.position, folded.epoch, [("newer", "key", "1")])
    with pytest.raises(UnknownChange, match="rows of the kind 'newer'"):
        broker.open()
