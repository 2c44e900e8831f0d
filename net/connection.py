"""The socket shell that byte protocols share: one read buffer, one write per loop iteration.

Responsible for moving bytes between sockets and a gateway's protocol code. Knows no protocol.

Rules:

* All connections of a loop read into one buffer (`Context.buffer`): a read is parsed before the
  next one begins, so one is enough. It costs 35 % less processor time at 1 KiB than a buffer per
  connection, and 280 KiB less memory for each. What is left of a partial frame is kept by its
  connection and put in front of the next read.
* A connection whose partial frame outgrows half the buffer collects in a buffer of its own, which
  grows with the bytes that came, never with the length that was promised.
* What a connection writes during a loop iteration leaves in one call at its end. A transport past
  its high-water mark makes `paused` true; whoever produces bytes has to look at it.
* Where very many connections have something to write, the end of an iteration hands over some, and
  the next ones the rest: an answer does not wait for a message to thousands of others.
* The end of an iteration is one callback of the loop for all that has to happen there: first what
  `call_soon` was asked for, which makes most of the bytes, then the writes. A callback each would
  cost a turn of the loop each.
* A read that takes long is handled in turns with others (`turns.py`): what `consume` leaves is
  presented again by `consume_again`.
* A gateway says when a client's first words were valid (`spoke`) and when it has proven itself
  (`proven`). Until then the connection may be closed in favour of others (`roster.py`).
* Deadlines are coarse (a second), because ten thousand keep-alives must not cost a timer each.
* A connection that has ended is in no table of the loop any more: nothing waits for its deadline to
  pass, and reference counts free it at once. Otherwise clients that come and go quickly leave
  thousands of dead connections in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Final

from polymq.net.budget import Budget
from polymq.net.certificates import subject_of
from polymq.net.clients import ClientInfo, state_of
from polymq.net.flow import Flow
from polymq.net.kernels.streams import BUFFER_BYTES, Iteration, Stream, clock_ms
from polymq.net.plane import CompiledPlane, Plane
from polymq.net.roster import Roster
from polymq.net.turns import Turns

__all__ = ["BUFFER_BYTES", "HIGH_WATER_BYTES", "Context", "SocketConnection"]

HIGH_WATER_BYTES: Final = 1024 * 1024
"""Unsent bytes of one connection before its producers pause: a few batches, not a backlog."""
LOW_WATER_BYTES: Final = 256 * 1024
TICK_SECONDS: Final = 1.0
"""Granularity of deadlines; protocols count their timeouts in whole seconds."""


class Context(Iteration):
    """What the connections of one loop share. Not for use from other threads.

    Args:
        plane: False to leave all sockets to the loop's own transports.
        budget: of the connections of all listeners; by default it is never used up.
        turns: by default those of the system's clock.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        plane: bool = True,
        budget: Budget | None = None,
        turns: Turns | None = None,
    ) -> None:
        super().__init__(loop)
        self.budget = budget or Budget()
        self.turns = turns or Turns(loop.call_soon)
        self.numbers = count(1)
        """Of the connections, in the order in which they begin."""
        self._wheel: dict[int, set[SocketConnection]] = {}  # second -> connections to look at
        self._tick: asyncio.TimerHandle | None = None
        self._closed = False
        self.on_ended: Callable[[SocketConnection], None] | None = None
        """Called when a socket is gone and nobody needs its connection any more."""
        self.accepts: Callable[[str], bool] | None = None
        """Whether new connections from an address, without its port, are accepted; None: all."""
        self._plane: Plane | None = None  # made when it is first needed: it needs a real loop
        self._with_plane = plane and CompiledPlane is not None

    def now(self) -> float:
        """The loop's clock, in seconds."""
        return self.loop.time()

    def close(self) -> None:
        """Stop the deadlines. Connections have to be closed before."""
        self._closed = True
        if self._tick is not None:
            self._tick.cancel()
        self._wheel.clear()
        if self._plane is not None:
            self._plane.close()
            self._plane = None

    def plane(self) -> Plane | None:
        """The socket plane of this loop; None where the loop's own transports do its work."""
        if self._plane is None and self._with_plane and not self._closed:
            self._plane = CompiledPlane(self)
        return self._plane

    def add_reader(self, descriptor: int, callback: Callable[[], object]) -> None:
        """Call back while the descriptor is readable, and end the iteration right after."""
        plane = self.plane()
        if plane is not None:
            plane.add_reader(descriptor, callback)
        else:
            self.loop.add_reader(descriptor, self.within, callback)

    def remove_reader(self, descriptor: int) -> None:
        """Undo `add_reader`."""
        if self._plane is not None:
            self._plane.remove_reader(descriptor)
        elif not self._with_plane:
            self.loop.remove_reader(descriptor)

    def call_later(self, delay: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        """The loop's own timer, so that a context is all that an engine needs of a loop."""
        return self.loop.call_later(delay, callback)

    def watch(self, connection: SocketConnection, at: float) -> None:
        """Look at the connection's deadline in the second after `at`."""
        self._wheel.setdefault(_second_after(at), set()).add(connection)
        self._start_tick()

    def unwatch(self, connection: SocketConnection, at: float) -> None:
        """Undo `watch`. No effect once the wheel has looked."""
        second = _second_after(at)
        watched = self._wheel.get(second)
        if watched is not None:
            watched.discard(connection)
            if not watched:
                del self._wheel[second]

    @property
    def watched_count(self) -> int:
        """How many connections have a deadline."""
        return sum(map(len, self._wheel.values()))

    def _start_tick(self) -> None:
        if self._tick is None and not self._closed:
            self._tick = self.loop.call_later(TICK_SECONDS, self._run_wheel)

    def _run_wheel(self) -> None:
        self._tick = None
        now = self.now()
        due = [second for second in self._wheel if second * TICK_SECONDS <= now]
        for second in sorted(due):
            for connection in self._wheel.pop(second):
                connection.look_at_deadline(now)
        if self._wheel:
            self._start_tick()


def _second_after(at: float) -> int:
    return int(at / TICK_SECONDS) + 1


class SocketConnection(Stream, asyncio.BufferedProtocol):
    """One socket. Gateways subclass it and implement `opened`, `consume`, `drained`, `lost`,
    `expired`, and what operators want to know: `user`, `client_name`, `describe`, `end`.

    `paused` says that the transport is past its high-water mark: write nothing that can wait.
    """

    context: Context
    protocol = ""
    """Its name, for operators."""
    proxied_name: str | None = None
    """The common name of the client's certificate, where a proxy has verified one and said so."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.peer = ""
        """Remote address for log lines, `host:port`. A listener sets it before the connection is
        made where it is not the transport's: for a Unix socket, or behind a proxy."""
        self.roster: Roster[SocketConnection] | None = None
        """Set by the listener: told once when the socket is gone."""
        self.began_ms = clock_ms()
        self.number = next(context.numbers)
        self._deadline: float | None = None
        self._watched: float | None = None  # when the wheel will look next

    # --- for the subclass to implement ----------------------------------------------------

    def opened(self) -> None:
        """The socket is connected (TLS included)."""

    def lost(self, error: Exception | None) -> None:
        """The socket is gone; called exactly once."""

    def expired(self, now: float) -> float | None:
        """The deadline passed. Returns the next one, or None for no more."""
        return None

    @property
    def user(self) -> str:
        """See `clients.ClientConnection`."""
        return ""

    @property
    def client_name(self) -> str:
        """See `clients.ClientConnection`."""
        return ""

    def describe(self) -> ClientInfo:
        """See `clients.ClientConnection`."""
        return self.described()

    def end(self, why: str) -> None:
        """See `clients.ClientConnection`."""
        self.close()

    # --- for the subclass to use ----------------------------------------------------------

    @property
    def has_socket(self) -> bool:
        """See `clients.ClientConnection`."""
        return self.transport is not None

    def described(
        self,
        flow: Flow | None = None,
        *,
        channels: int | None = None,
        consumers: int | None = None,
    ) -> ClientInfo:
        """What `describe` returns: see `clients.ClientInfo`."""
        roster, transport = self.roster, self.transport
        return ClientInfo(
            listener="" if roster is None else roster.where,
            tls=transport is not None and transport.get_extra_info("ssl_object") is not None,
            state=state_of(
                flow,
                proven=roster is not None and roster.is_proven(self),
                closing=self.closing,
            ),
            waits_for=() if flow is None else flow.names(),
            channels=channels,
            consumers=consumers,
            sent_bytes=self.written_bytes,
        )

    def close(self) -> None:
        """Write what is gathered, then close. Nothing more is read, but a goodbye that a layer
        waits for."""
        if self.closing:
            return
        stays = self.layer is not None and self.transport is not None and self.layer.goodbye()
        self.write_gathered()
        if stays:
            self.resume_reading()
        self.closing = True
        if self.transport is not None and not stays:
            self.transport.close()

    def abort(self) -> None:
        """Close without sending what is unsent."""
        self.closing = True
        if self.transport is not None:
            self.transport.abort()

    def deadline(self, at: float | None) -> None:
        """Call `expired` within a second after loop time `at`; None for never."""
        self._deadline = at
        if at is not None and (self._watched is None or at < self._watched):
            self._unwatch()
            self._watched = at
            self.context.watch(self, at)

    def _unwatch(self) -> None:
        if self._watched is not None:
            self.context.unwatch(self, self._watched)
            self._watched = None

    @property
    def address(self) -> str:
        """Remote address without its port: whom to count failed logins against."""
        return self.peer.rpartition(":")[0] or self.peer

    def certificate_subject(self) -> str:
        """See `certificates.subject_of`."""
        return subject_of(self.transport)

    def spoke(self) -> None:
        """The client's first words were valid. Safe to call again."""
        if self.roster is not None:
            self.roster.spoke(self)

    def proven(self) -> None:
        """The client has logged in, or made a valid request: it gives way to no newcomer any more
        (`roster.py`). Safe to call again."""
        if self.roster is not None:
            self.roster.proven(self)

    def stop_reading(self) -> None:
        """Leave what comes in the kernel's buffers, so that the sender stops in the end."""
        if self.transport is not None and not self.closing and self.transport.is_reading():
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Undo `stop_reading`."""
        if self.transport is not None and not self.closing and not self.transport.is_reading():
            self.transport.resume_reading()
        if self.layer is not None and not self.closing:
            self.context.call_soon(self.layer.taken)

    # --- asyncio.BufferedProtocol ---------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self.transport = transport
        if not self.peer:
            peer = transport.get_extra_info("peername")
            self.peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer or "")
        self.transport.set_write_buffer_limits(HIGH_WATER_BYTES, LOW_WATER_BYTES)
        self.opened()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.forget()
        self.lost(exc)
        if self.roster is not None:
            self.roster.gone(self)
            self.roster = None
        # Last, because `lost` may have set a deadline again.
        self._deadline = None
        self._unwatch()
        if self.context.on_ended is not None:
            self.context.on_ended(self)

    def look_at_deadline(self, now: float) -> None:
        """Called by the context's wheel."""
        self._watched = None
        at = self._deadline
        if at is None or self.transport is None:
            return
        if at <= now:
            self._deadline = None
            following = self.expired(now)
            if following is not None:  # else it may have set one, for its last bytes
                self.deadline(following)
        else:
            self.deadline(at)
