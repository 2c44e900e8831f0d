"""One connection of a client with many calls under way: bytes in, answered calls out. Pure.

A driver keeps a *waiter* for each call, whatever its world waits with, and gets it back with the
answer. Rules:

* A connection over which nothing came since a call was sent that has timed out is taken for dead
  (`is_dead_after`): its peer may be gone without a word. Other timeouts leave it alone; their
  late answers are dropped.
* When the connection is lost, `lost` gives back all waiters.
* Requests of the peer go to the `Handler`; without one, or when it has no answer, the peer gets
  "not supported", as it would from RocketMQ's clients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from polymq.remoting.codes import ResponseCode
from polymq.remoting.connection import AnswerReceived, Connection, RequestReceived
from polymq.remoting.frames import ANSWER_BYTES_MAX, Command
from polymq.remoting.signing import Credentials, sign
from polymq.remoting.steps import Address, Call

Waiter = TypeVar("Waiter")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What a client answers to a request of a broker."""

    code: int = ResponseCode.SUCCESS
    fields: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    remark: str | None = None


Handler = Callable[[Address, Command], Reply | None]
"""Answers requests of the peer; may not wait. None: not supported."""


@dataclass(frozen=True, slots=True)
class Received(Generic[Waiter]):
    """What came: the answered calls, and what to send back."""

    answers: list[tuple[Waiter, Command]]
    replies: bytes


class Link(Generic[Waiter]):
    """The state of one connection of a client.

    Args:
        credentials: to sign every request with.
    """

    def __init__(
        self,
        address: Address,
        handler: Handler | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self._address = address
        self._handler = handler
        self._credentials = credentials
        self._frames = Connection(ANSWER_BYTES_MAX)
        self._buffer = bytearray()  # what is no whole frame yet
        self._waiters: dict[int, Waiter] = {}
        self._received_bytes = 0
        self._received_before: dict[int, int] = {}  # opaque -> what had come when it was sent

    def ask(self, call: Call, waiter: Waiter) -> tuple[int, bytes]:
        """The number of a call, and the bytes to send. Raises LocalProtocolError."""
        fields: Mapping[str, str] = call.fields
        if self._credentials is not None:
            fields = sign(fields, call.body, self._credentials)
        opaque, data = self._frames.request(call.code, fields, call.body, oneway=call.oneway)
        if not call.oneway:
            self._waiters[opaque] = waiter
            self._received_before[opaque] = self._received_bytes
        return opaque, data

    def give_up(self, opaque: int) -> None:
        """Nobody waits for this call any more."""
        self._frames.forget(opaque)
        self._waiters.pop(opaque, None)
        self._received_before.pop(opaque, None)

    def is_dead_after(self, opaque: int) -> bool:
        """Whether the connection should be closed, now that this call has timed out."""
        return self._received_before.get(opaque, -1) == self._received_bytes

    def receive(self, data: bytes) -> Received[Waiter]:
        """Take what came. Raises RemoteProtocolError: close the connection."""
        self._received_bytes += len(data)
        self._buffer += data
        events, used = self._frames.receive(self._buffer, 0, len(self._buffer))
        del self._buffer[:used]
        answers: list[tuple[Waiter, Command]] = []
        replies = bytearray()
        for event in events:
            if isinstance(event, AnswerReceived):
                answers.append((self._waiters.pop(event.opaque), event.command))
                del self._received_before[event.opaque]
            elif isinstance(event, RequestReceived):
                replies += self._reply(event)
        return Received(answers, bytes(replies))

    def lost(self) -> list[Waiter]:
        """The connection is gone: who waits in vain."""
        waiters = list(self._waiters.values())
        self._waiters.clear()
        self._received_before.clear()
        return waiters

    def _reply(self, event: RequestReceived) -> bytes:
        reply = None if self._handler is None else self._handler(self._address, event.command)
        if event.command.is_oneway:
            return b""
        if reply is None:
            reply = Reply(
                code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                remark=f" request type {event.command.code} not supported",
            )
        head = self._frames.answer(
            event.serial,
            reply.code,
            reply.fields,
            remark=reply.remark,
            body_size=len(reply.body),
        )
        return head + reply.body
