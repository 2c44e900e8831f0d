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
* What is owed to a subscription (`owed.py`) is sent in the order of names, because the log keeps
  the name that was sent last. Records are read ahead, as far as the window allows. One that has to
  wait for its commit point or for the disk holds up those behind it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from polymq.broker.durability import FLUSHED, Durability
from polymq.broker.errors import Refused
from polymq.broker.kernels.delivery import publish_qos
from polymq.broker.messages.kernels.record_run import RecordRun
from polymq.broker.port.values import Address, Position
from polymq.broker.queues.expiry import is_expired
from polymq.broker.topics.retained import Retained, origin_of, position_of

if TYPE_CHECKING:
    from polymq.broker.core import Core
    from polymq.broker.sessions.owed import Owed
    from polymq.broker.sessions.session import MqttSession
    from polymq.broker.sessions.subscription import Subscription
    from polymq.broker.topics.topics import Topics

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
        """Send the session what matches the subscription and was published before `since`. Of a
        subscription that is owed what matches, this says that the time has come."""
        if session.replay is None:
            session.replay = RetainedReplay(self, session)
        session.replay.add(subscription.address, since)

    def take_turns(self, replay: RetainedReplay) -> None:
        """It has something to do."""
        self._turns.append(replay)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self.core.unhurried(self._step)

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


class _Found:
    """A message on its way, or the end of what a subscription is owed.

    Attributes:
        owed: what it is part of; None where the walk ends with its connection.
        address, entry: of a message.
        records: the message, if it could be read.
        is_read: that was tried, or there is nothing to read.
    """

    __slots__ = ("address", "entry", "is_read", "owed", "records", "subscription")

    def __init__(
        self, subscription: Subscription, owed: Owed | None, address: Address, entry: bytes
    ) -> None:
        self.subscription = subscription
        self.owed = owed
        self.address = address
        self.entry = entry
        self.records: bytes | None = None
        self.is_read = not entry


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
        self._filters: deque[Address] = deque()  # that wait for their turn
        self._since_when: dict[Address, Position] = {}  # what they match comes by itself
        self._subscription: Subscription | None = None  # whose turn it is
        self._owed: Owed | None = None  # what it is owed; None: its walk ends with the connection
        self._since = Position(0)
        self._matches: Iterator[tuple[Address, bytes] | None] = iter(())
        self._on_their_way = 0
        self._next: deque[_Found] = deque()  # what is owed and on its way, in order
        self._refused = False  # the log took nothing; it will be asked again
        self.has_turn = False

    def add(self, address: Address, since: Position) -> None:
        """One filter more, behind the others."""
        if address not in self._since_when:
            self._filters.append(address)
        self._since_when[address] = since
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
                if not self._filters:
                    self.has_turn = False
                    break
                self._begin_next()
                left -= BEGIN_COST
                continue
            if self._session.credit() <= self._on_their_way:
                self.has_turn = False
                break
            left -= self._look()
        return room - left

    def _begin_next(self) -> None:
        """The next filter's turn, if anything is to be done for it."""
        address = self._filters.popleft()
        since = self._since_when.pop(address)
        subscription = self._session.subscriptions.get(address)
        if subscription is None:
            return
        owed, behind = subscription.owed, None
        if owed is not None:
            since, behind = owed.since, owed.reached
        elif subscription.durable and subscription.qos:
            return  # there was nothing, or it got all of it
        self._subscription, self._owed, self._since = subscription, owed, since
        self._matches = self._replays.retained.match(address, behind)

    def _look(self) -> int:
        """Look at the next message. Returns what that costs."""
        subscription, owed = self._subscription, self._owed
        assert subscription is not None
        if not self._wants(subscription, owed):  # unsubscribed meanwhile [MQTT-3.10.4-2]
            self._end_turn()
            return LOOK_COST
        try:
            match = next(self._matches)
        except StopIteration:
            self._end_turn()
            if owed is not None:
                self._next.append(_Found(subscription, owed, (), b""))
                self._send_next()
            return LOOK_COST
        if match is not None and origin_of(match[1]) < self._since:
            found = _Found(subscription, owed, *match)
            self._on_their_way += 1
            if owed is not None:
                self._next.append(found)
            self._core.commits.when(
                position_of(found.entry) + 1,
                self._visible_at(found.address[0]),
                self._read,
                found,
                urgent=False,
            )
            return SEND_COST
        return LOOK_COST

    def _end_turn(self) -> None:
        self._subscription = self._owed = None
        self._matches = iter(())

    def _is_over(self) -> bool:
        """The client is gone."""
        session = self._session
        return session.connection_number != self._connection or session.link is None

    def _wants(self, subscription: Subscription, owed: Owed | None) -> bool:
        """Whether the client is there, and has neither unsubscribed nor, where something is owed,
        subscribed again."""
        found = self._session.subscriptions.get(subscription.address)
        return found is subscription and found.owed is owed and not self._is_over()

    def _visible_at(self, topic: str) -> Durability:
        """What a message of the topic waits for before a new subscriber may see it."""
        found = self._replays.topics.topics.get(topic)
        return FLUSHED if found is None else max(FLUSHED, found.settings.commit_point)

    def _read(self, found: _Found) -> None:
        def done(records: bytes | None, _: int) -> None:
            found.records = records
            found.is_read = True
            if found.owed is not None:
                self._send_next()
            else:
                self._send(found)
                self._on_their_way -= 1
                self.ready()  # there is credit for another one

        if self._wants(found.subscription, found.owed):
            self._core.reading.read_entries(found.entry, done)
        else:
            done(None, 0)

    def _send_next(self) -> None:
        """Send what is owed and read, in order."""
        while self._next and self._next[0].is_read and not self._refused:
            found = self._next[0]
            try:
                self._send(found)
            except Refused:  # the log takes nothing now
                self._refused = True
                seconds = self._core.limits.lazy_flush_seconds
                self._core.scheduler.call_later(seconds, self._try_again)
                return
            self._next.popleft()
            if found.entry:
                self._on_their_way -= 1
        self.ready()

    def _try_again(self) -> None:
        self._refused = False
        self._send_next()

    def _send(self, found: _Found) -> None:
        """Send a message, or note that a subscription is owed nothing any more. Raises Refused."""
        subscription, owed = found.subscription, found.owed
        if not self._wants(subscription, owed):
            return
        if not found.entry:
            assert subscription.group is not None
            self._core.journal.write({"op": "replayed", "g": subscription.group.number})
            return
        records = found.records or b""  # one message, or none if it cannot be read
        for run in self._core.metas.plain_runs(records, 0, len(records))[0]:
            if subscription.is_own(run.meta) or is_expired(run, self._core.clock_ms()):
                continue
            if owed is None or not owed.interrupted or self._waited(subscription, run):
                self._session.send_retained(subscription, run, found.address, found.entry)
        if owed is not None:
            owed.reached = found.address

    def _waited(self, subscription: Subscription, run: RecordRun) -> bool:
        """Whether a message that an earlier connection was owed has waited for this one."""
        keeps = self._session.sessions.settings.keeps_qos_0
        return keeps or min(publish_qos(run), subscription.qos) > 0
