"""What speaks against promoting a broker: what it knows itself, and what the others say."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from polymq.acknowledging import Acknowledging
from polymq.core_log.acknowledged import EVERYTHING
from polymq.core_log.files import RealFiles
from polymq.errors import Failure
from polymq.net.connection import Context
from polymq.open_store import open_store
from polymq.promotion import Copy, check_promotion, objections
from polymq.replication.server import ReplicationServer
from polymq.replication_memory import Memory, remember
from polymq.replication_settings import identity_of
from polymq.settings import Settings
from tests.harness.broker import Broker, InlineReaders
from tests.replication.test_fencing import opened, settings_of

WHOLE = Copy(epoch=1, end=1000, master_flushed=1000, whole=True, heard_ms=1_790_000_000_000)
NOBODY = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("changes", "doubt"),
    [
        ({}, ""),
        ({"master_flushed": 900}, ""),
        ({"end": None}, ""),
        ({"epoch": 0, "end": 0, "master_flushed": 0}, "never followed a master"),
        ({"master_flushed": 4211}, "lacks 3,211 bytes that its master had on its disk"),
        ({"master_flushed": 4211}, "positions 1,000 to"),
        ({"master_flushed": 4211}, "stored at 2026-09-21 14:13:20 UTC or before"),
        ({"whole": False}, "cannot know what its master accepted since 2026-09-21 14:13:20 UTC"),
        ({"whole": False, "heard_ms": 0}, "since an unknown time"),
        ({"whole": False, "following": True}, "it follows its master, which still"),
        ({"led_in_term": 3}, "another broker leads in term 3"),
    ],
)
def test_what_a_slave_knows_itself(changes: dict[str, Any], doubt: str) -> None:
    """That it lacks something, or cannot know whether it does."""
    found = replace(WHOLE, **changes).doubt()
    assert doubt in found
    assert bool(found) is bool(doubt)


def group_of(directory: Path, master: str, *peers: str) -> Settings:
    """A slave's settings."""
    settings = settings_of(directory, "slave")
    changes = {"master": master, "peers": list(peers)}
    changed = settings.replication.model_copy(update=changes)
    return settings.model_copy(update={"replication": changed})


def ask(
    broker: Broker, directory: Path, *, follows: str, copy: Copy, is_master: bool = False
) -> list[str]:
    """What is said of a promotion in a group with this broker."""

    async def scenario() -> list[str]:
        context = Context(asyncio.get_running_loop())
        server = ReplicationServer(
            context=context,
            store=broker.store,
            readers=InlineReaders(),
            identity=identity_of(settings_of(directory)),
            points=lambda: (0, 0),
            replicas=broker.engine.core.replicas,
            outranked=lambda _: None,
            new_nonce=lambda: "aa",
            name="other",
            follows=follows,
        )
        address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
        try:
            group = (address,) if is_master else (NOBODY, address)
            return await objections(group_of(directory, *group), copy)
        finally:
            await server.stop()
            context.close()

    return asyncio.run(scenario())


def test_a_master_that_answers_is_not_replaced(master: Broker, tmp_path: Path) -> None:
    """Whether it is the slave's own or another one; one of an earlier term does not count."""
    for is_master in (True, False):
        (found,) = ask(master, tmp_path, follows="", copy=WHOLE, is_master=is_master)
        assert "answers, in term 0: stop it first" in found
    assert ask(master, tmp_path, follows="", copy=replace(WHOLE, epoch=1_000_000_000)) == []


def test_the_slave_that_has_most_is_promoted(master: Broker, tmp_path: Path) -> None:
    """Another slave says how far its log goes, and in which epoch."""
    end, epoch = master.store.log.flushed, master.store.epoch
    level = replace(WHOLE, epoch=epoch, end=end, master_flushed=end)
    follows = "ask at the master"
    assert ask(master, tmp_path, follows=follows, copy=level) == []
    assert ask(master, tmp_path, follows=follows, copy=replace(level, end=end + 1)) == []
    behind = replace(level, end=end - 1, master_flushed=end - 1)
    (found,) = ask(master, tmp_path, follows=follows, copy=behind)
    assert "the slave 'other' (127.0.0.1:" in found
    assert f"up to position {end:,}" in found
    earlier = replace(level, epoch=epoch - 1, end=end + 100)
    assert ask(master, tmp_path, follows=follows, copy=replace(earlier, epoch=epoch)) == []


def test_a_slave_that_does_not_answer_may_have_more(tmp_path: Path) -> None:
    """The master that is gone need not answer, everybody else has to."""

    async def found(*group: str) -> list[str]:
        return await objections(group_of(tmp_path, *group), WHOLE)

    assert asyncio.run(found(NOBODY)) == []
    (text,) = asyncio.run(found(NOBODY, "127.0.0.1:2"))
    assert "127.0.0.1:2 (replication.peers) does not answer" in text


def test_the_settings_alone_promote_only_without_doubt(tmp_path: Path) -> None:
    """A slave that its settings call a master is looked at before its log is opened; one that an
    operator has promoted is not."""
    settings = settings_of(tmp_path)
    opened(settings)
    for memory, refused in (
        (Memory(role="master"), False),
        (Memory(role="slave", whole=True), False),
        (Memory(role="slave"), True),
        (Memory(role="slave", promoted=True), False),
        (Memory(role="fenced", heard=4), False),
    ):
        remember(settings, memory)
        if refused:
            with pytest.raises(Failure, match="polymq broker promote --force"):
                asyncio.run(check_promotion(settings))
        else:
            asyncio.run(check_promotion(settings))


def test_all_that_a_slave_has_counts_as_acknowledged(tmp_path: Path) -> None:
    """From the moment that it follows, over restarts. What it had promised as a master counts until
    then, and when it is promoted all that it has by then."""
    settings = settings_of(tmp_path)
    store = open_store(settings)
    end = store.log.flushed
    directory = str(settings.server.data_directory / "store")

    def role(*, leads: bool) -> Acknowledging:
        return Acknowledging(
            RealFiles(), directory, store, leads=leads, disks=2, failed=lambda _: None
        )

    try:
        for leads, follows, position in (
            (True, False, end),
            (False, False, end),
            (False, True, EVERYTHING),
            (False, False, EVERYTHING),
            (True, False, end),
        ):
            found = role(leads=leads)
            if follows:
                found.follow()
            found.close()
            assert (found.position, found.value.position) == (position, position)
    finally:
        store.close()
