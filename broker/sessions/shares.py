"""Shared subscriptions: one queue and one cursor for all members (5.0 part 4.8.2).

A *share* is a ShareName with a pattern. Its `ShareGroup` is one more group on the filter queue of
the pattern. Its *members* are subscriptions of sessions, of any users. They are the consumers of
the group, as those of an AMQP queue are, and each has its own QoS and options.

Where a message is, that was given to a member:

* QoS 0: settled when it was sent.
* QoS 1: in flight until PUBACK, in memory only (`ShareFlight`). It goes back to the share when the
  connection ends, and then to another member, with another packet id. So its packet id need not
  survive anything.
* QoS 2, a session that outlives its connection: in flight, and in the log before PUBLISH leaves
  (the op `assign`). It stays with the session for as long as that lives [MQTT-4.8.2-4], and goes to
  nobody else when the session ends [MQTT-4.8.2-5].
* QoS 2, any other session: the share has done with it, which is in the log before PUBLISH leaves.
  The session ends with its connection, and then, or after a crash, nobody else may have it.
* QoS 2 that was assigned and not sent, because the connection ended before the log had that: it
  goes back to the share (the op `back`).

A member that unsubscribes goes on with what is in flight [MQTT-3.10.4-3], until it is acknowledged
or the connection ends.

The op `share+` begins a share, and `share-` ends it when its last member has left. Members whose
sessions are in the log are there by the op `sub+`; all others end with their connections. A share
that has ended stays while something of it is in flight (`SessionState.look_for_flown`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from polymq.broker.core import Core
from polymq.broker.errors import Refused
from polymq.broker.kernels.delivery import EXACTLY_ONCE, LiveFlight, publish_qos
from polymq.broker.kernels.path import Committed
from polymq.broker.messages.kernels.record_run import RecordRun
from polymq.broker.messages.message import Delivery
from polymq.broker.messages.runs import RunMeta, TakesApart
from polymq.broker.moves.dead_letters import DeadLetterCounts
from polymq.broker.port.queues import Consumer
from polymq.broker.port.sessions import SubscriptionOptions
from polymq.broker.port.values import Address, Position, pattern_of
from polymq.broker.queues.cursor import Cursor
from polymq.broker.queues.queue import Group, Queue, Registration
from polymq.broker.sessions.flights import QueueFlight, SessionGroup, packet_id
from polymq.broker.sessions.options import options_of, options_row
from polymq.broker.sessions.settings import SessionSettings
from polymq.broker.sessions.share_bounds import ShareBounds
from polymq.broker.sessions.share_turns import Turns, cut
from polymq.broker.sessions.subscription import Subscription
from polymq.broker.state.journal import Op, Touched
from polymq.broker.state.kinds import StateKind, each

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from polymq.broker.messages.readers import Reading
    from polymq.broker.sessions.session import MqttSession
    from polymq.broker.sessions.state import SessionState


class ShareFlight(LiveFlight):
    """Messages of a share that are in flight with QoS 1."""

    qos = 1

    def __init__(self, group: ShareGroup) -> None:
        self.group = group

    def settle(self, first_offset: int, count: int) -> None:
        """They were acknowledged."""
        self.group.settle(first_offset, count)


class Member(Subscription):
    """One session's part in a share."""

    __slots__ = ("share",)

    is_shared: ClassVar[bool] = True

    def __init__(
        self,
        session: MqttSession,
        address: Address,
        options: SubscriptionOptions,
        share: ShareGroup,
    ) -> None:
        super().__init__(session, address, options)
        self.share = share
        self.group = share
        self.queue = share.queue
        session.shares = True
        share.members[session] = self
        share.shares.member_count += 1
        share.count(self, 1)

    @property
    def durable(self) -> bool:
        """Messages wait for the share, whoever is connected."""
        return True

    def change(self, options: SubscriptionOptions) -> None:
        """SUBSCRIBE came again."""
        self.share.count(self, -1)
        self.set_options(options)
        self.share.count(self, 1)

    def credit(self) -> int:
        """See `port.Consumer`."""
        session = self.session
        if not self.qos:
            return session.room()
        if self.qos == 2 and not session.stores_ids():  # what is sent is written before
            return 0
        return session.credit()

    def deliver(self, delivery: Delivery) -> None:
        """See `port.Consumer`."""
        offset = delivery.first_offset
        for run in delivery.runs:
            self.take(run, offset)
            offset += run.count

    def take(self, run: RecordRun, offset: int) -> None:
        """Send a run to the client."""
        share, session = self.share, self.session
        published = publish_qos(run)
        qos = min(published, self.qos)
        link = session.link
        if offset < share.away_end and not min(published, share.qos_max):
            share.settle(offset, run.count)  # it did not wait
        elif link is None:
            share.requeue(offset, run.count)
        elif qos == 2:
            self._take_once(run, offset)
        else:
            tag = session.unacked.add(share.flight_1, offset, run.count) if qos else 0
            link.send_publishes(
                run,
                qos=qos,
                first_packet_id=packet_id(tag) if qos else 0,
                duplicate=False,
                retain=self.special and self.sends_retain(run.meta),
                identifiers=self.identifiers,
            )
            if not qos:
                share.settle(offset, run.count)

    def _take_once(self, run: RecordRun, offset: int) -> None:
        """Send a run with QoS 2, as soon as the log knows that it goes to this client."""
        share, session, core = self.share, self.session, self.session.core
        try:
            if session.clean:
                position = share.shares.settle_before(share, offset, run.count)
                tag = session.unacked.add(EXACTLY_ONCE, 0, run.count)
            else:
                tag = session.unacked.next_tag
                op = {"op": "assign", "s": session.number, "t": tag, "g": share.number}
                position = core.journal.write({**op, "o": offset, "q": 2, "n": run.count})
        except Refused:  # back to their places
            share.requeue(offset, run.count)
            session.look_for_room_later()
            return
        core.commits.when(
            position,
            core.state_durability,
            self._send_once,
            session.connection_number,
            run,
            offset,
            tag,
        )

    def _send_once(self, connection_number: int, run: RecordRun, offset: int, tag: int) -> None:
        session = self.session
        if session.link is None:  # and nobody has got it
            self.share.shares.give_back_unsent(self.share, session, tag, offset, run.count)
        elif connection_number == session.connection_number:
            session.link.send_publishes(
                run,
                qos=2,
                first_packet_id=packet_id(tag),
                duplicate=False,
                retain=self.special and self.sends_retain(run.meta),
                identifiers=self.identifiers,
            )


class MemberRegistration(Registration):
    """A connected member's place in its group."""

    __slots__ = ()

    def ready(self) -> None:
        """Credit has grown."""
        if self.active:
            group = self.group
            assert isinstance(group, ShareGroup)
            group.turns.wake(self)
            group.pump()


class _ByHash:
    """Takes what is ready for all members, and hands each run to the one that its key says."""

    def __init__(self, group: ShareGroup) -> None:
        self._group = group

    def credit(self) -> int:
        """See `port.Consumer`."""
        return self._group.turns.room()

    def deliver(self, delivery: Delivery) -> None:
        """See `port.Consumer`."""
        group, offset = self._group, delivery.first_offset
        for run in delivery.runs:
            self._hand_out(group, run, offset)
            offset += run.count

    def _hand_out(self, group: ShareGroup, run: RecordRun, offset: int) -> None:
        key_of = group.turns.by_hash
        assert key_of is not None
        key, left = key_of(run.meta), run
        while True:
            chosen = group.turns.chosen(group.registrations, key, left.count)
            if chosen is None:  # they took less than they said
                group.requeue(offset, left.count)
                return
            registration, count = chosen
            if count == left.count:
                registration.consumer.deliver(Delivery((left,), offset, count, False))
                return
            part, left = cut(left, count)
            registration.consumer.deliver(Delivery((part,), offset, count, False))
            offset += count

    def cancelled(self) -> None:
        """Filter queues go only with their last subscription."""


class ShareGroup(SessionGroup):
    """The cursor of a share.

    Attributes:
        address: what its members' sessions call it.
        members: by session.
        ended: the last member has left; nothing is delivered any more.
        away_end: what came before this offset came while no member was connected: of that, what
            has QoS 0 is not sent.
        qos_max: the highest QoS of the members whose sessions outlive their connections. What has
            more than 0 with that waits while no member is connected.
        waits: there is such a member.
        flight_1: holds what is in flight with QoS 1.
        free: at least so many bytes may still come before those that wait have to be counted again.
        is_full_of_bytes: it last lost something for the bound of bytes.
    """

    __slots__ = (
        "_by_hash",
        "_lasting",
        "address",
        "away_end",
        "ended",
        "flight_1",
        "free",
        "is_full_of_bytes",
        "members",
        "qos_max",
        "shares",
        "turns",
        "waits",
    )

    registrations: Sequence[MemberRegistration]
    shares: Shares

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
        self.address: Address = ()
        self.members: dict[MqttSession, Member] = {}
        self.ended = False
        self.away_end = 0
        self.qos_max = 0
        self.waits = False
        self._lasting = [0, 0, 0]  # members whose sessions outlive their connections, by QoS
        self.flight_1 = ShareFlight(self)
        self.free = 0
        self.is_full_of_bytes = False

    def begin(self, shares: Shares, address: Address) -> None:
        """It is this share's."""
        self.shares = shares
        self.address = address
        self.turns: Turns[MemberRegistration] = Turns(shares.settings.share_strategy)
        self._by_hash: Registration | None = None
        if self.turns.by_hash is not None:
            self._by_hash = Registration(self, _ByHash(self), takes_apart=self._takes_apart)

    def forget(self) -> None:
        """It is gone: nothing that knows it is left in it."""
        del self.flight_1
        self.cursor.watch = None
        self._by_hash = None
        self._flights = ()

    @property
    def delivers(self) -> bool:
        """See `SessionGroup`."""
        return not self.ended

    def subscription_of(self, session: MqttSession) -> Subscription | None:
        """See `SessionGroup`."""
        return self.members.get(session)

    def count(self, member: Member, change: int) -> None:
        """A member came (1) or went (-1), or one with other options took its place (both)."""
        if not member.session.clean:
            self._lasting[member.qos] += change
            self.waits = any(self._lasting)
            self.qos_max = max((qos for qos in range(3) if self._lasting[qos]), default=0)

    # --- consumers --------------------------------------------------------------------------

    def add(
        self,
        consumer: Consumer,
        priority: int = 0,
        *,
        reads_long: bool = False,
        takes_apart: TakesApart | None = None,
    ) -> Registration:
        """See `Group`. Nothing is handed to it before its `ready()`."""
        assert not priority
        if not self.registrations and not self.shares.settings.keeps_qos_0:
            self.away_end = self.queue.visible
        registration = MemberRegistration(
            self, consumer, reads_long=reads_long, takes_apart=takes_apart
        )
        self.registrations = [*self.registrations, registration]
        return registration

    def remove(self, registration: Registration) -> None:
        """See `Group`."""
        assert isinstance(registration, MemberRegistration)
        self.turns.remove(registration)
        super().remove(registration)

    def _takes_apart(self, meta: RunMeta) -> bool:
        return any(
            registration.takes_apart is not None and registration.takes_apart(meta)
            for registration in self.registrations
        )

    def _next_registration(self, ready: int) -> tuple[Registration, int] | None:
        by_hash = self._by_hash
        if by_hash is None:
            return self.turns.next(ready)
        room = self.turns.room()
        return (by_hash, min(room, ready)) if room else None

    # --- a run becomes visible ----------------------------------------------------------------

    def arrived(self, run: Committed, first: int) -> None:
        """See `Group`."""
        if self.ended or (not self.registrations and self._passes_over(run, first)):
            return
        if self.shares.bounds.admit(self, run, first):
            Group.arrived(self, run, first)

    def _passes_over(self, run: Committed, first: int) -> bool:
        if self.cursor.next != first or self.rules is not None or not self.lets_go_of(run, first):
            return False
        self.cursor.pass_over(run.count)
        self.shares.queue_store.passed_over(self)
        return True

    def dropped(self) -> None:
        """Messages that waited were settled, because there were too many."""
        if self.rules is not None:
            self.rules.purged(self)
        self.moved(self)

    def lets_go_of(self, run: Committed, first: int) -> bool:
        """See `SessionGroup`: no member is connected, and the run has QoS 0."""
        return not (
            self.registrations
            or self.shares.settings.keeps_qos_0
            or min(self.qos_max, publish_qos(run))
        )


class Shares:
    """All shares of one broker, as the log has them.

    Attributes:
        by_address: those that have not ended.
        by_number: all, by the numbers of their groups.
        unused: those that have no member any more, and have not ended yet.
        bounds: bounds what waits for them.
        member_count: members of all shares.
    """

    def __init__(
        self,
        core: Core,
        state: SessionState,
        settings: SessionSettings,
        counts: DeadLetterCounts,
    ) -> None:
        self._core = core
        self._state = state
        self.queue_store = state.queue_store
        self.settings = settings
        self.by_address: dict[Address, ShareGroup] = {}
        self.by_number: dict[int, ShareGroup] = {}
        self.unused: dict[ShareGroup, None] = {}
        self.member_count = 0
        self.bounds: ShareBounds[ShareGroup] = ShareBounds(core, self.queue_store, settings, counts)
        core.journal.handle("share+", self._apply_begin)
        core.journal.handle("share-", self._apply_end)
        core.journal.handle("back", self._apply_back)

    # --- members come and go ----------------------------------------------------------------

    def join(
        self,
        session: MqttSession,
        address: Address,
        options: SubscriptionOptions,
        filter_queue: Callable[[Address], Queue],
    ) -> Position:
        """Subscribe, or change the options. Raises Refused."""
        core = self._core
        core.check_writable()
        position = core.end()
        if address not in self.by_address:
            queue = filter_queue(pattern_of(address))
            op: Op = {"op": "share+", "n": core.take_number(), "w": list(address)}
            position = core.journal.write({**op, "o": queue.index.end_offset})
        group = self.by_address[address]
        if not session.clean:
            op = {"op": "sub+", "s": session.number, "w": list(address), "q": options.qos}
            position = core.journal.write({**op, "g": group.number, "o": 0, **options_row(options)})
        else:
            self._join(session, group, options)
        member = session.subscriptions[address]
        session.attach(member)
        if group.ready_count:  # what waits comes behind SUBACK
            core.commits.when(
                position, core.state_durability, core.scheduler.call_soon, member.wake
            )
        else:
            member.wake()
        return position

    def _join(self, session: MqttSession, group: ShareGroup, options: SubscriptionOptions) -> None:
        member = session.subscriptions.get(group.address)
        if isinstance(member, Member):
            member.change(options)
        else:
            session.keep(Member(session, group.address, options, group))
        self.unused.pop(group, None)

    def apply_join(self, session: MqttSession, address: Address, op: Op) -> Touched:
        """The op `sub+` of a shared subscription."""
        group = self.by_address.get(address)
        if group is None:
            return []
        self._join(session, group, options_of(op, op["q"]))
        return [("session", str(session.number))]

    def load_member(self, session: MqttSession, address: Address, qos: int, number: int) -> None:
        """Take a membership from its session's row."""
        group = self.by_number.get(number)
        if group is not None:
            session.keep(Member(session, address, SubscriptionOptions(qos=qos), group))

    def leave(self, session: MqttSession, address: Address, *, forget: bool) -> Position:
        """Unsubscribe. Raises Refused.

        Args:
            forget: what is in flight of it ends with it: see `Sessions.unsubscribe`.
        """
        member = session.subscriptions.get(address)
        if not isinstance(member, Member):
            return Position(0)
        if session.clean:
            session.forget(address)
            self.part(member)
            if forget:
                self._forget_flights(session, member.share)
            return Position(0)
        self._core.check_writable(frees=True)
        op: Op = {"op": "sub-", "s": session.number, "w": list(address)}
        position = self._core.journal.write({**op, "f": 1} if forget else op)
        return max(position, self.end_unused(member.share))

    def apply_leave(self, session: MqttSession, member: Member, op: Op) -> Touched:
        """The op `sub-` of a shared subscription."""
        self.part(member)
        if op.get("f"):
            self._forget_flights(session, member.share)
        return [("session", str(session.number)), ("group", str(member.share.number))]

    def part(self, member: Member) -> None:
        """The member is none any more. What is in flight stays so."""
        group = member.share
        if member.registration is not None:
            member.registration.cancel()
            member.registration = None
        if group.members.get(member.session) is member:
            del group.members[member.session]
            self.member_count -= 1
            group.count(member, -1)
        if not group.members and not group.ended:
            self.unused[group] = None
            self._state.look_for_flown()

    # --- what is in flight --------------------------------------------------------------------

    def connection_ended(self, session: MqttSession) -> None:
        """What was in flight with QoS 1 goes to others."""
        for tag, holder, offset, count in session.unacked.runs():
            if isinstance(holder, ShareFlight):
                session.unacked.settle(tag, tag + count - 1)
                self._return(holder.group, offset, count)

    def session_ended(self, session: MqttSession) -> Touched:
        """Nobody else gets what was in flight with QoS 2 (part of an op)."""
        touched = []
        for _, holder, offset, count in session.unacked.runs():
            if isinstance(holder, QueueFlight) and isinstance(holder.group, ShareGroup):
                holder.settle(offset, count)
                touched.append(("group", str(holder.group.number)))
        return touched

    def _forget_flights(self, session: MqttSession, group: ShareGroup) -> None:
        """The session's user may not read any more what is in flight."""
        for tag, holder, offset, count in session.unacked.runs():
            if isinstance(holder, ShareFlight) and holder.group is group:
                session.unacked.settle(tag, tag + count - 1)
                self._return(group, offset, count)
            elif isinstance(holder, QueueFlight) and holder.group is group:
                session.unacked.settle(tag, tag + count - 1)
                holder.settle(offset, count)

    def _return(self, group: ShareGroup, offset: int, count: int) -> None:
        if group.ended:
            group.settle(offset, count)
        else:
            group.requeue(offset, count)

    def settle_before(self, group: ShareGroup, offset: int, count: int) -> Position:
        """Write that messages are settled, before they are sent. Raises Refused."""
        store = self.queue_store
        acks = store.take_acks([group])
        number, next_offset, settled = acks[0]
        try:
            return self._core.journal.write(
                {"op": "acks", "g": [(number, next_offset, [*settled, [offset, count]])]}
            )
        except Refused:
            store.keep_acks([group], acks)
            raise

    def give_back_unsent(
        self, group: ShareGroup, session: MqttSession, tag: int, offset: int, count: int
    ) -> None:
        """These were assigned to a session with QoS 2, and its connection has ended before they
        were sent."""
        if self.by_number.get(group.number) is not group or group.ended:
            return
        op: Op = {"op": "back", "g": group.number, "o": offset, "n": count}
        if session.number:
            op |= {"s": session.number, "t": tag}
        try:
            self._core.journal.write(op)
        except Refused:  # the log takes nothing: they stay with the session, as if they were sent
            return

    def _apply_back(self, op: Op) -> Touched:
        touched = []
        session = self._state.by_number.get(op.get("s", 0))
        if session is not None:
            session.unacked.settle_present(op["t"], op["t"] + op["n"] - 1)
            touched.append(("session", str(session.number)))
        group = self.by_number.get(op["g"])
        if group is not None:
            group.cursor.put_back(op["o"], op["n"])
            group.moved(group)
            group.pump_later()
            touched.append(("group", str(op["g"])))
        return touched

    # --- shares begin and end -----------------------------------------------------------------

    def _apply_begin(self, op: Op) -> Touched:
        address = tuple(op["w"])
        self._core.saw_number(op["n"])
        queue = self._state.filters[pattern_of(address)].queue
        self._make(op["n"], address, queue, Cursor(op["o"]))
        return [("share", str(op["n"])), ("group", str(op["n"]))]

    def _make(self, number: int, address: Address, queue: Queue, cursor: Cursor) -> ShareGroup:
        group = self.queue_store.group(queue, cursor, number=number, kind=ShareGroup)
        assert isinstance(group, ShareGroup)
        group.begin(self, address)
        self.by_number[number] = group
        self.by_address[address] = group
        if queue.expiring:
            self._state.let_expire([group])
        return group

    def end_unused(self, group: ShareGroup) -> Position:
        """End the share if it has no member any more. Raises Refused."""
        if group.members or group.ended:
            self.unused.pop(group, None)
            return Position(0)
        position = self._core.journal.write({"op": "share-", "n": group.number})
        self.unused.pop(group, None)
        return max(position, self._state.end_unread(pattern_of(group.address)))

    def _apply_end(self, op: Op) -> Touched:
        group = self.by_number.get(op["n"])
        if group is None:
            return []
        group.ended = True
        if self.by_address.get(group.address) is group:
            del self.by_address[group.address]
        if group.rules is not None:
            group.rules.close()
            group.rules = None
        self.unused.pop(group, None)
        self._state.end_group(group)
        return [("share", str(op["n"])), ("group", str(op["n"]))]

    def dropped(self, group: ShareGroup) -> None:
        """Its group is gone."""
        self.by_number.pop(group.number, None)
        self.bounds.forget(group)
        group.forget()

    def reopen(self) -> None:
        """After a restart: members that were not in the log are gone."""
        for group in self.by_address.values():
            if not group.members:
                self.unused[group] = None

    # --- rows -----------------------------------------------------------------------------

    def state_kind(self) -> StateKind:
        """See `state/kinds.py`."""
        return StateKind("share", self._row, each(self._load))

    def _row(self, key: str) -> Mapping[str, Any] | None:
        group = self.by_number.get(int(key))
        if group is None:
            return None
        row = {"w": list(group.address)}
        return {**row, "x": 1} if group.ended else row

    def _load(self, key: str, value: Mapping[str, Any]) -> None:
        address = tuple(value["w"])
        self._core.saw_number(int(key))
        queue = self._state.filters[pattern_of(address)].queue
        other = self.by_address.get(address)
        group = self._make(int(key), address, queue, Cursor(0))
        if value.get("x"):
            group.ended = True
            del self.by_address[address]
            if other is not None:
                self.by_address[address] = other
