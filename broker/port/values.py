"""Values that the operations of the port share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NewType

if TYPE_CHECKING:
    Position = NewType("Position", int)
else:
    Position = int  # to the same effect, and half the time of a NewType's call
"""A byte position in the commit log: the end of what has to be committed."""

Address = tuple[str, ...]
"""A subscription pattern: the topic and the levels of the tag, with `ONE_LEVEL` and `REST`."""

ONE_LEVEL: Final = "\x00*"
"""Matches exactly one level (MQTT `+`, AMQP `*`)."""
REST: Final = "\x00#"
"""Matches any number of levels, none included (MQTT `#` at the end, AMQP `#` anywhere)."""
