# cython: boundscheck=False, annotation_typing=False, initializedcheck=False
"""From a run that became visible to the client of a live MQTT subscription, and its PUBACK.

One source in two forms: plain Python, and a C extension. `broker/sessions/session.py` has
the rest of sessions, and `subscription.py` that of subscriptions, in classes that inherit from
these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from polymq.broker.errors import WrongAcknowledgement
from polymq.broker.kernels.codes import PACKET_IDS

if TYPE_CHECKING:
    from polymq.broker.kernels import path
    from polymq.broker.messages.kernels import record_run
    from polymq.broker.messages.kernels.unacked import UnackedRuns
    from polymq.broker.messages.runs import RunMeta, TakesApart
    from polymq.broker.port.sessions import SessionLink

QOS_PROPERTY: Final = "PMQ_QOS"
QOS_KEY: Final = "broker.qos"
"""Where `publish_qos` keeps its answer (`RunMeta.cache`)."""
OTHER_PROTOCOL_QOS: Final = 1
"""QoS of messages that were not published by MQTT: acknowledged to their publisher when durable,
so at least once."""


class LiveFlight:
    """Holds messages in flight that no queue has and that were sent with QoS 2. (Those of QoS 1
    need nobody: their holder is None.)"""

    qos = 2

    def settle(self, _first_offset: int, _count: int) -> None:
        """They are done with."""


EXACTLY_ONCE: Final = LiveFlight()


def publish_qos(run: record_run.RecordRun) -> int:
    """The QoS that the run was published with."""
    qos: int | None = run.meta.cache.get(QOS_KEY)
    if qos is None:
        stored = run.meta.properties.get(QOS_PROPERTY)
        qos = OTHER_PROTOCOL_QOS if stored is None else int(stored)
        run.meta.cache[QOS_KEY] = qos
    return qos


class SessionEnd:
    """What of a session is needed to send to its client.

    Args:
        number: 0 for a clean session, which leaves no trace in the log.
        window: how many messages may be in flight.
    """

    def __init__(self, number: int, window: int, unacked: UnackedRuns) -> None:
        self.number = number
        self.window = window
        self.link: SessionLink | None = None
        self.takes_apart: TakesApart | None = None
        """Which runs its link decodes message by message: those come in small portions."""
        self.unacked = unacked
        self.releasing: dict[int, None] = {}
        """Tags whose PUBREC came and whose PUBCOMP did not, in order."""
        self._starved = False
        self._last_meta: RunMeta | None = None  # of what was sent last, and its QoS
        self._last_qos = 0

    def stores_ids(self) -> bool:
        """Of a session that is not clean: whether the log takes packet ids now."""
        raise NotImplementedError

    def resume_if_starved(self) -> None:
        """The window has opened."""
        raise NotImplementedError

    def credit(self) -> int:
        """How many messages may be sent now: transport, window, unambiguous packet ids, and a log
        that takes them."""
        link = self.link
        if link is None or (self.number and not self.stores_ids()):
            return 0
        window = self.window
        unacked = self.unacked
        if unacked.count or self.releasing:
            window -= unacked.count + len(self.releasing)
            ids = PACKET_IDS - 1 - (unacked.next_tag - SessionEnd._oldest_tag(self))
            if ids < window:
                window = ids
        if window <= 0:
            self._starved = True
            return 0
        credit = link.credit()
        return min(window, credit)

    def room(self) -> int:
        """How many messages of QoS 0 may be sent now: nobody acknowledges them, so the transport
        alone says it."""
        link = self.link
        return 0 if link is None else link.credit()

    def sent_qos(self, run: record_run.RecordRun, qos_max: int) -> int:
        """The QoS that a run is sent with to a subscription of `qos_max`."""
        meta = run.meta
        if meta is not self._last_meta:
            self._last_qos = publish_qos(run)
            self._last_meta = meta
        qos = self._last_qos
        if qos > qos_max:
            qos = qos_max
        return qos

    def send_live(
        self,
        run: record_run.RecordRun,
        qos: int,
        retain: bool = False,
        identifiers: tuple[int, ...] = (),
    ) -> None:
        """Send a run that no queue holds, with this QoS."""
        link = self.link
        if link is None:
            return
        packet = 0
        if qos:
            holder = None if qos == 1 else EXACTLY_ONCE
            packet = (self.unacked.add(holder, 0, run.count) - 1) % PACKET_IDS + 1
        if not identifiers:
            link.send_publishes(
                run, qos=qos, first_packet_id=packet, duplicate=False, retain=retain
            )
            return
        link.send_publishes(
            run,
            qos=qos,
            first_packet_id=packet,
            duplicate=False,
            retain=retain,
            identifiers=identifiers,
        )

    def acknowledged(self, first_packet_id: int, count: int, more: bool = False) -> None:
        """See `port.Session`."""
        unacked = self.unacked
        tag = SessionEnd._tag(self, first_packet_id)
        if unacked.settle_unheld(tag, count):
            if self._starved and not more:
                self.resume_if_starved()
            return
        known = SessionEnd._count_before_oldest(self, tag)
        if count > known:
            SessionEnd.acknowledged(self, first_packet_id, known, True)
            oldest = (tag + known - 1) % PACKET_IDS + 1
            SessionEnd.acknowledged(self, oldest, count - known, more)
            return
        for holder in unacked.holders(tag, tag + count - 1):
            if holder is not None and holder.qos == 2:
                raise WrongAcknowledgement(
                    f"PUBACK for packet id {first_packet_id}, which was sent with QoS 2"
                )
        for holder, offset, settled in unacked.settle_present(tag, tag + count - 1):
            if holder is not None:
                holder.settle(offset, settled)
        if self._starved and not more:
            self.resume_if_starved()

    def _oldest_tag(self) -> int:
        oldest = self.unacked.oldest()
        if self.releasing:
            oldest = min(oldest, next(iter(self.releasing)))
        return oldest

    def _tag(self, packet: int) -> int:
        """The tag that the packet id stands for, or one that is not in flight."""
        oldest = SessionEnd._oldest_tag(self)
        return oldest + (packet - oldest) % PACKET_IDS

    def _count_before_oldest(self, tag: int) -> int:
        """How many consecutive packet ids, beginning with that of `tag`, stand for consecutive
        tags. The next one is that of the oldest tag: a client may acknowledge twice what it got
        twice, and then goes on with what it got once."""
        return SessionEnd._oldest_tag(self) + PACKET_IDS - tag


class LiveEnd:
    """A subscription as a target of runs that are still in memory."""

    __slots__ = ("qos", "queue", "session", "special")

    def __init__(self, session: Any, qos: int) -> None:
        self.session: Any = session
        self.qos = qos
        self.queue: Any = None
        """The filter queue of a durable subscription, else the backlog of a slow live one."""
        self.special = False
        """It has options that say of each message whether it is sent, or what is sent with it."""

    def offer(self, run: path.Committed) -> None:
        """A run that matches became visible: send it, or let it wait in the backlog."""
        session: SessionEnd = self.session
        plain = self.queue is None and not self.special
        apart = session.takes_apart
        if apart is not None and plain:
            plain = not apart(run.meta)
        if plain and run.parts is None and not run.meta.rewritten:
            qos = SessionEnd.sent_qos(session, run, self.qos)
            room = SessionEnd.credit(session) if qos else SessionEnd.room(session)
            if room >= run.count:
                SessionEnd.send_live(session, run, qos)
                return
        self.offer_behind(run)

    def offer_behind(self, run: path.Committed) -> None:
        """Any run: also where there is a backlog, or has to be one, or options count."""
        raise NotImplementedError
