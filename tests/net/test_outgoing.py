"""Connections that the server makes: each of their waits has an end, and says why in words."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from polymq.net.connection import Context, SocketConnection
from polymq.net.outgoing import Dialer


class Client(SocketConnection):
    """Says one thing, and collects what comes until the end."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.came = b""
        self.over = context.loop.create_future()

    def opened(self) -> None:
        self.write(b"hello")

    def consume(self, buffer: bytearray, start: int, end: int) -> int:
        self.came += bytes(buffer[start:end])
        return end

    def lost(self, error: Exception | None) -> None:
        self.over.set_result(error)


def run(what: Callable[[Context, Dialer], Awaitable[None]], *, plane: bool = True) -> None:
    async def main() -> None:
        context = Context(asyncio.get_running_loop(), plane=plane)
        try:
            await asyncio.wait_for(what(context, Dialer(context)), 20)
        finally:
            context.close()

    asyncio.run(main())


@pytest.mark.parametrize("plane", [True, False])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_connection(host: str, plane: bool) -> None:
    async def talk(context: Context, dial: Dialer) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            client = Client(context)
            await dial(client, host, listening.getsockname()[1], None, 10)
            accepted, _ = listening.accept()
            with accepted:
                accepted.settimeout(10)
                assert await asyncio.to_thread(accepted.recv, 5) == b"hello"
                accepted.sendall(b"and back")
            await client.over
            assert client.came == b"and back"

    run(talk, plane=plane)


def test_a_port_where_nobody_is() -> None:
    async def refused(context: Context, dial: Dialer) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            port = listening.getsockname()[1]
        with pytest.raises(ConnectionRefusedError):
            await dial(Client(context), "127.0.0.1", port, None, 10)

    run(refused)


def test_names_that_take_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait ends in time, and there is one thread for it, however often it is tried."""
    asked: list[str] = []
    answer = threading.Event()

    def slow(host: str, *_: Any, **__: Any) -> Any:
        asked.append(host)
        answer.wait(20)
        raise socket.gaierror(-2, "no such name")

    monkeypatch.setattr(socket, "getaddrinfo", slow)

    async def look(context: Context, dial: Dialer) -> None:
        with pytest.raises(TimeoutError) as late:
            await dial(Client(context), "slow.example", 1, None, 0.05)
        assert late.value.strerror == "no connection within 0.05 s"
        with pytest.raises(OSError, match="still being looked up"):
            await dial(Client(context), "slow.example", 1, None, 10)
        assert asked == ["slow.example"]
        answer.set()
        assert dial._looking is not None
        dial._looking.join(10)
        with pytest.raises(OSError, match=r"slow\.example is not found: no such name"):
            await dial(Client(context), "slow.example", 1, None, 10)

    run(look)
