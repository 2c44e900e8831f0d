"""The key index's inner loops, in plain Python. The twin is `keys.pyx`.

A *row* is what a record gives the index for one of its keys: hash 4, log position 8, store time in
ms 8. An *entry* is what stands in an index file: hash 4, position 8, seconds since the file's first
record 4, number of the entry before it in the same slot 4 (RocketMQ's IndexFile).

`record_keys.py` says which keys a record has.
"""

from __future__ import annotations

import struct
from typing import Final

from polymq.core_log.kernels.batch import (
    PROPERTY_CRC_SIZE,
    RECORD_BODY_AT,
    RECORD_BODY_SIZE_AT,
    RECORD_POSITION_AT,
    RECORD_STORE_MS_AT,
)
from polymq.core_log.kernels.layout import SYSTEM_TOPIC
from polymq.core_log.kernels.record_keys import keys_of
from polymq.core_log.kernels.walking import _properties_start, _size_of
from polymq.core_log.kernels.writing import INT, LONG, Memory, java_hash

ROW: Final = struct.Struct(">Iqq")
KEY_ENTRY: Final = struct.Struct(">IqiI")
SECONDS_MAX: Final = (1 << 31) - 1


def key_hash(topic: bytes, key: bytes) -> int:
    """RocketMQ's hash of a key: of `topic#key`, never negative."""
    value = java_hash((topic + b"#" + key).decode("utf-8", "surrogateescape"))
    return 0 if value == -(1 << 31) else abs(value)


def find_keys(memory: Memory, start: int, end: int) -> bytes:
    """The rows of all keys of the sound records in memory[start:end]. System records have none.

    Raises:
        ValueError: something there is not a record.
    """
    rows = []
    at = start
    while at < end:
        size = _size_of(memory, at, end)
        properties = _properties_start(memory, at)
        topic_at = at + RECORD_BODY_AT + INT.unpack_from(memory, at + RECORD_BODY_SIZE_AT)[0]
        topic = bytes(memory[topic_at + 1 : properties - 2])
        if topic != SYSTEM_TOPIC:
            raw = bytes(memory[properties : at + size - PROPERTY_CRC_SIZE])
            position = LONG.unpack_from(memory, at + RECORD_POSITION_AT)[0]
            store_ms = LONG.unpack_from(memory, at + RECORD_STORE_MS_AT)[0]
            rows += [ROW.pack(key_hash(topic, key), position, store_ms) for key in keys_of(raw)]
        at += size
    return b"".join(rows)


def _slots_of(slots: bytearray) -> int:
    """How many slots there are. Raises ValueError."""
    count, rest = divmod(len(slots), 4)
    if rest or not count:
        raise ValueError("not a table of slots")
    return count


def link_keys(rows: Memory, slots: bytearray, number: int, begin_ms: int) -> bytes:
    """The entries of these rows, numbered from `number` on, linked into `slots`.

    Args:
        slots: four bytes each: the number of the newest entry, 0 for none.
        begin_ms: store time of the file's first record.

    Raises:
        ValueError: parts of rows, or no slots.
    """
    count = _slots_of(slots)
    if len(rows) % ROW.size:
        raise ValueError("not whole rows")
    entries = []
    for hashed, position, store_ms in ROW.iter_unpack(rows):
        at = hashed % count * 4
        seconds = min(max(store_ms - begin_ms, 0) // 1000, SECONDS_MAX)
        entries.append(KEY_ENTRY.pack(hashed, position, seconds, INT.unpack_from(slots, at)[0]))
        INT.pack_into(slots, at, number)
        number += 1
    return b"".join(entries)


def fill_slots(entries: Memory, slots: bytearray, number: int) -> None:
    """Set the slots as they are after these entries, the first of which has this number.

    Raises:
        ValueError: parts of entries, or no slots.
    """
    count = _slots_of(slots)
    if len(entries) % KEY_ENTRY.size:
        raise ValueError("not whole entries")
    for hashed, _, _, _ in KEY_ENTRY.iter_unpack(entries):
        INT.pack_into(slots, hashed % count * 4, number)
        number += 1
