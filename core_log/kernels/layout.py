"""What both kernel twins, and those who read their answers, agree on beyond `batch.py`."""

from __future__ import annotations

from typing import Final

from polymq.core_log.kernels.batch import PROPERTY_CRC_SIZE, RECORD_BODY_AT

SYSTEM_TOPIC: Final = b"RMQ_SYS_POLYMQ_STATE"
"""The topic of system records. Closed to clients."""

PROPERTY_BATCH: Final = b"PMQ_B"
"""An atomic batch: 16 hex digits of id (the position of its first record), 4 of the record's
index, 4 of the count. Stands between `PMQ_Q` and the checksum."""
PROPERTY_BATCH_SIZE: Final = len(PROPERTY_BATCH) + 1 + 24 + 1
NO_BATCH: Final = (-1, 0, 0)
"""No atomic batch is open; else its (id, index of the next record, count)."""

PROPERTY_OF: Final = b"PMQ_OF"
"""First property of a dispatch continuation: 16 hex digits of position, 8 of size, 16 of tag hash
of the record that the targets belong to."""

PROPERTY_EPOCH: Final = b"PMQ_E"
"""First property of the record that begins an epoch: 16 hex digits."""

PROPERTY_TAGS: Final = b"TAGS"
"""RocketMQ's name for the tag, whose hash stands in the index entry."""

RECORD_SIZE_MIN: Final = RECORD_BODY_AT + 1 + 1 + 2 + PROPERTY_CRC_SIZE
"""An empty body, a topic of one byte and the checksum."""

HOST_SIZE: Final = 8
"""An IPv4 address and a port of four bytes."""

ENTRY_SIZE: Final = 20
"""An entry of a topic's own queue: position 8, size 4, tag hash 8 (RocketMQ's ConsumeQueue)."""
PRIVATE_ENTRY_SIZE: Final = 32
"""An entry of any other queue: the same, then the record's store time in ms 6, priority 1, time to
live 4 (in ms and one more; 0: for ever), check 1. The highest bit of the store time's six bytes
says that the record has `SYSTEM_FLAG_AT_MOST_ONCE`. So what a queue asks of its messages (how old,
how large, how long to live) is answered without the log, and also for settings that the queue got
later: when a message expires depends on its own time to live and on the queue's. Because it is
answered without the log, the entry has a check of its own: the four bytes of the CRC-32 of what
stands before it, combined by exclusive or. It differs for any one flipped bit, and an entry of
zeros is not valid."""

SYSTEM_FLAG_AT_MOST_ONCE: Final = 0x0002_0000
"""In the system flag of a record (RocketMQ uses the lowest bits): its publisher asked for delivery
at most once, so that it need not wait for anybody who is away."""
ENTRY_AT_MOST_ONCE: Final = 1 << 47
"""The same in the store time of a private entry, which `widen` is given."""
STORE_MS_MASK: Final = ENTRY_AT_MOST_ONCE - 1
"""The store time itself."""

BLOCK_BYTES: Final = 64 * 1024
"""One block of an index in memory: large enough that a checkpoint takes few of them, small enough
to grow by copying."""

PROPERTY_CONSTANT: Final = b"PMQ_P"
"""First property of a record of the broker: 4 hex digits, the size of its constant properties."""
PROPERTY_CONSTANT_SIZE: Final = len(PROPERTY_CONSTANT) + 1 + 4 + 1
PROPERTY_TTL: Final = b"PMQ_X"
"""Time to live as in the entry, 8 hex digits, and priority, 2. Stands right behind `PMQ_P`, or
behind `PMQ_OF` in a continuation; absent where both are zero."""
PROPERTY_TTL_SIZE: Final = len(PROPERTY_TTL) + 1 + 10 + 1
TTL_CODE_MAX: Final = 0xFFFF_FFFF

NUMBER_MAX: Final = 0xFFFF_FFFF
OFFSET_MAX: Final = 0xFFFF_FFFF_FFFF
"""What the digits of the dispatch property can say."""

# Why a walk over records stopped.
STOP_END: Final = 0
"""At the end of what was given: all of it is sound."""
STOP_SHORT: Final = 1
"""The record at the stop goes on behind what was given."""
STOP_BLANK: Final = 2
STOP_ZERO: Final = 3
STOP_MAGIC: Final = 4
STOP_SIZE: Final = 5
STOP_POSITION: Final = 6
STOP_CRC: Final = 7
STOP_BATCH: Final = 8

REASONS: Final = {
    STOP_END: "sound",
    STOP_SHORT: "incomplete",
    STOP_BLANK: "the filler of a segment's end",
    STOP_ZERO: "zeros, nothing was written there",
    STOP_MAGIC: "no record starts there",
    STOP_SIZE: "its sizes contradict each other",
    STOP_POSITION: "it belongs to another position",
    STOP_CRC: "its checksum is wrong",
    STOP_BATCH: "it breaks an atomic batch",
}
