"""Readers as the admin API shows them: whose they are, who takes their messages, and since when
these wait. Which readers there are is said by `polymq/readers.py`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field

from polymq.broker.engine import Engine
from polymq.broker.errors import Reason, Refused
from polymq.broker.exchanges.entities import NamedQueue
from polymq.broker.port import Address, display_name, parse_display_name
from polymq.broker.queues.inspection import Need, NeedRecord, stored_ms
from polymq.broker.sessions.session import MqttSession
from polymq.broker.sessions.shares import ShareGroup
from polymq.net.clients import ConsumerInfo, DescribesItself
from polymq.readers import Progress, Readers, Source, in_flight_count


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


class Survey(Readers):
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
        super().__init__(engine, filter_name=filter_name)
        self._members = members

    def topic_of(self, group: str, wanted: str | None) -> str:
        """The stored name of a topic of a consumer group: of the one that it reads, if none is
        named. Raises Refused: BAD_ARGUMENT."""
        if wanted is not None:
            return parse_display_name(wanted)
        topics = sorted({topic for topic, *_ in self._engine.groups.progress(group)})
        if len(topics) != 1:
            shown = ", ".join(display_name(topic) for topic in topics[:8]) or "none yet"
            raise Refused(Reason.BAD_ARGUMENT, f"name the topic: the group reads {shown}")
        return topics[0]

    def user_of(self, source: Source) -> str:
        """Whose it is; empty for nobody's, or many's."""
        if isinstance(source, NamedQueue):
            return self._engine.exchanges.owners.principal_of(source.terms.maker)
        return source.principal if isinstance(source, MqttSession) else ""

    def consumer_count(self, source: Source) -> int:
        """How many take its messages now."""
        if isinstance(source, NamedQueue):
            return len(source.group.registrations)
        if isinstance(source, MqttSession):
            return int(source.link is not None)
        if isinstance(source, ShareGroup):
            return len(source.members)
        return len(self._members(source))

    def consumers(self, source: Source) -> Iterable[ConsumerInfo]:
        """Who they are, as far as they say it."""
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

    def look(
        self, source: Source, *, queues_max: int
    ) -> Generator[Need | NeedRecord | None, bytes | None, State]:
        """How far a reader is. Its messages are dated in at most `queues_max` queues; of more,
        `queues` has no entries."""
        state = State()
        for progress in self.progress(source):
            if progress.waiting and len(state.queues) < queues_max:
                progress.oldest_ms = yield from stored_ms(progress.queue.index, progress.first)
            state.add(progress)
            yield None
        if isinstance(source, MqttSession):
            state.unacknowledged = in_flight_count(source)
        del state.queues[queues_max:]
        return state


def _session_info(session: MqttSession) -> ConsumerInfo:
    return ConsumerInfo(
        name=session.client_id,
        user=session.principal,
        unacknowledged=in_flight_count(session),
    )
