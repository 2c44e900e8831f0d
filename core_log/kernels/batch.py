"""The Batch: what every frame kernel fills and the append kernel reads.

A batch is the publishes of one socket read. It holds no message: it holds rows of integers that
say where each message's parts lie in the buffer that the read filled. One Python object serves
hundreds of messages, and a kernel in C or in Python reads the same rows.

Rules:

* Offsets are relative to the start of `Batch.buffer`. They are valid until the read callback
  returns, because the buffer is shared by all connections.
* Whoever fills a row has checked it: every part lies within the buffer and no size is negative.
* A *run* is a stretch of rows with equal topic bytes and equal flags. Python works once per run;
  kernels work once per row.

The module also declares where the fields of a commit-log record stand (RocketMQ's V1 record with
IPv4 hosts), because the delivery kernels of the gateways read records in place, and the names of
the private properties that the store and the kernels agree on.
"""

from __future__ import annotations

from array import array
from typing import Final

# --- columns of a row; a row is COLUMNS consecutive signed 64-bit integers --------------------

TOPIC_START: Final = 0
"""Where the protocol's own topic bytes start (MQTT: the topic name; AMQP: exchange and key)."""
TOPIC_SIZE: Final = 1
BODY_START: Final = 2
BODY_SIZE: Final = 3
EXTRA_START: Final = 4
"""Where the per-message property bytes start (AMQP content properties, CloudEvents attributes)."""
EXTRA_SIZE: Final = 5
IDENTIFIER: Final = 6
"""MQTT packet id; AMQP publish sequence number; 0 where the protocol has none."""
FLAGS: Final = 7
"""Bits of the gateway's own choosing. Rows with different flags are never in one run."""
COLUMNS: Final = 8

CAPACITY: Final = 4096
"""Rows of one batch. A 256 KiB read of the smallest useful publishes holds about this many; a
kernel that meets the bound stops, and is called again with the rest."""


class Batch:
    """Publishes of one read, as rows of integers over a buffer.

    Attributes:
        buffer: the bytes that the offsets address: any object with the buffer protocol.
        rows: `COLUMNS * CAPACITY` signed 64-bit integers; row `i` starts at `i * COLUMNS`.
        count: how many rows are filled.
    """

    __slots__ = ("buffer", "count", "rows")

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.buffer: bytes | bytearray | memoryview = b""
        self.rows: array[int] = array("q", bytes(8 * COLUMNS * capacity))
        self.count = 0

    def clear(self) -> None:
        """Forget all rows, so that the batch can be filled again."""
        self.buffer = b""
        self.count = 0

    def add(
        self,
        topic: tuple[int, int],
        body: tuple[int, int],
        extra: tuple[int, int] = (0, 0),
        identifier: int = 0,
        flags: int = 0,
    ) -> None:
        """Append one row from (start, size) pairs. For cold paths and tests; kernels write rows."""
        if (self.count + 1) * COLUMNS > len(self.rows):
            raise OverflowError("the batch is full")
        at = self.count * COLUMNS
        self.rows[at : at + COLUMNS] = array("q", (*topic, *body, *extra, identifier, flags))
        self.count += 1

    def row(self, index: int) -> tuple[int, ...]:
        """Row `index` as a tuple in column order. For cold paths and tests."""
        if not 0 <= index < self.count:
            raise IndexError(index)
        return tuple(self.rows[index * COLUMNS : (index + 1) * COLUMNS])

    def topic(self, index: int) -> bytes:
        """The topic bytes of row `index`, copied."""
        at = index * COLUMNS
        start = self.rows[at + TOPIC_START]
        return bytes(memoryview(self.buffer)[start : start + self.rows[at + TOPIC_SIZE]])


LARGE_BODY_BYTES: Final = 4 * 1024 * 1024
"""From this size on a body is worth a `LargeBatch`: it fits into no usual chunk of the log's tail.
Smaller ones are copied in a few milliseconds."""


class LargeBatch(Batch):
    """One publish with a large body, in memory that may become its record (`large_record.py`).

    The body begins at `RECORD_BODY_AT` and ends where topic and extra bytes begin, which are the
    last bytes of the memory.

    Attributes:
        body_crc: the CRC-32 of the body.
    """

    __slots__ = ("body_crc",)

    def __init__(self, memory: bytearray, body_crc: int) -> None:
        super().__init__(1)
        self.buffer = memory
        self.body_crc = body_crc

    def take(self) -> bytearray:
        """The memory, which is not the batch's any more."""
        memory = self.buffer
        assert isinstance(memory, bytearray)
        self.clear()
        return memory


# --- the commit-log record (big-endian), byte offsets from its start -------------------------

RECORD_SIZE_AT: Final = 0
RECORD_MAGIC_AT: Final = 4
RECORD_BODY_CRC_AT: Final = 8
RECORD_QUEUE_ID_AT: Final = 12
RECORD_FLAG_AT: Final = 16
RECORD_QUEUE_OFFSET_AT: Final = 20
RECORD_POSITION_AT: Final = 28
RECORD_SYSTEM_FLAG_AT: Final = 36
RECORD_BORN_MS_AT: Final = 40
RECORD_BORN_HOST_AT: Final = 48
RECORD_STORE_MS_AT: Final = 56
RECORD_STORE_HOST_AT: Final = 64
RECORD_RECONSUME_AT: Final = 72
RECORD_PREPARED_AT: Final = 76
RECORD_BODY_SIZE_AT: Final = 84
RECORD_BODY_AT: Final = 88
"""Then the body; one byte of topic size and the topic; two bytes of properties size and the
properties: `name 0x01 value 0x02`, repeated."""

MAGIC_V1: Final = 0xDAA320A7
MAGIC_BLANK: Final = 0xCBD43194
"""Magic of the filler that closes a segment: four bytes of remaining size, four of this."""
BLANK_SIZE: Final = 8

NAME_END: Final = 0x01
VALUE_END: Final = 0x02

PROPERTY_CRC: Final = b"__CRC32#"
"""The whole-record checksum: always the last property. Its value is crc32 & 0x7FFFFFFF of all
bytes of the record before this property, as ten decimal digits, least significant first."""
PROPERTY_CRC_SIZE: Final = len(PROPERTY_CRC) + 1 + 10 + 1

PROPERTY_DISPATCH: Final = b"PMQ_Q"
"""The queues beyond the topic's own that this record belongs to: for each 8 hex digits of queue
number and 12 of the offset that the record has there. Follows the per-message extra property."""
DISPATCH_TARGET_SIZE: Final = 20
DISPATCH_TARGETS_MAX: Final = 256
"""Targets that one record names; more continue in system records of the same atomic batch."""

# How a row's extra bytes become a property of the record (`Template.extra_kind`).
EXTRA_NONE: Final = 0
EXTRA_BASE64: Final = 1
"""As one property: the template's extra name, 0x01, standard base64 with padding, 0x02."""
EXTRA_VERBATIM: Final = 2
"""As they are: already `name 0x01 value 0x02` pairs, with no other 0x01 or 0x02 inside."""

PROPERTIES_SIZE_MAX: Final = 32_767
"""RocketMQ keeps the properties' size in a signed short. What does not fit is refused, not cut."""
