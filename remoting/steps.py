"""Operations as generators: what to do next, without doing it.

An operation yields *steps* and is sent their results:

* `Call` (ask this address, wait this long) is answered with the peer's `Command`, with None where
  no answer is wanted, or by throwing `CallFailed` into the generator;
* `Pause` (wait this long, or until a signal) is answered with None;
* `Fetch` (get what is at a URL) is answered with a `Command` that has the status as its code and
  what was got as its body, or by throwing `CallFailed`;
* `Invoke` (call a function of the user) is answered with None; the step itself then has what the
  function returned or raised;
* `Start` (carry another operation out beside this one) is answered with None, at once.

The generator returns the operation's result or raises. So failover, retries and the order of
calls are written once and tested without sockets or clocks; a driver is what carries the steps
out. What runs for as long as its owner lives, such as heartbeats, is an operation without an end.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Generator
from dataclasses import dataclass
from typing import TypeVar

from polymq.remoting.codes import ResponseCode
from polymq.remoting.errors import LocalProtocolError, RequestFailed
from polymq.remoting.frames import Command


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """Where a server listens."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> Address:
        """`host:port`; an IPv6 host may stand in brackets. Raises LocalProtocolError."""
        host, separator, port = text.strip().rpartition(":")
        if not separator or not host or not port.isdecimal() or not 0 < int(port) < 65_536:
            raise LocalProtocolError(f"{text!r} is not an address: write HOST:PORT")
        return cls(host.removeprefix("[").removesuffix("]"), int(port))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Ask `address` and wait for the answer.

    Attributes:
        seconds: from now on, making a connection included.
        oneway: no answer is wanted, and none comes: the step is answered as soon as the request
            is with the system.
        until: the call is given up, as one that failed, when this signal was given more often
            than `seen`. A blocking driver does not notice while it waits.
    """

    address: Address
    code: int
    fields: dict[str, str]
    seconds: float
    body: bytes = b""
    oneway: bool = False
    until: Signal | None = None
    seen: int = 0

    @property
    def is_given_up(self) -> bool:
        """Whether nobody wants the answer any more."""
        return self.until is not None and self.until.count != self.seen


class Signal:
    """Something that operations wait for. One thread at a time."""

    __slots__ = ("_listeners", "count")

    def __init__(self) -> None:
        self.count = 0
        """How often it was given. Who waits says which it has seen, so none is ever missed."""
        self._listeners: list[Callable[[], None]] = []

    def give(self) -> None:
        """Wake whoever waits."""
        self.count += 1
        for listener in tuple(self._listeners):
            listener()

    def listen(self, listener: Callable[[], None]) -> None:
        """For drivers: call back at every `give`, until `forget`."""
        self._listeners.append(listener)

    def forget(self, listener: Callable[[], None]) -> None:
        """Do not call back any more."""
        self._listeners.remove(listener)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Wait.

    Attributes:
        signal: ends the wait early: at once if it was given more often than `seen`.
    """

    seconds: float
    signal: Signal | None = None
    seen: int = 0

    @property
    def is_over(self) -> bool:
        """Whether there is nothing to wait for any more."""
        return self.signal is not None and self.signal.count != self.seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetch:
    """Get what is at a URL, by HTTP."""

    url: str
    seconds: float


@dataclass(slots=True)
class Invoke:
    """Call a function of the user; drivers that await also await what it returns.

    Attributes:
        result, failure: what it returned, or raised.
    """

    function: Callable[..., object]
    arguments: tuple[object, ...]
    result: object = None
    failure: Exception | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """Carry an operation out beside this one, until it ends or the driver's group does."""

    steps: Generator[Step, Command | None, object]


Step = Call | Pause | Fetch | Invoke | Start
T = TypeVar("T")
Steps = Generator[Step, Command | None, T]
"""An operation: what it yields, what it is sent, what it returns."""


def ask(call: Call, good: Container[int] = (ResponseCode.SUCCESS,)) -> Steps[Command]:
    """The answer to a call. Raises CallFailed; RequestFailed: its code is not a good one."""
    answer = yield call
    assert answer is not None, "a driver answers a Call with a Command"
    if answer.code not in good:
        raise RequestFailed(answer.code, answer.remark or "", address=str(call.address))
    return answer
