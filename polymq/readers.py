"""Readers of all protocols, as the engine has them: which there are, and how far each is.

A *reader* takes each message once: an AMQP queue with its consumers, a named subscription of HTTP,
a persistent MQTT session, a shared subscription of MQTT, or a consumer group of RocketMQ. Its id
is its kind, a colon and its name.

The admin API lists readers, and metrics count them. Both walk them here. There may be very many,
so nothing is made of a reader while it is walked over: it is what the engine has (`Source`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, Literal

from polymq.broker.engine import Engine
from polymq.broker.exchanges.entities import NamedQueue
from polymq.broker.named_queues.named_queues import SUBSCRIPTION_PREFIX
from polymq.broker.port import Address
from polymq.broker.queues.queue import Group, Queue
from polymq.broker.sessions.session import MqttSession
from polymq.broker.sessions.shares import ShareGroup
from polymq.broker.sessions.subscription import Subscription
from polymq.steps import stretches

Kind = Literal["queue", "subscription", "session", "share", "group"]
Source = NamedQueue | MqttSession | ShareGroup | str
"""What the engine has of a reader; the name of a consumer group."""

STEP_READERS: Final = 1_000
"""Readers that are walked over in one step, if nobody looks at their queues."""
STEP_QUEUES: Final = 64
"""Queues that are looked at in one step: some 100 us."""
_READY: Final = attrgetter("group.ready_count")


@dataclass(slots=True)
class Progress:
    """How far a reader is in one queue.

    Attributes:
        queue: the queue.
        number: of the queue in the topic; of the priority in a priority queue.
        topic: of a consumer group; else empty.
        position: offset of the next message that the reader gets.
        end: one past the newest.
        waiting: messages that it has not got.
        unacknowledged: messages that it has got and not settled.
        floor: everything below it is settled.
        oldest_ms: when the oldest of those that wait was stored, if somebody has looked; None: none
            waits, or that is not known.
    """

    queue: Queue
    number: int
    topic: str
    position: int
    end: int
    waiting: int
    unacknowledged: int
    floor: int
    oldest_ms: int | None = None

    @property
    def first(self) -> int:
        """Offset of the first message that waits: what retention took does not."""
        return max(self.position, self.queue.index.first_offset)


class Readers:
    """The readers of an engine.

    Args:
        filter_name: the topic filter that an address stands for.
    """

    def __init__(self, engine: Engine, *, filter_name: Callable[[Address], str]) -> None:
        self._engine = engine
        self._filter_name = filter_name

    # --- which there are ------------------------------------------------------------------------

    def walk(
        self, kind: Kind | Literal["all"] = "all", *, step: int = STEP_READERS
    ) -> Iterator[Sequence[Source]]:
        """All readers of a kind, or of all, as they are when the walk comes to their kind. They
        come in stretches of at most `step`, of which some may be empty."""
        engine = self._engine
        if kind in ("queue", "subscription", "all"):
            for some in stretches(list(engine.named_queues.queues.values()), step):
                yield some if kind == "all" else [one for one in some if _kind_of(one) == kind]
        if kind in ("session", "all"):
            for sessions in stretches(list(engine.sessions.by_client.values()), step):
                yield [session for session in sessions if not session.clean]
        if kind in ("share", "all"):
            yield from stretches(list(engine.sessions.shares.by_address.values()), step)
        if kind in ("group", "all"):
            yield from stretches(engine.groups.names(), step)

    def find(self, identity: str) -> Generator[None, None, Source | None]:
        """A reader by its id, in steps: shares are looked through."""
        kind, _, name = identity.partition(":")
        engine = self._engine
        if kind in ("queue", "subscription"):
            full = name if kind == "queue" else SUBSCRIPTION_PREFIX + name
            named = engine.named_queues.queues.get(full)
            return named if named is not None and kind_of(named) == kind else None
        if kind == "session":
            session = engine.sessions.by_client.get(name)
            return None if session is None or session.clean else session
        if kind == "share":
            for some in self.walk("share", step=STEP_QUEUES):
                for share in some:
                    if self.name(share) == name:
                        return share
                yield
        if kind == "group" and engine.groups.info(name) is not None:
            return name
        return None

    def name(self, source: Source) -> str:
        """Of the queue, subscription, client, filter or group."""
        if isinstance(source, NamedQueue):
            return source.name.removeprefix(SUBSCRIPTION_PREFIX)
        if isinstance(source, MqttSession):
            return source.client_id
        return source if isinstance(source, str) else self._filter_name(source.address)

    def identity(self, source: Source) -> str:
        """See the head of this file."""
        return f"{kind_of(source)}:{self.name(source)}"

    def identities(self, sources: Sequence[Source]) -> list[str]:
        """The ids of very many."""
        return [
            f"queue:{name}"
            if isinstance(one, NamedQueue)
            and not (name := one.queue.name).startswith(SUBSCRIPTION_PREFIX)
            else self.identity(one)
            for one in sources
        ]

    # --- how far they are -----------------------------------------------------------------------

    def waiting(self, sources: Sequence[Source]) -> Generator[None, None, list[int]]:
        """How many messages wait for each of these, in steps."""
        named = [source for source in sources if isinstance(source, NamedQueue)]
        if len(named) == len(sources):  # nearly always: a walk has them in stretches of their own
            yield
            return list(map(_READY, named))
        counts: list[int] = []
        for source in sources:
            if isinstance(source, NamedQueue):
                counts.append(source.group.ready_count)
            elif isinstance(source, MqttSession):
                counts.append((yield from _waiting_of_session(source)))
            elif isinstance(source, ShareGroup):
                counts.append(source.ready_count)
            else:
                counts.append((yield from self._waiting_of_group(source)))
        return counts

    def _waiting_of_group(self, name: str) -> Generator[None, None, int]:
        total = 0
        for at, (_, _, queue, offset) in enumerate(self._engine.groups.progress(name), 1):
            total += max(0, queue.flushed - max(offset, queue.index.first_offset))
            if at % STEP_QUEUES == 0:
                yield
        return total

    def progress(self, source: Source) -> Iterator[Progress]:
        """How far a reader is in each of its queues. A consumer group has only what it has
        committed: of what its members have got, nothing is known."""
        if not isinstance(source, str):
            numbered = isinstance(source, NamedQueue)
            for number, group in enumerate(groups_of(source)):
                yield _progress(number if numbered else 0, group)
            return
        for topic, number, queue, offset in self._engine.groups.progress(source):
            end = queue.flushed
            waiting = max(0, end - max(offset, queue.index.first_offset))
            yield Progress(queue, number, topic, offset, end, waiting, 0, offset)


def kind_of(source: Source) -> Kind:
    """What sort of a reader it is."""
    if isinstance(source, NamedQueue):
        return _kind_of(source)
    if isinstance(source, MqttSession):
        return "session"
    return "group" if isinstance(source, str) else "share"


def _kind_of(found: NamedQueue) -> Kind:
    return "subscription" if found.queue.name.startswith(SUBSCRIPTION_PREFIX) else "queue"


def groups_of(source: NamedQueue | MqttSession | ShareGroup) -> Sequence[Group]:
    """The groups whose cursors say how far a reader is. Those of a priority queue come in the order
    of their priorities, the most important first."""
    if isinstance(source, NamedQueue):
        return source.group.all_groups()
    if isinstance(source, ShareGroup):
        return (source,)
    return [
        subscription.group
        for subscription in list(source.subscriptions.values())
        if subscription.group is not None and _reads_alone(subscription)
    ]


def _reads_alone(subscription: Subscription) -> bool:
    """Whether a subscription is its session's own. What waits for a shared one waits for all of its
    members, and what waits in memory is lost with the connection."""
    return subscription.durable and not subscription.is_shared


def is_idle(found: NamedQueue) -> bool:
    """Whether nothing waits in a queue or is with a consumer, as in nearly all of very many."""
    for group in found.group.all_groups():
        cursor = group.cursor
        if cursor.floor < cursor.next or cursor.next < group.queue.visible:
            return False
    return True


def in_flight_count(session: MqttSession) -> int:
    """Messages that its client has got and not settled. Each stands in the queues of all filters
    that it matches, so their sum would be too large."""
    return session.unacked.count + len(session.releasing)


def _waiting_of_session(session: MqttSession) -> Generator[None, None, int]:
    total = 0
    for at, subscription in enumerate(list(session.subscriptions.values()), 1):
        group = subscription.group
        if group is not None and (count := group.ready_count) and _reads_alone(subscription):
            total += count
        if at % STEP_QUEUES == 0:
            yield
    return total


def _progress(number: int, group: Group) -> Progress:
    cursor, queue = group.cursor, group.queue
    end, offset = queue.visible, cursor.next
    head = cursor.peek(1, end)
    return Progress(
        queue,
        number,
        "",
        offset if head is None else max(head[0], queue.index.first_offset),
        end,
        cursor.ready_count(end),
        cursor.outstanding_count,
        cursor.floor,
    )
