"""Carries steps out on an asyncio loop.

One connection per address, made when it is first needed and shared by all operations. Bytes are
read by a protocol's callback, so a waiting connection costs no task. Where a server does not take
what is sent, calls wait before they are sent, each no longer than it may take.

    async with open_producer("shop", ClientOptions(name_servers="127.0.0.1:9876")) as producer:
        await producer.send(Message(topic="orders", body=b"..."))
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING, cast

from polymq.remoting.awaiting import (
    AwaitingDriver,
    AwaitingProducer,
    Group,
    Handle,
    consuming,
    producing,
)
from polymq.remoting.client_options import ClientOptions
from polymq.remoting.errors import CallFailed, RemoteProtocolError
from polymq.remoting.fetching import fetch
from polymq.remoting.frames import Command
from polymq.remoting.link import Handler, Link
from polymq.remoting.signing import Credentials
from polymq.remoting.steps import Address, Call, Fetch, Pause, Steps

if TYPE_CHECKING:  # a broker that only registers starts without them
    from polymq.remoting.compression import Decompressors
    from polymq.remoting.consumer import Consumer
    from polymq.remoting.consumer_settings import ConsumerSettings
    from polymq.remoting.producer import ProducerSettings
    from polymq.remoting.transactions import Listener

_Waiter = asyncio.Future[Command]
_GIVEN_UP = "the answer is no longer awaited"


class _Peer(asyncio.Protocol):
    """A connection: `link` is its state."""

    def __init__(
        self, address: Address, link: Link[_Waiter], on_lost: Callable[[Address], None]
    ) -> None:
        self.link = link
        self.transport: asyncio.Transport | None = None
        self.lost = False
        self.writable = asyncio.Event()  # clear while the server does not take what was sent
        self.writable.set()
        self._address = address
        self._on_lost = on_lost
        self._reason = "the server closed the connection"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by its type

    def data_received(self, data: bytes) -> None:
        assert self.transport is not None
        try:
            received = self.link.receive(data)
        except RemoteProtocolError as error:
            self.drop(str(error))
            return
        for waiter, answer in received.answers:
            if not waiter.done():
                waiter.set_result(answer)
        if received.replies:
            self.transport.write(received.replies)

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.drop(self._reason if error is None else str(error))

    def drop(self, reason: str) -> None:
        """The connection is of no use any more: whoever waits is told."""
        if self.lost:
            return
        self.lost = True
        self.writable.set()  # who waits to send finds out, too
        if self.transport is not None:
            self.transport.abort()
        for waiter in self.link.lost():
            if not waiter.done():
                waiter.set_exception(CallFailed(f"{self._address}: {reason}"))
        self._on_lost(self._address)


class AsyncioDriver(AwaitingDriver):
    """Made and used on one loop; `close` it at the end.

    Args:
        tls: encrypt with this context.
        handler: answers what brokers ask of their clients.
        on_lost: called when a connection broke or was closed.
        credentials: sign every request with them.
    """

    def __init__(
        self,
        *,
        tls: ssl.SSLContext | None = None,
        handler: Handler | None = None,
        on_lost: Callable[[Address], None] = lambda _address: None,
        credentials: Credentials | None = None,
    ) -> None:
        self._tls = tls
        self._credentials = credentials
        self._on_lost = on_lost
        self._handler = handler
        self._peers: dict[Address, _Peer] = {}
        self._connecting: dict[Address, asyncio.Lock] = {}

    def close(self) -> None:
        """Close all connections at once. The driver can be used again; it connects anew."""
        peers, self._peers = self._peers, {}
        for peer in peers.values():
            peer.drop("closed")

    # --- calls ----------------------------------------------------------------------------

    async def _call(self, call: Call) -> Command | None:
        try:
            async with asyncio.timeout(call.seconds) as limit:
                peer = await self._peer(call.address)
                return await self._ask(peer, call, limit)
        except TimeoutError as error:
            text = f"{call.address}: no answer within {call.seconds:g} seconds"
            raise CallFailed(text) from error

    async def _ask(self, peer: _Peer, call: Call, limit: asyncio.Timeout) -> Command | None:
        await peer.writable.wait()
        if peer.lost or peer.transport is None:
            raise CallFailed(f"{call.address}: the connection broke")
        if call.is_given_up:
            raise CallFailed(_GIVEN_UP)
        waiter: _Waiter = asyncio.get_running_loop().create_future()
        opaque, data = peer.link.ask(call, waiter)
        peer.transport.write(data)
        if call.oneway:
            return None

        def give_up() -> None:
            if not waiter.done():
                waiter.set_exception(CallFailed(_GIVEN_UP))

        if call.until is not None:
            call.until.listen(give_up)
        try:
            return await waiter
        except asyncio.CancelledError:
            # Who gives up earlier than the call's time says nothing about the connection.
            if limit.expired() and peer.link.is_dead_after(opaque):
                peer.drop("no answer")
            raise
        finally:
            peer.link.give_up(opaque)
            if call.until is not None:
                call.until.forget(give_up)

    async def _peer(self, address: Address) -> _Peer:
        async with self._connecting.setdefault(address, asyncio.Lock()):
            peer = self._peers.get(address)
            if peer is not None and not peer.lost:
                return peer
            loop = asyncio.get_running_loop()
            try:
                _, peer = await loop.create_connection(
                    lambda: _Peer(
                        address, Link(address, self._handler, self._credentials), self._on_lost
                    ),
                    address.host,
                    address.port,
                    ssl=self._tls,
                )
            except OSError as error:
                raise CallFailed(f"{address}: {error}") from error
            self._peers[address] = peer
            return peer

    # --- the other steps ------------------------------------------------------------------

    async def _pause(self, pause: Pause) -> None:
        if pause.signal is None:
            await asyncio.sleep(pause.seconds)
            return
        woken = asyncio.Event()
        pause.signal.listen(woken.set)
        try:
            if not pause.is_over:
                async with asyncio.timeout(pause.seconds):
                    await woken.wait()
        except TimeoutError:
            pass
        finally:
            pause.signal.forget(woken.set)

    async def _fetch(self, step: Fetch) -> Command:
        return await asyncio.to_thread(fetch, step.url, step.seconds)

    @asynccontextmanager
    async def open_group(self) -> AsyncIterator[Group]:
        """A group that ends when all in it have; an error of one ends all."""
        async with asyncio.TaskGroup() as tasks:
            yield _Group(self, tasks)

    async def finish(self, steps: Steps[object], seconds: float) -> None:
        """Carry an operation out, cancelled or not, for at most so long."""
        try:
            async with asyncio.timeout(seconds):
                await self.run(steps)
        except TimeoutError:
            pass  # what was not committed comes again


class _Group:
    """Operations in tasks."""

    def __init__(self, driver: AsyncioDriver, tasks: asyncio.TaskGroup) -> None:
        self._driver = driver
        self._tasks = tasks
        self._running: set[asyncio.Task[object]] = set()

    def start(self, steps: Steps[object]) -> None:
        task = self._tasks.create_task(self._driver.run(steps, self))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def cancel(self) -> None:
        for task in self._running:
            task.cancel()


@asynccontextmanager
async def open_producer(
    group: str,
    options: ClientOptions | None = None,
    *,
    settings: ProducerSettings | None = None,
    listener: Listener | None = None,
) -> AsyncIterator[AwaitingProducer]:
    """A producer for one group of producers, connected when it sends.

    Args:
        options: where brokers are, and as whom to speak to them.
        listener: for transactions (`transactions.Listener`).

    Raises:
        LocalProtocolError: no name server is given, or a name is none, or one of the keys is.
    """
    from polymq.remoting.compose import compose_producer, handlers

    options = options or ClientOptions()
    producer, transactions = compose_producer(group, options, settings, listener)
    driver = AsyncioDriver(
        tls=options.tls,
        handler=handlers(transactions),
        credentials=options.credentials(),
    )
    with closing(driver):
        async with producing(driver, producer, transactions) as opened:
            yield opened


@asynccontextmanager
async def open_consumer(
    group: str,
    subscriptions: Mapping[str, str],
    handle: Handle,
    options: ClientOptions | None = None,
    *,
    settings: ConsumerSettings | None = None,
    decompressors: Decompressors | None = None,
) -> AsyncIterator[Consumer]:
    """A consumer at work as long as the context is open.

    Args:
        subscriptions: topic -> `*`, or tags between `||`.
        handle: gets each message; what it raises makes the message come again.
        decompressors: for bodies that zlib did not compress (`compression`).

    The rest, and what is raised, as of `open_producer`.
    """
    from polymq.remoting.compose import compose_consumer

    options = options or ClientOptions()
    consumer = compose_consumer(group, subscriptions, options, settings, decompressors)
    driver = AsyncioDriver(
        tls=options.tls,
        handler=consumer.asked,
        on_lost=consumer.connection_lost,
        credentials=options.credentials(),
    )
    with closing(driver):
        async with consuming(driver, consumer, handle) as opened:
            yield opened
