"""What a start makes of the rows of `state.db`: the same queues, bindings and topics as before."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import Any

import pytest

from polymq.broker.queues.queue import Queue
from polymq.broker.state import database
from polymq.broker.state.database import StateDb
from polymq.broker.state.journal import STATE_TOPIC
from tests.harness.broker import Broker

OWNER = object()


def declare(broker: Broker, name: str) -> None:
    broker.port.queues.declare(
        name, durable=True, exclusive=False, auto_delete=False, arguments={}, owner=OWNER
    )


def bindings(broker: Broker) -> dict[str, dict[Any, Any]]:
    return {name: dict(found.bindings) for name, found in broker.engine.exchanges.queues.items()}


def targets(broker: Broker, *address: str) -> set[str]:
    """The names of the queues that a message with these words goes to."""
    found = broker.engine.topics.router.match(address)
    return {queue.name for queue in found if isinstance(queue, Queue)}


def rows(broker: Broker, kind: str) -> dict[str, Any]:
    """What `state.db` says of all entities of a kind."""
    folded = StateDb(broker.directory / "state.db").load()
    assert folded is not None
    return dict(folded.take(kind))


def fill(broker: Broker) -> None:
    """A queue that is bound by its name only, one with more bindings, a named subscription."""
    declare(broker, "plain")
    declare(broker, "more")
    broker.port.exchanges.bind_queue("more", "amq.topic", "sport.#", {}, owner=OWNER)
    broker.port.exchanges.bind_queue("more", "amq.direct", "key", {}, owner=OWNER)
    broker.port.queues.declare_subscription("hook", ("feed", "news"))


def check(broker: Broker, before: dict[str, dict[Any, Any]]) -> None:
    """The bindings are those from before, and messages take their ways."""
    assert bindings(broker) == before
    assert targets(broker, "plain") == {"plain"}
    assert targets(broker, "more") == {"more"}
    assert targets(broker, "sport", "ball") == {"more"}
    assert targets(broker, "amq.direct", "key") == {"more"}
    assert targets(broker, "feed", "news") == {"%SUB%hook"}
    assert targets(broker, "%SUB%hook") == set()


def test_bindings_come_back_from_their_rows(broker: Broker) -> None:
    """The binding by a queue's own name is a flag of its row: there are as many as queues."""
    fill(broker)
    before = bindings(broker)
    broker.restart()
    check(broker, before)
    assert broker.engine.fold.count == 0, "the log was folded, so no row was looked at"
    assert "bindings" not in rows(broker, "queue")["plain"]
    broker.port.exchanges.unbind_queue("more", "amq.topic", "sport.#", {}, owner=OWNER)
    broker.restart()
    assert targets(broker, "sport", "ball") == set()


def test_rows_of_an_earlier_version_are_read(broker: Broker) -> None:
    """They list the binding by the queue's own name with all others."""
    fill(broker)
    before = bindings(broker)
    broker.save()
    broker.store.close()
    path = broker.directory / "state.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        total = 0
        for kind, key, text, _ in connection.execute("SELECT * FROM entity").fetchall():
            value = json.loads(text)
            if kind == "queue":
                value.pop("by_name", None)
                listed = [[list(name), list(address)] for name, address in before[key].items()]
                value["bindings"] = listed
            text = json.dumps(value, separators=(",", ":"))
            crc = database._checksum(kind, key, text)
            total += crc
            connection.execute(
                "UPDATE entity SET value=?, crc=? WHERE kind=? AND key=?", (text, crc, kind, key)
            )
        ((position, epoch),) = connection.execute("SELECT position, epoch FROM folded").fetchall()
        crc = database._checksum(position, epoch, total)
        connection.execute("UPDATE folded SET version=2, total=?, crc=?", (total, crc))
    broker.open()
    assert broker.engine.fold.count == 0
    check(broker, before)
    declare(broker, "later")
    broker.restart()
    check(broker, {**before, "later": {("", "later", "{}"): ("later",)}})


def test_rows_of_a_version_to_come_are_not_read(broker: Broker) -> None:
    """Nobody knows what they mean: the log is folded."""
    fill(broker)
    before = bindings(broker)
    broker.stop()
    with closing(sqlite3.connect(broker.directory / "state.db")) as connection, connection:
        connection.execute("UPDATE folded SET version=?", (database.SCHEMA_VERSION + 1,))
    broker.open()
    assert broker.engine.fold.count > 0
    check(broker, before)


@pytest.mark.parametrize("end", ["restart", "kill"])
def test_settings_of_topics_are_not_shared(broker: Broker, end: str) -> None:
    """Topics without settings of their own have one empty table in common: a change is of one."""
    for name in ("one", "two", "three"):
        broker.port.topics.create(name, 2)
    broker.port.topics.set("one", {"retention_seconds": "60"})
    broker.port.topics.set("two", {"retention_seconds": "60"})
    broker.port.topics.set("two", {"retention_seconds": "default"})
    broker.step()
    if end == "restart":
        broker.restart()
    else:
        broker.kill()
        broker.open()
    broker.port.topics.set("three", {"retention_bytes": "5"})
    own = {
        name: dict(topic.own_values)
        for name, topic in broker.engine.topics.topics.items()
        if name != STATE_TOPIC
    }
    assert own == {"one": {"retention_seconds": 60}, "two": {}, "three": {"retention_bytes": 5}}


def test_a_trimmed_queue_of_a_topic_begins_there_after_a_restart(broker: Broker) -> None:
    """Only the queue that was trimmed: the others begin where they began."""
    broker.port.topics.create("t", 3)
    for _ in range(4):
        broker.publish(broker.template("t"), b"x")
    broker.step()
    (at,) = [n for n, q in enumerate(broker.engine.topics.topics["t"].queues) if q.flushed]
    broker.engine.topics.trim([["t", at, 3]])
    broker.step()
    broker.restart()
    topic = broker.engine.topics.topics["t"]
    assert [queue.index.first_offset for queue in topic.queues][at] == 3
    assert sum(queue.index.first_offset for queue in topic.queues) == 3
    assert list(topic.first_offsets) == [3 if n == at else 0 for n in range(3)]
