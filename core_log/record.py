"""One commit-log record: how it is described before it is written, and what it says afterwards.

The layout is RocketMQ's V1 record with IPv4 hosts; where the fields stand is declared in
`core_log.kernels.batch`. The properties stand in this order, which the readers rely on:

    constant properties of the template | extra property of the message | PMQ_Q | PMQ_B | __CRC32#

* `PMQ_Q` names the queues that the record belongs to: the topic's own queue first.
* `PMQ_B` makes the record part of an atomic batch: 16 hex digits of batch id, 4 of the index in
  the batch, 4 of the batch's count. The id is the position of the batch's first record.
* `__CRC32#` is RocketMQ's checksum over everything before it, and always the last property.

A *system record* belongs to no queue of its own. Its topic is `SYSTEM_TOPIC`, and its first
property says what it is when the store itself wrote it: `PMQ_E`, the start of an epoch, or
`PMQ_OF`, more targets of another record (always with `PMQ_Q`). All others are the engine's.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from polymq.core_log.errors import CorruptRecord, TooLarge
from polymq.core_log.kernels import walking
from polymq.core_log.kernels.batch import (
    DISPATCH_TARGET_SIZE,
    EXTRA_NONE,
    MAGIC_V1,
    NAME_END,
    PROPERTIES_SIZE_MAX,
    PROPERTY_DISPATCH,
    RECORD_BODY_AT,
    VALUE_END,
)
from polymq.core_log.kernels.layout import PROPERTY_BATCH, REASONS, STOP_END, SYSTEM_TOPIC
from polymq.core_log.kernels.writing import java_hash

__all__ = [
    "HEADER",
    "SYSTEM_TOPIC",
    "Record",
    "RecordParts",
    "RecordTemplate",
    "decode_record",
    "encode_host",
    "encode_properties",
    "java_hash",
]

TOPIC_SIZE_MAX: Final = 127
"""RocketMQ's V1 record keeps the topic's size in a signed byte."""

KEY_NAMES: Final = (b"KEYS\x01", b"UNIQ_KEY\x01", b"PMQ_AMQP\x01")
"""Properties whose values are keys; others may come with the extra property of a message."""

HEADER: Final = struct.Struct(">IIIiiqqiq8sq8siqI")
"""The fields of fixed size that every record starts with."""
assert HEADER.size == RECORD_BODY_AT


@dataclass(frozen=True, slots=True)
class RecordTemplate:
    """What the records of one kind on one route have in common. Built once, used for many runs.

    Attributes:
        topic: the topic's name, at most 127 bytes.
        queue_id: which of the topic's queues.
        properties: the constant properties, encoded (`encode_properties`).
        tag_hash: Java's String.hashCode of TAGS, sign-extended; 0 without tag.
        flag, system_flag, reconsume, prepared: RocketMQ's fields of these names.
        extra_kind, extra_name: how each row's extra bytes become a property
            (`core_log.kernels.batch`).
        extra_keyed: whether those bytes may have a key.
        form: what the kernels take of all this, encoded once.
        keyed: whether a record may have a key that the key index knows (`core_log.key_index`).
    """

    topic: bytes
    queue_id: int
    properties: bytes
    tag_hash: int = 0
    flag: int = 0
    system_flag: int = 0
    extra_kind: int = EXTRA_NONE
    extra_name: bytes = b""
    reconsume: int = 0
    prepared: int = 0
    extra_keyed: bool = True
    form: tuple[bytes, bytes, bytes, int, bytes, int] = field(
        init=False, repr=False, compare=False, default=(b"", b"", b"", 0, b"", 0)
    )
    keyed: bool = field(init=False, repr=False, compare=False, default=True)

    def __post_init__(self) -> None:
        if not 0 < len(self.topic) <= TOPIC_SIZE_MAX:
            raise TooLarge(f"a topic has 1 to {TOPIC_SIZE_MAX} bytes, not {len(self.topic)}")
        if len(self.properties) > PROPERTIES_SIZE_MAX:
            raise TooLarge(f"the properties have {len(self.properties)} bytes")
        head = HEADER.pack(
            *(0, MAGIC_V1, 0, self.queue_id, self.flag, 0, 0, self.system_flag, 0, b"", 0, b""),
            *(self.reconsume, self.prepared, 0),
        )
        form = (
            head,
            bytes((len(self.topic),)) + self.topic,
            self.properties,
            self.extra_kind,
            self.extra_name,
            self.tag_hash,
        )
        object.__setattr__(self, "form", form)
        keyed = self.extra_keyed and self.extra_kind != EXTRA_NONE
        keyed = keyed or any(name in self.properties for name in KEY_NAMES)
        object.__setattr__(self, "keyed", keyed)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordParts:
    """One record of an atomic batch, before it is written.

    Attributes:
        template: what its kind has in common.
        body, extra: the message and its extra property's bytes.
        targets: (queue number, offset) of each queue, the topic's own first.
        born_ms: when the sender made it.
    """

    template: RecordTemplate
    body: bytes
    extra: bytes = b""
    targets: Sequence[tuple[int, int]] = ()
    born_ms: int = 0


class Record:
    """A record as a value, for cold paths. The properties are decoded when they are asked for.

    Attributes:
        position, size: where it stands in the log, and its bytes in all.
        raw: all its bytes.
        topic, body: as stored.
        raw_properties: the properties, encoded, the store's own included.
        queue_id, queue_offset: in the topic's own queue.
        flag, system_flag, reconsume, prepared: RocketMQ's fields.
        born_ms, store_ms: when the sender made it, when it was appended.
    """

    __slots__ = (
        "_properties",
        "body",
        "born_ms",
        "flag",
        "position",
        "prepared",
        "queue_id",
        "queue_offset",
        "raw",
        "raw_properties",
        "reconsume",
        "size",
        "store_ms",
        "system_flag",
        "topic",
    )

    def __init__(self, memory: bytes | bytearray | memoryview, start: int) -> None:
        """Decode the record at `start`, which was verified (see `decode_record`)."""
        (
            self.size,
            _magic,
            _crc,
            self.queue_id,
            self.flag,
            self.queue_offset,
            self.position,
            self.system_flag,
            self.born_ms,
            _born_host,
            self.store_ms,
            _store_host,
            self.reconsume,
            self.prepared,
            body_size,
        ) = HEADER.unpack_from(memory, start)
        self.raw = bytes(memory[start : start + self.size])
        at = start + RECORD_BODY_AT
        self.body = bytes(memory[at : at + body_size])
        at += body_size
        topic_size = memory[at]
        self.topic = bytes(memory[at + 1 : at + 1 + topic_size])
        self.raw_properties = bytes(memory[at + 3 + topic_size : start + self.size])
        self._properties: dict[str, str] | None = None

    @property
    def properties(self) -> dict[str, str]:
        """The properties by name; undecodable bytes come back as surrogate escapes."""
        if self._properties is None:
            self._properties = decode_properties(self.raw_properties)
        return self._properties

    @property
    def targets(self) -> tuple[tuple[int, int], ...]:
        """(queue number, offset) of each queue that the record names, the topic's own first."""
        text = self.properties.get(PROPERTY_DISPATCH.decode(), "")
        return tuple(
            (int(text[at : at + 8], 16), int(text[at + 8 : at + DISPATCH_TARGET_SIZE], 16))
            for at in range(0, len(text), DISPATCH_TARGET_SIZE)
        )

    @property
    def atomic(self) -> tuple[int, int, int] | None:
        """(id, index, count) of the atomic batch that it is part of, or None."""
        text = self.properties.get(PROPERTY_BATCH.decode())
        if text is None:
            return None
        return int(text[:16], 16), int(text[16:20], 16), int(text[20:24], 16)

    def __repr__(self) -> str:
        return f"Record({self.topic!r} at {self.position}, {self.size} bytes)"


def decode_record(
    memory: bytes | bytearray | memoryview, start: int = 0, *, verify: bool = True
) -> Record:
    """The record at `start` in memory.

    Args:
        verify: check the size, the magic and the checksum first. Leave out only where a kernel
            has just done so.

    Raises:
        CorruptRecord: the bytes are not a whole, sound record.
    """
    if verify:
        reason = walking.check_record(memory, start, len(memory))
        if reason != STOP_END:
            raise CorruptRecord(start, REASONS[reason])
    return Record(memory, start)


def encode_properties(pairs: Mapping[str, str] | Iterable[tuple[str, str]]) -> bytes:
    """Properties in RocketMQ's form: name, 0x01, value, 0x02, repeated.

    Raises:
        ValueError: a name or value holds 0x01 or 0x02 or a lone surrogate, or a name is empty.
        TooLarge: more than 32,767 bytes.
    """
    items = pairs.items() if isinstance(pairs, Mapping) else pairs
    parts = []
    for name, value in items:
        if not name:
            raise ValueError("a property needs a name")
        for text in (name, value):
            if "\x01" in text or "\x02" in text:
                raise ValueError(f"property {name!r} holds a separator (0x01 or 0x02)")
        parts.append(f"{name}\x01{value}\x02".encode("utf-8", "surrogateescape"))
    encoded = b"".join(parts)
    if len(encoded) > PROPERTIES_SIZE_MAX:
        raise TooLarge(f"the properties have {len(encoded)} bytes")
    return encoded


def decode_properties(raw: bytes) -> dict[str, str]:
    """Encoded properties by name. What is not `name 0x01 value 0x02` is left out."""
    text = raw.decode("utf-8", "surrogateescape")
    pairs = (pair.partition(chr(NAME_END)) for pair in text.split(chr(VALUE_END)))
    return {name: value for name, separator, value in pairs if separator}


def encode_host(address: str, port: int) -> bytes:
    """An IPv4 address and a port as a record keeps them."""
    return ipaddress.IPv4Address(address).packed + struct.pack(">i", port)
