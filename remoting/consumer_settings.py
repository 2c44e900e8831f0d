"""How a consumer reads: RocketMQ's defaults unless said."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Begin(enum.Enum):
    """Where a group reads a queue from that it has never committed in."""

    LAST = "CONSUME_FROM_LAST_OFFSET"
    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


class Model(enum.Enum):
    """Whether the members of a group share queues."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """How often, how much, how patient."""

    model: Model = Model.CLUSTERING
    ordered: bool = False
    """Whether a message that is handled in vain holds up those behind it, and queues are locked."""
    begin: Begin = Begin.LAST
    begin_ms: int = 0
    """For TIMESTAMP: messages that were stored then or later."""
    share_seconds: float = 20.0
    look_seconds: float = 1.0
    """While a topic that is to be read is nowhere: how often is looked for it."""
    commit_seconds: float = 5.0
    call_seconds: float = 3.0
    long_poll_seconds: float = 15.0
    """How long a broker holds a pull that finds nothing; 0: it answers at once."""
    pull_seconds: float = 30.0
    pull_count_max: int = 32
    pull_bytes_max: int = 256 * 1024
    """Of one pull; a single message may be longer. What RocketMQ's brokers give at most."""
    held_count_max: int = 10_000
    held_bytes_max: int = 64 * 1024 * 1024
    """Of what was pulled and is not handled yet, over all queues. Beyond, nothing more is pulled;
    pulls that are under way may come on top. A queue holds one pull at most. RocketMQ: 1,000
    messages and 100 MiB a queue, no bound over all."""
    pause_seconds: float = 3.0
    """After a pull that failed."""
    retries_max: int | None = None
    """How often a message is handled again; then it is a dead letter. None: as RocketMQ, 16 times,
    and in order without an end."""
    retry_level: int = 0
    """When a message comes again that was handled in vain: RocketMQ's delay level, 1 for a second;
    0: ever later, from 10 seconds on."""
    suspend_seconds: float = 1.0
    """In order: between two attempts at a message."""
    lock_seconds: float = 20.0
    """In order: how often locks are renewed."""
    lock_retry_seconds: float = 1.0
    """In order: how often a lock is asked for that another member still has."""
