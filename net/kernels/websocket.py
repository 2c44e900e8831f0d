"""The WebSocket kernel: from the frames of a read to the bytes that they carry (RFC 6455 part 5).

A read may hold a thousand frames, and a frame may come in a thousand reads. `Frames.unwrap` takes
what is there, removes headers and masks, and moves what the frames carry together, in the buffer
where it is: what comes out is never longer than what came in. Whoever reads it, MQTT's kernels,
sees one read, and no frames [MQTT-6.0.0-2].

Rules:

* Nothing of a frame is kept but what its header said, and a control frame. So a frame may be as
  long as it likes without costing memory.
* Each byte is looked at once. Where the reads were cut makes no difference to what comes out, and
  to where it stops.
* Of several Pings in a read the last one is answered, which is enough (part 5.5.3): thousands of
  them cost no object each.

This is the plain form. `websocket.pyx` is the compiled one.
"""

from __future__ import annotations

from typing import Final

from polymq.net.kernels.websocket_codes import (
    BROKEN_BEGINNING,
    BROKEN_CONTINUATION,
    BROKEN_CONTROL_CUT,
    BROKEN_CONTROL_LONG,
    BROKEN_LARGE,
    BROKEN_LENGTH,
    BROKEN_OPCODE,
    BROKEN_RESERVED,
    BROKEN_TEXT,
    BROKEN_UNMASKED,
    CLOSED,
    CONTROL_BYTES_MAX,
    GOING_ON,
)

READ_BYTES_MAX: Final = 8 * 1024
"""What should be read at once: frames without content are 6 bytes, and 1,365 of them take this
form 2 ms."""

_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0, 1, 2, 8, 9, 10
_FIN: Final = 0x80
_IN_HEADER: Final = -1
_LENGTH_BYTES: Final = {126: 2, 127: 8}
_SHORTEST: Final = {0: 0, 2: 126, 8: 1 << 16}


class Frames:
    """The frames that one client sends.

    Args:
        frame_bytes_max: what a frame may carry.

    Attributes:
        stopped: a code of `websocket_codes.py`; once it is not GOING_ON nothing more is taken.
    """

    def __init__(self, frame_bytes_max: int) -> None:
        self.stopped = GOING_ON
        self._frame_bytes_max = frame_bytes_max
        self._head = bytearray()
        self._head_size = 2  # of the header, as far as that is known
        self._opcode = 0
        self._left = _IN_HEADER  # bytes that the frame still carries
        self._mask = b""
        self._is_message_open = False  # a binary message goes on in the next data frame
        self._control = bytearray()  # what the control frame carries
        self._ping: bytes | None = None

    @property
    def control(self) -> bytes:
        """What the Close frame carries, if that is why it stopped."""
        return bytes(self._control)

    @property
    def must_look(self) -> bool:
        """Whether a Ping waits, or it has stopped: mostly neither."""
        return self._ping is not None or self.stopped != GOING_ON

    def take_ping(self) -> bytes | None:
        """What the last Ping carries, once; None if there was none."""
        ping, self._ping = self._ping, None
        return ping

    def unwrap(self, buffer: bytearray, to: int, start: int, end: int) -> int:
        """Move what the frames in `buffer[start:end]` carry to `to`, which is not behind `start`.

        Returns:
            The index up to which `buffer[to:]` holds it.
        """
        at = start
        head = self._head
        while at < end and not self.stopped:
            if self._left == _IN_HEADER:
                count = min(self._head_size - len(head), end - at)
                head += buffer[at : at + count]
                at += count
                if len(head) == self._head_size:
                    self._look_at_head()
                continue
            count = min(self._left, end - at)
            data = _unmasked(buffer[at : at + count], self._mask)
            at += count
            if self._opcode >= _CLOSE:
                self._control += data
            else:
                buffer[to : to + count] = data
                to += count
            turn = count & 3
            self._mask = self._mask[turn:] + self._mask[:turn]
            self._left -= count
            if not self._left:
                self._end_frame()
        return to

    def _look_at_head(self) -> None:
        """The header is here as far as its size was known."""
        head = self._head
        size = head[1] & 0x7F
        if len(head) == 2:
            self.stopped = self._check(head[0], head[1])
            self._head_size = 6 + _LENGTH_BYTES.get(size, 0)
            return
        more = len(head) - 6
        if more:
            size = int.from_bytes(head[2 : 2 + more], "big")
        if size < _SHORTEST[more] or size >= 1 << 63:
            self.stopped = BROKEN_LENGTH
            return
        if size > self._frame_bytes_max and self._opcode < _CLOSE:
            self.stopped = BROKEN_LARGE
            return
        self._mask = bytes(head[-4:])
        self._left = size
        head.clear()
        self._head_size = 2
        if not size:
            self._end_frame()

    def _check(self, first: int, second: int) -> int:
        """Whether a frame may begin with these two bytes."""
        opcode = self._opcode = first & 0x0F
        is_last = bool(first & 0x80)
        if first & 0x70:
            return BROKEN_RESERVED
        if not second & 0x80:
            return BROKEN_UNMASKED
        if opcode >= _CLOSE:
            if opcode > _PONG:
                return BROKEN_OPCODE
            if not is_last:
                return BROKEN_CONTROL_CUT
            if second & 0x7F > CONTROL_BYTES_MAX:
                return BROKEN_CONTROL_LONG
            self._control.clear()
            return GOING_ON
        if opcode == _TEXT:
            return BROKEN_TEXT
        if opcode > _BINARY:
            return BROKEN_OPCODE
        if opcode == _BINARY and self._is_message_open:
            return BROKEN_BEGINNING
        if opcode == _CONTINUATION and not self._is_message_open:
            return BROKEN_CONTINUATION
        self._is_message_open = not is_last
        return GOING_ON

    def _end_frame(self) -> None:
        self._left = _IN_HEADER
        if self._opcode == _PING:
            self._ping = bytes(self._control)
        elif self._opcode == _CLOSE:
            self.stopped = CLOSED


def _unmasked(data: bytearray, mask: bytes) -> bytes:
    size = len(data)
    key = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(data, "little") ^ int.from_bytes(key, "little")).to_bytes(size, "little")


def binary_frame(data: bytes) -> bytes:
    """A whole message as one frame, not masked."""
    size = len(data)
    if size < 126:
        return bytes((_FIN | _BINARY, size)) + data
    if size < 1 << 16:
        return bytes((_FIN | _BINARY, 126)) + size.to_bytes(2, "big") + data
    return bytes((_FIN | _BINARY, 127)) + size.to_bytes(8, "big") + data
