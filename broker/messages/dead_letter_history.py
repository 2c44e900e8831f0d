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


CUT_MAX: Final = 7
"""Levels of `History.cut`: six halve `DEATHS_MAX` entries down to one."""


class Cause(enum.StrEnum):
    """Why a queue gives a message up; RabbitMQ's words."""

    REJECTED = "rejected"
    EXPIRED = "expired"
    MAXLEN = "maxlen"
    DELIVERY_LIMIT = "delivery_limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """How often a queue gave the message up for one reason, and how it was published the last
    time (`time_s`, seconds since the epoch). `copies`: the routing keys besides its own that
    receivers may see."""

    queue: str
    cause: str
    count: int
    time_s: int
    exchange: str
    routing_key: str
    copies: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """All deaths of a message, the latest first; and (cause, queue, exchange) of the first."""

    deaths: Sequence[Death] = ()
    first: tuple[str, str, str] = ("", "", "")
    cut_deaths: int = 0
    """Deaths since it was cut for want of room and nobody rejected it: the entries that would show
    a cycle may be missing, so these are counted. 0: it is whole."""

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
        cut_deaths = 0
        if self.cut_deaths:
            cut_deaths = 1 if death.cause == Cause.REJECTED else self.cut_deaths + 1
        return History(deaths=deaths[:DEATHS_MAX], first=first, cut_deaths=cut_deaths)

    def cut(self, level: int) -> History:
        """The history in less room: each level halves the entries, down to the latest one; that
        one loses its texts at `CUT_MAX`, and so does what happened first."""
        if level == 0:
            return self
        cut_deaths = max(1, self.cut_deaths)
        deaths = self.deaths[: max(1, len(self.deaths) >> level)]
        if level < CUT_MAX:
            return replace(self, deaths=deaths, cut_deaths=cut_deaths)
        latest = replace(deaths[0], exchange="", routing_key="", copies=())
        return History(deaths=(latest,), first=(self.first[0], "", ""), cut_deaths=cut_deaths)

    @property
    def is_endless(self) -> bool:
        """Whether it has died so often since it was cut that it goes round."""
        return self.cut_deaths > DEATHS_MAX

    def cycles(self) -> Iterator[str]:
        """Queues that the message may not come back to: it came from there, and nobody rejected
        it on the way, so it would go round for ever."""
        for death in self.deaths:
            if death.cause == Cause.REJECTED:
                return
            yield death.queue

    def encode(self) -> str:
        """As the property's value."""
        value: dict[str, Any] = {"f": self.first, "d": [_row(death) for death in self.deaths]}
        if self.cut_deaths:
            value["c"] = self.cut_deaths
        return json.dumps(value, separators=(",", ":"))


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
            copies=tuple(copies),
        )
        for queue, cause, count, time_s, exchange, key, *copies in raw["d"]
    )
    cause, queue, exchange = raw["f"]
    return History(deaths=deaths, first=(cause, queue, exchange), cut_deaths=raw.get("c", 0))


def _row(death: Death) -> list[Any]:
    return [
        death.queue,
        death.cause,
        death.count,
        death.time_s,
        death.exchange,
        death.routing_key,
        *death.copies,
    ]
