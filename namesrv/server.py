"""The part of the name server that listens: sockets and time around `requests.Requests`.

A task for each connection reads, asks the requests for answers, and writes them in the order in
which they were asked. Two more tasks look for silent brokers and write the status to the log.

Rules:

* A broker leaves the tables when its connection ends, whatever ended it, unless it has registered
  over another one since. A broker that is silent for too long loses its connection, too.
* One connection at a time may write less than it is asked for, and so wait for its peer; the others
  do not notice.
* A connection proves itself by a request that is known and, where one is asked for, signed. Until
  then it may be closed in favour of another (`net/roster.py`).
* Nothing that a peer sends ends the server. An error that nobody foresaw ends its connection.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Final, Protocol

import trio

from polymq.namesrv.errors import CannotKeep, CannotListen
from polymq.namesrv.keeping import Keeper
from polymq.namesrv.key_values import KeyValues
from polymq.namesrv.limits import NameServerLimits
from polymq.namesrv.login import Login
from polymq.namesrv.requests import Answer, Asked, Requests
from polymq.namesrv.tables import Tables
from polymq.namesrv.tls_listener import TlsListener
from polymq.net.budget import Budget, Share
from polymq.net.roster import Roster
from polymq.remoting.codes import ResponseCode
from polymq.remoting.connection import Connection, RequestReceived
from polymq.remoting.errors import LocalProtocolError, RemoteProtocolError

BACKLOG: Final = 1024
"""Handshakes that the kernel holds: all clients come back at once after a restart."""
GATHER_BYTES: Final = 256 * 1024
"""Of answers to requests that came together; what is more goes in further writes."""
STRANGE: Final = frozenset(
    {
        ResponseCode.NO_PERMISSION,
        ResponseCode.INVALID_PARAMETER,
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
    }
)
"""Answers to requests that prove nothing of who sent them."""


class Log(Protocol):
    """Where the name server tells what it does; values by keyword."""

    def info(self, event: str, **values: Any) -> Any:
        """What is as it should be."""

    def warning(self, event: str, **values: Any) -> Any:
        """What somebody should look at."""

    def error(self, event: str, **values: Any) -> Any:
        """What should not be."""


Listener = trio.SocketListener | trio.SSLListener[trio.SocketStream] | TlsListener


async def open_listeners(host: str, port: int) -> list[trio.SocketListener]:
    """Bind and listen; port 0 lets the system pick. Raises CannotListen."""
    try:
        listeners: list[trio.SocketListener] = await trio.open_tcp_listeners(
            port, host=host, backlog=BACKLOG
        )
    except OSError as error:
        raise CannotListen(port, error) from error
    return listeners


class NameServer:
    """One name server.

    Args:
        keeper: where the key-value configuration is kept.
        log: where it tells what it does.
        login: what changes have to be signed with; None: whoever connects may make them.
        clock: seconds that do not go back; those of the running trio by default.
        share: how many connections there may be; by default as many as the limit says.

    Raises:
        CannotKeep: what is kept is no configuration, or cannot be read.
    """

    def __init__(
        self,
        *,
        keeper: Keeper,
        log: Log,
        limits: NameServerLimits | None = None,
        login: Login | None = None,
        clock: Callable[[], float] = trio.current_time,
        share: Share | None = None,
    ) -> None:
        self._limits = limits or NameServerLimits()
        self.roster: Roster[int] = Roster(
            share or Budget().share(self._limits.connections_max),
            close=self._close_newcomer,
            now=clock,
            where="name server",
        )
        """The numbers of the open connections."""
        self._keeper = keeper
        self._log = log
        self._clock = clock
        self._numbers = itertools.count(1)
        self._scopes: dict[int, trio.CancelScope] = {}  # of the open connections
        self._buffered_bytes = 0
        self._changing = trio.Lock()  # of the configuration: one change at a time
        self.requests = Requests(
            tables=Tables(self._limits),
            key_values=KeyValues(self._limits, keeper.load()),
            limits=self._limits,
            login=login,
        )
        self.protocol_error_count = 0
        """Connections that were closed because of what came over them."""
        self.bug_count = 0
        """Connections that were closed because of an error of ours."""

    @property
    def connection_count(self) -> int:
        """Open connections."""
        return len(self.roster.connections)

    async def serve(self, listeners: list[Listener]) -> None:
        """Serve until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.keep_watch)
            for listener in listeners:
                nursery.start_soon(trio.serve_listeners, self.handle, [listener])

    async def keep_watch(self) -> None:
        """Look for silent brokers, and tell the status, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._scan)
            nursery.start_soon(self._tell_status)

    # --- time -----------------------------------------------------------------------------

    async def _scan(self) -> None:
        while True:
            await trio.sleep(self._limits.scan_seconds)
            for identity, connection in self.requests.tables.evict_silent(self._clock()):
                self._log.warning(
                    "broker is silent and was removed",
                    broker=identity.name,
                    address=identity.address,
                )
                scope = self._scopes.get(connection)
                if scope is not None:
                    scope.cancel()

    async def _tell_status(self) -> None:
        while True:
            await trio.sleep(self._limits.status_seconds)
            tables = self.requests.tables
            self._log.info(
                "status",
                brokers=tables.broker_count,
                topics=tables.topic_count,
                clusters=len(tables.clusters()),
                connections=self.connection_count,
                connections_refused=self.roster.refused_count,
                newcomers_closed=self.roster.crowded_out_count,
                registrations_refused=self.requests.refused_count,
            )

    # --- connections ----------------------------------------------------------------------

    async def handle(self, stream: trio.abc.Stream) -> None:
        """Serve one connection until it ends."""
        number = self.roster.admit(lambda: next(self._numbers), _address_of(stream))
        if number is None:
            await trio.aclose_forcefully(stream)
            return
        buffer = bytearray()
        try:
            with trio.CancelScope() as scope:
                self._scopes[number] = scope
                await self._converse(stream, number, buffer)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the peer is gone: nothing is owed to it
        except RemoteProtocolError as error:
            self.protocol_error_count += 1
            self._log.info("connection closed: the peer violated the protocol", reason=str(error))
        except Exception as error:  # noqa: BLE001  (a bug ends one connection, not the server)
            self.bug_count += 1
            self._log.error("bug", exc_info=error)
        finally:
            self.roster.gone(number)  # before it is closed: nothing may choose it meanwhile
            del self._scopes[number]
            self._buffered_bytes -= len(buffer)
            for identity in self.requests.connection_lost(number):
                self._log.info("broker left", broker=identity.name, address=identity.address)
            await trio.aclose_forcefully(stream)

    def _close_newcomer(self, number: int) -> None:
        self._scopes[number].cancel()

    async def _converse(self, stream: trio.abc.Stream, number: int, buffer: bytearray) -> None:
        limits, frames = self._limits, Connection()
        due = trio.current_time() + limits.first_frame_seconds_max
        begun = True  # a request, which has to be whole by then
        while True:
            with trio.move_on_at(due) as late:
                data = await stream.receive_some(limits.read_bytes)
            if late.cancelled_caught:
                if begun:
                    raise RemoteProtocolError("it did not send a whole request in time")
                return
            if not data:
                return
            buffer += data
            self._buffered_bytes += len(data)
            events, used = frames.receive(buffer, 0, len(buffer))
            if events:
                self.roster.spoke(number)
            del buffer[:used]
            self._buffered_bytes -= used
            if buffer and self._buffered_bytes > limits.buffered_bytes_max:
                raise RemoteProtocolError("unfinished frames take too much memory")
            written = bytearray()
            for event in events:
                if isinstance(event, RequestReceived):
                    written += await self._answer(frames, event, number)
                if len(written) >= GATHER_BYTES:
                    await self._write(stream, written)
            if written:
                await self._write(stream, written)
            if used or not begun:
                begun = bool(buffer)
                seconds = limits.frame_seconds_max if begun else limits.idle_seconds_max
                due = trio.current_time() + seconds

    async def _answer(self, frames: Connection, event: RequestReceived, number: int) -> bytes:
        asked = Asked(command=event.command, connection=number, now=self._clock())
        answer = await self._handle(asked)
        if event.command.is_oneway:
            return b""
        try:
            return frames.answer(
                event.serial,
                answer.code,
                answer.fields,
                remark=answer.remark,
                body_size=len(answer.body),
            ) + answer.body  # fmt: skip
        except LocalProtocolError as error:  # more than a frame takes
            text = f"the answer does not fit a frame: {error}"
            return frames.answer(event.serial, ResponseCode.SYSTEM_ERROR, remark=text)

    async def _handle(self, asked: Asked) -> Answer:
        known = self.requests.tables.broker_count
        answer = self.requests.handle(asked)
        if answer.code not in STRANGE:
            self.roster.proven(asked.connection)
        if self.requests.tables.broker_count > known:
            self._log.info("broker joined", brokers=self.requests.tables.broker_count)
        if answer.change is None:
            return answer
        async with self._changing:
            # What is asked has to be asked again: another change may have come in between.
            answer = self.requests.handle(asked)
            if answer.change is None:
                return answer
            try:
                await self._keeper.keep(answer.change.stored)
            except CannotKeep as error:
                self._log.error("the configuration was not stored", reason=str(error))
                return Answer(code=ResponseCode.SYSTEM_ERROR, remark=str(error))
            self.requests.key_values.accept(answer.change)
        return answer

    async def _write(self, stream: trio.abc.Stream, data: bytearray) -> None:
        """Send and clear. BrokenResourceError if the peer does not take it in time."""
        with trio.move_on_after(self._limits.write_seconds_max) as late:
            await stream.send_all(bytes(data))
        if late.cancelled_caught:
            raise trio.BrokenResourceError("the peer does not read")
        data.clear()


def _address_of(stream: trio.abc.Stream) -> str:
    """The remote address without its port; empty if there is none."""
    if isinstance(stream, trio.SSLStream):
        stream = stream.transport_stream
    if not isinstance(stream, trio.SocketStream):
        return ""
    try:
        peer = stream.socket.getpeername()
    except OSError:
        return ""  # it is gone
    return peer[0] if isinstance(peer, tuple) else ""
