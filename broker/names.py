"""Names between users' words and RocketMQ's character set (part 7 of ARCHITECTURE.md).

A stored name has only `% | a-z A-Z 0-9 _ -` and at most 127 bytes. Another byte becomes `|hh`
(two hex digits); the empty name is `||`; a name that would be longer becomes `|h` and a hash, and
its full form is kept in the topic's settings. The mapping is one-to-one, so that no two topics of
users meet in one topic of the log.

`%` keeps RocketMQ's meaning (namespace, `%RETRY%`, `%DLQ%`) and stays as it is; `|` itself is
escaped, so an escape can never come from a user.

A third form is for people and their tools. MQTT's `/temp` is in the topic with the empty name,
which a list, a path or a column cannot show. Its *display name* is `||`, as in the log. A topic
whose own name is two or more bars has one bar more, so this mapping is one-to-one as well.
"""

from __future__ import annotations

import hashlib
import re
import string
from collections.abc import Mapping
from typing import Final

from polymq.broker.errors import Reason, Refused

NAME_BYTES_MAX: Final = 127
"""One byte holds the topic's size in a V1 record, and RocketMQ clients refuse more."""

EMPTY_NAME: Final = "||"
HASH_PREFIX: Final = "|h"
ROOT_EXCHANGE: Final = "amq.topic"
"""The exchange whose keys begin with the topic."""
EXCHANGE_PROPERTY: Final = "PMQ_EXCHANGE"
"""The exchange of a message that was published under another name than its topic's."""
QUEUES_TOPIC: Final = "RMQ_SYS_POLYMQ_QUEUES"
"""The system topic of messages to queues that go by themselves: their tag is the queue's name."""
SERVER_NAMED: Final = "amq.gen-"
"""What the names of queues begin with that the server made up."""
SYS_TOPIC: Final = "$SYS"
"""The first level of what MQTT calls the server's own topics, and so what permissions name. What
they say is in no log, so there is no topic of this name: nobody speaks in the server's name."""
CONTROL_TOPIC: Final = "$CONTROL"
"""The same of the topics by which clients of MQTT administrate the server."""
SERVER_TOPICS: Final = frozenset({SYS_TOPIC, CONTROL_TOPIC})
_OWN_PREFIXES: Final = ("RMQ_SYS_", "rmq_sys_", "SCHEDULE_TOPIC_XXXX", "TRANS_CHECK_MAX_TIME")
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
"""Where RocketMQ's clients write down what became of their messages. It is a topic of theirs."""
_PLAIN: Final = frozenset((string.ascii_letters + string.digits + "%_-").encode())
_HASH_DIGITS: Final = 32


AMQP_NAME_BYTES_MAX: Final = 255
"""Of a short string (AMQP 0-9-1, 4.2.5.3)."""
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""C0, DEL, C1, and the characters that turn the direction of writing."""


def check_characters(kind: str, name: str) -> None:
    """Whether a new topic, queue or exchange may have this name: people read it in terminals, logs
    and tables, which must show what it is. Names that are there already stay.

    Raises:
        Refused: BAD_NAME, it has a control character.
    """
    found = _CONTROL.search(name)
    if found is not None:
        raise Refused(
            Reason.BAD_NAME,
            f"a name of {kind} may not have control characters, and this one has "
            f"U+{ord(found[0]):04X}",
        )


def check_amqp_name(kind: str, name: str) -> None:
    """The same for a queue or an exchange that somebody declares: clients of AMQP name it in a
    short string."""
    check_characters(kind, name)
    size = len(name.encode("utf-8", "surrogateescape"))
    if size > AMQP_NAME_BYTES_MAX:
        raise Refused(
            Reason.BAD_NAME,
            f"a name of {kind} has at most {AMQP_NAME_BYTES_MAX} bytes, and this one has {size}",
        )


def is_own_topic(topic: str) -> bool:
    """Whether a topic is the broker's own, closed to clients: RocketMQ's names of such among
    them."""
    return topic.startswith(_OWN_PREFIXES) and topic != TRACE_TOPIC


def encode_name(name: str) -> str:
    """The stored form of a user's name. Text that is not UTF-8 travels as surrogate escapes."""
    if not name:
        return EMPTY_NAME
    raw = name.encode("utf-8", "surrogateescape")
    stored = "".join(chr(byte) if byte in _PLAIN else f"|{byte:02x}" for byte in raw)
    if len(stored) > NAME_BYTES_MAX:
        return HASH_PREFIX + hashlib.sha256(raw).hexdigest()[:_HASH_DIGITS]
    return stored


def display_name(name: str) -> str:
    """A user's name as tools show it: never empty."""
    if not name:
        return EMPTY_NAME
    return f"{name}|" if _is_bars(name) else name


def parse_display_name(shown: str) -> str:
    """The user's name that a display name stands for."""
    if shown == EMPTY_NAME:
        return ""
    return shown[:-1] if _is_bars(shown) else shown


def _is_bars(name: str) -> bool:
    return name.startswith(EMPTY_NAME) and not name.strip("|")


def is_hashed(stored: str) -> bool:
    """Whether the stored name is a hash, whose full form only the topic's settings know."""
    return stored.startswith(HASH_PREFIX)


def decode_name(stored: str) -> str:
    """The user's name of a stored name.

    Raises:
        ValueError: for a hashed name, or for text that `encode_name` cannot have made.
    """
    if stored == EMPTY_NAME:
        return ""
    if is_hashed(stored):
        raise ValueError("a hashed name cannot be decoded")
    raw = bytearray()
    parts = stored.split("|")
    raw += parts[0].encode("ascii")
    for part in parts[1:]:
        raw.append(int(part[:2], 16))
        raw += part[2:].encode("ascii")
    name = raw.decode("utf-8", "surrogateescape")
    if encode_name(name) != stored:
        raise ValueError(f"not a stored name: {stored!r}")
    return name


def exchange_and_key(topic: str, tag: str | None, properties: Mapping[str, str]) -> tuple[str, str]:
    """AMQP's names of a message's place: the inverse of `ExchangePort.route`.

    Args:
        properties: the constant ones.
    """
    exchange = properties.get(EXCHANGE_PROPERTY)
    if exchange is None:
        return topic, tag or ""
    if exchange == "":
        return "", topic
    if exchange == ROOT_EXCHANGE:
        # The engine turned the first word round, as in all tags: `a/b` names the topic `a.b`.
        first = topic.replace(".", "/")
        return exchange, first if tag is None else f"{first}.{tag}"
    return exchange, tag or ""
