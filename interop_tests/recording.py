"""A port in front of a server's admin listener that keeps which operations were asked for."""

from __future__ import annotations

import contextlib
import http.client
import re
import threading
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self

HOST = "127.0.0.1"
SECONDS_MAX = 60.0
PIECE_BYTES = 1 << 16
API_PATH = "/api/v1"
OWN_HEADERS = {"connection", "keep-alive", "transfer-encoding", "content-length"}
"""Of each of the two connections."""


class Recorder:
    """Passes requests on to the admin listener at `target`.

    Args:
        operations: method and path of each, such as `GET /topics/{name}`. Of two that a request
            may be, it is the one with fewer names: `GET /permissions/check` is no permission.

    Attributes:
        port: where it listens.
    """

    def __init__(self, target: int, operations: Iterable[str]) -> None:
        self._seen: set[str] = set()
        self._lock = threading.Lock()
        patterns = [(one, _pattern(one)) for one in operations]
        self._patterns = sorted(patterns, key=lambda one: one[0].count("{"))
        self._server = ThreadingHTTPServer((HOST, 0), self._handler(target))
        self._server.daemon_threads = True
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def seen(self) -> frozenset[str]:
        """The operations that came since `forget`."""
        with self._lock:
            return frozenset(self._seen)

    def forget(self) -> None:
        """Begin anew."""
        with self._lock:
            self._seen.clear()

    def _record(self, method: str, path: str) -> None:
        line = f"{method} {path.partition('?')[0].removeprefix(API_PATH)}"
        for one, pattern in self._patterns:
            if pattern.fullmatch(line):
                with self._lock:
                    self._seen.add(one)
                return

    def _handler(self, target: int) -> type[BaseHTTPRequestHandler]:
        record = self._record

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                record(self.command, self.path)
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                upstream = http.client.HTTPConnection(HOST, target, timeout=SECONDS_MAX)
                # Who asked may leave before the end, as browsers do.
                with contextlib.suppress(ConnectionError), contextlib.closing(upstream):
                    upstream.request(self.command, self.path, body or None, self._passed_on())
                    self._answer(upstream.getresponse())

            def _passed_on(self) -> dict[str, str]:
                return {k: v for k, v in self.headers.items() if k.lower() not in OWN_HEADERS}

            def _answer(self, answer: http.client.HTTPResponse) -> None:
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in OWN_HEADERS:
                        self.send_header(name, value)
                self.send_header("Connection", "close")
                self.end_headers()
                while piece := answer.read1(PIECE_BYTES):
                    self.wfile.write(piece)

            do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815  (the base class's)

            def log_message(self, format: str, *args: object) -> None:
                """Quiet."""

        return Handler


def _pattern(operation: str) -> re.Pattern[str]:
    parts = re.split(r"{\w+}", operation)
    return re.compile("[^/]+".join(map(re.escape, parts)))
