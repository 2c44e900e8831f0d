"""Where a message is now: the queues that its record names, and their readers.

A record says the number of each queue that the message went to, and its offset there. The engine
knows which readers have such a queue, and its cursors say what they did with the offset. Queues in
memory are in no record: their entries say where their messages stand in the log.

Functions that look at many readers are generators of steps (`steps.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from polymq.admin.way_values import Destination, DestinationKind, DestinationState, MessageHolder
from polymq.broker.engine import Engine
from polymq.broker.exchanges.entities import NamedQueue
from polymq.broker.named_queues.named_queues import SUBSCRIPTION_PREFIX
from polymq.broker.named_queues.rules import QueueRules
from polymq.broker.names import display_name
from polymq.broker.port import Address
from polymq.broker.queues.priorities import OFFSET_BITS, LevelGroup
from polymq.broker.queues.queue import Group
from polymq.broker.sessions.flights import QueueFlight, SessionGroup
from polymq.broker.sessions.session import MqttSession
from polymq.broker.sessions.shares import ShareFlight, ShareGroup
from polymq.broker.topics.topic import Topic
from polymq.core_log.queue_index import Index, MemoryIndex
from polymq.net.clients import DescribesItself, ListsUnacknowledged

DESTINATIONS_MAX: Final = 1_000
AT_ONCE: Final = 256
"""Readers that are looked at in one step: some 100 us."""

Steps = Generator[None, None, None]


@dataclass(slots=True)
class Found:
    """The destinations of a message.

    Attributes:
        destinations: at most `DESTINATIONS_MAX`.
        groups: by the numbers of readers that the log knows: the ids of their destinations, and the
            message's offset there. Queues that are gone have their own numbers.
        total: how many destinations there are.
    """

    destinations: list[Destination] = field(default_factory=list)
    groups: dict[int, tuple[str, int]] = field(default_factory=dict)
    total: int = 0

    def add(self, destination: Destination, number: int) -> None:
        """One more destination; its reader's number is 0 if the log does not know it."""
        self.total += 1
        if len(self.destinations) < DESTINATIONS_MAX:
            self.destinations.append(destination)
            if number:
                self.groups[number] = destination.id, destination.offset


class Destinations:
    """Finds the destinations of one message.

    Args:
        filter_name: the topic filter that an address stands for.
        targets: (queue number, offset) of each queue that the record names.
        position: of the message.
        expires_ms: when it expires by its own time to live; None: it has none.
        store_ms: when it was stored.
    """

    def __init__(
        self,
        engine: Engine,
        filter_name: Callable[[Address], str],
        *,
        targets: Sequence[tuple[int, int]],
        position: int,
        store_ms: int,
        expires_ms: int | None,
    ) -> None:
        self._engine = engine
        self._filter_name = filter_name
        self._targets = dict(targets)
        self._position = position
        self._store_ms = store_ms
        self._expires_ms = expires_ms
        self._named: dict[Group, NamedQueue] = {}
        self.found = Found()

    def look(self, topic: Topic | None) -> Steps:
        """Find them.

        Args:
            topic: whose own queue the first target is; None: there is none.
        """
        left = set(self._targets)
        if topic is not None:
            for queue_id, queue in enumerate(topic.queues):
                if queue.number in left:
                    left.discard(queue.number)
                    yield from self._look_at_topic(topic, queue_id)
        yield from self._learn_names(left)
        for at, group in enumerate(list(self._engine.queue_store.groups.values()), 1):
            if group.queue.number in self._targets and not group.has_left:
                left.discard(group.queue.number)
                yield from self._look_at_group(group, self._targets[group.queue.number])
            if at % AT_ONCE == 0:
                yield
        for at, group in enumerate(list(self._engine.queue_store.volatile_groups), 1):
            index, offset = group.queue.index, None
            if isinstance(index, MemoryIndex):
                offset = offset_of(index, self._position)
            if offset is not None and not group.has_left:
                yield from self._look_at_group(group, offset)
            if at % AT_ONCE == 0:
                yield
        for number in sorted(left):
            self._add_unknown(number)

    def _add_unknown(self, number: int) -> None:
        offset = self._targets[number]
        destination = Destination(
            id=f"unknown:{number}", kind="unknown", name=str(number), offset=offset, state="unknown"
        )
        self.found.add(destination, number)

    def _learn_names(self, numbers: Iterable[int]) -> Steps:
        """Which named queue has which group."""
        wanted = set(numbers)
        for at, found in enumerate(list(self._engine.named_queues.queues.values()), 1):
            for group in found.group.all_groups():
                if group.queue.number in wanted or not group.queue.durable:
                    self._named[group] = found
            if at % AT_ONCE == 0:
                yield

    # --- the topic ------------------------------------------------------------------------------

    def _look_at_topic(self, topic: Topic, queue_id: int) -> Steps:
        queue = topic.queues[queue_id]
        offset = self._targets[queue.number]
        state: DestinationState = "kept" if offset < queue.flushed else "pending"
        if offset < queue.index.first_offset:
            state = "removed"
        name = display_name(topic.name)
        destination = Destination(
            id=f"topic:{name}", kind="topic", name=name, offset=offset, state=state
        )
        self.found.add(destination, 0)
        groups = self._engine.groups
        for at, group in enumerate(groups.names(), 1):
            committed = groups.offset(group, topic.name, queue_id)
            if committed is not None:
                self.found.add(
                    Destination(
                        id=f"group:{group}",
                        kind="group",
                        name=group,
                        offset=offset,
                        state="settled" if committed > offset else "waiting",
                    ),
                    0,
                )
            if at % AT_ONCE == 0:
                yield

    # --- readers --------------------------------------------------------------------------------

    def _look_at_group(self, group: Group, offset: int) -> Steps:
        kind, name, shown, filter_name = self._name_of(group)
        state = state_of(group, offset)
        rules = group.rules
        destination = Destination(
            id=shown,
            kind=kind,
            name=name,
            filter=filter_name,
            offset=offset,
            state=state,
            expires_ms=self._expiry(group) if state in ("pending", "waiting") else None,
        )
        if state == "waiting":
            destination.redelivered = group.cursor.is_requeued(offset)
        if rules is not None and rules.delivery_counts is not None:
            destination.returned = rules.delivery_count(offset)
        if state == "unacknowledged":
            destination.holder = yield from self._holder(group, offset)
        self.found.add(destination, group.number)

    def _name_of(self, group: Group) -> tuple[DestinationKind, str, str, str | None]:
        """Kind, name, id and topic filter of a reader."""
        engine = self._engine
        named = self._named.get(group)
        if named is not None:
            name = named.name
            if name.startswith(SUBSCRIPTION_PREFIX):
                name = name.removeprefix(SUBSCRIPTION_PREFIX)
                return "subscription", name, f"subscription:{name}", None
            return "queue", name, f"queue:{name}", None
        if isinstance(group, ShareGroup):
            name = self._filter_name(group.address)
            return "share", name, f"share:{name}", None
        if isinstance(group, SessionGroup) and group.session is not None:
            name, subscription = group.session.client_id, group.subscription
            if subscription is None:
                return "session", name, f"session:{name}", None
            shown = self._filter_name(subscription.address)
            return "session", name, f"session:{name} {shown}", shown
        if group is engine.delays.group:
            return "delayed", "delayed messages", "delayed:", None
        if group is engine.half_messages.group:
            return "prepared", "half messages", "prepared:", None
        return "unknown", str(group.number), f"unknown:{group.number}", None

    def _expiry(self, group: Group) -> int | None:
        """When the message expires in this queue."""
        own, rules = self._expires_ms, group.rules
        ttl_ms = rules.settings.ttl_ms if isinstance(rules, QueueRules) else None
        if ttl_ms is None:
            return own
        return self._store_ms + ttl_ms if own is None else min(own, self._store_ms + ttl_ms)

    # --- who has it -----------------------------------------------------------------------------

    def _holder(self, group: Group, offset: int) -> Generator[None, None, MessageHolder | None]:
        if isinstance(group, ShareGroup):
            for session in list(group.members):
                if (yield from _has_in_flight(session, group, offset)):
                    return _session_holder(session)
            return None
        if isinstance(group, SessionGroup):
            return None if group.session is None else _session_holder(group.session)
        named = self._named.get(group)
        if named is None:
            return None
        if isinstance(group, LevelGroup):  # consumers know their offsets with the priority
            offset |= group.priority << OFFSET_BITS
        for registration in list(named.group.registrations):
            consumer = registration.consumer
            if isinstance(consumer, ListsUnacknowledged) and isinstance(consumer, DescribesItself):
                for stretches in consumer.held():
                    if any(first <= offset < first + count for first, count in stretches):
                        said = consumer.describe()
                        return MessageHolder(
                            name=said.name, connection=said.connection, user=said.user
                        )
                    yield
        return None


def state_of(group: Group, offset: int) -> DestinationState:
    """How a message is in a queue, as its reader's cursor says."""
    cursor = group.cursor
    if cursor.is_settled(offset):
        return "settled"
    if offset < group.queue.index.first_offset:
        return "removed"
    if offset < cursor.next:
        return "waiting" if cursor.is_requeued(offset) else "unacknowledged"
    if offset >= cursor.stop:
        return "left out"
    return "waiting" if offset < group.queue.visible else "pending"


def offset_of(index: Index, position: int) -> int | None:
    """The offset of a message in an index that is in memory, by its position; None: it is not
    there. The entries of a queue ascend in position."""
    low, high = index.first_offset, index.end_offset
    while low < high:
        middle = (low + high) // 2
        entry = index.read_hot(middle, 1)
        if not entry:
            return None
        found = int.from_bytes(entry[:8], "big")
        if found == position:
            return middle
        if found < position:
            low = middle + 1
        else:
            high = middle
    return None


def _session_holder(session: MqttSession) -> MessageHolder:
    return MessageHolder(name=session.client_id, connection="", user=session.principal)


def _has_in_flight(
    session: MqttSession, group: ShareGroup, offset: int
) -> Generator[None, None, bool]:
    """Whether a member of a share has a message in flight."""
    at = 0
    while at < session.unacked.block_count:
        for _, holder, first, count in session.unacked.runs_of(at):
            of_group = isinstance(holder, QueueFlight | ShareFlight) and holder.group is group
            if of_group and first <= offset < first + count:
                return True
        at += 1
        yield
    return False


def topic_of(engine: Engine, numbers: Iterable[int], name: str) -> Topic | None:
    """The topic of this name, if one of these queues is its own."""
    topic = engine.topics.topics.get(name)
    wanted = set(numbers)
    if topic is None or not any(queue.number in wanted for queue in topic.queues):
        return None
    return topic
