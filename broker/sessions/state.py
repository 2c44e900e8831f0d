"""The part of MQTT sessions that survives: their ops, and their rows in `state.db`.

A session's op says what happened (a subscription, a PUBREC); its row says how things stand. Both
lead to the same `MqttSession`. Acks of what came from queues are not here: they are the cursors'
(`core.py`).

A session's row and its op `session+` say how long it outlives its connection (`x`, seconds); those
of sessions that do not expire, and of former versions, lack it.

A subscription, in a row: [words, QoS, group], and of one that was lowered to QoS 0 the QoS that it
had, and the offset before which that one holds. Its other options stand beside them, unless they
are plain: [words, options] of each. What is owed to subscriptions (`owed.py`) stands
beside them: [words, position, name] of each.

What is in flight, in a row: [first tag, group, offset, count, QoS] for messages of a queue,
[tag, 0, position, size, QoS, Subscription Identifier if there is one] for a retained one. Rows and
ops that were written before the QoS was kept lack it.

A session may have ten thousand subscriptions, and ends with one op (`session-`): nothing finds it
from then on, in memory and after a crash. Its groups are swept out of memory in steps
(`pacing/sweeping.py`). Filter queues that nobody reads any more end after that, by ops of their own
(`fq-`); those that a crash leaves behind end after the next start.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from polymq.broker.core import Core
from polymq.broker.errors import Refused
from polymq.broker.moves.dead_letters import DeadLetters
from polymq.broker.moves.moves import QOS2_PROPERTY
from polymq.broker.named_queues.rules import QueueRules
from polymq.broker.port.sessions import SubscriptionOptions
from polymq.broker.port.values import Address, Position, is_shared
from polymq.broker.queues.cursor import NO_STOP, Cursor
from polymq.broker.queues.queue import Group, Queue
from polymq.broker.queues.settings import PLAIN
from polymq.broker.queues.store import QueueStore
from polymq.broker.sessions.client_table import ClientTable
from polymq.broker.sessions.flights import (
    UNKNOWN_QOS,
    QueueFlight,
    RetainedFlight,
    RetainedFlights,
    SessionGroup,
    packet_id_run,
)
from polymq.broker.sessions.options import is_special, options_of, options_row
from polymq.broker.sessions.owed import Owed, owed_of
from polymq.broker.sessions.session import MqttSession
from polymq.broker.sessions.shares import Member, ShareGroup, Shares
from polymq.broker.sessions.subscription import Subscription
from polymq.broker.state.journal import Op, Touched
from polymq.broker.state.kinds import StateKind, each
from polymq.broker.topics.retained import ENTRY
from polymq.broker.topics.topics import Topics
from polymq.core_log.record import Record

if TYPE_CHECKING:
    from polymq.broker.sessions.sessions import Sessions


ENDED_AT_ONCE: Final = 128
"""Groups, and filter queues, that end by ops in one iteration: about 40 us each."""
READERS_PER_ENTRY: Final = 1024
"""Readers of a filter queue that are looked through, as one entry of a step, to remove one."""


class FilterQueue:
    """A filter queue and the sessions that read it."""

    __slots__ = ("address", "queue")

    def __init__(self, address: Address, queue: Queue) -> None:
        self.address = address
        self.queue = queue


class SessionState:
    """Sessions and filter queues as the log has them.

    A filter queue that messages with a time to live came to lets them expire, for each session by
    itself, as a named queue does (`queues/expiry.py`); any other one does not know of it. That the
    first of them came is an op before it.
    """

    def __init__(
        self,
        core: Core,
        queue_store: QueueStore,
        topics: Topics,
        dead_letters: DeadLetters,
        sessions: Sessions,
    ) -> None:
        self.core = core
        self.queue_store = queue_store
        self.topics = topics
        self._dead_letters = dead_letters
        self._restored = False  # the start's fold has ended
        self._on_expiring = self._start_expiring  # one object for all queues
        self._sessions = sessions
        self.by_client: ClientTable[MqttSession] = ClientTable()
        self.by_number: dict[int, MqttSession] = {}
        self.filters: dict[Address, FilterQueue] = {}
        self._filter_address: dict[int, Address] = {}  # the same, by the queue's number
        self.retained = RetainedFlights(core, self.by_number)
        """Retained messages in flight."""
        self.shares = Shares(core, self, sessions.settings, dead_letters.counts)
        self._leaving: dict[SessionGroup, None] = {}
        """Groups whose client has unsubscribed, and which have something in flight."""
        self._unread: dict[Address, None] = {}
        """Filter queues whose last reader ended with its session."""
        self._looking = False  # whether something of these two will be looked at
        for name, handler in (
            ("session+", self._apply_session),
            ("session-", self._apply_session_end),
            ("fq+", self._apply_filter),
            ("fq-", self._apply_filter_end),
            ("fq=", self._apply_expiring),
            ("sub+", self._apply_subscribe),
            ("sub-", self._apply_unsubscribe),
            ("flown", self._apply_flown),
            ("split", self._apply_split),
            ("assign", self._apply_assign),
            ("replayed", self._apply_replayed),
            ("rel+", self._apply_release),
            ("rel-", self._apply_complete),
            ("in-", self._apply_inbound_release),
            ("session=", self._apply_session_change),
        ):
            core.journal.handle(name, handler)

    # --- ops ------------------------------------------------------------------------------

    def _apply_session(self, op: Op) -> Touched:
        self.load(str(op["n"]), op)
        return [("session", str(op["n"]))]

    def _apply_session_change(self, op: Op) -> Touched:
        """How long the session outlives its connections from now on."""
        session = self.by_number.get(op["n"])
        if session is None:
            return []
        session.asked_seconds = op["x"]
        return [("session", str(op["n"]))]

    def _apply_session_end(self, op: Op) -> Touched:
        numbers = (op["n"], *op.get("m", ()))
        touched = [("session", str(number)) for number in numbers]
        for number in numbers:
            session = self.by_number.pop(number, None)
            if session is None:
                continue
            self._sessions.count_session(session.principal, -1)
            if self.by_client.get(session.client_id) is session:
                del self.by_client[session.client_id]
            self._sessions.expiry.forget(session)
            self.retained.forget_session(session)
            touched += self.shares.session_ended(session)
            session.backlogs = None
            session.backlog = None  # it knows the groups, which know the session
            self.core.sweeper.add(self.sweep(session.forget_all()))
        return touched

    def sweep(self, subscriptions: Collection[Subscription]) -> Iterator[None]:
        """Take subscriptions of a session that has ended out of memory, in steps (`Sweeper`)."""
        for subscription in subscriptions:
            group = subscription.group
            if isinstance(subscription, Member):
                self.shares.part(subscription)
                yield
                continue
            if not isinstance(group, SessionGroup) or not subscription.durable:
                self.topics.router.unsubscribe(subscription.address, subscription)
                subscription.detach()
                yield
                continue
            subscription.part(group)
            queue = group.queue
            for _ in range(len(queue.groups) // READERS_PER_ENTRY):
                yield
            self.queue_store.drop_group(group)
            self.core.journal.dirty.add(("group", str(group.number)))
            if not queue.groups and queue.number in self._filter_address:
                self._unread[subscription.address] = None
            yield
        self.look_for_flown()

    def _apply_filter(self, op: Op) -> Touched:
        self.load_filter(str(op["n"]), {"w": op["w"]})
        return [("filter", str(op["n"]))]

    def _apply_filter_end(self, op: Op) -> Touched:
        address = tuple(op["w"])
        found = self.filters.pop(address, None)
        if found is None:
            return []
        self.topics.router.unsubscribe(address, found.queue)
        self.core.store.drop_index(found.queue.number)
        self._filter_address.pop(found.queue.number, None)
        self._unread.pop(address, None)
        return [("filter", str(found.queue.number))]

    def _start_expiring(self, queue: Queue) -> None:
        """The first message with a time to live is on its way to the queue. Raises Refused."""
        self.core.journal.write({"op": "fq=", "n": queue.number})

    def _apply_expiring(self, op: Op) -> Touched:
        address = self._filter_address.get(op["n"])
        if address is None:
            return []
        queue = self.filters[address].queue
        queue.expiring = True
        self.let_expire(queue.groups)
        return [("filter", str(op["n"]))]

    def let_expire(self, groups: Iterable[Group]) -> None:
        """Messages of these groups may expire from now on."""
        if not self._restored:
            return
        for group in groups:
            if isinstance(group, SessionGroup) and not group.delivers:
                continue
            rules = group.rules = QueueRules(self._dead_letters, "", PLAIN, group)
            rules.start_expiring(group)

    def _apply_subscribe(self, op: Op) -> Touched:
        session = self.by_number.get(op["s"])
        if session is None:
            return []
        address = tuple(op["w"])
        if is_shared(address):
            return self.shares.apply_join(session, address, op)
        subscription = session.subscriptions.get(address)
        options = options_of(op, op["q"])
        touched = [("session", str(session.number))]
        if subscription is None:
            subscription = Subscription(session, address, options)
            session.keep(subscription)
        elif op["g"] and not subscription.durable:
            session.retire(subscription)
            subscription = Subscription(session, address, options)
            session.replace(subscription)
        if op["q"]:
            subscription.raise_from_0(op["o"])
            subscription.queued_qos = 0
        elif subscription.durable and subscription.qos:
            subscription.queued_qos, subscription.queued_end = subscription.qos, op["o"]
        subscription.set_options(options)
        self._sessions.exclusive.changed(session, address, exclusive=options.exclusive)
        if "r" in op:
            subscription.owed = Owed(op["r"])
        elif not op["q"]:
            subscription.owed = None
        if op["g"] and subscription.group is None:
            self.core.saw_number(op["g"])
            queue = self.filters[address].queue
            group = self.queue_store.group(
                queue, Cursor(op["o"]), number=op["g"], kind=SessionGroup
            )
            assert isinstance(group, SessionGroup)
            subscription.join(group)
            if session.overlaps is not None:
                session.overlaps.begins(group, self.core.end())
            touched.append(("group", str(op["g"])))
            if queue.expiring:
                self.let_expire([group])
        return touched

    def _apply_unsubscribe(self, op: Op) -> Touched:
        session = self.by_number.get(op["s"])
        subscription = session.forget(tuple(op["w"])) if session is not None else None
        if session is None or subscription is None:
            return []
        if isinstance(subscription, Member):
            return self.shares.apply_leave(session, subscription, op)
        touched = [("session", str(session.number))]
        group = subscription.group
        if not isinstance(group, SessionGroup) or not subscription.durable:
            session.end_live(subscription)
            return touched
        touched.append(("group", str(group.number)))
        subscription.part(group)
        if op.get("k"):
            self._let_leave(group)
        else:
            self._drop_group(group)
        return touched

    def _apply_split(self, op: Op) -> Touched:
        """A subscription goes on at an offset with a group of its own; the one that it had stays
        for what is in flight."""
        session = self.by_number.get(op["s"])
        subscription = session.subscriptions.get(tuple(op["w"])) if session is not None else None
        if session is None or subscription is None or subscription.group is None:
            return []
        old = subscription.group
        subscription.part(old)
        self._let_leave(old)
        self.core.saw_number(op["g"])
        cursor = Cursor(op["o"])
        group = self.queue_store.group(old.queue, cursor, number=op["g"], kind=SessionGroup)
        assert isinstance(group, SessionGroup)
        subscription.join(group)
        if old.queue.expiring:
            self.let_expire([group])
        self.look_for_flown()
        numbers = [str(old.number), str(group.number)]
        return [("session", str(session.number)), *(("group", number) for number in numbers)]

    def _apply_assign(self, op: Op) -> Touched:
        session = self.by_number.get(op["s"])
        if session is None:
            return []
        if not op["g"]:
            entry = ENTRY.pack(op["o"], op["z"], 0)
            self.retained.add(session, op["t"], entry, op["q"], op.get("i", 0))
            owed = self._owed_to(op.get("r", 0))
            if owed is not None:
                owed.move(tuple(op["k"]))
            return [("session", str(session.number))]
        group = self.queue_store.groups.get(op["g"])
        if not isinstance(group, SessionGroup):
            return []
        session.unacked.next_tag = max(session.unacked.next_tag, op["t"])
        session.unacked.add(group.flight(op.get("q", UNKNOWN_QOS)), op["o"], op["n"])
        group.cursor.delivered_to(op["o"] + op["n"])
        touched = [("session", str(session.number)), ("group", str(op["g"]))]
        for number, offset in op.get("also", ()):  # the same messages in other queues
            other = self.queue_store.groups.get(number)
            if other is not None:
                other.cursor.settle(offset, op["n"])
                touched.append(("group", str(number)))
        return touched

    def _owed_to(self, number: int) -> Owed | None:
        """What is owed to the subscription whose group has this number."""
        group = self.queue_store.groups.get(number)
        if not isinstance(group, SessionGroup) or group.subscription is None:
            return None
        return group.subscription.owed

    def _apply_replayed(self, op: Op) -> Touched:
        """A subscription has got all retained messages that it asked for."""
        group = self.queue_store.groups.get(op["g"])
        if not isinstance(group, SessionGroup) or group.subscription is None:
            return []
        group.subscription.owed = None
        return [("session", str(group.subscription.session.number))]

    def _apply_release(self, op: Op) -> Touched:
        session = self.by_number.get(op["s"])
        if session is None:
            return []
        session.start_release(op["t"], op["n"])
        return [("session", str(session.number))]

    def _apply_complete(self, op: Op) -> Touched:
        session = self.by_number.get(op["s"])
        if session is None:
            return []
        session.forget_released(op["t"], op["n"])
        return [("session", str(session.number))]

    def took_inbound(self, number: int, packet_ids: Iterable[int]) -> None:
        """QoS 2 messages of the session were stored (their records say so)."""
        session = self.by_number.get(number)
        if session is not None:
            session.inbound.update(packet_ids)
            self.core.journal.dirty.add(("session", str(number)))

    def _apply_inbound_release(self, op: Op) -> Touched:
        session = self.by_number.get(op["s"])
        if session is None:
            return []
        if op["p"]:
            session.inbound.difference_update(packet_id_run(op["p"], op.get("n", 1)))
        else:  # all: their sender has lost its session
            session.inbound.clear()
        return [("session", str(session.number))]

    # --- snapshot -------------------------------------------------------------------------

    def state_kinds(self) -> tuple[StateKind, ...]:
        """See `state/kinds.py`."""
        return (
            StateKind("filter", self.row_filter, each(self.load_filter)),
            self.shares.state_kind(),
            StateKind("group", self._row_group, self._load_groups),
            StateKind("session", self.row, each(self.load)),
        )

    def _row_group(self, key: str) -> dict[str, object] | None:
        group = self.queue_store.groups.get(int(key))
        return None if group is None else self.queue_store.group_row(group)

    def _load_groups(self, rows: Iterable[tuple[str, Any]]) -> None:
        """Take the cursors of all groups. Those of sessions are made with them; the others came
        with their queues."""
        queues = {found.queue.number: found.queue for found in self.filters.values()}
        for key, value in rows:
            number = int(key)
            cursor = Cursor.restore(
                value["floor"], value["next"], value["settled"], value.get("stop", NO_STOP)
            )
            group = self.queue_store.groups.get(number)
            if group is not None:
                group.cursor = cursor
                self.queue_store.load_counts(number, value.get("times", ()))
            elif value["q"] in queues:
                self.queue_store.group(queues[value["q"]], cursor, number=number, kind=SessionGroup)

    def take_message(self, record: Record) -> Touched:
        """A message of the log that changes state: it may have come with QoS 2."""
        inbound = record.properties.get(QOS2_PROPERTY)
        if inbound is not None:
            number, _, packet = inbound.partition(".")
            self.took_inbound(int(number, 16), (int(packet, 16),))
        return ()

    def index_numbers(self) -> Iterator[int]:
        """The numbers of all filter queues."""
        return (found.queue.number for found in self.filters.values())

    def load(self, key: str, value: Mapping[str, Any]) -> None:
        """Take a session from its op or its snapshot."""
        number = int(key)
        self.core.saw_number(number)
        session = MqttSession(self._sessions, value["c"], number=number, principal=value["u"])
        self.by_number[number] = session
        self.by_client[value["c"]] = session
        self._sessions.count_session(session.principal, 1)
        session.asked_seconds = value.get("x")
        session.away_ms = value.get("away", 0)
        session.left_ms = value.get("left", 0)
        session.inbound.update(value.get("in", ()))
        session.releasing.update(dict.fromkeys(value.get("rel", ())))
        for address, qos, group_number, *queued in value.get("subs", ()):
            if is_shared(address):
                self.shares.load_member(session, tuple(address), qos, group_number)
                continue
            options = SubscriptionOptions(qos=qos)
            subscription = Subscription(session, tuple(address), options)
            if queued:
                subscription.queued_qos, subscription.queued_end, *lowered = queued
                if lowered:
                    subscription.lowered_first, subscription.lowered_end = lowered
            session.keep(subscription)
            group = self.queue_store.groups.get(group_number)
            if isinstance(group, SessionGroup):
                subscription.join(group)
        for address, row in value.get("options", ()):
            found = session.subscriptions.get(tuple(address))
            if found is not None:
                found.set_options(options_of(row, found.qos))
                exclusive = found.options.exclusive
                self._sessions.exclusive.changed(session, found.address, exclusive=exclusive)
        for address, *owed in value.get("owed", ()):
            session.subscriptions[tuple(address)].owed = owed_of(owed)
        for tag, group_number, first, count, *sent in value.get("unacked", ()):
            qos = sent[0] if sent else UNKNOWN_QOS
            group = self.queue_store.groups.get(group_number)
            if not group_number:
                identifier = sent[1] if len(sent) > 1 else 0
                self.retained.add(session, tag, ENTRY.pack(first, count, 0), qos, identifier)
            elif isinstance(group, SessionGroup):
                session.unacked.next_tag = tag
                session.unacked.add(group.flight(qos), first, count)
                if not group.delivers and not isinstance(group, ShareGroup):
                    group.session = session
                    self._let_leave(group)
        session.unacked.next_tag = value.get("next", 1)

    def row(self, key: str) -> Mapping[str, Any] | None:
        """The session as a JSON value for the snapshot."""
        session = self.by_number.get(int(key))
        if session is None:
            return None
        away = {"away": session.away_ms} if session.away_ms else {}
        if session.left_ms:
            away["left"] = session.left_ms
        owed = [
            [list(subscription.address), *subscription.owed.row()]
            for subscription in session.subscriptions.values()
            if subscription.owed is not None
        ]
        options = [
            [list(subscription.address), options_row(subscription.options)]
            for subscription in session.subscriptions.values()
            if is_special(subscription.options) or subscription.options.exclusive
        ]
        expiry = {} if session.asked_seconds is None else {"x": session.asked_seconds}
        return {
            **away,
            **expiry,
            **({"owed": owed} if owed else {}),
            **({"options": options} if options else {}),
            "c": session.client_id,
            "u": session.principal,
            "in": sorted(session.inbound),
            "rel": list(session.releasing),
            "next": session.unacked.next_tag,
            "subs": [subscription.row() for subscription in session.subscriptions.values()],
            "unacked": [
                [tag, *_extent_of(holder, offset, count), *_sent_as(holder)]
                for tag, holder, offset, count in session.unacked.runs()
                if isinstance(holder, QueueFlight | RetainedFlight)
            ],
        }

    def load_filter(self, key: str, value: Mapping[str, Any]) -> None:
        """Take a filter queue from its op or its snapshot."""
        number = int(key)
        self.core.saw_number(number)
        address = tuple(value["w"])
        queue = self.queue_store.durable_queue(number, own=False)
        queue.on_expiring = self._on_expiring
        queue.expiring = value.get("x", False)
        self.filters[address] = FilterQueue(address, queue)
        self._filter_address[number] = address
        self.topics.router.subscribe(address, queue)

    def row_filter(self, key: str) -> Mapping[str, Any] | None:
        """The filter queue as a JSON value for the snapshot."""
        address = self._filter_address.get(int(key))
        if address is None:
            return None
        row = {"w": list(address)}
        return {**row, "x": True} if self.filters[address].queue.expiring else row

    # --- groups without a subscription -----------------------------------------------------

    def end_group(self, group: SessionGroup) -> None:
        """The group delivers nothing more: it goes, at once or when nothing is in flight of it."""
        if group.cursor.outstanding_count:
            self._let_leave(group)
        else:
            self._drop_group(group)

    def _let_leave(self, group: SessionGroup) -> None:
        """The group goes with the last of what is in flight of it."""
        self._leaving[group] = None
        noted = group.moved

        def moved(group: Group) -> None:
            noted(group)
            self.look_for_flown()

        group.moved = moved

    def look_for_flown(self) -> None:
        """End groups without a subscription of which nothing is in flight any more, and filter
        queues that nobody reads, soon."""
        some = self._leaving or self._unread or self.shares.unused
        if some and self._restored and not self._looking:
            self._looking = True
            self.core.scheduler.call_soon(self._end_flown)

    def _end_flown(self) -> None:
        self._looking = False
        core = self.core
        if core.has_failed() or core.follows:
            return
        flown = list(islice(filter(self._has_flown, self._leaving), ENDED_AT_ONCE))
        try:
            self._end_groups(flown)
            for share in list(islice(self.shares.unused, ENDED_AT_ONCE)):
                self.shares.end_unused(share)
            for address in list(islice(self._unread, ENDED_AT_ONCE)):
                self.end_unread(address)
                self._unread.pop(address, None)
        except Refused:  # the log takes nothing now
            self._looking = True
            core.scheduler.call_later(core.limits.lazy_flush_seconds, self._end_flown)
            return
        if self._unread or self.shares.unused or len(flown) == ENDED_AT_ONCE:
            self.look_for_flown()

    def _has_flown(self, group: SessionGroup) -> bool:
        """Whether nothing of a group without a subscription is in flight any more."""
        if isinstance(group, ShareGroup):
            return not group.cursor.outstanding_count
        return not group.cursor.outstanding_count or not self._is_there(group.session)

    def _is_there(self, session: MqttSession | None) -> bool:
        return session is not None and self.by_number.get(session.number) is session

    def _end_groups(self, groups: Sequence[SessionGroup]) -> None:
        """End groups without a subscription, with what is in flight of them. Raises Refused."""
        if groups:
            unread = dict.fromkeys(self._filter_address[group.queue.number] for group in groups)
            self.core.journal.write({"op": "flown", "g": [group.number for group in groups]})
            for address in unread:
                self.end_unread(address)

    def end_unread(self, address: Address) -> Position:
        """End the filter queue if no session reads it any more. Raises Refused."""
        found = self.filters.get(address)
        if found is None or found.queue.groups:
            return Position(0)
        return self.core.journal.write({"op": "fq-", "w": list(address)})

    def _apply_flown(self, op: Op) -> Touched:
        touched = []
        for number in op["g"]:
            group = self.queue_store.groups.get(number)
            if isinstance(group, SessionGroup):
                touched += [("group", str(number)), ("share", str(number))]
                if group.session is not None:
                    touched.append(("session", str(group.session.number)))
                self._drop_group(group)
        return touched

    def _drop_group(self, group: SessionGroup) -> None:
        """The group is gone, and what is in flight of it."""
        if group.session is not None and self._is_there(group.session):
            unacked = group.session.unacked
            for tag, holder, _, count in unacked.runs():
                if isinstance(holder, QueueFlight) and holder.group is group:
                    unacked.settle(tag, tag + count - 1)
        self._leaving.pop(group, None)
        if isinstance(group, ShareGroup):
            self.shares.dropped(group)
        self.queue_store.drop_group(group)

    # --- a start --------------------------------------------------------------------------

    def reopen(self) -> None:
        """After a restart: drop from what is in flight what the cursors know as settled, and give
        everything else that was delivered back to its queue."""
        in_flight: dict[SessionGroup, list[tuple[int, int]]] = {}
        for session in self.by_number.values():
            for group, stretches in _forget_settled(session).items():
                in_flight.setdefault(group, []).extend(stretches)
        self.shares.reopen()
        self._restored = True
        for address, found in self.filters.items():
            if not found.queue.groups:
                self._unread[address] = None
            for reader in found.queue.groups:
                assert isinstance(reader, SessionGroup)
                reader.cursor.reopen(in_flight.get(reader, ()))
                if not reader.delivers and reader not in self._leaving:
                    self._let_leave(reader)
            if found.queue.expiring:
                self.let_expire(found.queue.groups)
        self.look_for_flown()

    def forget_settled(self, numbers: Iterable[int]) -> None:
        """Drop from what is in flight what the cursors know as settled: where acks come as records
        only, nothing else does."""
        for number in numbers:
            session = self.by_number.get(number)
            if session is not None:
                _forget_settled(session)


def _sent_as(holder: QueueFlight | RetainedFlight) -> tuple[int, ...]:
    """How messages in flight were sent, as a row has it."""
    if isinstance(holder, RetainedFlight) and holder.identifier:
        return holder.qos, holder.identifier
    return (holder.qos,)


def _extent_of(
    holder: QueueFlight | RetainedFlight, offset: int, count: int
) -> tuple[int, int, int]:
    """Where messages in flight are, as a row has it."""
    if isinstance(holder, QueueFlight):
        return holder.group.number, offset, count
    position, size, _ = ENTRY.unpack(holder.entry)
    return 0, position, size


def _forget_settled(session: MqttSession) -> dict[SessionGroup, list[tuple[int, int]]]:
    """Drop what the cursors know as settled from what is in flight; the rest, by group."""
    in_flight: dict[SessionGroup, list[tuple[int, int]]] = {}
    for tag, holder, offset, count in list(session.unacked.runs()):
        if not isinstance(holder, QueueFlight):
            continue
        group = holder.group
        for at in range(count):
            if group.cursor.is_settled(offset + at):
                session.unacked.settle(tag + at, tag + at)
            else:
                in_flight.setdefault(group, []).append((offset + at, 1))
    return in_flight
