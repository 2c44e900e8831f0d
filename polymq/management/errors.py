"""What goes wrong, as RabbitMQ's management API says it: a status, a word and a reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from polymq.broker.errors import Reason, Refused

BAD_REQUEST: Final = 400
NOT_AUTHORIZED: Final = 401
NOT_FOUND: Final = 404
METHOD_NOT_ALLOWED: Final = 405
TOO_LARGE: Final = 413
TOO_MANY: Final = 429
UNAVAILABLE: Final = 503

LOGIN_FAILED: Final = "Login failed"

ERRORS: Final[Mapping[int, str]] = {
    BAD_REQUEST: "bad_request",
    NOT_AUTHORIZED: "not_authorized",
    403: "forbidden",
    NOT_FOUND: "Object Not Found",
    METHOD_NOT_ALLOWED: "Method Not Allowed",
    TOO_LARGE: "payload_too_large",
    TOO_MANY: "too_many_requests",
    UNAVAILABLE: "service_unavailable",
}
"""The word of each status: the field `error` of an answer."""

_STATUS: Final[Mapping[Reason, int]] = {
    Reason.NOT_FOUND: NOT_FOUND,
    Reason.FORBIDDEN: NOT_AUTHORIZED,
    Reason.NOT_AUTHENTICATED: NOT_AUTHORIZED,
    Reason.BANNED: NOT_AUTHORIZED,
    Reason.UNDECIDED: UNAVAILABLE,
    Reason.TOO_LARGE: TOO_LARGE,
    Reason.RATE: TOO_MANY,
    Reason.READ_ONLY: UNAVAILABLE,
    Reason.STORAGE_FULL: UNAVAILABLE,
}
"""Of the reasons that are no bad requests."""


class Problem(Exception):
    """A request that is not carried out.

    Args:
        word: instead of the status's own.
    """

    def __init__(self, status: int, reason: str, word: str = "") -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.word = word or ERRORS.get(status, "error")

    def value(self) -> dict[str, str]:
        """The answer's JSON object."""
        return {"error": self.word, "reason": self.reason}


def problem_of(error: Refused) -> Problem:
    """What the broker refused."""
    return Problem(_STATUS.get(error.reason, BAD_REQUEST), error.text)


def bad(reason: str) -> Problem:
    """A request that cannot be carried out as it is."""
    return Problem(BAD_REQUEST, reason)


def missing() -> Problem:
    """There is no such object, in RabbitMQ's words."""
    return Problem(NOT_FOUND, "Not Found")
