"""Topic filters as clients and operators write them: texts, not the engine's patterns. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

MULTI: Final = "#"
SINGLE: Final = "+"
BYTES_MAX: Final = 65_535
"""Of a filter on the wire: its size is two bytes (3.1.1 part 1.5.3)."""
SHARE: Final = "$share"
QUEUE: Final = "$queue"
"""`$queue/{filter}`, as EMQX has it, is `$share/{ShareName}/{filter}` with this as the name."""
SHOWN: Final = 100
"""Characters of a name in a log line or an error."""


def check_filter(name: str) -> None:
    """Whether this is a topic filter. Raises ValueError."""
    levels = name.split("/")
    if not name or "\0" in name or len(name.encode()) > BYTES_MAX:
        raise ValueError("a topic filter has 1 to 65,535 bytes, and no U+0000")
    for index, level in enumerate(levels):
        if level not in (SINGLE, MULTI) and {SINGLE, MULTI} & set(level):
            raise ValueError("a wildcard in a topic filter is a level of its own")
        if level == MULTI and index < len(levels) - 1:
            raise ValueError("# in a topic filter is the last level")


def is_shared_filter(pattern: str) -> bool:
    """Whether it is one of a shared subscription, right or wrong."""
    return pattern in (SHARE, QUEUE) or pattern.startswith((f"{SHARE}/", f"{QUEUE}/"))


def shared_filter(name: str, pattern: str) -> str:
    """How a shared subscription with this ShareName is written."""
    return f"{QUEUE}/{pattern}" if name == QUEUE else f"{SHARE}/{name}/{pattern}"


def matches(pattern: Sequence[str], levels: Sequence[str]) -> bool:
    """Whether a topic filter matches a topic name, both split into levels [MQTT-4.7.1-2],
    [MQTT-4.7.2-1]."""
    if levels[0].startswith("$") and pattern[0] in (SINGLE, MULTI):
        return False
    for index, level in enumerate(pattern):
        if level == MULTI:
            return True
        if index >= len(levels) or level not in (SINGLE, levels[index]):
            return False
    return len(pattern) == len(levels)


def shortened(name: str) -> str:
    """A topic name or a filter for a log line or an error."""
    return name if len(name) <= SHOWN else f"{name[:SHOWN]}..."
