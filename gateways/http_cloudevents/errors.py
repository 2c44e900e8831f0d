"""What can be wrong with a request, and which HTTP answer it gets.

Strategy: the pure parts raise `BadEvent` (one event breaks a rule of CloudEvents), `BadBatch`
(some events of a batch do) or `Problem` (anything else in a request that the client can mend).
The engine raises `Refused`, which `STATUS_OF_REASON` turns into a status. The server translates
all of them into `application/problem+json` (RFC 9457) in one place, `responses.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from polymq.broker.port import Reason

STATUS_OF_REASON: Final[Mapping[Reason, int]] = {
    Reason.NOT_FOUND: 404,
    Reason.DIFFERENT: 409,
    Reason.LOCKED: 409,
    Reason.IN_USE: 409,
    Reason.NOT_EMPTY: 409,
    Reason.FORBIDDEN: 403,
    Reason.NOT_AUTHENTICATED: 401,
    Reason.BAD_NAME: 400,
    Reason.BAD_ARGUMENT: 400,
    Reason.TOO_LARGE: 413,
    Reason.LIMIT: 429,
    Reason.BANNED: 403,
    Reason.RATE: 429,
    Reason.UNDECIDED: 503,
    Reason.READ_ONLY: 503,
    Reason.STORAGE_FULL: 507,
}
"""Every reason of the engine has its HTTP status (a test holds the table complete)."""


class BadEvent(ValueError):
    """One event breaks a rule of CloudEvents 1.0.

    Args:
        attribute: the attribute or member at fault, by its CloudEvents name.
        text: what is wrong with it and what to send instead.
    """

    def __init__(self, attribute: str, text: str) -> None:
        super().__init__(f"{attribute}: {text}")
        self.attribute = attribute
        self.text = text


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFault:
    """One bad event of a batch: its place, its id as far as it could be read, what is wrong."""

    index: int
    id: str | None
    attribute: str
    text: str


class BadBatch(ValueError):
    """Some events of a batch are bad. Nothing of the batch is taken."""

    def __init__(self, faults: Sequence[BatchFault], *, count: int, more: bool) -> None:
        super().__init__(f"{len(faults)}{' or more' if more else ''} of {count} events are invalid")
        self.faults = tuple(faults)
        self.count = count
        self.more = more


class Problem(Exception):
    """A request that gets an error answer.

    Args:
        status: the HTTP status.
        title: what kind of problem, the same for each occurrence.
        detail: what is wrong here and what to do.
        members: further members of the problem document.
        headers: further headers of the answer (Retry-After, Allow).
    """

    def __init__(
        self,
        status: int,
        title: str,
        detail: str,
        *,
        members: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(f"{status} {title}: {detail}")
        self.status = status
        self.title = title
        self.detail = detail
        self.members = members or {}
        self.headers = headers or {}
