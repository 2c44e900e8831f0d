"""What becomes of definitions that differ from what there is, or that are wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from polymq.broker.errors import Refused
from tests.harness.broker import Broker
from tests.polymq.definitions.harness import (
    HASH,
    OTHER_HASH,
    definitions,
    document,
    exported,
    imported,
    plan_of,
)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A broker with a user, a topic and a queue."""
    made = Broker(tmp_path / "data")
    made.engine.users.add("ann", HASH, ["staff"])
    made.engine.users.add_access_key("ann", "KEYOFANN1", "s" * 64)
    made.engine.topics.create("sensors", 2, {"retention_bytes": "99"})
    made.engine.named_queues.restore(
        "orders", auto_delete=False, arguments={"x-max-length": 5}, maker="", by=""
    )
    made.step()
    yield made
    made.stop()


ANN = {"name": "ann", "roles": ["boss"]}
SENSORS = {"name": "sensors", "queues": 2, "settings": {"retention_seconds": 7}}
ORDERS = {"name": "orders", "arguments": {"x-max-length": 6}}
NEW = {"name": "new"}


def test_a_difference_stops_the_import_before_anything_is_changed(broker: Broker) -> None:
    """Unless it is said which side wins."""
    content = document(users=[ANN], topics=[NEW, SENSORS])
    before = exported(broker)
    with pytest.raises(Refused, match=r"nothing was imported: 2 definitions .* users: ann: other "):
        imported(broker, content)
    assert exported(broker) == before
    found = plan_of(broker, content, dry_run=True)
    assert found.conflicts() == [
        "users: ann: other roles here",
        "topics: sensors: other settings here",
    ]
    assert exported(broker) == before
    assert imported(broker, content, "server") == {"kept": 2, "created": 1}
    assert imported(broker, content, "file") == {"changed": 2, "equal": 1}
    value = definitions(broker)
    assert value["topics"][1]["settings"] == {"retention_seconds": 7}, "the other one is default"
    assert value["users"][0]["roles"] == ["boss"]
    assert value["users"][0]["password_hash"] == HASH, "the document has none"
    assert value["users"][0]["access_keys"][0]["access_key"] == "KEYOFANN1"
    assert imported(broker, content) == {"equal": 3}


def test_what_cannot_change_is_a_conflict_also_for_the_file(broker: Broker) -> None:
    """The queue would have to be deleted with its messages."""
    content = document(queues=[NEW, ORDERS])
    before = exported(broker)
    with pytest.raises(Refused, match=r"arguments cannot change: delete it first"):
        imported(broker, content, "file")
    assert exported(broker) == before
    assert imported(broker, content, "file", dry_run=True) == {"created": 1, "conflict": 1}
    assert imported(broker, content, "server") == {"created": 1, "kept": 1}
    more = document(topics=[{"name": "sensors", "queues": 3}])
    with pytest.raises(Refused, match="queues cannot change"):
        imported(broker, more, "file")


def test_another_password_ends_connections(broker: Broker) -> None:
    """As a change of the password by itself does; so does a key that is gone."""
    changes: list[Any] = []
    broker.engine.users.on_change = changes.append
    ann = {"name": "ann", "password_hash": OTHER_HASH, "roles": ["staff"], "access_keys": []}
    assert imported(broker, document(users=[ann]), "file") == {"changed": 1}
    assert [(change.expels, change.access_key) for change in changes] == [
        ("the password was changed", None),
        ("its access key was removed", "KEYOFANN1"),
    ]


RULE = {"subject": "bob", "effect": "allow", "action": "publish", "topic": "a"}

WRONG: list[tuple[bytes, str]] = [
    (b"[]", "JSON object"),
    (b'{"users": []}', "format has to be"),
    (b'{"rabbit_version": "3.12", "users": []}', "config import rabbitmq-definitions"),
    (b'{"format": "polymq-definitions"}', "version has to be"),
    (b'{"format": "polymq-definitions", "version": 2, "new": []}', "a newer PolyMQ wrote"),
    (b'{"format": "polymq-definitions", "version": 1, "ques": []}', "no section 'ques': use users"),
    (b'{"format": "polymq-definitions", "version": 1, "queues": {}}', "queues has to be a list"),
    (
        document(queues=[{"name": "a", "durble": True}]),
        "there is no member durble: use name, auto_",
    ),
    (document(queues=[{"name": "a\ud800"}]), "half a surrogate pair"),
    (b"", "has no end"),
    (b'{"format": "polymq-definitions", "version": 1, "queues": [', "has no end"),
    (b'{"x": ' + b"[" * 100_000, "nested less deeply"),
    (document(queues=[{"name": "a"}, {"name": "a"}]), "queues: a: it is in the document twice"),
    (document(queues=[{"name": "amq.x"}]), "reserved prefix"),
    (document(queues=[{"name": "a", "arguments": {"x-max-length": -1}}]), "x-max-length"),
    (document(queues=[{"name": "a", "owner": "bob"}]), "a user 'bob', which is neither here"),
    (document(bindings=[{"source": "amq.topic", "destination": "q"}]), "a queue 'q', which is"),
    (document(bindings=[{"source": "x", "destination": "orders"}]), "an exchange 'x', which is"),
    (document(permissions=[RULE]), "a user 'bob', which is neither"),
    (document(permissions=[{**RULE, "topic": "#.a"}]), "permissions: allow bob publish #.a: "),
    (document(users=[{"name": "bob"}]), "no password_hash here, and does not exist"),
    (document(users=[{"name": "bob", "password_hash": "x"}]), "no hash that logins can check"),
    (document(users=[{"name": "a b", "password_hash": HASH}]), "a user's name"),
    (document(topics=[{"name": "a", "settings": {"x": 1}}]), "no setting 'x'"),
    (document(topics=[{"name": "a", "queues": 0}]), "queues: "),
    (document(bans=[{"kind": "address", "value": "x"}]), "neither an address"),
    (document(exchanges=[{"name": "a", "type": "x"}]), "unknown exchange type"),
    (document(consumer_groups=[{"name": "a b"}]), "not the name of a group"),
    (document(subscriptions=[{"name": "a", "topic": "t", "config": {"x": 1}}]), "config: "),
    (document(subscriptions=[{"name": "a", "topic": "t", "sink": "http://h/?***"}]), "not shown"),
]


@pytest.mark.parametrize(("content", "text"), WRONG)
def test_a_document_that_is_wrong_changes_nothing(
    broker: Broker, content: bytes, text: str
) -> None:
    """A sentence says where, and what would be right."""
    before = exported(broker)
    with pytest.raises(Refused) as refused:
        imported(broker, content)
    assert text in refused.value.text
    assert "\n" not in refused.value.text
    assert exported(broker) == before


def test_who_refers_to_the_document_is_content(broker: Broker) -> None:
    """Definitions may refer to what comes with them."""
    assert imported(
        broker,
        document(
            users=[{"name": "bob", "password_hash": HASH}],
            permissions=[RULE],
            queues=[{"name": "q", "owner": "bob"}],
            exchanges=[{"name": "e", "type": "fanout"}],
            bindings=[{"source": "e", "destination": "q"}],
        ),
    ) == {"created": 5}
