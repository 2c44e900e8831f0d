"""Delayed messages: each comes once, not before it is due."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar, Final

from tests.crash.checks import demand
from tests.crash.engine import EngineActor
from tests.crash.parts.part import Message, Part, Reader, any_order, bodies_of, left_of
from tests.harness.broker import batch_of

TOPIC: Final = "d"
QUEUE: Final = "due"
DELAYS_MS: Final = (30, 200, 900, 2000, 6000)
LONGEST_SECONDS: Final = DELAYS_MS[-1] / 1000 + 1


@dataclass(slots=True)
class Delayed(Message):
    """A delayed message.

    Attributes:
        due_ms: when it may come, by the wall clock.
    """

    due_ms: int


class Delays(Part):
    """Messages become due before, during and after a crash, and end in one queue."""

    name: ClassVar = "delayed messages"
    steps: ClassVar = {"delay": 6, "consume": 1}

    def __init__(self) -> None:
        super().__init__()
        self.reader: Reader | None = None
        self.messages: list[Delayed] = []

    def do(self, step: str, actor: EngineActor, random: Random) -> None:
        if self.reader is None:
            actor.declare(QUEUE)
            self.reader = Reader(actor.bind(QUEUE, "amq.topic", f"{TOPIC}.#"))
        elif step == "delay":
            bodies, delay_ms = self.bodies(random.randint(1, 4)), random.choice(DELAYS_MS)
            start, now_ms = actor.store.log.appended, actor.loop.clock_ms()
            position = actor.engine.port.delays.publish_later(
                actor.template(TOPIC, random.choice("xy")),
                batch_of(*bodies),
                0,
                len(bodies),
                delay_ms=delay_ms,
            )
            self.messages += [
                Delayed(body, start, int(position), now_ms, now_ms + delay_ms) for body in bodies
            ]
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
        if self.reader is None or self.reader.position > flushed:
            return
        self._check_now(actor, flushed)
        actor.flush(LONGEST_SECONDS)
        self._check_now(actor, flushed)

    def _check_now(self, actor: EngineActor, flushed: int) -> None:
        """What has come is due; what is due has come."""
        assert self.reader is not None
        now_ms = actor.loop.clock_ms()
        tick_ms = actor.engine.core.limits.delay_tick_ms
        came = actor.peek(QUEUE)
        due = [message for message in self.messages if message.due_ms <= now_ms]
        early = set(came) - {message.body for message in due}
        demand(not early, f"(b) {sorted(early)[:3]} came before they were due")
        sure = [message for message in due if message.due_ms <= now_ms - tick_ms]
        promised = bodies_of(sure, flushed)
        self.reader.check(
            "the queue of due messages", came, [one.body for one in due], promised, any_order
        )
