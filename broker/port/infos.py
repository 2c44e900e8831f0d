"""What the port tells about queues, exchanges and topics: values, as they are when it is asked.

They are part of `broker.port`, and reached through it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueInfo:
    """An AMQP queue: how it was declared, and how it stands."""

    name: str
    ready_count: int
    consumer_count: int
    durable: bool
    exclusive: bool
    auto_delete: bool
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """What an operator has paused.

    Attributes:
        since_ms: since when, in milliseconds since the epoch.
        by: who has done it; empty for nobody's name.
    """

    since_ms: int
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeInfo:
    """An AMQP exchange as it was declared."""

    name: str
    type: str
    durable: bool
    auto_delete: bool
    internal: bool
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicInfo:
    """A topic and its queues. Index in the tuples is the queue id."""

    name: str
    """The user's name (decoded)."""
    min_offsets: tuple[int, ...]
    max_offsets: tuple[int, ...]
    """One past the last offset that readers by offset may see (flushed)."""
    incarnation: int
    """Differs for a topic that was deleted and created again."""
    settings: Mapping[str, str | int] = field(default_factory=dict)
    """What holds for the topic, by the names of `broker.topics.settings`."""
    own_settings: tuple[str, ...] = ()
    """Names of those that were chosen for this topic; the others are the broker's defaults."""
