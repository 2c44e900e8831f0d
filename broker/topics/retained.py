"""Retained messages: for each topic the log position of the last message published with RETAIN.

The body stays in the log. A new subscriber gets the retained messages that match its filter, in
slices (`sessions/retained_replay.py`), so that a subscription to everything does not stop the loop.

Theory. A walk over the names goes on while messages come and go, for as long as a slow client
takes, and there may be one for each client. A persistent session's walk survives its connection and
the server (`sessions/owed.py`). So the names are sorted, and the place of a walk is the last name
that it met (`sorted_names.py`).

Retention may copy a message to the end of the log. Its *origin*, the position at which it was
published, tells whether a subscription is older than the message. A copy says it in its properties.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from polymq.broker.errors import Reason, Refused
from polymq.broker.messages.constant_part import PREFIX_HEAD_SIZE
from polymq.broker.messages.records import TAGS, Metas, parse_properties
from polymq.broker.port.values import ONE_LEVEL, REST, Address
from polymq.broker.routing.patterns import Block, is_exact, normal_form
from polymq.broker.state.journal import Op, Touched
from polymq.broker.state.kinds import StateKind, each
from polymq.broker.topics.sorted_names import SortedNames
from polymq.core_log.record import Record

ENTRY: Final = struct.Struct(">QIq")
"""An index entry of 20 bytes: position, size, and, in place of the tag hash, the origin."""
RETAIN_PROPERTY: Final = "PMQ_RETAIN"
"""A record with it became the retained message of its topic, or ended that, if it is empty."""
ORIGIN_PROPERTY: Final = "PMQ_ORIGIN"
"""The origin of a retained message that retention copied, in hex."""


def position_of(entry: bytes) -> int:
    """Where the message stands in the log."""
    return int(ENTRY.unpack(entry)[0])


def origin_of(entry: bytes) -> int:
    """Where it was published."""
    return int(ENTRY.unpack(entry)[2])


def size_of(entry: bytes) -> int:
    """The bytes of its record."""
    return int(ENTRY.unpack(entry)[1])


def retained_row(entry: bytes) -> list[int]:
    """The row of a message: position, size, and the origin of a copy."""
    position, size, origin = ENTRY.unpack(entry)
    return [position, size] if origin == position else [position, size, origin]


class Retained:
    """(levels -> index entry) of all retained messages.

    Args:
        count_max: how many there may be.
        bytes_max: how many bytes their records may have in all; 0: any number.

    Attributes:
        bytes: what their records have now.
        refused_count: messages that `check` has refused since the start.
        unretained_count: wills and delayed messages that were published without being retained,
            because there was no room when their time came.
    """

    def __init__(self, count_max: int, bytes_max: int = 0) -> None:
        self.bytes = 0
        self.refused_count = self.unretained_count = 0
        self._bytes_max = bytes_max
        self._entries: dict[Address, bytes] = {}
        self._names: SortedNames[Address] = SortedNames()  # the same names
        self._count_max = count_max

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._entries)

    def change(self, count_max: int, bytes_max: int) -> None:
        """Other limits from now on. What there is stays, though it may be more."""
        self._count_max = count_max
        self._bytes_max = bytes_max

    def state_kinds(self) -> tuple[StateKind, ...]:
        """See `state/kinds.py`."""
        return (StateKind("retained", self._row, each(self._load)),)

    def _row(self, key: str) -> list[int] | None:
        entry = self.get(tuple(key.split("\x00")))
        return None if entry is None else retained_row(entry)

    def _load(self, key: str, value: list[int]) -> None:
        self.set(tuple(key.split("\x00")), *value)

    def set(self, address: Address, position: int, size: int, origin: int | None = None) -> None:
        """The message at this place is the retained one of its topic from now on.

        Args:
            origin: where it was published, if this is a copy of it.
        """
        old = self._entries.get(address)
        if old is None:
            self._names.add(address)
        self.bytes += size - (0 if old is None else size_of(old))
        self._entries[address] = ENTRY.pack(position, size, position if origin is None else origin)

    def clear(self, address: Address) -> None:
        """An empty retained message came [MQTT-3.3.1-10]."""
        old = self._entries.pop(address, None)
        if old is not None:
            self._names.remove(address)
            self.bytes -= size_of(old)

    def check(self, address: Address, body_bytes: int) -> None:
        """Whether there is room for a retained message that a client publishes: a limit that the
        operator lowered takes nothing away. Raises Refused: LIMIT."""
        reached = self._reached(address, body_bytes)
        if reached:
            self.refused_count += 1
            raise Refused(Reason.LIMIT, reached)

    def has_room(self, address: Address, body_bytes: int) -> bool:
        """Whether a message that was accepted before (a will, a delayed message) may become the
        retained one of its topic now. If not, it is published without that, and who publishes it
        counts it."""
        return not self._reached(address, body_bytes)

    def _reached(self, address: Address, body_bytes: int) -> str:
        """The limit that is in the way, in words; empty if there is none."""
        if not body_bytes:
            return ""
        old = self._entries.get(address)
        if old is None and len(self._entries) >= self._count_max:
            return f"there are {self.count} retained messages, the limit"
        more = body_bytes - (0 if old is None else size_of(old))
        if self._bytes_max and more > 0 and self.bytes + more > self._bytes_max:
            return f"retained messages may have {self._bytes_max} bytes in all"
        return ""

    def apply_clear(self, op: Op) -> Touched:
        """An operator cleared the retained messages of some topics (the op `retained-`)."""
        for levels in op["w"]:
            self.clear(tuple(levels))
        return [("retained", "\x00".join(levels)) for levels in op["w"]]

    def take_message(self, record: Record, metas: Metas) -> Touched:
        """A message of the log that changes state: it may be retained."""
        if RETAIN_PROPERTY not in record.properties:
            return ()
        first = record.raw_properties
        size = int(first[6 : PREFIX_HEAD_SIZE - 1], 16)
        tag = parse_properties(first[:size]).get(TAGS)
        meta = metas.meta(record.topic, first[:size])
        address = (meta.topic,) if tag is None else (meta.topic, *tag.split("."))
        if record.body:
            copied = record.properties.get(ORIGIN_PROPERTY)
            origin = None if copied is None else int(copied, 16)
            self.set(address, record.position, record.size, origin)
        else:
            self.clear(address)
        return (("retained", "\x00".join(address)),)

    def get(self, address: Address) -> bytes | None:
        """The entry of one topic."""
        return self._entries.get(address)

    def entries(self) -> Iterator[tuple[Address, bytes] | None]:
        """All entries, and None here and there; it may go on while messages come and go, and misses
        only what comes."""
        for address in self._names.below(()):
            yield self._named(address)

    def may_match(self, pattern: Address) -> bool:
        """False if no retained message matches. True says little: nothing is compared."""
        return self._names.has_below(_prefix(pattern))

    def match(
        self, pattern: Address, behind: Address | None = None
    ) -> Iterator[tuple[Address, bytes] | None]:
        """Names and entries that match, in the order of names; None where one did not. Messages may
        come and go meanwhile: of those that come some are missed.

        The Nones let a caller that works in slices count the work, not only the finds.

        Args:
            behind: begin with the first name greater than this one.
        """
        if is_exact(pattern):
            yield self._named(pattern) if behind is None or behind < pattern else None
            return
        block = Block()
        block.add(normal_form(pattern))
        for address in self._names.below(_prefix(pattern), behind):
            yield self._named(address) if block.match(address) else None

    def _named(self, address: Address) -> tuple[Address, bytes] | None:
        entry = self._entries.get(address)
        return None if entry is None else (address, entry)


def _prefix(pattern: Address) -> Address:
    """The levels before the first wildcard: what matches begins with them."""
    for at, level in enumerate(pattern):
        if level in (ONE_LEVEL, REST):
            return pattern[:at]
    return pattern
