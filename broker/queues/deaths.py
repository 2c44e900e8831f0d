"""What has happened to a dead letter on its way: a pure value, and the rule against cycles.

A message that a queue gives up carries its history as the constant property `PMQ_DEATH`, in JSON:
one entry for each (queue, reason), the latest first, with a count; and what happened first of all.
Gateways show it in their own way (AMQP: the headers `x-death` and `x-first-death-*`). Clients
cannot set it: what they send under AMQP's header names is not looked at.

Source: RabbitMQ's documentation of dead letter exchanges.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

DEATH_PROPERTY: Final = "PMQ_DEATH"
DEATHS_MAX: Final = 64
"""Entries kept, the latest: a message that wanders through more queues is on no sensible way, and
properties end at 32,767 bytes."""


class Cause(enum.StrEnum):
    """Why a queue gives a message up; RabbitMQ's words."""

    REJECTED = "rejected"
    EXPIRED = "expired"
    MAXLEN = "maxlen"
    DELIVERY_LIMIT = "delivery_limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """How often a queue gave the message up for one reason, and how it was published the last
    time (`time_s`, seconds since the epoch)."""

    queue: str
    cause: str
    count: int
    time_s: int
    exchange: str
    routing_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """All deaths of a message, the latest first; and (cause, queue, exchange) of the first."""

    deaths: Sequence[Death] = ()
    first: tuple[str, str, str] = ("", "", "")

    def with_death(self, death: Death) -> History:
        """The history after one more death (its count is not looked at)."""
        count = 1
        others = []
        for known in self.deaths:
            if (known.queue, known.cause) == (death.queue, death.cause):
                count = known.count + 1
            else:
                others.append(known)
        first = self.first if self.deaths else (death.cause, death.queue, death.exchange)
        deaths = (replace(death, count=count), *others)
        return History(deaths=deaths[:DEATHS_MAX], first=first)

    def cycles(self) -> Iterator[str]:
        """Queues that the message may not come back to: it came from there, and nobody rejected
        it on the way, so it would go round for ever."""
        for death in self.deaths:
            if death.cause == Cause.REJECTED:
                return
            yield death.queue

    def encode(self) -> str:
        """As the property's value."""
        return json.dumps(
            {"f": self.first, "d": [_row(death) for death in self.deaths]}, separators=(",", ":")
        )


def history_of(properties: Mapping[str, str]) -> History:
    """The history in a message's constant properties; an empty one if it never died."""
    value = properties.get(DEATH_PROPERTY)
    if value is None:
        return History()
    raw: dict[str, Any] = json.loads(value)
    deaths = tuple(
        Death(
            queue=queue,
            cause=cause,
            count=count,
            time_s=time_s,
            exchange=exchange,
            routing_key=key,
        )
        for queue, cause, count, time_s, exchange, key in raw["d"]
    )
    cause, queue, exchange = raw["f"]
    return History(deaths=deaths, first=(cause, queue, exchange))


def _row(death: Death) -> list[Any]:
    return [
        death.queue,
        death.cause,
        death.count,
        death.time_s,
        death.exchange,
        death.routing_key,
    ]
