"""What asyncio's and trio's drivers do with a connection when calls end before their answers."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import trio
else:
    trio = pytest.importorskip("trio", reason="one of the drivers needs trio")

from polymq.remoting.connection import Connection, RequestReceived
from polymq.remoting.driver_asyncio import AsyncioDriver
from polymq.remoting.driver_trio import open_trio_driver
from polymq.remoting.errors import CallFailed
from polymq.remoting.frames import Command
from polymq.remoting.steps import Address, Call, Signal, Start, Steps

SECONDS_MAX = 20.0
HELD, QUICK, RELEASE = 11, 30, 99
"""Codes: answered after `RELEASE` came; at once; what releases."""


class Broker:
    """Takes any number of connections, each in a thread, and counts them."""

    def __init__(self) -> None:
        self.connection_count = 0
        self.held_count = 0
        self.held = threading.Event()
        self.reads = True
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address("127.0.0.1", self._listener.getsockname()[1])
        self._taken: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                taken, _ = self._listener.accept()
            except OSError:
                return
            self.connection_count += 1
            self._taken.append(taken)
            if self.reads:
                self._threads.append(threading.Thread(target=self._talk, args=[taken]))
                self._threads[-1].start()

    def _talk(self, taken: socket.socket) -> None:
        core, buffer = Connection(), b""
        held: list[int] = []
        try:
            while data := taken.recv(65_536):
                buffer += data
                events, used = core.receive(buffer, 0, len(buffer))
                buffer = buffer[used:]
                for event in events:
                    assert isinstance(event, RequestReceived)
                    if event.command.code == HELD:
                        held.append(event.serial)
                        self.held_count += 1
                        self.held.set()
                        continue
                    if event.command.code == RELEASE:
                        taken.sendall(b"".join([core.answer(serial, 0) for serial in held]))
                        held.clear()
                    taken.sendall(core.answer(event.serial, 0))
        except OSError:
            pass

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for taken in self._taken:
            taken.close()
        for thread in self._threads:
            thread.join(SECONDS_MAX)


@pytest.fixture
def broker() -> Iterator[Broker]:
    made = Broker()
    yield made
    made.close()


def ask(
    broker: Broker, code: int, seconds: float = SECONDS_MAX, until: Signal | None = None
) -> Steps[Command | None]:
    return (yield Call(address=broker.address, code=code, fields={}, seconds=seconds, until=until))


def test_asyncio_a_cancelled_call_leaves_the_connection_to_the_others(broker: Broker) -> None:
    """A pull that is not wanted any more says nothing about the connection, however silent that
    is: a send that is under way must not be sent twice."""

    async def scenario() -> None:
        driver = AsyncioDriver()
        cancelled = asyncio.create_task(driver.run(ask(broker, HELD)))
        other = asyncio.create_task(driver.run(ask(broker, HELD)))
        await asyncio.to_thread(wait_for, lambda: broker.held_count == 2)
        cancelled.cancel()
        await asyncio.gather(cancelled, return_exceptions=True)
        await driver.run(ask(broker, RELEASE))
        assert await other is not None
        driver.close()

    asyncio.run(scenario())
    assert broker.connection_count == 1


def test_trio_a_cancelled_call_leaves_the_connection_to_the_others(broker: Broker) -> None:
    async def scenario() -> None:
        async with open_trio_driver() as driver, trio.open_nursery() as nursery:
            scope = trio.CancelScope()

            async def cancelled() -> None:
                with scope:
                    await driver.run(ask(broker, HELD))

            nursery.start_soon(cancelled)
            nursery.start_soon(driver.run, ask(broker, HELD))
            await trio.to_thread.run_sync(wait_for, lambda: broker.held_count == 2)
            scope.cancel()
            await driver.run(ask(broker, RELEASE))

    trio.run(scenario)
    assert broker.connection_count == 1


@pytest.mark.parametrize("kind", ["asyncio", "trio"])
def test_a_call_that_times_out_in_silence_takes_its_connection_with_it(
    broker: Broker, kind: str
) -> None:
    run_both(kind, lambda: _silence(broker))
    assert broker.connection_count == 2


def _silence(broker: Broker) -> Steps[None]:
    with pytest.raises(CallFailed, match=r"no answer within 0.05 seconds"):
        yield from ask(broker, HELD, seconds=0.05)
    yield from ask(broker, QUICK)


@pytest.mark.parametrize("kind", ["asyncio", "trio"])
def test_a_call_is_given_up_when_its_signal_is_given(broker: Broker, kind: str) -> None:
    """Before it is sent, or while it waits; the connection goes on."""
    run_both(kind, lambda: _give_up(broker))
    assert broker.connection_count == 1
    assert broker.held_count == 1


def _give_up(broker: Broker) -> Steps[None]:
    lost = Signal()

    def give() -> Steps[None]:
        yield from ask(broker, QUICK)
        lost.give()

    yield Start(give())
    for _ in range(2):
        with pytest.raises(CallFailed, match="no longer awaited"):
            yield from ask(broker, HELD, until=lost)
    yield from ask(broker, QUICK)


def test_asyncio_does_not_buffer_what_the_server_does_not_take(broker: Broker) -> None:
    broker.reads = False

    async def scenario() -> None:
        driver = AsyncioDriver()
        written = 0

        def flood() -> Steps[int]:
            nonlocal written
            while True:
                call = Call(
                    address=broker.address, code=QUICK, fields={}, seconds=0.2, body=bytes(2**20),
                    oneway=True,
                )  # fmt: skip
                try:
                    yield call
                except CallFailed:
                    return written
                written += 1

        assert await driver.run(flood()) < 64, "what the system takes, and one more"
        driver.close()

    asyncio.run(scenario())


def run_both(kind: str, steps: Callable[[], Steps[None]]) -> None:
    async def in_asyncio() -> None:
        driver = AsyncioDriver()
        async with asyncio.timeout(SECONDS_MAX), driver.open_group() as group:
            await driver.run(steps(), group)
        driver.close()

    async def in_trio() -> None:
        with trio.fail_after(SECONDS_MAX):
            async with open_trio_driver() as driver, driver.open_group() as group:
                await driver.run(steps(), group)

    if kind == "asyncio":
        asyncio.run(in_asyncio())
    else:
        trio.run(in_trio)


def wait_for(condition: Callable[[], bool]) -> None:
    """In a thread of its own."""
    pause = threading.Event()
    for _ in range(int(SECONDS_MAX / 0.01)):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it did not happen in time")
