# cython: annotation_typing=False, boundscheck=False, wraparound=False
"""What a loop iteration gathers, and the bytes of one connection.

`Iteration` is the part of a context that is used for every read and write, `Stream` that of a
connection. What they are for, and their rules, stand in `net/connection.py`. Where this is compiled
(`streams.pxd`), a read costs one call of Python (`consume`), and a write of one bytes object none
but the transport's.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

BUFFER_BYTES: Final = 256 * 1024
"""One read. Bigger reads make bigger batches, until the buffer falls out of the L2 cache."""
WRITERS_AT_ONCE: Final = 128
"""Streams that are handed to their transports in one iteration, and as many of former ones: some
10 us each."""
SHARED = BUFFER_BYTES  # the same two without objects where this is compiled
AT_ONCE = WRITERS_AT_ONCE
LEFT_PARTS = 16
"""Of very many streams of former iterations one in so many is handed over, although that takes
longer: else bytes for all of them would gather faster than they leave."""


def clock_ms() -> int:
    """The wall clock in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


class Wire:
    """A transport that takes bytes without a call of Python, where this is compiled."""

    def put(self, data: bytes) -> None:
        """What `write` of a transport does."""
        raise NotImplementedError


class Shortcut:
    """What may take a read before `consume` is asked."""

    def take(self, buffer: bytearray, start: int, end: int) -> bool:
        """Handle all of `buffer[start:end]` and say so, or do nothing."""
        return False


class Layer:
    """What stands between a socket and `consume`: it turns what came into what is consumed, and
    what was written into what is sent. It makes no byte more of what came."""

    room = BUFFER_BYTES
    """What should be read at once."""

    def take(self, buffer: bytearray, start: int, end: int) -> int:
        """Turn `buffer[start:end]`, which came, in place; return the index up to which there is
        something to be consumed. What is left in part is the layer's to keep."""
        raise NotImplementedError

    def taken(self) -> None:
        """What `take` left was consumed, or waits for its turn."""

    def wrap(self, data: bytes) -> bytes:
        """What is sent for what was gathered, which may be nothing."""
        raise NotImplementedError

    def drained(self) -> None:
        """The transport takes bytes again."""

    def goodbye(self) -> bool:
        """The stream is about to close, and takes last bytes now. Returns whether its socket stays
        open for the peer's goodbye."""
        raise NotImplementedError


class Traffic:
    """Bytes of connections that are counted together, since it was made: without TLS, and with what
    a layer adds."""

    def __init__(self) -> None:
        self.received = 0
        self.sent = 0


class Iteration:
    """The shared read buffer, and what has to happen at the end of this loop iteration."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.buffer = bytearray(BUFFER_BYTES)
        self.view = memoryview(self.buffer)
        self._soon: list[Callable[[], object]] = []  # to be called at the end of this iteration
        self._writers: list[Stream] = []  # with gathered bytes
        self._left: deque[Stream] = deque()  # those of former iterations
        self._heard: list[Stream] = []  # whose shortcut took a read in this iteration
        self.traffic = Traffic()
        """That of all streams that are not counted otherwise."""
        self.begun = False
        """Whoever began it will end it."""
        self._scheduled = False  # the loop will end it

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Call back at the end of this iteration, before its writes; what a callback asks for is
        called in the next one."""
        self._soon.append(callback)
        self._schedule()

    def write_later(self, stream: Stream) -> None:
        """Write what the stream gathered at the end of this iteration, or of one that follows where
        very many have something to write."""
        self._writers.append(stream)
        self._schedule()

    def within(self, callback: Callable[[], object]) -> None:
        """Call back, then end the iteration at once: without a further turn of the loop."""
        self.begun = True
        try:
            callback()
        finally:
            self.end()

    def end(self) -> None:
        """What `call_soon` was asked for, then the writes. Errors are the loop's to report."""
        self.begun = True
        if self._soon:
            soon, self._soon = self._soon, []
            for callback in soon:
                try:
                    callback()
                except Exception as error:  # noqa: BLE001  (as loops do: the others have their turn)
                    self.report(f"exception in callback {callback!r}", error)
        self.begun = False
        if self._soon:
            self._schedule()
        if self._writers or self._left:
            self._write_gathered()
        if self._heard:
            self.date_heard()

    def date_heard(self) -> None:
        """Tell those that were heard when. One reading of the clock is enough for all, and nothing
        that leaves waits for it."""
        now = self.loop.time()
        for stream in self._heard:
            stream.heard_at = now
        self._heard.clear()

    def _write_gathered(self) -> None:
        """Hand over what was gathered. Of very many streams those that were written to first and
        last: they have the answers to what was read, and to what was committed behind a message to
        thousands of others. The rest follows, some of it in each iteration."""
        writers, self._writers = self._writers, []
        between = len(writers) - AT_ONCE
        if between > 0:
            some = slice(AT_ONCE // 2, AT_ONCE // 2 + between)
            self._left.extend(writers[some])
            del writers[some]
        self._hand_over(writers)
        if self._left:
            count = min(len(self._left), max(AT_ONCE, len(self._left) // LEFT_PARTS))
            self._hand_over([self._left.popleft() for _ in range(count)])
        if self._left:
            self._schedule()

    def _hand_over(self, writers: list[Stream]) -> None:
        for stream in writers:
            try:
                stream.hand_over()
            except Exception as error:  # noqa: BLE001
                self.report(f"exception in writing to {stream!r}", error)

    def report(self, message: str, error: BaseException) -> None:
        """Tell the loop's exception handler."""
        self.loop.call_exception_handler({"message": message, "exception": error})

    def _schedule(self) -> None:
        """Let the loop end this iteration, unless somebody will."""
        if not self.begun and not self._scheduled:
            self._scheduled = True
            self.loop.call_soon(self._end_scheduled)

    def _end_scheduled(self) -> None:
        self._scheduled = False
        self.end()


class Stream:
    """Bytes in, with what is left of a partial frame; bytes out, gathered over an iteration."""

    def __init__(self, context: Iteration) -> None:
        self.context = context
        self.traffic = context.traffic
        """Counts its bytes."""
        self.transport: Any = None
        """An `asyncio.Transport`, or a `Wire`; None before and after."""
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
        self.layer: Layer | None = None
        """Between the socket and all this; None where they have the same bytes."""
        self.own: bytearray | None = None
        """The buffer of a frame that outgrew the shared one."""
        self._own_view: memoryview | None = None
        self._filled = 0  # bytes used in `own`
        self._first: bytes | None = None  # of what is gathered: most often all of it
        self._gathered: list[bytes] = []  # what came behind it

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
        if self._first is None:
            self._first = data
            self.context.write_later(self)
        else:
            self._gathered.append(data)
        size = len(data)
        self.turn_bytes += size
        self.written_bytes += size
        self.traffic.sent += size

    def write_gathered(self) -> None:
        """Hand the gathered bytes to the transport. Called at the end of the iteration."""
        self.hand_over()

    def hand_over(self) -> None:
        """As `write_gathered`, without a call of Python."""
        data = self._first
        if data is not None and self.transport is not None:
            self._first = None
            if self._gathered:
                data = b"".join([data, *self._gathered])
                self._gathered.clear()
            if self.layer is not None:
                data = self.layer.wrap(data)
            if type(data) is bytes and isinstance(self.transport, Wire):
                wire = self.transport
                wire.put(data)
            else:
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
        if self.layer is not None:
            self.layer.drained()
        if not self.closing:
            self.drained()

    # --- in ---------------------------------------------------------------------------------

    def get_buffer(self, _sizehint: int) -> memoryview:
        """Where the next bytes have to go. See `asyncio.BufferedProtocol`."""
        if self._own_view is not None:  # `make_room` may have to make it longer
            self._own_view.release()
            self._own_view = None
        at = self.make_room()
        if self.own is None:
            view = self.context.view
        else:
            view = self._own_view = memoryview(self.own)
        if self.layer is not None:
            return view[at : at + self.layer.room]
        return view[at:] if at else view

    def make_room(self) -> int:
        """Where the next bytes have to go: an index into `own`, or else the shared buffer."""
        size = len(self.rest)
        if self.own is None:
            if size <= SHARED // 2:
                if size:
                    self.context.buffer[:size] = self.rest
                return size
            self.own = bytearray(4 * size)
            self.own[:size] = self.rest
            self._filled = size
            self.rest = b""
        elif len(self.own) - self._filled < SHARED // 4:
            self.own.extend(bytes(len(self.own)))
        return self._filled

    def buffer_updated(self, count: int) -> None:
        """So many bytes came. See `asyncio.BufferedProtocol`."""
        self.received(count)

    def received(self, count: int) -> None:
        """So many bytes are where `make_room` said."""
        self.traffic.received += count
        if self.layer is None:
            self._present(count)
        else:
            self._receive_through(count)

    def _receive_through(self, count: int) -> None:
        """So many bytes came for the layer."""
        layer = self.layer
        assert layer is not None
        at = len(self.rest) if self.own is None else self._filled
        buffer = self.context.buffer if self.own is None else self.own
        count = layer.take(buffer, at, at + count) - at
        if count:
            self._present(count)
        layer.taken()

    def _present(self, count: int) -> None:
        """So many bytes are there to be consumed."""
        if self.closing:
            return
        if self.own is not None:
            self._filled += count
            self._consume_own()
            return
        end = len(self.rest) + count
        if self.shortcut is not None and self._take_shortcut(end):
            self.rest = b""
            return
        used = self.consume(self.context.buffer, 0, end)
        if used < 0:
            raise ValueError(f"consume used {used} bytes")
        self.rest = bytes(self.context.view[used:end]) if used < end else b""

    def _take_shortcut(self, end: int) -> bool:
        shortcut: Any = self.shortcut
        if isinstance(shortcut, Shortcut):
            typed = shortcut  # its method is called without Python
            taken = typed.take(self.context.buffer, 0, end)
        else:  # a plain form, where this one is compiled
            taken = shortcut.take(self.context.buffer, 0, end)
        if taken:
            self.context._heard.append(self)
            if not self.context.begun:
                self.context.date_heard()
        return taken

    def consume_again(self) -> None:
        """Present once more what `consume` left, which may be nothing, without waiting for more
        bytes.

        Not while any connection of the loop is in `consume`: they share the buffer.
        """
        if self.closing:
            return
        rest = self.rest
        end = len(rest)
        if self.own is None and end > SHARED // 2:  # of a read into a buffer that holds any number
            self.own = bytearray(rest)
            self._filled = end
            self.rest = b""
        if self.own is not None:
            self._consume_own()
            return
        self.context.buffer[:end] = rest
        used = self.consume(self.context.buffer, 0, end)
        self.rest = rest[used:]

    def _consume_own(self) -> None:
        own = self.own
        assert own is not None
        used = self.consume(own, 0, self._filled)
        if used == 0 or self.own is None:
            return
        self.rest = bytes(memoryview(own)[used : self._filled])
        self.own = None
        self._own_view = None
        self._filled = 0

    def forget(self) -> None:
        """The socket is gone: give back the memory of what was not parsed or not written."""
        self.closing = True
        self.transport = None
        self.shortcut = None
        self.layer = None
        self.rest = b""
        self.own = None
        self._own_view = None
        self._first = None
        self._gathered.clear()
