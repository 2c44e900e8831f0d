"""Transactions: what is published and acknowledged in one happens wholly or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar, Final

from polymq.broker.port import Publishing
from tests.crash.checks import demand
from tests.crash.engine import EngineActor
from tests.crash.parts.part import NEVER, Message, Part, Reader, bodies_of, left_of, publish
from tests.harness.broker import batch_of

SOURCE: Final = "from"
OUTPUTS: Final = ("to 1", "to 2")


@dataclass(slots=True)
class Batch:
    """A transaction: its answer waits for the position.

    Attributes:
        taken: bodies that it acknowledged.
        made: bodies that it published, by queue.
    """

    position: int
    taken: set[bytes]
    made: dict[str, list[bytes]]


class Transactions(Part):
    """A client takes messages of a queue and publishes others to two queues for them."""

    name: ClassVar = "transactions"
    steps: ClassVar = {"publish": 3, "commit": 5}

    def __init__(self) -> None:
        super().__init__()
        self.declared: int | None = None
        self.inputs: list[Message] = []
        self.batches: list[Batch] = []
        self.settled = Reader(0)

    def do(self, step: str, actor: EngineActor, random: Random) -> None:
        if self.declared is None:
            self.declared = max(actor.declare(name) for name in (SOURCE, *OUTPUTS))
        elif step == "publish":
            bodies = self.bodies(random.randint(1, 4))
            self.inputs += publish(actor, actor.to_queue(SOURCE), bodies)
        else:
            self._commit(actor, random)

    def _commit(self, actor: EngineActor, random: Random) -> None:
        consumer, registration = actor.consume(SOURCE, random.randint(1, 4))
        taken = consumer.got[: random.randint(0, 4)]
        made = {name: self.bodies(random.randint(0, 3)) for name in OUTPUTS}
        publishes = [
            Publishing(
                template=actor.to_queue(name), batch=batch_of(*bodies), first=0, last=len(bodies)
            )
            for name, bodies in made.items()
            if bodies
        ]
        settled = [(registration, offset, 1) for offset, _, _ in taken]
        batch = Batch(NEVER, {body for _, body, _ in taken}, made)
        self.batches.append(batch)
        batch.position = int(actor.engine.port.transactions.commit(publishes, settled))
        registration.cancel()
        for offset, _, _ in consumer.got[len(taken) :]:
            registration.requeue(offset, 1)

    def readers(self) -> Sequence[Reader]:
        return [self.settled]

    def drain(self, actor: EngineActor) -> None:
        if self.declared is not None:
            for name in (SOURCE, *OUTPUTS):
                self.settled.drain(actor, name)

    def forget_lost(self, actor: EngineActor, remaining: int) -> None:
        if self.declared is not None and self.declared > remaining:
            self.declared = None
        self.inputs = left_of(self.inputs, remaining)
        self.batches = [batch for batch in self.batches if batch.position <= remaining]

    def check(self, actor: EngineActor, flushed: int, written: int) -> None:
        if self.declared is None or self.declared > flushed:
            return
        left = actor.peek(SOURCE)
        came = {name: actor.peek(name) for name in OUTPUTS}
        taken: set[bytes] = set()
        settled = self.settled.settled
        for batch in self.batches:
            made = [(name, body) for name, bodies in batch.made.items() for body in bodies]
            parts = [body in came[name] for name, body in made if body not in settled]
            parts += [body not in left for body in batch.taken]
            demand(all(parts) or not any(parts), f"(b) a part of transaction {batch} is there")
            demand(all(parts) or batch.position > flushed, f"(a) transaction {batch} is gone")
            if all(parts):
                taken |= batch.taken
        waiting = [message for message in self.inputs if message.body not in taken]
        inputs, promised = bodies_of(waiting), bodies_of(waiting, flushed)
        self.settled.check("the queue of inputs", left, inputs, promised)
        for name, bodies in came.items():
            outputs = [body for batch in self.batches for body in batch.made[name]]
            self.settled.check(name, bodies, outputs, [])
