"""Contents that the kernel leaves: several body frames, or frames of other channels in between.

Rules:

* What is collected grows with the bytes that came, never by an announced size.
* The bytes of all unfinished contents of a connection, their properties included, are bounded
  together, because a client may open thousands of channels; and those of all connections. Where
  these are used up, who has more than an equal share of them is refused, so that nobody keeps the
  others from finishing theirs.
* A large body is collected in memory that becomes its record in the log, and summed up piece by
  piece: neither copied nor walked over as a whole. Long properties stand in front of it there
  (`long_properties.py`).
* The channel's state (`states.py`) has been checked before anything here is called.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

from polymq.broker.port import in_front
from polymq.core_log.kernels.batch import LARGE_BODY_BYTES, RECORD_BODY_AT, Batch, LargeBatch
from polymq.gateways.amqp import spec
from polymq.gateways.amqp.errors import Malformed, RemoteProtocolError, ReplyCode
from polymq.gateways.amqp.events import Run, Traffic
from polymq.gateways.amqp.kernels import codes, frames
from polymq.gateways.amqp.limits import Limits
from polymq.gateways.amqp.methods import CONTENT_HEAD, METHOD_HEAD
from polymq.gateways.amqp.tables import Buffer


@dataclass(slots=True)
class _Assembly:
    """A content that is being put together."""

    mandatory: bool
    address: bytearray  # exchange and routing key as they came, then properties
    address_size: int
    data: bytearray = field(default_factory=bytearray)  # the body, behind what has to be there
    crc: int = 0  # of a large body, as far as it came
    is_large: bool = False
    is_long: bool = False  # large, with long properties in front of the body
    properties_size: int = 0
    flags: int = 0
    body_left: int = 0
    body_size: int = 0  # collected so far
    empty_frames: int = 0


def fault(code: ReplyCode, text: str, channel: int = 0) -> RemoteProtocolError:
    """An error of basic.publish."""
    return RemoteProtocolError(
        code,
        text,
        channel=channel,
        class_id=spec.BasicPublish.CLASS_ID,
        method_id=spec.BasicPublish.METHOD_ID,
    )


class Assembling:
    """The unfinished contents of all connections of a listener.

    Attributes:
        bytes: of their properties and bodies.
        holder_count: connections that have some.
    """

    __slots__ = ("bytes", "holder_count")

    def __init__(self) -> None:
        self.bytes = 0
        self.holder_count = 0


class Contents:
    """The unfinished contents of one connection, by channel."""

    def __init__(self, limits: Limits, of_all: Assembling) -> None:
        self._limits = limits
        self._of_all = of_all
        self._contents: dict[int, _Assembly] = {}
        self._bytes = 0  # of properties and bodies, of all channels

    def begin(
        self, channel: int, method: spec.BasicPublish, buffer: Buffer, start: int, end: int
    ) -> None:
        """A publish method, whose payload is [start, end)."""
        if method.immediate:
            raise fault(ReplyCode.NOT_IMPLEMENTED, "immediate=true")
        address = bytearray(buffer[start + METHOD_HEAD.size + 2 : end - 1])
        self._contents[channel] = _Assembly(method.mandatory, address, len(address))

    def header(self, channel: int, buffer: Buffer, start: int, end: int) -> bool:
        """A header frame. Returns whether the content is complete: it has no body."""
        content = self._contents[channel]
        if end - start < CONTENT_HEAD.size + 2:
            raise Malformed("a content header ends too early")
        class_id, weight, body_size = CONTENT_HEAD.unpack_from(buffer, start)
        if class_id != spec.BasicPublish.CLASS_ID or weight:
            raise fault(
                ReplyCode.UNEXPECTED_FRAME,
                f"a content header of class {class_id} and weight {weight} after basic.publish",
            )
        properties = start + CONTENT_HEAD.size
        found = frames.scan_properties(buffer, properties, end)
        if found < 0:
            raise Malformed("the properties of a content header are malformed")
        if body_size > self._limits.body_bytes_max:
            # Known before a byte of it came. The body frames that follow are dropped with
            # whatever else comes on the closing channel.
            raise fault(
                ReplyCode.PRECONDITION_FAILED,
                f"message size {body_size} is larger than configured max size "
                f"{self._limits.body_bytes_max}",
                channel,
            )
        content.properties_size = end - properties
        content.is_large = body_size >= LARGE_BODY_BYTES
        content.body_left = body_size
        self._set_bytes(self._bytes + content.properties_size)
        self._check_room()
        content.is_long = content.is_large and content.properties_size > codes.LONG_BYTES
        if content.is_long:
            front = in_front(bytes(buffer[properties:end]))
            content.data = bytearray(RECORD_BODY_AT) + front
            content.crc = zlib.crc32(front)
        else:
            content.address += buffer[properties:end]
            content.data = bytearray(RECORD_BODY_AT) if content.is_large else content.address
        mandatory = codes.MANDATORY if content.mandatory else 0
        content.flags = found | mandatory | channel << codes.CHANNEL_SHIFT
        return not body_size

    def body(self, channel: int, buffer: Buffer, start: int, end: int) -> bool:
        """A body frame. Returns whether the content is complete."""
        content = self._contents[channel]
        size = end - start
        if size > content.body_left:
            raise fault(
                ReplyCode.FRAME_ERROR,
                f"a body has {size - content.body_left} bytes more than its header announced",
            )
        if not size:
            content.empty_frames += 1
            if content.empty_frames > self._limits.empty_body_frames_max:
                raise fault(
                    ReplyCode.FRAME_ERROR,
                    f"more than {self._limits.empty_body_frames_max} empty body frames",
                )
        self._set_bytes(self._bytes + size)
        content.body_size += size
        self._check_room()
        piece = buffer[start:end]
        content.data += piece
        if content.is_large:
            content.crc = zlib.crc32(piece, content.crc)
        content.body_left -= size
        return not content.body_left

    def _set_bytes(self, size: int) -> None:
        """So many bytes are unfinished from now on."""
        self._of_all.bytes += size - self._bytes
        self._of_all.holder_count += (size > 0) - (self._bytes > 0)
        self._bytes = size

    def _check_room(self) -> None:
        """Raises RemoteProtocolError: this connection's contents take too much memory."""
        limits, of_all = self._limits, self._of_all
        if self._bytes > limits.assembling_bytes_max:
            raise fault(
                ReplyCode.RESOURCE_ERROR,
                f"unfinished contents hold {self._bytes} bytes: finish some first",
            )
        if (
            of_all.bytes > limits.assembling_total_bytes_max
            and self._bytes > limits.assembling_total_bytes_max // of_all.holder_count
        ):
            raise fault(
                ReplyCode.RESOURCE_ERROR,
                f"unfinished contents of all connections hold {of_all.bytes} bytes, "
                f"{self._bytes} of them are this one's: try again later",
            )

    def complete(self, channel: int) -> Traffic:
        """The content that is whole, as a batch of one row over its own bytes."""
        content = self._contents[channel]
        self.forget(channel)
        address, properties = 0, content.address_size
        body = properties + content.properties_size
        if content.is_large:
            address = len(content.data)
            body = address - content.body_size
            properties = address + content.address_size
            if content.is_long:
                properties = body - content.properties_size
            content.data += content.address
            batch: Batch = LargeBatch(content.data, content.crc)
        else:
            batch = Batch(1)
            batch.buffer = content.data
        batch.add(
            (address, content.address_size),
            (body, content.body_size),
            (properties, content.properties_size),
            0,
            content.flags,
        )
        return Traffic(batch, [Run(channel, content.flags, 0, 1)], [])

    def forget(self, channel: int) -> None:
        """The channel closes: drop what it has not finished."""
        content = self._contents.pop(channel, None)
        if content is not None:
            self._set_bytes(self._bytes - content.properties_size - content.body_size)

    def clear(self) -> None:
        """The connection closes."""
        self._contents.clear()
        self._set_bytes(0)
