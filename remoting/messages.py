"""Messages as producers send them: properties, the fields of a send, the body of a batch. Pure."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from polymq.remoting.broker_fields import SendFields, short_names
from polymq.remoting.errors import LocalProtocolError
from polymq.remoting.headers import write_fields

KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
WAIT: Final = "WAIT"
UNIQUE_KEY: Final = "UNIQ_KEY"
"""The id by which users know a message; the producer gives it."""
PREPARED_PROPERTY: Final = "TRAN_MSG"
PRODUCER_GROUP: Final = "PGROUP"
"""Of a half message: whom a broker asks about its transaction."""
DELAYS: Final = frozenset(("DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"))
"""Properties that ask for a later delivery."""
RETRY_TOPIC: Final = "RETRY_TOPIC"
"""Of a message that comes again: the topic that it was sent to."""
RETRY_PREFIX: Final = "%RETRY%"
AUTO_TOPIC: Final = "TBW102"
"""Whose route producers use for a topic that is not there yet: the first message makes it."""

BODY_BYTES_MAX: Final = 4 * 1024 * 1024
"""RocketMQ's `maxMessageSize`. A broker may take less."""
PROPERTIES_BYTES_MAX: Final = 32_767
"""A signed short counts them in the log."""
TOPIC_CHARACTERS_MAX: Final = 127
_PAIR, _END = "\x01", "\x02"
_BATCH_HEAD: Final = struct.Struct(">iiiii")  # size, magic, checksum, flag, body size
_SHORT: Final = struct.Struct(">h")


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message to send.

    Attributes:
        keys: by which it can be found; without spaces.
        properties: of the user; names of RocketMQ's own are not for users.
    """

    topic: str
    body: bytes
    tag: str | None = None
    keys: Sequence[str] = ()
    flag: int = 0
    properties: Mapping[str, str] = field(default_factory=dict)


def encode_properties(message: Message, unique_key: str) -> str:
    """The properties of a message, checked.

    Raises:
        LocalProtocolError: a name or value has one of the two separators, or they are too long.
    """
    pairs = dict(message.properties)
    pairs[UNIQUE_KEY], pairs[WAIT] = unique_key, "true"
    if message.tag is not None:
        pairs[TAGS] = message.tag
    if message.keys:
        pairs[KEYS] = " ".join(message.keys)
    for name, value in pairs.items():
        if not name or _PAIR in name + value or _END in name + value:
            raise LocalProtocolError(f"property {name!r}: names and values have no \\x01 and \\x02")
    text = "".join([f"{name}{_PAIR}{value}{_END}" for name, value in pairs.items()])
    if len(text.encode()) > PROPERTIES_BYTES_MAX:
        raise LocalProtocolError(f"properties have at most {PROPERTIES_BYTES_MAX} bytes")
    return text


def check_message(message: Message) -> None:
    """Raises LocalProtocolError: no broker would take it."""
    if not 0 < len(message.topic) <= TOPIC_CHARACTERS_MAX:
        raise LocalProtocolError(f"a topic has 1 to {TOPIC_CHARACTERS_MAX} characters")
    if len(message.body) > BODY_BYTES_MAX:
        raise LocalProtocolError(f"a body has at most {BODY_BYTES_MAX} bytes")


def encode_batch(messages: Sequence[Message], unique_keys: Sequence[str]) -> bytes:
    """The body of 320 SEND_BATCH_MESSAGE. Raises LocalProtocolError."""
    parts: list[bytes] = []
    for message, unique_key in zip(messages, unique_keys, strict=True):
        properties = encode_properties(message, unique_key).encode()
        size = _BATCH_HEAD.size + len(message.body) + _SHORT.size + len(properties)
        parts += (
            _BATCH_HEAD.pack(size, 0, 0, message.flag, len(message.body)),
            message.body,
            _SHORT.pack(len(properties)),
            properties,
        )
    body = b"".join(parts)
    if len(body) > BODY_BYTES_MAX:
        raise LocalProtocolError(f"a batch has at most {BODY_BYTES_MAX} bytes")
    return body


def send_fields(fields: SendFields) -> dict[str, str]:
    """The header of 310 and 320: the fields under their short names."""
    return short_names(write_fields(fields))


def hash_code(text: str) -> int:
    """Java's `String.hashCode`, by which its producers choose a queue for a key: messages of one
    key come to the same queue from both."""
    value = 0
    for (unit,) in struct.iter_unpack(">H", text.encode("utf-16-be", "surrogatepass")):
        value = (31 * value + unit) & 0xFFFF_FFFF
    return value - 2**32 if value >= 2**31 else value
