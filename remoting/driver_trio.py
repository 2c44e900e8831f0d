"""Carries steps out under trio.

One connection per address, made when it is first needed, shared by all operations, and read by a
task of its own. Any number of operations may run at a time, each in the task that called `run`.

    async with open_trio_driver() as driver:
        route = await driver.run(core.route("orders"))
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, TypeVar

import trio

from remoting.consumer import Consumer
from remoting.errors import CallFailed, RemoteProtocolError
from remoting.fetching import fetch
from remoting.frames import Command
from remoting.group_bodies import MessageQueue
from remoting.link import Handler, Link
from remoting.records import Record
from remoting.steps import Address, Call, Fetch, Pause, Steps

READ_BYTES: Final = 256 * 1024
"""Of one read: a pull's answer in a few of them."""
LEAVE_SECONDS: Final = 5.0
"""For a consumer's last commits."""

Connect = Callable[[Address], Awaitable[trio.abc.Stream]]
"""How to reach an address. Raises OSError."""

T = TypeVar("T")


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

    def __init__(self, address: Address, stream: trio.abc.Stream, handler: Handler | None) -> None:
        self.address = address
        self.stream = stream
        self.link: Link[_Waiter] = Link(address, handler)
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


class TrioDriver:
    """Made by `open_trio_driver`."""

    def __init__(
        self,
        nursery: trio.Nursery,
        connect: Connect,
        handler: Handler | None,
        on_lost: Callable[[Address], None],
    ) -> None:
        self._nursery = nursery
        self._on_lost = on_lost
        self._connect = connect
        self._handler = handler
        self._peers: dict[Address, _Peer] = {}
        self._connecting: dict[Address, trio.Lock] = {}

    async def run(self, steps: Steps[T]) -> T:
        """Carry an operation out. Raises what it raises; cancelled, it stops where it is."""
        try:
            step = next(steps)
            while True:
                if isinstance(step, Pause):
                    await self._pause(step)
                    step = steps.send(None)
                    continue
                try:
                    if isinstance(step, Fetch):
                        answer: Command | None = await trio.to_thread.run_sync(
                            fetch, step.url, step.seconds, abandon_on_cancel=True
                        )
                    else:
                        answer = await self._call(step)
                except CallFailed as failure:
                    step = steps.throw(failure)
                else:
                    step = steps.send(answer)
        except StopIteration as stop:
            result: T = stop.value
            return result

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

    # --- calls ----------------------------------------------------------------------------

    async def _call(self, call: Call) -> Command | None:
        with trio.move_on_after(call.seconds):
            peer = await self._peer(call.address)
            return await self._ask(peer, call)
        raise CallFailed(f"{call.address}: no answer within {call.seconds:g} seconds")

    async def _ask(self, peer: _Peer, call: Call) -> Command | None:
        waiter = _Waiter()
        opaque, data = peer.link.ask(call, waiter)
        try:
            await peer.send(data)
            if call.oneway:
                return None
            await waiter.done.wait()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self._drop(peer, "the connection broke")
            raise CallFailed(f"{call.address}: the connection broke") from error
        except trio.Cancelled:
            if peer.spoiled or peer.link.is_dead_after(opaque):
                self._drop(peer, "no answer")
            raise
        finally:
            peer.link.give_up(opaque)
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
                peer = self._peers[address] = _Peer(address, stream, self._handler)
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


async def consume(
    driver: TrioDriver, consumer: Consumer, handle: Callable[[Record], Awaitable[None]]
) -> None:
    """Hand every message of a consumer to `handle`, until cancelled; those of one queue in order.

    What `handle` raises makes the message one that was handled in vain: the broker sends it again.
    At the end all is committed, and the brokers are told. The driver's handler has to be
    `consumer.asked`, or changes of the group are noticed late.
    """
    scopes: dict[MessageQueue, trio.CancelScope] = {}
    async with trio.open_nursery() as nursery:
        try:
            for steps in (
                consumer.presence.keep(),
                consumer.keep_committed(),
                consumer.routes.keep_fresh(),
            ):
                nursery.start_soon(driver.run, steps)
            while True:
                seen = consumer.members_changed.count
                mine = await driver.run(consumer.share())
                for queue in scopes.keys() - mine:
                    scopes.pop(queue).cancel()
                for queue in sorted(mine - scopes.keys()):
                    scopes[queue] = trio.CancelScope()
                    nursery.start_soon(_pull, driver, consumer, queue, handle, scopes[queue])
                await driver.run(consumer.wait_to_share(seen))
        finally:
            with trio.move_on_after(LEAVE_SECONDS, shield=True):
                await driver.run(consumer.leave())


async def _pull(
    driver: TrioDriver,
    consumer: Consumer,
    queue: MessageQueue,
    handle: Callable[[Record], Awaitable[None]],
    scope: trio.CancelScope,
) -> None:
    with scope:
        while True:
            records = await driver.run(consumer.pull(queue))
            for record in records:
                try:
                    await handle(record)
                except Exception:  # noqa: BLE001  (whatever it is: the message comes again)
                    if not await driver.run(consumer.handled_in_vain(queue, record)):
                        break
            else:
                if records:
                    consumer.handled(queue)


@asynccontextmanager
async def open_trio_driver(
    *,
    connect: Connect | None = None,
    handler: Handler | None = None,
    on_lost: Callable[[Address], None] = lambda _address: None,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[TrioDriver]:
    """A driver and its connections, closed at the end.

    Args:
        connect: how to reach an address; by TCP by default.
        handler: answers what brokers ask of their clients.
        on_lost: called when a connection broke or was closed.
        tls: encrypt with this context; for connections over TCP.
    """
    async with trio.open_nursery() as nursery:
        yield TrioDriver(nursery, connect or connect_tcp(tls), handler, on_lost)
        nursery.cancel_scope.cancel()
