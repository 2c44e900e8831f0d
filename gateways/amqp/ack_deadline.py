"""Consumers that keep a message too long without acknowledging it (`x-consumer-timeout`).

Theory. What is unacknowledged is kept as runs of delivery tags, without times. Four times in a
timeout, but not more than once in a second, the channel's next tag is noted. What is unacknowledged
and below the tag that was noted a whole timeout ago is overdue. So a consumer with a timeout costs
a timer, a message nothing, and what is overdue is noticed up to a quarter of the timeout, or a
second, later.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from polymq.gateways.amqp.errors import RemoteProtocolError, ReplyCode

if TYPE_CHECKING:
    from polymq.gateways.amqp.channel import Channel
    from polymq.gateways.amqp.consumer import Consumer

PARTS_MAX: Final = 4
PART_MS_MIN: Final = 1000
"""A connection may have many thousand consumers."""


class AckDeadline:
    """The timeout of one consumer. Goes on after the consumer was cancelled, while it holds
    messages."""

    __slots__ = ("_cancel", "_channel", "_consumer", "_seconds", "_tags", "_timeout_ms")

    def __init__(self, channel: Channel, consumer: Consumer, timeout_ms: int) -> None:
        self._channel = channel
        self._consumer = consumer
        self._timeout_ms = timeout_ms
        parts = max(1, min(PARTS_MAX, timeout_ms // PART_MS_MIN))
        self._seconds = max(timeout_ms / parts, PART_MS_MIN) / 1000
        self._tags: deque[int] = deque(maxlen=parts)  # the channel's next tag, the oldest first
        self._cancel = channel.link.call_later(self._seconds, self._look)
        consumer.deadline = self
        channel.deadlines.add(self)

    def close(self) -> None:
        """The consumer holds nothing, and will not."""
        self._cancel()
        self._channel.deadlines.discard(self)

    def _look(self) -> None:
        channel, consumer = self._channel, self._consumer
        if consumer.ended and not consumer.unacked_count:
            self.close()
            return
        if len(self._tags) == self._tags.maxlen and self._is_late(self._tags[0]):
            channel.link.fail(
                RemoteProtocolError(
                    ReplyCode.PRECONDITION_FAILED,
                    f"delivery acknowledgement on channel {channel.number} timed out. "
                    f"Timeout value used: {self._timeout_ms} ms",
                    channel=channel.number,
                )
            )
            return
        self._tags.append(channel.unacked.next_tag)
        self._cancel = channel.link.call_later(self._seconds, self._look)

    def _is_late(self, tag: int) -> bool:
        """Whether the consumer holds a message that was delivered before this tag was next."""
        unacked = self._channel.unacked
        if not self._consumer.unacked_count or unacked.first_tag >= tag:
            return False
        return self._consumer in unacked.holders(unacked.first_tag, tag - 1)
