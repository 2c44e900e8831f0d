"""Which messages of sampled traces consumers have yet to settle.

Consumers settle by queue and offset, which the record of a message names. So what waits here is
found by its queue, and nothing is done for any other message. All of it belongs to the loop; a
record of acknowledgements is looked at in steps, since it may name very many groups.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from polymq.broker.engine import Engine
from polymq.broker.named_queues.named_queues import SUBSCRIPTION_PREFIX
from polymq.broker.port.values import share_name_of
from polymq.broker.queues.queue import Group
from polymq.broker.sessions.flights import SessionGroup
from polymq.broker.sessions.shares import ShareGroup
from polymq.telemetry.log_scan import TracedMessage
from polymq.telemetry.spans import Span, delivery_span

WAITING_MAX: Final = 1_000
"""Messages whose deliveries are waited for; the oldest give way to new ones."""


@dataclass(eq=False, slots=True)
class Waiting:
    """A message, and the groups that have settled it.

    Attributes:
        topic: its topic, by the user's name.
    """

    message: TracedMessage
    destination: str
    topic: str
    groups: set[str] = field(default_factory=set)


class Deliveries:
    """Makes spans of deliveries.

    Attributes:
        forgotten_count: messages that had to give way; deliveries of them are not seen any more.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._waiting: dict[Waiting, None] = {}  # oldest first
        self._by_queue: dict[int, dict[int, Waiting]] = {}  # by number and offset
        self._by_topic: dict[tuple[str, int], dict[int, Waiting]] = {}  # and queue; by offset
        self.forgotten_count = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, message: TracedMessage, destination: str, topic: str) -> None:
        """Wait for the deliveries of a message."""
        waiting = Waiting(message, destination, topic)
        self._waiting[waiting] = None
        for number, offset in message.targets:
            self._by_queue.setdefault(number, {})[offset] = waiting
        by_offset = self._by_topic.setdefault((topic, message.queue_id), {})
        by_offset[message.queue_offset] = waiting
        if len(self._waiting) > WAITING_MAX:
            self._forget(next(iter(self._waiting)))
            self.forgotten_count += 1

    def _forget(self, waiting: Waiting) -> None:
        del self._waiting[waiting]
        message = waiting.message
        for number, offset in message.targets:
            _remove(self._by_queue, number, offset)
        _remove(self._by_topic, (waiting.topic, message.queue_id), message.queue_offset)

    def settled(self, op: dict[str, Any], stored_ms: int) -> Generator[None, None, list[Span]]:
        """The spans that a record of acknowledgements ends.

        Args:
            stored_ms: when it was stored.
        """
        found: list[Span] = []
        for number, _next, stretches in op.get("g", ()):
            group = self._engine.queue_store.groups.get(number)
            if group is not None and group.queue.number in self._by_queue:
                found += self._settled_by(group, stretches, stored_ms)
            yield
        for name, topic, queue_id, _incarnation, offset in op.get("o", ()):
            for at, waiting in list(self._by_topic.get((topic, queue_id), {}).items()):
                if at < offset:
                    found += _span_of(waiting, name, "", stored_ms)
            yield
        return found

    def _settled_by(
        self, group: Group, stretches: Sequence[Sequence[int]], stored_ms: int
    ) -> list[Span]:
        by_offset = self._by_queue[group.queue.number]
        is_only = len(group.queue.groups) <= 1
        found: list[Span] = []
        name, client = group.queue.name.removeprefix(SUBSCRIPTION_PREFIX), ""
        if isinstance(group, ShareGroup):
            name = share_name_of(group.address)
        elif isinstance(group, SessionGroup) and group.session is not None:
            client = group.session.client_id
        ordered = sorted((first, count) for first, count in stretches)
        for offset, waiting in list(by_offset.items()):
            at = bisect_right(ordered, offset, key=lambda stretch: stretch[0]) - 1
            if at < 0 or offset >= sum(ordered[at]):
                continue
            found += _span_of(waiting, name, client, stored_ms, str(group.number))
            if is_only:
                _remove(self._by_queue, group.queue.number, offset)
        return found


def _span_of(
    waiting: Waiting, name: str, client: str, stored_ms: int, known_as: str = ""
) -> list[Span]:
    """The span of a group's first settlement; a group may say the same again."""
    key = known_as or f"group {name}"
    if key in waiting.groups:
        return []
    waiting.groups.add(key)
    span = delivery_span(waiting.message, waiting.destination, stored_ms, group=name, client=client)
    return [span]


def _remove(table: dict[Any, dict[int, Waiting]], key: Any, offset: int) -> None:
    """Take an entry out, and what holds it if it was the last."""
    by_offset = table.get(key)
    if by_offset is not None:
        by_offset.pop(offset, None)
        if not by_offset:
            del table[key]
