"""The protocol of the RocketMQ door: bytes in, typed requests out.

Rules of this file:

* `REQUESTS` names every code that this door serves and the header that goes with it. A code that
  is not in it becomes `Unsupported`; a header that does not fit becomes `Malformed`. Both leave
  the connection usable: the frame's limits were right.
* Every request gets one answer through `answer`, oneway requests none: they are dropped here,
  because nothing that this door serves has an effect.
* What a client *answers* is ignored: this door asks its clients nothing.

Frames, serialize types and the bookkeeping of open requests are `remoting.connection`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from remoting.codes import RequestCode
from remoting.connection import Connection, RequestReceived
from remoting.errors import BadFields
from remoting.frames import Command
from remoting.headers import Fields, PullFields, QueueFields, TopicFields, read_fields

REQUESTS: Final[Mapping[int, type[Fields]]] = {
    RequestCode.PULL_MESSAGE: PullFields,
    RequestCode.LITE_PULL_MESSAGE: PullFields,
    RequestCode.GET_MAX_OFFSET: QueueFields,
    RequestCode.GET_MIN_OFFSET: QueueFields,
    RequestCode.GET_ROUTE: TopicFields,
    RequestCode.GET_ALL_TOPICS: Fields,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    """Records from an offset on are wanted."""

    serial: int
    fields: PullFields


@dataclass(frozen=True, slots=True, kw_only=True)
class AskOffset:
    """The first offset of a queue, or one past its last, is wanted."""

    serial: int
    code: int
    fields: QueueFields


@dataclass(frozen=True, slots=True, kw_only=True)
class AskRoute:
    """Where a topic lives is wanted."""

    serial: int
    fields: TopicFields


@dataclass(frozen=True, slots=True, kw_only=True)
class AskTopics:
    """The names of all topics are wanted."""

    serial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsupported:
    """A code that this door does not serve."""

    serial: int
    code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Malformed:
    """A header lacks a field or has one of the wrong kind."""

    serial: int
    reason: str


Event = Pull | AskOffset | AskRoute | AskTopics | Unsupported | Malformed


class RocketmqCore:
    """One client's connection."""

    def __init__(self) -> None:
        self._frames = Connection()

    @property
    def open_count(self) -> int:
        """Requests without an answer."""
        return self._frames.open_count

    def receive(self, buffer: bytes | bytearray, start: int, end: int) -> tuple[list[Event], int]:
        """Take all whole requests: the events, and up to which index the bytes are used.

        Raises:
            RemoteProtocolError: close the connection.
        """
        received, used = self._frames.receive(buffer, start, end)
        events = [
            _event(item.serial, item.command)
            for item in received
            if isinstance(item, RequestReceived) and not item.command.is_oneway
        ]
        return events, used

    def answer(
        self,
        serial: int,
        code: int,
        fields: Mapping[str, str] | None = None,
        *,
        remark: str | None = None,
        body_size: int = 0,
    ) -> bytes:
        """The head of the answer; `body_size` bytes of body follow it."""
        return self._frames.answer(serial, code, fields, remark=remark, body_size=body_size)


def _event(serial: int, command: Command) -> Event:
    kind = REQUESTS.get(command.code)
    if kind is None:
        return Unsupported(serial=serial, code=command.code)
    try:
        fields = read_fields(kind, command.fields)
    except BadFields as error:
        return Malformed(serial=serial, reason=str(error))
    if isinstance(fields, PullFields):
        return Pull(serial=serial, fields=fields)
    if isinstance(fields, QueueFields):
        return AskOffset(serial=serial, code=command.code, fields=fields)
    if isinstance(fields, TopicFields):
        return AskRoute(serial=serial, fields=fields)
    return AskTopics(serial=serial)
