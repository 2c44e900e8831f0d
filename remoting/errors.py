"""Who is at fault on a remoting connection.

Strategy: the pure core raises `RemoteProtocolError` for what the peer sent and
`LocalProtocolError` for what our own caller asked. The client adds what a network can do to a
call (`CallFailed`) and what a broker can answer to it (`RequestFailed`). Drivers translate the
errors of their sockets into `CallFailed` at one place, and let everything else through.
"""

from __future__ import annotations


class RemotingError(Exception):
    """Base of everything that this package raises on purpose."""


class LocalProtocolError(RemotingError):
    """Our side is wrong: the frame was not built, nothing was sent."""


class RemoteProtocolError(RemotingError):
    """The peer sent what the protocol does not allow: the connection has to be closed."""


class BadFields(RemotingError):
    """A header or body of a well-formed frame lacks a field, or has one of the wrong kind.

    The frame's limits are known, so the connection can go on: answer with an error code.
    """


class BadBody(RemotingError):
    """A message's body cannot be decompressed. The text says why and, where that is known, which
    message it is."""


class CallFailed(RemotingError):
    """No answer came: refused, reset, closed, or late. Whether the request was carried out is
    unknown."""


class RequestFailed(RemotingError):
    """The broker answered with an error code.

    Attributes:
        code: a response code (`codes.ResponseCode`, or a number that it does not list).
        remark: the broker's words.
    """

    def __init__(self, code: int, remark: str, *, address: str = "") -> None:
        prefix = f"{address}: " if address else ""
        super().__init__(f"{prefix}code {code}: {remark or 'no reason given'}")
        self.code = code
        self.remark = remark


class Unreachable(RemotingError):
    """Every address was tried as often as the settings allow; the last failure is the cause."""
