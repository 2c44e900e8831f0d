"""RocketMQ's fields of a record that belong to the message, as its constant property `PMQ_H`.

A property stays with its message wherever that goes: through a delay, into a dead letter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

HEADER_PROPERTY: Final = "PMQ_H"
"""Flag, system flag, and how often it was consumed again, in hex with dots between."""

ADDED_BY_CLIENTS: Final = frozenset(
    {"TAGS", "WAIT", "CLUSTER", "UNIQ_KEY", "MSG_REGION", "TRACE_ON"}
)
"""Properties that RocketMQ's clients add to every message for themselves, and the tag."""


def header_property(*, flag: int, system_flag: int, reconsume: int) -> dict[str, str]:
    """`HEADER_PROPERTY` as a constant property; none where all three are 0."""
    if not (flag or system_flag or reconsume):
        return {}
    return {HEADER_PROPERTY: f"{flag:x}.{system_flag:x}.{reconsume:x}"}


def header_of(properties: Mapping[str, str]) -> tuple[int, int, int]:
    """(flag, system flag, reconsume) of constant properties; zeros where there are none."""
    value = properties.get(HEADER_PROPERTY)
    if value is None:
        return 0, 0, 0
    flag, system_flag, reconsume = value.split(".")
    return int(flag, 16), int(system_flag, 16), int(reconsume, 16)
