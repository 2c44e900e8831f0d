"""From commit-log records back to what gateways deliver: runs of one kind, and messages as values.

A data record's properties begin with `PMQ_P`, the size of the constant part (four hex digits), so
that a reader finds where the per-message part begins. Records whose topic and constant part are
equal are of one kind, and share one `RunMeta`.
"""

from __future__ import annotations

import struct
from binascii import b2a_base64
from collections.abc import Mapping, Sequence
from typing import Final

from polymq.broker.bounded_cache import SizedCache
from polymq.broker.messages.amqp_content import AMQP_PROPERTY
from polymq.broker.messages.compressed import COMPRESSED, PlainBody, as_sent, plain_runs
from polymq.broker.messages.constant_part import PREFIX_HEAD_SIZE, constant_size
from polymq.broker.messages.dead_letter_history import DEATH_PROPERTY
from polymq.broker.messages.kernels.record_run import RecordRun
from polymq.broker.messages.long_properties import is_long, short_record, size_in_front, split_body
from polymq.broker.messages.message import Delivery, Message
from polymq.broker.messages.record_header import header_of
from polymq.broker.messages.runs import RunMeta, TakesApart
from polymq.broker.messages.time_to_live import TTL_PROPERTY, ttl_of
from polymq.broker.names import QUEUES_TOPIC, decode_name, is_hashed
from polymq.broker.pacing.costs import MESSAGE_COST
from polymq.core_log.kernels.batch import (
    PROPERTY_CRC,
    PROPERTY_DISPATCH,
    RECORD_BODY_AT,
    RECORD_BODY_SIZE_AT,
    RECORD_BORN_MS_AT,
    RECORD_POSITION_AT,
    RECORD_QUEUE_ID_AT,
    RECORD_QUEUE_OFFSET_AT,
    RECORD_STORE_MS_AT,
)
from polymq.core_log.kernels.walking import record_run

PREFIX_PROPERTY: Final = "PMQ_P"
TAGS: Final = "TAGS"
METAS_SIZE_MAX: Final = 32 * 1024 * 1024
"""Bytes of the constant properties of all kinds that are remembered: a tag alone may have 32 KB."""
METAS_MAX: Final = 100_000
"""Kinds of messages kept parsed; as many as cached routes."""

_INTERNAL: Final = frozenset(
    {PREFIX_PROPERTY, PROPERTY_DISPATCH.decode(), "PMQ_B", PROPERTY_CRC.decode()}
)
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
_U16: Final = struct.Struct(">H")

Memory = bytes | bytearray | memoryview


def constant_properties(tag: str | None, properties: Mapping[str, str]) -> bytes:
    """The constant part of the properties of one kind of message, `PMQ_P` included."""
    # PMQ_X has its place in front, where recovery looks for it.
    pairs = [(TTL_PROPERTY, properties[TTL_PROPERTY])] if TTL_PROPERTY in properties else []
    if tag is not None:
        pairs.append((TAGS, tag))
    pairs += [pair for pair in properties.items() if pair[0] != TTL_PROPERTY]
    text = "".join(f"{name}\x01{value}\x02" for name, value in pairs)
    encoded = text.encode("utf-8", "surrogateescape")
    if encoded.count(b"\x01") != len(pairs) or encoded.count(b"\x02") != len(pairs):
        raise ValueError("a property holds 0x01 or 0x02")
    size = PREFIX_HEAD_SIZE + len(encoded)
    return b"PMQ_P\x01%04x\x02" % size + encoded


def parse_properties(raw: bytes) -> dict[str, str]:
    """All properties of a record by name; the first of equal names counts, as in Java."""
    properties: dict[str, str] = {}
    for pair in raw.decode("utf-8", "surrogateescape").split("\x02"):
        name, separator, value = pair.partition("\x01")
        if separator:
            properties.setdefault(name, value)
    return properties


def properties_span(memory: Memory, start: int) -> tuple[int, int, int, int]:
    """Of the record at `start`: topic start, topic end, properties start, properties end."""
    at = start + RECORD_BODY_AT + _U32.unpack_from(memory, start + RECORD_BODY_SIZE_AT)[0]
    topic_start = at + 1
    topic_end = topic_start + memory[at]
    properties_start = topic_end + 2
    return (
        topic_start,
        topic_end,
        properties_start,
        properties_start + _U16.unpack_from(memory, topic_end)[0],
    )


class Metas:
    """The kinds of messages met so far, by topic and constant part.

    Args:
        topic_names: full names of topics whose stored name is a hash.
        plain_body: for bodies that were compressed.
    """

    def __init__(
        self, topic_names: Mapping[str, str], *, plain_body: PlainBody | None = None
    ) -> None:
        self._topic_names = topic_names
        self._plain_body = plain_body or as_sent
        self._metas: SizedCache[tuple[bytes, bytes], RunMeta] = SizedCache(
            METAS_MAX, METAS_SIZE_MAX, lambda key: len(key[1])
        )

    def meta(self, topic: bytes, prefix: bytes) -> RunMeta:
        """The meta of a kind, made on first use. The oldest are forgotten beyond `METAS_MAX`;
        those of dead letters are not kept."""
        meta = self._metas.get((topic, prefix))
        if meta is None:
            properties = parse_properties(prefix)
            properties.pop(PREFIX_PROPERTY, None)
            tag = properties.pop(TAGS, None)
            name = self.user_name(topic)
            if name == QUEUES_TOPIC:  # where it was published to is in the tag
                name, tag = tag or "", None
            compressed = bool(header_of(properties)[1] & COMPRESSED)
            meta = RunMeta(
                name,
                tag,
                properties,
                len(prefix),
                *ttl_of(properties),
                compressed=compressed,
                long=is_long(prefix),
            )
            if DEATH_PROPERTY in properties:  # says the time: each second another kind
                return meta
            self._metas.add((topic, prefix), meta)
        return meta

    def runs(self, memory: Memory, start: int, end: int) -> list[RecordRun]:
        """Cut concatenated records into runs of one kind."""
        runs: list[RecordRun] = []
        while start < end:
            runs.append(self._first_run(memory, start, end))
            start = runs[-1].end
        return runs

    def _first_run(self, memory: Memory, start: int, end: int) -> RecordRun:
        topic_start, topic_end, first, last = properties_span(memory, start)
        size = constant_size(memory, first, last)
        meta = self.meta(bytes(memory[topic_start:topic_end]), bytes(memory[first : first + size]))
        stop, count = record_run(memory, start, end, size)
        return RecordRun(meta, memory, start, stop, count)

    def runs_within(
        self, memory: Memory, room: int, run_cost: int, takes_apart: TakesApart | None
    ) -> tuple[list[RecordRun], int]:
        """Cut concatenated records into runs, as many as cost no more than there is room for; at
        least one message.

        Args:
            room: units of `broker.pacing.costs`.
            run_cost: what each run costs.
            takes_apart: of which kinds each message costs `MESSAGE_COST` and more; None: of none.

        Returns:
            The runs, and what they cost.
        """
        runs: list[RecordRun] = []
        cost = 0
        start = 0
        while start < len(memory) and (cost < room or not runs):
            run = self._first_run(memory, start, len(memory))
            cost += run_cost
            if takes_apart is not None and takes_apart(run.meta):
                run, messages_cost = _first_messages(run, room - cost)
                cost += messages_cost
            runs.append(run)
            start = run.end
        return runs, cost

    def plain_runs(
        self, memory: Memory, start: int, end: int, *, reads_long: bool = False
    ) -> tuple[Sequence[RecordRun], int]:
        """`runs` for gateways, with plain bodies, and how many messages they have: fewer than there
        are where bodies that were compressed are large, but at least one.

        Args:
            reads_long: hand on records with AMQP properties in front of their bodies as they are.
        """
        return self.plain(self.runs(memory, start, end), reads_long=reads_long)

    def plain(
        self, runs: Sequence[RecordRun], *, reads_long: bool
    ) -> tuple[Sequence[RecordRun], int]:
        """The same of runs."""
        shorten = None if reads_long else self._shorten
        return plain_runs(runs, self._plain_body, shorten)

    def _shorten(self, run: RecordRun, bytes_max: int) -> RecordRun:
        """The first long record of the run, and those behind it until they have so many bytes, as
        short ones."""
        records: list[bytes] = []
        size = 0
        at = run.start
        while at < run.end and (size < bytes_max or not records):
            end = at + _U32.unpack_from(run.memory, at)[0]
            _, _, first, _ = properties_span(run.memory, at)
            records.append(short_record(run.memory, at, end, first, first + run.meta.prefix_size))
            size += len(records[-1])
            at = end
        (made,) = self.runs(b"".join(records), 0, size)
        return made

    def user_name(self, topic: bytes) -> str:
        """The user's name of a stored topic."""
        stored = topic.decode("ascii", "surrogateescape")
        if is_hashed(stored):
            return self._topic_names.get(stored, stored)
        try:
            return decode_name(stored)
        except ValueError:  # a name that a RocketMQ client chose
            return stored


def _first_messages(run: RecordRun, room: int) -> tuple[RecordRun, int]:
    """The first messages of a run that is taken apart, as many as there is room for but at least
    one, and what they cost."""
    memory = run.memory
    cost = 0
    count = 0
    at = run.start
    while at < run.end and (cost < room or not count):
        _, _, first, last = properties_span(memory, at)
        cost += MESSAGE_COST + last - first
        if run.meta.long:
            cost += size_in_front(memory, at + RECORD_BODY_AT)
        at += _U32.unpack_from(memory, at)[0]
        count += 1
    return RecordRun(run.meta, memory, run.start, at, count), cost


def decode_messages(delivery: Delivery) -> list[Message]:
    """The messages of a delivery as values."""
    messages: list[Message] = []
    for run in delivery.runs:
        at = run.start
        while at < run.end:
            offset = delivery.first_offset + len(messages)
            messages.append(_decode_message(run, at, offset, delivery.redelivered))
            at += _U32.unpack_from(run.memory, at)[0]
    return messages


def _decode_message(run: RecordRun, at: int, consumer_offset: int, redelivered: bool) -> Message:
    memory = run.memory
    body_size = _U32.unpack_from(memory, at + RECORD_BODY_SIZE_AT)[0]
    _, _, first, last = properties_span(memory, at)
    properties = parse_properties(bytes(memory[first:last]))
    for name in _INTERNAL:
        properties.pop(name, None)
    properties.pop(TAGS, None)
    body = bytes(memory[at + RECORD_BODY_AT : at + RECORD_BODY_AT + body_size])
    if run.meta.long:
        amqp, body = split_body(body)
        properties[AMQP_PROPERTY] = b2a_base64(amqp, newline=False).decode()
    return Message(
        topic=run.meta.topic,
        tag=run.meta.tag,
        body=body,
        properties=properties,
        born_ms=_U64.unpack_from(memory, at + RECORD_BORN_MS_AT)[0],
        store_ms=_U64.unpack_from(memory, at + RECORD_STORE_MS_AT)[0],
        position=_U64.unpack_from(memory, at + RECORD_POSITION_AT)[0],
        queue_id=_U32.unpack_from(memory, at + RECORD_QUEUE_ID_AT)[0],
        queue_offset=_U64.unpack_from(memory, at + RECORD_QUEUE_OFFSET_AT)[0],
        consumer_offset=consumer_offset,
        redelivered=redelivered,
    )
