"""What can be set for a topic, and how a value is written.

A topic has a value of its own for what somebody set, and the broker's default for the rest: so a
changed default reaches every topic that nobody touched. The names and texts here are those that
people type (`polymq topic set NAME key=value`), that the op `topic=` and the snapshot carry, and
that `TopicInfo` tells.

Rules:

* A fold ignores names that it does not know: a log written by a later version can be read.
* `TopicSettings` is frozen; a change replaces the whole object on the topic. Who keeps a topic may
  keep it for long, who keeps its settings may not.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from polymq.broker.durability import APPENDED, Durability
from polymq.broker.errors import Reason, Refused

DURABILITIES: Final = {"fsync": Durability.FLUSHED, "page_cache": Durability.APPENDED}
"""The names of the commit points that a message may wait for."""
DEFAULT: Final = "default"
"""Typed as a value: back to the broker's default."""
_POINTS: Final = {int(point): point for point in Durability}  # quicker than the class's call
DISKS_MAX: Final = max(Durability)
"""The most disks that a message may wait for."""
SECONDS_MAX: Final = 100 * 366 * 86_400
"""A hundred years: far from where milliseconds would not fit into 64 bits."""
BYTES_MAX: Final = 1 << 62

Value = str | int
"""A value as JSON carries it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """All settings of one topic, its own and the broker's defaults.

    Attributes:
        durability: the weakest commit point that an ack and a delivery wait for: with `APPENDED`
            (`page_cache`) publishers are answered before the disk has the message.
        retention_seconds: how old a message may become before readers by offset lose it. 0: they
            keep it for ever.
        retention_bytes: how many bytes of the topic's newest messages stay readable by offset,
            over all its queues. 0: any number.
        min_in_sync: how many brokers must have a message on their disks before it is acked and
            seen: 1 is the master alone, 2 the master and a replica.
    """

    durability: Durability = Durability.FLUSHED
    retention_seconds: int = 72 * 3600
    retention_bytes: int = 0
    min_in_sync: int = 1

    @property
    def commit_point(self) -> Durability:
        """What an ack waits for that wants to be safe, and a delivery."""
        return APPENDED if self.durability is APPENDED else _POINTS[self.min_in_sync]

    @property
    def read_point(self) -> Durability:
        """What readers by offset stop at."""
        return _POINTS[self.min_in_sync]

    def with_values(self, values: Mapping[str, Value]) -> TopicSettings:
        """These settings with a topic's own values in their places; unknown names are ignored."""
        if not values:
            return self
        known: dict[str, Any] = {name: values[name] for name in _PARSERS if name in values}
        if "durability" in known:
            known["durability"] = DURABILITIES[known["durability"]]
        return dataclasses.replace(self, **known)

    def values(self) -> dict[str, Value]:
        """All settings by name, as JSON carries them."""
        (durability,) = [name for name, point in DURABILITIES.items() if point is self.durability]
        return {
            "durability": durability,
            "retention_seconds": self.retention_seconds,
            "retention_bytes": self.retention_bytes,
            "min_in_sync": self.min_in_sync,
        }


def parse_settings(texts: Mapping[str, str]) -> dict[str, Value | None]:
    """What a person typed as values for the op; None is `default`.

    Raises:
        Refused: BAD_ARGUMENT, with a sentence that says what would be right.
    """
    parsed: dict[str, Value | None] = {}
    for name, text in texts.items():
        parse = _PARSERS.get(name)
        if parse is None:
            known = ", ".join(_PARSERS)
            raise Refused(Reason.BAD_ARGUMENT, f"a topic has no setting {name!r}: use {known}")
        parsed[name] = None if text == DEFAULT else parse(name, text)
    return parsed


def _parse_durability(name: str, text: str) -> Value:
    if text not in DURABILITIES:
        choices = " or ".join(DURABILITIES)
        raise Refused(Reason.BAD_ARGUMENT, f"{name} is {choices}, not {text!r}")
    return text


def _parse_whole(name: str, text: str, value_max: int) -> Value:
    if not (text.isascii() and text.isdecimal()) or len(text) > 20 or int(text) > value_max:
        unit = name.rpartition("_")[2]
        raise Refused(
            Reason.BAD_ARGUMENT,
            f"{name} is a whole number of {unit} up to {value_max} (0: no limit), not {text!r}",
        )
    return int(text)


def _parse_disks(name: str, text: str) -> Value:
    if text not in [str(count) for count in range(1, DISKS_MAX + 1)]:
        raise Refused(
            Reason.BAD_ARGUMENT,
            f"{name} is the number of brokers that must have a message on disk, 1 to {DISKS_MAX}, "
            f"not {text!r}",
        )
    return int(text)


_PARSERS: Final[dict[str, Callable[[str, str], Value]]] = {
    "durability": _parse_durability,
    "retention_seconds": lambda name, text: _parse_whole(name, text, SECONDS_MAX),
    "retention_bytes": lambda name, text: _parse_whole(name, text, BYTES_MAX),
    "min_in_sync": _parse_disks,
}
SETTING_NAMES: Final = tuple(_PARSERS)
