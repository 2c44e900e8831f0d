"""Commit-log records, as a client reads them out of a pull answer.

A pull answer is a slice of the log: records one after the other. This decoder is for whoever
receives one; the store has its own, which also judges what recovery found.

Rules:

* V1 and V2 (topics longer than 127 bytes), IPv4 and IPv6 hosts are read.
* Every size is checked against the record's own size, and that against the bytes that are there.
* The body's checksum is verified where the caller asks for it. Bodies that a producer compressed
  stay compressed until `decompressed`, or `Record.plain_body`.
* Properties stay raw until `parse_properties`, because many records have equal ones.
* A message of AMQP may have properties that a record's have no room for. Who asks for whole records
  finds them in front of the body (`split_body`).
"""

from __future__ import annotations

import struct
import zlib
from binascii import b2a_base64
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from polymq.remoting.compression import COMPRESSED, TYPE_MASK, Decompressors, decompress, plain_body
from polymq.remoting.errors import BadBody, RemoteProtocolError

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
BORN_HOST_IS_V6: Final = 0x10
STORE_HOST_IS_V6: Final = 0x20

_HEAD: Final = struct.Struct(">IIIiiqqiq")
_STORE: Final = struct.Struct(">q")
_TAIL: Final = struct.Struct(">iqI")
_HOST_SIZE_V4: Final = 8
_HOST_SIZE_V6: Final = 20
CRC_MASK: Final = 0x7FFF_FFFF
"""What is kept of a body's CRC-32."""


LONG_PROPERTY: Final = "PMQ_LONG"
AMQP_PROPERTY: Final = "PMQ_AMQP"


class Record(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One message as it lies in the log.

    Attributes:
        born_host, store_host: address and port, 8 bytes (IPv4) or 20 (IPv6), as stored.
        properties: raw; see `parse_properties`.
    """

    topic: str
    queue_id: int
    queue_offset: int
    position: int
    flag: int
    system_flag: int
    born_ms: int
    born_host: bytes
    store_ms: int
    store_host: bytes
    reconsume_count: int
    prepared_offset: int
    body: bytes
    properties: bytes

    @property
    def plain_body(self) -> bytes:
        """The body; if its producer compressed it, what it means. What does not decompress stays as
        it is."""
        plain = plain_body(self.body, self.system_flag)
        return self.body if plain is None else plain

    @property
    def offset_message_id(self) -> str:
        """RocketMQ's message id of what has no `UNIQ_KEY`: store host and position, in hex."""
        return (self.store_host + self.position.to_bytes(8, signed=True)).hex().upper()


def message_name(record: Record) -> str:
    """A record in words: the id that users know, its topic, and its place."""
    unique = parse_properties(record.properties).get("UNIQ_KEY", record.offset_message_id)
    return f"message {unique} ({record.topic}, queue {record.queue_id}, {record.queue_offset})"


def decompressed(record: Record, decompressors: Decompressors) -> Record:
    """The record with its body as it was sent. Raises BadBody, which names the message."""
    if not record.system_flag & COMPRESSED:
        return record
    try:
        body = decompress(record.body, record.system_flag, decompressors)
    except BadBody as error:
        raise BadBody(f"{message_name(record)}: {error}") from error
    flag = record.system_flag & ~(COMPRESSED | TYPE_MASK)
    return msgspec.structs.replace(record, body=body, system_flag=flag)


def iterate_records(records: bytes, *, verify: bool = True) -> Iterator[Record]:
    """The records of a pull answer.

    Args:
        verify: compare each body with its checksum.

    Raises:
        RemoteProtocolError: the bytes are no records, or a body is damaged.
    """
    at = 0
    while at < len(records):
        record, at = take_record(records, at, verify=verify)
        yield record


def take_record(records: bytes, start: int, *, verify: bool = True) -> tuple[Record, int]:
    """The record that begins at `start`, and where it ends. Raises RemoteProtocolError."""
    try:
        return _take_record(records, start, verify)
    except (struct.error, IndexError) as error:
        raise RemoteProtocolError(f"record at byte {start} is cut short") from error


def _take_record(records: bytes, start: int, verify: bool) -> tuple[Record, int]:
    size, magic, crc, queue_id, flag, queue_offset, position, system_flag, born_ms = (
        _HEAD.unpack_from(records, start)
    )
    end = start + size
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise RemoteProtocolError(f"record at byte {start} has the magic {magic:#010x}")
    if end > len(records):
        raise RemoteProtocolError(f"record of {size} bytes, {len(records) - start} are there")
    at = start + _HEAD.size
    host_end = at + (_HOST_SIZE_V6 if system_flag & BORN_HOST_IS_V6 else _HOST_SIZE_V4)
    born_host = records[at:host_end]
    (store_ms,) = _STORE.unpack_from(records, host_end)
    at = host_end + _STORE.size
    host_end = at + (_HOST_SIZE_V6 if system_flag & STORE_HOST_IS_V6 else _HOST_SIZE_V4)
    store_host = records[at:host_end]
    reconsume_count, prepared_offset, body_size = _TAIL.unpack_from(records, host_end)
    body_start = host_end + _TAIL.size
    topic_at = body_start + body_size
    if topic_at >= end:
        raise RemoteProtocolError(f"record at byte {start} has a body of {body_size} bytes")
    width = 1 if magic == MAGIC_V1 else 2
    topic_start = topic_at + width
    topic_end = topic_start + int.from_bytes(records[topic_at:topic_start])
    properties_start = topic_end + 2
    if properties_start > end:
        raise RemoteProtocolError(f"record at byte {start} has a topic beyond its end")
    properties_size = int.from_bytes(records[topic_end:properties_start])
    if properties_start + properties_size != end:
        raise RemoteProtocolError(f"record at byte {start} does not end where its parts do")
    body = records[body_start:topic_at]
    if verify and zlib.crc32(body) & CRC_MASK != crc:
        raise RemoteProtocolError(f"body of the record at position {position} is damaged")
    record = Record(
        topic=records[topic_start:topic_end].decode("utf-8", "surrogateescape"),
        queue_id=queue_id,
        queue_offset=queue_offset,
        position=position,
        flag=flag,
        system_flag=system_flag,
        born_ms=born_ms,
        born_host=born_host,
        store_ms=store_ms,
        store_host=store_host,
        reconsume_count=reconsume_count,
        prepared_offset=prepared_offset,
        body=body,
        properties=records[properties_start:end],
    )
    return record, end


def split_body(record: Record) -> tuple[bytes, bytes] | None:
    """AMQP's properties and the message's body, of a record that has both in its body; None for all
    others. The record's own property `PMQ_AMQP` has a short form of the properties.

    Raises:
        RemoteProtocolError: the body is too short for what it says.
    """
    if parse_properties(record.properties).get(LONG_PROPERTY) != "1":
        return None
    parts = split_long_body(record.body)
    if parts is None:
        raise RemoteProtocolError(
            f"record at position {record.position} has AMQP properties beyond its body"
        )
    return parts


def split_long_body(body: bytes) -> tuple[bytes, bytes] | None:
    """AMQP's properties and the message's body, of a body that has both; None if it is too short
    for what it says."""
    end = 4 + int.from_bytes(body[:4])
    return (body[4:end], body[end:]) if len(body) >= end else None


def message_of(record: Record) -> tuple[dict[str, str], bytes]:
    """The properties of a record, whole, and the body as it was published."""
    properties = parse_properties(record.properties)
    split = split_body(record)
    if split is None:
        return properties, record.plain_body
    amqp, body = split
    del properties[LONG_PROPERTY]
    return properties | {AMQP_PROPERTY: b2a_base64(amqp, newline=False).decode()}, body


def parse_properties(raw: bytes) -> dict[str, str]:
    """`name 0x01 value 0x02`, repeated; the last 0x02 may be missing, a pair without 0x01 is
    dropped as RocketMQ's own clients do. Bytes that are no UTF-8 become surrogate escapes."""
    pairs: dict[str, str] = {}
    for pair in raw.decode("utf-8", "surrogateescape").split("\x02"):
        name, separator, value = pair.partition("\x01")
        if separator:
            pairs[name] = value
    return pairs


def encode_record(
    *,
    topic: str,
    properties: Mapping[str, str],
    body: bytes,
    queue_offset: int,
    position: int,
    born_ms: int,
    flag: int = 0,
    system_flag: int = 0,
) -> bytes:
    """A V1 record with IPv4 hosts, for a message that is handed to a client one by one."""
    name = topic.encode("utf-8", "surrogateescape")
    pairs = "".join([f"{key}\x01{value}\x02" for key, value in properties.items()])
    packed = pairs.encode("utf-8", "surrogateescape")
    size = _HEAD.size + _STORE.size + 2 * _HOST_SIZE_V4 + _TAIL.size
    size += len(body) + 1 + len(name) + 2 + len(packed)
    crc = zlib.crc32(body) & CRC_MASK
    head = _HEAD.pack(size, MAGIC_V1, crc, 0, flag, queue_offset, position, system_flag, born_ms)
    return b"".join(
        (
            head,
            bytes(_HOST_SIZE_V4),
            _STORE.pack(born_ms),
            bytes(_HOST_SIZE_V4),
            _TAIL.pack(0, 0, len(body)),
            body,
            bytes((len(name),)),
            name,
            len(packed).to_bytes(2),
            packed,
        )
    )
