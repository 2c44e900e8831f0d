"""What a loop iteration gathers, and the bytes of one connection: the twin of `streams.pyx`.

`Iteration` is the part of a context that is used for every read and write, `Stream` that of a
connection. What they are for, and their rules, stand in `net/connection.py`.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

BUFFER_BYTES: Final = 256 * 1024
"""One read. Bigger reads make bigger batches, until the buffer falls out of the L2 cache."""
WRITERS_AT_ONCE: Final = 128
"""Streams that are handed to their transports in one iteration, and as many of former ones: some
10 us each."""
LEFT_PARTS: Final = 16
"""Of very many streams of former iterations one in so many is handed over, although that takes
longer: else bytes for all of them would gather faster than they leave."""


def clock_ms() -> int:
    """The wall clock in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class Iteration:
    """The shared read buffer, and what has to happen at the end of this loop iteration."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.buffer = bytearray(BUFFER_BYTES)
        self.view = memoryview(self.buffer)
        self._soon: list[Callable[[], object]] = []  # to be called at the end of this iteration
        self._writers: list[Stream] = []  # with gathered bytes
        self._left: deque[Stream] = deque()  # those of former iterations
        self._begun = False  # whoever began it will end it
        self._scheduled = False  # the loop will end it

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Call back at the end of this iteration, before its writes; what a callback asks for is
        called in the next one."""
        self._soon.append(callback)
        if not self._begun and not self._scheduled:
            self._schedule()

    def write_later(self, stream: Stream) -> None:
        """Write what the stream gathered at the end of this iteration, or of one that follows where
        very many have something to write."""
        self._writers.append(stream)
        if not self._begun and not self._scheduled:
            self._schedule()

    def within(self, callback: Callable[[], object]) -> None:
        """Call back, then end the iteration at once: without a further turn of the loop."""
        self._begun = True
        try:
            callback()
        finally:
            self.end()

    def end(self) -> None:
        """What `call_soon` was asked for, then the writes. Errors are the loop's to report."""
        self._begun = True
        soon, self._soon = self._soon, []
        for callback in soon:
            try:
                callback()
            except Exception as error:  # noqa: BLE001  (as loops do: the others have their turn)
                self.report(f"exception in callback {callback!r}", error)
        self._begun = False
        if self._soon and not self._scheduled:
            self._schedule()
        if self._writers or self._left:
            self._write_gathered()

    def _write_gathered(self) -> None:
        """Hand over what was gathered. Of very many streams those that were written to first and
        last: they have the answers to what was read, and to what was committed behind a message to
        thousands of others. The rest follows, some of it in each iteration."""
        writers, self._writers = self._writers, []
        between = len(writers) - WRITERS_AT_ONCE
        if between > 0:
            some = slice(WRITERS_AT_ONCE // 2, WRITERS_AT_ONCE // 2 + between)
            self._left.extend(writers[some])
            del writers[some]
        self._hand_over(writers)
        count = min(len(self._left), max(WRITERS_AT_ONCE, len(self._left) // LEFT_PARTS))
        self._hand_over([self._left.popleft() for _ in range(count)])
        if self._left and not self._scheduled:
            self._schedule()

    def _hand_over(self, writers: list[Stream]) -> None:
        for stream in writers:
            try:
                stream.write_gathered()
            except Exception as error:  # noqa: BLE001
                self.report(f"exception in writing to {stream!r}", error)

    def report(self, message: str, error: BaseException) -> None:
        """Tell the loop's exception handler."""
        self.loop.call_exception_handler({"message": message, "exception": error})

    def _schedule(self) -> None:
        self._scheduled = True
        self.loop.call_soon(self._end_scheduled)

    def _end_scheduled(self) -> None:
        self._scheduled = False
        self.end()


class Shortcut(Protocol):
    """What may take a read before `consume` is asked."""

    def take(self, buffer: bytearray, start: int, end: int) -> bool:
        """Handle all of `buffer[start:end]` and say so, or do nothing."""


class Stream:
    """Bytes in, with what is left of a partial frame; bytes out, gathered over an iteration."""

    def __init__(self, context: Iteration) -> None:
        self.context = context
        self.transport: asyncio.Transport | None = None
        self.paused = False
        """The transport is past its high-water mark: write nothing that can wait."""
        self.closing = False
        self.turn_bytes = 0
        """Gathered in this iteration."""
        self.written_bytes = 0
        """Gathered since the connection began."""
        self.starved = False
        """Call `fed` when this iteration's bytes were handed over and the transport takes more."""
        self.rest = b""
        """Partial frame, to be put in front of the next read."""
        self.shortcut: Shortcut | None = None
        """Is asked before `consume`."""
        self.heard_at = 0.0
        """When the shortcut took a read for the last time, by the loop's clock."""
        self._own: bytearray | None = None  # buffer of a frame that outgrew the shared one
        self._own_view: memoryview | None = None
        self._filled = 0  # bytes used in `_own`
        self._gathered: list[bytes] = []

    def consume(self, buffer: bytearray, start: int, end: int) -> int:
        """Parse `buffer[start:end]`; return the index up to which the bytes are used.

        What is left is presented again in front of what comes next, maybe in another buffer.
        """
        raise NotImplementedError

    def drained(self) -> None:
        """The transport takes bytes again."""

    def fed(self) -> None:
        """What was asked for by `starved`."""

    # --- out --------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Gather bytes for this iteration's one write. Nothing after `close`."""
        if self.closing or self.transport is None:
            return
        gathered = self._gathered
        if not gathered:
            self.context.write_later(self)
        gathered.append(data)
        self.turn_bytes += len(data)
        self.written_bytes += len(data)

    def write_gathered(self) -> None:
        """Hand the gathered bytes to the transport. Called at the end of the iteration."""
        gathered = self._gathered
        if gathered and self.transport is not None:
            data = gathered[0] if len(gathered) == 1 else b"".join(gathered)
            gathered.clear()
            self.transport.write(data)
        self.turn_bytes = 0
        if self.starved and not self.paused and not self.closing:
            self.starved = False
            self.fed()

    def pause_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        self.paused = True

    def resume_writing(self) -> None:
        """See `asyncio.BaseProtocol`."""
        self.paused = False
        if not self.closing:
            self.drained()

    # --- in ---------------------------------------------------------------------------------

    def get_buffer(self, _sizehint: int) -> memoryview:
        """Where the next bytes have to go. See `asyncio.BufferedProtocol`."""
        if self._own is None:
            if not self.rest:
                return self.context.view
            size = len(self.rest)
            if size <= BUFFER_BYTES // 2:
                self.context.buffer[:size] = self.rest
                return self.context.view[size:]
            self._own = bytearray(4 * size)
            self._own[:size] = self.rest
            self._filled = size
            self.rest = b""
        elif len(self._own) - self._filled < BUFFER_BYTES // 4:
            if self._own_view is not None:
                self._own_view.release()
            self._own.extend(bytes(len(self._own)))
        self._own_view = memoryview(self._own)
        return self._own_view[self._filled :]

    def buffer_updated(self, count: int) -> None:
        """So many bytes came. See `asyncio.BufferedProtocol`."""
        if self.closing:
            return
        if self._own is not None:
            self._filled += count
            self._consume_own()
            return
        end = len(self.rest) + count if self.rest else count
        shortcut = self.shortcut
        if shortcut is not None and shortcut.take(self.context.buffer, 0, end):
            self.heard_at = self.context.loop.time()
            if self.rest:
                self.rest = b""
            return
        used = self.consume(self.context.buffer, 0, end)
        if used < 0:
            raise ValueError(f"consume used {used} bytes")
        if used < end:
            self.rest = bytes(self.context.view[used:end])
        elif self.rest:
            self.rest = b""

    def consume_again(self) -> None:
        """Present once more what `consume` left, which may be nothing, without waiting for more
        bytes.

        Not while any connection of the loop is in `consume`: they share the buffer.
        """
        if self.closing:
            return
        if self._own is not None:
            self._consume_own()
            return
        rest = self.rest
        end = len(rest)
        if end > BUFFER_BYTES // 2:  # of a read into a buffer of its own, which holds any number
            self._own = bytearray(rest)
            self._filled = end
            self.rest = b""
            self._consume_own()
            return
        self.context.buffer[:end] = rest
        used = self.consume(self.context.buffer, 0, end)
        self.rest = rest[used:]

    def _consume_own(self) -> None:
        own = self._own
        assert own is not None
        used = self.consume(own, 0, self._filled)
        if used == 0:
            return
        self.rest = bytes(memoryview(own)[used : self._filled])
        self._own = None
        self._own_view = None
        self._filled = 0

    def forget(self) -> None:
        """The socket is gone: give back the memory of what was not parsed or not written."""
        self.closing = True
        self.transport = None
        self.shortcut = None
        self.rest = b""
        self._own = None
        self._own_view = None
        self._gathered.clear()
