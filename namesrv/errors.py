"""Why a name server says no, and why it does not start."""

from __future__ import annotations


class NameServerError(Exception):
    """Base of everything that this package raises on purpose."""


class Refused(NameServerError):
    """A request that is understood and not granted; nothing was changed. The text is for people."""


class Busy(Refused):
    """A limit is reached: what is refused now may be granted later, or by another name server."""


class BrokersFull(Busy):
    """No further broker."""


class TopicsFull(Busy):
    """No further topic."""


class CannotListen(NameServerError):
    """A port could not be bound."""

    def __init__(self, port: int, error: OSError) -> None:
        super().__init__(str(error))
        self.port = port
        self.error = error


class CannotKeep(NameServerError):
    """The configuration could not be read or written; the cause is the system's error."""


class InUse(NameServerError):
    """Another name server has the data directory."""


class UnknownField(Exception):
    """A signed request has a field that is unknown for its code; answered with 29."""


class NotAllowed(Exception):
    """The request has to be signed with the name server's access key; answered with 16."""
