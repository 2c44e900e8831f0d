"""What a delayed message is in the log, and how RocketMQ's clients ask for one.

It is a record of a system topic: `rmq_sys_wheel_timer`, RocketMQ's name for the same thing. (Half
messages, which wait for a decision, look alike in another.) It has the constant properties, the
extra properties and the body that it will have in its own topic, and behind the constant ones

    PMQ_D = due time . incarnation of the topic . queue id . stored name of the topic

with the numbers in hex. Where an exchange delays the message, the incarnation has `-` and the last
end of an exchange of this name behind it (its place in the log; 0 if none has ended). Behind the
value, `PMQ_BY` names the user who prepared a half message.

The tag hash of its index entry is the due time, as in RocketMQ's schedule queues, with a check of
it in the bits that no time needs: nothing else covers an entry's tag hash, and a wrong time would
be a message that comes early or never.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from polymq.broker.errors import Reason, Refused
from polymq.broker.messages.constant_part import constant_size
from polymq.broker.messages.records import properties_span
from polymq.broker.moves.moves import OWNER_PROPERTY, Row, message_properties
from polymq.core_log.kernels.batch import (
    RECORD_BODY_AT,
    RECORD_BODY_SIZE_AT,
    RECORD_BORN_MS_AT,
    RECORD_POSITION_AT,
)
from polymq.core_log.record import RecordTemplate

DELAY_TOPIC: Final = b"rmq_sys_wheel_timer"
DELAY_PROPERTY: Final = "PMQ_D"
"""See the head of this file."""
_OWNER_MARK: Final = OWNER_PROPERTY.encode() + b"\x01"
DUE_BITS: Final = 42
"""Of a time in milliseconds, up to the year 2109."""
CHECK_BITS: Final = 21
"""Above them; a tag hash stays positive."""
DUE_MS_MIN: Final = 1 << 33
"""Smaller than any time (it is in 1970), larger than any real tag hash."""
_DUE_MASK: Final = (1 << DUE_BITS) - 1
_CHECK_MASK: Final = (1 << CHECK_BITS) - 1
_SPREAD: Final = 0x9E37_79B9_7F4A_7C15
"""A time's multiple by this (64 bits of the golden ratio) has its check in the bits 43 to 63: any
one bit of the time changes them, and it is the quickest that plain Python has."""
_SPREAD_SHIFT: Final = 64 - CHECK_BITS
LEVEL_SECONDS: Final = (
    *(1, 5, 10, 30),
    *(60 * minutes for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)),
    *(3600, 7200),
)
"""RocketMQ's 18 delay levels; level 1 is the first."""
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")


class Delayed(NamedTuple):
    """A delayed record, taken apart.

    Attributes:
        due_ms: when it is due.
        where: incarnation, queue id and stored topic, as in `PMQ_D`.
        prefix: the constant properties.
        row: what moves.
        owner: the user who prepared it; empty for nobody, and for delayed messages.
    """

    due_ms: int
    where: bytes
    prefix: bytes
    row: Row
    owner: str


def deliver_ms(properties: Mapping[str, str], now_ms: int) -> int | None:
    """When a message with these of RocketMQ's properties is to be delivered; None for at once.

    A delay level (`DELAY`) counts before the others, and one beyond the last is the last, as in
    RocketMQ.

    Raises:
        Refused: BAD_ARGUMENT, a value is no number.
    """
    for name, factor in (("DELAY", 0), ("TIMER_DELAY_SEC", 1000), ("TIMER_DELAY_MS", 1)):
        value = _number(properties, name)
        if value and name == "DELAY":
            return now_ms + 1000 * LEVEL_SECONDS[min(value, len(LEVEL_SECONDS)) - 1]
        if value:
            return now_ms + value * factor
    return _number(properties, "TIMER_DELIVER_MS") or None


def _number(properties: Mapping[str, str], name: str) -> int:
    text = properties.get(name, "0")
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise Refused(Reason.BAD_ARGUMENT, f"property {name} is {text!r}, which is not a number")
    return int(text)


def tag_of_due(due_ms: int) -> int:
    """A due time as the tag hash of an entry. A time that needs more bits goes without a check."""
    if due_ms > _DUE_MASK:
        return due_ms
    check = due_ms * _SPREAD >> _SPREAD_SHIFT & _CHECK_MASK
    return check << DUE_BITS | due_ms


def dues_of_tags(tags: Iterable[int]) -> list[int | None]:
    """The due times that tag hashes say; None where one does not say any that is sure: it is
    damaged, or a real tag hash, which recovery made again from the log, or has no check."""
    return [
        due_ms
        if (due_ms := tag & _DUE_MASK) >= DUE_MS_MIN
        and tag >> DUE_BITS == due_ms * _SPREAD >> _SPREAD_SHIFT & _CHECK_MASK
        else None
        for tag in tags
    ]


def delayed_record(
    topic: bytes, due_ms: int, where: bytes, prefix: bytes, owner: str = ""
) -> RecordTemplate:
    """How messages with these constant properties wait in a system topic."""
    mark = b"%b\x01%x.%b\x02" % (DELAY_PROPERTY.encode(), due_ms, where)
    if owner:
        mark += b"%b%b\x02" % (_OWNER_MARK, owner.encode())
    return RecordTemplate(
        topic=topic, queue_id=0, properties=prefix + mark, tag_hash=tag_of_due(due_ms)
    )


def take_apart(records: bytes) -> Iterator[Delayed]:
    """Delayed records, one after the other in memory, taken apart."""
    at = 0
    while at < len(records):
        _, _, first, last = properties_span(records, at)
        mark_at = first + constant_size(records, first, last)
        mark_end = records.index(b"\x02", mark_at)
        name, _, value = records[mark_at:mark_end].partition(b"\x01")
        assert name == DELAY_PROPERTY.encode(), "not a delayed record"
        due, _, where = value.partition(b".")
        body_size = _U32.unpack_from(records, at + RECORD_BODY_SIZE_AT)[0]
        row = Row(
            _U64.unpack_from(records, at + RECORD_BORN_MS_AT)[0],
            message_properties(records[mark_end + 1 : last]),
            records[at + RECORD_BODY_AT : at + RECORD_BODY_AT + body_size],
            _U64.unpack_from(records, at + RECORD_POSITION_AT)[0],
        )
        owner = b""
        if records.startswith(_OWNER_MARK, mark_end + 1):
            owner_at = mark_end + 1 + len(_OWNER_MARK)
            owner = records[owner_at : records.index(b"\x02", owner_at)]
        yield Delayed(int(due, 16), where, records[first:mark_at], row, owner.decode())
        at += _U32.unpack_from(records, at)[0]
