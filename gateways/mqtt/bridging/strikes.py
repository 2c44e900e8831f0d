"""One message that makes the remote broker close the connection must not stop a bridge. Pure.

A remote broker may close for many reasons, and MQTT 3.1.1 has no words for them. So connections are
counted: a *strike* is one that was accepted, on which messages of QoS 1 or 2 were sent, and which
the remote broker ended before it acknowledged any of them. An acknowledgement clears the strikes.

With a few strikes the next connections are on probation: one message at a time, so that the culprit
is alone, and only after a PINGRESP has shown that the remote broker answers. A message with many
strikes is set aside.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

STRIKES_OF_PROBATION: Final = 2
"""From so many on a connection is on probation. One may be chance, such as a restart; more would
only send all that is in flight again and again."""
STRIKES_MAX: Final = 5
"""With so many a message is set aside. It was alone on the last three connections, each of which
had answered just before: a remote broker that is merely restarted does not do that."""
SINGLE_ACKS: Final = 100
"""So many messages are sent one at a time before the window opens again. One is too few: if the
acknowledgements before the culprit are lost with the connection, each probation would bring the
bridge one message further."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A message that was in flight alone.

    Attributes:
        position: in the log.
        topic: as it is called here.
        size: of its payload, in bytes.
    """

    packet_id: int
    position: int
    topic: str = field(compare=False)
    qos: int = field(compare=False)
    size: int = field(compare=False)


class Strikes:
    """Those of one bridge, over all its connections."""

    def __init__(self) -> None:
        self.count = 0
        self.reason = ""
        """Why the last connection that counts was closed."""
        self._suspect: Suspect | None = None

    @property
    def lead_to_probation(self) -> bool:
        """Whether the next connection is on probation."""
        return self.count >= STRIKES_OF_PROBATION

    def clear(self) -> None:
        """The remote broker has acknowledged something, or the culprit is set aside."""
        self.count = 0
        self._suspect = None

    def strike(self, reason: str) -> None:
        """One more connection was closed without an acknowledgement."""
        self.count += 1
        self.reason = reason

    def may_send(self, message: Suspect) -> bool:
        """Whether to send the message, alone, or to set it aside. Another one than before, because
        that has expired, begins with the strikes of which nobody knows whose they are."""
        if message != self._suspect:
            self._suspect = message
            self.count = min(self.count, STRIKES_OF_PROBATION)
        return self.count < STRIKES_MAX


class Trial:
    """One connection, as far as it counts.

    Attributes:
        is_single: messages are sent one at a time.
        has_sent: a message of QoS 1 or 2 was sent.
    """

    __slots__ = ("_acks_left", "_has_acks", "has_sent", "is_single", "strikes")

    def __init__(self, strikes: Strikes) -> None:
        self.strikes = strikes
        self.is_single = strikes.lead_to_probation
        self.has_sent = False
        self._has_acks = False
        self._acks_left = SINGLE_ACKS

    @property
    def is_open(self) -> bool:
        """Whether a message was sent and none is acknowledged yet: what is sent beside it on
        probation, of QoS 0, might be the culprit."""
        return self.has_sent and not self._has_acks

    def acknowledged(self, count: int) -> bool:
        """So many messages were. Returns whether that is enough to send as many as ever."""
        self._has_acks = True
        self.strikes.clear()
        self._acks_left -= count
        if self.is_single and self._acks_left > 0:
            return False
        self.is_single = False
        return True

    def ended_by_remote(self, reason: str) -> None:
        """The remote broker closed the connection."""
        if self.is_open:
            self.strikes.strike(reason)
