"""The names of consumers of answers (`direct_reply.py`), which are no names of queues."""

from __future__ import annotations

from typing import Final

NAME: Final = "amq.rabbitmq.reply-to"
"""What a client consumes from, and names as `reply_to`."""
PREFIX: Final = f"{NAME}."
"""What the name of one such consumer begins with."""

_ADDRESS_HEAD: Final = b"\x00"
"""The name of the default exchange as a short string."""
_PREFIX: Final = PREFIX.encode()


def is_answer(address: bytes) -> bool:
    """Whether exchange and routing key, as two short strings, are those of an answer."""
    return address.startswith(_ADDRESS_HEAD) and address.startswith(_PREFIX, 2)
