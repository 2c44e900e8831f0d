"""Clients whose sessions outlive their connections, or end with them."""

from __future__ import annotations

from random import Random
from typing import ClassVar, Final, NamedTuple

from polymq.broker.port import REST
from tests.crash.checks import demand
from tests.crash.engine import EngineActor
from tests.crash.parts.part import NEVER, Part
from tests.harness.broker import SpyLink, at_qos

CLIENTS: Final = ("brief", "short")
TOPIC: Final = "l"


class Fact(NamedTuple):
    """A CONNECT.

    Attributes:
        stays: whether its session is to outlive the connection.
        clean: a session that was there before ends first.
        start: where what it wrote begins in the log: a crash may leave a part of it, which has an
            effect although nobody was answered.
        position: where that ends.
    """

    stays: bool
    clean: bool
    start: int
    position: int


class Lifetimes(Part):
    """A session that was to stay is there. One that ends with its connection is not there after a
    crash, whether the connection had ended or not.

    Attributes:
        facts: of each client, oldest first.
    """

    name: ClassVar = "lifetimes of sessions"
    steps: ClassVar = {"stay": 3, "resume": 4}

    def __init__(self) -> None:
        super().__init__()
        self.facts: dict[str, list[Fact]] = {client: [] for client in CLIENTS}

    def do(self, step: str, actor: EngineActor, random: Random) -> None:
        client = random.choice(CLIENTS)
        stays = step == "stay"
        clean = random.random() < 0.2
        start = actor.store.log.appended
        session = actor.engine.port.sessions.connect(
            client,
            clean=clean,
            expiry_seconds=None if stays else 0,
            link=SpyLink(0),
            principal="u",
        )
        session.resume()
        session.subscribe((TOPIC, REST), at_qos(1))
        self.facts[client].append(Fact(stays, clean, start, actor.store.log.appended))
        if stays or random.random() < 0.5:
            session.disconnect()

    def forget_lost(self, actor: EngineActor, remaining: int) -> None:
        for client, facts in self.facts.items():
            self.facts[client] = [
                fact if fact.position <= remaining else fact._replace(position=NEVER)
                for fact in facts
                if fact.start < remaining
            ]

    def check(self, actor: EngineActor, flushed: int, written: int) -> None:
        actor.iterate()
        sessions = actor.engine.sessions.by_number.values()
        there = {session.client_id for session in sessions}
        for client, facts in self.facts.items():
            sure = [at for at, fact in enumerate(facts) if fact.position <= flushed]
            if sure:
                allowed = {fact.stays for fact in facts[sure[-1] :]}
                if any(fact.clean for fact in facts[sure[-1] + 1 :]):
                    allowed.add(False)  # the end of the old one was left, and the new one was not
                found = client in there
                demand(found in allowed, f"(c) the session of {client!r} is there: {found}")
