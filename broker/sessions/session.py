"""One MQTT session: its packet ids, what is in flight, and its connection.

A session outlives its connection (its *link*) unless the client asked for a clean one. It owns the
packet ids of outbound messages: they are tags that count up, shown to the client modulo 65,535.
Where the messages come from is the matter of its subscriptions (`subscription.py`).

Rules [MQTT-4.3, MQTT-4.4]: a message stays in flight until PUBACK or PUBREC; after PUBREC only its
packet id stays, until PUBCOMP. On resumption, what is in flight is sent again in the original
order with its packet ids and its QoS, DUP set, and owed PUBRELs after it. What happens to the
subscription changes nothing of that (`flights.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from polymq.broker.errors import Refused, WrongAcknowledgement
from polymq.broker.kernels.delivery import EXACTLY_ONCE, QOS_KEY, SessionEnd, publish_qos
from polymq.broker.messages.kernels.record_run import RecordRun
from polymq.broker.messages.unacked import Unacked
from polymq.broker.port.sessions import SubscriptionOptions, Will
from polymq.broker.port.values import Address, Position
from polymq.broker.queues.queue import Group
from polymq.broker.sessions.flights import (
    Holder,
    RetainedFlight,
    SessionGroup,
    is_of_qos_1,
    is_there,
    packet_id,
    packet_id_run,
)
from polymq.broker.sessions.options import is_special
from polymq.broker.sessions.overlaps import COMPARED_MAX, Copy, Overlaps, any_overlap
from polymq.broker.sessions.overlaps import begins_to_overlap as begins
from polymq.broker.sessions.subscription import Subscription
from polymq.broker.sessions.window import Window
from polymq.broker.state.journal import Op
from polymq.broker.topics.retained import ENTRY

if TYPE_CHECKING:
    from polymq.broker.sessions.backlogs import Backlog
    from polymq.broker.sessions.retained_replay import RetainedReplay
    from polymq.broker.sessions.sessions import Resending, Sessions
    from polymq.broker.sessions.wills import Testament


END_STEPS: Final = 8
"""Steps of the sweeper that the end of a subscription counts as: it takes some 100 us."""
RETIRED_MAX: Final = 16
"""Live subscriptions raised from QoS 0, or ended where filters overlap, on one connection that
still have something to deliver. The oldest one loses it beyond."""


class Guard(Protocol):
    """Whose rights a session's subscriptions need (`admission/permitted_sessions.py`)."""

    def may_read(self, address: Address) -> bool:
        """Whether everything that the filter matches may be read."""

    def find_rights(self, session: MqttSession, found: Callable[[], None]) -> None:
        """The session is resumed: find out what it may have of its subscriptions, and call `found`,
        maybe in this call. Where nobody says it, the connection ends instead."""

    def testator(self, will: Will) -> str:
        """In whose name its client's will is published. Raises Refused: FORBIDDEN."""

    def left(self) -> None:
        """The connection has ended."""

    def check_subscribe(self, session: MqttSession, address: Address) -> None:
        """Before it subscribes. Raises Refused: FORBIDDEN, LIMIT."""

    def end_forbidden(self, session: MqttSession, address: Address) -> bool:
        """End a subscription that is not allowed any more. Returns whether it was one. Raises
        Refused: the log takes nothing."""


class MqttSession(SessionEnd):
    """The `Session` of the port."""

    overlaps: Overlaps[Subscription] | None = None
    """Of a session of which two filters may match the same topic."""
    one_copy = True
    """Whether the client gets a message once where several filters match it."""
    attached = False
    """Whether all subscriptions deliver to the connected client."""

    def __init__(
        self,
        sessions: Sessions,
        client_id: str,
        *,
        number: int,
        principal: str,
    ) -> None:
        self.sessions = sessions
        self.core = sessions.core
        self.unacked: Unacked[Holder] = Unacked()
        super().__init__(number, self.core.limits.inflight_count_start, self.unacked)
        self._growth = Window(self.core.limits)
        self.client_id = client_id
        self.principal = principal
        self.guard: Guard | None = None
        """Whose rights the connected client has; None where nothing is checked."""
        self.present = False
        self.position = Position(0)
        self.asked_seconds: int | None = None if number else 0
        """How long its client wants it to outlive the connection; None: for ever."""
        self.away_ms = self.left_ms = 0
        """Since when the client is away, as the log has it; 0: it is there, or that is not noted
        yet. `left_ms` is for operators, of a session that does not expire (`departures.py`)."""
        self.due_ms = self.due_group = 0
        """When it ends if its client stays away, and with which others (`expiry.py`); or 0."""
        self.connection_number = 0
        """Counts the connections: what was meant for an earlier one is not sent to this."""
        self.subscriptions: dict[Address, Subscription] = {}
        self.inbound: set[int] = set()
        """Packet ids of QoS 2 messages that were taken and not yet released."""
        self.resending: Resending | None = None
        """What was in flight and is being sent again."""
        self.will: Testament | None = None
        """Of the client that is connected."""
        self._looking = False
        """The log took no packet ids: it will be asked again."""
        self._retired: list[Subscription] = []
        """Live subscriptions that were raised from QoS 0, or ended: what they still have is
        delivered, as far as other subscriptions match it."""
        self.replay: RetainedReplay | None = None
        """What the connection gets of retained messages; None before the first SUBSCRIBE."""
        self.backlogs = sessions.backlogs if sessions.settings.waiting_max else None
        """Who bounds what waits for it; None where that has no bound."""
        self.backlog: Backlog | None = None
        """What they know of it; None before the first message that counts."""
        self.shares = False
        """Whether it had a part in a shared subscription since the start."""

    @property
    def clean(self) -> bool:
        """Whether it leaves no trace in the log, because it began with its connection and ends with
        it."""
        return self.number == 0

    @property
    def expiry_seconds(self) -> int | None:
        """See `port.Session`."""
        time_ms = self.sessions.expiry.time_ms(self)
        return None if time_ms is None else -(-time_ms // 1000)

    def set_will(self, will: Will) -> None:
        """See `port.Session`."""
        principal = self.principal if self.guard is None else self.guard.testator(will)
        self.position = max(self.position, self.sessions.wills.make(self, will, principal))

    def clear_will(self) -> None:
        """See `port.Session`."""
        self.sessions.wills.clear(self)

    def expire_after(self, seconds: int | None) -> None:
        """See `port.Session`."""
        if self.asked_seconds == 0:
            return  # [MQTT-3.14.2-2]
        self.sessions.change_expiry(self, seconds)

    # --- outbound -----------------------------------------------------------------------------

    def stores_ids(self) -> bool:
        """See `SessionEnd`. If it does not, it will be asked again."""
        if self._looking or not self.core.writable:
            self.look_for_room_later()
            return False
        return True

    def send(
        self,
        subscription: Subscription,
        run: RecordRun,
        group: SessionGroup,
        offset: int,
        redelivered: bool,
        copy: Copy | None = None,
    ) -> bool:
        """Send a run of the group's queue to the client. `offset` is its first one there.

        Args:
            copy: how it is sent for several subscriptions; None: for this one.

        Returns:
            Whether it is sent, or will be.
        """
        link = self.link
        if link is None:
            return False
        qos: int = run.meta.cache.get(QOS_KEY, -1)
        if qos < 0:
            qos = publish_qos(run)
        also: Sequence[tuple[Group, int]] = ()
        if copy is not None:
            qos = min(qos, copy.qos)
            retain, identifiers, also = copy.retain, copy.identifiers, copy.also
        else:
            if qos > subscription.qos or offset < subscription.lowered_end:
                qos = min(qos, subscription.qos_at(offset))
            retain = subscription.special and subscription.sends_retain(run.meta)
            identifiers = subscription.identifiers
        if qos == 0 or self.clean:
            tag = self.unacked.add(group.flight(qos), offset, run.count) if qos else 0
            link.send_publishes(
                run,
                qos=qos,
                first_packet_id=packet_id(tag) if qos else 0,
                duplicate=False,
                retain=retain,
                identifiers=identifiers,
            )
            if not qos:
                group.settle(offset, run.count)
                for other, at in also:
                    other.settle(at, run.count)
            return True
        if self.backlogs is not None:
            self.backlogs.write_before(group, *(other for other, _ in also))
        tag = self.unacked.next_tag
        op: Op = {"op": "assign", "s": self.number, "t": tag, "g": group.number, "o": offset}
        op["q"] = qos
        if also:
            op["also"] = [[other.number, at] for other, at in also]
        try:
            position = self.core.journal.write({**op, "n": run.count})
        except Refused:  # the packet ids cannot be stored: back to their places
            group.requeue(offset, run.count)
            self.look_for_room_later()
            return False
        for other, _ in also:
            self.sessions.queue_store.passed_over(other)
        self._send_when_assigned(position, run, qos, tag, redelivered, retain, identifiers)
        return True

    def send_retained(
        self, subscription: Subscription, run: RecordRun, address: Address, entry: bytes
    ) -> None:
        """Send a retained message, a run of one, whose place in the log is `entry`. Of what is owed
        to the subscription, it is the next one.

        Raises:
            Refused: its packet id cannot be stored. Nothing was sent.
        """
        link = self.link
        if link is None:
            return
        qos = min(publish_qos(run), subscription.qos)
        identifier = subscription.options.identifier
        if qos == 0 or self.clean:
            tag = self.unacked.add(None if qos == 1 else EXACTLY_ONCE, 0, 1) if qos else 0
            link.send_publishes(
                run,
                qos=qos,
                first_packet_id=packet_id(tag) if qos else 0,
                duplicate=False,
                retain=True,
                identifiers=subscription.identifiers,
            )
            return
        tag = self.unacked.next_tag
        position, size, _ = ENTRY.unpack(entry)
        op = {"op": "assign", "s": self.number, "t": tag, "g": 0, "o": position, "z": size}
        if subscription.owed is not None and subscription.group is not None:
            op |= {"r": subscription.group.number, "k": list(address)}
        if identifier:
            op["i"] = identifier
        position = self.core.journal.write({**op, "n": 1, "q": qos})
        self._send_when_assigned(position, run, qos, tag, False, True, subscription.identifiers)

    def _send_when_assigned(
        self,
        position: Position,
        run: RecordRun,
        qos: int,
        tag: int,
        duplicate: bool,
        retain: bool,
        identifiers: tuple[int, ...],
    ) -> None:
        """Send a run as soon as the log has its packet ids, which stand before `position`."""
        self.core.commits.when(
            position,
            self.core.state_durability,
            self._send_assigned,
            self.connection_number,
            run,
            qos,
            tag,
            duplicate,
            retain,
            identifiers,
        )

    def _send_assigned(
        self,
        connection_number: int,
        run: RecordRun,
        qos: int,
        tag: int,
        duplicate: bool,
        retain: bool,
        identifiers: tuple[int, ...],
    ) -> None:
        if self.link is not None and connection_number == self.connection_number:
            self.link.send_publishes(
                run,
                qos=qos,
                first_packet_id=packet_id(tag),
                duplicate=duplicate,
                retain=retain,
                identifiers=identifiers,
            )

    def received(self, first_packet_id: int, count: int) -> None:
        """See `port.Session`."""
        for tag, first, tag_count in self._stretches(first_packet_id, count):
            right = self._right_count(tag, tag_count, is_of_qos_1)
            if right:
                self._received(tag, first, right)
            if right < tag_count:
                wrong = packet_id(tag + right)
                raise WrongAcknowledgement(
                    f"PUBREC for packet id {wrong}, which was sent with QoS 1"
                )

    def rejected(self, first_packet_id: int, count: int) -> None:
        """See `port.Session`."""
        for tag, _, tag_count in self._stretches(first_packet_id, count):
            self._settle(self.unacked.settle_present(tag, tag + tag_count - 1))
        self.resume_if_starved()

    def _stretches(self, first_packet_id: int, count: int) -> Iterator[tuple[int, int, int]]:
        """Consecutive packet ids as (first tag, first packet id, count) of consecutive tags."""
        while count:
            tag = self._tag(first_packet_id)
            tag_count = min(count, self._count_before_oldest(tag))
            yield tag, first_packet_id, tag_count
            first_packet_id = packet_id(tag + tag_count)
            count -= tag_count

    def _right_count(self, tag: int, count: int, is_wrong: Callable[[Holder], bool]) -> int:
        """How many tags, from `tag` on, come before the first whose message is held by who should
        not; `count` if there is none."""
        holders = self.unacked.holders
        if not any(is_wrong(holder) for holder in holders(tag, tag + count - 1)):
            return count
        for right in range(count):
            if any(is_wrong(holder) for holder in holders(tag + right, tag + right)):
                return right
        return count

    def _received(self, tag: int, first_packet_id: int, count: int) -> None:
        if self.clean:
            self._settle(self.unacked.settle_present(tag, tag + count - 1))
            self._releasing(tag, count)
            if self.link is not None:
                self.link.send_pubrels(first_packet_id, count)
            return
        position = self.core.journal.write({"op": "rel+", "s": self.number, "t": tag, "n": count})
        self.core.commits.when(
            position,
            self.core.state_durability,
            self._send_pubrels,
            self.connection_number,
            first_packet_id,
            count,
        )

    def _send_pubrels(self, connection_number: int, first_packet_id: int, count: int) -> None:
        if self.link is not None and connection_number == self.connection_number:
            self.link.send_pubrels(first_packet_id, count)

    def completed(self, first_packet_id: int, count: int, more: bool = False) -> None:
        """See `port.Session`."""
        wrong = 0
        for tag, _, tag_count in self._stretches(first_packet_id, count):
            right = self._right_count(tag, tag_count, is_there)
            if right and self.clean:
                self.forget_released(tag, right)
            elif right:
                self.core.journal.write({"op": "rel-", "s": self.number, "t": tag, "n": right})
            if right < tag_count:
                wrong = packet_id(tag + right)
                break
        if not more:
            self.resume_if_starved()
        if wrong:
            raise WrongAcknowledgement(f"PUBCOMP for packet id {wrong} before its PUBREC")

    def _releasing(self, tag: int, count: int) -> None:
        last = next(reversed(self.releasing), 0)
        for one in range(tag, min(tag + count, self.unacked.next_tag)):
            self.releasing[one] = None
        if tag < last:  # no client does that [MQTT-4.6.0-3]
            self.releasing = dict.fromkeys(sorted(self.releasing))

    def start_release(self, tag: int, count: int) -> None:
        """PUBREC was received (an op)."""
        self._settle(self.unacked.settle_present(tag, tag + count - 1))
        self._releasing(tag, count)

    def forget_released(self, tag: int, count: int) -> None:
        """PUBCOMP was received (an op)."""
        for one in range(tag, tag + count):
            self.releasing.pop(one, None)

    def _settle(self, runs: Sequence[tuple[Holder, int, int]]) -> None:
        for holder, offset, count in runs:
            if isinstance(holder, RetainedFlight):
                self.sessions.state.retained.forget(holder)
            elif holder is not None:
                holder.settle(offset, count)

    def resume_if_starved(self) -> None:
        """See `SessionEnd`."""
        if self._starved:
            self._starved = False
            is_over = self._growth.is_round_over(self.window, self._oldest_tag())
            if is_over:
                self.window = self._growth.widen(self.window, self.core.clock_ms())
            self.ready()
            if is_over:
                self._growth.fill(self.unacked.next_tag - 1)

    def open_window(self, count_max: int | None) -> None:
        """A connection begins, and may have up to `count_max` messages in flight."""
        self.window = self._growth.begin(count_max)

    def send_singly(self, singly: bool) -> None:
        """See `port.Session`."""
        self.window = self._growth.send_singly(singly)

    def look_for_room_later(self) -> None:
        """The log takes nothing now: `ready` is called when it may."""
        if not self._looking and not self.core.has_failed():
            self._looking = True
            self.core.scheduler.call_later(self.core.limits.lazy_flush_seconds, self._look_for_room)

    def _look_for_room(self) -> None:
        self._looking = False
        if self.link is not None:
            self.ready()

    def ready(self) -> None:
        """See `port.Session`."""
        for subscription in [*self._retired, *self.subscriptions.values()]:
            if subscription.registration is not None:
                subscription.registration.ready()
        if self.replay is not None:
            self.replay.ready()
        if self.resending is not None:
            self.resending.window_opened()

    def room_in_window(self, unsent: int) -> int:
        """How many messages may be sent now, of what is in flight all but `unsent`. `ready` is
        called when there is room for more."""
        self._starved = True
        return self._growth.size_max - (self.unacked.count + len(self.releasing) - unsent)

    # --- inbound QoS 2 ------------------------------------------------------------------------

    def is_duplicate(self, packet: int) -> bool:
        """See `port.Session`."""
        return packet in self.inbound

    def are_new(self, packet_ids: Sequence[int]) -> bool:
        """See `port.Session`."""
        return self.inbound.isdisjoint(packet_ids) and len(set(packet_ids)) == len(packet_ids)

    def released(self, first_packet_id: int, count: int) -> Position:
        """See `port.Session`."""
        packet_ids = packet_id_run(first_packet_id, count)
        if self.clean:
            self.inbound.difference_update(packet_ids)
        elif not self.inbound.isdisjoint(packet_ids):
            op = {"op": "in-", "s": self.number, "p": first_packet_id}
            return self.core.journal.write(op if count == 1 else {**op, "n": count})
        return Position(0)

    def release_all(self) -> Position:
        """See `port.Session`."""
        if not self.inbound or self.clean:
            self.inbound.clear()
            return Position(0)
        return self.core.journal.write({"op": "in-", "s": self.number, "p": 0})

    # --- subscriptions ------------------------------------------------------------------------

    def keep(self, subscription: Subscription) -> None:
        """A subscription that is new: from now on it is one of the session's."""
        self.subscriptions[subscription.address] = subscription
        self.sessions.count_subscriptions(self.principal, 1)
        if self.overlaps is not None:
            self.overlaps.add(subscription)
        elif len(self.subscriptions) > 1 and begins(self.subscriptions.values(), subscription):
            self._overlap()

    def replace(self, subscription: Subscription) -> None:
        """A subscription takes the place of another one with its filter."""
        replaced = self.subscriptions[subscription.address]
        self.subscriptions[subscription.address] = subscription
        if self.overlaps is not None:
            self.overlaps.remove(replaced)
            self.overlaps.add(subscription)

    def _overlap(self) -> None:
        """Its filters may overlap from now on."""
        if self.one_copy:
            keeps_qos_0 = self.sessions.settings.keeps_qos_0
            there = self.subscriptions.values()
            self.overlaps = Overlaps(self.core, self.client_id, there, keeps_qos_0=keeps_qos_0)

    def _part(self) -> None:
        """Its filters do not overlap any more."""
        if self.overlaps is not None:
            self.overlaps.end()
            self.overlaps = None
        for subscription in self.subscriptions.values():
            subscription.special = is_special(subscription.options)

    def want_one_copy(self, one_copy: bool) -> None:
        """What its client wants where filters overlap."""
        if one_copy != self.one_copy:
            self.one_copy = one_copy
            if not one_copy:
                self._part()
            elif any_overlap(self.subscriptions.values()):
                self._overlap()

    def forget(self, address: Address) -> Subscription | None:
        """The subscription is none any more; returns it, if there was one."""
        found = self.subscriptions.pop(address, None)
        if found is not None:
            self.sessions.count_subscriptions(self.principal, -1)
            self.sessions.exclusive.ended(self, (address,))
            if self.overlaps is not None:
                self.overlaps.remove(found)
                there = self.subscriptions.values()
                if len(there) <= COMPARED_MAX and not any_overlap(there):
                    self._part()
        return found

    def forget_all(self) -> Collection[Subscription]:
        """The session has ended: it has no subscriptions any more. Returns those that it had."""
        found, self.subscriptions = self.subscriptions, {}
        if found:
            self.sessions.count_subscriptions(self.principal, -len(found))
            self.sessions.exclusive.ended(self, found)
        if self.overlaps is not None:
            self.overlaps.end()
            self.overlaps = None
        return found.values()

    def subscribe(
        self, address: Address, options: SubscriptionOptions, *, retained: bool = True
    ) -> Position:
        """See `port.Session`."""
        if self.guard is not None:
            self.guard.check_subscribe(self, address)
        return self.sessions.subscribe(self, address, options, retained=retained)

    def options(self) -> Iterator[tuple[Address, SubscriptionOptions]]:
        """See `port.Session`."""
        return ((address, found.options) for address, found in self.subscriptions.items())

    def is_subscribed(self, address: Address) -> bool:
        """See `port.Session`."""
        return address in self.subscriptions

    def unsubscribe(self, address: Address) -> Position:
        """See `port.Session`. What the user may not read any more is not sent again, either."""
        forget = self.guard is not None and not self.guard.may_read(address)
        return self.sessions.unsubscribe(self, address, forget=forget)

    def replay_retained(self, address: Address, since: Position) -> None:
        """See `port.Session`."""
        subscription = self.subscriptions.get(address)
        if subscription is not None:
            self.sessions.replay_retained(self, subscription, since)

    def retire(self, subscription: Subscription) -> None:
        """A durable subscription takes the place of this live one, which gives what it has."""
        if self.link is None:
            return
        self.sessions.topics.router.unsubscribe(subscription.address, subscription)
        self._retired.append(subscription)
        if len(self._retired) > RETIRED_MAX:
            empty = (one for one in self._retired if one.group is None or not one.group.ready_count)
            oldest = next(empty, self._retired[0])
            self._retired.remove(oldest)
            oldest.detach()

    def raised_from_0(self) -> Sequence[Subscription]:
        """Live subscriptions that durable ones have taken the place of on this connection."""
        return self._retired

    def end_live(self, subscription: Subscription) -> None:
        """A live subscription that is none of the session's any more. What waits in its backlog may
        be the one copy for others that match."""
        group = subscription.group
        if self.link is None or group is None or not group.ready_count or not subscription.special:
            subscription.detach()
            return
        self.retire(subscription)

    # --- connection ---------------------------------------------------------------------------

    def resume(self) -> None:
        """See `port.Session`."""
        for subscription in self.subscriptions.values():
            if subscription.owed is not None:
                subscription.owed.interrupted = True
        go_on = partial(self._begin_resuming, self.connection_number)
        if self.guard is None:
            go_on()
        else:
            self.guard.find_rights(self, go_on)

    def _begin_resuming(self, connection_number: int) -> None:
        self.sessions.resuming.add(self._resume(connection_number))

    def _resume(self, connection_number: int) -> Iterator[None]:
        """Nothing is sent before all subscriptions that the user has no right to have ended. They
        end one by one, in steps; a connection that is lost meanwhile leaves the rest to the next.
        """
        guard, before = self.guard, self.unacked.next_tag
        if guard is not None:
            for address in list(self.subscriptions):
                if self.link is None or connection_number != self.connection_number:
                    return
                try:
                    ended = guard.end_forbidden(self, address)
                except Refused:
                    self.link.expelled("the end of its subscriptions could not be stored")
                    return
                for _ in range(END_STEPS if ended else 1):
                    yield
        if self.link is not None and connection_number == self.connection_number:
            self.sessions.resend(self, before, self._resumed)

    def _resumed(self) -> None:
        """What was in flight is on its way again: now what is new."""
        self.attached = True
        for subscription in self.subscriptions.values():
            self.attach(subscription)
            if subscription.owed is not None and subscription.owed.interrupted:
                self.sessions.replay_retained(self, subscription, subscription.owed.since)
        self.ready()

    def attach(self, subscription: Subscription) -> None:
        """Begin to deliver to the connected client."""
        if subscription.durable:
            if subscription.registration is None and subscription.group is not None:
                subscription.registration = subscription.group.add(
                    subscription, takes_apart=self.takes_apart
                )
                if not self.sessions.settings.keeps_qos_0:
                    subscription.away_end = subscription.group.queue.visible
        else:
            self.sessions.topics.router.subscribe(subscription.address, subscription)

    def disconnect(self) -> None:
        """See `port.Session`."""
        self.link = self.takes_apart = None
        self.attached = False
        if self.overlaps is not None:
            self.overlaps.log_order.clear()
        guard, self.guard = self.guard, None
        if guard is not None:
            guard.left()
        self.connection_number += 1
        if self.backlog is not None:
            self.backlog.heads.clear()  # what does not count of what waits is more now
        for subscription in self._retired:
            subscription.detach()
        self._retired.clear()
        self.replay = None
        self.resending = None
        self.sessions.wills.connection_ended(self)
        self.principal = str(self.principal)  # what else came with the login ends with it
        if self.shares:
            self.sessions.shares.connection_ended(self)
        if self.clean:
            self.sessions.ended(self)
            return
        self.sessions.expiry.went(self)
        for subscription in self.subscriptions.values():  # none if it ended with its connection
            if not subscription.durable:
                self.sessions.topics.router.unsubscribe(subscription.address, subscription)
            subscription.detach()
