"""What a listener counts of messages and bytes, in the same form for every protocol."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class MessageCounts:
    """Messages of all connections of one server, added up by batches.

    Attributes:
        received: messages that clients published and the broker stored.
        sent: messages that were written to clients.
    """

    received: int = 0
    sent: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficCounts:
    """What a server has received and sent since it was started. Bytes are without what TLS
    adds."""

    messages_received: int
    messages_sent: int
    bytes_received: int
    bytes_sent: int
