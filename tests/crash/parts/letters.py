"""A queue that gives messages up, and the queue of its dead letters: each message is in one of the
two, never in both, never in none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any, ClassVar, Final

from polymq.broker.port import LONG_CONSTANT, in_front
from tests.crash.checks import demand
from tests.crash.engine import EVERYTHING_CREDIT, EngineActor
from tests.crash.parts.part import Message, Part, Reader, any_order, bodies_of, left_of, publish

WORK: Final = "work"
DEAD: Final = "dead"
EXCHANGE: Final = "dlx"
TTL_MS: Final = 700
LENGTH_MAX: Final = 5
LONG: Final = "long properties"
"""The kind whose messages have AMQP properties in front of their bodies."""
ARGUMENTS: Final[dict[str, dict[str, Any]]] = {
    "dead letters": {},
    "expiry": {"x_message_ttl": TTL_MS},
    "lengths": {"x_max_length": LENGTH_MAX},
    "lengths, rejecting": {"x_max_length": LENGTH_MAX, "x_overflow": "reject-publish"},
    "delivery limits": {"x_delivery_limit": 2},
    LONG: {},
}
"""What the queue may be declared with, beside its dead letter exchange."""


class Letters(Part):
    """Clients publish, reject, settle; time and length do the rest.

    Attributes:
        kind: which of `ARGUMENTS`.
        declared: what the last answer waits for.
        settled: of the two queues.
        tried: given up by a consumer.
        fresh: those of them that were given up to the engine that runs.
        rejected: those that were surely stored: not in the first queue any more.
    """

    name: ClassVar = "dead letters"
    steps: ClassVar = {"publish": 6, "reject": 3, "consume": 1, "bury": 1}

    def __init__(self, kind: str = "dead letters") -> None:
        super().__init__()
        self.kind = kind
        self.declared: int | None = None
        self.letters: list[Message] = []
        self.settled = Reader(0)
        self.rejected: set[bytes] = set()
        self.fresh: set[bytes] = set()
        self.tried: set[bytes] = set()

    @classmethod
    def subjects(cls) -> Sequence[str]:
        return tuple(ARGUMENTS)

    @classmethod
    def drawn(cls, random: Random, subject: str) -> Part:
        drawn = random.choice(list(ARGUMENTS))
        return cls(subject if subject in ARGUMENTS and subject != cls.name else drawn)

    def features(self) -> Iterator[str]:
        if self.begun:
            yield self.name
            yield self.kind

    def do(self, step: str, actor: EngineActor, random: Random) -> None:
        if self.declared is None:
            self._declare(actor)
        elif step == "publish":
            template = actor.to_queue(WORK, **(LONG_CONSTANT if self.kind == LONG else {}))
            bodies = self.bodies(random.randint(1, 4))
            run = publish(actor, template, [self._in_log(body) for body in bodies])
            for message, body in zip(run, bodies, strict=True):
                message.body = body
            self.letters += run[: len(run) - template.overflowed]  # a full queue takes no more
        elif step == "reject":
            consumer, registration = actor.consume(WORK, random.randint(1, 4))
            registration.cancel()
            for offset, body, _ in consumer.got:
                if random.random() < 0.6:
                    self.fresh.add(body)
                    self.tried.add(body)
                    registration.reject(offset, 1)
                else:
                    registration.requeue(offset, 1)
        else:
            name = WORK if step == "consume" else DEAD
            self.settled.take(actor, name, random.randint(1, 4), random.randint(0, 4))

    def _in_log(self, body: bytes) -> bytes:
        """A message's body as a part of its record."""
        return in_front(b"properties of " + body) + body if self.kind == LONG else body

    def _declare(self, actor: EngineActor) -> None:
        actor.engine.port.exchanges.declare(
            EXCHANGE, type="fanout", durable=True, auto_delete=False, internal=False, arguments={}
        )
        actor.declare(DEAD)
        actor.bind(DEAD, EXCHANGE, "")
        self.declared = actor.declare(WORK, x_dead_letter_exchange=EXCHANGE, **ARGUMENTS[self.kind])

    def readers(self) -> Sequence[Reader]:
        return [self.settled]

    def lazily_stored(self) -> None:
        super().lazily_stored()
        self.rejected |= self.fresh

    def run_ended(self) -> None:
        super().run_ended()
        self.fresh.clear()

    def drain(self, actor: EngineActor) -> None:
        if self.declared is not None:
            self.settled.drain(actor, WORK)
            self.settled.drain(actor, DEAD)

    def forget_lost(self, actor: EngineActor, remaining: int) -> None:
        self.letters = left_of(self.letters, remaining)
        if self.declared is not None and self.declared > remaining:
            self.declared = None

    def check(self, actor: EngineActor, flushed: int, written: int) -> None:
        if self.declared is None or self.declared > flushed:
            return
        actor.flush()
        consumer, _ = actor.consume(WORK, EVERYTHING_CREDIT)  # to give them back is to count them
        work, dead = consumer.bodies, actor.peek(DEAD)
        both = set(work) & set(dead)
        demand(not both, f"(b) {sorted(both)[:3]} are dead, and in their queue")
        where = "the queue and its dead letters"
        there, promised = bodies_of(self.letters), bodies_of(self.letters, flushed)
        self.settled.check(where, [*work, *dead], there, promised, key=any_order)
        Reader(0).check(f"queue {WORK}", work, there, [])
        again = self.rejected & set(work)
        demand(not again, f"(b) {sorted(again)[:3]} were rejected, and are in their queue")
        demand(
            self.kind != "lengths" or len(work) <= LENGTH_MAX,
            f"(c) {len(work)} messages are in a queue for {LENGTH_MAX}",
        )
        if self.kind == "expiry":
            self._check_expired(actor, work, dead)
        whole = actor.peek(DEAD, reads_long=True)
        wanted = [self._in_log(body) for body in dead]
        demand(whole == wanted, f"(b) AMQP's consumers got {whole[:3]} and not {wanted[:3]}")

    def _check_expired(self, actor: EngineActor, work: list[bytes], dead: list[bytes]) -> None:
        now_ms = actor.loop.clock_ms()
        stored = {letter.body: letter.at_ms for letter in self.letters}
        late = [body for body in work if stored[body] + TTL_MS <= now_ms]
        demand(not late, f"(b) {late[:3]} came after they had expired")
        early = [body for body in dead if stored[body] + TTL_MS > now_ms and body not in self.tried]
        demand(not early, f"(b) {early[:3]} expired before their time")
