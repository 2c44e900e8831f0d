"""The part of MQTT sessions that survives: their ops, and their rows in `state.db`.

A session's op says what happened (a subscription, a PUBREC); its row says how things stand. Both
lead to the same `MqttSession`. Acks are not here: they are the cursors' (`core.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from broker.core import Core
from broker.journal import Op, Touched
from broker.port import Words
from broker.queues.cursor import Cursor
from broker.queues.dead_letters import DeadLetters
from broker.queues.queue import Group, Queue
from broker.queues.rules import QueueRules
from broker.queues.settings import PLAIN
from broker.session import MqttSession, Subscription
from broker.topics import Topics

if TYPE_CHECKING:
    from broker.sessions import Sessions


class FilterQueue:
    """A filter queue and the sessions that read it."""

    __slots__ = ("queue", "words")

    def __init__(self, words: Words, queue: Queue) -> None:
        self.words = words
        self.queue = queue


class SessionState:
    """Sessions and filter queues as the log has them.

    A filter queue that messages with a time to live came to lets them expire, for each session by
    itself, as a named queue does (`queues/expiry.py`); any other one does not know of it. That the
    first of them came is an op before it.
    """

    def __init__(
        self, core: Core, topics: Topics, dead_letters: DeadLetters, sessions: Sessions
    ) -> None:
        self.core = core
        self.topics = topics
        self._dead_letters = dead_letters
        self._restored = False  # the start's fold has ended
        self._on_expiring = self._start_expiring  # one object for all queues
        self._sessions = sessions
        self.by_client: dict[str, MqttSession] = {}
        self.by_number: dict[int, MqttSession] = {}
        self.filters: dict[Words, FilterQueue] = {}
        self._filter_words: dict[int, Words] = {}  # the same, by the queue's number
        for name, handler in (
            ("session+", self._apply_session),
            ("session-", self._apply_session_end),
            ("fq+", self._apply_filter),
            ("fq-", self._apply_filter_end),
            ("fq=", self._apply_expiring),
            ("sub+", self._apply_subscribe),
            ("sub-", self._apply_unsubscribe),
            ("assign", self._apply_assign),
            ("rel+", self._apply_release),
            ("rel-", self._apply_complete),
            ("in-", self._apply_inbound_release),
        ):
            core.journal.handle(name, handler)

    # --- ops ------------------------------------------------------------------------------

    def _apply_session(self, op: Op) -> Touched:
        self.load(str(op["n"]), {"c": op["c"], "u": op["u"]})
        return [("session", str(op["n"]))]

    def _apply_session_end(self, op: Op) -> Touched:
        session = self.by_number.pop(op["n"], None)
        if session is not None:
            for words in list(session.subscriptions):
                session.forget(words)
            self._sessions.count_session(session.principal, -1)
            if self.by_client.get(session.client_id) is session:
                del self.by_client[session.client_id]
        return [("session", str(op["n"]))]

    def _apply_filter(self, op: Op) -> Touched:
        self.load_filter(str(op["n"]), {"w": op["w"]})
        return [("filter", str(op["n"]))]

    def _apply_filter_end(self, op: Op) -> Touched:
        words = tuple(op["w"])
        found = self.filters.pop(words, None)
        if found is None:
            return []
        self.topics.router.unsubscribe(words, found.queue)
        self.core.store.drop_index(found.queue.number)
        self._filter_words.pop(found.queue.number, None)
        return [("filter", str(found.queue.number))]

    def _start_expiring(self, queue: Queue) -> None:
        """The first message with a time to live is on its way to the queue. Raises Refused."""
        self.core.journal.write({"op": "fq=", "n": queue.number})

    def _apply_expiring(self, op: Op) -> Touched:
        words = self._filter_words.get(op["n"])
        if words is None:
            return []
        queue = self.filters[words].queue
        queue.expiring = True
        self._let_expire(queue.groups)
        return [("filter", str(op["n"]))]

    def _let_expire(self, groups: Iterable[Group]) -> None:
        if not self._restored:
            return
        for group in groups:
            rules = group.rules = QueueRules(self._dead_letters, "", PLAIN, group)
            rules.start_expiring(group)

    def _apply_subscribe(self, op: Op) -> Touched:
        session = self.by_number.get(op["s"])
        if session is None:
            return []
        words = tuple(op["w"])
        subscription = session.subscriptions.get(words)
        if subscription is None:
            subscription = Subscription(session, words, op["q"])
            session.keep(subscription)
        subscription.qos = op["q"]
        touched = [("session", str(session.number))]
        if op["g"] and subscription.group is None:
            self.core.saw_number(op["g"])
            queue = self.filters[words].queue
            subscription.queue = queue
            subscription.group = self.core.group(queue, Cursor(op["o"]), number=op["g"])
            touched.append(("group", str(op["g"])))
            if queue.expiring:
                self._let_expire([subscription.group])
        return touched

    def _apply_unsubscribe(self, op: Op) -> Touched:
        session = self.by_number.get(op["s"])
        subscription = session.forget(tuple(op["w"])) if session is not None else None
        if session is None or subscription is None:
            return []
        touched = [("session", str(session.number))]
        group = subscription.group
        if subscription.durable and group is not None:
            touched.append(("group", str(group.number)))
            for tag, holder, _, count in session.unacked.runs():
                if holder is group:
                    session.unacked.settle(tag, tag + count - 1)
            subscription.hold = None
            if group.rules is not None:
                group.rules.close()
            self.core.drop_group(group)
        else:
            subscription.detach()
        return touched

    def _apply_assign(self, op: Op) -> Touched:
        session = self.by_number.get(op["s"])
        group = self.core.groups.get(op["g"])
        if session is None or group is None:
            return []
        session.unacked.next_tag = max(session.unacked.next_tag, op["t"])
        session.unacked.add(group, op["o"], op["n"])
        group.cursor.delivered_to(op["o"] + op["n"])
        return [("session", str(session.number)), ("group", str(op["g"]))]

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

    def took_inbound(self, number: int, packet: int) -> None:
        """A QoS 2 message of the session was stored (its record says so)."""
        session = self.by_number.get(number)
        if session is not None:
            session.inbound.add(packet)
            self.core.journal.dirty.add(("session", str(number)))

    def _apply_inbound_release(self, op: Op) -> Touched:
        session = self.by_number.get(op["s"])
        if session is None:
            return []
        session.inbound.discard(op["p"])
        return [("session", str(session.number))]

    # --- snapshot -------------------------------------------------------------------------

    def load(self, key: str, value: Mapping[str, Any]) -> None:
        """Take a session from its op or its snapshot."""
        number = int(key)
        self.core.saw_number(number)
        session = MqttSession(self._sessions, value["c"], number=number, principal=value["u"])
        self.by_number[number] = session
        self.by_client[value["c"]] = session
        self._sessions.count_session(session.principal, 1)
        session.inbound.update(value.get("in", ()))
        session.releasing.update(dict.fromkeys(value.get("rel", ())))
        for words, qos, group_number in value.get("subs", ()):
            subscription = Subscription(session, tuple(words), qos)
            session.keep(subscription)
            group = self.core.groups.get(group_number)
            if group is not None:
                subscription.group = group
                subscription.queue = group.queue
        for tag, group_number, offset, count in value.get("unacked", ()):
            group = self.core.groups.get(group_number)
            if group is not None:
                session.unacked.next_tag = tag
                session.unacked.add(group, offset, count)
        session.unacked.next_tag = value.get("next", 1)

    def row(self, key: str) -> Mapping[str, Any] | None:
        """The session as a JSON value for the snapshot."""
        session = self.by_number.get(int(key))
        if session is None:
            return None
        return {
            "c": session.client_id,
            "u": session.principal,
            "in": sorted(session.inbound),
            "rel": list(session.releasing),
            "next": session.unacked.next_tag,
            "subs": [
                [list(s.words), s.qos, s.group.number if s.group and s.durable else 0]
                for s in session.subscriptions.values()
            ],
            "unacked": [
                [tag, holder.number, offset, count]
                for tag, holder, offset, count in session.unacked.runs()
                if isinstance(holder, Group) and holder.number
            ],
        }

    def load_filter(self, key: str, value: Mapping[str, Any]) -> None:
        """Take a filter queue from its op or its snapshot."""
        number = int(key)
        self.core.saw_number(number)
        words = tuple(value["w"])
        queue = self.core.durable_queue(number, own=False)
        queue.on_expiring = self._on_expiring
        queue.expiring = value.get("x", False)
        self.filters[words] = FilterQueue(words, queue)
        self._filter_words[number] = words
        self.topics.router.subscribe(words, queue)

    def row_filter(self, key: str) -> Mapping[str, Any] | None:
        """The filter queue as a JSON value for the snapshot."""
        words = self._filter_words.get(int(key))
        if words is None:
            return None
        row = {"w": list(words)}
        return {**row, "x": True} if self.filters[words].queue.expiring else row

    def reopen(self) -> None:
        """After a restart: drop from what is in flight what the cursors know as settled, and give
        everything else that was delivered back to its queue."""
        for session in self.by_number.values():
            kept = _forget_settled(session)
            for subscription in session.subscriptions.values():
                group = subscription.group
                if group is not None and subscription.durable:
                    group.cursor.reopen(kept.get(group, ()))
        self._restored = True
        for found in self.filters.values():
            if found.queue.expiring:
                self._let_expire(found.queue.groups)

    def forget_settled(self, numbers: Iterable[int]) -> None:
        """Drop from what is in flight what the cursors know as settled: where acks come as records
        only, nothing else does."""
        for number in numbers:
            session = self.by_number.get(number)
            if session is not None:
                _forget_settled(session)


def _forget_settled(session: MqttSession) -> dict[Group, list[tuple[int, int]]]:
    """Drop what the cursors know as settled from what is in flight; the rest, by group."""
    kept: dict[Group, list[tuple[int, int]]] = {}
    for tag, holder, offset, count in list(session.unacked.runs()):
        if not isinstance(holder, Group):
            continue
        for at in range(count):
            if holder.cursor.is_settled(offset + at):
                session.unacked.settle(tag + at, tag + at)
            else:
                kept.setdefault(holder, []).append((offset + at, 1))
    return kept
