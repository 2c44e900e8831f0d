"""A name server for tests that speak to it over real sockets or in memory."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import trio

from polymq.namesrv.limits import NameServerLimits
from polymq.namesrv.login import Login
from polymq.namesrv.server import Listener, NameServer, open_listeners
from polymq.remoting.steps import Address

SECONDS_MAX = 20.0


class Memory:
    """Keeps the configuration as long as the test lasts."""

    def __init__(self) -> None:
        self.stored: bytes | None = None
        self.failure: Exception | None = None

    def load(self) -> bytes | None:
        return self.stored

    async def keep(self, data: bytes) -> None:
        await trio.lowlevel.checkpoint()
        if self.failure is not None:
            raise self.failure
        self.stored = data

    def close(self) -> None:
        pass


class SpyLog:
    """A log that remembers what it was told."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str, dict[str, Any]]] = []

    def info(self, event: str, **values: Any) -> None:
        self.said.append(("info", event, values))

    def warning(self, event: str, **values: Any) -> None:
        self.said.append(("warning", event, values))

    def error(self, event: str, **values: Any) -> None:
        self.said.append(("error", event, values))

    def events(self) -> list[str]:
        return [event for _, event, _ in self.said]


@asynccontextmanager
async def name_server(
    memory: Memory | None = None,
    spy_log: SpyLog | None = None,
    *,
    login: Login | None = None,
    tls: ssl.SSLContext | None = None,
    **limits: Any,
) -> AsyncIterator[tuple[NameServer, Address]]:
    """A name server on a port of the system's choice, for at most `SECONDS_MAX`."""
    server = NameServer(
        keeper=memory or Memory(),
        log=spy_log or SpyLog(),
        limits=NameServerLimits(**limits),
        login=login,
    )
    with trio.fail_after(SECONDS_MAX):
        listeners = await open_listeners("127.0.0.1", 0)
        served: list[Listener] = [*listeners]
        if tls is not None:
            served = [trio.SSLListener(one, tls, https_compatible=True) for one in listeners]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(server.serve, served)
            yield server, Address("127.0.0.1", listeners[0].socket.getsockname()[1])
            nursery.cancel_scope.cancel()
