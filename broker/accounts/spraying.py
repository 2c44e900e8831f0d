"""Failed logins of an address, whatever users they name: what it has to wait for it.

Who tries one password on many users fails once for each of them, which no count of failures of a
user shows. Failures of an address fill a bucket that leaks: who mistypes never fills it; from an
address whose bucket is full, one login at a time is looked at, after a pause that doubles with each
failure. Pure; the table is bounded, and forgets the least recent.
"""

from __future__ import annotations

from dataclasses import dataclass

from polymq.broker.bounded_cache import BoundedCache
from polymq.broker.limits import Limits


@dataclass(slots=True)
class _Bucket:
    level: float
    at: float


class Spraying:
    """Failures by address (`net.newcomers.network_of`)."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        # The least recent first.
        self._buckets: BoundedCache[str, _Bucket] = BoundedCache(limits.login_failures_cached_max)

    def __len__(self) -> int:
        return len(self._buckets)

    def failed(self, source: str, now: float) -> None:
        """A login from there was wrong."""
        bucket = self._leaked(source, now) or _Bucket(0.0, now)
        bucket.level += 1
        self._buckets.pop(source, None)
        self._buckets.add(source, bucket)

    def pause_seconds(self, source: str, now: float) -> float:
        """How long the next login from there waits before it is looked at; 0: it does not."""
        bucket = self._leaked(source, now)
        if bucket is None:
            return 0.0
        over = bucket.level - self._limits.login_address_failures_max
        if over < 0:
            return 0.0
        doubled: float = 2.0 ** min(over, 16.0)
        return min(doubled, self._limits.login_delay_seconds_max)

    def _leaked(self, source: str, now: float) -> _Bucket | None:
        """The bucket as it is now; None if it is empty."""
        bucket = self._buckets.get(source)
        if bucket is None:
            return None
        leak = max(0.0, now - bucket.at) * self._limits.login_address_failures_per_minute / 60
        bucket.level, bucket.at = max(0.0, bucket.level - leak), now
        if not bucket.level:
            del self._buckets[source]
            return None
        return bucket
