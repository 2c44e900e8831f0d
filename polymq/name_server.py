"""The name server, for a program of its own and as a thread beside a broker.

It is a trio program that shares nothing with the broker: both are reached over TCP, as in a
cluster. trio is loaded only where a name server runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from polymq.errors import ExitCode, Failure
from polymq.inherited_sockets import NOTHING_INHERITED, InheritedSockets
from polymq.logs import logger
from polymq.namesrv.limits import NameServerLimits
from polymq.net.budget import Budget, Share
from polymq.net.listener import explain
from polymq.net.roster import Roster
from polymq.net.tls_source import TlsSource
from polymq.remoting.signing import Credentials
from polymq.secret_file import read_secret_file
from polymq.settings import Settings, is_loopback

if TYPE_CHECKING:
    import trio

DIRECTORY: Final = "namesrv"
"""Of the data directory: what the name server keeps."""
START_SECONDS_MAX: Final = 60.0
"""A name server that is not up by then has met something that nobody foresaw."""
STOP_SECONDS_MAX: Final = 10.0
"""So does one that has not ended by then: the process ends without it."""


def is_installed() -> bool:
    """Whether what the name server needs is there."""
    return find_spec("trio") is not None


class NameServerThread:
    """A name server beside a broker.

    Args:
        tls: of the port with TLS; None: there is none.
        inherited: sockets that it has already.
    """

    def __init__(
        self,
        settings: Settings,
        budget: Budget,
        tls: TlsSource | None = None,
        inherited: InheritedSockets = NOTHING_INHERITED,
    ) -> None:
        self._settings = settings
        self._tls = tls
        self._inherited = inherited
        self._share = budget.share(NameServerLimits().connections_max)
        self._ready = False  # or failed, or ended
        self._tell: Callable[[], None] = lambda: None
        self._failure: Failure | None = None
        self._stop: Callable[[], None] = lambda: None
        self._stopping = False
        self._thread = threading.Thread(target=self._main, name="polymq-namesrv", daemon=True)
        self.port = 0
        self.tls_port: int | None = None
        self.rosters: Sequence[Roster[int]] = ()
        """The connections, as soon as it listens."""

    async def start(self) -> int:
        """Return the bound port as soon as it listens. Raises Failure."""
        loop, ready = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(ready.set)

        self._tell = tell
        self._thread.start()
        try:
            async with asyncio.timeout(START_SECONDS_MAX):
                await ready.wait()
        except TimeoutError as error:
            text = f"names: the name server did not start within {START_SECONDS_MAX:g} s"
            raise Failure(ExitCode.FAILED, text) from error
        if self._failure is not None:
            raise self._failure
        return self.port

    def stop(self) -> None:
        """Close all connections, and wait for the end."""
        self._stopping = True
        self._stop()
        if self._thread.ident is not None:
            self._thread.join(STOP_SECONDS_MAX)

    def _main(self) -> None:
        try:
            self._serve()
        except Failure as failure:
            self._ended(failure)
        except BaseException as error:  # noqa: BLE001  (whoever waits for it has to know)
            logger("polymq.namesrv").error("bug", exc_info=error)
            text = f"names: the name server ended: {type(error).__name__}: {error}"
            self._ended(Failure(ExitCode.FAILED, text))
        finally:
            self._set_ready()

    def _set_ready(self) -> None:
        self._ready = True
        self._tell()

    def _ended(self, failure: Failure) -> None:
        self._failure = failure
        if self._ready:
            logger("polymq.namesrv").error("the name server ended", reason=str(failure))

    def _serve(self) -> None:
        import trio

        async def run() -> None:
            token = trio.lowlevel.current_trio_token()
            with trio.CancelScope() as scope:
                self._stop = lambda: _cancel(token, scope)
                if self._stopping:  # before there was anything to stop
                    return
                await serve_names(
                    self._settings, self._have_port, self._share, self._tls, self._inherited
                )

        def _cancel(token: trio.lowlevel.TrioToken, scope: trio.CancelScope) -> None:
            try:
                token.run_sync_soon(scope.cancel)
            except trio.RunFinishedError:
                pass  # it failed before; whoever started it was told

        with as_failures(self._settings):
            trio.run(run)

    def _have_port(self, port: int, secure: int | None, roster: Roster[int]) -> None:
        self.port, self.tls_port, self.rosters = port, secure, (roster,)
        self._set_ready()


def names_credentials(settings: Settings) -> Credentials | None:
    """What brokers sign with at name servers; None if nothing is asked for. Raises Failure."""
    names = settings.names
    if not names.access_key and not names.secret_key_file:
        if not names.open_reads:
            text = "names.open_reads is false, but there is no key: set names.access_key"
            raise Failure(ExitCode.USAGE, text)
        return None
    if not names.access_key or not names.secret_key_file:
        text = "names.access_key and names.secret_key_file have to be set together"
        raise Failure(ExitCode.USAGE, text)
    secret = read_secret_file(names.secret_key_file, "names.secret_key_file")
    try:
        return Credentials(access_key=names.access_key, secret_key=secret.decode("ascii"))
    except UnicodeDecodeError as error:
        text = f"names.secret_key_file {names.secret_key_file} is not text: use hex digits"
        raise Failure(ExitCode.USAGE, text) from error


Ready = Callable[[int, "int | None", Roster[int]], None]
"""Told the bound port, the one with TLS, and the connections to both."""
Until = Callable[[], AbstractContextManager[Callable[[], Awaitable[None]]]]
"""What may end the server is heard inside; what it gives waits for that."""


async def serve_names(
    settings: Settings,
    ready: Ready,
    share: Share,
    tls: TlsSource | None,
    inherited: InheritedSockets,
    *,
    until: Until | None = None,
) -> None:
    """Serve until cancelled, or until what `until` gives returns."""
    import trio

    from polymq.namesrv.keeping import DirectoryKeeper
    from polymq.namesrv.login import Login
    from polymq.namesrv.server import Listener, NameServer
    from polymq.namesrv.tls_listener import TlsListener

    log, host = logger("polymq.namesrv"), settings.server.host
    credentials = names_credentials(settings)
    login = None
    if credentials is not None:
        login = Login(credentials=credentials, reads=not settings.names.open_reads)
    with contextlib.ExitStack() as stack:
        keeper = stack.enter_context(DirectoryKeeper(settings.server.data_directory / DIRECTORY))
        server = NameServer(keeper=keeper, log=log, login=login, share=share)
        plain = await _listeners(stack, host, settings.names.port, inherited.take("names"))
        served: list[Listener] = [*plain]
        secure: int | None = None
        if tls is not None:
            sockets = inherited.take("names_tls")
            hidden = await _listeners(stack, host, settings.names.tls_port, sockets)
            served += [TlsListener(one, tls) for one in hidden]
            secure = hidden[0].socket.getsockname()[1]
        if not is_loopback(host) and login is None:
            log.warning(
                "every client that reaches the name server's port may register brokers: set "
                "names.access_key and names.secret_key_file"
            )
        tell = functools.partial(ready, plain[0].socket.getsockname()[1], secure, server.roster)
        if until is None:
            tell()
            await server.serve(served)
            return
        with until() as wait_for_end:
            tell()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(server.serve, served)
                await wait_for_end()
                nursery.cancel_scope.cancel()


async def _listeners(
    stack: contextlib.ExitStack, host: str, port: int, sockets: Sequence[socket.socket]
) -> Sequence[trio.SocketListener]:
    """Those on inherited sockets, or on new ones."""
    import trio

    from polymq.namesrv.server import open_listeners

    if sockets:
        listeners = [trio.SocketListener(trio.socket.from_stdlib_socket(one)) for one in sockets]
    else:
        listeners = await open_listeners(host, port)
    for listener in listeners:
        stack.callback(listener.socket.close)
    return listeners


@contextmanager
def as_failures(settings: Settings) -> Iterator[None]:
    """The name server's errors as a `Failure`."""
    from polymq.namesrv.errors import CannotKeep, CannotListen, InUse

    try:
        yield
    except CannotListen as error:
        text = explain(settings.server.host, error.port, error.error)
        raise Failure(ExitCode.CANNOT_LISTEN, f"names: {text}") from error
    except CannotKeep as error:
        raise Failure(ExitCode.CANNOT_CREATE, f"names: {error}") from error
    except InUse as error:
        raise Failure(ExitCode.IN_USE, f"names: {error}") from error


def write_ready(path: Path | None, host: str, port: int, secure: int | None) -> None:
    if path is None:
        return
    from polymq.ports import write_values

    try:
        write_values(path, {"pid": os.getpid(), "host": host, "names": port, "names_tls": secure})
    except OSError as error:
        text = f"cannot write {error.filename}: {error.strerror}"
        raise Failure(ExitCode.CANNOT_CREATE, text) from error
