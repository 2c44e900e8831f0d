"""Readers of all protocols, as the engine has them: what a list and a page of one are made of.

A *reader* takes each message once: an AMQP queue with its consumers, a named subscription of HTTP,
a persistent MQTT session, a shared subscription of MQTT, or a consumer group of RocketMQ. Its id
is its kind, a colon and its name.

Functions that may take long are generators of steps (`steps.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from polymq.broker.engine import Engine
from polymq.broker.errors import Reason, Refused
from polymq.broker.exchanges.entities import NamedQueue
from polymq.broker.named_queues.named_queues import SUBSCRIPTION_PREFIX
from polymq.broker.port import Address, display_name, parse_display_name
from polymq.broker.queues.inspection import Need, NeedRecord, stored_ms
from polymq.broker.queues.queue import Group
from polymq.broker.sessions.session import MqttSession
from polymq.broker.sessions.shares import ShareGroup
from polymq.net.clients import ConsumerInfo, DescribesItself

Kind = Literal["queue", "subscription", "session", "share", "group"]
AT_ONCE: Final = 64
"""Readers that are looked at in one step: some 100 us."""

Steps = Generator[Need | NeedRecord | None, bytes | None, None]


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """A reader.

    Attributes:
        source: what the engine has; the name of a consumer group.
    """

    kind: Kind
    name: str
    source: NamedQueue | MqttSession | ShareGroup | str

    @property
    def id(self) -> str:
        """See the head of this file."""
        return f"{self.kind}:{self.name}"


@dataclass(slots=True)
class Progress:
    """How far a reader is in one queue.

    Attributes:
        topic: of a consumer group, as clients write it; else empty.
        queue: its number in the topic; the priority in a priority queue.
        position: offset of the next message that the reader gets.
        end: one past the newest.
        waiting: messages that it has not got.
        unacknowledged: messages that it has got and not settled.
        oldest_ms: when the oldest of those that wait was stored; None: none waits, or that is not
            known.
    """

    topic: str = ""
    queue: int = 0
    position: int = 0
    end: int = 0
    waiting: int = 0
    unacknowledged: int = 0
    oldest_ms: int | None = None


@dataclass(slots=True)
class State:
    """How far a reader is, in all queues together, and in each."""

    waiting: int = 0
    unacknowledged: int = 0
    oldest_ms: int | None = None
    queues: list[Progress] = field(default_factory=list)

    def add(self, progress: Progress) -> None:
        """One more queue."""
        self.waiting += progress.waiting
        self.unacknowledged += progress.unacknowledged
        if progress.oldest_ms is not None:
            self.oldest_ms = min(self.oldest_ms or progress.oldest_ms, progress.oldest_ms)
        self.queues.append(progress)


class Survey:
    """Looks at the readers of an engine.

    Args:
        filter_name: the topic filter that an address stands for.
        members: of a consumer group that is connected.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        filter_name: Callable[[Address], str],
        members: Callable[[str], Sequence[ConsumerInfo]],
    ) -> None:
        self._engine = engine
        self._filter_name = filter_name
        self._members = members

    # --- which there are ------------------------------------------------------------------------

    def entries(self, kind: Kind | Literal["all"]) -> Iterator[Entry]:
        """All readers of a kind, or of all. Readers may come and go meanwhile."""
        wants = {kind} if kind != "all" else {"queue", "subscription", "session", "share", "group"}
        if wants & {"queue", "subscription"}:
            yield from (one for one in self._named() if one.kind in wants)
        if "session" in wants:
            for session in list(self._engine.sessions.by_client.values()):
                if not session.clean:
                    yield Entry("session", session.client_id, session)
        if "share" in wants:
            for share in list(self._engine.sessions.shares.by_address.values()):
                yield Entry("share", self._filter_name(share.address), share)
        if "group" in wants:
            for name in self._engine.groups.names():
                yield Entry("group", name, name)

    def _named(self) -> Iterator[Entry]:
        queues = self._engine.named_queues.queues
        for name in list(queues):
            found = queues.get(name)
            if found is not None:
                yield _named_entry(name, found)

    def find(self, identity: str) -> Generator[None, None, Entry | None]:
        """A reader by its id, in steps: shares are looked through."""
        kind, _, name = identity.partition(":")
        engine = self._engine
        if kind in ("queue", "subscription"):
            full = name if kind == "queue" else SUBSCRIPTION_PREFIX + name
            found = engine.named_queues.queues.get(full)
            return None if found is None else _named_entry(full, found)
        if kind == "session":
            session = engine.sessions.by_client.get(name)
            return None if session is None or session.clean else Entry("session", name, session)
        if kind == "share":
            for at, one in enumerate(self.entries("share"), 1):
                if one.name == name:
                    return one
                if at % AT_ONCE == 0:
                    yield
        if kind == "group" and engine.groups.info(name) is not None:
            return Entry("group", name, name)
        return None

    def topic_of(self, group: str, wanted: str | None) -> str:
        """The stored name of a topic of a consumer group: of the one that it reads, if none is
        named. Raises Refused: BAD_ARGUMENT."""
        if wanted is not None:
            return parse_display_name(wanted)
        topics = sorted({topic for topic, _, _ in self._engine.groups.progress(group)})
        if len(topics) != 1:
            shown = ", ".join(display_name(topic) for topic in topics[:8]) or "none yet"
            raise Refused(Reason.BAD_ARGUMENT, f"name the topic: the group reads {shown}")
        return topics[0]

    # --- how they are ---------------------------------------------------------------------------

    def user_of(self, entry: Entry) -> str:
        """Whose it is; empty for nobody's, or many's."""
        source = entry.source
        if isinstance(source, NamedQueue):
            return self._engine.exchanges.owners.principal_of(source.terms.maker)
        return source.principal if isinstance(source, MqttSession) else ""

    def consumer_count(self, entry: Entry) -> int:
        """How many take its messages now."""
        source = entry.source
        if isinstance(source, NamedQueue):
            return len(source.group.registrations)
        if isinstance(source, MqttSession):
            return int(source.link is not None)
        if isinstance(source, ShareGroup):
            return len(source.members)
        return len(self._members(source))

    def consumers(self, entry: Entry) -> Iterable[ConsumerInfo]:
        """Who they are, as far as they say it."""
        source = entry.source
        if isinstance(source, NamedQueue):
            for registration in list(source.group.registrations):
                if isinstance(registration.consumer, DescribesItself):
                    yield registration.consumer.describe()
        elif isinstance(source, MqttSession):
            if source.link is not None:
                yield _session_info(source)
        elif isinstance(source, ShareGroup):
            yield from map(_session_info, list(source.members))
        else:
            yield from self._members(source)

    def waiting(self, entry: Entry) -> Generator[None, None, int]:
        """How many messages wait for a reader."""
        total = 0
        if isinstance(entry.source, str):
            for at, (_, queue, offset) in enumerate(self._engine.groups.progress(entry.source), 1):
                total += max(0, queue.flushed - max(offset, queue.index.first_offset))
                if at % AT_ONCE == 0:
                    yield
            return total
        for at, (_, group) in enumerate(groups_of(entry), 1):
            total += group.ready_count
            if at % AT_ONCE == 0:
                yield
        return total

    def look(
        self, entry: Entry, *, queues_max: int
    ) -> Generator[Need | NeedRecord | None, bytes | None, State]:
        """How far a reader is. Its messages are dated in at most `queues_max` queues; of more,
        `queues` has no entries."""
        state = State()
        if isinstance(entry.source, str):
            yield from self._look_at_group(entry.source, state, queues_max)
        else:
            for number, group in groups_of(entry):
                dated = len(state.queues) < queues_max
                progress = yield from _progress(number, group, dated=dated)
                state.add(progress)
                yield None
        if isinstance(entry.source, MqttSession):
            # What is in flight stands in the queues of all filters that it matches.
            state.unacknowledged = entry.source.unacked.count + len(entry.source.releasing)
        del state.queues[queues_max:]
        return state

    def _look_at_group(self, name: str, state: State, queues_max: int) -> Steps:
        topics = self._engine.topics
        for topic, queue, offset in self._engine.groups.progress(name):
            found = topics.find(topic)
            number = -1 if found is None or queue not in found.queues else found.queues.index(queue)
            first, end = max(offset, queue.index.first_offset), queue.flushed
            progress = Progress(display_name(topic), number, offset, end, max(0, end - first))
            if first < end and len(state.queues) < queues_max:
                progress.oldest_ms = yield from stored_ms(queue.index, first)
            state.add(progress)
            yield None


def groups_of(entry: Entry) -> Iterator[tuple[int, Group]]:
    """The groups whose cursors say how far a reader is that is no consumer group of RocketMQ, each
    with a number: that of its priority, where it is one of several."""
    source = entry.source
    if isinstance(source, NamedQueue):
        groups = source.group.all_groups()
        yield from enumerate(groups) if len(groups) > 1 else ((0, group) for group in groups)
    elif isinstance(source, ShareGroup):
        yield 0, source
    elif isinstance(source, MqttSession):
        for subscription in list(source.subscriptions.values()):
            group = subscription.group
            if subscription.durable and not subscription.is_shared and group is not None:
                yield 0, group


def _named_entry(name: str, found: NamedQueue) -> Entry:
    if name.startswith(SUBSCRIPTION_PREFIX):
        return Entry("subscription", name.removeprefix(SUBSCRIPTION_PREFIX), found)
    return Entry("queue", name, found)


def _session_info(session: MqttSession) -> ConsumerInfo:
    return ConsumerInfo(
        name=session.client_id,
        user=session.principal,
        unacknowledged=session.unacked.count + len(session.releasing),
    )


def _progress(
    number: int, group: Group, *, dated: bool
) -> Generator[Need | NeedRecord | None, bytes | None, Progress]:
    cursor, index = group.cursor, group.queue.index
    end = group.queue.visible
    head = cursor.peek(1, end)
    first = cursor.next if head is None else max(head[0], index.first_offset)
    progress = Progress(
        queue=number,
        position=first,
        end=end,
        waiting=cursor.ready_count(end),
        unacknowledged=cursor.outstanding_count,
    )
    if dated and head is not None:
        progress.oldest_ms = yield from stored_ms(index, first)
    return progress
