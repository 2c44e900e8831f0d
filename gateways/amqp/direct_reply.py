"""Direct reply-to: answers to requests, without a queue.

A client consumes from the name `amq.rabbitmq.reply-to` and publishes its requests with that name as
`reply_to`. The broker replaces it with a name that stands for this consumer alone. Whoever answers
publishes to the default exchange with that name as routing key, and the answer goes straight to the
consumer (RabbitMQ's documentation of direct reply-to).

Rules:

* An answer is kept in memory only: there is no queue, no topic and no record of the log. It is
  delivered at most once, and its publish is confirmed at once.
* A consumer whose socket does not drain keeps a bounded number of bytes. Answers beyond that are
  dropped and, if they were mandatory, returned, as are those to a consumer that is gone.
* The name has 192 random bits, and only the request carries it. To know it is the right to answer;
  no other permission is asked for.
* A channel has one such consumer, and its `no_ack` is true: an answer cannot be given back.
"""

from __future__ import annotations

import secrets
import struct
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from polymq.broker.port import Reason, Refused
from polymq.gateways.amqp.methods import content_frames, short_string
from polymq.gateways.amqp.reply_names import NAME, PREFIX

if TYPE_CHECKING:
    from polymq.gateways.amqp.channel import Channel

TOKEN_BYTES: Final = 24

_TAG: Final = struct.Struct(">QB")


class Replies:
    """The consumers of answers by their names. Shared by the clients of a server.

    Args:
        new_token: makes the random part of a name.
    """

    def __init__(
        self, new_token: Callable[[], str] = lambda: secrets.token_urlsafe(TOKEN_BYTES)
    ) -> None:
        self._new_token = new_token
        self._consumers: dict[str, ReplyConsumer] = {}

    def add(self, consumer: ReplyConsumer) -> str:
        """Answers to the name that is returned go to this consumer from now on."""
        name = PREFIX + self._new_token()
        self._consumers[name] = consumer
        return name

    def remove(self, name: str) -> None:
        """They do not any more."""
        self._consumers.pop(name, None)

    def find(self, name: str) -> ReplyConsumer | None:
        """The consumer whose name this is."""
        return self._consumers.get(name)

    def declares(self, queue: str) -> bool:
        """Whether a declaration of this queue means a consumer of answers.

        Raises:
            Refused: NOT_FOUND, there is no such consumer (any more).
        """
        if not queue.startswith(NAME):
            return False
        if queue != NAME and queue not in self._consumers:
            raise Refused(Reason.NOT_FOUND, f"no queue '{queue}' in vhost '/'")
        return True

    @property
    def count(self) -> int:
        """How many consumers of answers there are."""
        return len(self._consumers)


class ReplyConsumer:
    """The consumer of answers of one channel. It stands among the channel's consumers.

    Attributes:
        name: what `reply_to` of its requests becomes.
    """

    __slots__ = ("_channel", "_head", "_started", "_waiting", "_waiting_bytes", "name", "tag")

    def __init__(self, channel: Channel, tag: str) -> None:
        self._channel = channel
        self._head = struct.pack(">HH", 60, 60) + short_string(tag)
        self._started = False
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self.tag = tag
        self.name = channel.link.replies.add(self)
        channel.reply_consumer = self

    def deliver(self, properties: bytes, body: bytes) -> bool:
        """Write an answer, or keep it until the socket drains. False if there is no room for it,
        or the channel is closed."""
        channel = self._channel
        if channel.closed:
            return False
        link = channel.link
        size = len(properties) + len(body)
        waits = self._waiting or not self._started or not link.takes_deliveries()
        if self._waiting and self._waiting_bytes + size > link.limits.replies_bytes_max:
            return False
        tag = channel.unacked.next_tag
        channel.unacked.next_tag += 1
        address = short_string("") + short_string(self.name)
        method = self._head + _TAG.pack(tag, 0) + address
        data = content_frames(channel.number, method, properties, body, channel.frame_max)
        link.counts.sent += 1
        if waits:
            self._waiting.append(data)
            self._waiting_bytes += len(data)
        else:
            link.write_delivery(data)
        return True

    # --- for the channel --------------------------------------------------------------------

    def start(self) -> None:
        """Consume-ok left: answers may follow."""
        self._started = True
        self.ready()

    def ready(self) -> None:
        """The socket takes bytes again."""
        link = self._channel.link
        if self._channel.closed:
            return
        while self._waiting and self._started and link.takes_deliveries():
            data = self._waiting.popleft()
            self._waiting_bytes -= len(data)
            link.write_delivery(data)

    def end(self) -> None:
        """No more answers."""
        self._channel.link.replies.remove(self.name)
        self._channel.reply_consumer = None
        self._waiting.clear()
        self._waiting_bytes = 0


def new_consumer(channel: Channel, tag: str, *, no_ack: bool) -> ReplyConsumer:
    """basic.consume of `amq.rabbitmq.reply-to`. Raises Refused: BAD_ARGUMENT."""
    if not no_ack:
        raise Refused(
            Reason.BAD_ARGUMENT, f"reply consumer cannot acknowledge: consume '{NAME}' with no_ack"
        )
    if channel.reply_consumer is not None:
        raise Refused(Reason.BAD_ARGUMENT, "reply consumer already set on this channel")
    return ReplyConsumer(channel, tag)


def reply_name(channel: Channel) -> str:
    """What a request's `reply_to` becomes that says `amq.rabbitmq.reply-to`. Raises Refused:
    BAD_ARGUMENT, nothing on the channel consumes answers."""
    if channel.reply_consumer is None:
        raise Refused(
            Reason.BAD_ARGUMENT,
            f"fast reply consumer does not exist: consume from '{NAME}' on this channel first",
        )
    return channel.reply_consumer.name
