"""A `page_cache` topic: acknowledged without the disk, and no offset is ever given again that a
reader by offset saw."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import ClassVar, Final

from tests.crash.checks import demand
from tests.crash.engine import EngineActor
from tests.crash.parts.part import Part, Reader, Stream

TOPIC: Final = "p"
QUEUE: Final = "loose"


class PageCache(Part):
    """What was acknowledged survives a kill, and perhaps not a power cut. What it costs is the
    newest messages, never one from the middle.

    Attributes:
        seen: what a reader by offset saw.
    """

    name: ClassVar = "page_cache topics"
    steps: ClassVar = {"publish": 8, "read": 3, "consume": 2}

    def __init__(self) -> None:
        super().__init__()
        self.stream = Stream(TOPIC)
        self.reader: Reader | None = None
        self.seen: dict[int, bytes] = {}

    def do(self, step: str, actor: EngineActor, random: Random) -> None:
        if self.reader is None:
            if actor.engine.port.topics.info(TOPIC) is None:
                actor.engine.port.topics.create(TOPIC, 1, {"durability": "page_cache"})
            actor.declare(QUEUE)
            self.reader = Reader(actor.bind(QUEUE, "amq.topic", f"{TOPIC}.#"))
            actor.flush()
        elif step == "publish":
            self.stream.publish(actor, "x", self.bodies(random.choice((1, 3, 5, 14))))
        elif step == "read":
            first, records = actor.pull(TOPIC)
            self.seen |= {first + at: record.body for at, record in enumerate(records)}
        else:
            self.reader.take(actor, QUEUE, random.randint(1, 9), random.randint(0, 9))

    def readers(self) -> Sequence[Reader]:
        return [] if self.reader is None else [self.reader]

    def drain(self, actor: EngineActor) -> None:
        if self.reader is not None:
            self.reader.drain(actor, QUEUE)

    def forget_lost(self, actor: EngineActor, remaining: int) -> None:
        self.stream.forget_lost(actor, remaining)
        if self.reader is not None and self.reader.position > remaining:
            self.reader = None

    def check(self, actor: EngineActor, flushed: int, written: int) -> None:
        if self.reader is None or self.reader.position > flushed:
            return
        there, _ = self.stream.check(actor, written)
        for offset, body in self.seen.items():
            demand(offset < len(there), f"(a) offset {offset} was seen, and is gone")
            demand(
                there[offset] == body, f"(b) offset {offset} was {body!r}, now {there[offset]!r}"
            )
        self.reader.check("the queue of page_cache messages", actor.peek(QUEUE), there, there)
        new = [b"new 1", b"new 2"]
        actor.publish(actor.template(TOPIC, "x"), new)
        actor.flush()
        there += new
        self.reader.check("the queue of page_cache messages", actor.peek(QUEUE), there, there)
