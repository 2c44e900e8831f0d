"""Rates, from samples that are taken when somebody asks. Pure.

Theory. RabbitMQ samples its counters all the time. Here nobody counts for who does not look: each
question takes a sample, and the rate is what has changed since the sample before it. Questions that
follow each other within RATE_SECONDS_MIN share a rate, and a sample that is older than
RATE_SECONDS_MAX says nothing about now.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from polymq.broker.bounded_cache import BoundedCache

RATE_SECONDS_MIN: Final = 1.0
RATE_SECONDS_MAX: Final = 300.0
COUNTERS: Final = ("publish", "deliver_get", "ack")
"""Numbers of messages that only grow, in RabbitMQ's words."""
GAUGES: Final = ("messages", "messages_ready", "messages_unacknowledged")
"""Numbers of messages that are there."""
SAMPLES_MAX: Final = 20_000
"""Objects whose last sample is remembered, some 300 bytes each. Of more, the rates are 0."""


NO_RATE: Final[Mapping[str, float]] = {"rate": 0.0}
"""Shared by all that do not change."""
_DETAILS: Final = {name: f"{name}_details" for name in (*COUNTERS, *GAUGES)}

Rater = Callable[[object, Mapping[str, int]], Mapping[str, float]]
"""Takes a sample of the numbers of an object; returns the changes of each in a second."""


class _Sample(NamedTuple):
    at: float
    values: Mapping[str, int]
    rates: Mapping[str, float]


class Rates:
    """The rates of the numbers of objects.

    Args:
        now: seconds that do not go back.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._samples: BoundedCache[object, _Sample] = BoundedCache(SAMPLES_MAX)

    def rates(self, key: object, values: Mapping[str, int]) -> Mapping[str, float]:
        """Take a sample of the numbers of an object; the changes of each in a second."""
        now = self._now()
        last = self._samples.get(key)
        if last is not None and now - last.at < RATE_SECONDS_MIN:
            return last.rates
        rates = dict.fromkeys(values, 0.0)
        if last is not None and now - last.at <= RATE_SECONDS_MAX:
            seconds = now - last.at
            for name, value in values.items():
                rates[name] = round((value - last.values.get(name, value)) / seconds, 3)
        self._samples.add(key, _Sample(now, values, rates))
        return rates

    def rates_of_many(self, count: int) -> Rater:
        """`rates` for each object of a list of so many. Of more than are remembered no sample is
        taken: each would be forgotten before the next question, and the rates are 0."""
        return self.rates if count <= SAMPLES_MAX else _no_rates

    def with_rates(self, key: object, values: Mapping[str, int]) -> dict[str, Any]:
        """The numbers of an object, and the rate of each in a field `..._details`."""
        rates = self.rates(key, values)
        row: dict[str, Any] = {}
        for name, value in values.items():
            row[name] = value
            row[f"{name}_details"] = {"rate": rates.get(name, 0.0)}
        return row


def _no_rates(_key: object, _values: Mapping[str, int]) -> Mapping[str, float]:
    return {}


def with_details(
    values: Mapping[str, int], rates: Mapping[str, float], names: Sequence[str]
) -> dict[str, Any]:
    """Some numbers of an object, and behind them the rate of each."""
    found: dict[str, Any] = {name: values[name] for name in names}
    for name in names:
        rate = rates.get(name, 0.0)
        found[_DETAILS[name]] = {"rate": rate} if rate else NO_RATE
    return found


def picked(shown: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Some of what `with_rates` returns: these numbers and their rates."""
    found = {name: shown[name] for name in names}
    return found | {f"{name}_details": shown[f"{name}_details"] for name in names}
