"""What a broker tells name servers about itself: the body of 103 REGISTER_BROKER.

Two forms are read and written:

* JSON, RocketMQ's default;
* RocketMQ's compressed form, deflate over a row of sized parts, for large tables: a hundred
  thousand topics as JSON are more than a frame takes.

      int size, data version (JSON)
      int count, count x (int size, "name readQueues writeQueues perm filterType {attributes}")
      int size, list of filter servers (JSON)
      int count, count x (int size, mapping of a static topic (JSON))   from version 5.0 on

Rules:

* RocketMQ's brokers say `compressed=false` of compressed bodies, too. A body that does not begin
  as JSON does is taken for compressed, whatever the header says.
* What unpacks to more than `BODY_BYTES_MAX` is refused before it is unpacked.
* Mappings of static topics are passed over: nothing here serves them.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from typing import Final

import msgspec

from polymq.remoting.errors import BadFields
from polymq.remoting.headers import Long
from polymq.remoting.steps import Pause, Steps

BODY_BYTES_MAX: Final = 64 * 1024 * 1024
"""Unpacked: about 300,000 topics with names of a hundred bytes. A frame, which bounds the packed
form, could unpack to a thousand times its size."""
_CRC_MASK: Final = 0x7FFF_FFFF
_INT: Final = struct.Struct(">i")
_TOPIC_PARTS: Final = 5  # before the attributes
SLICE_TOPICS: Final = 1_000
"""Rows that are packed in one go: a millisecond or two."""
_PACKED_LEVEL: Final = 1
"""zlib's fastest: rows of topics shrink to a fifth with it."""


class DataVersion(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Which table of topics this is: it changes whenever a topic does.

    Attributes:
        state_version: rises with each change of master; a lower one is of a master of old.
        timestamp: when it changed, in milliseconds; 0 for a broker that never registered.
        counter: of changes since the broker started.
    """

    counter: Long = 0
    state_version: Long = 0
    timestamp: Long = 0


class TopicConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One topic of a broker, as administrators and name servers see it."""

    topic_name: str = ""
    read_queue_nums: int = 0
    write_queue_nums: int = 0
    perm: int = 0
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: dict[str, str] | None = None


class TopicTable(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The topics of a broker by name."""

    data_version: DataVersion = DataVersion()
    topic_config_table: dict[str, TopicConfig] = {}


class Registration(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The body of 103."""

    topics: TopicTable = msgspec.field(name="topicConfigSerializeWrapper")
    filter_server_list: list[str] | None = None


def encode_registration(registration: Registration) -> tuple[bytes, int]:
    """The body as JSON, and its checksum for the header."""
    body = msgspec.json.encode(registration)
    return body, body_checksum(body)


def pack_registration(
    version: DataVersion, topics: Iterable[TopicConfig]
) -> Steps[tuple[bytes, int, int]]:
    """The compressed form without filter servers, in slices between which others have their turn.

    Returns:
        The body, its checksum for the header, and how many topics it has.
    """
    slices: list[bytes] = []
    rows: list[bytes] = []
    count = 0
    for topic in topics:
        row = _topic_row(topic)
        rows += (_INT.pack(len(row)), row)
        count += 1
        if count % SLICE_TOPICS == 0:
            slices.append(b"".join(rows))
            rows.clear()
            yield Pause(seconds=0)
    data_version = encode_data_version(version)
    no_filters, no_mappings = _INT.pack(2) + b"[]", _INT.pack(0)
    deflater = zlib.compressobj(_PACKED_LEVEL)
    head = _INT.pack(len(data_version)) + data_version + _INT.pack(count)
    parts = [deflater.compress(head)]
    for part in slices:
        parts.append(deflater.compress(part))
        yield Pause(seconds=0)
    rows += (no_filters, no_mappings)
    parts += (deflater.compress(b"".join(rows)), deflater.flush())
    body = b"".join(parts)
    return body, body_checksum(body), count


def _topic_row(topic: TopicConfig) -> bytes:
    row = (
        f"{topic.topic_name} {topic.read_queue_nums} {topic.write_queue_nums} {topic.perm}"
        f" {topic.topic_filter_type}"
    ).encode()
    if topic.attributes:
        row += b" " + msgspec.json.encode(topic.attributes)
    return row


def body_checksum(body: bytes) -> int:
    """RocketMQ's CRC-32: without the sign bit."""
    return zlib.crc32(body) & _CRC_MASK


def decode_registration(body: bytes) -> Registration:
    """The body in either form. Raises BadFields."""
    try:
        if body[:1].isspace() or body[:1] == b"{":
            return msgspec.json.decode(body, type=Registration)
        return _decode_packed(_unpack(body))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadFields(f"registration: {error}") from error


def encode_data_version(version: DataVersion) -> bytes:
    """The body of 322, in either direction."""
    return msgspec.json.encode(version)


def decode_data_version(body: bytes) -> DataVersion:
    """The body of 322. Raises BadFields."""
    try:
        return msgspec.json.decode(body, type=DataVersion)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadFields(f"data version: {error}") from error


# --- the compressed form ----------------------------------------------------------------------


def _unpack(body: bytes) -> bytes:
    inflater = zlib.decompressobj()
    try:
        unpacked = inflater.decompress(body, BODY_BYTES_MAX + 1)
    except zlib.error as error:
        raise BadFields(f"registration: neither JSON nor deflated: {error}") from error
    if len(unpacked) > BODY_BYTES_MAX:
        raise BadFields(f"registration: unpacks to more than {BODY_BYTES_MAX} bytes")
    if not inflater.eof:
        raise BadFields("registration: the deflated body is cut short")
    return unpacked


def _decode_packed(data: bytes) -> Registration:
    version, at = _sized(data, 0)
    count, at = _count(data, at)
    table: dict[str, TopicConfig] = {}
    for _ in range(count):
        row, at = _sized(data, at)
        topic = _decode_topic(row.decode())
        table[topic.topic_name] = topic
    filters, at = _sized(data, at)
    return Registration(
        topics=TopicTable(
            data_version=msgspec.json.decode(version, type=DataVersion), topic_config_table=table
        ),
        filter_server_list=msgspec.json.decode(filters, type=list[str]) if filters else None,
    )


def _decode_topic(row: str) -> TopicConfig:
    parts = row.split(" ", _TOPIC_PARTS)
    if len(parts) < _TOPIC_PARTS:
        raise BadFields(f"registration: {row[:200]!r} is not a topic")
    name, read, write, permission, filter_type = parts[:_TOPIC_PARTS]
    attributes = parts[_TOPIC_PARTS].strip() if len(parts) > _TOPIC_PARTS else ""
    try:
        return TopicConfig(
            topic_name=name,
            read_queue_nums=int(read),
            write_queue_nums=int(write),
            perm=int(permission),
            topic_filter_type=filter_type,
            attributes=msgspec.json.decode(attributes, type=dict[str, str]) if attributes else None,
        )
    except ValueError as error:
        raise BadFields(f"registration: topic {name[:200]!r}: {error}") from error


def _count(data: bytes, at: int) -> tuple[int, int]:
    if len(data) - at < _INT.size:
        raise BadFields("registration: the packed body is cut short")
    (count,) = _INT.unpack_from(data, at)
    at += _INT.size
    # Each of what is counted takes at least its own size word.
    if not 0 <= count <= (len(data) - at) // _INT.size:
        raise BadFields(f"registration: {count} parts promised in {len(data) - at} bytes")
    return count, at


def _sized(data: bytes, at: int) -> tuple[bytes, int]:
    if len(data) - at < _INT.size:
        raise BadFields("registration: the packed body is cut short")
    (size,) = _INT.unpack_from(data, at)
    at += _INT.size
    if not 0 <= size <= len(data) - at:
        raise BadFields(f"registration: {size} bytes promised, {len(data) - at} there")
    return data[at : at + size], at + size
