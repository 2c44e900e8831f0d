"""Clients with wills, which vanish, say goodbye, or are there when the server ends."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import ClassVar, Final

from polymq.broker.port import Will
from tests.crash.checks import demand
from tests.crash.engine import LIMITS, EngineActor
from tests.crash.parts.part import NEVER, Part
from tests.harness.broker import SpyLink

CLIENTS: Final = ("w1", "w2", "w3")
TOPIC: Final = "wills"
GRACE_SECONDS: Final = 1.2 * LIMITS.will_grace_seconds


@dataclass(slots=True)
class Left:
    """A will that a client has left.

    Attributes:
        made: what its CONNACK waits for.
        discarded: from where on the log says that it is not published; `NEVER` if it is.
        ended: its client has gone, or the server.
    """

    body: bytes
    made: int
    discarded: int = NEVER
    ended: bool = False


class Wills(Part):
    """A will is published once when its client has gone, also by a crash, unless that said goodbye
    or came back first.

    Attributes:
        wills: of each client, oldest first.
    """

    name: ClassVar = "wills of clients"
    steps: ClassVar = {"come": 4, "vanish": 2, "say goodbye": 2}

    def __init__(self) -> None:
        super().__init__()
        self.wills: dict[str, list[Left]] = {client: [] for client in CLIENTS}
        self._connected: dict[str, Left] = {}
        """The wills of clients that are there. One that came has none, if the disk did not take
        it."""

    def do(self, step: str, actor: EngineActor, random: Random) -> None:
        _let_publish(actor)
        client = random.choice(CLIENTS)
        session = actor.engine.sessions.by_client.get(client)
        if step == "come":
            self._come(actor, client, None if random.random() < 0.5 else 0)
        elif session is not None and session.link is not None:
            left = self._connected.pop(client, None)
            if left is not None:
                left.ended = True
            if step == "say goodbye":
                before = actor.store.log.appended
                session.clear_will()
                if left is not None and actor.store.log.appended > before:
                    left.discarded = actor.store.log.appended
                elif left is not None:  # the log was not told, and may be later, or never
                    self.wills[client].remove(left)
            session.disconnect()

    def _come(self, actor: EngineActor, client: str, expiry_seconds: int | None) -> None:
        waiting = [
            left
            for left in self.wills[client][-1:]
            if left.ended and not self._is_published(actor, left)
        ]
        self._connected.pop(client, None)
        before = actor.store.log.appended
        session = actor.engine.port.sessions.connect(
            client, clean=False, expiry_seconds=expiry_seconds, link=SpyLink(0), principal="u"
        )
        # A log that has failed takes nothing, and the client gets no answer: then nothing is said.
        for left in waiting if actor.store.log.appended > before else ():
            left.discarded = min(left.discarded, actor.store.log.appended)
        session.resume()
        body = self.bodies(1)[0]
        will = Will(topic=TOPIC, tag=client, body=body, qos=1, retain=False)
        session.set_will(will)
        self._connected[client] = Left(body, actor.store.log.appended)
        self.wills[client].append(self._connected[client])

    def _is_published(self, actor: EngineActor, left: Left) -> bool:
        actor.flush()
        return left.body in [record.body for record in actor.pull(TOPIC)[1]]

    def run_ended(self) -> None:
        self._connected.clear()
        for wills in self.wills.values():
            for left in wills:
                left.ended = True

    def forget_lost(self, actor: EngineActor, remaining: int) -> None:
        _let_publish(actor)
        for client, wills in self.wills.items():
            for left in wills:
                if left.discarded > remaining:
                    left.discarded = NEVER
            self.wills[client] = [left for left in wills if left.made <= remaining]

    def check(self, actor: EngineActor, flushed: int, written: int) -> None:
        _let_publish(actor)
        actor.flush(GRACE_SECONDS)
        actor.flush(1)
        first, records = actor.pull(TOPIC)
        found = [record.body for record in records]
        demand(len(set(found)) == len(found), f"(b) a will is published twice: {found}")
        for wills in self.wills.values():
            for left in wills:
                if left.discarded <= flushed:
                    demand(left.body not in found, f"(b) the will {left.body!r} was discarded")
                elif left.made <= flushed and left.discarded == NEVER and not first:
                    demand(left.body in found, f"(a) the will {left.body!r} is not published")


def _let_publish(actor: EngineActor) -> None:
    """Users that another part makes are not these clients."""
    actor.engine.sessions.wills.may_publish = lambda *_: None
