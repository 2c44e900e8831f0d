"""What the log says of a message after it was stored: which records concern it, and what they say.

Records are taken in the order of the log, from the message on or from a later place. Only those
that change state are looked at: ops, and messages that took the place of another one. Nothing is
guessed: where a record may mean two things, nothing is said.

The names of ops, and what stands in them, are those of their writers in `broker/`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from polymq.admin.redriving import MARK_PROPERTY
from polymq.admin.way_values import Event, What
from polymq.broker.delays.delayed import DELAY_PROPERTY
from polymq.broker.messages.dead_letter_history import DEATH_PROPERTY, history_of
from polymq.broker.messages.records import TAGS
from polymq.broker.moves.moves import SENT_ON_PROPERTY, settled_by
from polymq.broker.moves.set_aside import REFUSED
from polymq.broker.names import display_name
from polymq.broker.port import Address
from polymq.broker.state.journal import OP_TAG, STATE_TOPIC, Op
from polymq.broker.topics.retained import ORIGIN_PROPERTY, RETAIN_PROPERTY
from polymq.core_log.record import Record
from polymq.gateways.http_cloudevents.mapping import DEAD_LETTER_REASON

EVENTS_MAX: Final = 1_000
"""Of one answer: the search ends there, and goes on with the next request."""
_OP_HEAD: Final = b'{"op":"'

Properties = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sought:
    """The message, as the log names it.

    Attributes:
        position: of the message.
        properties: all of its record's.
        topic: the user's name of the topic in the record, which the next two belong to.
        queue_id, offset: its position in the topic's own queue.
        own: number of that queue.
        incarnation: of the topic; None: there is no such topic any more.
        stored: the name of the topic in the record.
        address: of the topic of a retained message; None: it is none.
        groups: by the numbers of its readers: the ids of destinations, and its offset there.
        prepared: the number of the group of half messages, if it is one; else 0.
        user_name: the user's name of a stored topic.
    """

    position: int
    properties: Properties
    topic: str
    queue_id: int
    offset: int
    own: int
    incarnation: int | None
    stored: bytes
    address: Address | None
    groups: Mapping[int, tuple[str, int]]
    prepared: int
    user_name: Callable[[bytes], str]


@dataclass(slots=True)
class Past:
    """Takes records, and remembers what they say of one message.

    Args:
        from_start: the first record is the first one behind the message.

    Attributes:
        events: in the order of the log.
        later: ids of destinations whose reader began after the message.
    """

    sought: Sought
    from_start: bool
    events: list[Event] = field(default_factory=list)
    later: set[str] = field(default_factory=set)
    _delivered: set[int] = field(default_factory=set)  # numbers of groups
    _ended: set[int] = field(default_factory=set)
    _committed: set[str] = field(default_factory=set)  # names of consumer groups
    _was_replaced: bool = False
    _was_removed: bool = False

    @property
    def is_full(self) -> bool:
        """Whether the search has to end here."""
        return len(self.events) >= EVENTS_MAX

    def take(self, record: Record) -> None:
        """The next record that changes state."""
        if record.topic != STATE_TOPIC.encode():
            self._take_message(record)
            return
        body = record.body
        if not body.startswith(_OP_HEAD):
            return
        name = body[len(_OP_HEAD) : body.index(b'"', len(_OP_HEAD))].decode()
        reader = _OPS.get(name)
        if reader is not None and record.properties.get(TAGS) == OP_TAG:
            op: Op = json.loads(body.decode("utf-8", "surrogatepass"))
            for event in reader(self, op):
                self._say(record, *event)

    def _say(
        self,
        record: Record,
        what: What,
        destination: str | None = None,
        reason: str = "",
        times: int | None = None,
    ) -> None:
        self.events.append(
            Event(
                position=record.position,
                time_ms=record.store_ms,
                what=what,
                reason=reason,
                destination=destination,
                times=times,
            )
        )

    # --- messages that took its place -----------------------------------------------------------

    def _take_message(self, record: Record) -> None:
        sought, properties = self.sought, record.properties
        replaced = settled_by(dict(properties))
        if replaced is not None:
            number, offset = replaced
            destination, known = sought.groups.get(number, ("", -1))
            if known == offset:
                self._ended.add(number)
                what, reason = replacement(sought.properties, properties, destination)
                self._say_copy(record, what, reason, destination)
        sent_on = properties.get(SENT_ON_PROPERTY)
        if sent_on is not None and sent_on.startswith(f"{sought.own:x}.{sought.offset:x}."):
            destination = f"topic:{display_name(sought.topic)}"
            self._say_copy(record, "redriven", "", destination)
        if sought.address is not None and self._is_of_topic(record):
            if properties.get(ORIGIN_PROPERTY) == f"{sought.position:x}":
                self._say_copy(record, "copied", "retained", None)
            elif ORIGIN_PROPERTY not in properties:
                self._end_retained(record)

    def _is_of_topic(self, record: Record) -> bool:
        """Whether a record became the retained message of the same topic."""
        sought, properties = self.sought, record.properties
        return (
            RETAIN_PROPERTY in properties
            and record.topic == sought.stored
            and properties.get(TAGS) == sought.properties.get(TAGS)
        )

    def _end_retained(self, record: Record) -> None:
        """Another message came to be retained, or an empty one cleared the topic: the first of
        these counts."""
        if not self._was_replaced:
            self._was_replaced = True
            self._say_copy(record, "replaced" if record.body else "cleared", "", None)

    def _say_copy(self, record: Record, what: What, reason: str, destination: str | None) -> None:
        self.events.append(
            Event(
                position=record.position,
                time_ms=record.store_ms,
                what=what,
                reason=reason,
                destination=destination,
                to_position=record.position,
                to_topic=display_name(self.sought.user_name(record.topic)),
            )
        )

    # --- ops ------------------------------------------------------------------------------------

    def _found(self, number: int) -> tuple[str, int]:
        """The id of the destination that a group is, and the message's offset there."""
        return self.sought.groups.get(number, ("", -1))

    def _acks(self, op: Op) -> Iterator[tuple[Any, ...]]:
        for number, next_offset, settled in op["g"]:
            destination, offset = self._found(number)
            if not destination:
                continue
            if number not in self._ended and _covers(settled, offset):
                self._ended.add(number)
                yield "settled", destination, self._why(op, number, offset)
            elif offset < next_offset and number not in self._delivered | self._ended:
                self._delivered.add(number)
                yield "delivered", destination
        for number, stretches in op.get("c", ()):
            destination, offset = self._found(number)
            for first, count, times in stretches if destination else ():
                if first <= offset < first + count:
                    self._delivered.add(number)
                    yield "returned", destination, "", times

    def _why(self, op: Op, number: int, offset: int) -> str:
        for group, first, count, why in op.get("w", ()):
            if group == number and first <= offset < first + count:
                return str(why)
        return ""

    def _assign(self, op: Op) -> Iterator[tuple[Any, ...]]:
        destination, offset = self._found(op["g"])
        if op["g"] and destination and op["o"] <= offset < op["o"] + op["n"]:
            if op["g"] not in self._delivered:
                self._delivered.add(op["g"])
                yield "delivered", destination
            for number, first in op.get("also", ()):
                other, known = self._found(number)
                if other and first <= known < first + op["n"] and number not in self._ended:
                    self._ended.add(number)
                    yield "settled", other, "sent for another subscription of the session"

    def _back(self, op: Op) -> Iterator[tuple[Any, ...]]:
        destination, offset = self._found(op["g"])
        if destination and op["o"] <= offset < op["o"] + op["n"]:
            yield "returned", destination

    def _skip(self, op: Op) -> Iterator[tuple[Any, ...]]:
        """What waited below an offset was dropped; what was delivered was not."""
        for number, end in op["g"]:
            destination, offset = self._found(number)
            if destination and offset < end and self.from_start:
                if number not in self._delivered | self._ended:
                    self._ended.add(number)
                    yield "dropped", destination, "too much waited for the session"

    def _drop(self, op: Op) -> Iterator[tuple[Any, ...]]:
        for number, end in op["g"]:
            destination, offset = self._found(number)
            if destination and offset < end and number not in self._ended:
                self._ended.add(number)
                yield "dropped", destination, "the disk was full"

    def _trim(self, op: Op) -> Iterator[tuple[Any, ...]]:
        sought = self.sought
        for name, queue_id, first in op["q"]:
            if (name, queue_id) == (sought.topic, sought.queue_id) and sought.offset < first:
                if not self._was_removed:
                    self._was_removed = True
                    yield "removed", f"topic:{display_name(sought.topic)}", "retention"

    def _topic_end(self, op: Op) -> Iterator[tuple[Any, ...]]:
        if op["name"] == self.sought.topic:
            yield "removed", f"topic:{display_name(op['name'])}", "the topic was deleted"

    def _committed_offsets(self, op: Op) -> Iterator[tuple[Any, ...]]:
        sought = self.sought
        for name, topic, queue_id, incarnation, offset in op["o"]:
            if (topic, queue_id, incarnation) != (
                sought.topic,
                sought.queue_id,
                sought.incarnation,
            ):
                continue
            if offset > sought.offset and name not in self._committed:
                self._committed.add(name)
                yield "settled", f"group:{name}", "its group has committed a later offset"
            elif offset <= sought.offset and name in self._committed:
                self._committed.remove(name)
                yield "returned", f"group:{name}", "its group went back"

    def _began(self, op: Op) -> Iterator[tuple[Any, ...]]:
        """A reader began at an offset (`sub+`, `share+`, `split`)."""
        destination, offset = self._found(op["n"] if op["op"] == "share+" else op["g"])
        if destination and offset < op["o"]:
            self.later.add(destination)
        yield from ()

    def _unpublished(self, op: Op) -> Iterator[tuple[Any, ...]]:
        destination, offset = self._found(self.sought.prepared)
        if self.sought.prepared and op["o"] == offset:
            self._ended.add(self.sought.prepared)
            yield "settled", destination, "it was not committed"

    def _cleared(self, op: Op) -> Iterator[tuple[Any, ...]]:
        if self.sought.address is not None and list(self.sought.address) in op["w"]:
            yield "cleared", None, "an operator cleared it"


_OPS: Final[Mapping[str, Callable[[Past, Op], Iterator[tuple[Any, ...]]]]] = {
    "acks": Past._acks,
    "assign": Past._assign,
    "back": Past._back,
    "skip": Past._skip,
    "drop": Past._drop,
    "trim": Past._trim,
    "topic-": Past._topic_end,
    "committed": Past._committed_offsets,
    "sub+": Past._began,
    "share+": Past._began,
    "split": Past._began,
    "unpublished": Past._unpublished,
    "retained-": Past._cleared,
}


def _covers(stretches: Sequence[Sequence[int]], offset: int) -> bool:
    return any(first <= offset < first + count for first, count in stretches)


def replacement(before: Properties | None, after: Properties, destination: str) -> tuple[What, str]:
    """What a record with the properties `after`, which took the place of one with the properties
    `before`, says about that, and the reason.

    Args:
        before: None: they are not known, so only what is sure is said.
        destination: the id of the destination that the message left; empty: that is not known.
    """
    kind, _, name = destination.partition(":")
    if kind == "delayed":
        return ("copied", "it waits on") if DELAY_PROPERTY in after else ("released", "")
    if kind == "prepared":
        return "released", "it was committed"
    if before is None:
        return "moved", ""
    if REFUSED in after and REFUSED not in before:
        return "set aside", after[REFUSED]
    deaths = history_of(after).deaths
    if deaths and deaths[0].queue == name and before.get(DEATH_PROPERTY) != after[DEATH_PROPERTY]:
        return "dead-lettered", deaths[0].cause
    if after.get(MARK_PROPERTY) == destination and before.get(MARK_PROPERTY) != destination:
        return "redriven", ""
    if DEAD_LETTER_REASON in after and kind == "subscription":
        return "dead-lettered", after[DEAD_LETTER_REASON]
    return "moved", ""
