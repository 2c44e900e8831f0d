"""What a part of a workload is, and what most of them need.

A part is the clients of one subject: the steps that they take with an engine, what they know of it,
and what they demand after a crash. It holds plain data only: each state that is checked gets a copy
of it, and a check may use that up.

Rules:

* What a part knows is noted when the engine was told, before the engine's loop goes on: no state of
  the disk has what no part knows of.
* Every fact has the position that its answer waits for. After a crash, what stands beyond the end
  of what was found never was (`forget_lost`); what is there is promised from then on.
* A check consumes without settling, so another one may follow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, ClassVar, Final, TypeVar

from polymq.broker.port import Template
from polymq.core_log.record import Record
from tests.crash.checks import demand
from tests.crash.engine import EVERYTHING_CREDIT, EngineActor

NEVER: Final = 1 << 60
"""A position that no log reaches."""
RECORD_BYTES_MAX: Final = 400
"""No message of a workload takes more in the log."""


@dataclass(slots=True)
class Message:
    """A message that was published in a run.

    Attributes:
        start: where the run begins in the log: a crash may leave a part of it.
        position: what its acknowledgement waits for.
        at_ms: when it was published, by the wall clock.
    """

    body: bytes
    start: int
    position: int
    at_ms: int


def publish(actor: EngineActor, template: Template, bodies: Sequence[bytes]) -> list[Message]:
    """Publish one run."""
    start, now_ms = actor.store.log.appended, actor.loop.clock_ms()
    position = actor.publish(template, bodies)
    return [Message(body, start, position, now_ms) for body in bodies]


MessageT = TypeVar("MessageT", bound=Message)


def left_of(messages: Sequence[MessageT], remaining: int) -> list[MessageT]:
    """Those that are there or may be, after a crash that left the log up to `remaining`. Of a run
    that ends beyond it any first part is there; nobody was promised it, and nobody will be."""
    left = [message for message in messages if message.start < remaining]
    for message in left:
        if message.position > remaining:
            message.position = NEVER
    return left


def bodies_of(messages: Sequence[Message], flushed: int = NEVER) -> list[bytes]:
    """The bodies of those that are promised."""
    return [message.body for message in messages if message.position <= flushed]


class Part:
    """The clients of one subject.

    Attributes:
        name: of the subject, for the report.
        steps: what they do, and how often each is drawn.
        sent_count: messages so far.
        begun: whether they have done anything.
    """

    name: ClassVar[str]
    steps: ClassVar[Mapping[str, int]]

    def __init__(self) -> None:
        self.sent_count = 0
        self.begun = False

    @classmethod
    def subjects(cls) -> Sequence[str]:
        """What it can be about: its name, and its kinds."""
        return (cls.name,)

    @classmethod
    def drawn(cls, random: Random, subject: str) -> Part:
        """One of its kinds; that of this subject, if it is one."""
        return cls()

    def do(self, step: str, actor: EngineActor, random: Random) -> None:
        """Take one step."""
        raise NotImplementedError

    def readers(self) -> Sequence[Reader]:
        """Its queues and sessions."""
        return ()

    def lazily_stored(self) -> None:
        """What was settled until now is surely stored."""
        for reader in self.readers():
            reader.gone |= reader.fresh

    def run_ended(self) -> None:
        """No engine runs any more."""
        for reader in self.readers():
            reader.fresh.clear()

    def drain(self, actor: EngineActor) -> None:
        """Settle what waits in queues, so that the log may let go of it."""

    def forget_lost(self, actor: EngineActor, remaining: int) -> None:
        """An engine has started on a log that ended at `remaining`: nothing beyond ever was."""

    def check(self, actor: EngineActor, flushed: int, written: int) -> None:
        """What has to be there.

        Args:
            flushed: everything up to here is promised.
            written: what page_cache promises; beyond `flushed` only if the machine lived on.

        Raises:
            Violation.
        """
        raise NotImplementedError

    def features(self) -> Iterator[str]:
        """What of it a state contains, for the report."""
        if self.begun:
            yield self.name

    def bodies(self, count: int) -> list[bytes]:
        """So many new bodies, each different."""
        first = self.sent_count
        self.sent_count += count
        return [b"%d" % number for number in range(first, first + count)]


def any_order(body: bytes) -> int:
    """A key for readers whose messages come in an order that a crash may change."""
    return 0


@dataclass(slots=True)
class Reader:
    """A queue or a session, and what is known of it.

    Attributes:
        position: what its answer waits for.
        settled: bodies that may not come again, or may.
        fresh: those of them that were settled by the engine that runs.
        gone: those of them whose settlement is surely stored: they do not come again.
    """

    position: int
    settled: set[bytes] = field(default_factory=set)
    fresh: set[bytes] = field(default_factory=set)
    gone: set[bytes] = field(default_factory=set)

    def settle(self, body: bytes) -> None:
        """A consumer is done with it."""
        self.settled.add(body)
        self.fresh.add(body)

    def take(self, actor: EngineActor, name: str, credit: int, settled_count: int) -> list[bytes]:
        """Take up to `credit` messages of a queue, settle the first ones, leave. Returns all."""
        consumer, registration = actor.consume(name, credit)
        for offset, body, _ in consumer.got[:settled_count]:
            self.settle(body)
            registration.settle(offset, 1)
        registration.cancel()
        for offset, _, _ in consumer.got[settled_count:]:
            registration.requeue(offset, 1)
        return consumer.bodies

    def drain(self, actor: EngineActor, name: str) -> None:
        """Settle all that there is."""
        self.take(actor, name, EVERYTHING_CREDIT, EVERYTHING_CREDIT)

    def check(
        self,
        where: str,
        came: Sequence[bytes],
        published: Sequence[bytes],
        promised: Sequence[bytes],
        key: Callable[[bytes], Any] | None = None,
    ) -> None:
        """What came to it is in order, once, and all that was promised and not settled.

        Args:
            published: what may come, in order.
            promised: what has to.
            key: orders what comes; without it, it comes as it was published.

        Raises:
            Violation.
        """
        demand(len(set(came)) == len(came), f"(b) {where} got a message twice")
        numbers = {body: index for index, body in enumerate(published)}
        strange = set(came) - numbers.keys()
        demand(not strange, f"(b) {where} got {sorted(strange)[:3]}, which it should not")
        order = [numbers[body] if key is None else key(body) for body in came]
        demand(order == sorted(order), f"(b) {where} got messages out of order")
        again = self.gone & set(came)
        demand(not again, f"(b) {where} got {sorted(again)[:3]} again, which were settled")
        lost = set(promised) - set(came) - self.settled
        demand(not lost, f"(a) {where} did not get {sorted(lost)[:3]}, of {len(promised)}")


@dataclass(slots=True)
class Stream:
    """A topic with one queue, and its messages in order."""

    topic: str
    messages: list[Message] = field(default_factory=list)

    def publish(
        self, actor: EngineActor, tag: str, bodies: Sequence[bytes], **options: Any
    ) -> None:
        """One run."""
        self.messages += publish(actor, actor.template(self.topic, tag, **options), bodies)

    def forget_lost(self, actor: EngineActor, remaining: int) -> None:
        """See `Part.forget_lost`."""
        first, records = actor.pull(self.topic)
        del self.messages[first + len(records) :]
        for message in self.messages:
            message.position = min(message.position, remaining)

    def check(self, actor: EngineActor, promised: int) -> tuple[list[bytes], list[Record]]:
        """The topic is a beginning of what was published, with all up to `promised`, and without
        what retention took: never more than it may.

        Returns:
            The bodies that there are or were; and the records that can be read.

        Raises:
            Violation.
        """
        first, records = actor.pull(self.topic)
        end = first + len(records)
        bodies = bodies_of(self.messages)
        found = [record.body for record in records]
        wanted = bodies[first:end]
        demand(found == wanted, f"(b) {self.topic} has {found} from {first} on, not {wanted}")
        sure = len(bodies_of(self.messages, promised))
        demand(end >= sure, f"(a) {end} of {sure} promised messages of {self.topic} are there")
        offsets = [record.queue_offset for record in records]
        demand(offsets == list(range(first, end)), f"(b) the offsets of {self.topic} have holes")
        if first:
            world, gone = actor.world, self.messages[first - 1]
            size, remaining = sum(record.size for record in records), world.retention_bytes
            enough = size + RECORD_BYTES_MAX > remaining > 0  # with the last one, it was too much
            seconds = (actor.loop.clock_ms() - gone.at_ms) / 1000
            old = seconds >= world.retention_seconds > 0 or world.trims_early
            text = f"{gone.body!r} of {self.topic} went after {seconds} s"
            demand(old or enough, f"(a) {text}, {size} of {remaining} bytes are there")
        return bodies[:end], records
