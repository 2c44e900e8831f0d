"""Which role a broker may have at its start: what its settings say, what it remembers, and what its
log knows of terms."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from polymq.core_log.epochs import term_of
from polymq.core_log.files import RealFiles
from polymq.open_store import open_store
from polymq.replicating import Replication, Turn
from polymq.replication_memory import Memory, above_term, fenced, recall, refusal, remember
from polymq.settings import Settings


def settings_of(directory: Path, role: str = "master") -> Settings:
    """Of a broker whose data is there."""
    secret = directory / "secret"
    secret.touch(mode=0o600)
    secret.write_text("sixteen bytes or more")
    return Settings.model_validate(
        {
            "server": {"data_directory": directory / "data"},
            "storage": {"segment_bytes": 1 << 20, "segments_ahead": "room"},
            "replication": {
                "role": role,
                "listen": "127.0.0.1:0",
                "master": "127.0.0.1:1",
                "secret_file": str(secret),
            },
        }
    )


def opened(settings: Settings) -> tuple[int, bool]:
    """The epoch of an opening, and whether it may append."""
    store = open_store(settings, files=RealFiles())
    leads = not refusal(settings)
    epoch = store.epoch
    store.close()
    return epoch, leads


def test_a_restart_stays_in_its_term_and_a_promotion_begins_one(tmp_path: Path) -> None:
    """By a command, which says that it was a slave, or by the settings alone."""
    settings = settings_of(tmp_path)
    assert [opened(settings)[0] for _ in range(2)] == [1, 2]
    remember(settings, Memory(role="slave"))
    assert above_term(settings) == 0
    assert opened(settings)[0] == 1_000_000_000
    remember(settings, Memory(role="master"))
    assert opened(settings)[0] == 1_000_000_001
    remember(settings, Memory(role="slave", heard=6))
    assert term_of(opened(settings)[0]) == 7


def test_who_heard_of_a_higher_term_leads_no_more(tmp_path: Path) -> None:
    """However often it is started; until it is promoted, or follows."""
    settings = settings_of(tmp_path)
    assert opened(settings) == (1, True)
    remember(settings, Memory(heard=1))
    for role in ("master", "fenced"):
        remember(settings, replace(recall(settings) or Memory(), role=role))
        assert fenced(settings) == 1
        assert "another one leads in term 1" in refusal(settings)
        assert opened(settings) == (1, False)
    remember(settings, Memory(role="slave", heard=1))
    assert opened(settings) == (2_000_000_000, True)
    assert fenced(settings) == 0


def test_a_slave_is_not_fenced(tmp_path: Path) -> None:
    """Its log gets the term that it heard of."""
    settings = settings_of(tmp_path, "slave")
    settings.server.data_directory.mkdir()
    remember(settings, Memory(role="fenced", heard=3))
    assert fenced(settings) == 0
    assert above_term(settings) is None
    assert "its master is 127.0.0.1:1" in refusal(settings)


@pytest.mark.parametrize("text", ["", "[]", '{"role": 1}', '{"heard": "2"}'])
def test_a_damaged_memory_is_none(tmp_path: Path, text: str) -> None:
    """What cannot be read says nothing of terms."""
    settings = settings_of(tmp_path)
    settings.server.data_directory.mkdir()
    (settings.server.data_directory / "replication.json").write_text(text)
    assert recall(settings) is None
    assert fenced(settings) == 0


def test_a_replaced_master_that_can_not_remember_it_takes_nothing_and_tries_again(
    tmp_path: Path,
) -> None:
    """While `replication.json` cannot be written it stays a master that has resigned: a turn now
    would open the log as a master again. When it can, the broker becomes a fenced one."""
    settings = settings_of(tmp_path)
    store = open_store(settings)
    in_the_way = settings.server.data_directory / "replication.json.part"
    in_the_way.mkdir()
    resigned: list[str] = []

    async def story() -> None:
        replication = Replication(settings, store, clock_ms=lambda: 0)
        core: Any = SimpleNamespace(resign=resigned.append)
        replication._engine = SimpleNamespace(core=core)  # type: ignore[assignment]
        replication._outranked(0)
        assert resigned == []
        replication._outranked(5)
        assert len(resigned) == 1
        assert not replication.ended.done()
        assert recall(settings) is None
        in_the_way.rmdir()
        replication._outranked(5)
        assert replication.ended.result() == Turn(role="master")

    try:
        asyncio.run(story())
    finally:
        store.close()
    memory = recall(settings)
    assert memory is not None
    assert memory.heard == 5
    assert fenced(settings) == 5
