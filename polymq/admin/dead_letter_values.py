"""Why a message is a dead letter, and where it came from: read from its properties. Pure.

Four parts of the broker make dead letters, and each says so in its own properties: AMQP queues
(`PMQ_DEATH`), subscriptions over HTTP, consumer groups of RocketMQ, and the broker itself, for what
fits nowhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from polymq.broker.moves.set_aside import REAL_TOPIC, REFUSED
from polymq.broker.names import decode_name
from polymq.broker.port import DEATH_PROPERTY, display_name, history_of, parse_display_name

DEAD_LETTER_PREFIX: Final = "%DLQ%"
RETRY_PREFIX: Final = "%RETRY%"
HTTP_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
HTTP_REASON: Final = "PMQ_DLQ_REASON"
RETRY_TOPIC: Final = "RETRY_TOPIC"
UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True)
class Target:
    """Where a dead letter may be sent on.

    Attributes:
        exchange: of AMQP; empty for the default exchange, None for a topic.
        routing_key: of AMQP.
        topic: the user's name of a topic; empty if there is an exchange.
        tag: in the topic.
    """

    exchange: str | None = None
    routing_key: str = ""
    topic: str = ""
    tag: str | None = None

    @property
    def text(self) -> str:
        """For people."""
        if self.exchange is not None:
            return f"exchange {self.exchange or '(default)'}, routing key {self.routing_key!r}"
        shown = display_name(self.topic)
        return f"topic {shown}" if self.tag is None else f"topic {shown}, tag {self.tag}"


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a message is a dead letter.

    Attributes:
        reason: in a word, or a few.
        source: the queue, topic or group that gave it up; empty: that is not known.
        origin: where it was published first; None: that is not known.
    """

    reason: str
    source: str
    origin: Target | None


def cause_of(location: str, tag: str | None, properties: Mapping[str, str]) -> Cause:
    """Why a message is a dead letter.

    Args:
        location: the topic that it is in; empty if it is in a queue of AMQP.
    """
    if DEATH_PROPERTY in properties and not location:
        deaths = history_of(properties).deaths
        if deaths:
            first = deaths[-1]
            origin = Target(exchange=first.exchange, routing_key=first.routing_key)
            return Cause(deaths[0].cause, deaths[0].queue, origin)
    if REAL_TOPIC in properties and REFUSED in properties:
        topic = _named(properties[REAL_TOPIC])
        return Cause(properties[REFUSED], display_name(topic), Target(topic=topic, tag=tag))
    if HTTP_TOPIC in properties:
        topic = parse_display_name(properties[HTTP_TOPIC])
        reason = properties.get(HTTP_REASON, UNKNOWN)
        return Cause(
            reason, location.removeprefix(DEAD_LETTER_PREFIX), Target(topic=topic, tag=tag)
        )
    if RETRY_TOPIC in properties:
        topic = _named(properties[RETRY_TOPIC])
        is_dead = location.startswith(DEAD_LETTER_PREFIX)
        group = location.removeprefix(DEAD_LETTER_PREFIX).removeprefix(RETRY_PREFIX)
        reason = "given back too often" if is_dead else "given back"
        return Cause(reason, group, Target(topic=topic, tag=tag))
    return Cause(UNKNOWN, "", None)


def _named(stored: str) -> str:
    """The user's name of a topic, of the form that records have."""
    try:
        return decode_name(stored)
    except ValueError:  # a hash, or a name that a client of RocketMQ chose
        return stored
