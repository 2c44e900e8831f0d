"""What a connection waits for before more of it is read: one table for all gateways.

A connection may wait for several things at once. Each has one row in `EFFECTS`: whether the socket
is read meanwhile, and whether what was read is handled. The socket is read while every row allows
it, and so it is with handling. A gateway notes what begins and what ends, and lets the socket
follow with `regulate`, which costs a system call only where something has changed.

`net/README.md` has the table for people.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

# Plain integers: Python 3.11 needs a microsecond to combine members of an enumeration.
LOGIN: Final = 1
QUESTION: Final = 2
TURN: Final = 4
ANSWERS: Final = 8
UNREAD: Final = 16
DISK: Final = 32
UPLOAD: Final = 64
AHEAD: Final = 128
LEAVING: Final = 256


class Effect(NamedTuple):
    """What happens while a connection waits for something.

    Attributes:
        reads: whether its socket is read.
        handles: whether what was read is handled.
    """

    name: str
    reads: bool
    handles: bool


EFFECTS: Final[Mapping[int, Effect]] = {
    # The end of the socket has to be noticed, so that nobody's password is checked in vain.
    LOGIN: Effect("who the client is", reads=True, handles=False),
    QUESTION: Effect("an answer that depends on what came before", reads=False, handles=False),
    TURN: Effect("its turn among the connections", reads=False, handles=False),
    # A client that asks more than it reads: each request may be as short as it likes.
    ANSWERS: Effect("room for answers", reads=False, handles=False),
    UNREAD: Effect("the client to read its answers", reads=False, handles=True),
    DISK: Effect("the disk, which has to take what was published", reads=False, handles=True),
    UPLOAD: Effect("room for the rest of a large packet", reads=False, handles=True),
    AHEAD: Effect("the login, with much behind it already", reads=False, handles=False),
    LEAVING: Effect("its last answers: the server stops", reads=False, handles=True),
}

STOP_READING: Final = sum(wait for wait, effect in EFFECTS.items() if not effect.reads)
STOP_HANDLING: Final = sum(wait for wait, effect in EFFECTS.items() if not effect.handles)


class Readable(Protocol):
    """A socket whose reading may be stopped. Both may be called again without effect."""

    def stop_reading(self) -> None:
        """Leave what comes in the kernel's buffers."""

    def resume_reading(self) -> None:
        """Undo `stop_reading`."""


class Flow:
    """What one connection waits for.

    Attributes:
        waits: all of it, as a sum.
        is_reading: whether the socket is read, as of the last `regulate`.
    """

    __slots__ = ("is_reading", "waits")

    def __init__(self) -> None:
        self.waits = 0
        self.is_reading = True

    def begin(self, wait: int) -> None:
        """Wait for this, too."""
        self.waits |= wait

    def end(self, wait: int) -> None:
        """Wait for this no longer."""
        self.waits &= ~wait

    def set(self, wait: int, waits: bool) -> None:
        """Wait for this, or no longer."""
        if waits:
            self.waits |= wait
        else:
            self.waits &= ~wait

    def names(self) -> tuple[str, ...]:
        """What it waits for, in words."""
        return tuple(effect.name for wait, effect in EFFECTS.items() if self.waits & wait)

    @property
    def handles(self) -> bool:
        """Whether what was read is handled now."""
        return not self.waits & STOP_HANDLING

    def regulate(self, socket: Readable) -> bool:
        """Let the socket be read, or not, as is right now. Returns whether that has changed. (It is
        not remembered: two objects that know each other stay in memory until a collection.)"""
        reads = not self.waits & STOP_READING
        if reads is self.is_reading:
            return False
        self.is_reading = reads
        if reads:
            socket.resume_reading()
        else:
            socket.stop_reading()
        return True
