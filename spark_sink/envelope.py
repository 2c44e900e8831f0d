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
* Properties are read up to those that the broker appended (queues, checksum). Most messages are
  read by a kernel, without an object for each (`kernels/row.pxd`). For the others, those of MQTT 5
  above all, what the text of the properties means is remembered.

Nothing here needs Spark but the two functions that make its schema.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from polymq.remoting.compression import plain_body
from polymq.remoting.errors import RemoteProtocolError
from polymq.remoting.records import (
    AMQP_PROPERTY,
    LONG_PROPERTY,
    parse_properties,
    split_long_body,
    take_record,
)
from polymq.spark_sink.amqp_properties import decode_amqp_properties
from polymq.spark_sink.kernels.codes import Given, Headers, Interpreted
from polymq.spark_sink.kernels.columns import Columns
from polymq.spark_sink.mqtt_properties import decode_mqtt_properties

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

TOPIC_COLUMN: Final = "topic"
RANGE_COLUMN: Final = "_range"
"""Only in the sink's own query: the range that a row was read in (`layout.range_text`), the same
in all rows of a task. The writer names files by it and knows whether it saw all of it."""

MEANINGS_MAX: Final = 4096
"""Distinct property texts that are remembered; beyond it all are forgotten."""

_TEXT: Final = pa.string()
_TIME: Final = pa.timestamp("us", tz="UTC")
_HEADERS: Final = pa.map_(pa.string(), pa.field("value", pa.string()))
_FIELDS: Final = (
    pa.field(TOPIC_COLUMN, _TEXT),
    pa.field("tag", _TEXT),
    pa.field("queue_id", pa.int32()),
    pa.field("queue_offset", pa.int64()),
    pa.field("msg_id", _TEXT),
    pa.field("born_ts", _TIME),
    pa.field("store_ts", _TIME),
    pa.field("keys", _TEXT),
    pa.field("content_type", _TEXT),
    pa.field("protocol", _TEXT),
    pa.field("headers", _HEADERS),
    pa.field("body", pa.binary()),
)
_OWN_COLUMNS: Final = frozenset(("TAGS", "KEYS", "UNIQ_KEY", "content-type"))
_INTERNAL_PREFIX: Final = "PMQ_"
_STORED_PREFIX: Final = "PMQ_DLQ_"
_PROTOCOLS: Final = {"mqtt5": "mqtt"}
"""The column `protocol` where it is not `PMQ_PROTO`, which says only of messages with properties
that they came by MQTT 5."""
# Where the part of the properties begins that the broker appended.
_ENDINGS: Final = (b"\x02PMQ_Q\x01", b"\x02PMQ_B\x01", b"\x02__CRC32#\x01")
_STARTS: Final = tuple(ending[1:] for ending in _ENDINGS)


def table_schema(*, with_range: bool = False, with_headers: bool = True) -> pa.Schema:
    """The columns, in order, as Arrow has them."""
    schema = pa.schema([field for field in _FIELDS if with_headers or field.name != "headers"])
    return schema.append(pa.field(RANGE_COLUMN, _TEXT)) if with_range else schema


def envelope_schema(*, with_range: bool = False, with_headers: bool = True) -> StructType:
    """The same as Spark has them."""
    # Imported here: pyspark is an extra, and everything else of this module goes without it.
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415

    return from_arrow_schema(table_schema(with_range=with_range, with_headers=with_headers))


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark expects of batches with these columns."""
    from pyspark.sql.pandas.types import to_arrow_schema  # noqa: PLC0415

    return to_arrow_schema(schema, timezone="UTC")


class EnvelopeBuilder:
    """Turns records of one topic into Arrow batches.

    Args:
        topic: the user's name of the topic: what the rows say.
        range_text: the value of the range column, or None if the schema has none.
        rows_max, bytes_max: a batch is given out when it has as many rows, or bytes of body,
            properties and topic. Rows go through Spark's memory one batch at a time.

    Attributes:
        next_offset: the offset behind the last message that `add` took.
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
        self.next_offset = 0
        self._schema = schema
        self._constants = {TOPIC_COLUMN: topic, RANGE_COLUMN: range_text}
        self._columns = Columns(
            Interpreter(),
            rows_max=rows_max,
            bytes_max=bytes_max,
            row_bytes=len(topic),  # of up to 64 KiB, in each row
        )

    def add(
        self, records: bytes, *, queue_id: int, first: int, end: int
    ) -> Iterator[pa.RecordBatch]:
        """Take records as a broker sends them: those of a queue from the offset `first` on, as far
        as `end`. Yields the batches that they fill.

        Raises:
            RemoteProtocolError: a record is damaged, or another one than the next.
        """
        columns, at = self._columns, 0
        self.next_offset = first
        while True:
            before = columns.row_count
            at = columns.take(records, at, queue_id, self.next_offset, end)
            self.next_offset += columns.row_count - before
            if at < len(records) and self.next_offset < end and not columns.is_full:
                found, _ = take_record(records, at)
                raise RemoteProtocolError(
                    f"message {found.queue_offset} of queue {found.queue_id} came where "
                    f"{self.next_offset} was asked for"
                )
            if not columns.is_full:
                return
            yield from self.finish()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Give out what is collected."""
        count = self._columns.row_count
        if not count:
            return
        arrays = _arrays(count, self._columns.give())
        for name, constant in self._constants.items():
            arrays[name] = pa.repeat(pa.scalar(constant, _TEXT), count)
        yield pa.RecordBatch.from_arrays(
            [arrays[name] for name in self._schema.names], schema=self._schema
        )


def _arrays(count: int, given: list[Given]) -> dict[str, pa.Array]:
    """The columns as Arrow's arrays, which take their memory over."""
    numbers, header_ends, texts = given[:4], given[4], given[5:]
    tag, msg_id, keys, content_type, protocol, names, values, body = texts
    header_count = len(memoryview(names[1])) // 4 - 1
    entries = pa.StructArray.from_arrays(
        [_array(_TEXT, header_count, names), _array(_TEXT, header_count, values)],
        fields=[_HEADERS.key_field, _HEADERS.item_field],
    )
    headers = pa.Array.from_buffers(
        _HEADERS, count, [None, pa.py_buffer(header_ends[1])], children=[entries]
    )
    kinds = (pa.int32(), pa.int64(), _TIME, _TIME)
    names_of_numbers = ("queue_id", "queue_offset", "born_ts", "store_ts")
    return {
        **{
            name: _array(kind, count, parts)
            for name, kind, parts in zip(names_of_numbers, kinds, numbers, strict=True)
        },
        "tag": _array(_TEXT, count, tag),
        "msg_id": _array(_TEXT, count, msg_id),
        "keys": _array(_TEXT, count, keys),
        "content_type": _array(_TEXT, count, content_type),
        "protocol": _array(_TEXT, count, protocol),
        "headers": headers,
        "body": _array(pa.binary(), count, body),
    }


def _array(kind: pa.DataType, count: int, parts: Given) -> pa.Array:
    buffers = [None if part is None else pa.py_buffer(part) for part in parts]
    return pa.Array.from_buffers(kind, count, buffers)


# --- what properties mean, where the kernel does not say ----------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Meaning:
    """What properties say, apart from what belongs to one message only.

    Attributes:
        properties: what was interpreted.
        long: the message's AMQP properties stand in front of its body, so this is not all.
    """

    properties: dict[str, str]
    long: bool
    tag: bytes | None
    unique_key: bytes | None
    keys: bytes | None
    content_type: bytes | None
    protocol: bytes
    headers: Headers


class Interpreter:
    """What properties and bodies of messages mean; it remembers properties, within a bound."""

    def __init__(self) -> None:
        self._meanings: dict[bytes, _Meaning] = {}

    def __call__(self, properties: bytes, body: bytes, system_flag: int) -> Interpreted:
        """See `kernels.codes.Interpret`."""
        meaning = self._meaning(properties)
        if meaning.long and (parts := split_long_body(body)) is not None:
            packed, body = parts
            text = b2a_base64(packed, newline=False).decode()
            meaning = _interpret(meaning.properties | {AMQP_PROPERTY: text})
        elif (plain := plain_body(body, system_flag)) is not None:
            body = plain  # what does not decompress stays as it is
        return (
            meaning.tag,
            meaning.unique_key,
            meaning.keys,
            meaning.content_type,
            meaning.protocol,
            meaning.headers,
            body,
        )

    def _meaning(self, raw: bytes) -> _Meaning:
        given = _given_part(raw)
        meaning = self._meanings.get(given)
        if meaning is None:
            if len(self._meanings) >= MEANINGS_MAX:
                self._meanings.clear()
            meaning = _interpret(parse_properties(given))
            self._meanings[given] = meaning
        return meaning


def _given_part(raw: bytes) -> bytes:
    """The properties without those that the broker appended."""
    if raw.startswith(_STARTS):
        return b""
    found = [at for ending in _ENDINGS if (at := raw.find(ending)) >= 0]
    return raw[: min(found) + 1] if found else raw


def _interpret(properties: dict[str, str]) -> _Meaning:
    clean = {_unicode(name): _unicode(value) for name, value in properties.items()}
    headers: dict[str, str | None] = {
        name: value
        for name, value in clean.items()
        if name not in _OWN_COLUMNS
        and (not name.startswith(_INTERNAL_PREFIX) or name.startswith(_STORED_PREFIX))
    }
    keys = clean.get("KEYS") or clean.get("CE_id")
    content_type = clean.get("content-type")
    protocol = clean.get("PMQ_PROTO", "rocketmq")
    if (packed := clean.get(AMQP_PROPERTY)) is not None:
        protocol = clean.get("PMQ_PROTO", "amqp")
        try:
            amqp = decode_amqp_properties(packed)
        except ValueError:
            headers[AMQP_PROPERTY] = packed  # nothing is lost, somebody may make sense of it
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
        properties=properties,
        long=clean.get(LONG_PROPERTY) == "1",
        tag=_encoded(clean.get("TAGS")),
        unique_key=_encoded(clean.get("UNIQ_KEY")),
        keys=_encoded(keys),
        content_type=_encoded(content_type),
        protocol=_PROTOCOLS.get(protocol, protocol).encode(),
        headers=[(name.encode(), _encoded(value)) for name, value in headers.items()],
    )


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _unicode(text: str) -> str:
    """Bytes that were no UTF-8 became surrogates; a table needs characters."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
