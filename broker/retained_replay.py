"""Sending the retained messages that match new subscriptions, a slice per loop iteration.

Rules:

* A message that was published after the SUBSCRIBE comes to the subscription anyway, so it is not
  sent from here as well. What counts is where the SUBSCRIBE stands in the log: SUBACK, and so this,
  waits for the disk, and others publish meanwhile.
* One that was published before is sent when it is committed, as any message.
* What is read and not sent yet counts against the session's window.
* A session's subscriptions are served one after the other, and all sessions share one slice per
  iteration. So the work of an iteration has a bound, however many filters are subscribed to at
  once, and a session has one walk over the messages at a time.
* A filter that is subscribed to again while it waits for its turn is served once. So what waits is
  no more than the session's subscriptions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from broker.errors import Refused
from broker.port import FLUSHED, Durability, Position, Words
from broker.retained import Retained, origin_of, position_of

if TYPE_CHECKING:
    from broker.core import Core
    from broker.session import MqttSession, Subscription
    from broker.topics import Topics

REPLAYED_AT_ONCE: Final = 4_000
"""Units of one iteration, some 0.5 us each: what retained messages take of a loop that is busy with
them is about half."""
TURN_UNITS: Final = 1_000
"""Of one session before the next has its turn."""
LOOK_COST: Final = 2
"""A message that is compared with a filter."""
BEGIN_COST: Final = 10
"""A filter whose turn it is."""
SEND_COST: Final = 100
"""A message that is sent. To a persistent session its packet id is written before."""


class RetainedReplays:
    """The sessions that get retained messages, in turns."""

    def __init__(self, core: Core, topics: Topics, retained: Retained) -> None:
        self.core = core
        self.topics = topics
        self.retained = retained
        self._turns: deque[RetainedReplay] = deque()
        self._scheduled = False

    def add(self, session: MqttSession, subscription: Subscription, since: Position) -> None:
        """Send the session what matches the subscription and was published before `since`."""
        if session.replay is None:
            session.replay = RetainedReplay(self, session)
        session.replay.add(subscription.words, since)

    def take_turns(self, replay: RetainedReplay) -> None:
        """It has something to do."""
        self._turns.append(replay)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self.core.scheduler.call_soon(self._step)

    def _step(self) -> None:
        """One iteration's slice."""
        self._scheduled = False
        room = REPLAYED_AT_ONCE
        while room > 0 and self._turns:
            replay = self._turns.popleft()
            room -= replay.step(min(room, TURN_UNITS))
            if replay.has_turn:
                self._turns.append(replay)
        if self._turns:
            self._schedule()


class RetainedReplay:
    """What one connection of a session still has to get.

    Attributes:
        has_turn: it is among those that take turns; else it is done, or waits for credit, which
            either the session tells it of (`ready`), or a message that was on its way.
    """

    def __init__(self, replays: RetainedReplays, session: MqttSession) -> None:
        self._replays = replays
        self._core = replays.core
        self._session = session
        self._connection = session.connection_number
        self._filters: deque[Words] = deque()  # that wait for their turn
        self._since_when: dict[Words, Position] = {}  # what they match comes by itself
        self._subscription: Subscription | None = None  # whose turn it is
        self._since = Position(0)
        self._found: Iterator[tuple[Words, bytes] | None] = iter(())
        self._on_their_way = 0
        self.has_turn = False

    def add(self, words: Words, since: Position) -> None:
        """One filter more, behind the others."""
        if words not in self._since_when:
            self._filters.append(words)
        self._since_when[words] = since
        self.ready()

    def ready(self) -> None:
        """There may be credit."""
        if not self.has_turn and (self._filters or self._subscription is not None):
            self.has_turn = True
            self._replays.take_turns(self)

    def step(self, room: int) -> int:
        """Send what the room and the credit allow. Returns how many units that took."""
        left = room
        while left > 0:
            if self._is_over():
                self.has_turn = False
                break
            if self._subscription is None:
                if not self._begin_next():
                    self.has_turn = False
                    break
                left -= BEGIN_COST
            if self._session.credit() <= self._on_their_way:
                self.has_turn = False
                break
            left -= self._look()
        return room - left

    def _begin_next(self) -> bool:
        """The next filter's turn. Returns whether there is one."""
        while self._filters:
            words = self._filters.popleft()
            self._since = self._since_when.pop(words)
            self._subscription = self._session.subscriptions.get(words)
            if self._subscription is not None:
                self._found = self._replays.retained.match(words)
                return True
        return False

    def _look(self) -> int:
        """Look at the next message. Returns what that costs."""
        subscription = self._subscription
        assert subscription is not None
        try:
            match = next(self._found)
        except StopIteration:
            self._subscription = None
            self._found = iter(())
            return LOOK_COST
        if not self._wants(subscription):  # unsubscribed meanwhile [MQTT-3.10.4-2]
            self._subscription = None
        elif match is not None and origin_of(match[1]) < self._since:
            words, entry = match
            self._on_their_way += 1
            self._core.commits.when(
                position_of(entry) + 1,
                self._visible_at(words[0]),
                self._read,
                subscription,
                entry,
                urgent=False,
            )
            return SEND_COST
        return LOOK_COST

    def _is_over(self) -> bool:
        """The client is gone."""
        session = self._session
        return session.connection_number != self._connection or session.link is None

    def _wants(self, subscription: Subscription) -> bool:
        """Whether the client is there, and has not unsubscribed."""
        found = self._session.subscriptions.get(subscription.words)
        return found is subscription and not self._is_over()

    def _visible_at(self, topic: str) -> Durability:
        """What a message of the topic waits for before a new subscriber may see it."""
        found = self._replays.topics.topics.get(topic)
        return FLUSHED if found is None else max(FLUSHED, found.settings.commit_point)

    def _read(self, subscription: Subscription, entry: bytes) -> None:
        def done(records: bytes | None, _: int) -> None:
            self._send(subscription, entry, records)

        if self._wants(subscription):
            self._core.reading.read_entries(entry, done)
        else:
            self._on_their_way -= 1
            self.ready()

    def _send(self, subscription: Subscription, entry: bytes, records: bytes | None) -> None:
        if records is not None and self._wants(subscription):
            try:
                # One message, so it is all.
                for run in self._core.metas.plain_runs(records, 0, len(records))[0]:
                    self._session.send_retained(subscription, run, entry)
            except Refused:  # the log takes no packet id now
                seconds = self._core.limits.lazy_flush_seconds
                self._core.scheduler.call_later(seconds, lambda: self._read(subscription, entry))
                return
        self._on_their_way -= 1
        self.ready()  # there is credit for another one
