# cython: boundscheck=False, annotation_typing=False, initializedcheck=False
"""The short way of a read that holds one message, or the ack of one.

Many publishers send one message and wait for its confirm, and many consumers acknowledge one
message and wait for the next. What such a read costs is not its bytes but the steps around them, so
this file has the steps that it needs and no others. It is one source in two forms: plain Python,
and a C extension, for which `fast_path.pxd` says of what types all this is.

A `FastPath` belongs to one connection. `take` handles a read that is exactly one of

* a publish in three frames (two without body) whose method frame, and so its channel, exchange and
  routing key, came before on this connection, with properties that say nothing new to the broker;
* an ack of one delivery, or of all up to one,

and leaves all others, untouched, to `client.py`, which handles any read, these as well. So what is
not looked at here costs time, never a message.

Rules:

* A channel's state stands in the core's table; only an open channel is served here, and only one
  that has neither a transaction nor unconfirmed publishes.
* What may change between two messages (template, confirms, delays) is asked each time.
* What the engine refuses was not stored: the long way asks again, and acts on the answer. An ack
  that is an error has settled nothing: the long way meets the same error, and closes the channel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from polymq.broker.port import APPENDED, Refused
from polymq.gateways.amqp.errors import RemoteProtocolError
from polymq.gateways.amqp.kernels.codes import ADDRESS_AT
from polymq.gateways.amqp.kernels.frames import scan_properties
from polymq.gateways.amqp.states import TRAFFIC_STATE

if TYPE_CHECKING:
    from array import array

    from polymq.broker.port import Template
    from polymq.core_log.kernels.batch import Batch
    from polymq.gateways.amqp.channel import Channel
    from polymq.gateways.amqp.kernels.served import Served
    from polymq.gateways.amqp.protocol import Protocol
    from polymq.gateways.amqp.states import ChannelState

ASK_BYTES: Final = 64 * 1024
"""How much the log grows until it is asked again whether the disk keeps up: a 512th of what makes
the engine say that it does not."""
KINDS_MAX: Final = 64
"""Method frames that a connection is known to send; beyond it all are forgotten, and come back with
use. A publisher to more addresses than that sends them in bulk or is not in a hurry."""

METHOD: Final = 1
HEADER: Final = 2
BODY: Final = 3
FRAME_END: Final = 0xCE
BASIC: Final = 60
ACK: Final = 80
ACK_BYTES: Final = 21
"""The whole frame of an ack."""


class Kind:
    """What messages with one method frame have in common: the last one that came the long way.

    Attributes:
        properties: property flags and properties as they came.
        found: what they say (`kernels.codes`): others that say the same are as good.
        flags: of the rows.
        confirming: whether the channel confirmed when the template was chosen by it.
    """

    def __init__(
        self, channel: Channel, template: Template, properties: bytes, found: int, flags: int
    ) -> None:
        self.channel = channel
        self.template = template
        self.properties = properties
        self.found = found
        self.flags = flags
        self.confirming = channel.confirming


class FastPath:
    """One connection's part of it.

    Args:
        batch: one row of it is filled for each publish.
        core: the connection's; the states of its channels stand there.
    """

    def __init__(self, client: Served, batch: Batch, core: Protocol) -> None:
        self.client = client
        self.batch = batch
        self.rows: array[int] = batch.rows
        self.core = core
        self.states: dict[int, ChannelState] = core.channels
        self.channels = client.channels
        self.kinds: dict[bytes, Kind] = {}
        self.body_bytes_max = client.limits.body_bytes_max
        self.answers_bytes_max = client.limits.answers_bytes_max
        self.ask_at = 0
        """Who publishes something that ends behind this position asks whether the disk keeps up."""

    def learn(self, method: bytes, kind: Kind) -> None:
        """A message with this method frame came the long way, and was stored as `kind` says."""
        if len(self.kinds) >= KINDS_MAX:
            self.kinds.clear()
        self.kinds[method] = kind

    def take(self, buffer: bytearray, start: int, end: int) -> bool:
        """Handle `buffer[start:end]`, if it belongs here and nothing else, and say so."""
        if end - start < ACK_BYTES or buffer[start] != METHOD:
            return False
        if end - start == ACK_BYTES:
            return self.take_ack(buffer, start)
        size = buffer[start + 5] << 8 | buffer[start + 6]
        method_end = start + size + 8
        if buffer[start + 3] or buffer[start + 4] or method_end + 21 > end:
            return False
        kind = self.kinds.get(bytes(buffer[start:method_end]))
        if kind is None:
            return False
        return self.take_publish(buffer, start, end, method_end, kind)

    # --- acks -------------------------------------------------------------------------------

    def take_ack(self, buffer: bytearray, at: int) -> bool:
        """The same for a frame that has the size of an ack."""
        if (
            buffer[at + 3]
            or buffer[at + 4]
            or buffer[at + 5]
            or buffer[at + 6] != ACK_BYTES - 8
            or buffer[at + 7]
            or buffer[at + 8] != BASIC
            or buffer[at + 9]
            or buffer[at + 10] != ACK
            or buffer[at + 20] != FRAME_END
            or buffer[at + 11]  # tags that are larger than any we gave
            or buffer[at + 12]
        ):
            return False
        number = buffer[at + 1] << 8 | buffer[at + 2]
        if self.states.get(number) is not TRAFFIC_STATE:
            return False
        channel = self.channels.get(number)
        if channel is None or channel.transaction is not None:
            return False
        tag = buffer[at + 13] << 8 | buffer[at + 14]
        tag = tag << 16 | buffer[at + 15] << 8 | buffer[at + 16]
        tag = tag << 16 | buffer[at + 17] << 8 | buffer[at + 18]
        try:
            channel.settle(tag, 1, buffer[at + 19] & 1)
        except RemoteProtocolError:
            return False
        channel.credit_grew()
        return True

    # --- publishes --------------------------------------------------------------------------

    def take_publish(
        self, buffer: bytearray, start: int, end: int, header: int, kind: Kind
    ) -> bool:
        """The same for a publish whose header frame has to stand at `header`."""
        channel = kind.channel
        if (
            channel.closed
            or channel.confirming is not kind.confirming
            or channel.transaction is not None
            or self.states.get(channel.number) is not TRAFFIC_STATE
        ):
            return False
        if (
            buffer[header] != HEADER
            or buffer[header + 1] != buffer[start + 1]
            or buffer[header + 2] != buffer[start + 2]
            or buffer[header + 3]
            or buffer[header + 4]
            or buffer[header + 7]
            or buffer[header + 8] != BASIC
            or buffer[header + 9]
            or buffer[header + 10]
            or buffer[header + 11]  # bodies of 4 GiB
            or buffer[header + 12]
            or buffer[header + 13]
            or buffer[header + 14]
        ):
            return False
        properties = header + 19
        header_end = header + 7 + (buffer[header + 5] << 8 | buffer[header + 6])
        if header_end < properties + 2 or header_end >= end or buffer[header_end] != FRAME_END:
            return False
        frame_max = self.core.frame_max
        body_size = buffer[header + 15] << 8 | buffer[header + 16]
        body_size = body_size << 16 | buffer[header + 17] << 8 | buffer[header + 18]
        body = header_end + 1
        if body_size:
            if body_size > self.body_bytes_max or end - body != body_size + 8:
                return False
            if (
                buffer[body] != BODY
                or buffer[body + 1] != buffer[start + 1]
                or buffer[body + 2] != buffer[start + 2]
                or buffer[body + 3] != buffer[header + 15]
                or buffer[body + 4] != buffer[header + 16]
                or buffer[body + 5] != buffer[header + 17]
                or buffer[body + 6] != buffer[header + 18]
                or buffer[end - 1] != FRAME_END
                or body_size > frame_max
            ):
                return False
            body += 7
        elif body != end:
            return False
        else:
            body = 0
        if header_end - header - 7 > frame_max:
            return False
        if (
            buffer[properties:header_end] != kind.properties
            and scan_properties(buffer, properties, header_end) != kind.found
        ):
            return False
        rows = self.rows
        rows[0] = start + ADDRESS_AT
        rows[1] = header - start - ADDRESS_AT - 2
        rows[2] = body
        rows[3] = body_size
        rows[4] = properties
        rows[5] = header_end - properties
        rows[6] = 0
        rows[7] = kind.flags
        self.batch.buffer = buffer
        self.batch.count = 1
        return self.publish(channel, kind.template)

    def publish(self, channel: Channel, template: Template) -> bool:
        """Store the one row of the batch, and confirm it."""
        client = self.client
        publisher = client.publisher
        if not template.valid or publisher.delays(template):
            return False
        try:
            position = client.port.publish(template, self.batch, 0, 1)
        except Refused:
            return False
        publisher.stored(template, position, 1)
        if template.overflowed:
            channel.published(0, position, APPENDED)
            channel.not_published(1)
        elif channel.confirming:
            answers = client.answers
            answers.wait(channel.confirm_next(), position, template.durability)
            if answers.bytes_waiting + client.unread_bytes > self.answers_bytes_max:
                client.check_pressure()
        if position >= self.ask_at or client.asks_always:
            self.ask_at = position + ASK_BYTES if client.keeps_up() else 0
        return True
