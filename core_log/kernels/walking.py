"""Walking over records in memory, in plain Python. The twin is `walk.pyx`.

Checking (recovery and every cold read): check_record, scan. Reading: gather, check_targets,
record_run. Rebuilding from records that were checked before: dispatch, find_system, find_marked.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

from polymq.core_log.kernels.batch import (
    DISPATCH_TARGET_SIZE,
    DISPATCH_TARGETS_MAX,
    MAGIC_BLANK,
    MAGIC_V1,
    PROPERTY_CRC_SIZE,
    RECORD_BODY_AT,
    RECORD_BODY_SIZE_AT,
    RECORD_POSITION_AT,
    RECORD_STORE_MS_AT,
    RECORD_SYSTEM_FLAG_AT,
)
from polymq.core_log.kernels.layout import (
    ENTRY_AT_MOST_ONCE,
    ENTRY_SIZE,
    NO_BATCH,
    PRIVATE_ENTRY_SIZE,
    PROPERTY_BATCH,
    PROPERTY_BATCH_SIZE,
    PROPERTY_CONSTANT,
    PROPERTY_CONSTANT_SIZE,
    PROPERTY_OF,
    PROPERTY_TAGS,
    PROPERTY_TTL,
    PROPERTY_TTL_SIZE,
    RECORD_SIZE_MIN,
    STOP_BATCH,
    STOP_BLANK,
    STOP_CRC,
    STOP_END,
    STOP_MAGIC,
    STOP_POSITION,
    STOP_SHORT,
    STOP_SIZE,
    STOP_ZERO,
    STORE_MS_MASK,
    SYSTEM_FLAG_AT_MOST_ONCE,
    SYSTEM_TOPIC,
)
from polymq.core_log.kernels.writing import (
    DISPATCH_START,
    ENTRY,
    INT,
    LONG,
    TTL,
    Memory,
    check_entries,
    crc_property,
    java_hash,
    with_check,
)

OpenBatch = tuple[int, int, int]

SIZE_AND_MAGIC: Final = struct.Struct(">II")
BATCH_START: Final = PROPERTY_BATCH + b"\x01"
OF_START: Final = PROPERTY_OF + b"\x01"
TAGS_START: Final = PROPERTY_TAGS + b"\x01"
CONSTANT_START: Final = PROPERTY_CONSTANT + b"\x01"
TTL_START: Final = PROPERTY_TTL + b"\x01"
HEX: Final = frozenset(b"0123456789abcdef")

# --- checking -------------------------------------------------------------------------------


def check_record(memory: Memory, start: int, end: int, position: int = -1) -> int:
    """Why the bytes at memory[start:end] do not begin with a sound record: a STOP code.

    Args:
        position: the log position where the record should stand; -1 if that is not known.
    """
    if not 0 <= start <= end <= len(memory):
        raise ValueError("the range lies outside the memory")
    available = end - start
    if available < SIZE_AND_MAGIC.size:
        return STOP_SHORT
    size, magic = SIZE_AND_MAGIC.unpack_from(memory, start)
    if magic != MAGIC_V1:
        if magic == MAGIC_BLANK:
            return STOP_BLANK
        return STOP_ZERO if size == magic == 0 else STOP_MAGIC
    if size < RECORD_SIZE_MIN:
        return STOP_SIZE
    if available < RECORD_BODY_AT:
        return STOP_SHORT
    if position >= 0 and LONG.unpack_from(memory, start + RECORD_POSITION_AT)[0] != position:
        return STOP_POSITION
    body_size = INT.unpack_from(memory, start + RECORD_BODY_SIZE_AT)[0]
    if body_size > size - RECORD_SIZE_MIN:
        return STOP_SIZE
    if size > available:
        return STOP_SHORT
    at = start + RECORD_BODY_AT + body_size
    topic_size = memory[at]
    if topic_size == 0 or RECORD_BODY_AT + body_size + 3 + topic_size > size - PROPERTY_CRC_SIZE:
        return STOP_SIZE
    at += 1 + topic_size
    properties_size = memory[at] << 8 | memory[at + 1]
    if at + 2 + properties_size != start + size:
        return STOP_SIZE
    covered = start + size - PROPERTY_CRC_SIZE
    expected = crc_property(zlib.crc32(memoryview(memory)[start:covered]))
    return STOP_END if memory[covered : start + size] == expected else STOP_CRC


def scan(
    memory: Memory, start: int, end: int, position: int, batch: OpenBatch
) -> tuple[int, int, int, OpenBatch]:
    """Walk over the records of memory[start:end], checking all of each.

    Args:
        position: the log position of memory[start].
        batch: the atomic batch that is open there (`NO_BATCH`, or what the last call returned).

    Returns:
        The index behind the last sound record, how many records, why it stopped, and the atomic
        batch that is still open there.
    """
    at = start
    count = 0
    while at < end:
        reason = check_record(memory, at, end, position + at - start)
        if reason != STOP_END:
            return at, count, reason, batch
        size = INT.unpack_from(memory, at)[0]
        following = _follow_batch(memory, at, size, position + at - start, batch)
        if following is None:
            return at, count, STOP_BATCH, batch
        batch = following
        at += size
        count += 1
    return at, count, STOP_END, batch


def _follow_batch(
    memory: Memory, at: int, size: int, position: int, batch: OpenBatch
) -> OpenBatch | None:
    """The open batch after the record at `at`, or None if the record breaks it."""
    part = _batch_part(memory, at, size)
    if part is None:
        return NO_BATCH if batch == NO_BATCH else None
    identifier, index, count = part
    expected = (position, 0, count) if batch == NO_BATCH else batch
    if (identifier, index, count) != expected or index >= count:
        return None
    return NO_BATCH if index + 1 == count else (identifier, index + 1, count)


def _batch_part(memory: Memory, at: int, size: int) -> OpenBatch | None:
    """(id, index, count) of a sound record's `PMQ_B`, or None if it has none."""
    end = at + size - PROPERTY_CRC_SIZE
    start = end - PROPERTY_BATCH_SIZE
    if start < _properties_start(memory, at):
        return None
    value = bytes(memory[start:end])
    digits = value[len(BATCH_START) : -1]
    if not value.startswith(BATCH_START) or value[-1] != 2 or not HEX.issuperset(digits):
        return None
    return int(digits[:16], 16), int(digits[16:20], 16), int(digits[20:], 16)


def _properties_start(memory: Memory, at: int) -> int:
    """Where the properties of a sound record start."""
    topic_at = at + RECORD_BODY_AT + int(INT.unpack_from(memory, at + RECORD_BODY_SIZE_AT)[0])
    return topic_at + 3 + memory[topic_at]


# --- rebuilding -----------------------------------------------------------------------------


def _size_of(memory: Memory, at: int, end: int) -> int:
    """The size of the record at `at`, which a caller has to have checked before."""
    if at >= 0 and at + RECORD_SIZE_MIN <= end <= len(memory):
        size = int(INT.unpack_from(memory, at)[0])
        body_size = int(INT.unpack_from(memory, at + RECORD_BODY_SIZE_AT)[0])
        if RECORD_SIZE_MIN <= size <= end - at and body_size <= size - RECORD_SIZE_MIN:
            if _properties_start(memory, at) + PROPERTY_CRC_SIZE <= at + size:
                return size
    raise ValueError("not a record")


def _targets(memory: Memory, at: int, size: int) -> bytes:
    """The digits of a sound record's `PMQ_Q`; empty if it has none."""
    start = _properties_start(memory, at)
    end = at + size - PROPERTY_CRC_SIZE
    if _batch_part(memory, at, size) is not None:
        end -= PROPERTY_BATCH_SIZE
    if end <= start or memory[end - 1] != 2:
        return b""
    for count in range(1, DISPATCH_TARGETS_MAX + 1):
        digits_at = end - 1 - count * DISPATCH_TARGET_SIZE
        name_at = digits_at - len(DISPATCH_START)
        if name_at < start:
            return b""
        if memory[digits_at - 1] == 1:
            digits = bytes(memory[digits_at : end - 1])
            named = bytes(memory[name_at:digits_at]) == DISPATCH_START
            return digits if named and HEX.issuperset(digits) else b""
    return b""


def _entry_of(memory: Memory, at: int, size: int) -> tuple[bytes, bool]:
    """The private entry of a sound record (an own one is its start), and whether the record is a
    continuation (of another record)."""
    start = _properties_start(memory, at)
    properties = bytes(memory[start : at + size])
    of_end = len(OF_START) + 2 * ENTRY_SIZE
    if (
        _has_topic(memory, start, SYSTEM_TOPIC)
        and properties.startswith(OF_START)
        and properties[of_end : of_end + 1] == b"\x02"
    ):
        digits = properties[len(OF_START) : of_end]
        if HEX.issuperset(digits):
            ttl = _ttl(memory, at, properties, of_end + 1)
            return with_check(bytes.fromhex(digits.decode()) + ttl), True
    position = LONG.unpack_from(memory, at + RECORD_POSITION_AT)[0]
    ttl_at = PROPERTY_CONSTANT_SIZE if properties.startswith(CONSTANT_START) else len(properties)
    ttl = _ttl(memory, at, properties, ttl_at)
    return with_check(ENTRY.pack(position, size, _tag_hash(properties)) + ttl), False


def _ttl(memory: Memory, at: int, properties: bytes, ttl_at: int) -> bytes:
    """The second part of the private entry, without its check: the record's store time, and the
    `PMQ_X` that may stand at `ttl_at` of its properties."""
    store_ms = LONG.unpack_from(memory, at + RECORD_STORE_MS_AT)[0] & STORE_MS_MASK
    if INT.unpack_from(memory, at + RECORD_SYSTEM_FLAG_AT)[0] & SYSTEM_FLAG_AT_MOST_ONCE:
        store_ms |= ENTRY_AT_MOST_ONCE
    ttl_code = priority = 0
    start = ttl_at + len(TTL_START)
    end = ttl_at + PROPERTY_TTL_SIZE - 1
    digits = properties[start:end]
    if (
        properties.startswith(TTL_START, ttl_at)
        and properties[end : end + 1] == b"\x02"
        and HEX.issuperset(digits)
    ):
        ttl_code, priority = int(digits[:8], 16), int(digits[8:], 16)
    return TTL.pack(store_ms >> 32, store_ms & 0xFFFF_FFFF, priority, ttl_code)


def _has_topic(memory: Memory, properties: int, topic: bytes) -> bool:
    """Whether the record whose properties start there has this topic."""
    start = properties - 2 - len(topic)
    return memory[start - 1] == len(topic) and bytes(memory[start : start + len(topic)]) == topic


def _tag_hash(properties: bytes) -> int:
    """The tag hash that belongs to encoded properties: of the first TAGS, else 0."""
    at = 0
    while not properties.startswith(TAGS_START, at):
        at = properties.find(b"\x02", at) + 1
        if at == 0:
            return 0
    value_at = at + len(TAGS_START)
    end = properties.find(b"\x02", value_at)
    value = properties[value_at : end if end >= 0 else len(properties)]
    return java_hash(value.decode("utf-8", "surrogateescape"))


def dispatch(memory: Memory, start: int, end: int, tables: dict[int, list[object]]) -> int:
    """Add the index entries of the sound records in memory[start:end] to `tables`.

    Args:
        tables: queue number -> [entry size, first offset, next offset, bytearray of entries];
            grows by the queues that it does not hold yet.

    Raises:
        ValueError: something there is not a record.

    Returns:
        -1, or the start of the first record that a queue cannot take: its offset there is not
        the next one, or the entry size differs. Earlier records are in the tables.
    """
    at = start
    while at < end:
        size = _size_of(memory, at, end)
        digits = _targets(memory, at, size)
        if digits:
            entry, continued = _entry_of(memory, at, size)
            for index in range(0, len(digits), DISPATCH_TARGET_SIZE):
                number = int(digits[index : index + 8], 16)
                offset = int(digits[index + 8 : index + DISPATCH_TARGET_SIZE], 16)
                own = index == 0 and not continued
                stride = ENTRY_SIZE if own else PRIVATE_ENTRY_SIZE
                table = tables.get(number)
                if table is None:
                    table = tables[number] = [stride, offset, offset, bytearray()]
                if table[0] != stride or table[2] != offset:
                    return at
                entries = table[3]
                assert isinstance(entries, bytearray)
                entries += entry[:stride]
                table[2] = offset + 1
        at += size
    return -1


def find_system(memory: Memory, start: int, end: int, topic: bytes, name: bytes) -> list[int]:
    """Starts of the sound records in memory[start:end] with this topic whose first property has
    this name."""
    found = []
    first_property = name + b"\x01"
    at = start
    while at < end:
        size = _size_of(memory, at, end)
        properties = _properties_start(memory, at)
        if (
            _has_topic(memory, properties, topic)
            and bytes(memory[properties : properties + len(first_property)]) == first_property
        ):
            found.append(at)
        at += size
    return found


def find_marked(memory: Memory, start: int, end: int, topic: bytes, system_flags: int) -> list[int]:
    """Starts of the sound records in memory[start:end] that have this topic, or one of these bits
    in their system flag."""
    found = []
    at = start
    while at < end:
        size = _size_of(memory, at, end)
        flags = INT.unpack_from(memory, at + RECORD_SYSTEM_FLAG_AT)[0]
        if flags & system_flags or _has_topic(memory, _properties_start(memory, at), topic):
            found.append(at)
        at += size
    return found


# --- reading ---


def gather(
    entries: Memory,
    stride: int,
    first: int,
    memory: Memory,
    position: int,
    used: int,
    verify: bool,
) -> tuple[bytes, int, int]:
    """The records of entries[first:], one after the other, as long as they lie in the memory.

    Args:
        position, used: memory[:used] holds the log from `position` on.
        verify: check each record: size, position, checksum.

    Returns:
        The records, how many, and why it stopped: STOP_END (no more entries, or the next one lies
        elsewhere) or what is wrong with the next one.
    """
    check_entries(stride, first)
    if not 0 <= used <= len(memory):
        raise ValueError("the range lies outside the memory")
    parts = []
    view = memoryview(memory)
    index = first
    reason = STOP_END
    for at in range(first * stride, len(entries) - stride + 1, stride):
        entry_position, size, _tag = ENTRY.unpack_from(entries, at)
        start = entry_position - position
        if start < 0 or size < RECORD_SIZE_MIN or start + size > used:
            break
        if verify:
            reason = check_record(memory, start, start + size, entry_position)
            if reason == STOP_END and INT.unpack_from(memory, start)[0] != size:
                reason = STOP_SIZE
            if reason != STOP_END:
                break
        parts.append(view[start : start + size])
        index += 1
    return b"".join(parts), index - first, reason


def check_targets(records: Memory, number: int, offset: int) -> int:
    """The index of the first of these sound records that does not name its place in the queue:
    record k should name (number, offset + k). -1 if all do.

    A record with a full list of targets passes: its list goes on in other records.
    """
    at = 0
    index = 0
    while at < len(records):
        size = _size_of(records, at, len(records))
        digits = _targets(records, at, size)
        wanted = b"%08x%012x" % (number, offset + index)
        if len(digits) < DISPATCH_TARGET_SIZE * DISPATCH_TARGETS_MAX and not any(
            digits.startswith(wanted, target)
            for target in range(0, len(digits), DISPATCH_TARGET_SIZE)
        ):
            return index
        at += size
        index += 1
    return -1


def record_run(memory: Memory, start: int, end: int, constant_size: int) -> tuple[int, int]:
    """The run of sound records of one kind that begins at `start`.

    Records are of one kind if they have the topic of the first one and the same `constant_size`
    first bytes of properties.

    Returns:
        Where the run ends, and how many records it has: at least one.

    Raises:
        ValueError: no record, or none with so many bytes of properties, stands at `start`.
    """
    if constant_size < 0 or start >= end:
        raise ValueError("not a record")
    kind = b""
    at = start
    count = 0
    while at < end:
        size = _size_of(memory, at, end)
        properties = _properties_start(memory, at)
        body_end = RECORD_BODY_AT + INT.unpack_from(memory, at + RECORD_BODY_SIZE_AT)[0]
        topic = bytes(memory[at + body_end : properties - 2])
        if properties + constant_size > at + size:
            if count == 0:
                raise ValueError("not a record")
            break
        mine = topic + bytes(memory[properties : properties + constant_size])
        if count == 0:
            kind = mine
        elif mine != kind:
            break
        at += size
        count += 1
    return at, count
