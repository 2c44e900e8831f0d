"""Who is at fault, and which reply code tells them (AMQP 4.10, and RabbitMQ's use of the codes).

Strategy: the core raises `RemoteProtocolError` when the client breaks the protocol; whoever drives
it answers with `close` on the channel or the connection that the error names. Refusals of the
engine become the same values (`mapping.py`), so there is one way from a reason to the wire.
`LocalProtocolError` is our own bug: something was sent that the state does not allow.
"""

from __future__ import annotations

import enum
from typing import Final

REPLY_TEXT_BYTES_MAX: Final = 255
"""A reply text is a short string."""


class ReplyCode(enum.IntEnum):
    """Codes of close and return."""

    NO_ROUTE = 312
    CONNECTION_FORCED = 320
    ACCESS_REFUSED = 403
    NOT_FOUND = 404
    RESOURCE_LOCKED = 405
    PRECONDITION_FAILED = 406
    FRAME_ERROR = 501
    COMMAND_INVALID = 503
    CHANNEL_ERROR = 504
    UNEXPECTED_FRAME = 505
    RESOURCE_ERROR = 506
    NOT_ALLOWED = 530
    NOT_IMPLEMENTED = 540
    INTERNAL_ERROR = 541


class AmqpError(Exception):
    """Base of this gateway's errors."""


class LocalProtocolError(AmqpError):
    """We tried to send what the connection's state does not allow."""


class Malformed(AmqpError):
    """Bytes that are not what AMQP 4.2 describes. The core turns it into FRAME_ERROR."""


class RemoteProtocolError(AmqpError):
    """The client did what it may not, or asks for what it cannot get.

    Args:
        code: what to answer.
        text: one sentence for the developer of the client; the code's name is put in front.
        channel: the channel to close, or 0 for the whole connection.
        class_id, method_id: the method that is at fault, or 0.
    """

    def __init__(
        self, code: ReplyCode, text: str, *, channel: int = 0, class_id: int = 0, method_id: int = 0
    ) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.channel = channel
        self.class_id = class_id
        self.method_id = method_id

    @property
    def reply_text(self) -> str:
        """The text for the wire: `NAME - text`, at most 255 bytes, cut between characters."""
        return cut_text(f"{self.code.name} - {self.text}")


def cut_text(text: str) -> str:
    """The text as it fits a short string, cut between characters."""
    raw = text.encode("utf-8", "replace")[:REPLY_TEXT_BYTES_MAX]
    return raw.decode("utf-8", "ignore")
