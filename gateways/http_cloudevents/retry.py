"""When a delivery is tried again, and when it is given up. Pure: time and randomness come in.

The waits grow exponentially with full jitter: a uniform random part of the bound. A thousand
subscriptions whose sink came back do not call it in the same second.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

RETRIED: Final = frozenset({404, 408, 409, 429})
"""Client errors that may pass; Knative's table, which users of CloudEvents know."""


class Verdict(enum.Enum):
    """What an answer means for the message."""

    DELIVERED = "delivered"
    RETRY = "retry"
    REJECTED = "rejected"
    """It will not be taken however often it is sent: dead letter."""
    GONE = "gone"
    """The sink is retired (Web Hooks for Event Delivery 2.2, 410): the subscription stops."""


def verdict_of(status: int) -> Verdict:
    """What the status of a sink's answer means. Redirects are not followed: they are refusals."""
    if 200 <= status <= 299:
        return Verdict.DELIVERED
    if status == 410:
        return Verdict.GONE
    if status in RETRIED or status >= 500:
        return Verdict.RETRY
    return Verdict.REJECTED


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and how fast. Seconds.

    Attributes:
        attempts_max: deliveries of one message, the first included; then it is a dead letter.
        first_seconds: bound of the wait after the first failure; doubles with each.
        wait_seconds_max: where the doubling ends.
    """

    attempts_max: int = 10
    first_seconds: float = 1.0
    wait_seconds_max: float = 60.0

    def wait_seconds(self, attempts: int, random: float, retry_after: float | None) -> float:
        """How long to wait after the failure number `attempts`.

        Args:
            random: uniform in [0, 1).
            retry_after: what the sink asked for; it is obeyed if it is longer.
        """
        doubled = self.first_seconds * 2.0 ** min(attempts - 1, 60)
        return max(random * min(doubled, self.wait_seconds_max), retry_after or 0.0)


def retry_after_seconds(header: str | None, *, now_seconds: float, maximum: float) -> float | None:
    """The wait that a Retry-After header asks for (RFC 9110 10.2.3); None if it asks for none.

    Args:
        now_seconds: the time of day, for the form with a date.
        maximum: what no sink can exceed.
    """
    if header is None:
        return None
    text = header.strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:12]), maximum)
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    if moment.tzinfo is None:  # "-0000", an unknown zone: HTTP dates are in UTC.
        moment = moment.replace(tzinfo=UTC)
    return min(max(moment.timestamp() - now_seconds, 0.0), maximum)


class TokenBucket:
    """At most so many requests a minute, as WebHook-Allowed-Rate grants them.

    Requests are spread evenly: a burst of at most one second's worth.
    """

    def __init__(self, per_minute: int | None, *, now: float) -> None:
        self._per_second = None if per_minute is None else per_minute / 60.0
        self._full = max(self._per_second or 0.0, 1.0)
        self._tokens = self._full
        self._at = now  # when the tokens were counted

    def take(self, now: float) -> float:
        """Take one token. Returns how long to wait before the request may be sent."""
        if self._per_second is None:
            return 0.0
        self._tokens = min(self._full, self._tokens + (now - self._at) * self._per_second)
        self._at = now
        self._tokens -= 1.0
        return max(0.0, -self._tokens / self._per_second)
