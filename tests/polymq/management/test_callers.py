"""Who may use the management API, and what of the broker they see."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from polymq.broker.accounts.permissions import Action, Effect, Rule, parse_pattern
from polymq.broker.port.values import REST
from polymq.management.callers import Caller, Callers, Rank
from polymq.management.errors import Problem
from tests.broker.queue_bench import declare
from tests.harness.broker import Broker


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path / "data")
    yield made
    made.stop()


def add(broker: Broker, name: str, *roles: str, **patterns: str) -> None:
    """A user with its rules, by action."""
    broker.engine.users.add(name, "x", roles)
    for action, pattern in patterns.items():
        rule = Rule(
            subject=name,
            effect=Effect.ALLOW,
            action=Action(action),
            pattern=parse_pattern(pattern),
        )
        broker.engine.users.add_rule(rule)


def caller(broker: Broker, name: str) -> Caller:
    """A user that has proven who it is."""
    callers: Any = Callers(broker.engine, is_local=True)
    port = broker.engine.port.admission.for_principal(name)
    found: Caller = callers._ranked(name, port)
    return found


def come(broker: Broker, *, is_local: bool, login: str = "guest:guest") -> Caller:
    header = f"Basic {b64encode(login.encode()).decode()}"
    return asyncio.run(Callers(broker.engine, is_local=is_local).caller(header, "10.0.0.1"))


def test_without_users_only_this_machine_may_do_everything(broker: Broker) -> None:
    assert come(broker, is_local=True).rank is Rank.ADMINISTRATOR
    with pytest.raises(Problem, match="lets nobody in"):
        come(broker, is_local=False)
    add(broker, "ann", "admin")
    for header in ("", "Bearer x", "Basic *"):
        with pytest.raises(Problem, match="Login failed"):
            asyncio.run(Callers(broker.engine, is_local=True).caller(header, "127.0.0.1"))


@pytest.mark.parametrize(
    ("roles", "rank", "tags"),
    [
        (["admin"], Rank.ADMINISTRATOR, ["administrator"]),
        (["operator"], Rank.OPERATING, ["monitoring", "policymaker"]),
        (["reader", "mine"], Rank.MONITORING, ["monitoring", "mine"]),
        (["management"], Rank.MANAGEMENT, ["management"]),
        (["policymaker", "mine"], Rank.MANAGEMENT, ["mine", "policymaker"]),
    ],
)
def test_roles_decide(broker: Broker, roles: list[str], rank: Rank, tags: list[str]) -> None:
    add(broker, "ann", *roles)
    found = caller(broker, "ann")
    assert (found.rank, list(found.tags)) == (rank, tags)
    found.need(rank)
    for higher in (one for one in Rank if one > rank):
        with pytest.raises(Problem, match="Not "):
            found.need(higher)


def test_a_user_without_such_a_role_is_refused(broker: Broker) -> None:
    """As in RabbitMQ: to publish and consume is something else."""
    add(broker, "ann", "mine", publish="#", subscribe="#", create="#")
    with pytest.raises(Problem, match="Not management user"):
        caller(broker, "ann")


def test_a_user_sees_what_its_permissions_are_about(broker: Broker) -> None:
    """The queues that it may publish to or has declared, and subscriptions of what it may read."""
    for name in ("orders", "secret"):
        declare(broker, name, durable=True)
    for exchange in ("shop", "bank"):
        broker.port.exchanges.declare(
            exchange, type="topic", durable=True, auto_delete=False, internal=False, arguments={}
        )
        broker.port.queues.declare_subscription(f"of-{exchange}", (exchange, REST))
    add(broker, "ann", "management", publish="orders", subscribe="shop.#", create="own.#")
    add(broker, "root", "reader")
    ann, root = caller(broker, "ann"), caller(broker, "root")
    ann.port.queues.declare(
        "own.1", durable=True, exclusive=False, auto_delete=False, arguments={}, owner=None
    )
    queues = broker.engine.named_queues.queues
    seen = {name for name, found in queues.items() if ann.may_see(broker.engine, found)}
    assert seen == {"orders", "%SUB%of-shop", "own.1"}
    assert ann.may_know("shop")
    assert not ann.may_know("bank")
    assert all(root.may_see(broker.engine, found) for found in queues.values())
