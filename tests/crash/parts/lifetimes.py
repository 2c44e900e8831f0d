"""Clients whose sessions outlive their connections, or end with them."""

from __future__ import annotations

from random import Random
from typing import ClassVar, Final

from polymq.broker.port import REST
from tests.crash.checks import demand
from tests.crash.engine import EngineActor
from tests.crash.parts.part import Part
from tests.harness.broker import SpyLink, at_qos

CLIENTS: Final = ("brief", "short")
TOPIC: Final = "l"


class Lifetimes(Part):
    """A session that was to stay is there. One that ends with its connection is not there after a
    crash, whether the connection had ended or not.

    Attributes:
        facts: of each client: whether its session is there, and the position from which on that
            is so, oldest first.
    """

    name: ClassVar = "lifetimes of sessions"
    steps: ClassVar = {"stay": 3, "resume": 4}

    def __init__(self) -> None:
        super().__init__()
        self.facts: dict[str, list[tuple[bool, int]]] = {client: [] for client in CLIENTS}

    def do(self, step: str, actor: EngineActor, random: Random) -> None:
        client = random.choice(CLIENTS)
        stays = step == "stay"
        session = actor.engine.port.sessions.connect(
            client,
            clean=random.random() < 0.2,
            expiry_seconds=None if stays else 0,
            link=SpyLink(0),
            principal="u",
        )
        session.resume()
        session.subscribe((TOPIC, REST), at_qos(1))
        self.facts[client].append((stays, actor.store.log.appended))
        if stays or random.random() < 0.5:
            session.disconnect()

    def forget_lost(self, actor: EngineActor, remaining: int) -> None:
        for client, facts in self.facts.items():
            self.facts[client] = [fact for fact in facts if fact[1] <= remaining]

    def check(self, actor: EngineActor, flushed: int, written: int) -> None:
        actor.iterate()
        sessions = actor.engine.sessions.by_number.values()
        there = {session.client_id for session in sessions}
        for client, facts in self.facts.items():
            sure = [stays for stays, position in facts if position <= flushed]
            allowed = {*sure[-1:], *(stays for stays, position in facts if position > flushed)}
            if sure:
                found = client in there
                demand(found in allowed, f"(c) the session of {client!r} is there: {found}")
