"""The keys of a record, by which its message is found: its `UNIQ_KEY`, the words of its `KEYS`, and
the message id among the properties that an AMQP client sent (`PMQ_AMQP`, AMQP 4.2.6.1).
"""

from __future__ import annotations

import binascii
import re
import struct
from collections.abc import Iterator
from typing import Final

_INT: Final = struct.Struct(">I")
BASE64: Final = re.compile(
    rb"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?", re.ASCII
)
ENCODED_MAX: Final = 32_768
"""More than the properties of a record can have."""
UNIQ_KEY: Final = b"UNIQ_KEY"
KEYS: Final = b"KEYS"
AMQP: Final = b"PMQ_AMQP"
MESSAGE_ID_BIT: Final = 7
KINDS: Final = "sstbbssss"
"""AMQP's properties from bit 15 down to the message id: s short string, t table, b octet."""


def keys_of(properties: bytes) -> Iterator[bytes]:
    """The keys that a record's encoded properties hold."""
    for pair in properties.split(b"\x02"):
        name, separator, value = pair.partition(b"\x01")
        if not separator:
            continue
        if name == KEYS:
            yield from filter(None, value.split(b" "))
        elif name == UNIQ_KEY and value:
            yield value
        elif name == AMQP:
            message_id = _message_id(value)
            if message_id:
                yield message_id


def _message_id(encoded: bytes) -> bytes:
    """The message id among AMQP's properties in base64; empty if there is none."""
    if len(encoded) > ENCODED_MAX or not BASE64.fullmatch(encoded):
        return b""
    raw = binascii.a2b_base64(encoded)
    if len(raw) < 2:
        return b""
    flags = raw[0] << 8 | raw[1]
    if not flags >> MESSAGE_ID_BIT & 1 or flags & 1:  # bit 0: a second word of flags
        return b""
    at = 2
    for bit, kind in zip(range(15, MESSAGE_ID_BIT - 1, -1), KINDS, strict=True):
        if not flags >> bit & 1:
            continue
        if kind == "b":
            at += 1
        elif kind == "t":
            if at + 4 > len(raw):
                return b""
            at += 4 + int(_INT.unpack_from(raw, at)[0])
        else:
            if at >= len(raw) or at + 1 + raw[at] > len(raw):
                return b""
            if bit == MESSAGE_ID_BIT:
                return raw[at + 1 : at + 1 + raw[at]]
            at += 1 + raw[at]
    return b""
