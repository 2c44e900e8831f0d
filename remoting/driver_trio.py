"""Carries steps out under trio.

One connection per address, made when it is first needed, shared by all operations, and read by a
task of its own.

    async with open_trio_driver() as driver:
        route = await driver.run(core.route("orders"))
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Final

import trio

from polymq.remoting.awaiting import (
    AwaitingDriver,
    AwaitingProducer,
    Group,
    Handle,
    consuming,
    producing,
)
from polymq.remoting.client_options import ClientOptions
from polymq.remoting.compose import compose_consumer, compose_producer, handlers
from polymq.remoting.compression import Decompressors
from polymq.remoting.consumer import Consumer
from polymq.remoting.consumer_settings import ConsumerSettings
from polymq.remoting.errors import CallFailed, RemoteProtocolError
from polymq.remoting.fetching import fetch
from polymq.remoting.frames import Command
from polymq.remoting.link import Handler, Link
from polymq.remoting.producer import ProducerSettings
from polymq.remoting.signing import Credentials
from polymq.remoting.steps import Address, Call, Fetch, Pause, Steps
from polymq.remoting.transactions import Listener

READ_BYTES: Final = 256 * 1024
"""Of one read: a pull's answer in a few of them."""
_GIVEN_UP: Final = "the answer is no longer awaited"

Connect = Callable[[Address], Awaitable[trio.abc.Stream]]
"""How to reach an address. Raises OSError."""


def connect_tcp(tls: ssl.SSLContext | None = None) -> Connect:
    """Connections over TCP, encrypted where a context is given."""

    async def connect(address: Address) -> trio.abc.Stream:
        if tls is None:
            return await trio.open_tcp_stream(address.host, address.port)
        return await trio.open_ssl_over_tcp_stream(address.host, address.port, ssl_context=tls)

    return connect


class _Waiter:
    """A task that waits for the answer to its call."""

    __slots__ = ("answer", "done", "failure")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.answer: Command | None = None
        self.failure: CallFailed | None = None


class _Peer:
    """A connection. `link` is its state, `sending` keeps frames whole."""

    def __init__(self, address: Address, stream: trio.abc.Stream, link: Link[_Waiter]) -> None:
        self.address = address
        self.stream = stream
        self.link = link
        self.sending = trio.Lock()
        self.lost = False
        self.spoiled = False  # a frame was cut short: what follows it would be misread

    async def send(self, data: bytes) -> None:
        async with self.sending:
            whole = False
            try:
                await self.stream.send_all(data)
                whole = True
            finally:
                self.spoiled = self.spoiled or not whole


class TrioDriver(AwaitingDriver):
    """Made by `open_trio_driver`."""

    def __init__(
        self,
        nursery: trio.Nursery,
        connect: Connect,
        handler: Handler | None,
        on_lost: Callable[[Address], None],
        credentials: Credentials | None,
    ) -> None:
        self._nursery = nursery
        self._credentials = credentials
        self._on_lost = on_lost
        self._connect = connect
        self._handler = handler
        self._peers: dict[Address, _Peer] = {}
        self._connecting: dict[Address, trio.Lock] = {}

    # --- calls ----------------------------------------------------------------------------

    async def _call(self, call: Call) -> Command | None:
        with trio.move_on_after(call.seconds) as limit:
            peer = await self._peer(call.address)
            return await self._ask(peer, call, limit)
        raise CallFailed(f"{call.address}: no answer within {call.seconds:g} seconds")

    async def _ask(self, peer: _Peer, call: Call, limit: trio.CancelScope) -> Command | None:
        waiter = _Waiter()
        opaque, data = peer.link.ask(call, waiter)

        def give_up() -> None:
            waiter.failure = CallFailed(_GIVEN_UP)
            waiter.done.set()

        if call.until is not None:
            call.until.listen(give_up)
        try:
            if call.is_given_up:
                raise CallFailed(_GIVEN_UP)
            await peer.send(data)
            if call.oneway:
                return None
            await waiter.done.wait()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self._drop(peer, "the connection broke")
            raise CallFailed(f"{call.address}: the connection broke") from error
        except trio.Cancelled:
            # Who gives up earlier than the call's time says nothing about the connection.
            late = limit.cancel_called and peer.link.is_dead_after(opaque)
            if peer.spoiled or late:
                self._drop(peer, "no answer")
            raise
        finally:
            peer.link.give_up(opaque)
            if call.until is not None:
                call.until.forget(give_up)
        if waiter.failure is not None:
            raise waiter.failure
        return waiter.answer

    async def _peer(self, address: Address) -> _Peer:
        peer = self._peers.get(address)
        if peer is not None:
            return peer
        async with self._connecting.setdefault(address, trio.Lock()):
            peer = self._peers.get(address)
            if peer is None:
                try:
                    stream = await self._connect(address)
                except OSError as error:
                    raise CallFailed(f"{address}: {error}") from error
                link: Link[_Waiter] = Link(address, self._handler, self._credentials)
                peer = self._peers[address] = _Peer(address, stream, link)
                self._nursery.start_soon(self._read, peer)
        return peer

    async def _read(self, peer: _Peer) -> None:
        reason = "the server closed the connection"
        try:
            while data := await peer.stream.receive_some(READ_BYTES):
                received = peer.link.receive(bytes(data))
                for waiter, answer in received.answers:
                    waiter.answer = answer
                    waiter.done.set()
                if received.replies:
                    await peer.send(received.replies)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            reason = "the connection broke"
        except RemoteProtocolError as error:
            reason = str(error)
        finally:
            self._drop(peer, reason)
            await trio.aclose_forcefully(peer.stream)

    def _drop(self, peer: _Peer, reason: str) -> None:
        """Take a connection out of use; its reader ends when the stream is closed."""
        if self._peers.get(peer.address) is peer:
            del self._peers[peer.address]
            self._nursery.start_soon(trio.aclose_forcefully, peer.stream)
        for waiter in peer.link.lost():
            waiter.failure = CallFailed(f"{peer.address}: {reason}")
            waiter.done.set()
        if not peer.lost:
            peer.lost = True
            self._on_lost(peer.address)

    # --- the other steps ------------------------------------------------------------------

    async def _pause(self, pause: Pause) -> None:
        if pause.signal is None:
            await trio.sleep(pause.seconds)
            return
        woken = trio.Event()
        pause.signal.listen(woken.set)
        try:
            if not pause.is_over:
                with trio.move_on_after(pause.seconds):
                    await woken.wait()
        finally:
            pause.signal.forget(woken.set)

    async def _fetch(self, step: Fetch) -> Command:
        return await trio.to_thread.run_sync(fetch, step.url, step.seconds, abandon_on_cancel=True)

    @asynccontextmanager
    async def open_group(self) -> AsyncIterator[Group]:
        """A group that ends when all in it have; an error of one ends all."""
        async with trio.open_nursery() as nursery:
            yield _Group(self, nursery)

    async def finish(self, steps: Steps[object], seconds: float) -> None:
        """Carry an operation out, cancelled or not, for at most so long."""
        with trio.move_on_after(seconds, shield=True):
            await self.run(steps)


class _Group:
    """Operations in tasks."""

    def __init__(self, driver: TrioDriver, nursery: trio.Nursery) -> None:
        self._driver = driver
        self._nursery = nursery

    def start(self, steps: Steps[object]) -> None:
        self._nursery.start_soon(self._driver.run, steps, self)

    def cancel(self) -> None:
        self._nursery.cancel_scope.cancel()


@asynccontextmanager
async def open_trio_driver(
    *,
    connect: Connect | None = None,
    handler: Handler | None = None,
    on_lost: Callable[[Address], None] = lambda _address: None,
    tls: ssl.SSLContext | None = None,
    credentials: Credentials | None = None,
) -> AsyncIterator[TrioDriver]:
    """A driver and its connections, closed at the end.

    Args:
        connect: how to reach an address; by TCP by default.
        handler: answers what brokers ask of their clients.
        on_lost: called when a connection broke or was closed.
        tls: encrypt with this context; for connections over TCP.
        credentials: sign every request with them.
    """
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        try:
            connect = connect or connect_tcp(tls)
            yield TrioDriver(nursery, connect, handler, on_lost, credentials)
        except Exception as error:  # noqa: BLE001  (raised below, not within a group of errors)
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


@asynccontextmanager
async def open_producer(
    group: str,
    options: ClientOptions | None = None,
    *,
    settings: ProducerSettings | None = None,
    listener: Listener | None = None,
) -> AsyncIterator[AwaitingProducer]:
    """As `driver_asyncio.open_producer`."""
    options = options or ClientOptions()
    producer, transactions = compose_producer(group, options, settings, listener)
    async with (
        open_trio_driver(
            tls=options.tls,
            handler=handlers(transactions),
            credentials=options.credentials(),
        ) as driver,
        producing(driver, producer, transactions) as opened,
    ):
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
    """As `driver_asyncio.open_consumer`."""
    options = options or ClientOptions()
    consumer = compose_consumer(group, subscriptions, options, settings, decompressors)
    async with (
        open_trio_driver(
            tls=options.tls,
            handler=consumer.asked,
            on_lost=consumer.connection_lost,
            credentials=options.credentials(),
        ) as driver,
        consuming(driver, consumer, handle) as opened,
    ):
        yield opened
