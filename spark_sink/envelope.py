"""The envelope: one row per message, with the same columns whatever protocol it came from.

    topic         string      as its user writes it
    tag           string      the rest of the address, in dot form; null where there is none
    queue_id      int         with queue_offset: which message of the topic this is
    queue_offset  bigint
    msg_id        string      unique in the broker
    born_ts       timestamp   when the client says it made the message
    store_ts      timestamp   when the broker stored it; date and hour come from here
    keys          string      RocketMQ's KEYS, AMQP's message_id, a CloudEvent's id
    content_type  string
    protocol      string      mqtt, amqp, http, rocketmq
    headers       map         what the sender added; see below
    body          binary      as it was sent, never parsed; but decompressed where a RocketMQ
                              client had compressed it with zlib, LZ4 or ZSTD (see
                              `remoting.records.Record.plain_body`)

Rules:

* A row can always be made: no body and no header can break a batch. Text that is no Unicode gets
  replacement characters; properties of AMQP and MQTT 5 that cannot be decoded stand raw among the
  headers.
* `headers` has every property that is neither in a column of its own nor the broker's (`PMQ_`,
  checksum), but why a message became a dead letter stays. AMQP's headers and MQTT 5's user
  properties stand under their own names, the other properties of both as `amqp.<name>` and
  `mqtt.<name>`, CloudEvents attributes as `CE_<name>`.
* Messages of one sender mostly have the same properties but for the queues and the checksum at
  their end. So properties are cut there, and what they mean is remembered per distinct text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from polymq.remoting.records import LONG_PROPERTY, Record, message_of, parse_properties
from polymq.spark_sink.amqp_properties import decode_amqp_properties
from polymq.spark_sink.mqtt_properties import decode_mqtt_properties

TOPIC_COLUMN: Final = "topic"
RANGE_COLUMN: Final = "_range"
"""Only in the sink's own query: the range that a row was read in (`layout.range_text`), the same
in all rows of a task. The writer names files by it and knows whether it saw all of it."""

MEANINGS_MAX: Final = 4096
"""Distinct property texts that are remembered; beyond it all are forgotten."""

_FIELDS: Final = (
    (TOPIC_COLUMN, StringType()),
    ("tag", StringType()),
    ("queue_id", IntegerType()),
    ("queue_offset", LongType()),
    ("msg_id", StringType()),
    ("born_ts", TimestampType()),
    ("store_ts", TimestampType()),
    ("keys", StringType()),
    ("content_type", StringType()),
    ("protocol", StringType()),
    ("headers", MapType(StringType(), StringType())),
    ("body", BinaryType()),
)

# The years 1 to 9999, which every reader of Parquet can show. Clients send any number as the time
# of birth: one beyond becomes null. The store time is the broker's clock and names a directory.
_FIRST_MS: Final = -62_135_596_800_000
_LAST_MS: Final = 253_402_300_799_999

_OWN_COLUMNS: Final = frozenset(("TAGS", "KEYS", "UNIQ_KEY", "content-type"))
_INTERNAL_PREFIX: Final = "PMQ_"
_STORED_PREFIX: Final = "PMQ_DLQ_"
_CRC: Final = "__CRC32#"
_PROTOCOLS: Final = {"mqtt5": "mqtt"}
"""The column `protocol` where it is not `PMQ_PROTO`, which says only of messages with properties
that they came by MQTT 5."""
# Where the part of the properties begins that differs from message to message.
_ENDINGS: Final = (b"\x02PMQ_Q\x01", b"\x02PMQ_B\x01", b"\x02__CRC32#\x01")
_STARTS: Final = tuple(ending[1:] for ending in _ENDINGS)


def envelope_schema(*, with_range: bool = False) -> StructType:
    """The columns, in order."""
    fields = [StructField(name, kind) for name, kind in _FIELDS]
    if with_range:
        fields.append(StructField(RANGE_COLUMN, StringType()))
    return StructType(fields)


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark expects of batches with these columns."""
    return to_arrow_schema(schema, timezone="UTC")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Meaning:
    """What properties say, apart from what belongs to one message only."""

    tag: str | None
    unique_key: str | None
    keys: str | None
    content_type: str | None
    protocol: str
    headers: tuple[tuple[str, str | None], ...]
    long: bool = False
    """The message's AMQP properties stand in front of its body, so this is not all."""


class EnvelopeBuilder:
    """Collects records of one topic and turns them into Arrow batches.

    Args:
        topic: the user's name of the topic: what the rows say.
        range_text: the value of the range column, or None if the schema has none.
        rows_max, bytes_max: a batch is given out when it has as many rows, or bytes of body,
            properties and topic. Rows go through Spark's memory one batch at a time.
    """

    def __init__(
        self,
        schema: pa.Schema,
        *,
        topic: str,
        range_text: str | None,
        rows_max: int,
        bytes_max: int,
    ) -> None:
        self._schema = schema
        self._topic = topic
        self._topic_size = len(topic)  # of up to 64 KiB, in each row
        self._range_text = range_text
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._meanings: dict[bytes, _Meaning] = {}
        self._rows: list[tuple[Any, ...]] = []
        self._header_ends: list[int] = [0]
        self._header_names: list[str] = []
        self._header_values: list[str | None] = []
        self._byte_count = 0

    def add(self, record: Record) -> Iterator[pa.RecordBatch]:
        """Take a record; yields a batch if that filled one."""
        meaning = self._meaning(record.properties)
        body = record.plain_body
        if meaning.long:
            properties, body = message_of(record)
            meaning = _interpret(properties)
        self._rows.append(
            (
                meaning.tag,
                record.queue_id,
                record.queue_offset,
                meaning.unique_key or record.offset_message_id,
                record.born_ms * 1000 if _FIRST_MS <= record.born_ms <= _LAST_MS else None,
                min(max(record.store_ms, 0), _LAST_MS) * 1000,
                meaning.keys,
                meaning.content_type,
                meaning.protocol,
                body,
            )
        )
        for name, value in meaning.headers:
            self._header_names.append(name)
            self._header_values.append(value)
        self._header_ends.append(len(self._header_names))
        self._byte_count += len(body) + len(record.properties) + self._topic_size
        if len(self._rows) >= self._rows_max or self._byte_count >= self._bytes_max:
            yield from self.finish()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Give out what is collected."""
        if not self._rows:
            return
        count = len(self._rows)
        columns = dict(zip(_COLUMNS, zip(*self._rows, strict=True), strict=True))
        arrays = [self._array(field, columns.get(field.name), count) for field in self._schema]
        yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        self._rows = []
        self._header_ends = [0]
        self._header_names = []
        self._header_values = []
        self._byte_count = 0

    def _array(self, field: pa.Field, values: tuple[Any, ...] | None, count: int) -> pa.Array:
        if values is not None:
            return pa.array(values, type=field.type)
        if field.name == "headers":
            return pa.MapArray.from_arrays(
                pa.array(self._header_ends, pa.int32()),
                pa.array(self._header_names, field.type.key_type),
                pa.array(self._header_values, field.type.item_type),
                type=field.type,
            )
        constant = self._topic if field.name == TOPIC_COLUMN else self._range_text
        return pa.repeat(pa.scalar(constant, field.type), count)

    def _meaning(self, raw: bytes) -> _Meaning:
        cut = len(raw)
        for ending in _ENDINGS:
            found = raw.rfind(ending, 0, cut)
            if found >= 0:
                cut = found + 1
        constant = b"" if raw.startswith(_STARTS) else raw[:cut]
        meaning = self._meanings.get(constant)
        if meaning is None:
            if len(self._meanings) >= MEANINGS_MAX:
                self._meanings.clear()
            meaning = _interpret(parse_properties(constant))
            self._meanings[constant] = meaning
        return meaning


_COLUMNS: Final = (
    "tag",
    "queue_id",
    "queue_offset",
    "msg_id",
    "born_ts",
    "store_ts",
    "keys",
    "content_type",
    "protocol",
    "body",
)


def _interpret(properties: Mapping[str, str]) -> _Meaning:
    clean = {_unicode(name): _unicode(value) for name, value in properties.items()}
    headers: dict[str, str | None] = {
        name: value
        for name, value in clean.items()
        if name not in _OWN_COLUMNS
        and name != _CRC
        and (not name.startswith(_INTERNAL_PREFIX) or name.startswith(_STORED_PREFIX))
    }
    keys = clean.get("KEYS") or clean.get("CE_id")
    content_type = clean.get("content-type")
    protocol = clean.get("PMQ_PROTO", "rocketmq")
    if (packed := clean.get("PMQ_AMQP")) is not None:
        protocol = clean.get("PMQ_PROTO", "amqp")
        try:
            amqp = decode_amqp_properties(packed)
        except ValueError:
            headers["PMQ_AMQP"] = packed  # nothing is lost, somebody may make sense of it
        else:
            keys = keys or amqp.message_id
            content_type = content_type or amqp.content_type
            headers = {**headers, **amqp.headers}
    if (packed := clean.get("PMQ_MQTT5")) is not None:
        try:
            mqtt = decode_mqtt_properties(packed)
        except ValueError:
            headers["PMQ_MQTT5"] = packed
        else:
            content_type = content_type or mqtt.content_type
            headers = {**headers, **mqtt.headers}
    return _Meaning(
        tag=clean.get("TAGS"),
        unique_key=clean.get("UNIQ_KEY"),
        keys=keys,
        content_type=content_type,
        protocol=_PROTOCOLS.get(protocol, protocol),
        headers=tuple(headers.items()),
        long=clean.get(LONG_PROPERTY) == "1",
    )


def _unicode(text: str) -> str:
    """Bytes that were no UTF-8 became surrogates; a table needs characters."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
