"""Every bound of this gateway, with its reason and its neighbours' numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HANDSHAKE_FRAME_BYTES_MAX: Final = 8192
"""Largest frame before tune-ok. RabbitMQ: 4096, from 4.1 on 8192 for passwords that are tokens."""
FRAME_BYTES_MIN: Final = 4096
"""Smallest `frame_max` that a client may ask for (AMQP 4.2.3 frame-min-size)."""
FRAME_OVERHEAD: Final = 8
"""Type, channel, size and the end octet of a frame."""
TABLE_DEPTH_MAX: Final = 64
"""Tables and arrays inside each other. RabbitMQ takes 5000; nobody nests more than a handful."""
TABLE_COUNT_MAX: Final = 16_384
"""Values in one table, nested ones included: decoding them costs about 10 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one AMQP listener. Units are in the names."""

    channel_max: int = 2047
    """Channels of one connection, as RabbitMQ proposes (LavinMQ 2048)."""
    frame_bytes_max: int = 131_072
    """A whole frame after tune-ok: RabbitMQ's and LavinMQ's number, half of one socket read."""
    heartbeat_seconds: int = 60
    """What we propose; the client's answer counts (RabbitMQ 60, LavinMQ 300)."""
    handshake_seconds: float = 10.0
    """From connect to connection.open, as in RabbitMQ."""
    early_bytes_max: int = 16 * 1024
    """What a client may send while its password is looked at: it waits for tune, or is one of those
    that send the whole handshake in one piece, which is some hundred bytes."""
    penalty_seconds: float = 3.0
    """How long a failed login waits before the socket is closed, as in RabbitMQ."""
    close_seconds: float = 5.0
    """How long we wait for close-ok after our close, before the socket is aborted."""
    linger_seconds: float = 3.0
    """How long a client whose connection is closed may take to close its socket."""
    linger_bytes_max: int = 64 * 1024 * 1024
    """What it may send meanwhile: clients that flood have some megabytes in their buffers."""
    body_bytes_max: int = 16 * 1024 * 1024
    """Largest message: what the store takes (RabbitMQ 16 MiB, LavinMQ 128 MiB)."""
    assembling_bytes_max: int = 64 * 1024 * 1024
    """Unfinished contents of all channels of a connection: four of the largest messages."""
    assembling_total_bytes_max: int = 512 * 1024 * 1024
    """Those of all connections. Beyond it, who has more than an equal share is refused."""
    empty_body_frames_max: int = 4096
    """Body frames without a byte in one content: they are legal, and cost us but not the client."""
    consumers_max: int = 65_536
    """Consumers of one connection; each costs about 1 KiB."""
    replies_bytes_max: int = 1024 * 1024
    """Answers (direct reply-to) of a consumer that does not read, behind the first that waits."""
    turn_bytes_max: int = 1024 * 1024
    """Deliveries for one connection in one loop iteration, before the socket has taken a byte."""
    turn_count_max: int = 4096
    """Messages of one delivery to a consumer without prefetch; the engine hands out no more."""
    answers_bytes_max: int = 1024 * 1024
    """Unsent answers of a client that asks but does not read, before we stop reading from it."""
    templates_max: int = 65_536
    """Cached places (exchange, routing key) of publishes, about 300 bytes each."""
    transaction_count_max: int = 10_000
    """Messages that a channel publishes between two commits: they are one atomic batch, which is
    written without a pause (about 0.2 s for so many). RabbitMQ and LavinMQ have no limit."""
    transaction_bytes_max: int = 64 * 1024 * 1024
    """Uncommitted messages of all channels of a connection: four of the largest."""
    connections_max: int = 100_000
    """Sockets of one listener; file descriptors run out before memory does."""
