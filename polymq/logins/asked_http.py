"""Asks an HTTP service: `AskedService`.

Rules:

* A question is a POST with a JSON object, an answer is one with status 200. Whatever else comes
  decides nothing.
* Each question is a task, and as many as `calls_max` are under way: the engine counts them.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Generic, TypeVar

from polymq.asked_settings import AskedSettings
from polymq.broker.accounts.service_answers import BadAnswer
from polymq.broker.accounts.service_calls import Askable
from polymq.errors import ExitCode, Failure
from polymq.logins.outside_http import Caller, CallFailed, client_tls
from polymq.secret_file import read_secret_file

ANSWER_BYTES_MAX: Final = 64 * 1024
_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
"""Of a header (RFC 9110 part 5.1)."""
_OURS: Final = frozenset({"host", "content-length", "content-type", "transfer-encoding"})

Q = TypeVar("Q", bound=Askable)
V = TypeVar("V")


class HttpService(Generic[Q, V]):
    """See the head of this file.

    Args:
        section: of the settings, for errors.
        parse: reads the answer to a question. Raises BadAnswer.

    Raises:
        Failure: USAGE, a file of the settings cannot be used.

    Attributes:
        failures: of questions, by kind (a metric).
    """

    def __init__(
        self, settings: AskedSettings, section: str, parse: Callable[[bytes, Q], V]
    ) -> None:
        self._settings = settings
        self._section = section
        self._parse = parse
        self._tls, self._headers = self._read(settings)
        self._caller: Caller | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._leaving: set[asyncio.Task[None]] = set()  # callers that answer a last time
        kinds = ("timeout", "unreachable", "status", "malformed")
        self.failures = dict.fromkeys(kinds, 0)

    def _read(self, settings: AskedSettings) -> tuple[ssl.SSLContext, Mapping[str, str]]:
        """Read the files of the settings. Raises Failure."""
        section = self._section
        return (
            client_tls(settings.ca, f"{section}.ca"),
            read_header(settings.header_file, f"{section}.header_file"),
        )

    def prepare(self, settings: AskedSettings) -> Callable[[], None]:
        """Read the files of other settings, maybe in a thread. Returns what goes on with them, on
        the loop: questions that were asked before are answered as before. Raises Failure."""
        tls, headers = self._read(settings)

        def apply() -> None:
            before, asked = self._caller, set(self._tasks)
            self._settings, self._tls, self._headers = settings, tls, headers
            self.start()
            if before is not None:
                leaving = asyncio.get_running_loop().create_task(_leave(before, asked))
                self._leaving.add(leaving)
                leaving.add_done_callback(self._leaving.discard)

        return apply

    def start(self) -> None:
        """Begin, on the running loop."""
        self._caller = Caller(
            self._settings.url,
            self._tls,
            connections_max=self._settings.calls_max,
            seconds_max=self._settings.timeout_seconds,
            size_max=ANSWER_BYTES_MAX,
            headers=self._headers,
        )

    async def stop(self) -> None:
        """Answer no question any more."""
        for task in list(self._tasks):
            task.cancel()
        if pending := {*self._tasks, *self._leaving}:
            await asyncio.wait(pending)
        if self._caller is not None:
            await self._caller.close()

    def ask(self, question: Q, answer: Callable[[V | str], None]) -> None:
        """See `AskedService`."""
        task = asyncio.get_running_loop().create_task(self._call(question, answer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _call(self, question: Q, answer: Callable[[V | str], None]) -> None:
        found: V | str
        assert self._caller is not None
        try:
            content = await self._caller.call("POST", question.content())
            found = self._parse(content, question)
        except CallFailed as error:
            self.failures[error.kind] += 1
            found = str(error)
        except BadAnswer as error:
            self.failures["malformed"] += 1
            found = f"its answer cannot be used: {error}"
        answer(found)


async def _leave(caller: Caller, asked: Iterable[asyncio.Task[None]]) -> None:
    """Close a caller when these are answered."""
    await asyncio.gather(*asked, return_exceptions=True)
    await caller.close()


def read_header(file: str, setting: str) -> Mapping[str, str]:
    """The header in a file; none without a file.

    Args:
        setting: that names the file.

    Raises:
        Failure: USAGE, it cannot be used.
    """
    if not file:
        return {}
    text = read_secret_file(file, setting).decode("latin-1")
    name, colon, value = text.partition(":")
    value = value.strip()
    is_text = value.isascii() and value.isprintable()
    if not (colon and value and is_text and _NAME.fullmatch(name)) or name.lower() in _OURS:
        said = f"{setting} {file} needs one line with a header, such as `Authorization: Bearer ...`"
        raise Failure(ExitCode.USAGE, said)
    return {name: value}
