"""Half messages: what was committed comes once, what was rolled back never, the rest waits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar, Final

from polymq.broker.port import Prepared, Reason, Refused
from tests.crash.checks import demand
from tests.crash.engine import EngineActor
from tests.crash.parts.part import NEVER, Part, Reader, any_order
from tests.harness.broker import batch_of

TOPIC: Final = "h"
QUEUE: Final = "committed"
PRODUCER: Final = "P"


@dataclass(slots=True)
class Half:
    """A half message.

    Attributes:
        decision: (commit, the position that its answer waits for).
    """

    body: bytes
    prepared: Prepared
    decision: tuple[bool, int] | None = None


class Halves(Part):
    """Producers prepare messages and decide about some of them."""

    name: ClassVar = "half messages"
    steps: ClassVar = {"prepare": 5, "commit": 3, "roll back": 2, "consume": 1}

    def __init__(self) -> None:
        super().__init__()
        self.reader: Reader | None = None
        self.halves: list[Half] = []

    def do(self, step: str, actor: EngineActor, random: Random) -> None:
        waiting = [half for half in self.halves if half.decision is None]
        if self.reader is None:
            actor.declare(QUEUE)
            self.reader = Reader(actor.bind(QUEUE, "amq.topic", f"{TOPIC}.#"))
        elif step == "prepare":
            (body,) = self.bodies(1)
            template = actor.template(TOPIC, "x", properties={"PGROUP": PRODUCER})
            self.halves.append(
                Half(body, actor.engine.port.half_messages.prepare(template, batch_of(body), 0))
            )
        elif step == "consume":
            self.reader.take(actor, QUEUE, random.randint(1, 9), random.randint(0, 9))
        elif waiting:
            half, commit = random.choice(waiting), step == "commit"
            half.decision = (commit, NEVER)
            half.decision = (commit, end(actor, half, commit=commit))

    def readers(self) -> Sequence[Reader]:
        return [] if self.reader is None else [self.reader]

    def drain(self, actor: EngineActor) -> None:
        if self.reader is not None:
            self.reader.drain(actor, QUEUE)

    def forget_lost(self, actor: EngineActor, remaining: int) -> None:
        self.halves = [half for half in self.halves if half.prepared.position <= remaining]
        for half in self.halves:
            if half.decision is not None and half.decision[1] > remaining:
                half.decision = None
        if self.reader is not None and self.reader.position > remaining:
            self.reader = None

    def check(self, actor: EngineActor, flushed: int, written: int) -> None:
        if self.reader is None or self.reader.position > flushed:
            return
        self._check_now(actor, flushed)
        for half in self.halves:
            if half.decision is None:
                if half.prepared.position <= flushed:
                    half.decision = (True, end(actor, half, commit=True))
            elif half.decision[1] <= flushed:  # the first decision counts
                refuse(actor, half, commit=not half.decision[0])
            else:  # nobody knows, now and later
                half.decision = (half.decision[0], NEVER)
        actor.flush()
        self._check_now(actor, actor.world.flushed)

    def _check_now(self, actor: EngineActor, flushed: int) -> None:
        assert self.reader is not None
        may = [half for half in self.halves if half.decision is not None]
        for half in list(may):
            assert half.decision is not None
            if not half.decision[0] and half.decision[1] <= flushed:
                may.remove(half)
        committed = [half for half in may if half.decision is not None and half.decision[0]]
        self.reader.check(
            "the queue of committed messages",
            actor.peek(QUEUE),
            [half.body for half in committed],
            [
                half.body
                for half in committed
                if half.decision is not None and half.decision[1] <= flushed
            ],
            key=any_order,
        )


def end(actor: EngineActor, half: Half, *, commit: bool) -> int:
    """Decide. Returns the position that the answer waits for. Raises Refused: the broker can write
    nothing."""
    answer = decide(actor, half, commit=commit)
    if isinstance(answer, Refused) and answer.reason in (Reason.READ_ONLY, Reason.STORAGE_FULL):
        raise answer
    demand(not isinstance(answer, Refused), f"(a) half message {half.body!r}: {answer}")
    assert not isinstance(answer, Refused)
    return int(answer)


def refuse(actor: EngineActor, half: Half, *, commit: bool) -> None:
    """Decide otherwise than before: that it is too late has survived, too."""
    answer = decide(actor, half, commit=commit)
    demand(isinstance(answer, Refused), f"(a) half message {half.body!r} was decided twice")


def decide(actor: EngineActor, half: Half, *, commit: bool) -> int | Refused:
    answers: list[int | Refused] = []
    actor.engine.port.half_messages.end(
        half.prepared.offset,
        half.prepared.record_position,
        producer=PRODUCER,
        commit=commit,
        callback=answers.append,
    )
    actor.iterate()
    actor.wait_for(answers)
    (answer,) = answers
    return answer
