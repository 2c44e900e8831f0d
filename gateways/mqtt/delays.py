"""Delayed messages in MQTT: the topic `$delayed/{seconds}/{topic}`, as EMQX has it.

What is published there is published to `{topic}` so many seconds later. The number is whole, and
decimal; retained messages and all QoS work as ever. Nobody can subscribe to what waits.
"""

from __future__ import annotations

from typing import Final

from polymq.broker.port import Reason, Refused

PREFIX: Final = "$delayed/"
_DIGITS_MAX: Final = 10
"""Of the seconds; the engine's own limit is below that."""


def undelayed(name: str) -> str:
    """The topic that a topic name leads to in the end. Raises Refused: BAD_NAME."""
    if not name.startswith(PREFIX):
        return name
    seconds, separator, topic = name[len(PREFIX) :].partition("/")
    digits = seconds.isascii() and seconds.isdigit() and len(seconds) <= _DIGITS_MAX
    if not (digits and separator and topic):
        raise Refused(
            Reason.BAD_NAME,
            "a delayed message is published to $delayed/{seconds}/{topic}, with whole seconds",
        )
    return topic


def delay_ms(topic: bytes) -> int:
    """The delay of a raw topic name that begins with `$` and that `undelayed` has accepted."""
    return 1000 * int(topic.split(b"/", 2)[1])
