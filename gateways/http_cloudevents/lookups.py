"""DNS for webhooks, in threads of its own.

The loop's own lookups share a handful of threads. A few names whose DNS server does not answer
would keep them busy for tens of seconds, and with them all other sinks. Here every request under
way can have a thread; threads are made as they are needed.
"""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor

from aiohttp.abc import AbstractResolver, ResolveResult


class Lookups(AbstractResolver):
    """Asks the system's resolver.

    Args:
        threads_max: lookups at once.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, threads_max: int) -> None:
        self._loop = loop
        self._threads = ThreadPoolExecutor(threads_max, thread_name_prefix="polymq-dns")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """The addresses of a host. Raises OSError."""
        found = await self._loop.run_in_executor(
            self._threads,
            lambda: socket.getaddrinfo(
                host, port, family, socket.SOCK_STREAM, 0, socket.AI_ADDRCONFIG
            ),
        )
        return [
            ResolveResult(
                hostname=host,
                host=str(address[0]),
                port=port,
                family=one_family,
                proto=protocol,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for one_family, _, protocol, _, address in found
        ]

    async def close(self) -> None:
        """Take no more lookups. Those under way end by themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)
