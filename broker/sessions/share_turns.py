"""Which member of a shared subscription gets the next messages. Pure.

Rules:

* A member without room is passed over, and is not asked again before it says that it has room
  (`Turns.wake`). So members that do not read cost nothing.
* What is ready is dealt out in stretches: to each member an equal part of it, or all that it takes
  (`sticky`). By hash, a run goes to one member as a whole: all its messages are from one publisher,
  or were published to one topic.
* By hash, members are in the order in which they came. A member without room is stood in for by
  the next one that has some, so a key moves while its member is full, and when members come or go.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Final, Generic, Protocol, TypeVar
from zlib import crc32

from polymq.broker.messages.kernels.record_run import RecordRun
from polymq.broker.messages.runs import RunMeta
from polymq.broker.port.sessions import PUBLISHER_PROPERTY
from polymq.broker.sessions.settings import HASH_CLIENT, HASH_TOPIC, STICKY, ShareStrategy

COUNTED_MAX: Final = 64
"""Members that are asked for their room before what is ready is dealt out by hash."""
_U32: Final = struct.Struct(">I")


class Taker(Protocol):
    """What takes messages: see `port.Consumer`."""

    def credit(self) -> int:
        """How many messages it takes now."""


class Registered(Protocol):
    """A member's place in its group: see `queue.Registration`."""

    @property
    def consumer(self) -> Taker:
        """Who has it."""


P = TypeVar("P", bound=Registered)


class Turns(Generic[P]):
    """The members that are connected and may have room, in the order of their turns.

    Attributes:
        by_hash: the key of a run, where that chooses the member; else None.
    """

    __slots__ = ("_awake", "_is_sticky", "_left", "_rest", "by_hash")

    def __init__(self, strategy: ShareStrategy) -> None:
        self._awake: dict[P, None] = {}
        self._is_sticky = strategy == STICKY
        self._rest = self._left = 0  # of what is dealt out now, and for how many members
        self.by_hash: Callable[[RunMeta], int] | None = _KEYS.get(strategy)

    def wake(self, registration: P) -> None:
        """It may have room: it comes behind the others."""
        if registration not in self._awake:
            self._awake[registration] = None

    def remove(self, registration: P) -> None:
        """Its member is gone."""
        self._awake.pop(registration, None)

    def next(self, ready: int) -> tuple[P, int] | None:
        """Whose turn it is, and how many of the messages that are ready it gets."""
        awake = self._awake
        while awake:
            registration = next(iter(awake))
            credit = registration.consumer.credit()
            if credit <= 0:
                del awake[registration]
                continue
            if self._is_sticky:
                return registration, min(credit, ready)
            if ready != self._rest or self._left <= 0:
                self._left = len(awake)
            count = min(credit, max(1, ready // self._left))
            self._left -= 1
            self._rest = ready - count
            del awake[registration]
            awake[registration] = None
            return registration, count
        return None

    def room(self) -> int:
        """How many messages the members take now: of some of them, if there are many."""
        room = count = 0
        for registration in list(self._awake):
            credit = registration.consumer.credit()
            if credit <= 0:
                del self._awake[registration]
                continue
            room += credit
            count += 1
            if count == COUNTED_MAX:
                break
        return room

    def chosen(self, registrations: Sequence[P], key: int, count: int) -> tuple[P, int] | None:
        """By hash: who gets the next of `count` messages with this key, and how many."""
        awake = self._awake
        start = key % len(registrations) if registrations else 0
        for at in range(start, start + len(registrations)):
            registration = registrations[at % len(registrations)]
            if registration in awake:
                credit = registration.consumer.credit()
                if credit > 0:
                    return registration, min(credit, count)
                del awake[registration]
        return None


def _topic_key(meta: RunMeta) -> int:
    tag = "" if meta.tag is None else f".{meta.tag}"
    return crc32(f"{meta.topic}{tag}".encode("utf-8", "surrogatepass"))


def _client_key(meta: RunMeta) -> int:
    """Messages of other protocols have no client id: those go by their topic."""
    client_id = meta.properties.get(PUBLISHER_PROPERTY)
    return _topic_key(meta) if client_id is None else crc32(client_id.encode())


_KEYS: Final = {HASH_CLIENT: _client_key, HASH_TOPIC: _topic_key}


def cut(run: RecordRun, count: int) -> tuple[RecordRun, RecordRun]:
    """The first `count` messages of a run that has more, and the others."""
    assert 0 < count < run.count
    at = run.start
    for _ in range(count):
        at += _U32.unpack_from(run.memory, at)[0]
    return (
        RecordRun(run.meta, run.memory, run.start, at, count),
        RecordRun(run.meta, run.memory, at, run.end, run.count - count),
    )
