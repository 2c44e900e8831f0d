"""A session that subscribes to retained messages and gets them over many short connections."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import ClassVar, Final

from polymq.broker.port import REST, Session
from tests.crash.engine import EVERYTHING_CREDIT, EngineActor
from tests.crash.parts.part import (
    NEVER,
    Message,
    Part,
    Reader,
    any_order,
    bodies_of,
    left_of,
    publish,
)
from tests.harness.broker import SpyLink, at_qos

CLIENT: Final = "owed"
TOPIC: Final = "kept"
TAGS: Final = tuple(f"{number:02}" for number in range(24))
FLUSHES: Final = 4
"""So many iterations a connection lasts: records may have to be read from the disk first."""


class Owed(Part):
    """The message that was retained for a name when the session subscribed comes to it, unless
    another one has replaced it; and all that are published later come. None comes both ways.

    Attributes:
        messages: retained ones by tag, oldest first.
        session: once it has subscribed.
        since: where its SUBSCRIBE stands in the log.
    """

    name: ClassVar = "retained messages owed to sessions"
    steps: ClassVar = {"retain": 2, "receive": 8}

    def __init__(self) -> None:
        super().__init__()
        self.messages: dict[str, list[Message]] = {}
        self.session: Reader | None = None
        self.since = 0

    def do(self, step: str, actor: EngineActor, random: Random) -> None:
        if step == "retain":
            self._retain(actor, random.sample(TAGS, random.randint(1, 4)))
        elif self.session is None:
            self._retain(actor, TAGS)
            self._subscribe(actor, random)
        else:
            self._receive(actor, random.randint(1, 4), random.randint(0, 4))

    def _retain(self, actor: EngineActor, tags: Sequence[str]) -> None:
        for tag in tags:
            template = actor.template(TOPIC, tag, retain=True)
            self.messages.setdefault(tag, []).extend(publish(actor, template, self.bodies(1)))

    def _subscribe(self, actor: EngineActor, random: Random) -> None:
        """The session subscribes; its connection ends before its SUBACK, or soon after."""
        session = self._connect(actor, SpyLink(), random.randint(1, 3))
        self.since = actor.store.log.appended
        position = session.subscribe((TOPIC, REST), at_qos(1))
        self.session = Reader(int(position))
        if random.random() < 0.7:
            actor.flush()
            session.replay_retained((TOPIC, REST), position)
            actor.flush()
        session.disconnect()

    def _receive(self, actor: EngineActor, window: int, settled_count: int) -> list[bytes]:
        """The session connects, gets as many messages as may be in flight, acknowledges the first
        ones, and its connection is lost. Returns all that came."""
        assert self.session is not None
        link = SpyLink()
        session = self._connect(actor, link, window)
        for _ in range(FLUSHES):
            actor.flush()
        for _, body, _, packet_id, _, _ in link.publishes[:settled_count]:
            self.session.settle(body)
            session.acknowledged(packet_id, 1)
        session.disconnect()
        return link.bodies

    def _connect(self, actor: EngineActor, link: SpyLink, window: int) -> Session:
        session = actor.engine.port.sessions.connect(
            CLIENT, clean=False, expiry_seconds=None, link=link, principal="u", inflight_max=window
        )
        actor.flush()
        session.resume()
        return session

    def readers(self) -> Sequence[Reader]:
        return [] if self.session is None else [self.session]

    def drain(self, actor: EngineActor) -> None:
        if self.session is not None:
            self._receive(actor, EVERYTHING_CREDIT, EVERYTHING_CREDIT)

    def forget_lost(self, actor: EngineActor, remaining: int) -> None:
        self.messages = {tag: left_of(values, remaining) for tag, values in self.messages.items()}
        if self.session is not None and self.session.position > remaining:
            self.session = None

    def check(self, actor: EngineActor, flushed: int, written: int) -> None:
        if self.session is None or self.session.position > flushed:
            return
        published: list[bytes] = []
        promised: list[bytes] = []
        for values in self.messages.values():
            before = [one for one in values if one.start < self.since and one.position < NEVER]
            after = [one for one in values if one.start >= self.since]
            published += bodies_of([*before[-1:], *after], NEVER)
            promised += bodies_of(after, flushed)
            if not after:
                promised += bodies_of(before[-1:])
        came = self._receive(actor, EVERYTHING_CREDIT, 0)
        self.session.check("a session", came, published, promised, any_order)
