"""Queues, a session and retained messages on one topic."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import ClassVar, Final

from polymq.broker.port import REST, Session
from tests.crash.checks import demand
from tests.crash.engine import EVERYTHING_CREDIT, EngineActor
from tests.crash.parts.part import Message, Part, Reader, Stream, bodies_of, left_of, publish
from tests.harness.broker import SpyLink, at_qos

TOPIC: Final = "a"
RETAINED: Final = "r"
TAGS: Final = ("x", "y")
CLIENT: Final = "client"


class Basics(Part):
    """Messages go to every queue and session that was answered before they were published, unless
    they were settled there; what was declared, subscribed and retained is there.

    Attributes:
        stream: the topic.
        queues: by name, with the first message that goes there.
        session: once it has subscribed.
        retained: by tag, oldest first.
    """

    name: ClassVar = "queues, sessions, retained messages"
    steps: ClassVar = {
        "publish": 8,
        "retained": 2,
        "declare": 1,
        "subscribe": 1,
        "consume": 3,
        "receive": 3,
    }

    def __init__(self) -> None:
        super().__init__()
        self.stream = Stream(TOPIC)
        self.queues: dict[str, tuple[Reader, int]] = {}
        self.session: tuple[Reader, int] | None = None
        self.retained: dict[str, list[Message]] = {}

    def do(self, step: str, actor: EngineActor, random: Random) -> None:
        if step == "publish":
            self.stream.publish(actor, random.choice(TAGS), self.bodies(random.randint(1, 5)))
        elif step == "retained":
            self.retain(actor, self.bodies(1)[0], random.choice(TAGS))
        elif step == "declare":
            self.declare(actor, f"q{len(self.queues)}")
        elif step == "subscribe":
            self.subscribe(actor)
        elif step == "consume" and self.queues:
            name = random.choice(sorted(self.queues))
            self.queues[name][0].take(actor, name, random.randint(1, 9), random.randint(0, 9))
        elif step == "receive" and self.session is not None:
            self.receive(actor, random.randint(1, 9), random.randint(0, 9))

    def retain(self, actor: EngineActor, body: bytes, tag: str) -> None:
        """Publish a retained message."""
        template = actor.template(RETAINED, tag, retain=True)
        self.retained.setdefault(tag, []).extend(publish(actor, template, [body]))

    def declare(self, actor: EngineActor, name: str) -> None:
        """A durable queue that gets all of the topic from now on."""
        actor.declare(name)
        position = actor.bind(name, "amq.topic", f"{TOPIC}.#")
        self.queues[name] = Reader(position), len(self.stream.messages)

    def subscribe(self, actor: EngineActor) -> None:
        """The session subscribes to the topic, if it has not."""
        if self.session is None:
            session = _connect(actor, SpyLink(0))
            position = session.subscribe((TOPIC, REST), at_qos(1))
            self.session = Reader(int(position)), len(self.stream.messages)
            session.disconnect()

    def receive(self, actor: EngineActor, credit: int, settled_count: int) -> list[bytes]:
        """The session connects, gets up to `credit` messages, acknowledges the first ones, and its
        connection is lost. Returns all that came."""
        link = SpyLink(credit)
        session = _connect(actor, link)
        actor.flush()
        assert self.session is not None
        for _, body, _, packet_id, _, _ in link.publishes[:settled_count]:
            self.session[0].settle(body)
            session.acknowledged(packet_id, 1)
        session.disconnect()
        return link.bodies

    def readers(self) -> Sequence[Reader]:
        found = [*self.queues.values(), *([] if self.session is None else [self.session])]
        return [reader for reader, _ in found]

    def drain(self, actor: EngineActor) -> None:
        for name, (reader, _) in self.queues.items():
            reader.drain(actor, name)
        if self.session is not None:
            self.receive(actor, EVERYTHING_CREDIT, EVERYTHING_CREDIT)

    def forget_lost(self, actor: EngineActor, remaining: int) -> None:
        self.stream.forget_lost(actor, remaining)
        for tag, values in self.retained.items():
            self.retained[tag] = left_of(values, remaining)
        self.queues = {
            name: (reader, first)
            for name, (reader, first) in self.queues.items()
            if reader.position <= remaining
        }
        if self.session is not None and self.session[0].position > remaining:
            self.session = None

    def check(self, actor: EngineActor, flushed: int, written: int) -> None:
        there, _ = self.stream.check(actor, flushed)
        self._check_readers(actor, flushed, there)
        found = retained_now(actor)
        for tag, values in self.retained.items():
            sure = bodies_of(values, flushed)
            allowed = [value.body for value in values[max(len(sure) - 1, 0) :]]
            demand(not sure or found.get(tag) in allowed, f"(c) {found.get(tag)!r} is retained")
        new = [b"new 1", b"new 2"]
        actor.publish(actor.template(TOPIC, TAGS[0]), new)
        actor.flush()
        self._check_readers(actor, flushed, [*there, *new])

    def _check_readers(self, actor: EngineActor, flushed: int, there: Sequence[bytes]) -> None:
        for name, (reader, first) in self.queues.items():
            if reader.position <= flushed:
                reader.check(f"queue {name}", actor.peek(name), there[first:], there[first:])
        if self.session is not None and self.session[0].position <= flushed:
            reader, first = self.session
            came = self.receive(actor, EVERYTHING_CREDIT, 0)
            reader.check("the session", came, there[first:], there[first:])


def _connect(actor: EngineActor, link: SpyLink) -> Session:
    session = actor.engine.port.sessions.connect(
        CLIENT, clean=False, expiry_seconds=None, link=link, principal="u"
    )
    actor.flush()
    session.resume()
    return session


def retained_now(actor: EngineActor) -> dict[str, bytes]:
    """The retained messages, as a new subscriber gets them."""
    link = SpyLink(EVERYTHING_CREDIT)
    session = actor.engine.port.sessions.connect(
        "other", clean=True, expiry_seconds=0, link=link, principal="u"
    )
    session.resume()
    since = session.subscribe((RETAINED, REST), at_qos(1))
    actor.flush()
    session.replay_retained((RETAINED, REST), since)
    actor.flush()
    session.disconnect()
    return {name.partition("/")[2]: body for name, body, *_ in link.publishes}
