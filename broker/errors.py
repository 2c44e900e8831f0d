"""Who is at fault, and why: the errors that the engine raises and gateways translate.

Strategy: the engine raises `Refused` with a `Reason`; each gateway has one table from `Reason` to
its protocol's code. `StorageFailed` is the store's, terminal for the log directory. A start may end
with `UnknownChange`. Nothing else leaves the engine on purpose; anything else is our bug and is
allowed to crash loudly.
"""

from __future__ import annotations

import enum
from typing import Final

from polymq.core_log.errors import StorageFailed, StoreRefused

__all__ = [
    "PASSING",
    "BrokerError",
    "Reason",
    "Refused",
    "StorageFailed",
    "Unanswered",
    "UnknownChange",
    "WrongAcknowledgement",
]


class Reason(enum.Enum):
    """Why the engine refuses an operation. Each gateway maps every member to its own code."""

    NOT_FOUND = "not found"
    DIFFERENT = "exists with other settings"
    LOCKED = "belongs to another connection"
    IN_USE = "in use"
    NOT_EMPTY = "not empty"
    FORBIDDEN = "not allowed"
    NOT_AUTHENTICATED = "user or password is wrong"
    BAD_NAME = "bad name"
    BAD_ARGUMENT = "bad argument"
    TOO_LARGE = "too large"
    LIMIT = "a limit is reached"
    BANNED = "on the ban list"
    RATE = "too many new connections"
    READ_ONLY = "the broker is read-only"
    STORAGE_FULL = "the disk is full"
    UNDECIDED = "it is not known whether it is allowed"


PASSING: Final = frozenset({Reason.LIMIT, Reason.READ_ONLY, Reason.STORAGE_FULL, Reason.UNDECIDED})
"""Reasons that pass by themselves or by an operator's doing: what the broker has to store by itself
(a dead letter, a delayed message that is due) it tries again. Any other reason is the message's
own, and the next attempt would end like the first."""


class UnknownChange(StoreRefused):
    """The log has a change of state that this version does not know: a newer one wrote it.

    Args:
        what: the change, or the kind of rows.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(
            f"a newer version of PolyMQ wrote this log: it has {what}, which this version does not "
            "know. Start that version again, or restore a backup of the time before the upgrade"
        )


class BrokerError(Exception):
    """Base of everything that the engine raises on purpose."""


class WrongAcknowledgement(BrokerError):
    """A client answers a message with what does not belong to its QoS. Nothing has changed; the
    connection has to be closed."""


class Refused(BrokerError):
    """The engine refuses; the connection may go on.

    Args:
        reason: what kind of refusal, for the gateway's table.
        text: one sentence for the user: what is wrong and what to do. No newline.

    Attributes:
        stored: of a run that was to be published: how many messages, from the first on, were
            stored before the one at fault.
    """

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason
        self.text = text
        self.stored = 0


class Unanswered(Refused):
    """A service has to be asked first (`PrincipalPort.ask`). Nothing has changed; with the answer
    the operation can be tried again. Who does not ask treats it as refused.

    Args:
        wanted: what the service has to be asked.
    """

    def __init__(self, wanted: object, text: str) -> None:
        super().__init__(Reason.UNDECIDED, text)
        self.wanted = wanted
