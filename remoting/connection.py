"""One remoting connection, seen from either side: bytes in, events out.

Rules of this file:

* Both sides may ask and both may answer: a broker sends requests of its own to its clients. The
  response bit tells which a frame is; the two sides count their `opaque` numbers independently.
* Every request that arrived is answered exactly once, except oneway ones, which are never.
  Answering out of order is legal and normal (a held pull waits, what came later does not).
* An answer that nobody waits for is no error: its question was given up (`forget`) before it came.
* A connection that broke the protocol stays broken: every later call raises.

It knows no socket, no clock and no meaning of any code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from polymq.remoting.codes import FLAG_ONEWAY, FLAG_RESPONSE, SerializeType
from polymq.remoting.errors import LocalProtocolError, RemoteProtocolError
from polymq.remoting.frames import FRAME_BYTES_MAX, Command, encode_frame, encode_head, take_frame

REQUESTS_OPEN_MAX: Final = 65_536
"""Requests of the peer that wait for our answer. A client with a thousand queues holds a thousand
pulls; the bound is there for a peer that never reads what it is answered."""
CALLS_OPEN_MAX: Final = 65_536
"""Requests of ours that wait for the peer's answer (RocketMQ: 65,535 semaphore permits)."""

_OPAQUE_MAX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestReceived:
    """The peer asks. Answer with `Connection.answer(serial, ...)` unless it is oneway."""

    serial: int
    """Ours, unlike `opaque`, which the peer may use twice."""
    command: Command


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerReceived:
    """The answer to the request with this opaque."""

    opaque: int
    command: Command


@dataclass(frozen=True, slots=True, kw_only=True)
class LateAnswer:
    """An answer that nobody waits for any more."""

    opaque: int


Event = RequestReceived | AnswerReceived | LateAnswer


class Connection:
    """The state of one connection.

    Args:
        frame_bytes_max: how large a frame of the peer may be.
    """

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self._frame_bytes_max = frame_bytes_max
        self._waiting: set[int] = set()  # opaques of ours without an answer
        self._open: dict[int, Command] = {}  # serial -> the peer's unanswered request
        self._opaque = 0  # last one that we used
        self._serial = 0  # last one that we gave
        self._broken = ""  # what the peer did wrong

    @property
    def open_count(self) -> int:
        """Requests of the peer that are not answered yet."""
        return len(self._open)

    # --- receiving ------------------------------------------------------------------------

    def receive(
        self, buffer: bytes | bytearray | memoryview, start: int, end: int
    ) -> tuple[list[Event], int]:
        """Take every whole frame of `buffer[start:end]`.

        Returns:
            The events, and the index up to which the bytes are used. Present what is left again
            when more has come.

        Raises:
            RemoteProtocolError: after the events before it were lost; close the connection.
        """
        if self._broken:
            raise RemoteProtocolError(self._broken)
        events: list[Event] = []
        try:
            while (taken := take_frame(buffer, start, end, self._frame_bytes_max)) is not None:
                command, start = taken
                events.append(self._event(command))
        except RemoteProtocolError as error:
            self._broken = str(error)  # the error itself has this frame: a cycle
            raise
        return events, start

    def _event(self, command: Command) -> Event:
        if command.is_response:
            if command.opaque not in self._waiting:
                return LateAnswer(opaque=command.opaque)
            self._waiting.discard(command.opaque)
            return AnswerReceived(opaque=command.opaque, command=command)
        self._serial += 1
        if not command.is_oneway:
            if len(self._open) >= REQUESTS_OPEN_MAX:
                raise RemoteProtocolError(f"{REQUESTS_OPEN_MAX} requests wait for their answers")
            self._open[self._serial] = command
        return RequestReceived(serial=self._serial, command=command)

    # --- asking ---------------------------------------------------------------------------

    def request(
        self,
        code: int,
        fields: Mapping[str, str],
        body: bytes = b"",
        *,
        oneway: bool = False,
    ) -> tuple[int, bytes]:
        """A request of ours: its opaque and the bytes to send."""
        self._check_usable()
        if len(self._waiting) >= CALLS_OPEN_MAX:
            raise LocalProtocolError(f"{CALLS_OPEN_MAX} requests wait for their answers")
        self._opaque = self._opaque % _OPAQUE_MAX + 1
        data = encode_frame(
            Command(
                code=code,
                opaque=self._opaque,
                flag=FLAG_ONEWAY if oneway else 0,
                fields=fields,
                body=body,
            )
        )
        if not oneway:
            self._waiting.add(self._opaque)
        return self._opaque, data

    def forget(self, opaque: int) -> None:
        """Nobody waits for this answer any more."""
        self._waiting.discard(opaque)

    # --- answering ------------------------------------------------------------------------

    def answer(
        self,
        serial: int,
        code: int,
        fields: Mapping[str, str] | None = None,
        *,
        remark: str | None = None,
        body_size: int = 0,
        bytes_max: int = FRAME_BYTES_MAX,
    ) -> bytes:
        """What to send before the body of the answer to request `serial`.

        Args:
            body_size: how many bytes of body the caller sends right after these.
            bytes_max: how large the frame may be.

        Raises:
            LocalProtocolError: there is no such request, it is answered, or it is oneway; or the
                answer does not fit a frame (then the request stays open).
        """
        self._check_usable()
        request = self._open.get(serial)
        if request is None:
            raise LocalProtocolError(f"request {serial} does not wait for an answer")
        data = encode_head(
            Command(
                code=code,
                opaque=request.opaque,
                flag=FLAG_RESPONSE,
                fields=fields or {},
                remark=remark,
                serialize_type=SerializeType(request.serialize_type),
            ),
            body_size,
            bytes_max,
        )
        del self._open[serial]
        return data

    def _check_usable(self) -> None:
        if self._broken:
            raise LocalProtocolError("the connection is broken: the peer violated the protocol")
