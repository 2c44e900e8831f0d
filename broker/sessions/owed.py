"""Retained messages that a subscription of a persistent session has yet to get.

A SUBSCRIBE asks for the retained messages that match its filter [MQTT-3.3.1-6]. They leave as fast
as the client acknowledges them, so its connection may end before it has got all of them, or the
server may. A client whose session is present does not subscribe again: the rest is sent to its next
connection.

Theory. What is owed is not a list. It is two places: the position of the SUBSCRIBE in the log, and
how far the walk over the sorted names has come (`topics/retained.py`). The message of a name behind
that place is owed if it was published before the position; one that was published later comes by
the subscription itself. Names that come and go change nothing of that.

How it changes:

* The op `sub+` of a subscription of QoS 1 or 2 begins it (`r`, the position), if anything is
  retained that the filter might match. It replaces what an earlier SUBSCRIBE left [MQTT-3.8.4-3].
  One that does not ask for retained messages (Retain Handling) leaves that as it is.
* The op `assign`, which gives a message its packet id, moves it: `r` is the subscription's group,
  `k` the name. So a message is either owed or in flight, whatever a crash leaves of the log.
* The op `replayed` ends it. Without it the next connection would look once more, and find nothing.

A message whose QoS is 0 in the end changes nothing in the log. It need not wait for a client that
is away (3.1.1 part 3.1.2.4), so the next connection gets it only if the session keeps such
messages. After a crash it may get some of them again.
"""

from __future__ import annotations

from typing import Any

from polymq.broker.port.values import Address, Position


class Owed:
    """What one subscription is owed.

    Attributes:
        since: only what was published before this position.
        at: only names greater than this one; None: all.
        reached: the last name that was seen to, as far as this process knows: beyond `at` there are
            messages of QoS 0 only. Not part of the state.
        interrupted: the connection of the SUBSCRIBE has ended. Not part of the state.
    """

    __slots__ = ("at", "interrupted", "reached", "since")

    def __init__(self, since: Position, at: Address | None = None) -> None:
        self.since = since
        self.at = at
        self.reached = at
        self.interrupted = False

    def move(self, address: Address) -> None:
        """The log says that the message of this name is in flight."""
        self.at = self.reached = address

    def row(self) -> list[Any]:
        """As a session's row has it."""
        return [self.since, None if self.at is None else list(self.at)]


def owed_of(row: list[Any]) -> Owed:
    """The same from its row."""
    since, at = row
    return Owed(Position(since), None if at is None else tuple(at))
