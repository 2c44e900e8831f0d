"""What one user may use, and the pace of its publishing. Pure: time is an argument.

Counts (connections, queues, sessions, subscriptions) refuse what is one too many. Rates do not
refuse anything: they are token buckets that may go into debt by one read of a socket, and the
connections of a user in debt are not read until it is paid. So nothing is lost, and the check
costs one addition for a run of messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

BURST_SECONDS: Final = 1.0
"""How much of a rate may be used at once after a pause: a device that sends its readings of the
last second in one packet is no flood."""
PAUSE_SECONDS_MIN: Final = 0.01
"""A shorter pause costs more in timers than it holds back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas:
    """Bounds of one user, over all its connections. None: no bound beyond the broker's own."""

    connections: int | None = 10_000
    """At a time. A fleet may share one user; a client that reconnects in a loop stops here."""
    sessions: int | None = 10_000
    """Persistent MQTT sessions, connected or not: a tenth of what a broker has."""
    subscriptions: int | None = 100_000
    """Of all its MQTT sessions together: ten for each."""
    inflight: int | None = None
    """Messages of QoS 1 and 2 that one of its MQTT sessions may leave unacknowledged: for devices
    that can keep few of them."""
    queues: int | None = 10_000
    """AMQP queues that it declared: each durable one has an index on the disk."""
    messages_per_second: int | None = None
    """None: the disk sets the pace, as for everybody (`limits.unflushed_bytes_pause`)."""
    bytes_per_second: int | None = None
    """Of records as stored, with their properties."""

    def row(self) -> dict[str, int | None]:
        """What differs from the defaults, as a JSON value."""
        return {name: value for name, value in asdict(self).items() if value != _default(name)}


NAMES: Final = tuple(field.name for field in fields(Quotas))
DEFAULT: Final = Quotas()


def _default(name: str) -> int | None:
    value: int | None = getattr(DEFAULT, name)
    return value


def from_row(row: Mapping[str, Any]) -> Quotas:
    """Quotas from their JSON value."""
    return Quotas(**{name: row[name] for name in NAMES if name in row})


class TokenBucket:
    """A rate with a second's burst, which may be overdrawn by what one run costs.

    Args:
        per_second: the rate.
        now: the loop's clock, in seconds.
    """

    __slots__ = ("_at", "_level", "_per_second")

    def __init__(self, per_second: float, now: float) -> None:
        assert per_second > 0
        self._per_second = per_second
        self._level = per_second * BURST_SECONDS
        self._at = now

    def take(self, amount: float, now: float) -> None:
        """Something was used. The bucket may be in debt afterwards."""
        self._refill(now)
        self._level -= amount

    def debt_seconds(self, now: float) -> float:
        """How long until the debt is paid; 0 if there is none."""
        self._refill(now)
        return max(0.0, -self._level / self._per_second)

    def _refill(self, now: float) -> None:
        passed = max(0.0, now - self._at)
        self._at = now
        most = self._per_second * BURST_SECONDS
        self._level = min(most, self._level + passed * self._per_second)


class Pace:
    """The rates of one user, shared by its connections. Without rates it costs nothing to ask."""

    __slots__ = ("_bytes", "_messages", "limited")

    def __init__(self, quotas: Quotas, now: float) -> None:
        self._messages = _bucket(quotas.messages_per_second, now)
        self._bytes = _bucket(quotas.bytes_per_second, now)
        self.limited = self._messages is not None or self._bytes is not None
        """Whether there is anything to count."""

    def used(self, messages: int, size: int, now: float) -> None:
        """A run was stored."""
        if self._messages is not None:
            self._messages.take(messages, now)
        if self._bytes is not None:
            self._bytes.take(size, now)

    def pause_seconds(self, now: float) -> float:
        """How long its publishers should not be read from now on; 0 for not at all."""
        buckets = (self._messages, self._bytes)
        debts = [bucket.debt_seconds(now) for bucket in buckets if bucket is not None]
        longest = max(debts, default=0.0)
        return max(longest, PAUSE_SECONDS_MIN) if longest > 0 else 0.0


def _bucket(per_second: int | None, now: float) -> TokenBucket | None:
    return None if per_second is None else TokenBucket(per_second, now)
