"""The store's inner loops in plain Python: the fallback without a compiler, and the oracle.

The twin is `writing.pyx`: the same functions, and for every input the same result, the same bytes
in memory and the same error. What a kernel is given was checked by its caller, with two exceptions,
because here a wrong number would read foreign memory: the parts of a batch's rows must lie in the
batch's buffer, and bytes from the disk may be anything.

Here: sums, writing runs of rows, and what is told from index entries alone. What walks over
records in memory is in `walking.py`.
"""

from __future__ import annotations

import operator
import struct
import zlib
from array import array
from binascii import b2a_base64
from collections.abc import Sequence
from typing import Final

from polymq.core_log.kernels.batch import (
    BODY_START,
    COLUMNS,
    DISPATCH_TARGET_SIZE,
    DISPATCH_TARGETS_MAX,
    EXTRA_BASE64,
    EXTRA_NONE,
    EXTRA_START,
    EXTRA_VERBATIM,
    FLAGS,
    PROPERTIES_SIZE_MAX,
    PROPERTY_CRC,
    PROPERTY_CRC_SIZE,
    PROPERTY_DISPATCH,
    RECORD_BODY_AT,
    RECORD_BORN_HOST_AT,
    RECORD_BORN_MS_AT,
    RECORD_STORE_HOST_AT,
    RECORD_STORE_MS_AT,
    TOPIC_START,
    Batch,
)
from polymq.core_log.kernels.layout import (
    ENTRY_SIZE,
    HOST_SIZE,
    NUMBER_MAX,
    OFFSET_MAX,
    PRIVATE_ENTRY_SIZE,
    STORE_MS_MASK,
    TTL_CODE_MAX,
)

Memory = bytes | bytearray | memoryview
Form = tuple[bytes, bytes, bytes, int, bytes, int]
"""`RecordTemplate.form`: head, size and topic, properties, extra kind, extra name, tag hash."""

INT: Final = struct.Struct(">I")
LONG: Final = struct.Struct(">q")
ENTRY: Final = struct.Struct(">qiq")
FIELDS: Final = struct.Struct(">I4sI8sqq48sI")
"""Size, magic, body CRC, queue id and flag, queue offset, position, what does not change within a
run, body size."""
CRC_MASK: Final = 0x7FFF_FFFF
TTL: Final = struct.Struct(">HIBI")  # the second part of a private entry, without its check
CHECKS: Final = [bytes((value,)) for value in range(256)]
"""The last byte of a private entry by the value of its check."""
DISPATCH_START: Final = PROPERTY_DISPATCH + b"\x01"
CRC_START: Final = PROPERTY_CRC + b"\x01"


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
    source = memoryview(batch.buffer)
    topic = _part(source, rows, first * COLUMNS + TOPIC_START)
    flags = rows[first * COLUMNS + FLAGS]
    row = first + 1
    while (
        row < count
        and rows[row * COLUMNS + FLAGS] == flags
        and _part(source, rows, row * COLUMNS + TOPIC_START) == topic
    ):
        row += 1
    return row


def _part(source: memoryview, rows: array[int], at: int) -> memoryview:
    """The bytes that start and size at rows[at] and rows[at + 1] name."""
    start = rows[at]
    size = rows[at + 1]
    if not (0 <= start <= len(source) and 0 <= size <= len(source) - start):
        raise ValueError("a row's part lies outside the buffer")
    return source[start : start + size]


def _check_kind(kind: int) -> None:
    if kind not in (EXTRA_NONE, EXTRA_BASE64, EXTRA_VERBATIM):
        raise ValueError("unknown kind of extra property")


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
    _head, topic, constants, kind, name, _tag = form
    if not 0 <= first <= last <= batch.count:
        raise IndexError("no such rows")
    _check_kind(kind)
    constant = len(constants) + suffix_size + PROPERTY_CRC_SIZE
    if target_count:
        constant += len(DISPATCH_START) + DISPATCH_TARGET_SIZE * target_count + 1
    frame = RECORD_BODY_AT + len(topic) + 2
    if first == last:
        return 0, 0, 0, 0
    rows = batch.rows[first * COLUMNS : last * COLUMNS]
    bodies, extras = rows[BODY_START + 1 :: COLUMNS], rows[EXTRA_START + 1 :: COLUMNS]
    for starts, sizes in (
        (rows[BODY_START::COLUMNS], bodies),
        (rows[EXTRA_START::COLUMNS], extras),
    ):
        end = max(map(operator.add, starts, sizes))
        if min(starts) < 0 or min(sizes) < 0 or end > len(batch.buffer):
            raise ValueError("a row's part lies outside the buffer")
    if kind == EXTRA_NONE:
        properties = [constant] * len(bodies)
    else:
        properties = [constant + _extra_size(kind, name, size) for size in extras]
    records = list(map(operator.add, bodies, properties))
    return (
        sum(records) + frame * len(records),
        max(records) + frame,
        max(bodies),
        max(properties),
    )


class Appender:
    """`append_run` for a run that is written in one call: results stand in attributes, so that a
    caller who knows of what type this is makes no Python objects of numbers.

    Attributes:
        end: the index behind the last record that was written.
        entries: the 20-byte entries of those records.
    """

    __slots__ = ("end", "entries")

    def __init__(self) -> None:
        self.end = 0
        self.entries = b""

    def append(
        self,
        memory: bytearray,
        start: int,
        limit: int,
        position: int,
        form: Form,
        hosts: bytes,
        targets: Sequence[tuple[int, int]] | None,
        number: int,
        offset: int,
        batch: Batch,
        first: int,
        last: int,
        born_ms: int,
        store_ms: int,
    ) -> int:
        """`append_run` with neither suffix nor base. Returns how many rows were written.

        Args:
            targets: None for the queue `number` alone, where row `first` takes `offset`.
        """
        if targets is None:
            targets = ((number, offset),)
        count, self.end, self.entries = append_run(
            memory,
            start,
            limit,
            position,
            form,
            hosts,
            b"",
            targets,
            0,
            batch,
            first,
            last,
            born_ms,
            store_ms,
        )
        return count


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

    Raises:
        IndexError: rows outside the batch. ValueError: a range, a target or a row's part is
            impossible, or the properties exceed their two bytes; rows before that are written.

    Returns:
        How many rows were written, the index behind the last record, their 20-byte entries.
    """
    head, topic, properties, kind, name, tag = form
    if not 0 <= first <= last <= batch.count:
        raise IndexError("no such rows")
    if not 0 <= start <= limit <= len(memory):
        raise ValueError("the range lies outside the memory")
    if len(head) != RECORD_BODY_AT or len(hosts) != HOST_SIZE:
        raise ValueError("the head or the hosts have another size")
    _check_kind(kind)
    _check_targets_fit(targets, base, last - first)
    magic, queue, middle = _constant_fields(head, hosts, born_ms, store_ms)
    pack_fields, pack_entry, crc = FIELDS.pack, ENTRY.pack, zlib.crc32
    dispatch = _dispatch_pattern(targets)
    offsets = [offset + base for _, offset in targets]
    own_offset = offsets[0] if targets else 0
    source = memoryview(batch.buffer)
    available = len(source)
    only = len(targets) == 1
    named = b""
    # All but the sizes of body and extra property is the same for each row.
    constant = len(properties) + len(suffix) + PROPERTY_CRC_SIZE
    if targets:
        constant += len(DISPATCH_START) + DISPATCH_TARGET_SIZE * len(targets) + 1
    frame = RECORD_BODY_AT + len(topic) + 2
    extra = b""
    last_raw: bytes | None = None
    extra_size = last_size = -1
    parts: list[bytes | bytearray | memoryview] = []
    entries: list[bytes] = []
    at = start
    column = iter(batch.rows[first * COLUMNS : last * COLUMNS])
    try:
        for _, _, body_start, body_size, extra_start, size, _, _ in zip(
            *[column] * COLUMNS, strict=True
        ):
            if not 0 <= body_start <= available - body_size or body_size < 0:
                raise ValueError("a row's part lies outside the buffer")
            if not 0 <= extra_start <= available - size or size < 0:
                raise ValueError("a row's part lies outside the buffer")
            if kind != EXTRA_NONE:
                raw = bytes(source[extra_start : extra_start + size])
                if raw != last_raw:  # mostly a publisher sends the same with each message
                    last_raw = raw
                    extra = _extra(kind, name, raw)
            if len(extra) != last_size:
                last_size = len(extra)
                extra_size = constant + last_size
                if extra_size > PROPERTIES_SIZE_MAX:
                    raise ValueError("the properties do not fit")
                behind = topic + extra_size.to_bytes(2, "big") + properties
            size = frame + body_size + extra_size
            if at + size > limit:
                break
            if only:
                named = dispatch % own_offset
            elif targets:
                named = dispatch % tuple(offsets)
                offsets = [offset + 1 for offset in offsets]
            body = source[body_start : body_start + body_size]
            own_position = position + at - start
            fields = pack_fields(
                size,
                magic,
                crc(body) & CRC_MASK,
                queue,
                own_offset,
                own_position,
                middle,
                body_size,
            )
            record = b"".join((fields, body, behind, extra, named, suffix))
            parts += (record, crc_property(crc(record)))
            entries.append(pack_entry(own_position, size, tag))
            at += size
            if targets:
                own_offset += 1
    finally:  # what comes before a row that is wrong is written
        memory[start:at] = b"".join(parts)
    return len(entries), at, b"".join(entries)


def _constant_fields(
    head: bytes, hosts: bytes, born_ms: int, store_ms: int
) -> tuple[bytes, bytes, bytes]:
    """What all records of a run have in common: magic; queue id and flag; all from the system flag
    to the prepared transaction."""
    fields = bytearray(head)
    fields[RECORD_BORN_HOST_AT : RECORD_BORN_HOST_AT + HOST_SIZE] = hosts
    fields[RECORD_STORE_HOST_AT : RECORD_STORE_HOST_AT + HOST_SIZE] = hosts
    LONG.pack_into(fields, RECORD_BORN_MS_AT, born_ms)
    LONG.pack_into(fields, RECORD_STORE_MS_AT, store_ms)
    _, magic, _, queue, _, _, middle, _ = FIELDS.unpack(fields)
    return magic, queue, middle


def _check_targets_fit(targets: Sequence[tuple[int, int]], base: int, count: int) -> None:
    if len(targets) > DISPATCH_TARGETS_MAX:
        raise ValueError("too many targets for one record")
    for number, offset in targets:
        if not (0 <= number <= NUMBER_MAX and 0 <= offset <= OFFSET_MAX - base - count):
            raise ValueError("a target does not fit the dispatch property")


def _extra(kind: int, name: bytes, raw: bytes) -> bytes:
    if kind == EXTRA_BASE64:
        return b"%b\x01%b\x02" % (name, b2a_base64(raw, newline=False))
    return raw if kind == EXTRA_VERBATIM else b""


def _dispatch_pattern(targets: Sequence[tuple[int, int]]) -> bytes:
    """`PMQ_Q` of these targets, with places for their offsets."""
    numbers = b"".join(b"%08x%%012x" % number for number, _ in targets)
    return b"%b%b\x02" % (DISPATCH_START, numbers)


def crc_property(value: int) -> bytes:
    """The checksum property that says this CRC-32."""
    return CRC_START + (b"%010d" % (value & 0x7FFF_FFFF))[::-1] + b"\x02"


def widen(entries: Memory, store_ms: int = 0, priority: int = 0, ttl_code: int = 0) -> bytes:
    """20-byte entries as 32-byte entries, all with the same time, priority and time to live.

    Args:
        store_ms: with `ENTRY_AT_MOST_ONCE`, if the records have that flag.

    Raises:
        ValueError: not whole entries, or a number that does not fit its field.
    """
    if len(entries) % ENTRY_SIZE:
        raise ValueError("not whole entries")
    if not (0 <= store_ms <= OFFSET_MAX and 0 <= priority <= 255 and 0 <= ttl_code <= TTL_CODE_MAX):
        raise ValueError("time, priority or time to live do not fit an entry")
    ttl = TTL.pack(store_ms >> 32, store_ms & 0xFFFF_FFFF, priority, ttl_code)
    crc, checks = zlib.crc32, CHECKS
    parts: list[bytes] = []
    for (entry,) in struct.iter_unpack(f"{ENTRY_SIZE}s", entries):
        value = crc(ttl, crc(entry))
        value ^= value >> 16
        parts += (entry, ttl, checks[(value ^ value >> 8) & 0xFF])
    return b"".join(parts)


def with_check(entry: bytes) -> bytes:
    """A private entry from its first 31 bytes."""
    value = zlib.crc32(entry)
    value ^= value >> 16
    return entry + bytes(((value ^ value >> 8) & 0xFF,))


def find_damaged(entries: Memory) -> int:
    """The index of the first private entry whose check is wrong, or -1.

    Raises:
        ValueError: not whole private entries.
    """
    if len(entries) % PRIVATE_ENTRY_SIZE:
        raise ValueError("not whole entries")
    for at in range(0, len(entries), PRIVATE_ENTRY_SIZE):
        entry = bytes(entries[at : at + PRIVATE_ENTRY_SIZE])
        if with_check(entry[:-1]) != entry:
            return at // PRIVATE_ENTRY_SIZE
    return -1


# --- index entries --------------------------------------------------------------------------


def check_entries(stride: int, first: int) -> None:
    """Raise ValueError unless these can be an entry size and an index."""
    if stride < ENTRY_SIZE or first < 0:
        raise ValueError("no such entries")


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
    check_entries(stride, first)
    if (first + 1) * stride > len(entries):
        raise IndexError("no such entry")
    start, size, _tag = ENTRY.unpack_from(entries, first * stride)
    if not (0 <= start <= OFFSET_MAX and size >= 0):
        raise ValueError("the entry names no place")
    end = start + size
    count = 1
    for at in range((first + 1) * stride, len(entries) - stride + 1, stride):
        position, size, _tag = ENTRY.unpack_from(entries, at)
        if size < 0 or not end <= position <= end + gap_max:
            break
        if position + size > limit or position + size - start > size_max:
            break
        end = position + size
        count += 1
    return start, end - start, count


def fit(entries: Memory, stride: int, count_max: int, bytes_max: int) -> int:
    """How many of the entries' records fit into `bytes_max`: at least one if there is any."""
    check_entries(stride, 0)
    total = 0
    count = 0
    for at in range(0, len(entries) - stride + 1, stride):
        total += INT.unpack_from(entries, at + 8)[0]
        if count == count_max or (count and total > bytes_max):
            break
        count += 1
    return count


def expired(entries: Memory, now_ms: int, ttl_code: int) -> tuple[int, int, int]:
    """What of a queue's private entries has expired, from the first on.

    Args:
        ttl_code: the queue's time to live, as in an entry; the lower of both counts.

    Returns:
        How many at the start have expired; how many behind them have not, up to the next that has;
        when the first of those expires (-1: never, or there is none).

    Raises:
        ValueError: not whole private entries, or a number that does not fit.
    """
    if len(entries) % PRIVATE_ENTRY_SIZE:
        raise ValueError("not whole entries")
    if not (0 <= now_ms <= OFFSET_MAX and 0 <= ttl_code <= TTL_CODE_MAX):
        raise ValueError("time or time to live do not fit an entry")
    gone = live = 0
    due_ms = -1
    for at in range(ENTRY_SIZE, len(entries), PRIVATE_ENTRY_SIZE):
        high, low, _priority, code = TTL.unpack_from(entries, at)
        if ttl_code and (code == 0 or ttl_code < code):
            code = ttl_code
        ends_ms = ((high << 32 | low) & STORE_MS_MASK) + code - 1 if code else -1
        if code and ends_ms <= now_ms:
            if live:
                break
            gone += 1
            continue
        if not live:
            due_ms = ends_ms
        live += 1
    return gone, live, due_ms
