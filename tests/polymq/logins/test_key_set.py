"""Keys of tokens that are fetched, when another configuration names another URL."""

from __future__ import annotations

import asyncio

from polymq.login_settings import JwtSettings
from polymq.logins.jwks import KeySet


async def serving(content: bytes) -> tuple[asyncio.Server, str]:
    """A server that answers everything with this."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(content)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + content)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    return server, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"


def settings(url: str) -> JwtSettings:
    return JwtSettings(jwks_url=url, issuer="me", audience="mq")


def test_a_set_of_keys_is_fetched_from_another_url() -> None:
    """At once, not when it would be fetched again; what was fetched before counts until then."""
    taken: asyncio.Queue[bytes] = asyncio.Queue()

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def take(content: bytes) -> int:
            loop.call_soon_threadsafe(taken.put_nowait, content)
            return 1

        (first, first_url), (second, second_url) = await serving(b"one"), await serving(b"two")
        keys = KeySet(settings(first_url), take)
        keys.start()
        async with asyncio.timeout(30):
            assert await taken.get() == b"one"
            keys.prepare(settings(second_url))()
            assert await taken.get() == b"two"
            keys.prepare(settings(first_url))()
            assert await taken.get() == b"one"
        await keys.stop()
        assert not keys._former
        first.close()
        second.close()

    asyncio.run(main())
