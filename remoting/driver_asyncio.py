"""Carries steps out on an asyncio loop.

One connection per address, made when it is first needed and shared by all operations. Any number
of operations may run at a time, each in the task that called `run`. Bytes are read by a protocol's
callback, so a waiting connection costs no task.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar, cast

from remoting.consumer import Consumer
from remoting.errors import CallFailed, RemoteProtocolError
from remoting.fetching import fetch
from remoting.frames import Command
from remoting.group_bodies import MessageQueue
from remoting.link import Handler, Link
from remoting.records import Record
from remoting.steps import Address, Call, Fetch, Pause, Steps

T = TypeVar("T")
LEAVE_SECONDS: Final = 5.0
"""For a consumer's last commits."""
_Waiter = asyncio.Future[Command]


class _Peer(asyncio.Protocol):
    """A connection: `link` is its state."""

    def __init__(
        self, address: Address, handler: Handler | None, on_lost: Callable[[Address], None]
    ) -> None:
        self.link: Link[_Waiter] = Link(address, handler)
        self.transport: asyncio.Transport | None = None
        self.lost = False
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

    def connection_lost(self, error: Exception | None) -> None:
        self.drop(self._reason if error is None else str(error))

    def drop(self, reason: str) -> None:
        """The connection is of no use any more: whoever waits is told."""
        if self.lost:
            return
        self.lost = True
        if self.transport is not None:
            self.transport.abort()
        for waiter in self.link.lost():
            if not waiter.done():
                waiter.set_exception(CallFailed(f"{self._address}: {reason}"))
        self._on_lost(self._address)


class AsyncioDriver:
    """Made and used on one loop; `close` it at the end.

    Args:
        tls: encrypt with this context.
        handler: answers what brokers ask of their clients.
        on_lost: called when a connection broke or was closed.
    """

    def __init__(
        self,
        *,
        tls: ssl.SSLContext | None = None,
        handler: Handler | None = None,
        on_lost: Callable[[Address], None] = lambda _address: None,
    ) -> None:
        self._tls = tls
        self._on_lost = on_lost
        self._handler = handler
        self._peers: dict[Address, _Peer] = {}
        self._connecting: dict[Address, asyncio.Lock] = {}

    async def run(self, steps: Steps[T]) -> T:
        """Carry an operation out. Raises what it raises; cancelled, it stops where it is."""
        try:
            step = next(steps)
            while True:
                if isinstance(step, Pause):
                    await _pause(step)
                    step = steps.send(None)
                    continue
                try:
                    if isinstance(step, Fetch):
                        answer: Command | None = await asyncio.to_thread(
                            fetch, step.url, step.seconds
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

    def close(self) -> None:
        """Close all connections at once. The driver can be used again; it connects anew."""
        peers, self._peers = self._peers, {}
        for peer in peers.values():
            peer.drop("closed")

    async def _call(self, call: Call) -> Command | None:
        try:
            async with asyncio.timeout(call.seconds):
                peer = await self._peer(call.address)
                return await self._ask(peer, call)
        except TimeoutError as error:
            text = f"{call.address}: no answer within {call.seconds:g} seconds"
            raise CallFailed(text) from error

    async def _ask(self, peer: _Peer, call: Call) -> Command | None:
        assert peer.transport is not None
        waiter: _Waiter = asyncio.get_running_loop().create_future()
        opaque, data = peer.link.ask(call, waiter)
        peer.transport.write(data)
        if call.oneway:
            return None
        try:
            return await waiter
        except asyncio.CancelledError:
            if peer.link.is_dead_after(opaque):
                peer.drop("no answer")
            raise
        finally:
            peer.link.give_up(opaque)

    async def _peer(self, address: Address) -> _Peer:
        async with self._connecting.setdefault(address, asyncio.Lock()):
            peer = self._peers.get(address)
            if peer is not None and not peer.lost:
                return peer
            loop = asyncio.get_running_loop()
            try:
                _, peer = await loop.create_connection(
                    lambda: _Peer(address, self._handler, self._on_lost),
                    address.host,
                    address.port,
                    ssl=self._tls,
                )
            except OSError as error:
                raise CallFailed(f"{address}: {error}") from error
            self._peers[address] = peer
            return peer


async def consume(
    driver: AsyncioDriver, consumer: Consumer, handle: Callable[[Record], Awaitable[None]]
) -> None:
    """Hand every message of a consumer to `handle`, until cancelled; those of one queue in order.

    What `handle` raises makes the message one that was handled in vain: the broker sends it again.
    At the end all is committed, and the brokers are told. The driver's handler has to be
    `consumer.asked`, or changes of the group are noticed late.
    """
    pulling: dict[MessageQueue, asyncio.Task[None]] = {}
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(driver.run(consumer.presence.keep()))
            group.create_task(driver.run(consumer.keep_committed()))
            group.create_task(driver.run(consumer.routes.keep_fresh()))
            while True:
                seen = consumer.members_changed.count
                mine = await driver.run(consumer.share())
                for queue in pulling.keys() - mine:
                    pulling.pop(queue).cancel()
                for queue in sorted(mine - pulling.keys()):
                    pulling[queue] = group.create_task(_pull(driver, consumer, queue, handle))
                await driver.run(consumer.wait_to_share(seen))
    finally:
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                await driver.run(consumer.leave())
        except TimeoutError:
            pass  # what was not committed comes again


async def _pull(
    driver: AsyncioDriver,
    consumer: Consumer,
    queue: MessageQueue,
    handle: Callable[[Record], Awaitable[None]],
) -> None:
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


async def _pause(pause: Pause) -> None:
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
