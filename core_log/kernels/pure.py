"""The store's inner loops in plain Python: the fallback without a compiler, and the oracle.

The twin is `fast.pyx`: the same functions, and for every input the same result, the same bytes in
memory and the same error. What a kernel is given was checked by its caller, with two exceptions,
because here a wrong number would read foreign memory: the parts of a batch's rows must lie in the
batch's buffer, and bytes from the disk may be anything.

Writing (called once per run of rows):
    next_run, run_size, append_run, widen
Reading (called once per chunk or per read of the disk):
    gather, plan_read, fit, check_targets
Checking and rebuilding (recovery):
    check_record, scan, dispatch, find_system
Sums:
    crc32, java_hash
"""

from __future__ import annotations

import struct
import zlib
from binascii import b2a_base64
from collections.abc import Sequence
from typing import Final

from core_log.kernels.batch import (
    BODY_SIZE,
    BODY_START,
    COLUMNS,
    DISPATCH_TARGET_SIZE,
    DISPATCH_TARGETS_MAX,
    EXTRA_BASE64,
    EXTRA_NONE,
    EXTRA_SIZE,
    EXTRA_START,
    EXTRA_VERBATIM,
    FLAGS,
    MAGIC_BLANK,
    MAGIC_V1,
    PROPERTY_CRC,
    PROPERTY_CRC_SIZE,
    PROPERTY_DISPATCH,
    RECORD_BODY_AT,
    RECORD_BODY_CRC_AT,
    RECORD_BODY_SIZE_AT,
    RECORD_BORN_HOST_AT,
    RECORD_BORN_MS_AT,
    RECORD_POSITION_AT,
    RECORD_QUEUE_OFFSET_AT,
    RECORD_STORE_HOST_AT,
    RECORD_STORE_MS_AT,
    Batch,
)
from core_log.kernels.layout import (
    ENTRY_SIZE,
    NO_BATCH,
    NUMBER_MAX,
    OFFSET_MAX,
    PRIVATE_ENTRY_SIZE,
    PROPERTY_BATCH,
    PROPERTY_BATCH_SIZE,
    PROPERTY_OF,
    PROPERTY_TAGS,
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
)

Memory = bytes | bytearray | memoryview
Form = tuple[bytes, bytes, bytes, int, bytes, int]
"""`RecordTemplate.form`: head, size and topic, properties, extra kind, extra name, tag hash."""
OpenBatch = tuple[int, int, int]

_INT: Final = struct.Struct(">I")
_LONG: Final = struct.Struct(">q")
_ENTRY: Final = struct.Struct(">qiq")
_SIZE_AND_MAGIC: Final = struct.Struct(">II")
_EXPIRY: Final = struct.Struct(">IHBBI")
_DISPATCH_START: Final = PROPERTY_DISPATCH + b"\x01"
_BATCH_START: Final = PROPERTY_BATCH + b"\x01"
_CRC_START: Final = PROPERTY_CRC + b"\x01"
_OF_START: Final = PROPERTY_OF + b"\x01"
_TAGS_START: Final = PROPERTY_TAGS + b"\x01"
_HEX: Final = frozenset(b"0123456789abcdef")


# --- sums -----------------------------------------------------------------------------------


def crc32(memory: Memory, start: int, end: int, value: int = 0) -> int:
    """The CRC-32 of memory[start:end] (zlib's and RocketMQ's), continuing from `value`."""
    if not 0 <= start <= end <= len(memory):
        raise ValueError("the range lies outside the memory")
    return zlib.crc32(memoryview(memory)[start:end], value)


def java_hash(text: str) -> int:
    """Java's String.hashCode: over UTF-16 units, in 32 bits with sign."""
    value = 0
    units = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        value = (31 * value + (units[at] << 8 | units[at + 1])) & 0xFFFF_FFFF
    return value - (1 << 32) if value & 0x8000_0000 else value


# --- writing --------------------------------------------------------------------------------


def next_run(batch: Batch, first: int) -> int:
    """The end of the run that starts at row `first`: rows with its topic bytes and flags."""
    count = batch.count
    if not 0 <= first < count:
        raise IndexError("no such row")
    rows = batch.rows
    topic = batch.topic(first)
    flags = rows[first * COLUMNS + FLAGS]
    row = first + 1
    while row < count and rows[row * COLUMNS + FLAGS] == flags and batch.topic(row) == topic:
        row += 1
    return row


def _extra_size(kind: int, name: bytes, size: int) -> int:
    """Bytes of the extra property that `size` raw bytes become."""
    if kind == EXTRA_NONE:
        return 0
    if kind == EXTRA_VERBATIM:
        return size
    return len(name) + 1 + (size + 2) // 3 * 4 + 1


def run_size(
    batch: Batch, first: int, last: int, form: Form, target_count: int, suffix_size: int
) -> tuple[int, int, int, int]:
    """What rows [first, last) need: all bytes, largest record, largest body, largest properties.

    Raises:
        IndexError: rows outside the batch. ValueError: a part lies outside the batch's buffer, or
            the extra kind is unknown.
    """
    _head, topic, properties, kind, name, _tag = form
    if not 0 <= first <= last <= batch.count:
        raise IndexError("no such rows")
    if kind not in (EXTRA_NONE, EXTRA_BASE64, EXTRA_VERBATIM):
        raise ValueError("unknown kind of extra property")
    constant = len(properties) + suffix_size + PROPERTY_CRC_SIZE
    if target_count:
        constant += len(_DISPATCH_START) + DISPATCH_TARGET_SIZE * target_count + 1
    frame = RECORD_BODY_AT + len(topic) + 2
    rows = batch.rows
    available = len(batch.buffer)
    total = record_max = body_max = properties_max = 0
    for at in range(first * COLUMNS, last * COLUMNS, COLUMNS):
        body_size = rows[at + BODY_SIZE]
        extra_size = rows[at + EXTRA_SIZE]
        if not (
            0 <= rows[at + BODY_START] <= available
            and 0 <= body_size <= available - rows[at + BODY_START]
            and 0 <= rows[at + EXTRA_START] <= available
            and 0 <= extra_size <= available - rows[at + EXTRA_START]
        ):
            raise ValueError("a row's part lies outside the buffer")
        properties_size = constant + _extra_size(kind, name, extra_size)
        size = frame + body_size + properties_size
        total += size
        record_max = max(record_max, size)
        body_max = max(body_max, body_size)
        properties_max = max(properties_max, properties_size)
    return total, record_max, body_max, properties_max


def append_run(
    memory: bytearray,
    start: int,
    limit: int,
    position: int,
    form: Form,
    hosts: bytes,
    suffix: bytes,
    targets: Sequence[tuple[int, int]],
    base: int,
    batch: Batch,
    first: int,
    last: int,
    born_ms: int,
    store_ms: int,
) -> tuple[int, int, bytes]:
    """Write records for rows [first, last) into memory[start:limit], as many as fit whole.

    The rows were measured by `run_size`, which also checked them.

    Args:
        position: the log position of memory[start].
        hosts: the 8 bytes that stand as born host and as store host.
        suffix: encoded properties between `PMQ_Q` and the checksum.
        targets: (queue number, offset that row `first - base` takes there).
        base: how many rows of the run were written before row `first`.

    Returns:
        How many rows were written, the index behind the last record, their 20-byte entries.
    """
    head, topic, properties, kind, name, tag = form
    if not 0 <= start <= limit <= len(memory):
        raise ValueError("the range lies outside the memory")
    _check_targets_fit(targets, base, last - first)
    fields = bytearray(head)
    fields[RECORD_BORN_HOST_AT : RECORD_BORN_HOST_AT + 8] = hosts
    fields[RECORD_STORE_HOST_AT : RECORD_STORE_HOST_AT + 8] = hosts
    _LONG.pack_into(fields, RECORD_BORN_MS_AT, born_ms)
    _LONG.pack_into(fields, RECORD_STORE_MS_AT, store_ms)
    source = memoryview(batch.buffer)
    rows = batch.rows
    own_offset = targets[0][1] + base if targets else 0
    entries = bytearray()
    at = start
    for row in range(first, last):
        column = row * COLUMNS
        body_start = rows[column + BODY_START]
        extra_start = rows[column + EXTRA_START]
        body = source[body_start : body_start + rows[column + BODY_SIZE]]
        extra = source[extra_start : extra_start + rows[column + EXTRA_SIZE]]
        index = row - first
        written = b"".join(
            (properties, _extra(kind, name, extra), _dispatch(targets, base + index), suffix)
        )
        properties_size = len(written) + PROPERTY_CRC_SIZE
        size = RECORD_BODY_AT + len(body) + len(topic) + 2 + properties_size
        if at + size > limit:
            break
        _INT.pack_into(fields, 0, size)
        _INT.pack_into(fields, RECORD_BODY_CRC_AT, zlib.crc32(body) & 0x7FFF_FFFF)
        _LONG.pack_into(fields, RECORD_QUEUE_OFFSET_AT, own_offset + index if targets else 0)
        _LONG.pack_into(fields, RECORD_POSITION_AT, position + at - start)
        _INT.pack_into(fields, RECORD_BODY_SIZE_AT, len(body))
        record = b"".join((fields, body, topic, properties_size.to_bytes(2, "big"), written))
        memory[at : at + size] = record + _crc_property(zlib.crc32(record))
        entries += _ENTRY.pack(position + at - start, size, tag)
        at += size
    return len(entries) // ENTRY_SIZE, at, bytes(entries)


def _check_targets_fit(targets: Sequence[tuple[int, int]], base: int, count: int) -> None:
    if len(targets) > DISPATCH_TARGETS_MAX:
        raise ValueError("too many targets for one record")
    for number, offset in targets:
        if not (0 <= number <= NUMBER_MAX and 0 <= offset <= OFFSET_MAX - base - count):
            raise ValueError("a target does not fit the dispatch property")


def _extra(kind: int, name: bytes, raw: memoryview) -> bytes:
    if kind == EXTRA_BASE64:
        return b"%b\x01%b\x02" % (name, b2a_base64(raw, newline=False))
    return bytes(raw) if kind == EXTRA_VERBATIM else b""


def _dispatch(targets: Sequence[tuple[int, int]], index: int) -> bytes:
    if not targets:
        return b""
    digits = "".join(f"{number:08x}{offset + index:012x}" for number, offset in targets)
    return b"%b%b\x02" % (_DISPATCH_START, digits.encode())


def _crc_property(value: int) -> bytes:
    return _CRC_START + (b"%010d" % (value & 0x7FFF_FFFF))[::-1] + b"\x02"


def widen(entries: Memory, expire_ms: int = 0, priority: int = 0, flags: int = 0) -> bytes:
    """20-byte entries as 32-byte entries, all with the same expiry, priority and flags.

    Raises:
        ValueError: not whole entries, or a number that does not fit its field.
    """
    if len(entries) % ENTRY_SIZE:
        raise ValueError("not whole entries")
    if not (0 <= expire_ms <= OFFSET_MAX and 0 <= priority <= 255 and 0 <= flags <= 255):
        raise ValueError("expiry, priority or flags do not fit an entry")
    tail = _EXPIRY.pack(expire_ms >> 16, expire_ms & 0xFFFF, priority, flags, 0)
    return b"".join(
        bytes(entries[at : at + ENTRY_SIZE]) + tail for at in range(0, len(entries), ENTRY_SIZE)
    )


# --- checking -------------------------------------------------------------------------------


def check_record(memory: Memory, start: int, end: int, position: int = -1) -> int:
    """Why the bytes at memory[start:end] do not begin with a sound record: a STOP code.

    Args:
        position: the log position where the record should stand; -1 if that is not known.
    """
    if not 0 <= start <= end <= len(memory):
        raise ValueError("the range lies outside the memory")
    available = end - start
    if available < _SIZE_AND_MAGIC.size:
        return STOP_SHORT
    size, magic = _SIZE_AND_MAGIC.unpack_from(memory, start)
    if magic != MAGIC_V1:
        if magic == MAGIC_BLANK:
            return STOP_BLANK
        return STOP_ZERO if size == magic == 0 else STOP_MAGIC
    if size < RECORD_SIZE_MIN:
        return STOP_SIZE
    if available < RECORD_BODY_AT:
        return STOP_SHORT
    if position >= 0 and _LONG.unpack_from(memory, start + RECORD_POSITION_AT)[0] != position:
        return STOP_POSITION
    body_size = _INT.unpack_from(memory, start + RECORD_BODY_SIZE_AT)[0]
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
    expected = _crc_property(zlib.crc32(memoryview(memory)[start:covered]))
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
        size = _INT.unpack_from(memory, at)[0]
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
    digits = value[len(_BATCH_START) : -1]
    if not value.startswith(_BATCH_START) or value[-1] != 2 or not _HEX.issuperset(digits):
        return None
    return int(digits[:16], 16), int(digits[16:20], 16), int(digits[20:], 16)


def _properties_start(memory: Memory, at: int) -> int:
    """Where the properties of a sound record start."""
    topic_at = at + RECORD_BODY_AT + int(_INT.unpack_from(memory, at + RECORD_BODY_SIZE_AT)[0])
    return topic_at + 3 + memory[topic_at]


# --- rebuilding -----------------------------------------------------------------------------


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
        name_at = digits_at - len(_DISPATCH_START)
        if name_at < start:
            return b""
        if memory[digits_at - 1] == 1:
            digits = bytes(memory[digits_at : end - 1])
            named = bytes(memory[name_at:digits_at]) == _DISPATCH_START
            return digits if named and _HEX.issuperset(digits) else b""
    return b""


def _entry_of(memory: Memory, at: int, size: int) -> tuple[bytes, bool]:
    """The entry of a sound record, and whether it is a continuation (of another record)."""
    start = _properties_start(memory, at)
    properties = bytes(memory[start : at + size])
    of_end = len(_OF_START) + 40
    if properties.startswith(_OF_START) and properties[of_end : of_end + 1] == b"\x02":
        digits = properties[len(_OF_START) : of_end]
        if _HEX.issuperset(digits):
            return bytes.fromhex(digits.decode()), True
    position = _LONG.unpack_from(memory, at + RECORD_POSITION_AT)[0]
    return _ENTRY.pack(position, size, _tag_hash(properties)), False


def _tag_hash(properties: bytes) -> int:
    """The tag hash that belongs to encoded properties: of the first TAGS, else 0."""
    at = 0
    while not properties.startswith(_TAGS_START, at):
        at = properties.find(b"\x02", at) + 1
        if at == 0:
            return 0
    value_at = at + len(_TAGS_START)
    end = properties.find(b"\x02", value_at)
    value = properties[value_at : end if end >= 0 else len(properties)]
    return java_hash(value.decode("utf-8", "surrogateescape"))


def dispatch(memory: Memory, start: int, end: int, tables: dict[int, list[object]]) -> int:
    """Add the index entries of the sound records in memory[start:end] to `tables`.

    Args:
        tables: queue number -> [entry size, first offset, next offset, bytearray of entries];
            grows by the queues that it does not hold yet.

    Returns:
        -1, or the start of the first record that a queue can not take: its offset there is not
        the next one, or the entry size differs. Earlier records are in the tables.
    """
    at = start
    while at < end:
        size = int(_INT.unpack_from(memory, at)[0])
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
                entries += entry if own else entry + bytes(PRIVATE_ENTRY_SIZE - ENTRY_SIZE)
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
        properties = _properties_start(memory, at)
        if (
            memory[properties - 2 - len(topic) - 1] == len(topic)
            and bytes(memory[properties - 2 - len(topic) : properties - 2]) == topic
            and bytes(memory[properties : properties + len(first_property)]) == first_property
        ):
            found.append(at)
        at += int(_INT.unpack_from(memory, at)[0])
    return found


# --- reading --------------------------------------------------------------------------------


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
    parts = []
    view = memoryview(memory)
    index = first
    reason = STOP_END
    for at in range(first * stride, len(entries) - stride + 1, stride):
        entry_position, size, _tag = _ENTRY.unpack_from(entries, at)
        start = entry_position - position
        if start < 0 or size < RECORD_SIZE_MIN or start + size > used:
            break
        if verify:
            reason = check_record(memory, start, start + size, entry_position)
            if reason == STOP_END and _INT.unpack_from(memory, start)[0] != size:
                reason = STOP_SIZE
            if reason != STOP_END:
                break
        parts.append(view[start : start + size])
        index += 1
    return b"".join(parts), index - first, reason


def plan_read(
    entries: Memory, stride: int, first: int, gap_max: int, size_max: int, limit: int
) -> tuple[int, int, int]:
    """One read of the disk that covers as many of entries[first:] as is worth it.

    Args:
        gap_max: bytes between two records that are rather read than skipped.
        size_max: bytes of one read, unless the first record alone is larger.
        limit: a position that no read passes (the segment's end).

    Returns:
        Position and size of the read, and how many entries it covers (at least one).
    """
    start, size, _tag = _ENTRY.unpack_from(entries, first * stride)
    end = start + size
    count = 1
    for at in range((first + 1) * stride, len(entries) - stride + 1, stride):
        position, size, _tag = _ENTRY.unpack_from(entries, at)
        if size < 0 or not end <= position <= end + gap_max:
            break
        if position + size > limit or position + size - start > size_max:
            break
        end = position + size
        count += 1
    return start, end - start, count


def fit(entries: Memory, stride: int, count_max: int, bytes_max: int) -> int:
    """How many of the entries' records fit into `bytes_max`: at least one if there is any."""
    total = 0
    count = 0
    for at in range(0, len(entries) - stride + 1, stride):
        total += _INT.unpack_from(entries, at + 8)[0]
        if count == count_max or (count and total > bytes_max):
            break
        count += 1
    return count


def check_targets(records: Memory, number: int, offset: int) -> int:
    """The index of the first of these sound records that does not name its place in the queue:
    record k should name (number, offset + k). -1 if all do.

    A record with a full list of targets passes: its list goes on in other records.
    """
    at = 0
    index = 0
    while at < len(records):
        size = int(_INT.unpack_from(records, at)[0])
        digits = _targets(records, at, size)
        wanted = b"%08x%012x" % (number, offset + index)
        if len(digits) < DISPATCH_TARGET_SIZE * DISPATCH_TARGETS_MAX and not any(
            digits.startswith(wanted, place)
            for place in range(0, len(digits), DISPATCH_TARGET_SIZE)
        ):
            return index
        at += size
        index += 1
    return -1
