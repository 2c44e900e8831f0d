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

_SHARED: Final = "\x00$share"
"""Begins the address of a shared subscription. No level of a pattern is like this."""


def shared_address(name: str, pattern: Address) -> Address:
    """What a session calls the shared subscription with this ShareName and pattern. (A pattern is
    all that routing and permissions know: `pattern_of`.)"""
    return (_SHARED, name, *pattern)


def is_shared(address: Address) -> bool:
    """Whether a session's subscription with this address is a shared one."""
    return address[0] == _SHARED


def pattern_of(address: Address) -> Address:
    """The pattern of a session's subscription, shared or not."""
    return address[2:] if is_shared(address) else address


def share_name_of(address: Address) -> str:
    """The ShareName of a shared subscription."""
    assert is_shared(address)
    return address[1]
