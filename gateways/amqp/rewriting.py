"""Properties of a publish that the broker acts on, and changes: `CC`, `BCC`, and `reply_to` of
direct reply-to.

The headers `CC` and `BCC` are lists of routing keys: the message goes to what they lead to, as
well, once to each queue. `BCC` is removed, so that no receiver sees it (RabbitMQ's sender-selected
distribution).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from polymq.broker.port import Copies, Reason, Refused
from polymq.gateways.amqp import reply_names
from polymq.gateways.amqp.mapping import REPLY_TO, headers_span, property_span
from polymq.gateways.amqp.methods import short_string
from polymq.gateways.amqp.tables import decode_table, split_pairs

COPIES_MAX: Final = 256
"""Routing keys in `CC` and `BCC` together: each is looked up by itself."""
_NAMES: Final = ("CC", "BCC")
_U32: Final = struct.Struct(">I")
_DIRECT_REPLY_TO: Final = reply_names.NAME.encode()


class Rewritten(NamedTuple):
    """The properties as they are stored.

    Attributes:
        properties: encoded.
        changed: whether they are not as they were sent.
        copies: the routing keys besides the message's own, if it has any.
    """

    properties: bytes
    changed: bool
    copies: Copies | None


def rewrite(raw: bytes, reply_name: Callable[[], str]) -> Rewritten:
    """Act on well-formed properties.

    Args:
        reply_name: what stands for the channel's consumer of answers; may raise Refused.

    Raises:
        Refused: BAD_ARGUMENT, `CC` or `BCC` is no array of text, or nobody consumes answers.
    """
    sent = raw
    start, end = headers_span(raw)
    copies: Copies | None = None
    if start < end and b"CC" in raw[start:end]:
        raw, copies = _take_copies(raw, start, end)
    span = property_span(raw, REPLY_TO)
    if span is not None and raw[span[0] + 1 : span[1]] == _DIRECT_REPLY_TO:
        raw = raw[: span[0]] + short_string(reply_name()) + raw[span[1] :]
    return Rewritten(raw, raw is not sent, copies)


def _take_copies(raw: bytes, start: int, end: int) -> tuple[bytes, Copies | None]:
    """The properties without `BCC`, and the keys of both headers, each once."""
    table = decode_table(raw, start, end)
    shown, hidden = (_keys(name, table[name]) if name in table else [] for name in _NAMES)
    keys = shown + hidden
    if len(keys) > COPIES_MAX:
        raise Refused(
            Reason.BAD_ARGUMENT,
            f"the headers 'CC' and 'BCC' name {len(keys)} routing keys: at most {COPIES_MAX}",
        )
    if "BCC" in table:
        pairs = b"".join(pair for name, pair in split_pairs(raw[start:end]) if name != b"BCC")
        raw = raw[: start - 4] + _U32.pack(len(pairs)) + pairs + raw[end:]
    copies = Copies(tuple(dict.fromkeys(keys)), len(dict.fromkeys(shown)))
    return raw, copies if keys else None


def _keys(name: str, value: Any) -> list[str]:
    """Routing keys may hold any octets, as in basic.publish."""
    if not isinstance(value, list) or not all(isinstance(key, (str, bytes)) for key in value):
        raise Refused(
            Reason.BAD_ARGUMENT, f"invalid header '{name}': it is an array of routing keys, as text"
        )
    return [
        key if isinstance(key, str) else key.decode("utf-8", "surrogateescape") for key in value
    ]
