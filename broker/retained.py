"""Retained messages: for each topic the log position of the last message published with RETAIN.

The body stays in the log. A new subscriber gets the retained messages that match its filter, in
slices (`retained_replay.py`), so that a subscription to everything does not stop the loop.

Theory. A walk over the names goes on while messages come and go, for as long as a slow client
takes, and there may be one for each client. So it copies nothing: names stand in places, and a walk
is a number. A name keeps its place until its message goes (`Places`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, Generic, TypeVar

from broker.constant_part import PREFIX_HEAD_SIZE
from broker.patterns import Block, is_exact, normal_form
from broker.port import ONE_WORD, REST, Words
from broker.records import TAGS, Metas, parse_properties
from core_log.record import Record

ENTRY: Final = struct.Struct(">QIq")
"""An index entry of 20 bytes: position, size, and, in place of the tag hash, the position at which
the message was published: retention may have copied it forward since."""


def position_of(entry: bytes) -> int:
    """Where the message stands in the log."""
    return int(ENTRY.unpack(entry)[0])


def origin_of(entry: bytes) -> int:
    """Where it was published, as far as this process knows."""
    return int(ENTRY.unpack(entry)[2])


_KEPT: Final = struct.Struct(">20sI")
"""What is kept of a message: its index entry, and the place of its name."""

Item = TypeVar("Item")


class Places(Generic[Item]):
    """Items, each in one place for as long as it is there.

    A walk over the places in several steps meets each item that was there when it began, and is
    there still, exactly once.
    """

    __slots__ = ("_free", "_places")

    def __init__(self) -> None:
        self._places: list[Item | int] = []  # a number: nothing is there; the next free place
        self._free = -1

    def add(self, item: Item) -> int:
        """Returns its place."""
        place = self._free
        if place < 0:
            self._places.append(item)
            return len(self._places) - 1
        free = self._places[place]
        assert isinstance(free, int)
        self._free = free
        self._places[place] = item
        return place

    def remove(self, place: int) -> None:
        """The item in this place goes."""
        self._places[place] = self._free
        self._free = place

    def walk(self) -> Iterator[Item | None]:
        """All items, while others come and go. None where there is none."""
        at = 0
        while at < len(self._places):
            item = self._places[at]
            at += 1
            yield None if isinstance(item, int) else item


class _Topic(Places[Words]):
    """The retained messages below one first level: what is kept, and the places of the names."""

    __slots__ = ("kept", "place")

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[Words, bytes] = {}
        self.place = -1  # its own, among the topics


class Retained:
    """(words -> index entry) of all retained messages, by topic."""

    def __init__(self, count_max: int) -> None:
        self._by_name: dict[str, _Topic] = {}
        self._topics: Places[_Topic] = Places()
        self._count_max = count_max
        self.count = 0

    def set(self, words: Words, position: int, size: int, origin: int | None = None) -> None:
        """The message at this place is the retained one of its topic from now on.

        Args:
            origin: where it was published, if this is a copy of it.
        """
        topic = self._by_name.get(words[0])
        kept = None if topic is None else topic.kept.get(words)
        if kept is None and self.count >= self._count_max:
            return
        if topic is None:
            topic = self._by_name[words[0]] = _Topic()
            topic.place = self._topics.add(topic)
        if kept is None:
            self.count += 1
            place = topic.add(words)
        else:
            place = _KEPT.unpack(kept)[1]
        entry = ENTRY.pack(position, size, position if origin is None else origin)
        topic.kept[words] = _KEPT.pack(entry, place)

    def clear(self, words: Words) -> None:
        """An empty retained message came [MQTT-3.3.1-10]."""
        topic = self._by_name.get(words[0])
        kept = None if topic is None else topic.kept.pop(words, None)
        if topic is not None and kept is not None:
            self.count -= 1
            topic.remove(_KEPT.unpack(kept)[1])
            if not topic.kept:
                self._topics.remove(topic.place)
                del self._by_name[words[0]]

    def fold(self, record: Record, metas: Metas) -> str:
        """A retained message that the log holds; returns the key of its row in the snapshot."""
        first = record.raw_properties
        size = int(first[6 : PREFIX_HEAD_SIZE - 1], 16)
        tag = parse_properties(first[:size]).get(TAGS)
        meta = metas.meta(record.topic, first[:size])
        words = (meta.topic,) if tag is None else (meta.topic, *tag.split("."))
        if record.body:
            self.set(words, record.position, record.size)
        else:
            self.clear(words)
        return "\x00".join(words)

    def is_full(self, words: Words) -> bool:
        """Whether a new topic would be over the limit."""
        return self.count >= self._count_max and self.get(words) is None

    def get(self, words: Words) -> bytes | None:
        """The entry of one topic."""
        topic = self._by_name.get(words[0])
        kept = None if topic is None else topic.kept.get(words)
        return None if kept is None else kept[: ENTRY.size]

    def entries(self) -> Iterator[tuple[Words, bytes] | None]:
        """All entries, and None here and there; it may go on while messages come and go, and misses
        only what comes."""
        for topic in self._topics.walk():
            for words in topic.walk() if topic is not None else ():
                entry = None if words is None else self.get(words)
                yield None if words is None or entry is None else (words, entry)

    def match(self, pattern: Words) -> Iterator[tuple[str, bytes] | None]:
        """Topics and entries that match; None where one did not. Messages may come and go
        meanwhile: of those that come some are missed.

        The Nones let a caller that works in slices count the work, not only the finds.
        """
        if is_exact(pattern):
            yield self._named(pattern)
            return
        block = Block()
        block.add(normal_form(pattern))
        if pattern[0] in (ONE_WORD, REST):
            topics = self._topics.walk()
        else:
            topics = iter((self._by_name.get(pattern[0]),))
        for topic in topics:
            if topic is None:
                yield None
                continue
            for words in topic.walk():
                yield self._named(words) if words is not None and block.match(words) else None

    def _named(self, words: Words) -> tuple[str, bytes] | None:
        entry = self.get(words)
        return None if entry is None else (words[0], entry)
