"""Consumers: how messages of a queue become deliveries on a channel.

Rules:

* A consumer takes messages only after its consume-ok left, while it has credit, and while the
  connection's socket takes bytes. Credit is the prefetch of the consumer and, beside it, that of
  the channel (RabbitMQ's reading of basic.qos: `global` false is for each later consumer, true for
  all of the channel).
* With `no_ack` a message is settled when its bytes are written.
* A delivery is encoded run by run by the kernel, from the log's records. Only dead letters,
  messages whose deliveries are counted, those of gateways that keep properties in each message,
  those with long properties (`long_properties.py`), and those for clients with very small frames
  are taken one by one. Large bodies are cut into frames as they leave (`large_deliveries.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from polymq.broker.port import Delivery, QueueConsumer, RecordRun, RunMeta
from polymq.gateways.amqp import mapping, spec
from polymq.gateways.amqp.kernels import frames
from polymq.gateways.amqp.large_deliveries import (
    LARGE_BYTES,
    LargeBody,
    announce,
    split_run,
    without_body,
)
from polymq.gateways.amqp.long_properties import ROOMY_FRAME_BYTES
from polymq.gateways.amqp.methods import content_frames, short_string
from polymq.net.clients import ConsumerInfo

if TYPE_CHECKING:
    from polymq.gateways.amqp.ack_deadline import AckDeadline
    from polymq.gateways.amqp.channel import Channel

_TAG: Final = struct.Struct(">QB")


class Holder:
    """What unacknowledged messages are given back to, and by it to their queue.

    Attributes:
        handle: the engine's side of it; set before the first message.
    """

    __slots__ = ("handle",)

    def __init__(self, handle: QueueConsumer | None) -> None:
        self.handle = handle

    def settle(self, first_offset: int, count: int) -> None:
        """Acknowledged."""
        assert self.handle is not None
        self.handle.settle(first_offset, count)

    def requeue(self, first_offset: int, count: int) -> None:
        """Given back."""
        assert self.handle is not None
        self.handle.requeue(first_offset, count)

    def reject(self, first_offset: int, count: int) -> None:
        """Not wanted."""
        assert self.handle is not None
        self.handle.reject(first_offset, count)

    def returned(self, count: int) -> None:
        """`count` messages are no longer unacknowledged."""


class Getter(Holder):
    """Holds what basic.get took. Prefetch does not count it, and nothing waits for credit."""

    __slots__ = ()


class Consumer(Holder):
    """One consumer tag of a channel: `broker.port.Consumer`.

    Args:
        queue: its name.
        asked: basic.consume, as the client sent it.

    Attributes:
        started: consume-ok left.
        unacked_count: delivered and not settled.
    """

    __slots__ = (
        "_channel",
        "_head",
        "_limit",
        "_no_ack",
        "asked",
        "deadline",
        "ended",
        "queue",
        "started",
        "tag",
        "unacked_count",
    )

    def __init__(
        self, channel: Channel, tag: str, *, queue: str, asked: spec.BasicConsume, limit: int
    ) -> None:
        super().__init__(None)
        self._channel = channel
        self._no_ack = asked.no_ack
        self.queue = queue
        self.asked = asked
        self._limit = limit
        self._head = struct.pack(">HH", 60, 60) + short_string(tag)
        self.tag = tag
        self.deadline: AckDeadline | None = None
        self.started = False
        self.ended = False
        self.unacked_count = 0

    def takes_apart(self, meta: RunMeta) -> bool:
        """See `broker.port.TakesApart`."""
        return not mapping.delivery_form(meta)[0] or _is_tight(self._channel.link.frame_max)

    def describe(self) -> ConsumerInfo:
        """See `net.clients`."""
        link = self._channel.link
        return ConsumerInfo(
            name=self.tag,
            connection=link.connection_id,
            user=link.user,
            prefetch=self._limit,
            unacknowledged=self.unacked_count,
        )

    def held(self) -> Iterator[Sequence[tuple[int, int]]]:
        """See `net.clients`."""
        unacked = self._channel.unacked
        at = 0
        while at < unacked.block_count:
            yield [
                (first, count) for _, holder, first, count in unacked.runs_of(at) if holder is self
            ]
            at += 1

    # --- broker.port.Consumer ---------------------------------------------------------------

    def credit(self) -> int:
        """How many messages it takes now."""
        channel = self._channel
        link = channel.link
        if not self.started or self.ended or channel.closed or not link.takes_deliveries():
            return 0
        credit = link.limits.turn_count_max
        if not self._no_ack:
            if self._limit:
                credit = min(credit, self._limit - self.unacked_count)
            if channel.prefetch_shared:
                credit = min(credit, channel.prefetch_shared - channel.unacked_count)
        elif channel.prefetch_shared and channel.unacked_count >= channel.prefetch_shared:
            return 0  # it uses up nothing of it, and stops with the others (RabbitMQ up to 4.2)
        return max(0, credit)

    def deliver(self, delivery: Delivery) -> None:
        """Write the messages; note them as unacknowledged, or settle them."""
        channel = self._channel
        link = channel.link
        count = delivery.count
        if self._no_ack:
            first_tag = channel.unacked.next_tag
            channel.unacked.next_tag += count
        else:
            first_tag = channel.unacked.add(self, delivery.first_offset, count)
            self.unacked_count += count
            channel.unacked_count += count
        for part in encode(delivery, channel.number, link.frame_max, self._head, first_tag):
            if isinstance(part, bytes):
                link.write_delivery(part)
            else:
                link.write_large(part)
        link.counts.sent += count
        if self._no_ack:
            assert self.handle is not None
            self.handle.settle(delivery.first_offset, delivery.count)

    def cancelled(self) -> None:
        """The queue is gone."""
        if not self.ended:
            self.ended = True
            self._end_deadline()
            self._channel.consumer_cancelled(self)

    def returned(self, count: int) -> None:
        """Credit has grown."""
        self.unacked_count -= count
        self._channel.returned(self, count)

    # --- for operators ----------------------------------------------------------------------

    @property
    def channel(self) -> Channel:
        """The channel that it is on."""
        return self._channel

    @property
    def prefetch(self) -> int:
        """How many messages it may hold; 0: no limit of its own."""
        return self._limit

    # --- for the channel --------------------------------------------------------------------

    def start(self) -> None:
        """Consume-ok left: messages may follow."""
        self.started = True
        self.ready()

    def ready(self) -> None:
        """Take messages if there are any."""
        if self.started and not self.ended and self.handle is not None:
            self.handle.ready()

    def end(self) -> None:
        """No more deliveries. What is not settled stays with the channel."""
        if not self.ended:
            self.ended = True
            self._end_deadline()
            if self.handle is not None:
                self.handle.cancel()

    def _end_deadline(self) -> None:
        if self.deadline is not None and not self.unacked_count:
            self.deadline.close()


def _is_tight(frame_max: int) -> bool:
    """Whether a header frame may be too small for properties that a kernel writes."""
    return frame_max < ROOMY_FRAME_BYTES


def encode(
    delivery: Delivery,
    channel: int,
    frame_max: int,
    head: bytes,
    first_tag: int,
    tail: bytes = b"",
) -> list[bytes | LargeBody]:
    """The frames of a delivery, run by run.

    Args:
        head: the method's payload before the delivery tag.
        tail: what follows exchange and routing key (get-ok: the count of messages).
    """
    tag = first_tag
    done = 0
    parts: list[bytes | LargeBody] = []
    for run in delivery.runs:
        if run.end - run.start < LARGE_BYTES:
            parts.append(_encode_run(delivery, run, done, channel, frame_max, head, tag, tail))
        else:
            parts += _encode_large(delivery, run, done, channel, frame_max, head, tag, tail)
        tag += run.count
        done += run.count
    return parts


def _encode_run(
    delivery: Delivery,
    run: RecordRun,
    done: int,
    channel: int,
    frame_max: int,
    head: bytes,
    first_tag: int,
    tail: bytes,
) -> bytes:
    """The frames of one run, with `done` messages of the delivery before it."""
    uniform, address, properties = mapping.delivery_form(run.meta)
    if tail:
        address += tail
    # A header frame may be too small for properties that need most of the run.
    tight = _is_tight(frame_max) and run.end - run.start > frame_max
    if not uniform or delivery.delivery_count or tight:
        return _encode_one_by_one(delivery, run, done, channel, frame_max, head, first_tag, address)
    return frames.encode_deliveries(
        run.memory,
        run.start,
        run.end,
        channel,
        frame_max,
        head,
        first_tag,
        delivery.redelivered,
        address,
        run.meta.prefix_size,
        properties,
    )


def _encode_large(
    delivery: Delivery,
    run: RecordRun,
    done: int,
    channel: int,
    frame_max: int,
    head: bytes,
    first_tag: int,
    tail: bytes,
) -> Iterator[bytes | LargeBody]:
    """The same where some records may be large: their bodies are cut into frames later."""
    tag = first_tag
    for part, is_large in split_run(run):
        only, body, size = without_body(part) if is_large else (part, 0, 0)
        frames = _encode_run(delivery, only, done, channel, frame_max, head, tag, tail)
        if is_large:
            yield announce(frames, size)
            yield LargeBody(part.memory, body, size, channel=channel, frame_max=frame_max)
        else:
            yield frames
        tag += part.count
        done += part.count


def _encode_one_by_one(
    delivery: Delivery,
    run: RecordRun,
    done: int,
    channel: int,
    frame_max: int,
    head: bytes,
    first_tag: int,
    address: bytes,
) -> bytes:
    """The cold way: each message has properties of its own. `done` messages stand before it."""
    only = Delivery([run], delivery.first_offset + done, run.count, delivery.redelivered)
    return b"".join(
        content_frames(
            channel,
            head + _TAG.pack(first_tag + index, delivery.redelivered) + address,
            mapping.message_properties(message, delivery.delivery_count),
            message.body,
            frame_max,
        )
        for index, message in enumerate(only.messages())
    )
