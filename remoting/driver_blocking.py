"""Carries steps out with blocking sockets, and the client for threads that reads.

One connection per address, made when it is first needed and kept. A connection whose call failed
is closed: a late answer must not meet the next question. One thread at a time.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, ParamSpec, Self, TypeVar

from polymq.remoting.client import ClientCore, ClientSettings
from polymq.remoting.consumer import Consumer
from polymq.remoting.errors import CallFailed, LocalProtocolError, RemoteProtocolError
from polymq.remoting.fetching import fetch
from polymq.remoting.frames import Command
from polymq.remoting.group_bodies import MessageQueue
from polymq.remoting.link import Handler, Link
from polymq.remoting.presence import HEARTBEAT_SECONDS
from polymq.remoting.records import Record
from polymq.remoting.signing import Credentials, credentials_from
from polymq.remoting.steps import Address, Call, Fetch, Invoke, Pause, Start, Step, Steps

POLL_PAUSE_SECONDS: Final = 0.1
"""Between two looks at queues that have nothing."""
READ_BYTES: Final = 256 * 1024
"""Of one recv: a pull's answer in a few of them."""

P = ParamSpec("P")
T = TypeVar("T")


class _Peer:
    """A socket and the state of its connection."""

    def __init__(
        self,
        address: Address,
        seconds: float,
        tls: ssl.SSLContext | None,
        link: Link[None],
    ) -> None:
        self._link = link
        raw = socket.create_connection((address.host, address.port), timeout=seconds)
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._socket = (
                raw if tls is None else tls.wrap_socket(raw, server_hostname=address.host)
            )
        except OSError:
            raw.close()
            raise

    def call(self, call: Call, clock: Callable[[], float]) -> Command | None:
        deadline = clock() + call.seconds
        _, data = self._link.ask(call, None)
        self._socket.settimeout(call.seconds)
        self._socket.sendall(data)
        while not call.oneway:
            left = deadline - clock()
            if left <= 0:
                raise TimeoutError(f"no answer within {call.seconds:g} seconds")
            self._socket.settimeout(left)
            data = self._socket.recv(READ_BYTES)
            if not data:
                raise ConnectionResetError("the server closed the connection")
            received = self._link.receive(data)
            if received.replies:
                self._socket.sendall(received.replies)
            if received.answers:  # one call is under way, so it is the answer to that
                return received.answers[0][1]
        return None

    def close(self) -> None:
        self._socket.close()


class BlockingDriver:
    """Carries steps out, one operation at a time.

    Args:
        tls: encrypt with this context.
        handler: answers what brokers ask of their clients, while a call is under way.
        credentials: sign every request with them.
        clock, sleep: for tests.
    """

    def __init__(
        self,
        *,
        tls: ssl.SSLContext | None = None,
        handler: Handler | None = None,
        credentials: Credentials | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._tls = tls
        self._handler = handler
        self._credentials = credentials
        self._clock = clock
        self._sleep = sleep
        self._peers: dict[Address, _Peer] = {}

    def run(self, steps: Steps[T]) -> T:
        """Carry an operation out. Raises what it raises."""
        try:
            step = next(steps)
            while True:
                try:
                    answer = self._carry_out(step)
                except CallFailed as failure:
                    step = steps.throw(failure)
                else:
                    step = steps.send(answer)
        except StopIteration as stop:
            result: T = stop.value
            return result

    def _carry_out(self, step: Step) -> Command | None:
        match step:
            case Call():
                return self._call(step)
            case Pause():
                if not step.is_over:  # nobody else could give a signal meanwhile
                    self._sleep(step.seconds)
            case Fetch():
                return fetch(step.url, step.seconds)
            case Invoke():
                try:
                    step.result = step.function(*step.arguments)
                except Exception as error:  # noqa: BLE001  (the operation decides what it means)
                    step.failure = error
            case Start():
                raise LocalProtocolError("one thread does one thing at a time: use driver_threads")
        return None

    def close(self) -> None:
        """Close all connections. The driver can be used again; it connects anew."""
        peers, self._peers = self._peers, {}
        for peer in peers.values():
            peer.close()

    def _call(self, call: Call) -> Command | None:
        try:
            peer = self._peers.get(call.address)
            if peer is None:
                link: Link[None] = Link(call.address, self._handler, self._credentials)
                peer = _Peer(call.address, call.seconds, self._tls, link)
                self._peers[call.address] = peer
            return peer.call(call, self._clock)
        except (OSError, RemoteProtocolError) as error:
            broken = self._peers.pop(call.address, None)
            if broken is not None:
                broken.close()
            raise CallFailed(f"{call.address}: {error}") from error


class PollingConsumer:
    """A consumer for one thread, which asks for messages instead of being handed them.

        while running:
            for queue, record in polling.poll(5.0): ...
            polling.handled()

    `poll` also shares, commits and sends heartbeats when they are due: call it at least every 30
    seconds. The consumer's `long_poll_seconds` should be 0, or one queue without messages delays
    the others.

    Args:
        driver: made with `handler=consumer.asked`.

    Raises:
        LocalProtocolError: the consumer is to read in order.
    """

    def __init__(
        self,
        consumer: Consumer,
        driver: BlockingDriver,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if consumer.settings.ordered:
            raise LocalProtocolError("polling does not read in order: use driver_threads")
        self._consumer = consumer
        self._driver = driver
        self._clock = clock
        self._sleep = sleep
        self._shared = self._beaten = self._committed = float("-inf")
        self._seen = -1
        self._given: set[MessageQueue] = set()  # queues whose messages are being handled

    def poll(self, seconds: float) -> list[tuple[MessageQueue, Record]]:
        """The next messages; none after so many seconds without any."""
        deadline = self._clock() + seconds
        while True:
            self._do_what_is_due()
            found = []
            for queue in sorted(self._consumer.queues - self._given):
                records = self._driver.run(self._consumer.pull(queue))
                if records:
                    self._given.add(queue)
                    found += [(queue, record) for record in records]
            if found or self._clock() >= deadline:
                return found
            self._sleep(POLL_PAUSE_SECONDS)

    def handled(self) -> None:
        """All that `poll` gave so far was handled."""
        for queue in self._given:
            self._consumer.handled(queue)
        self._given.clear()

    def handled_in_vain(self, queue: MessageQueue, record: Record) -> bool:
        """See `Consumer.handled_in_vain`."""
        return self._driver.run(self._consumer.handled_in_vain(queue, record))

    def close(self) -> None:
        """Commit what was handled, and take leave. The driver stays open."""
        self._driver.run(self._consumer.leave())

    def _do_what_is_due(self) -> None:
        consumer, now = self._consumer, self._clock()
        settings = consumer.settings
        if self._seen != consumer.members_changed.count or now - self._shared > (
            settings.share_seconds if consumer.queues else settings.look_seconds
        ):
            self._seen, self._shared = consumer.members_changed.count, now
            self._given &= self._driver.run(consumer.share())
        if now - self._beaten > HEARTBEAT_SECONDS:
            self._beaten = now
            self._driver.run(consumer.presence.beat())
        if now - self._committed > settings.commit_seconds:
            self._committed = now
            self._driver.run(consumer.commit())


class BlockingClient:
    """A client whose operations (`topics`, `route`, `bounds`, `offset_at`, `pull`) wait for their
    results.

    Args:
        addresses: of brokers or name servers, `host:port`.
        tls: encrypt with this context.
        access_key, secret_key: sign every request, for a server that has users; or
        credentials: the same as one value.
        clock, sleep: for tests.

    They raise `Unreachable` when the settings' attempts are used up and `RequestFailed`
    when the server refuses; see `client.ClientCore` for what each one does.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        settings: ClientSettings | None = None,
        tls: ssl.SSLContext | None = None,
        access_key: str | None = None,
        secret_key: str | None = None,
        credentials: Credentials | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        parsed = [Address.parse(address) for address in addresses]
        core = ClientCore(parsed, settings or ClientSettings())
        credentials = credentials or credentials_from(access_key, secret_key)
        self._driver = BlockingDriver(tls=tls, credentials=credentials, clock=clock, sleep=sleep)
        self.topics = self._waiting(core.topics)
        self.route = self._waiting(core.route)
        self.bounds = self._waiting(core.bounds)
        self.offset_at = self._waiting(core.offset_at)
        self.pull = self._waiting(core.pull)

    def _waiting(self, operation: Callable[P, Steps[T]]) -> Callable[P, T]:
        def wait(*args: P.args, **kwargs: P.kwargs) -> T:
            return self._driver.run(operation(*args, **kwargs))

        return wait

    def close(self) -> None:
        """Close all connections. The client can be used again; it connects anew."""
        self._driver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
