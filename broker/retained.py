"""Retained messages: for each topic the log position of the last message published with RETAIN.

The body stays in the log. A new subscriber gets the retained messages that match its filter, in
slices, so that a subscription to everything does not stop the loop.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

from broker.patterns import Block, is_exact, normal_form
from broker.port import ONE_WORD, REST, Words
from broker.records import PREFIX_HEAD_SIZE, TAGS, Metas, parse_properties
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


class Retained:
    """(words -> index entry) of all retained messages, by topic."""

    def __init__(self, count_max: int) -> None:
        self._by_topic: dict[str, dict[Words, bytes]] = {}
        self._count_max = count_max
        self.count = 0

    def set(self, words: Words, position: int, size: int, origin: int | None = None) -> None:
        """The message at this place is the retained one of its topic from now on.

        Args:
            origin: where it was published, if this is a copy of it.
        """
        topic = self._by_topic.setdefault(words[0], {})
        if words not in topic:
            if self.count >= self._count_max:
                return
            self.count += 1
        topic[words] = ENTRY.pack(position, size, position if origin is None else origin)

    def clear(self, words: Words) -> None:
        """An empty retained message came [MQTT-3.3.1-10]."""
        topic = self._by_topic.get(words[0])
        if topic is not None and topic.pop(words, None) is not None:
            self.count -= 1
            if not topic:
                del self._by_topic[words[0]]

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
        return self.count >= self._count_max and words not in self._by_topic.get(words[0], {})

    def get(self, words: Words) -> bytes | None:
        """The entry of one topic."""
        return self._by_topic.get(words[0], {}).get(words)

    def entries(self) -> Iterator[tuple[Words, bytes]]:
        """All entries; it may go on while messages come and go, and misses only what comes."""
        for name in list(self._by_topic):
            yield from list(self._by_topic.get(name, {}).items())

    def match(self, pattern: Words) -> Iterator[tuple[str, bytes] | None]:
        """Topics and entries that match, over a copy of the names at the time; None where
        one did not.

        The Nones let a caller that works in slices count the work, not only the finds.
        """
        if is_exact(pattern):
            yield self._named(pattern)
            return
        if pattern[0] in (ONE_WORD, REST):
            topics = list(self._by_topic)
        else:
            topics = [pattern[0]] if pattern[0] in self._by_topic else []
        block = Block()
        block.add(normal_form(pattern))
        for name in topics:
            for words in list(self._by_topic.get(name, {})):
                yield self._named(words) if block.match(words) else None

    def _named(self, words: Words) -> tuple[str, bytes] | None:
        entry = self.get(words)
        return None if entry is None else (words[0], entry)
