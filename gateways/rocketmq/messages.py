"""Messages as producers send them: properties, batches, and what of both is ours to store.

Rules:

* Properties are `name 0x01 value 0x02`, repeated. What a client sends is kept word for word behind
  the constant part of a record, but for `TAGS`, which is the tag, and for names that begin with
  `PMQ_` and the checksum's: they say something of the record that they once stood in, and a client
  that copies a message must not repeat it.
* Bodies that a producer compressed are stored as they came. Ways to compress that RocketMQ does not
  have are refused: no reader could get at the body.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from polymq.core_log.kernels.batch import PROPERTY_CRC

TAGS: Final = "TAGS"
DELAYS: Final = {"DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"}
"""Properties that ask for a later delivery."""
RESERVED: Final = ("PMQ_", PROPERTY_CRC.decode())

COMPRESSED: Final = 0x1
COMPRESSION_MASK: Final = 0x700
_KNOWN_KINDS: Final = (0, 0x100, 0x200, 0x300)
"""zlib as older clients say it, LZ4, ZSTD, zlib."""
PREPARED: Final = 0x4
COMMITTED: Final = 0x8
ROLLED_BACK: Final = 0xC
SEVERAL_TAGS: Final = 0x2
_STORED: Final = COMPRESSED | COMPRESSION_MASK | SEVERAL_TAGS
"""Bits of a system flag that belong to the message. The others say how its record is laid out, or
which part of a transaction it is."""

_BATCH_HEAD: Final = struct.Struct(">iiiii")
_SHORT: Final = struct.Struct(">h")


class BadMessage(Exception):
    """What was sent is no message; the text says why, for the client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One message.

    Attributes:
        properties: by name, `TAGS` included.
        extra: what is stored of them for this message, encoded.
    """

    properties: Mapping[str, str]
    extra: bytes
    body: bytes
    flag: int

    @property
    def tag(self) -> str | None:
        """Its tag."""
        return self.properties.get(TAGS)


def message_of(properties: str, body: bytes, flag: int) -> Sent:
    """A message of its properties as they travel. Raises BadMessage."""
    return sent_of(parse_properties(properties), body, flag)


def sent_of(properties: Mapping[str, str], body: bytes, flag: int) -> Sent:
    """A message of its properties by name."""
    stored = [(name, value) for name, value in properties.items() if _is_stored(name)]
    extra = "".join([f"{name}\x01{value}\x02" for name, value in stored])
    return Sent(
        properties=properties, extra=extra.encode("utf-8", "surrogateescape"), body=body, flag=flag
    )


def parse_properties(properties: str) -> dict[str, str]:
    """The properties by name; a pair without a separator is dropped, as RocketMQ's clients do.
    Raises BadMessage."""
    pairs: dict[str, str] = {}
    for pair in properties.split("\x02"):
        name, separator, value = pair.partition("\x01")
        if separator:
            if "\x01" in value:
                raise BadMessage("a property's value contains the character 1")
            pairs[name] = value
    return pairs


def _is_stored(name: str) -> bool:
    return name != TAGS and not name.startswith(RESERVED)


def system_flag_of(flag: int) -> int:
    """What is stored of a send request's system flag. Raises BadMessage."""
    if flag & COMPRESSED and flag & COMPRESSION_MASK not in _KNOWN_KINDS:
        kind = (flag & COMPRESSION_MASK) >> 8
        raise BadMessage(
            f"the body is compressed with type {kind}: set the producer to ZLIB, LZ4 or ZSTD"
        )
    return stored_flags(flag)


def stored_flags(flag: int) -> int:
    """What of a record's system flag belongs to the message."""
    return flag & _STORED if flag & COMPRESSED else flag & SEVERAL_TAGS


def messages_of(body: bytes) -> list[Sent]:
    """The messages of a batch (320), each with its own properties. Raises BadMessage."""
    messages = []
    at = 0
    while at < len(body):
        try:
            size, _, _, flag, body_size = _BATCH_HEAD.unpack_from(body, at)
            body_end = at + _BATCH_HEAD.size + body_size
            (properties_size,) = _SHORT.unpack_from(body, body_end)
        except struct.error as error:
            raise BadMessage("the batch ends within a message") from error
        properties_start = body_end + _SHORT.size
        end = properties_start + properties_size
        if body_size < 0 or properties_size < 0 or end != at + size or end > len(body):
            raise BadMessage("a message of the batch does not fit its size")
        messages.append(
            message_of(
                body[properties_start:end].decode("utf-8", "surrogateescape"),
                body[at + _BATCH_HEAD.size : body_end],
                flag,
            )
        )
        if DELAYS & messages[-1].properties.keys():
            raise BadMessage("messages of a batch cannot be delayed: send them one by one")
        at = end
    if not messages:
        raise BadMessage("the batch has no message")
    return messages
