"""One open channel: its consumers, what they hold, and the publishes that wait for a confirm.

Rules:

* Delivery tags count up by one on a channel, for deliveries and gets alike (AMQP 4.2.3). What is
  unacknowledged is kept as runs (`broker.messages.unacked`), never as one object per message.
* A publish sequence number is given to every publish of a confirming channel, also to those that
  went nowhere. Confirms leave in order, `multiple`, behind the returns of the same messages.
* Closing gives back to the queues what is not acknowledged, and only then ends the consumers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from polymq.broker.port import APPENDED, BrokerPort, Durability, Position, Unacked
from polymq.gateways.amqp import spec
from polymq.gateways.amqp.consumer import Consumer, Holder
from polymq.gateways.amqp.errors import RemoteProtocolError, ReplyCode
from polymq.gateways.amqp.kernels import codes
from polymq.gateways.amqp.large_deliveries import LargeBody
from polymq.gateways.amqp.limits import Limits
from polymq.gateways.amqp.rows import Rows
from polymq.gateways.amqp.spec import Method
from polymq.gateways.amqp.transactions import Transaction

if TYPE_CHECKING:
    from polymq.gateways.amqp.ack_deadline import AckDeadline
    from polymq.gateways.amqp.batch_path import BatchPath
    from polymq.gateways.amqp.direct_reply import Replies, ReplyConsumer
    from polymq.net.message_counts import MessageCounts

_CONFIRM: Final = struct.Struct(">BHIHHQBB")
"""A whole frame of basic.ack or basic.nack."""
STEP_COUNT: Final = 64
"""Runs that are given back, or consumers that are served or ended, in one step: a millisecond or
two."""
Stretch = tuple[Holder, int, int]
"""Who holds messages that follow each other, the offset of the first, and how many."""
_ACK: Final = 80
_NACK: Final = 120


class Link(Protocol):
    """The connection as its channels see it. Implemented by `client.Client`."""

    port: BrokerPort
    limits: Limits
    user: str
    connection_id: str
    """See `net.clients.identity`."""
    publisher: BatchPath
    replies: Replies
    consumer_count: int
    """Consumers of all channels."""
    transaction_bytes: int
    """Held by the transactions of all channels."""
    counts: MessageCounts
    """Messages that were written to the client (a metric)."""

    @property
    def frame_max(self) -> int: ...
    @property
    def wants_cancel(self) -> bool:
        """Whether the client understands basic.cancel from the server."""

    def takes_deliveries(self) -> bool:
        """Whether the socket takes bytes now."""

    def write_delivery(self, data: bytes) -> None: ...
    def write_large(self, body: LargeBody) -> None:
        """Write the body frames of the message whose other frames were written just now."""

    def answer(
        self,
        data: bytes,
        position: int = 0,
        then: Callable[[], None] | None = None,
        durability: Durability | None = None,
    ) -> None:
        """See `Answers.send`."""

    def reply(
        self,
        channel: int,
        method: Method,
        position: int = 0,
        then: Callable[[], None] | None = None,
        durability: Durability | None = None,
    ) -> None:
        """Answer with a method without content."""

    def pause(self) -> Callable[[], None]:
        """Take no more frames until the function that is returned was called."""

    def new_tag(self) -> str:
        """A random consumer tag."""

    def work(self, steps: Iterator[None]) -> None:
        """Take the steps, all in this turn of the connection or some of them in its next: before
        anything that the client asks for from now on."""

    @property
    def is_working(self) -> bool:
        """Whether steps are left."""

    def later(self, callback: Callable[[], None]) -> None:
        """Call back in the next loop iteration."""

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back then, unless the function that is returned was called before."""

    def fail(self, error: RemoteProtocolError) -> None:
        """Close what the error names."""


class Channel:
    """See the head of this file.

    Attributes:
        number: the channel's number on the wire.
        prefetch: for each consumer that comes, 0 for no limit.
        prefetch_shared: for all consumers together, 0 for no limit.
        reply_consumer: its consumer of answers (`direct_reply.py`), if there is one.
        confirming: publishes are confirmed.
        transaction: what waits for tx.commit; None unless the channel is transactional.
        deadlines: of its consumers that may not keep messages as long as they like.
        last_queue: the queue that was declared last, which an empty name means.
    """

    __slots__ = (
        "_confirm_durability",
        "_confirm_position",
        "_confirmed",
        "_returned",
        "_sequence",
        "_served",
        "closed",
        "confirming",
        "consumers",
        "deadlines",
        "last_queue",
        "link",
        "number",
        "prefetch",
        "prefetch_shared",
        "reply_consumer",
        "transaction",
        "unacked",
        "unacked_count",
    )

    def __init__(self, number: int, link: Link) -> None:
        self.number = number
        self.link = link
        self.closed = False
        self.consumers: dict[str, Consumer | ReplyConsumer] = {}
        self.reply_consumer: ReplyConsumer | None = None
        self.deadlines: set[AckDeadline] = set()
        self.unacked: Unacked[Holder] = Unacked()
        self.unacked_count = 0  # of consumers, without gets
        self.prefetch = 0
        self.prefetch_shared = 0
        self.confirming = False
        self.transaction: Transaction | None = None
        self.last_queue = ""
        self._sequence = 0  # of the last publish
        self._confirmed = 0  # the last sequence that a confirm was sent, or will be sent, for
        self._confirm_position = Position(0)
        self._confirm_durability = APPENDED  # the class that the next confirm waits for
        self._returned: dict[Consumer, None] = {}  # consumers whose credit has grown
        self._served = ""  # the tag of the consumer that had shared credit last

    # --- for consumers ----------------------------------------------------------------------

    @property
    def frame_max(self) -> int:
        """Largest whole frame that the client takes."""
        return self.link.frame_max

    def consumer_cancelled(self, consumer: Consumer) -> None:
        """Its queue is gone: tell the client, if it understands."""
        if self.consumers.pop(consumer.tag, None) is None:
            return
        self.link.consumer_count -= 1
        if self.link.wants_cancel:
            # Behind delete-ok, if the queue went by this client's own queue.delete.
            self.link.later(partial(self._say_cancelled, consumer.tag))

    def _say_cancelled(self, tag: str) -> None:
        if not self.closed and tag not in self.consumers:
            self.link.reply(self.number, spec.BasicCancel(consumer_tag=tag, nowait=True))

    # --- settling ---------------------------------------------------------------------------

    def settle(self, first_tag: int, count: int, bits: int) -> None:
        """Acks, nacks or rejects of consecutive tags, or of all up to one (`kernels.codes`).

        Raises:
            RemoteProtocolError: a tag is not unacknowledged. Those before it are settled.
        """
        if self.transaction is not None:
            self._defer_settlements(self.transaction, first_tag, count, bits)
            return
        if bits & codes.MULTIPLE:
            parts = self._settle_to(first_tag)
            if len(parts) == 1:
                self.give_back(parts[0], bits)
            elif parts:
                self.link.work(self._giving_back(parts, bits))
            return
        last_tag = first_tag + count - 1
        try:
            self.give_back(self.unacked.settle(first_tag, last_tag), bits)
        except KeyError as error:
            unknown = int(error.args[0])
            if first_tag < unknown <= last_tag:
                self.give_back(self.unacked.settle(first_tag, unknown - 1), bits)
            raise self._unknown_tag(unknown, bits) from None

    def _settle_to(self, tag: int) -> list[list[Stretch]]:
        if tag == 0:  # all that there are (AMQP 1.8.3.13)
            return self.unacked.drain()
        if tag not in self.unacked:
            raise self._unknown_tag(tag, codes.MULTIPLE)
        return self.unacked.settle_to(tag)

    def _unknown_tag(self, tag: int, bits: int) -> RemoteProtocolError:
        method = spec.BasicNack if bits & codes.NEGATIVE else spec.BasicAck
        return RemoteProtocolError(
            ReplyCode.PRECONDITION_FAILED,
            f"unknown delivery tag {tag}",
            channel=self.number,
            class_id=method.CLASS_ID,
            method_id=method.METHOD_ID,
        )

    def give_back(self, runs: list[Stretch], bits: int) -> None:
        """Carry out acks or nacks of what is no longer unacknowledged: of many runs, in steps."""
        if len(runs) > STEP_COUNT or self.link.is_working:
            self.link.work(self._giving_back([runs], bits))
        else:
            for holder, first_offset, count in runs:
                self._give_back(holder, first_offset, count, bits)
            if runs:
                self._gave_back(bits)

    def _giving_back(self, parts: list[list[Stretch]], bits: int) -> Iterator[None]:
        yield from self.give_back_steps(parts, bits)
        if not self.closed:
            self.credit_grew()

    def give_back_steps(self, parts: list[list[Stretch]], bits: int) -> Iterator[None]:
        """`give_back` in steps, for lists of runs (`UnackedRuns.settle_to`), which are used up."""
        if not parts:
            return
        parts.reverse()  # each list is freed when it is done: all at once take a step too long
        done = 0
        while parts:
            for holder, first_offset, count in parts.pop():
                self._give_back(holder, first_offset, count, bits)
                done += 1
                if done % STEP_COUNT == 0:
                    yield
        self._gave_back(bits)

    def _give_back(self, holder: Holder, first_offset: int, count: int, bits: int) -> None:
        holder.returned(count)
        if bits & codes.REQUEUE:
            holder.requeue(first_offset, count)
        elif bits & codes.NEGATIVE:
            holder.reject(first_offset, count)
        else:
            holder.settle(first_offset, count)

    def _gave_back(self, bits: int) -> None:
        if bits & codes.NEGATIVE and not bits & codes.REQUEUE:
            # This client sees its dead letters, as its publishes.
            self.link.publisher.follow(self.link.port.storage.log_end())

    def returned(self, consumer: Consumer, count: int) -> None:
        """Messages of a consumer are no longer unacknowledged."""
        self.unacked_count -= count
        self._returned[consumer] = None

    def credit_grew(self) -> None:
        """Let consumers whose credit has grown take messages; all of them if they share it."""
        if self.prefetch_shared:
            self._returned.clear()
            self._share_credit()
            return
        returned = list(self._returned)
        self._returned.clear()
        self._serve(returned)

    def _share_credit(self) -> None:
        """Let all consumers take messages, first those behind the one that was served last: it may
        take all that there is."""
        consumers = list(self.consumers.values())
        first = next((i for i, one in enumerate(consumers, 1) if one.tag == self._served), 0)
        for consumer in consumers[first:] + consumers[:first]:
            before = self.unacked.next_tag
            consumer.ready()
            if self.unacked.next_tag != before:
                self._served = consumer.tag

    def ready(self) -> None:
        """The socket takes bytes again, or a limit was changed."""
        self._serve(list(self.consumers.values()))

    def _serve(self, consumers: Sequence[Consumer | ReplyConsumer]) -> None:
        """Let consumers take messages: many of them in steps."""
        if len(consumers) > STEP_COUNT:
            self.link.work(self._serving(consumers))
        else:
            for consumer in consumers:
                consumer.ready()

    def _serving(self, consumers: Sequence[Consumer | ReplyConsumer]) -> Iterator[None]:
        for consumer in consumers:  # what one of them takes may fill a step
            consumer.ready()
            yield

    # --- transactions -----------------------------------------------------------------------

    def defer(self, rows: Rows) -> None:
        """Keep publishes for tx.commit. Raises Refused: LIMIT."""
        link, transaction = self.link, self.transaction
        assert transaction is not None
        before = transaction.bytes
        transaction.defer(rows, room=link.limits.transaction_bytes_max - link.transaction_bytes)
        link.transaction_bytes += transaction.bytes - before

    def _defer_settlements(
        self, transaction: Transaction, first_tag: int, count: int, bits: int
    ) -> None:
        """As `settle`, for tx.commit to carry out."""
        if bits & codes.MULTIPLE:
            last_tag = first_tag or self.unacked.next_tag
            runs = self.unacked.runs()
            self._settle_to(first_tag)
            for tag, holder, offset, size in runs:
                if tag <= last_tag:
                    size = min(size, last_tag - tag + 1)
                    transaction.defer_settlement(bits, tag, holder, offset, size)
            return
        try:
            settled = self.unacked.settle(first_tag, first_tag + count - 1)
        except KeyError as error:  # the channel closes, so nothing before it counts either
            raise self._unknown_tag(int(error.args[0]), bits) from None
        for holder, offset, size in settled:
            transaction.defer_settlement(bits, first_tag, holder, offset, size)
            first_tag += size

    def roll_back(self) -> None:
        """Drop the publishes that are held; what was acknowledged is unacknowledged again."""
        if self.transaction is not None:
            for held in self.transaction.settlements:
                self.unacked.put_back(held.first_tag, held.holder, held.first_offset, held.count)
            self.forget_transaction()

    def forget_transaction(self) -> None:
        """Begin the next transaction."""
        if self.transaction is not None:
            self.link.transaction_bytes -= self.transaction.bytes
            self.transaction.clear()

    # --- consumers --------------------------------------------------------------------------

    def add(self, consumer: Consumer | ReplyConsumer) -> None:
        """A consumer whose handle is set, if it has one."""
        self.consumers[consumer.tag] = consumer
        self.link.consumer_count += 1

    def cancel(self, tag: str) -> None:
        """End a consumer; nothing if there is none (RabbitMQ answers cancel-ok then too)."""
        consumer = self.consumers.pop(tag, None)
        if consumer is not None:
            self.link.consumer_count -= 1
            consumer.end()

    # --- confirms ---------------------------------------------------------------------------

    def published(self, count: int, position: int, durability: Durability) -> None:
        """Publishes were taken; their confirm waits for the position, in this class."""
        if self.confirming:
            self._sequence += count
            if position > self._confirm_position:
                self._confirm_position = Position(position)
            if durability > self._confirm_durability:
                self._confirm_durability = durability

    def not_published(self, count: int) -> None:
        """Publishes failed for reasons of our own: nack them one by one, because `multiple` would
        say it of those before them too."""
        self.confirm()
        for _ in range(count):
            self._sequence += 1
            self.link.answer(self._confirm_frame(_NACK, multiple=False))
        self._confirmed = self._sequence

    def confirm(self) -> None:
        """Confirm all publishes since the last time, once they are safe."""
        count = self._sequence - self._confirmed
        if count:
            self._confirmed = self._sequence
            self.link.answer(
                self._confirm_frame(_ACK, multiple=count > 1),
                self._confirm_position,
                durability=self._confirm_durability,
            )
            self._confirm_durability = APPENDED

    def confirm_next(self) -> bytes:
        """Count one more publish, when all before it were confirmed; returns its confirm."""
        assert self._confirmed == self._sequence
        self._sequence = self._confirmed = self._sequence + 1
        return _CONFIRM.pack(1, self.number, 13, 60, _ACK, self._sequence, 0, 0xCE)

    def _confirm_frame(self, method_id: int, *, multiple: bool) -> bytes:
        return _CONFIRM.pack(
            1, self.number, 13, 60, method_id, self._sequence, 1 if multiple else 0, 0xCE
        )

    # --- the end ----------------------------------------------------------------------------

    def close(self) -> Iterator[None]:
        """Confirm what was taken. From this call on nothing more is taken or delivered.

        Returns:
            The steps that give back what is unacknowledged and end the consumers.
        """
        self.confirm()
        self.closed = True
        return self._closing()

    def _closing(self) -> Iterator[None]:
        self.roll_back()
        yield from self.give_back_steps(self.unacked.drain(), codes.REQUEUE)
        for index, tag in enumerate(list(self.consumers), 1):
            self.cancel(tag)
            if index % STEP_COUNT == 0:
                yield
        for deadline in list(self.deadlines):
            deadline.close()
        self._returned.clear()  # they know their channel: without cycles all is free at once
