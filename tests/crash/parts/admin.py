"""Users, rules, exchanges and documents: the state is that after some of the changes, at least
after all that were answered."""

from __future__ import annotations

import json
from random import Random
from typing import ClassVar, Final

from polymq.broker.accounts.permissions import Action, Effect, Rule, parse_pattern
from polymq.broker.port import Refused
from tests.crash.checks import demand
from tests.crash.engine import EngineActor
from tests.crash.parts.part import Part

USERS: Final = ("u1", "u2", "u3")
PATTERNS: Final = ("plant/#", "plant/+/temp", "office")
EXCHANGES: Final = ("e1", "e2")
DOCUMENTS: Final = "crash"


class Admin(Part):
    """An administrator changes one thing after the other.

    Attributes:
        states: (the position that the answer waits for, all of the state after it), in order.
    """

    name: ClassVar = "users, permissions, exchanges, documents"
    steps: ClassVar = {"user": 3, "rule": 5, "exchange": 1, "document": 2}

    def __init__(self) -> None:
        super().__init__()
        self.states: list[tuple[int, str]] = [(0, EMPTY)]

    def do(self, step: str, actor: EngineActor, random: Random) -> None:
        try:
            position = getattr(self, f"_{step}")(actor, random)
        except Refused:
            return  # it is there, or it is not
        self.states.append((int(position), state_of(actor)))

    def _user(self, actor: EngineActor, random: Random) -> int:
        users, name = actor.engine.users, random.choice(USERS)
        (body,) = self.bodies(1)
        if name not in users.users:
            return users.add(name, f"hash {body!r}", random.sample(["r1", "r2"], 1))
        if random.random() < 0.4:
            return users.delete(name)
        if random.random() < 0.5:
            return users.set_disabled(name, not users.users[name].disabled)
        return users.set_password(name, f"hash {body!r}")

    def _rule(self, actor: EngineActor, random: Random) -> int:
        rule = Rule(
            subject=random.choice((*USERS, "role:r1")),
            effect=random.choice(list(Effect)),
            action=random.choice(list(Action)),
            pattern=parse_pattern(random.choice(PATTERNS)),
        )
        if random.random() < 0.3:
            return actor.engine.users.remove_rule(rule)
        return actor.engine.users.add_rule(rule)

    def _exchange(self, actor: EngineActor, random: Random) -> int:
        name = random.choice(EXCHANGES)
        if actor.engine.port.exchanges.info(name) is not None:
            return actor.engine.port.exchanges.delete(name, if_unused=False)
        return actor.engine.port.exchanges.declare(
            name,
            type=random.choice(("direct", "fanout")),
            durable=True,
            auto_delete=False,
            internal=False,
            arguments={},
        )

    def _document(self, actor: EngineActor, random: Random) -> int:
        (body,) = self.bodies(1)
        value = None if random.random() < 0.3 else {"text": body.decode()}
        return actor.engine.port.documents.put(DOCUMENTS, random.choice("xyz"), value)

    def forget_lost(self, actor: EngineActor, remaining: int) -> None:
        self.states = [state for state in self.states if state[0] <= remaining]

    def check(self, actor: EngineActor, flushed: int, written: int) -> None:
        sure = [at for at, (position, _) in enumerate(self.states) if position <= flushed]
        allowed = [state for _, state in self.states[sure[-1] :]]
        found = state_of(actor)
        demand(found in allowed, f"(c) the state is {found}, and should be {allowed[0]} or later")


def state_of(actor: EngineActor) -> str:
    """All of it, as a text."""
    engine = actor.engine
    exchanges = {name: engine.port.exchanges.info(name) for name in EXCHANGES}
    return json.dumps(
        [
            {name: engine.users.row_user(name) for name in sorted(engine.users.users)},
            sorted(str(rule) for rule in engine.users.rule_table().values()),
            {name: info.type for name, info in exchanges.items() if info is not None},
            dict(sorted(engine.port.documents.of_kind(DOCUMENTS).items())),
        ]
    )


EMPTY: Final = json.dumps([{}, [], {}, {}])
