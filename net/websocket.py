"""The server's side of one WebSocket (RFC 6455): pure, bytes in, bytes out.

`WebSocket` knows no socket and no clock. What came is given to `receive`, which turns it in place
into what the client's frames carry. What is to be sent is asked of `wrap`: the answer to the
handshake, Pongs and Close, and what the server's protocol wrote, in binary frames. `end` says that
the WebSocket is over, and why.

Rules:

* What a broken frame follows is handed on, and then the end is said with its code (part 7.1.7).
* No extension is negotiated: a reserved bit is an error. (permessage-deflate would cost a message a
  state of 32 KiB and each of its bytes some nanoseconds, and lets strangers ask for both.)
* What leaves together is one frame, as long as it is at most `SENT_FRAME_BYTES_MAX`.
* One Pong waits at a time: that of the last Ping.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final, NamedTuple

from polymq.net.kernels import websocket_codes as codes
from polymq.net.kernels.websocket import Frames, binary_frame
from polymq.net.websocket_handshake import (
    HEAD_END,
    HandshakeRefused,
    Offer,
    accept,
    check_beginning,
)

SENT_FRAME_BYTES_MAX: Final = 512 * 1024
"""What goes into one frame. Clients have limits of their own: Python's websockets takes 1 MiB."""

NORMAL: Final = 1000
GOING_AWAY: Final = 1001
PROTOCOL_ERROR: Final = 1002
UNSUPPORTED_DATA: Final = 1003
INVALID_DATA: Final = 1007
TOO_BIG: Final = 1009
SERVER_ERROR: Final = 1011

REASONS: Final[Mapping[int, tuple[int, str]]] = {
    codes.BROKEN_RESERVED: (PROTOCOL_ERROR, "a reserved bit is set, and no extension was agreed"),
    codes.BROKEN_OPCODE: (PROTOCOL_ERROR, "the opcode has no meaning"),
    codes.BROKEN_TEXT: (UNSUPPORTED_DATA, "a text frame, where only binary frames may come"),
    codes.BROKEN_CONTROL_CUT: (PROTOCOL_ERROR, "a control frame in fragments"),
    codes.BROKEN_CONTROL_LONG: (PROTOCOL_ERROR, "a control frame of more than 125 bytes"),
    codes.BROKEN_CONTINUATION: (PROTOCOL_ERROR, "a continuation of nothing"),
    codes.BROKEN_BEGINNING: (PROTOCOL_ERROR, "a message begins within another"),
    codes.BROKEN_UNMASKED: (PROTOCOL_ERROR, "a frame that is not masked"),
    codes.BROKEN_LENGTH: (PROTOCOL_ERROR, "the length of a frame is malformed"),
    codes.BROKEN_LARGE: (TOO_BIG, "the frame is larger than the largest packet"),
}
"""What the client is told about a frame that is broken: code and reason of Close."""

_FIN: Final = 0x80
_BINARY, _CLOSE, _PONG = 2, 8, 10


class State(Enum):
    """Where a WebSocket is."""

    HANDSHAKE = auto()
    OPEN = auto()
    ENDED = auto()
    """Nothing more is received: the handshake was refused, a frame was broken, or the client has
    sent Close."""


class End(NamedTuple):
    """Why a WebSocket is over.

    Attributes:
        is_failure: the client did what it may not do; else it has sent Close.
        text: for the log.
    """

    is_failure: bool
    text: str


class WebSocket:
    """One client.

    Attributes:
        end: set once nothing more is received.
        has_answer: `wrap` has something to send although nothing was written.
    """

    def __init__(self, offer: Offer) -> None:
        self.end: End | None = None
        self.has_answer = False
        self._offer = offer
        self._state = State.HANDSHAKE
        self._head = bytearray()  # of the handshake, as far as it came
        self._frames = Frames(offer.frame_bytes_max)
        self._opening = b""  # the answer to the handshake
        self._pong = b""
        self._close = b""  # our Close
        self._code = 0  # to be answered to the client's Close, or to what it did wrong
        self._reason = ""
        self._said_goodbye = False
        self._is_open = False  # OPEN, and we have not said goodbye

    def receive(self, buffer: bytearray, start: int, end: int) -> int:
        """Turn `buffer[start:end]`, which came, into what the frames carry, in place.

        Returns:
            The index up to which it is there. After our Close nothing is handed on any more.
        """
        if self._is_open:  # as nearly always: nothing but data
            filled = self._frames.unwrap(buffer, start, start, end)
            return self._look(start, filled) if self._frames.must_look else filled
        at = start
        if self._state is State.HANDSHAKE:
            at = self._shake_hands(buffer, start, end)
        if self._state is not State.OPEN:
            return start
        filled = self._frames.unwrap(buffer, start, at, end)
        return self._look(start, filled)

    def _look(self, start: int, filled: int) -> int:
        """Answer a Ping, and end if the frames have stopped. Returns as `receive`."""
        frames = self._frames
        ping = frames.take_ping()
        if ping is not None and not self._said_goodbye:
            self._pong = _frame(_PONG, ping)
            self.has_answer = True
        if frames.stopped:
            self._stop(frames.stopped)
        return start if self._said_goodbye else filled

    def wrap(self, data: bytes) -> bytes:
        """What is sent for what was written, with all that waits."""
        if 0 < len(data) <= SENT_FRAME_BYTES_MAX and not self.has_answer:
            return binary_frame(data)
        parts: list[bytes | memoryview] = [self._opening, self._pong]
        view = memoryview(data)
        for at in range(0, len(data), SENT_FRAME_BYTES_MAX):
            piece = view[at : at + SENT_FRAME_BYTES_MAX]  # copied once, by `join`
            parts += _header(_BINARY, len(piece)), piece
        parts.append(self._close)
        self._opening = self._pong = self._close = b""
        self.has_answer = False
        return b"".join(parts)

    def goodbye(self, code: int = NORMAL) -> bool:
        """The server's protocol has ended, or the WebSocket has: the next `wrap` ends with Close,
        where a WebSocket was open.

        Returns:
            Whether the client's Close is still to come.
        """
        was_open = self._state is not State.HANDSHAKE and not self._said_goodbye
        self._said_goodbye = True
        self._is_open = False
        if not was_open or (self._state is State.ENDED and not self._code):
            return False
        self._close = _close_frame(self._code or code, self._reason)
        self.has_answer = True
        return self._state is State.OPEN

    def _shake_hands(self, buffer: bytearray, start: int, end: int) -> int:
        """A part of the request, or what there is of it. Returns where frames begin."""
        head = self._head
        before = len(head)
        head += buffer[start:end]
        size = head.find(HEAD_END, max(0, before - len(HEAD_END) + 1)) + len(HEAD_END)
        is_whole = size >= len(HEAD_END)
        try:
            check_beginning(self._offer, head[:size] if is_whole else head)
            if not is_whole:
                return end
            self._opening = accept(self._offer, bytes(head[:size]))
        except HandshakeRefused as refused:
            self._opening = refused.answer()
            self._state = State.ENDED
            self.end = End(True, f"{refused.status.value}: {refused.text}")
        else:
            self._state = State.OPEN
            self._is_open = not self._said_goodbye
        self.has_answer = True
        self._head = bytearray()
        return start + size - before

    def _stop(self, stopped: int) -> None:
        self._state = State.ENDED
        self._is_open = False
        if stopped == codes.CLOSED:
            self._code, self._reason, text = answer_to_close(self._frames.control)
            self.end = End(bool(self._reason), text)
        else:
            self._code, self._reason = REASONS[stopped]
            self.end = End(True, self._reason)


def answer_to_close(data: bytes) -> tuple[int, str, str]:
    """Code and reason for the answer to a Close that carries this, and a text for the log. There is
    a reason if the Close is malformed."""
    if not data:
        return NORMAL, "", "the client closed"
    code = int.from_bytes(data[:2], "big")
    if len(data) < 2 or not _may_be_sent(code):
        return PROTOCOL_ERROR, "the code of Close is malformed", "the code of Close is malformed"
    try:
        reason = data[2:].decode()
    except UnicodeDecodeError:
        return INVALID_DATA, "the reason of Close is not UTF-8", "the reason of Close is not UTF-8"
    return code, "", f"the client closed with {code} {reason!r}"


def _may_be_sent(code: int) -> bool:
    """RFC 6455 part 7.4, and the codes that were registered since."""
    return code in (1000, 1001, 1002, 1003) or 1007 <= code <= 1014 or 3000 <= code <= 4999


def _header(opcode: int, size: int) -> bytes:
    first = _FIN | opcode
    if size < 126:
        return bytes((first, size))
    if size < 1 << 16:
        return bytes((first, 126)) + size.to_bytes(2, "big")
    return bytes((first, 127)) + size.to_bytes(8, "big")


def _frame(opcode: int, data: bytes) -> bytes:
    return _header(opcode, len(data)) + data


def _close_frame(code: int, reason: str) -> bytes:
    return _frame(_CLOSE, code.to_bytes(2, "big") + reason.encode())
