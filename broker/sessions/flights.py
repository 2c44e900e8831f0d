"""Messages in flight: sent to a persistent MQTT session with QoS 1 or 2, not acknowledged yet.

A *flight* holds such messages in `Unacked`. It says where they are read again after a
reconnection, and the QoS that they were sent with: the same one counts for the whole exchange,
whatever becomes of the subscription meanwhile [MQTT-4.4.0-1], [MQTT-3.10.4-3].

There are two kinds:

* A `QueueFlight` has messages of a filter queue, by their offsets. The cursor of the session's
  group says which of them are settled.
* A `RetainedFlight` is one retained message, which comes from no queue. Its place in the log is in
  the record that gave it its packet id. Its acknowledgement is a record of its own (the op
  `acked`), which gathers for as long as those of queues do.

A group outlives its subscription while messages of it are in flight. It delivers nothing more, and
goes with the last acknowledgement (the op `flown`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from polymq.broker.core import Core
from polymq.broker.errors import Refused
from polymq.broker.kernels.codes import PACKET_IDS
from polymq.broker.kernels.delivery import LiveFlight, publish_qos
from polymq.broker.pacing.costs import LIVE_COST, SESSION_COST
from polymq.broker.queues.queue import Group
from polymq.broker.state.journal import Op, Touched
from polymq.broker.topics.retained import position_of

if TYPE_CHECKING:
    from polymq.broker.kernels.path import Committed
    from polymq.broker.messages.message import Delivery
    from polymq.broker.messages.readers import Reading
    from polymq.broker.queues.cursor import Cursor
    from polymq.broker.queues.queue import Queue
    from polymq.broker.sessions.session import MqttSession
    from polymq.broker.sessions.subscription import Subscription

READ_AGAIN_MIN: Final = 16
"""Messages that are read at least after some were handed back: one by one takes long on a disk."""
UNKNOWN_QOS: Final = 0
"""Of messages whose record was written before records said it."""


class SessionGroup(Group):
    """The cursor of one subscription: on a filter queue, or on its backlog in memory.

    Attributes:
        session: whose it is; None for one that a crash left behind without anything in flight.
        subscription: None once the client has unsubscribed: what is in flight ends, and nothing
            else is delivered.
    """

    __slots__ = ("_flights", "session", "subscription")

    def __init__(
        self,
        queue: Queue,
        cursor: Cursor,
        *,
        number: int,
        reading: Reading,
        moved: Callable[[Group], None],
    ) -> None:
        super().__init__(queue, cursor, number=number, reading=reading, moved=moved)
        self.session: MqttSession | None = None
        self.subscription: Subscription | None = None
        self._flights: tuple[QueueFlight, ...] = ()

    @property
    def delivers(self) -> bool:
        """Whether it has a subscription, or members, for which it goes on."""
        return self.subscription is not None

    def subscription_of(self, _session: MqttSession) -> Subscription | None:
        """Whose options say how what is in flight to the session is sent again."""
        return self.subscription

    def arrival_cost(self) -> int:
        """See `Group`."""
        return SESSION_COST if self.registrations and self.number else super().arrival_cost()

    def run_cost(self) -> int:
        """See `Group`."""
        return SESSION_COST if self.number else LIVE_COST

    def arrived(self, run: Committed, first: int) -> None:
        """See `Group`. What would be sent with QoS 0 does not wait for a client that is away,
        unless that was asked for; nor does what a full session has no room for."""
        if not self.registrations and self._passes_over(run, first):
            return
        session = self.session
        if session is None or session.backlogs is None or session.backlogs.admit(self, run, first):
            super().arrived(run, first)

    def hand_out(self, run: Committed, first: int) -> None:
        """Offer a run that became visible at offset `first`, whatever waits already."""
        Group.arrived(self, run, first)

    def _passes_over(self, run: Committed, first: int) -> bool:
        """Let go of a run at the tail if it is none that waits, and say so. Behind others it is let
        go of when its turn comes (`Subscription.deliver`)."""
        session = self.session
        if (
            session is None
            or self.cursor.next != first
            or self.rules is not None
            or not (self.lets_go_of(run, first) or self._is_own(run))
        ):
            return False
        self.cursor.pass_over(run.count)
        session.sessions.queue_store.passed_over(self)
        return True

    def _is_own(self, run: Committed) -> bool:
        """Whether its client published the run, and does not want it."""
        return self.subscription is not None and self.subscription.is_own(run.meta)

    def lets_go_of(self, run: Committed, first: int) -> bool:
        """Whether the run, which became visible at `first`, does not wait for the client: that is
        away, and it would be sent with QoS 0."""
        subscription, session = self.subscription, self.session
        return not (
            self.registrations
            or subscription is None
            or session is None
            or session.sessions.settings.keeps_qos_0
            or min(subscription.qos_at(first), publish_qos(run))
        )

    def hand_back(self, first: int, count: int, delivery: Delivery) -> None:
        """The end of what was handed out is not sent now. It is as if it had not been taken."""
        sent = first - delivery.first_offset
        self._pump_count = max(
            READ_AGAIN_MIN, 2 * sent
        )  # what does not go out would be read again and again
        self.cursor.untake(first, count, delivery.redelivered)

    def flight(self, qos: int) -> QueueFlight:
        """What holds messages that are sent with this QoS: always the same object, so that runs
        of messages stay together."""
        for found in self._flights:
            if found.qos == qos:
                return found
        made = QueueFlight(self, qos)
        self._flights = (*self._flights, made)
        return made


class QueueFlight:
    """Messages of one group that were sent with one QoS."""

    __slots__ = ("group", "qos", "settle")

    def __init__(self, group: SessionGroup, qos: int) -> None:
        self.group = group
        self.qos = qos
        self.settle = group.settle  # without a call more for each acknowledgement


class RetainedFlight:
    """A retained message that was sent to a persistent session.

    Attributes:
        entry: its place in the log, as an index entry.
        tag: of its packet id.
        identifier: the Subscription Identifier that it was sent with; 0 for none.
    """

    __slots__ = ("_flights", "entry", "identifier", "qos", "session", "tag")

    def __init__(
        self,
        flights: RetainedFlights,
        session: MqttSession,
        tag: int,
        entry: bytes,
        qos: int,
        identifier: int,
    ) -> None:
        self._flights = flights
        self.session = session
        self.tag = tag
        self.entry = entry
        self.qos = qos
        self.identifier = identifier

    def settle(self, _first_offset: int, _count: int) -> None:
        """It was acknowledged."""
        self._flights.acknowledged(self)


class RetainedFlights:
    """The retained messages in flight to persistent sessions.

    Args:
        sessions: persistent sessions by number.
    """

    def __init__(self, core: Core, sessions: Mapping[int, MqttSession]) -> None:
        self._core = core
        self._sessions = sessions
        self._out: dict[RetainedFlight, None] = {}
        self._acked: list[RetainedFlight] = []  # what the next record says
        self._scheduled = False
        core.gatherers.append(self.write)
        core.journal.handle("acked", self._apply_acked)

    def add(self, session: MqttSession, tag: int, entry: bytes, qos: int, identifier: int) -> None:
        """The log says that a message is in flight."""
        session.unacked.next_tag = max(session.unacked.next_tag, tag)
        flight = RetainedFlight(self, session, tag, entry, qos, identifier)
        session.unacked.add(flight, 0, 1)
        self._out[flight] = None

    def forget(self, flight: RetainedFlight) -> None:
        """The log says that it is not in flight any more."""
        self._out.pop(flight, None)

    def forget_session(self, session: MqttSession) -> None:
        """The session is gone."""
        for _, holder, _, _ in session.unacked.runs():
            if isinstance(holder, RetainedFlight):
                self.forget(holder)

    def acknowledged(self, flight: RetainedFlight) -> None:
        """PUBACK came. The log will say so soon; nobody waits for that."""
        self.forget(flight)
        self._acked.append(flight)
        self._write_later(self._core.limits.ack_delay_seconds)

    def write(self) -> None:
        """Write what was acknowledged since the last time. What the log refuses gathers on."""
        if not self._acked or self._core.failure is not None:
            return
        acked, self._acked = self._acked, []
        try:
            self._core.journal.write({"op": "acked", "t": tags_of(acked)})
        except Refused:
            self._acked = acked + self._acked
            self._write_later(self._core.limits.lazy_flush_seconds)

    def _write_later(self, seconds: float) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._core.scheduler.call_later(seconds, self._write_scheduled)

    def _write_scheduled(self) -> None:
        self._scheduled = False
        self.write()

    def _apply_acked(self, op: Op) -> Touched:
        return self.end(op["t"])

    def end(self, tags: Iterable[Sequence[int]]) -> Touched:
        """These, (session, tag) of each, are in flight no more (part of an op)."""
        touched = []
        for number, tag in tags:
            session = self._sessions.get(number)
            if session is not None:
                for holder, _, _ in session.unacked.settle_present(tag, tag):
                    if isinstance(holder, RetainedFlight):
                        self.forget(holder)
                touched.append(("session", str(number)))
        return touched

    def positions(self) -> list[tuple[int, RetainedFlight]]:
        """Those in flight, each with the place in the log that it holds."""
        return [(position_of(flight.entry), flight) for flight in self._out]


def tags_of(flights: Iterable[RetainedFlight]) -> list[list[int]]:
    """What an op calls them."""
    return [[flight.session.number, flight.tag] for flight in flights]


Holder = QueueFlight | RetainedFlight | LiveFlight | None
"""What holds messages in flight. Live ones of QoS 1 need nothing."""


def is_of_qos_1(holder: Holder) -> bool:
    """Whether the message was sent with QoS 1."""
    return holder is None or holder.qos == 1


def is_there(_holder: Holder) -> bool:
    """Whether the message is in flight."""
    return True


def packet_id(tag: int) -> int:
    """The packet id that the client sees: 1 to 65,535 [MQTT-2.3.1-1]."""
    return (tag - 1) % PACKET_IDS + 1


def packet_id_run(first: int, count: int) -> Sequence[int]:
    """Consecutive packet ids; after 65,535 comes 1."""
    if first + count <= PACKET_IDS + 1:
        return range(first, first + count)
    return [*range(first, PACKET_IDS + 1), *range(1, first + count - PACKET_IDS)]
