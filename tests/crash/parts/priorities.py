"""A priority queue: the most important first, in order within a priority."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import ClassVar, Final

from polymq.broker.port import TTL_PROPERTY, ttl_property
from tests.crash.engine import EngineActor
from tests.crash.parts.part import Message, Part, Reader, bodies_of, left_of, publish

QUEUE: Final = "important"
PRIORITY_MAX: Final = 3


class Priorities(Part):
    """Messages of several priorities for one queue.

    Attributes:
        priorities: of the messages, by body.
    """

    name: ClassVar = "priorities"
    steps: ClassVar = {"publish": 6, "consume": 3}

    def __init__(self) -> None:
        super().__init__()
        self.reader: Reader | None = None
        self.messages: list[Message] = []
        self.priorities: dict[bytes, int] = {}

    def do(self, step: str, actor: EngineActor, random: Random) -> None:
        if self.reader is None:
            self.reader = Reader(actor.declare(QUEUE, x_max_priority=PRIORITY_MAX))
        elif step == "publish":
            priority = random.randint(0, PRIORITY_MAX)
            bodies = self.bodies(random.randint(1, 4))
            properties = {TTL_PROPERTY: ttl_property(None, priority)} if priority else {}
            self.messages += publish(actor, actor.to_queue(QUEUE, **properties), bodies)
            self.priorities |= dict.fromkeys(bodies, priority)
        else:
            self.reader.take(actor, QUEUE, random.randint(1, 9), random.randint(0, 9))

    def readers(self) -> Sequence[Reader]:
        return [] if self.reader is None else [self.reader]

    def drain(self, actor: EngineActor) -> None:
        if self.reader is not None:
            self.reader.drain(actor, QUEUE)

    def forget_lost(self, actor: EngineActor, remaining: int) -> None:
        self.messages = left_of(self.messages, remaining)
        if self.reader is not None and self.reader.position > remaining:
            self.reader = None

    def check(self, actor: EngineActor, flushed: int, written: int) -> None:
        if self.reader is not None and self.reader.position <= flushed:
            self.reader.check(
                "the priority queue",
                actor.peek(QUEUE),
                bodies_of(self.messages),
                bodies_of(self.messages, flushed),
                key=lambda body: (-self.priorities[body], int(body)),
            )
