"""The client for threads: carries out the core's steps with blocking sockets.

One connection per address, made when it is first needed and kept. A connection whose call failed
is closed: a late answer must not meet the next question. One thread at a time.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Self, TypeVar

from remoting.client import (
    Address,
    Call,
    ClientCore,
    ClientSettings,
    Pulled,
    QueueBounds,
    Route,
    Steps,
    TopicName,
)
from remoting.connection import AnswerReceived, Connection
from remoting.errors import CallFailed, RemoteProtocolError
from remoting.frames import Command

READ_BYTES: Final = 256 * 1024
"""Of one recv: a pull's answer in a few of them."""

T = TypeVar("T")


class _Link:
    """A socket and the state of its connection."""

    def __init__(self, address: Address, seconds: float, tls: ssl.SSLContext | None) -> None:
        self._core = Connection()
        self._buffer = bytearray()  # what is no whole frame yet
        raw = socket.create_connection((address.host, address.port), timeout=seconds)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = raw if tls is None else tls.wrap_socket(raw, server_hostname=address.host)

    def call(self, call: Call, clock: Callable[[], float]) -> Command:
        deadline = clock() + call.seconds
        opaque, data = self._core.request(call.code, call.fields)
        self._socket.settimeout(call.seconds)
        self._socket.sendall(data)
        while True:
            left = deadline - clock()
            if left <= 0:
                raise TimeoutError(f"no answer within {call.seconds:g} seconds")
            self._socket.settimeout(left)
            received = self._socket.recv(READ_BYTES)
            if not received:
                raise ConnectionResetError("the server closed the connection")
            self._buffer += received
            events, used = self._core.receive(self._buffer, 0, len(self._buffer))
            del self._buffer[:used]
            for event in events:
                # A broker may ask things of its clients, too; this one only reads, and has no
                # group for a broker to ask about.
                if isinstance(event, AnswerReceived) and event.opaque == opaque:
                    return event.command

    def close(self) -> None:
        self._socket.close()


class BlockingClient:
    """A client whose methods wait for their results.

    Args:
        addresses: of brokers or name servers, `host:port`.
        tls: encrypt with this context.
        clock, sleep: for tests.

    The methods raise `Unreachable` when the settings' attempts are used up and `RequestFailed`
    when the server refuses; see `client.ClientCore` for what each one does.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        settings: ClientSettings | None = None,
        tls: ssl.SSLContext | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        parsed = [Address.parse(address) for address in addresses]
        self._core = ClientCore(parsed, settings or ClientSettings())
        self._tls = tls
        self._clock = clock
        self._sleep = sleep
        self._links: dict[Address, _Link] = {}

    def topics(self) -> list[TopicName]:
        """The names of all topics."""
        return self._run(self._core.topics())

    def route(self, topic: str) -> Route:
        """Where the topic lives."""
        return self._run(self._core.route(topic))

    def bounds(self, topic: str, broker: str, queue_id: int) -> QueueBounds:
        """The first offset of a queue and one past its last."""
        return self._run(self._core.bounds(topic, broker, queue_id))

    def pull(
        self, topic: str, broker: str, queue_id: int, offset: int, *, count_max: int, bytes_max: int
    ) -> Pulled:
        """Records from `offset` on."""
        return self._run(
            self._core.pull(
                topic, broker, queue_id, offset, count_max=count_max, bytes_max=bytes_max
            )
        )

    def close(self) -> None:
        """Close all connections. The client can be used again; it connects anew."""
        links, self._links = self._links, {}
        for link in links.values():
            link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- carrying out steps ---------------------------------------------------------------

    def _run(self, steps: Steps[T]) -> T:
        try:
            step = next(steps)
            while True:
                if not isinstance(step, Call):
                    self._sleep(step.seconds)
                    step = steps.send(None)
                    continue
                try:
                    answer = self._call(step)
                except CallFailed as failure:
                    step = steps.throw(failure)
                else:
                    step = steps.send(answer)
        except StopIteration as stop:
            result: T = stop.value
            return result

    def _call(self, call: Call) -> Command:
        try:
            link = self._links.get(call.address)
            if link is None:
                link = _Link(call.address, call.seconds, self._tls)
                self._links[call.address] = link
            return link.call(call, self._clock)
        except (OSError, RemoteProtocolError) as error:
            broken = self._links.pop(call.address, None)
            if broken is not None:
                broken.close()
            raise CallFailed(f"{call.address}: {error}") from error
