"""Requests to services outside (`outside_urls.py` says which URLs may be called).

Rules:

* Certificates are checked.
* A call has a time for the whole of it and a size for its answer. What is larger is not read.
* Redirects are not followed: the operator has named the URL, and nobody else may name another. An
  answer that says it is compressed does not count.
* A call whose connection is closed without an answer is made once more: what is asked changes
  nothing.
* The environment's proxies and credentials are not used.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from typing import Final

import aiohttp

from polymq.errors import ExitCode, Failure

CHUNK_BYTES: Final = 64 * 1024
_HEADERS: Final = {"User-Agent": "PolyMQ", "Accept-Encoding": "identity"}


class CallFailed(Exception):
    """There is no answer that could be used; the text says why.

    Attributes:
        kind: for metrics: `timeout`, `unreachable`, `status`, `malformed`.
        status: of the answer, where the kind is `status`; else 0.
    """

    def __init__(self, kind: str, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.kind = kind
        self.status = status


def client_tls(ca_file: str, setting: str) -> ssl.SSLContext:
    """How servers are checked.

    Args:
        ca_file: the authorities that count; empty: those of the system.
        setting: that names the file.

    Raises:
        Failure: USAGE, the file cannot be used.
    """
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except OSError as error:  # of OpenSSL, too
        reason = error.strerror or "it has no certificates"
        raise Failure(ExitCode.USAGE, f"cannot use {setting} {ca_file}: {reason}") from error


class Caller:
    """Calls one URL.

    Args:
        url: checked by `outside_urls.check_url`.
        connections_max: how many calls may be under way; others wait within their time.
        seconds_max, size_max: of one call and its answer.
        headers: that are sent with each call.
        media_type: of the bodies that are sent.
    """

    def __init__(
        self,
        url: str,
        tls: ssl.SSLContext,
        *,
        connections_max: int,
        seconds_max: float,
        size_max: int,
        headers: Mapping[str, str] | None = None,
        media_type: str = "application/json",
    ) -> None:
        self._url = url
        self._media_type = media_type
        self._seconds_max = seconds_max
        self._size_max = size_max
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=connections_max, ssl=tls),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
            auto_decompress=False,
            headers={**_HEADERS, **(headers or {})},
        )

    async def close(self) -> None:
        """End what is under way."""
        await self._session.close()

    async def call(self, method: str, body: bytes | None = None) -> bytes:
        """The body of the answer with status 200.

        Args:
            body: what is sent, if anything is.

        Raises:
            CallFailed: there is none in time, or none that counts.
        """
        try:
            async with asyncio.timeout(self._seconds_max):
                try:
                    return await self._ask(method, body)
                except (aiohttp.ServerDisconnectedError, ConnectionResetError):
                    # A connection that was idle for long: its end crossed this call.
                    return await self._ask(method, body)
        except TimeoutError:
            text = f"there is no whole answer after {self._seconds_max:g} seconds"
            raise CallFailed("timeout", text) from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            text = " ".join(str(error).split())[:200] or type(error).__name__
            raise CallFailed("unreachable", f"it cannot be reached: {text}") from None

    async def _ask(self, method: str, body: bytes | None) -> bytes:
        async with self._session.request(
            method,
            self._url,
            data=body,
            headers=None if body is None else {"Content-Type": self._media_type},
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=None),
        ) as response:
            if response.status != 200:
                text = f"it answers with status {response.status}"
                if 300 <= response.status < 400:
                    text += ", and redirects are not followed"
                raise CallFailed("status", text, response.status)
            encoding = response.headers.get("Content-Encoding", "identity")
            if encoding.lower() != "identity":
                text = f"its answer is encoded as {encoding[:20]!r}, which was not asked for"
                raise CallFailed("malformed", text)
            return await self._read(response)

    async def _read(self, response: aiohttp.ClientResponse) -> bytes:
        found = bytearray()
        while chunk := await response.content.read(CHUNK_BYTES):
            found += chunk
            if len(found) > self._size_max:
                text = f"its answer has more than {self._size_max} bytes"
                raise CallFailed("malformed", text)
        return bytes(found)
