"""Messages that a queue gives up: to its dead letter exchange, or away.

Why a message is given up (`deaths.Cause`): a consumer rejected it, it expired, the queue was too
long, it was delivered too often. With a dead letter exchange it goes there, as a move (`moves.py`):
the new record settles the old entry. Without one it is settled.

Rules:

* A message goes by its own routing key and those besides it (`messages/copies.py`), or by the one
  that its queue has for dead letters.
* Messages are taken from the cursor before they come here, and leave in the order in which they
  came: a stretch that has to be read from the disk holds up those behind it.
* A message never comes back by itself to a queue that gave it up, unless somebody rejected it on
  the way round (`History.cycles`). It is dropped, and counted.
* Is there no such exchange at that moment, the message is dropped and counted. RabbitMQ's classic
  queues do the same. So is what the queue's owner may not pass on: it has to have the right to read
  all that the queue collects, and to publish where the message goes (`accounts/owners.py`).
* A message that leaves no room for its history keeps as much of it as fits, the latest deaths. One
  that does not fit at all, with the queues that it would go to, is set aside (`set_aside.py`).
* What the log does not take now (a full disk) is tried again; until then it is neither settled nor
  delivered.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from polymq.broker.core import Core
from polymq.broker.errors import PASSING, Reason, Refused
from polymq.broker.kernels.path import PlainTemplate
from polymq.broker.messages.copies import COPIES_PROPERTY, copies_of
from polymq.broker.messages.dead_letter_history import (
    CUT_MAX,
    DEATH_PROPERTY,
    Cause,
    Death,
    History,
    history_of,
)
from polymq.broker.messages.runs import RunMeta
from polymq.broker.messages.time_to_live import TTL_PROPERTY, ttl_property
from polymq.broker.moves.moves import Moves
from polymq.broker.moves.set_aside import SetAside
from polymq.broker.names import EXCHANGE_PROPERTY, exchange_and_key
from polymq.broker.queues.queue import Group, Queue
from polymq.broker.queues.settings import QueueSettings
from polymq.broker.queues.store import QueueStore
from polymq.broker.topics.retained import RETAIN_PROPERTY
from polymq.broker.topics.routes import TopicRoute
from polymq.broker.topics.topic import TopicTemplate
from polymq.broker.topics.topics import Topics
from polymq.core_log.kernels.batch import Batch

STRETCHES_AT_ONCE: Final = 16
"""Stretches that wait and are moved in one loop iteration: some milliseconds."""


class Destinations(Protocol):
    """What dead letters need of the exchanges."""

    def dead_letter_route(
        self, exchange: str, routing_key: str, copies: Sequence[str]
    ) -> TopicRoute | None:
        """Where a message published there goes, also by further routing keys; None if there is no
        such place."""

    def may_dead_letter(self, queue: str, exchange: str, routing_key: str) -> bool:
        """Whether the queue's owner may read what it collects, and publish there."""

    def queues_named(self, names: set[str]) -> frozenset[Queue]:
        """The queues that have these names."""


@dataclass(slots=True)
class DeadLetterCounts:
    """Figures of one engine, for metrics."""

    moved: dict[str, int] = field(default_factory=lambda: dict.fromkeys(Cause, 0))
    """Messages that went to a dead letter exchange, by cause."""
    dropped: dict[str, int] = field(default_factory=lambda: dict.fromkeys(Cause, 0))
    """Messages that had a dead letter exchange and could not go there, by cause."""
    forbidden: dict[str, int] = field(default_factory=lambda: dict.fromkeys(Cause, 0))
    """Of those: messages that the queue's owner may not pass on, by cause."""
    given_up: dict[str, int] = field(default_factory=lambda: dict.fromkeys(Cause, 0))
    """Messages that left a queue, a session or a subscription unsettled, by cause: with a dead
    letter exchange or without."""
    refused: int = 0
    """Messages that a full queue did not take (`reject-publish`)."""


class DeadLetters:
    """What the queues of one engine share."""

    def __init__(
        self,
        core: Core,
        queue_store: QueueStore,
        topics: Topics,
        moves: Moves,
        destinations: Destinations,
        aside: SetAside,
    ) -> None:
        self.core = core
        self.queue_store = queue_store
        self.topics = topics
        self.moves = moves
        self.destinations = destinations
        self.aside = aside
        self.counts = DeadLetterCounts()

    def template(
        self, name: str, settings: QueueSettings, cause: Cause, meta: RunMeta, *, cut: int = 0
    ) -> TopicTemplate | None:
        """How messages of a kind that the queue `name` gives up are stored anew; None for not.

        Args:
            cut: how much of its history is left out: see `History.cut`.

        Raises:
            Refused: as `TopicPort.template`.
        """
        assert settings.dead_letter_exchange is not None
        exchange, key = exchange_and_key(meta.topic, meta.tag, meta.properties)
        copies = copies_of(meta.properties)
        history = history_of(meta.properties).with_death(
            Death(
                queue=name,
                cause=cause,
                count=1,
                time_s=self.core.clock_ms() // 1000,
                exchange=exchange,
                routing_key=key,
                copies=copies.shown,
            )
        )
        target = settings.dead_letter_exchange
        new_key = settings.dead_letter_key
        more: Sequence[str] = ()
        if new_key is None:
            new_key = key
            may_pass = self.destinations.may_dead_letter
            more = [copy for copy in copies.keys if may_pass(name, target, copy)]
        route = None
        if not history.is_endless:
            route = self.destinations.dead_letter_route(target, new_key, more)
        if route is not None:
            route = self._without_cycles(route, history)
        if route is None:
            return None
        properties = dict(meta.properties)
        for gone in (RETAIN_PROPERTY, EXCHANGE_PROPERTY, TTL_PROPERTY):
            properties.pop(gone, None)
        if settings.dead_letter_key is not None:
            properties.pop(COPIES_PROPERTY, None)
        if meta.priority:  # a dead letter does not expire again
            properties[TTL_PROPERTY] = ttl_property(None, meta.priority)
        if target != route.topic:
            properties[EXCHANGE_PROPERTY] = target
        properties[DEATH_PROPERTY] = history.cut(cut).encode()
        return self.topics.template(route, properties=properties)

    def permits(self, name: str, settings: QueueSettings, meta: RunMeta) -> bool:
        """Whether messages of a kind that the queue `name` gives up may go where they would."""
        target, key = settings.dead_letter_exchange, settings.dead_letter_key
        assert target is not None
        if key is None:
            _, key = exchange_and_key(meta.topic, meta.tag, meta.properties)
        permitted = self.destinations.may_dead_letter(name, target, key)
        if not permitted:
            self.core.notices.warn(
                "dead letters are dropped: the queue's owner may not pass them on",
                f"queue {name}",
                queue=name,
                exchange=target,
                routing_key=key,
            )
        return permitted

    def _without_cycles(self, route: TopicRoute, history: History) -> TopicRoute | None:
        """The route without queues that the message may not come back to."""
        skipped = self.destinations.queues_named(set(history.cycles()))
        if not route.by_headers and not skipped.intersection(route.queues):
            return route
        detour = self.topics.detour(route, skipped)
        return detour if detour.routed else None


class _Way:
    """Where the messages of one stretch go, run by run.

    Args:
        cut: see `DeadLetters.template`.
    """

    __slots__ = ("_cause", "_cut", "_forbidden", "_name", "_settings", "_shared")

    def __init__(
        self,
        shared: DeadLetters,
        name: str,
        settings: QueueSettings,
        cause: Cause,
        cut: int = 0,
    ) -> None:
        self._shared = shared
        self._name = name
        self._settings = settings
        self._cause = cause
        self._cut = cut
        self._forbidden = False  # the run that `template` was last asked for

    def template(self, meta: RunMeta) -> TopicTemplate | None:
        """See `DeadLetters.template`. Raises Refused."""
        shared = self._shared
        self._forbidden = not shared.permits(self._name, self._settings, meta)
        if self._forbidden:
            return None
        return shared.template(self._name, self._settings, self._cause, meta, cut=self._cut)

    def dropped(self, count: int) -> None:
        """So many messages, which count as moved, went nowhere."""
        counts = self._shared.counts
        counts.moved[self._cause] -= count
        counts.dropped[self._cause] += count
        if self._forbidden:
            counts.forbidden[self._cause] += count


Stretch = tuple[Group, int, int, Cause]
"""Messages of a group that it gives up: the first one's offset, how many, and why."""


class DeadLettering:
    """Gives up messages of one named queue, one stretch after the other."""

    __slots__ = ("_name", "_pending", "_running", "_settings", "_shared", "_waiting")

    def __init__(self, shared: DeadLetters, name: str, settings: QueueSettings) -> None:
        self._shared = shared
        self._name = name
        self._settings = settings
        self._pending: deque[Stretch] = deque()
        self._running = False  # in `_run`, on the stack
        self._waiting = False  # a move has not ended

    def give_up(self, group: Group, first: int, count: int, cause: Cause) -> None:
        """Messages [first, first + count), which were taken from the group's cursor."""
        self._shared.counts.given_up[cause] += count
        if self._settings.dead_letter_exchange is None:
            self._shared.queue_store.say_why(group, first, count, cause)
            group.settle(first, count)
            return
        if self._pending:
            last, start, length, why = self._pending[-1]
            if last is group and start + length == first and why is cause and not self._alone:
                self._pending[-1] = (group, start, length + count, cause)
                return
        self._pending.append((group, first, count, cause))
        self._run()

    def refuse(self, template: PlainTemplate, batch: Batch, first: int, last: int) -> None:
        """Rows of a batch that the queue has no room for: dead letters that were never in it."""
        if self._settings.dead_letter_exchange is None:
            return
        way = _Way(self._shared, self._name, self._settings, Cause.MAXLEN)
        try:
            target = way.template(template.meta)
            if target is not None:
                record = dataclasses.replace(
                    target.record,
                    extra_kind=template.record.extra_kind,
                    extra_name=template.record.extra_name,
                )
                self._shared.topics.publish(target, batch, first, last, record=record)
        except Refused:  # its publisher is told that it was not taken
            target = None
        self._shared.counts.moved[Cause.MAXLEN] += last - first
        if target is None:
            way.dropped(last - first)

    @property
    def _alone(self) -> bool:
        """Whether what would be extended is on its way already."""
        return self._waiting and len(self._pending) == 1

    def _run(self) -> None:
        if self._running:
            return
        self._running = True
        left = STRETCHES_AT_ONCE
        while self._pending and not self._waiting:
            self._waiting = True
            if left == 0:
                self._shared.core.reading.schedule(self._again)
                break
            left -= 1
            group, first, count, cause = self._pending[0]
            way = _Way(self._shared, self._name, self._settings, cause)
            self._shared.moves.move(group, first, count, way.template, self._moved, way.dropped)
        self._running = False

    def _moved(self, moved: int, error: Exception | None) -> None:
        """A stretch has gone, or as much of it as the log took."""
        group, first, count, cause = self._pending.popleft()
        counts = self._shared.counts
        counts.moved[cause] += moved
        left = (group, first + moved, count - moved, cause)
        if isinstance(error, Refused):
            if error.reason in PASSING:
                self._try_later(left)
            else:
                self._move_first(left, cut=0)
            return
        # Any other error is a record that cannot be read: the read was counted and told, and the
        # message stays as it is until a restart.
        self._again()

    def _move_first(self, stretch: Stretch, cut: int) -> None:
        """The log refused a stretch: move its first message alone, with a history cut so far."""
        group, first, _, cause = stretch
        way = _Way(self._shared, self._name, self._settings, cause, cut)
        done = partial(self._first_moved, stretch, cut)
        self._shared.moves.move(group, first, 1, way.template, done, way.dropped)

    def _first_moved(self, stretch: Stretch, cut: int, moved: int, error: Exception | None) -> None:
        group, first, _, cause = stretch
        self._shared.counts.moved[cause] += moved
        if isinstance(error, Refused):
            if error.reason in PASSING:
                self._try_later(stretch)
            elif error.reason is Reason.TOO_LARGE and cut < CUT_MAX:
                self._move_first(stretch, cut + 1)
            else:
                done = partial(self._first_set_aside, stretch)
                self._shared.aside.move(group, first, error, done)
            return
        self._first_gone(stretch)

    def _first_set_aside(self, stretch: Stretch, error: Refused | None) -> None:
        if error is not None:
            self._try_later(stretch)
        else:
            self._first_gone(stretch)

    def _first_gone(self, stretch: Stretch) -> None:
        group, first, count, cause = stretch
        if count > 1:
            self._pending.appendleft((group, first + 1, count - 1, cause))
        # Each of these takes some attempts: others have their turn between two of them.
        self._shared.core.reading.schedule(self._again)

    def _try_later(self, stretch: Stretch) -> None:
        """The log takes nothing now."""
        self._pending.appendleft(stretch)
        core = self._shared.core
        core.scheduler.call_later(core.limits.lazy_flush_seconds, self._again)

    def _again(self) -> None:
        self._waiting = False
        self._run()
