"""Packets that are here in part: how much memory they take together.

A packet may have 16 MiB, and a thousand clients may send one at the same time. What of them is here
has one bound for all connections of a listener. Where it is used up, clients wait; none of those
that go on sending is closed.

Rules:

* Beyond the bound only the connection whose packet began first is read. It may finish whatever it
  takes, so somebody always goes on. The others are read again, in their order, as room comes back.
* Room that others wait for has to be used: a client that is read and does not send `bytes_min` in
  `seconds` is closed. Else a few that stop in the middle would keep everybody from finishing.
* Parts of up to `small_bytes` are not counted, and never wait.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from polymq.net.connection import BUFFER_BYTES

if TYPE_CHECKING:
    from polymq.gateways.mqtt.limits import Limits


class Uploading(Protocol):
    """A connection that receives a packet."""

    def read_on(self) -> None:
        """There is room for it."""

    def too_slow(self) -> None:
        """Others wait for the room that it has, and it does not use it: close."""


class Uploads:
    """The packets of one listener that are here in part.

    Args:
        later: calls back in so many seconds.

    Attributes:
        bytes: of all of them.
    """

    def __init__(
        self, limits: Limits, later: Callable[[float, Callable[[], None]], object]
    ) -> None:
        self._limits = limits
        self._later = later
        self.bytes = 0
        self._parts: OrderedDict[Uploading, int] = OrderedDict()  # in the order of their beginnings
        self._waiting: OrderedDict[Uploading, None] = OrderedDict()  # those that are not read
        self._seen: tuple[Uploading, int] | None = None  # the first, when it was looked at last

    @property
    def waiting_count(self) -> int:
        """Connections that are not read because there is no room."""
        return len(self._waiting)

    def reserve(self, connection: Uploading, size: int) -> bool:
        """So many bytes of a packet are here now; 0: none, it is whole or will never be.

        Returns:
            Whether the connection may be read. If not, `read_on` is called when it may.
        """
        if size <= self._limits.small_part_bytes:
            size = 0
        old = self._parts.get(connection, 0)
        self.bytes += size - old
        if size:
            self._parts[connection] = size
        elif old:
            del self._parts[connection]
            self._waiting.pop(connection, None)
        if size < old:
            self._let_read()
        if not size:
            return True
        if self.bytes <= self._limits.parts_bytes_max or connection is next(iter(self._parts)):
            return True
        if not self._waiting:
            self._look_later()
        self._waiting[connection] = None
        return False

    def _let_read(self) -> None:
        """There is room again: for the first in any case, for others as far as it goes."""
        room = self._limits.parts_bytes_max - self.bytes
        if self._parts and (first := next(iter(self._parts))) in self._waiting:
            del self._waiting[first]
            room -= BUFFER_BYTES
            first.read_on()
        while self._waiting and room > 0:
            room -= BUFFER_BYTES
            self._waiting.popitem(last=False)[0].read_on()

    def _look_later(self) -> None:
        first = next(iter(self._parts))
        self._seen = first, self._parts[first]
        self._later(self._limits.part_seconds, self._look)

    def _look(self) -> None:
        """Does the first use the time that the others wait?"""
        seen, self._seen = self._seen, None
        if not self._waiting or seen is None:
            return
        first, size = seen
        now = self._parts.get(first, 0)
        if size <= now < size + self._limits.part_bytes_min:
            first.too_slow()
        if self._waiting and self._seen is None:
            self._look_later()
