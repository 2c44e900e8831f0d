"""Half messages: RocketMQ's transactions.

Theory. A producer *prepares* a message: it is stored and acknowledged, and nobody sees it. Then it
does its own work and *commits* or *rolls back*. If it never says, it is asked: after
`half_check_after_ms`, and every `half_check_interval_ms` from then on. Who does not answer
`half_checks_max` times loses the message to the topic `TRANS_CHECK_MAX_TIME_TOPIC`, as in RocketMQ.

A half message is stored (`delays/timed_store.py`) in the system topic `RMQ_SYS_TRANS_HALF_TOPIC`;
its time is when its producer is asked next. A commit is a move (`moves/moves.py`): the message
and the settlement of the half are one record, so a crash keeps exactly one of them. A rollback is
a settlement.

Rules:

* The first decision counts, for ever: what is settled is not published again. (RocketMQ's broker
  publishes twice what is committed twice, and also what was rolled back by a check.) Who repeats
  that decision is told that all is well; who asks for the other one is told that it is too late.
* A half message belongs to its owner, the user who prepared it (`accounts/owners.py`): nobody else
  decides about it, but an administrator. What was prepared while the broker had no users is
  everybody's while it has none, and the administrators' afterwards.
* Who commits publishes, and needs the right to do so at that time. Without it the half message
  waits on: it can be rolled back, and is asked for as any other.
* A commit leaves a record in the topic. That a message was *not* published (it was rolled back, it
  expired, its topic is gone) is an op, which settles it as well; the newest of them are remembered.
* How often a producer was asked survives a restart, by an op for each look. When, does not: what is
  overdue is asked for at once.
* A message that is asked for stays where it is; RocketMQ writes it anew each time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

from polymq.broker.bounded_cache import BoundedCache
from polymq.broker.core import Core
from polymq.broker.delays.delayed import Delayed, take_apart
from polymq.broker.delays.timed_store import TimedStore
from polymq.broker.delays.wheel import Taken
from polymq.broker.durability import FLUSHED, Durability
from polymq.broker.errors import Reason, Refused
from polymq.broker.messages.record_header import HEADER_PROPERTY, header_of
from polymq.broker.messages.records import PREFIX_PROPERTY, TAGS, parse_properties
from polymq.broker.moves.moves import Moves
from polymq.broker.pacing.timers import Timer
from polymq.broker.port.publishing import Route, Template
from polymq.broker.port.transactions import HalfMessage, Prepared
from polymq.broker.queues.queue import Group
from polymq.broker.queues.store import QueueStore
from polymq.broker.state.journal import Op, Touched
from polymq.broker.state.kinds import StateKind, single
from polymq.broker.topics.topic import TopicTemplate
from polymq.broker.topics.topics import Topics
from polymq.core_log.kernels.batch import RECORD_POSITION_AT, Batch
from polymq.core_log.kernels.layout import ENTRY_SIZE

HALF_TOPIC: Final = b"RMQ_SYS_TRANS_HALF_TOPIC"
EXPIRED_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
"""Where messages end whose producer never answers."""
REAL_TOPIC: Final = "REAL_TOPIC"
"""There: the topic that a message was meant for."""
PRODUCER: Final = "PGROUP"
"""RocketMQ's property for the producer group."""

Done = Callable[[int | Refused], None]

ROLLED_BACK, EXPIRED, DROPPED = range(3)
WHY: Final = (
    "was rolled back",
    "was given up, because its producer never answered",
    "was lost with its topic, which was deleted",
)
"""Why a half message was not published; the numbers are in the log."""


class Decider(Protocol):
    """Whose rights count when a half message is ended."""

    def may_end(self, owner: str) -> bool:
        """Whether it may decide about half messages of this owner."""

    def check_commit(self, route: Route) -> None:
        """Whether it may publish there. Raises Refused: FORBIDDEN."""


class Decision(NamedTuple):
    """What somebody asks for.

    Attributes:
        record_position: of the half message's record.
        decider: who asks; None while the broker has no users, when everybody may.
    """

    record_position: int
    producer: str
    commit: bool
    decider: Decider | None
    callback: Done


class HalfMessages:
    """All half messages of one engine.

    Attributes:
        dropped_count: messages whose topic was gone.
        expired_count: messages whose producer never answered.
    """

    def __init__(self, core: Core, queue_store: QueueStore, topics: Topics, moves: Moves) -> None:
        self._core = core
        self._topics = topics
        self._moves = moves
        self._timed = TimedStore(core, queue_store, topics, topic=HALF_TOPIC, kind="half")
        self._asked: dict[int, int] = {}  # how often, by offset; only those that were
        # By offset why: of the newest that were ended so.
        self._unpublished: BoundedCache[int, int] = BoundedCache(core.limits.half_ends_cached_max)
        self._ending: dict[int, list[Decision]] = {}  # being read, to be ended; or, if they are
        # committed to a topic that asks for replicas, until those have the message
        self._ask: Callable[[HalfMessage], None] | None = None
        self._timer: Timer | None = None
        self.dropped_count = 0
        self.expired_count = 0
        core.journal.handle("asked", self._apply_asked)
        core.journal.handle("unpublished", self._apply_unpublished)

    @property
    def group(self) -> Group | None:
        """What settles the messages that wait (for operators); None before the first one."""
        return self._timed.group

    # --- the producer's side --------------------------------------------------------------

    def prepare(
        self,
        template: Template,
        batch: Batch,
        row: int,
        *,
        check_after_ms: int = 0,
        owner: str = "",
    ) -> Prepared:
        """See `HalfMessagePort.prepare`.

        Args:
            owner: who may decide, as `Owners.of` says it; empty for nobody in particular.
        """
        assert isinstance(template, TopicTemplate)
        core = self._core
        core.check_writable()
        if self._timed.wheel.count >= core.limits.half_max:
            raise Refused(
                Reason.LIMIT,
                f"{core.limits.half_max} half messages wait: commit some, or send slower",
            )
        queue = self._timed.make().queue
        due_ms = core.clock_ms() + (check_after_ms or core.limits.half_check_after_ms)
        record = self._timed.record(template, due_ms, owner)
        (span,) = self._timed.append(record, batch, row, row + 1, due_ms)
        self._arm()
        return Prepared(queue.index.end_offset - 1, span.position, core.end())

    def end(
        self,
        offset: int,
        record_position: int,
        *,
        producer: str,
        commit: bool,
        callback: Done,
        decider: Decider | None = None,
    ) -> None:
        """See `HalfMessagePort.end`, and `Decision` for the decider."""
        self._end_one(offset, Decision(record_position, producer, commit, decider, callback))

    def _end_one(self, offset: int, decision: Decision) -> None:
        group = self._timed.group
        if group is None or not 0 <= offset < group.queue.index.end_offset:
            decision.callback(_unknown(offset))
        elif offset in self._ending:
            self._ending[offset].append(decision)
        elif group.cursor.is_settled(offset):
            decision.callback(self._too_late(offset, decision.commit))
        else:
            self._ending[offset] = [decision]
            reading = self._core.reading
            reading.read(
                group.queue.index,
                offset,
                1,
                reading.limits.pump_bytes_max,
                lambda records, _: self._end_read(group, offset, records),
            )

    def _too_late(self, offset: int, commit: bool) -> int | Refused:
        """The answer where the decision was made before."""
        why = self._unpublished.get(offset)
        if commit and why is not None:
            return Refused(
                Reason.DIFFERENT, f"half message {offset} {WHY[why]}: it is not published any more"
            )
        if not commit and why is None:
            return Refused(Reason.DIFFERENT, f"it is too late to roll half message {offset} back")
        return self._core.end()

    def _end_read(self, group: Group, offset: int, records: bytes | None) -> None:
        """Decide as the first of those wants who asked: the others are answered behind it."""
        answer: int | Refused
        durability = FLUSHED
        decision = self._ending[offset][0]
        try:
            if not records or _position_of(records) != decision.record_position:
                raise _unknown(offset)
            (half,) = take_apart(records)
            if decision.decider is not None and not decision.decider.may_end(half.owner):
                raise Refused(Reason.FORBIDDEN, f"half message {offset} is another user's")
            if _properties(half).get(PRODUCER, decision.producer) != decision.producer:
                raise Refused(Reason.FORBIDDEN, f"half message {offset} is another producer's")
            answer, durability = self._decide(group, offset, half, decision)
        except Refused as error:
            answer = error
        if durability > FLUSHED and not isinstance(answer, Refused):
            self._core.commits.when(answer, durability, self._answer, offset, answer)
            self._core.appended()
        else:
            self._answer(offset, answer)

    def _answer(self, offset: int, answer: int | Refused) -> None:
        first, *others = self._ending.pop(offset)
        first.callback(answer)
        for decision in others:
            self._end_one(offset, decision)

    def _decide(
        self, group: Group, offset: int, half: Delayed, decision: Decision
    ) -> tuple[int, Durability]:
        """Returns what the answer waits for, and how safe it has to be."""
        durability = FLUSHED
        if decision.commit:
            template = self._timed.template(half.where, half.prefix)
            if template is None:
                self._drop(offset)
                raise Refused(
                    Reason.NOT_FOUND, f"the topic of half message {offset} was deleted: it is gone"
                )
            if decision.decider is not None:
                decision.decider.check_commit(template.route)
            self._moves.append_rows(template, [half.row], group, [offset])
            durability = template.durability
        else:
            self._core.check_writable()
            self._write_unpublished(offset, ROLLED_BACK)
        self._asked.pop(offset, None)
        return self._core.end(), durability

    def _write_unpublished(self, offset: int, why: int) -> None:
        """Settle one that is not published. Raises Refused: the log takes nothing."""
        group = self._timed.group
        assert group is not None
        self._core.journal.write({"op": "unpublished", "o": offset, "why": why})
        group.moved(group)

    def _drop(self, offset: int) -> None:
        self.dropped_count += 1
        self._asked.pop(offset, None)
        self._write_unpublished(offset, DROPPED)

    # --- asking ---------------------------------------------------------------------------

    def may_end(self, owner: str) -> bool:
        """See `HalfMessagePort.may_end`."""
        return True

    def when_unresolved(self, callback: Callable[[HalfMessage], None]) -> None:
        """See `HalfMessagePort.when_unresolved`."""
        assert self._ask is None
        self._ask = callback

    def _arm(self) -> None:
        at = self._timed.wheel.next_ms()
        if at is None:
            return
        if self._timer is not None and self._timer.active:
            if self._timer.due_ms <= at:
                return
            self._timer.cancel()
        self._timer = self._core.timers.at(at, self._look)

    def _look(self) -> None:
        """Ask for those whose time has come; the next look at them is an interval later."""
        group = self._timed.group
        assert group is not None
        core, now = self._core, self._core.clock_ms()
        taken = self._timed.take()
        entries: list[bytes] = []
        offsets: list[int] = []
        for at, offset in enumerate(taken.offsets):
            if not group.cursor.is_settled(offset):
                entry = taken.entries[at * ENTRY_SIZE : (at + 1) * ENTRY_SIZE]
                next_ms = now + core.limits.half_check_interval_ms
                self._timed.wheel.add(next_ms, entry, offset, now)
                entries.append(entry)
                offsets.append(offset)
        waiting = Taken(b"".join(entries), offsets)
        if waiting.offsets and self._ask is not None and self._note(waiting.offsets):
            core.reading.read_entries(waiting.entries, partial(self._ask_for, group, waiting))
        self._arm()

    def _note(self, offsets: Sequence[int]) -> bool:
        """Count one more time; returns whether the log has it."""
        counts = [[offset, self._asked.get(offset, 0) + 1] for offset in offsets]
        try:
            self._core.journal.write({"op": "asked", "c": counts})
        except Refused:
            return False  # asked for later
        return True

    def _ask_for(self, group: Group, waiting: Taken, records: bytes | None, _: int) -> None:
        if records is None:  # told by `Reading`; asked for again later
            return
        at = 0
        for offset, half in zip(waiting.offsets, take_apart(records), strict=True):
            record_position = _position_of(records, at)
            at += int.from_bytes(records[at : at + 4], "big")
            if group.cursor.is_settled(offset) or offset in self._ending:
                continue
            count = self._asked.get(offset, 0)
            template = self._timed.template(half.where, half.prefix)
            if template is None:
                self._drop_quietly(offset)
            elif count > self._core.limits.half_checks_max:
                self._expire(group, offset, half, template)
            elif self._ask is not None:
                self._ask(_half_message(offset, record_position, count, half, template))

    def _drop_quietly(self, offset: int) -> None:
        try:
            self._drop(offset)
        except Refused:
            return  # the next look finds it

    def _expire(self, group: Group, offset: int, half: Delayed, meant: TopicTemplate) -> None:
        """Nobody answered: the message goes where an operator finds it."""
        try:
            if EXPIRED_TOPIC not in self._topics.topics:
                self._topics.create(EXPIRED_TOPIC, 1, system=True)
            route = self._topics.route(EXPIRED_TOPIC, meant.route.tag)
            properties = {**meant.meta.properties, REAL_TOPIC: meant.route.topic}
            template = self._topics.template(route, properties=properties)
            self._moves.append_rows(template, [half.row], group, [offset])
            self._write_unpublished(offset, EXPIRED)
        except Refused:
            return  # the next look finds it
        self._asked.pop(offset, None)
        self.expired_count += 1

    # --- state ----------------------------------------------------------------------------

    def _apply_asked(self, op: Op) -> Touched:
        self._asked.update((offset, count) for offset, count in op["c"])
        return [("half", "")]

    def _apply_unpublished(self, op: Op) -> Touched:
        group, offset = self._timed.group, op["o"]
        assert group is not None
        group.cursor.settle(offset, 1)
        self._remember(offset, op["why"])
        return [("half", ""), ("group", str(group.number))]

    def _remember(self, offset: int, why: int) -> None:
        self._unpublished.add(offset, why)

    def state_kinds(self) -> tuple[StateKind, ...]:
        """See `state/kinds.py`."""
        return single("half", self.row, self.load)

    def load(self, value: Mapping[str, Any]) -> None:
        """Take the queue and the counts from their snapshot."""
        self._timed.load(value)
        self._asked = dict(value["asked"])
        self._unpublished.clear()
        for offset, why in value.get("unpublished", ()):
            self._remember(offset, why)

    def row(self) -> Mapping[str, Any] | None:
        """The queue and the counts as a JSON value for the snapshot."""
        row, group = self._timed.row(), self._timed.group
        if row is None or group is None:
            return None
        for offset in [one for one in self._asked if group.cursor.is_settled(one)]:
            del self._asked[offset]
        return {
            **row,
            "asked": list(self._asked.items()),
            "unpublished": list(self._unpublished.items()),
        }

    def reopen(self) -> None:
        """After a restart: find out what waits. Raises StoreError."""
        self._timed.reopen()
        self._arm()


def _unknown(offset: int) -> Refused:
    return Refused(Reason.NOT_FOUND, f"there is no half message {offset}")


def _position_of(records: bytes, at: int = 0) -> int:
    """The position in the log that the record at `at` names."""
    return int.from_bytes(records[at + RECORD_POSITION_AT : at + RECORD_POSITION_AT + 8], "big")


def _properties(half: Delayed) -> dict[str, str]:
    properties = parse_properties(half.prefix + half.row.extra)
    properties.pop(PREFIX_PROPERTY, None)
    properties.pop(HEADER_PROPERTY, None)
    properties.pop(TAGS, None)
    return properties


def _half_message(
    offset: int, record_position: int, count: int, half: Delayed, template: TopicTemplate
) -> HalfMessage:
    flag, system_flag, _ = header_of(parse_properties(half.prefix))
    return HalfMessage(
        offset=offset,
        record_position=record_position,
        check_count=count,
        topic=template.route.topic,
        tag=template.route.tag,
        body=half.row.body,
        properties=_properties(half),
        born_ms=half.row.born_ms,
        flag=flag,
        system_flag=system_flag,
        owner=half.owner,
    )
