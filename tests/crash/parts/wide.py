"""Messages for more queues than one record names: all of the queues have them, or none."""

from __future__ import annotations

from random import Random
from typing import ClassVar, Final

from tests.crash.checks import demand
from tests.crash.engine import OWNER, EngineActor
from tests.crash.parts.part import Message, Part, Reader, bodies_of, left_of, publish

TOPIC: Final = "w"
COUNT: Final = 260
"""A record names 256 queues at most, and the topic's own is one of them."""
LOOKED_AT: Final = (0, 254, 255, 256, COUNT - 1)


class Wide(Part):
    """Many queues, all bound to one topic."""

    name: ClassVar = "more than 256 targets"
    steps: ClassVar = {"publish": 3}

    def __init__(self) -> None:
        super().__init__()
        self.declared: int | None = None
        self.messages: list[Message] = []

    def do(self, step: str, actor: EngineActor, random: Random) -> None:
        if self.declared is None:
            for number in range(COUNT):
                actor.declare(f"w{number}")
                self.declared = actor.bind(f"w{number}", "amq.topic", f"{TOPIC}.#")
        else:
            bodies = self.bodies(random.randint(1, 3))
            self.messages += publish(actor, actor.template(TOPIC, "x"), bodies)

    def is_under_way(self, flushed: int) -> bool:
        """Whether a message waits for the disk."""
        return bool(self.messages) and self.messages[-1].position > flushed

    def forget_lost(self, actor: EngineActor, remaining: int) -> None:
        if self.declared is not None and self.declared > remaining:
            self.declared = None
        self.messages = left_of(self.messages, remaining)

    def check(self, actor: EngineActor, flushed: int, written: int) -> None:
        if self.declared is None or self.declared > flushed:
            return
        infos = [
            actor.engine.port.queues.info(f"w{number}", owner=OWNER) for number in range(COUNT)
        ]
        counts = {info.ready_count for info in infos}
        demand(len(counts) == 1, f"(b) a part of the queues has a message: {sorted(counts)}")
        published, promised = bodies_of(self.messages), bodies_of(self.messages, flushed)
        for number in LOOKED_AT:
            name = f"w{number}"
            Reader(0).check(f"queue {name}", actor.peek(name), published, promised)
