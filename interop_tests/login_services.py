"""HTTP services that decide about logins, as a test says what they answer."""

from __future__ import annotations

import http.server
import json
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from interop_tests.conftest import Server


@dataclass
class Reply:
    """What the service answers.

    Attributes:
        hangs: whether there is no answer before the service is closed.
        vanishes: whether it closes the connection instead.
    """

    body: bytes = b"{}"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    hangs: bool = False
    vanishes: bool = False


def as_json(value: Any) -> Reply:
    """A good answer."""
    return Reply(json.dumps(value).encode())


class Service:
    """A running service.

    Attributes:
        reply: answers a request, by the JSON value of its body (None where there is none).
        asked: the values that were asked, and `headers` of the last request.
    """

    def __init__(self) -> None:
        self.reply: Callable[[Any], Reply] = lambda value: Reply()
        self.asked: list[Any] = []
        self.headers: dict[str, str] = {}
        self.is_over = threading.Event()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/login"


@contextmanager
def running(certificate: tuple[Path, Path] | None = None) -> Iterator[Service]:
    """A service on a free port of this machine.

    Args:
        certificate: with its key: the service uses TLS.
    """
    service = Service()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            service.headers = {name.lower(): text for name, text in self.headers.items()}
            value = json.loads(body) if body else None
            service.asked.append(value)
            reply = service.reply(value)
            if reply.hangs or reply.vanishes:
                if reply.hangs:
                    service.is_over.wait()
                self.close_connection = True
                return
            self.send_response(reply.status)
            for name, text in reply.headers.items():
                self.send_header(name, text)
            self.send_header("Content-Length", str(len(reply.body)))
            self.end_headers()
            self.wfile.write(reply.body)

        do_GET = do_POST = _answer  # noqa: N815  (names that the base class calls)

        def log_message(self, *_values: object) -> None:
            """Say nothing."""

    class Server(http.server.ThreadingHTTPServer):
        request_queue_size = 128

    server = Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.handle_error = lambda *_values: None  # type: ignore[method-assign]  # clients that go
    if certificate is not None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(*certificate)
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    service.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield service
    finally:
        service.is_over.set()
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def asking(directory: Path, section: str, **settings: float) -> Iterator[tuple[Server, Service]]:
    """A server without users, and the service that it asks.

    Args:
        section: of the configuration, which has these settings beside the URL.
    """
    header = directory / "header"
    header.write_text("X-Secret: 0123456789abcdef\n")
    header.chmod(0o600)
    with running() as service:
        options: dict[str, object] = {f"{section}.{key}": value for key, value in settings.items()}
        options |= {f"{section}.url": service.url, f"{section}.header_file": header}
        server = Server(directory, options, {}, (sys.executable, "-m", "polymq"))
        server.start()
        yield server, service
        server.close(sys.stdout)
