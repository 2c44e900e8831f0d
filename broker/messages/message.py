"""Messages as a consumer gets them: a delivery, which is a run of records, and its messages as
values. Part of the port (`port/` has the rules).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from polymq.broker.messages.kernels.record_run import RecordRun


@dataclass(slots=True)
class Delivery:
    """Messages for one consumer: consecutive offsets of one queue.

    Attributes:
        delivery_count: how often each of them was given back before, in a queue with a delivery
            limit; else 0.
    """

    runs: Sequence[RecordRun]
    first_offset: int
    count: int
    redelivered: bool
    delivery_count: int = 0

    def messages(self) -> list[Message]:
        """The messages as values, bodies copied. For cold paths (HTTP, tests) only."""
        from polymq.broker.messages.records import decode_messages  # noqa: PLC0415  (a cycle otherwise)

        return decode_messages(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message as a value, for gateways whose unit of work is a message (HTTP)."""

    topic: str
    tag: str | None
    body: bytes
    properties: Mapping[str, str]
    """All user-visible properties, the per-message extra property included (as stored)."""
    born_ms: int
    store_ms: int
    position: int
    """Byte position of the record in the commit log; with the broker's id, a unique name."""
    queue_id: int
    queue_offset: int
    """Offset in the topic's own queue."""
    consumer_offset: int
    """Offset in the queue that it was delivered from: what `settle` takes."""
    redelivered: bool
