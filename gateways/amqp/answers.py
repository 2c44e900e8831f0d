"""What a client is answered, in the order in which it asked.

Rules:

* An answer leaves when the position that it depends on is flushed (`port.when_committed`), and
  never before an earlier answer: one that depends on nothing waits behind those that do.
* Deliveries are no answers: they leave at once, by another way.
* Nothing is sent after `stop`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from broker.port import BrokerPort, Durability, Position


class Answers:
    """The answers of one connection.

    Args:
        write: takes bytes that may leave.
    """

    __slots__ = ("_asked", "_port", "_stopped", "_waiting", "_write", "bytes_waiting", "position")

    def __init__(self, *, port: BrokerPort, write: Callable[[bytes], None]) -> None:
        self._port = port
        self._write = write
        self._waiting: deque[tuple[Position, bytes, Callable[[], None] | None]] = deque()
        self._asked = Position(0)  # the highest position that a callback was asked for
        self._stopped = False
        self.position = Position(0)
        """The highest position that an answer so far depends on."""
        self.bytes_waiting = 0

    def send(self, data: bytes, position: int = 0, then: Callable[[], None] | None = None) -> None:
        """Send `data` once `position` is flushed and all earlier answers are out.

        Args:
            then: called when the data was handed to the socket.
        """
        if self._stopped:
            return
        if position > self.position:
            self.position = Position(position)
        if not self._waiting and self._port.committed(self.position, Durability.FLUSHED):
            self._write(data)
            if then is not None:
                then()
            return
        self._waiting.append((self.position, data, then))
        self.bytes_waiting += len(data)
        if self._asked < self.position:
            self._asked = self.position
            self._port.when_committed(
                self.position, Durability.FLUSHED, self._release, self.position
            )

    def _release(self, position: Position) -> None:
        while self._waiting and self._waiting[0][0] <= position:
            _, data, then = self._waiting.popleft()
            self.bytes_waiting -= len(data)
            self._write(data)
            if then is not None:
                then()

    @property
    def waiting(self) -> bool:
        """Whether an answer depends on something that is not flushed."""
        return bool(self._waiting)

    def stop(self) -> None:
        """The socket is gone, or nothing more may be said."""
        self._stopped = True
        self._waiting.clear()
        self.bytes_waiting = 0
