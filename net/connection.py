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
* The end of an iteration is one callback of the loop for all that has to happen there: first what
  `call_soon` was asked for, which makes most of the bytes, then the writes. A callback each would
  cost a turn of the loop each.
* Deadlines are coarse (a second), because ten thousand keep-alives must not cost a timer each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

BUFFER_BYTES: Final = 256 * 1024
"""One read. Bigger reads make bigger batches, until the buffer falls out of the L2 cache."""
HIGH_WATER_BYTES: Final = 1024 * 1024
"""Unsent bytes of one connection before its producers pause: a few batches, not a backlog."""
LOW_WATER_BYTES: Final = 256 * 1024
TICK_SECONDS: Final = 1.0
"""Granularity of deadlines; protocols count their timeouts in whole seconds."""


class Context:
    """What the connections of one loop share. Not for use from other threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.buffer = bytearray(BUFFER_BYTES)
        self.view = memoryview(self.buffer)
        self._soon: list[Callable[[], object]] = []  # to be called at the end of this iteration
        self._writers: list[Connection] = []  # connections with gathered bytes
        self._ending = False  # the end of this iteration is scheduled
        self._wheel: dict[int, set[Connection]] = {}  # second -> connections to look at
        self._tick: asyncio.TimerHandle | None = None
        self._closed = False

    def now(self) -> float:
        """The loop's clock, in seconds."""
        return self.loop.time()

    def close(self) -> None:
        """Stop the deadlines. Connections have to be closed before."""
        self._closed = True
        if self._tick is not None:
            self._tick.cancel()
        self._wheel.clear()

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Call back at the end of this iteration, before its writes; what a callback asks for is
        called in the next one."""
        self._soon.append(callback)
        if not self._ending:
            self._ending = True
            self.loop.call_soon(self._end_iteration)

    def call_later(self, delay: float, callback: Callable[[], object]) -> asyncio.TimerHandle:
        """The loop's own timer, so that a context is all that an engine needs of a loop."""
        return self.loop.call_later(delay, callback)

    def write_later(self, connection: Connection) -> None:
        """Write what the connection gathered at the end of this iteration."""
        self._writers.append(connection)
        if not self._ending:
            self._ending = True
            self.loop.call_soon(self._end_iteration)

    def _end_iteration(self) -> None:
        soon, self._soon = self._soon, []
        for callback in soon:
            try:
                callback()
            except Exception as error:  # noqa: BLE001  (as the loop does: the others have their turn)
                what = f"exception in callback {callback!r}"
                self.loop.call_exception_handler({"message": what, "exception": error})
        self._ending = False
        if self._soon:
            self._ending = True
            self.loop.call_soon(self._end_iteration)
        writers, self._writers = self._writers, []
        for connection in writers:
            connection.write_gathered()

    def watch(self, connection: Connection, at: float) -> None:
        """Look at the connection's deadline in the second after `at`."""
        second = int(at / TICK_SECONDS) + 1
        self._wheel.setdefault(second, set()).add(connection)
        self._start_tick()

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


class Connection(asyncio.BufferedProtocol):
    """One socket. Gateways subclass it and implement `opened`, `consume`, `drained`, `lost`,
    `expired`."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.transport: asyncio.Transport | None = None
        self.peer = ""
        """Remote address for log lines, `host:port`."""
        self.paused = False
        """The transport is past its high-water mark: write nothing that can wait."""
        self.closing = False
        self.on_lost: Callable[[Connection], None] | None = None
        """Set by the listener: called once when the socket is gone."""
        self._rest = b""  # partial frame, to be put in front of the next read
        self._own: bytearray | None = None  # buffer of a frame that outgrew the shared one
        self._own_view: memoryview | None = None
        self._filled = 0  # bytes used in `_own`
        self._gathered: list[bytes] = []
        self._deadline: float | None = None
        self._watched: float | None = None  # when the wheel will look next

    # --- for the subclass to implement ----------------------------------------------------

    def opened(self) -> None:
        """The socket is connected (TLS included)."""

    def consume(self, buffer: bytearray, start: int, end: int) -> int:
        """Parse `buffer[start:end]`; return the index up to which the bytes are used.

        What is left is presented again in front of what comes next, maybe in another buffer.
        """
        raise NotImplementedError

    def drained(self) -> None:
        """The transport takes bytes again."""

    def lost(self, error: Exception | None) -> None:
        """The socket is gone; called exactly once."""

    def expired(self, now: float) -> float | None:
        """The deadline passed. Returns the next one, or None for no more."""
        return None

    # --- for the subclass to use ----------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Gather bytes for this iteration's one write. Nothing after `close`."""
        if self.closing or self.transport is None:
            return
        gathered = self._gathered
        if not gathered:
            self.context.write_later(self)
        gathered.append(data)

    def write_gathered(self) -> None:
        """Hand the gathered bytes to the transport. Called by the context."""
        gathered = self._gathered
        if gathered and self.transport is not None:
            data = gathered[0] if len(gathered) == 1 else b"".join(gathered)
            gathered.clear()
            self.transport.write(data)

    def close(self) -> None:
        """Write what is gathered, then close. Nothing more is read."""
        if self.closing:
            return
        self.write_gathered()
        self.closing = True
        if self.transport is not None:
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
            self._watched = at
            self.context.watch(self, at)

    @property
    def address(self) -> str:
        """Remote address without its port: whom to count failed logins against."""
        return self.peer.rpartition(":")[0] or self.peer

    def consume_again(self) -> None:
        """Present once more what `consume` left, without waiting for more bytes.

        Not while any connection of the loop is in `consume`: they share the buffer.
        """
        if self.closing:
            return
        if self._own is not None:
            self._consume_own(self._own)
            return
        rest = self._rest
        end = len(rest)
        if end:
            self.context.buffer[:end] = rest
            used = self.consume(self.context.buffer, 0, end)
            self._rest = rest[used:]

    def stop_reading(self) -> None:
        """Leave what comes in the kernel's buffers, so that the sender stops in the end."""
        if self.transport is not None and not self.closing and self.transport.is_reading():
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Undo `stop_reading`."""
        if self.transport is not None and not self.closing and not self.transport.is_reading():
            self.transport.resume_reading()

    # --- asyncio.BufferedProtocol ---------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self.transport = transport  # type: ignore[assignment]
        peer = transport.get_extra_info("peername")
        self.peer = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else str(peer or "")
        self.transport.set_write_buffer_limits(HIGH_WATER_BYTES, LOW_WATER_BYTES)  # type: ignore[union-attr]
        self.opened()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._own is None:
            if not self._rest:
                return self.context.view
            rest = len(self._rest)
            if rest <= BUFFER_BYTES // 2:
                self.context.buffer[:rest] = self._rest
                return self.context.view[rest:]
            self._own = bytearray(4 * rest)
            self._own[:rest] = self._rest
            self._filled = rest
            self._rest = b""
        elif len(self._own) - self._filled < BUFFER_BYTES // 4:
            if self._own_view is not None:
                self._own_view.release()
            self._own.extend(bytes(len(self._own)))
        self._own_view = memoryview(self._own)
        return self._own_view[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        if self.closing:
            return
        if self._own is not None:
            self._filled += nbytes
            self._consume_own(self._own)
            return
        end = len(self._rest) + nbytes if self._rest else nbytes
        used = self.consume(self.context.buffer, 0, end)
        if used < end:
            self._rest = bytes(self.context.view[used:end])
        elif self._rest:
            self._rest = b""

    def _consume_own(self, own: bytearray) -> None:
        used = self.consume(own, 0, self._filled)
        if used == 0:
            return
        self._rest = bytes(memoryview(own)[used : self._filled])
        self._own = None
        self._own_view = None
        self._filled = 0

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        if not self.closing:
            self.drained()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closing = True
        self.transport = None
        self._gathered.clear()
        self._rest = b""
        self._own = None
        self._deadline = None
        self.lost(exc)
        if self.on_lost is not None:
            self.on_lost(self)

    def look_at_deadline(self, now: float) -> None:
        """Called by the context's wheel."""
        self._watched = None
        at = self._deadline
        if at is None or self.transport is None:
            return
        if at <= now:
            self._deadline = None
            self.deadline(self.expired(now))
        else:
            self.deadline(at)
