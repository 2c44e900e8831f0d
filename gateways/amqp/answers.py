"""What a client is answered, in the order in which it asked.

Rules:

* An answer leaves when the position that it depends on is committed (`port.when_committed`): in the
  page cache, on the disk or on replicas, as it says. It never leaves before an earlier answer: one
  that depends on nothing waits behind those that do.
* Deliveries are no answers: they leave at once, by another way.
* Nothing is sent after `stop`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from polymq.broker.port import BrokerPort, Durability, Position

Waiting = tuple[int, Durability, bytes, Callable[[], None] | None]
"""The position that an answer depends on, its class, the bytes, what to call then."""


class Answers:
    """The answers of one connection.

    Args:
        write: takes bytes that may leave.
    """

    __slots__ = (
        "_asked",
        "_port",
        "_state",
        "_stopped",
        "_waiting",
        "_write",
        "bytes_waiting",
        "positions",
    )

    def __init__(self, *, port: BrokerPort, write: Callable[[bytes], None]) -> None:
        self._port = port
        self._write = write
        self._waiting: deque[Waiting] = deque()
        self._state = port.state_durability
        self._asked = [Position(0) for _ in Durability]  # the highest that callbacks were asked for
        self._stopped = False
        self.positions = [Position(0) for _ in Durability]
        """By `Durability`: the highest position that an answer so far depends on."""
        self.bytes_waiting = 0

    def send(
        self,
        data: bytes,
        position: int = 0,
        then: Callable[[], None] | None = None,
        durability: Durability | None = None,
    ) -> None:
        """Send `data` once `position` is committed and all earlier answers are out.

        Args:
            then: called when the data was handed to the socket.
            durability: in which class; by default in that of changes of state.
        """
        if self._stopped:
            return
        if durability is None:
            durability = self._state
        if position > self.positions[durability]:
            self.positions[durability] = Position(position)
        position = self.positions[durability]
        if not self._waiting and self._port.committed(Position(position), durability):
            self._write(data)
            if then is not None:
                then()
            return
        self._waiting.append((position, durability, data, then))
        self.bytes_waiting += len(data)
        if self._asked[durability] < position:
            self._asked[durability] = Position(position)
            self._port.when_committed(Position(position), durability, self._release)

    def wait(self, data: bytes, position: int, durability: Durability) -> None:
        """`send` for what depends on something that was appended just now."""
        if self._stopped:
            return
        positions = self.positions
        if position > positions[durability]:
            positions[durability] = Position(position)
        self._waiting.append((positions[durability], durability, data, None))
        self.bytes_waiting += len(data)
        if self._asked[durability] < position:
            self._asked[durability] = Position(position)
            self._port.when_committed(Position(position), durability, self._release)

    def _release(self) -> None:
        """Send what waits, up to the first answer that depends on something uncommitted."""
        waiting, committed = self._waiting, self._port.committed
        while waiting and committed(Position(waiting[0][0]), waiting[0][1]):
            _, _, data, then = waiting.popleft()
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
        self._write = _nowhere  # it belongs to the connection, which has these answers
        self._waiting.clear()
        self.bytes_waiting = 0


def _nowhere(_data: bytes) -> None:
    """What is left to be written when the socket is gone."""
