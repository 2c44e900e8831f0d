"""Definitions out of one broker and into another: nothing is lost, and nothing is done twice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from polymq.admin.gateways import Gateways
from polymq.broker.accounts.permissions import Action, Effect, Rule, parse_pattern
from polymq.broker.accounts.quotas import Quotas
from polymq.broker.exchanges.entities import ALTERNATE_ARGUMENT
from polymq.definitions.document import STEP_LINES, write_document
from polymq.definitions.group import kinds_of
from polymq.gateways.http_cloudevents.subscriptions import DOCUMENT_KIND
from polymq.management.permissions import DOCUMENT
from tests.harness.broker import Broker
from tests.polymq.definitions.harness import HASH, definitions, exported, imported


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Broker]:
    """A broker without anything."""
    broker = Broker(tmp_path / "empty")
    yield broker
    broker.stop()


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Broker]:
    """A broker with some of everything."""
    broker = Broker(tmp_path / "full")
    populate(broker)
    yield broker
    broker.stop()


def queue(broker: Broker, name: str, user: str = "", **arguments: Any) -> None:
    broker.engine.named_queues.declare(
        name,
        durable=True,
        exclusive=False,
        auto_delete=False,
        arguments={key.replace("_", "-"): value for key, value in arguments.items()},
        owner=None,
        user=user,
    )


def exchange(broker: Broker, name: str, kind: str, user: str = "", **arguments: Any) -> None:
    broker.engine.exchanges.declare(
        name,
        type=kind,
        durable=True,
        auto_delete=False,
        internal=False,
        arguments=arguments,
        user=user,
    )


def populate(broker: Broker) -> None:
    """Some of everything, in no order of names."""
    engine = broker.engine
    users, exchanges = engine.users, engine.exchanges
    for name in ("zoe", "gone", "ann"):
        users.add(name, HASH, ["staff", "admin"] if name == "zoe" else [])
    users.set_quotas("ann", Quotas(queues=None, connections=7))
    users.set_disabled("ann", True)
    users.add_access_key("zoe", "KEYOFZOE1", "s" * 64)
    for subject in ("role:staff", "ann"):
        pattern = parse_pattern("a.#")
        users.add_rule(
            Rule(subject=subject, effect=Effect.DENY, action=Action.PUBLISH, pattern=pattern)
        )
    engine.documents.put(DOCUMENT, "ann", {"configure": "", "write": "^a$", "read": ".*"})
    engine.bans.add("address", "10.0.0.0/8", reason="noise", by="ann")
    engine.topics.create("sensors", 3, {"retention_bytes": "99", "durability": "page_cache"})
    engine.topics.create("a", 1)
    exchange(broker, "spare", "fanout")
    exchange(broker, "heads", "headers", "ann", **{ALTERNATE_ARGUMENT: "spare"})
    queue(broker, "orders", "ann", x_max_length=5, x_dead_letter_exchange="spare")
    queue(broker, "left", "gone", x_dead_letter_exchange="spare")
    queue(broker, "archive")
    for arguments in ({"x-match": "any", "color": "red"}, {"when": b"\xff", "n": 1}):
        exchanges.bind_queue("orders", "heads", "", arguments, owner=None)
    exchanges.bind_queue("orders", "a", "k", {}, owner=None)
    exchanges.bind_exchange("spare", "a", "#", {}, user="zoe")
    engine.groups.put("billing", {"retryMaxTimes": 3})
    subscription = {"topic": "sensors", "sink": "https://example.com/?key=k", "filters": []}
    state = {
        "config": {},
        "granted": 60,
        "disabled": None,
        "owner": engine.exchanges.owners.of("ann"),
    }
    engine.documents.put(DOCUMENT_KIND, "hook", {**subscription, **state})
    engine.named_queues.declare_subscription("hook", ("sensors", "#"))
    users.delete("gone")
    # What is no definition: it goes with a connection, or with the process.
    engine.named_queues.declare(
        "mine", durable=False, exclusive=True, auto_delete=False, arguments={}, owner=broker
    )
    engine.named_queues.declare(
        "", durable=True, exclusive=False, auto_delete=True, arguments={}, owner=None
    )
    broker.step()


def test_what_was_exported_is_the_same_after_an_import(full: Broker, empty: Broker) -> None:
    """To the byte, and after a restart as well."""
    content = exported(full)
    counts = imported(empty, content)
    assert set(counts) == {"created"}
    assert exported(empty) == content
    empty.step()
    empty.restart()
    assert exported(empty) == content
    assert imported(empty, content) == {"equal": counts["created"]}


def test_the_order_does_not_depend_on_how_things_came(full: Broker) -> None:
    """A line for each definition, in the order of their names."""
    value = definitions(full)
    assert [user["name"] for user in value["users"]] == ["ann", "zoe"]
    assert [topic["name"] for topic in value["topics"]] == ["a", "sensors"]
    assert [one["name"] for one in value["queues"]] == ["archive", "left", "orders"]
    lines = exported(full).decode().splitlines()
    rows = [row for section in value.values() if isinstance(section, list) for row in section]
    assert [json.loads(line.rstrip(",")) for line in lines if line.startswith('{"')] == rows


def test_rights_of_owners_are_not_widened(full: Broker, empty: Broker) -> None:
    """What belonged to a deleted user belongs to nobody's successor, and not to everybody."""
    imported(empty, exported(full))
    found = {one["name"]: one.get("owner") for one in definitions(empty)["queues"]}
    assert found == {"archive": None, "left": "gone:deleted", "orders": "ann"}
    empty.engine.users.add("gone", HASH)
    assert not empty.engine.exchanges.may_dead_letter("left", "spare", "x")
    assert definitions(empty)["queues"][1]["owner"] == "gone:deleted"


def test_an_import_that_was_killed_is_completed_by_the_next(full: Broker, empty: Broker) -> None:
    """Each definition is one record: there is no half of one."""
    content = exported(full)
    value = json.loads(content)
    value["queues"] = [{"name": f"q{number:03}"} for number in range(300)]
    steps = [0]

    class Killed(Exception):
        pass

    write = empty.engine.core.journal.write

    def dies(op: dict[str, Any]) -> Any:
        steps[0] += 1
        if steps[0] == 150:
            raise Killed
        return write(op)

    empty.engine.core.journal.write = dies  # type: ignore[method-assign]
    whole = json.dumps({**value, "bindings": [], "subscriptions": []}).encode()
    with pytest.raises(Killed):
        imported(empty, whole)
    empty.step()
    empty.kill()
    empty.open()
    counts = imported(empty, whole)
    assert counts["equal"] > 100
    assert counts["created"] > 100
    assert set(counts) == {"equal", "created"}
    assert set(imported(empty, whole)) == {"equal"}


def test_many_definitions_are_written_in_small_steps(empty: Broker) -> None:
    """No step has more than some lines."""
    for number in range(3_000):
        queue(empty, f"queue.{number * 7 % 3_000:05}")
    parts = [*write_document(kinds_of(empty.engine, Gateways()))]
    assert max((part or b"").count(b"\n") for part in parts) <= STEP_LINES + 2
    names = [row["name"] for row in json.loads(b"".join(filter(None, parts)))["queues"]]
    assert names == sorted(names)
    assert len(names) == 3_000
