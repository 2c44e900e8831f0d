"""Builds commit-log records byte by byte, independently of the store and of the decoder."""

from __future__ import annotations

import struct
import zlib

HOST_V4 = bytes([127, 0, 0, 1]) + struct.pack(">i", 10911)
HOST_V6 = bytes(15) + b"\x01" + struct.pack(">i", 10911)


def build_record(
    *,
    topic: str = "sensors",
    queue_id: int = 0,
    queue_offset: int = 0,
    position: int = 0,
    body: bytes = b"21.5",
    properties: bytes = b"",
    born_ms: int = 1_700_000_000_000,
    store_ms: int = 1_700_000_000_001,
    flag: int = 0,
    system_flag: int = 0,
    magic: int = 0xDAA320A7,
    body_crc: int | None = None,
) -> bytes:
    """One record. Hosts are IPv6 where the system flag says so; a V2 magic widens the topic."""
    crc = zlib.crc32(body) & 0x7FFFFFFF if body_crc is None else body_crc
    name = topic.encode("utf-8", "surrogateescape")
    rest = struct.pack(">IIiiqqi", magic, crc, queue_id, flag, queue_offset, position, system_flag)
    rest += struct.pack(">q", born_ms) + (HOST_V6 if system_flag & 0x10 else HOST_V4)
    rest += struct.pack(">q", store_ms) + (HOST_V6 if system_flag & 0x20 else HOST_V4)
    rest += struct.pack(">iq", 0, 0)
    rest += struct.pack(">I", len(body)) + body
    rest += (bytes([len(name)]) if magic == 0xDAA320A7 else struct.pack(">H", len(name))) + name
    rest += struct.pack(">H", len(properties)) + properties
    return struct.pack(">I", len(rest) + 4) + rest


def build_properties(**pairs: str) -> bytes:
    """Properties in RocketMQ's form."""
    return b"".join(
        name.encode() + b"\x01" + value.encode("utf-8", "surrogateescape") + b"\x02"
        for name, value in pairs.items()
    )
