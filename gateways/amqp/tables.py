"""Field tables (AMQP 4.2.5.5) with the type letters that RabbitMQ reads and writes.

Rules:

* Decoding walks with a stack of its own, never by recursion, and is bounded in depth, in count and
  by the bytes that are there: a table from the network cannot exhaust the interpreter's stack,
  loop without progress, or read past its end.
* What an application publishes is never decoded and encoded again: raw bytes are kept, because
  values lose their integer widths here. Decoded tables are for declarations, client properties and
  for readers of other protocols.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any, Final

from polymq.gateways.amqp.errors import Malformed
from polymq.gateways.amqp.limits import TABLE_COUNT_MAX, TABLE_DEPTH_MAX

Buffer = bytes | bytearray | memoryview

I32_MIN: Final = -(2**31)
I32_MAX: Final = 2**31 - 1
I64_MIN: Final = -(2**63)
I64_MAX: Final = 2**63 - 1
U32_MAX: Final = 2**32 - 1
U64_MAX: Final = 2**64 - 1

_U32: Final = struct.Struct(">I")


class Timestamp(int):
    """Seconds since 1970, any u64 (AMQP 4.2.5.4). Not a datetime: brokers carry years past 9999."""

    __slots__ = ()


class Long(int):
    """A number that is written as 64 bits whatever its size: clients in Java read a `Long`."""

    __slots__ = ()


def _decimal(raw: tuple[Any, ...]) -> Decimal:
    scale, unscaled = raw
    return Decimal(unscaled).scaleb(-scale)


# Values of fixed size: letter -> (layout, how the unpacked tuple becomes a value).
_FIXED: Final[dict[int, tuple[struct.Struct, Callable[[tuple[Any, ...]], Any]]]] = {
    ord("t"): (struct.Struct(">B"), lambda raw: raw[0] != 0),
    ord("b"): (struct.Struct(">b"), lambda raw: raw[0]),
    ord("B"): (struct.Struct(">B"), lambda raw: raw[0]),
    ord("s"): (struct.Struct(">h"), lambda raw: raw[0]),
    ord("u"): (struct.Struct(">H"), lambda raw: raw[0]),
    ord("I"): (struct.Struct(">i"), lambda raw: raw[0]),
    ord("i"): (struct.Struct(">I"), lambda raw: raw[0]),
    ord("l"): (struct.Struct(">q"), lambda raw: raw[0]),
    ord("L"): (struct.Struct(">q"), lambda raw: raw[0]),
    ord("f"): (struct.Struct(">f"), lambda raw: raw[0]),
    ord("d"): (struct.Struct(">d"), lambda raw: raw[0]),
    ord("D"): (struct.Struct(">BI"), _decimal),
    ord("T"): (struct.Struct(">Q"), lambda raw: Timestamp(raw[0])),
    ord("V"): (struct.Struct(">"), lambda raw: None),
}
_LONG_STRING: Final = ord("S")
_BYTES: Final = ord("x")
_TABLE: Final = ord("F")
_ARRAY: Final = ord("A")

_FIXED_SIZES: Final = {kind: layout.size for kind, (layout, _) in _FIXED.items()}

Container = dict[str, Any] | list[Any]


def text_or_bytes(raw: bytes) -> str | bytes:
    """Text if it is UTF-8; a long string holds any octets (AMQP 4.2.5.3)."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def decode_sized_table(buffer: Buffer, at: int, end: int) -> tuple[dict[str, Any], int]:
    """The table whose length stands at `at`; also returns where it ends.

    Raises:
        Malformed: it does not fit into [at, end), or is not a table.
    """
    if at + 4 > end:
        raise Malformed("a table ends before its length")
    start = at + 4
    stop = start + int(_U32.unpack_from(buffer, at)[0])
    if stop > end:
        raise Malformed("a table is longer than its frame")
    return decode_table(buffer, start, stop), stop


def decode_table(buffer: Buffer, start: int, end: int) -> dict[str, Any]:
    """The table whose pairs fill [start, end). Of equal names the last one counts.

    Raises:
        Malformed: anything else than well-formed pairs, or a limit of `limits.py` is passed.
    """
    table: dict[str, Any] = {}
    stack: list[tuple[Container, int]] = [(table, end)]
    at = start
    count = 0
    while stack:
        container, stop = stack[-1]
        if at == stop:
            stack.pop()
            continue
        count += 1
        if count > TABLE_COUNT_MAX:
            raise Malformed(f"a table has more than {TABLE_COUNT_MAX} values")
        name = ""
        if isinstance(container, dict):
            name, at = _name(buffer, at, stop)
        if at >= stop:
            raise Malformed("a table ends before a value")
        value, at, inner_stop = _value(buffer, at, stop)
        if isinstance(container, dict):
            container[name] = value
        else:
            container.append(value)
        if inner_stop >= 0:
            if len(stack) >= TABLE_DEPTH_MAX:
                raise Malformed(f"tables are nested deeper than {TABLE_DEPTH_MAX}")
            stack.append((value, inner_stop))
    return table


def split_pairs(raw: bytes) -> Iterator[tuple[bytes, bytes]]:
    """(name, encoded pair) of each pair of a table that was checked when it came, its length cut
    off. Values are not looked at: a third of a microsecond a pair, because a table may have 65,000.
    """
    at = 0
    while at < len(raw):
        start = at
        name_end = at + 1 + raw[at]
        at = name_end + 1
        size = _FIXED_SIZES.get(raw[name_end])
        if size is None:
            size = 4 + _U32.unpack_from(raw, at)[0]
        at += size
        yield raw[start + 1 : name_end], raw[start:at]


def _name(buffer: Buffer, at: int, stop: int) -> tuple[str, int]:
    end = at + 1 + buffer[at]
    if end > stop:
        raise Malformed("a name in a table is longer than the table")
    return bytes(buffer[at + 1 : end]).decode("utf-8", "surrogateescape"), end


def _value(buffer: Buffer, at: int, stop: int) -> tuple[Any, int, int]:
    """(value, where to go on, where the container ends that was just opened, or -1)."""
    kind = buffer[at]
    at += 1
    fixed = _FIXED.get(kind)
    if fixed is not None:
        layout, convert = fixed
        if at + layout.size > stop:
            raise Malformed("a table ends within a value")
        return convert(layout.unpack_from(buffer, at)), at + layout.size, -1
    if kind not in (_LONG_STRING, _BYTES, _TABLE, _ARRAY):
        raise Malformed(f"unknown type {kind:#04x} in a table")
    if at + 4 > stop:
        raise Malformed("a table ends within a value")
    start = at + 4
    end = start + int(_U32.unpack_from(buffer, at)[0])
    if end > stop:
        raise Malformed("a value in a table is longer than the table")
    if kind == _LONG_STRING:
        return text_or_bytes(bytes(buffer[start:end])), end, -1
    if kind == _BYTES:
        return bytes(buffer[start:end]), end, -1
    return ({} if kind == _TABLE else []), start, end


def encode_sized_table(table: Mapping[str, Any]) -> bytes:
    """The table with its length in front.

    Raises:
        ValueError: a value has no type in AMQP, or nesting is deeper than the limit.
    """
    body = _encode_pairs(table, 1)
    return _U32.pack(len(body)) + body


def encode_pairs(table: Mapping[str, Any]) -> bytes:
    """The pairs of a table without its length. Raises ValueError as `encode_sized_table`."""
    return _encode_pairs(table, 1)


def _encode_pairs(table: Mapping[str, Any], depth: int) -> bytes:
    parts: list[bytes] = []
    for name, value in table.items():
        raw = name.encode("utf-8", "surrogateescape")
        if len(raw) > 255:
            raise ValueError(f"a name in a table has {len(raw)} bytes; 255 fit")
        parts.append(bytes((len(raw),)) + raw + _encode_value(value, depth))
    return b"".join(parts)


def _encode_value(value: Any, depth: int) -> bytes:
    if depth > TABLE_DEPTH_MAX:
        raise ValueError(f"tables are nested deeper than {TABLE_DEPTH_MAX}")
    match value:
        case None:
            return b"V"
        case bool():
            return b"t\x01" if value else b"t\x00"
        case Timestamp():
            return b"T" + int(value).to_bytes(8, "big")
        case Long():
            return struct.pack(">cq", b"l", value)
        case int():
            return _encode_integer(value)
        case float():
            return struct.pack(">cd", b"d", value)
        case Decimal():
            return _encode_decimal(value)
        case str():
            return _sized(b"S", value.encode("utf-8", "surrogateescape"))
        case bytes() | bytearray():
            return _sized(b"x", bytes(value))
        case Mapping():
            return _sized(b"F", _encode_pairs(value, depth + 1))
        case list() | tuple():
            return _sized(b"A", b"".join(_encode_value(item, depth + 1) for item in value))
    raise ValueError(f"{type(value).__name__} has no type in AMQP")


def _sized(kind: bytes, body: bytes) -> bytes:
    return kind + _U32.pack(len(body)) + body


def _encode_integer(value: int) -> bytes:
    if I32_MIN <= value <= I32_MAX:
        return struct.pack(">ci", b"I", value)
    if I64_MIN <= value <= I64_MAX:
        return struct.pack(">cq", b"l", value)
    raise ValueError(f"{value} does not fit a 64-bit integer")


def _encode_decimal(value: Decimal) -> bytes:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int) or sign:
        raise ValueError(f"{value} has no form in AMQP")
    unscaled = int("".join(map(str, digits))) * 10 ** max(0, exponent)
    scale = max(0, -exponent)
    if unscaled > U32_MAX or scale > 255:
        raise ValueError(f"{value} does not fit AMQP's decimal")
    return struct.pack(">cBI", b"D", scale, unscaled)
