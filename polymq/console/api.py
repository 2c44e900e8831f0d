"""The admin API, as the console asks it: for one login, over one pool of connections."""

from __future__ import annotations

import base64
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlsplit

import aiohttp
from yarl import URL

PATH: Final = "/api/v1"
ANSWER_SECONDS_MAX: Final = 20.0
ANSWER_TIMEOUT: Final = aiohttp.ClientTimeout(total=ANSWER_SECONDS_MAX)
LINE_BYTES_MAX: Final = 1024 * 1024
"""Of an answer that comes line by line."""
CONNECTIONS_MAX: Final = 32
"""To the broker, for all who use the console."""
HEADERS: Final = {"X-PolyMQ-Admin": "console"}
DOCUMENT_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of an answer or a body that is a file: as the broker takes definitions."""
DOCUMENT_SECONDS_MAX: Final = 300.0
"""For a file to come, or to be taken."""


class ApiError(Exception):
    """The broker refused a request, or could not be asked.

    Attributes:
        status: of the answer; 0: there was none.
        text: what is wrong, for the person at the console.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


@dataclass(frozen=True, slots=True)
class Login:
    """Who uses the console.

    Attributes:
        user: name; empty while the broker has no users.
        rights: of monitor, operate and admin.
    """

    user: str = ""
    password: str = field(default="", repr=False)
    rights: frozenset[str] = frozenset()

    def headers(self) -> dict[str, str]:
        """HTTP Basic's header; nothing for nobody."""
        if not self.user:
            return {}
        text = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        return {"Authorization": f"Basic {text}"}

    def may(self, right: str) -> bool:
        """Whether the right is there."""
        return right in self.rights


class Broker:
    """The broker that the console shows.

    Args:
        url: of the admin listener, such as http://127.0.0.1:9464.
        tls: for https.
    """

    def __init__(self, url: str, tls: ssl.SSLContext | None = None) -> None:
        self.url = url.rstrip("/")
        self.name = urlsplit(self.url).netloc
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Make the pool of connections."""
        connector = aiohttp.TCPConnector(limit=CONNECTIONS_MAX, ssl=self._tls or True)
        self._session = aiohttp.ClientSession(connector=connector)

    async def stop(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def ask(
        self,
        login: Login,
        method: str,
        *parts: str,
        query: Mapping[str, object] | None = None,
        body: object = None,
    ) -> Any:
        """A good answer's JSON value; None if it has none. Raises ApiError.

        Args:
            parts: of the path behind /api/v1; each may have any character.
            query: values that are None are left out.
        """
        async with self._answer(login, method, parts, query, body) as answer:
            content = await answer.read()
            if answer.content_type != "application/json":
                return content or None
            return await answer.json()

    async def read(self, login: Login, *parts: str) -> bytes:
        """The content of a good answer that is a file, as it is. Raises ApiError."""
        patience = aiohttp.ClientTimeout(total=DOCUMENT_SECONDS_MAX)
        content = bytearray()
        async with self._answer(login, "GET", parts, None, None, patience) as answer:
            async for piece in answer.content.iter_any():
                content += piece
                if len(content) > DOCUMENT_BYTES_MAX:
                    text = f"the answer has more than {DOCUMENT_BYTES_MAX:,} bytes"
                    raise ApiError(0, f"{text}: use the command")
        return bytes(content)

    async def send(
        self, login: Login, *parts: str, content: bytes, query: Mapping[str, object]
    ) -> Any:
        """A good answer's JSON value to a POST of a file with JSON. Raises ApiError."""
        patience = aiohttp.ClientTimeout(total=DOCUMENT_SECONDS_MAX)
        async with self._answer(login, "POST", parts, query, content, patience) as answer:
            return await answer.json()

    async def lines(
        self, login: Login, *parts: str, body: object, seconds: float
    ) -> AsyncGenerator[bytes, None]:
        """The lines of a POST whose answer goes on, as they come. Raises ApiError.

        Args:
            seconds: for how long, at most.
        """
        patience = aiohttp.ClientTimeout(total=seconds + ANSWER_SECONDS_MAX)
        async with self._answer(login, "POST", parts, None, body, patience) as answer:
            begun = b""
            async for piece in answer.content.iter_any():
                *whole, begun = (begun + piece).split(b"\n")
                for line in whole:
                    yield line
                if len(begun) > LINE_BYTES_MAX:
                    raise ApiError(0, f"a line of the answer has more than {LINE_BYTES_MAX} bytes")

    @asynccontextmanager
    async def _answer(
        self,
        login: Login,
        method: str,
        parts: Sequence[str],
        query: Mapping[str, object] | None,
        body: object,
        patience: aiohttp.ClientTimeout = ANSWER_TIMEOUT,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A good answer. What goes wrong while it is read is an ApiError, too."""
        assert self._session is not None, "it was started"
        path = "".join("/" + quote(part, safe="") for part in parts)
        wanted = {key: _text(value) for key, value in (query or {}).items() if value is not None}
        headers = HEADERS | login.headers()
        if isinstance(body, bytes):
            headers |= {"Content-Type": "application/json"}
        try:
            async with self._session.request(
                method,
                URL(self.url + PATH + path, encoded=True).update_query(wanted),
                json=None if isinstance(body, bytes) else body,
                data=body if isinstance(body, bytes) else None,
                headers=headers,
                allow_redirects=False,
                timeout=patience,
            ) as answer:
                if answer.status >= 300:
                    raise ApiError(answer.status, await _detail(answer))
                yield answer
        except TimeoutError:
            raise ApiError(0, f"{self.name} did not answer in time") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ApiError(0, f"{self.name} cannot be asked: {_reason(error)}") from error


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _reason(error: Exception) -> str:
    cause = getattr(error, "os_error", None) or error
    return getattr(cause, "strerror", None) or str(error) or type(error).__name__


async def _detail(answer: aiohttp.ClientResponse) -> str:
    try:
        value = await answer.json(content_type=None)
        return str(value["detail"])
    except (ValueError, KeyError, TypeError):
        return f"the broker answered {answer.status}"
