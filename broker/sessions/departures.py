"""Since when clients are away whose sessions do not expire.

This is for operators, who look for devices that nobody has seen for months. Which sessions are due
to end is decided in `expiry.py`.

The op `left` notes it for all clients that went in one second, and later with 0 for those that came
back, so no client waits for it. A client that was connected until a crash is away since the start
after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from polymq.broker.errors import Refused
from polymq.broker.state.journal import Op, Touched

if TYPE_CHECKING:
    from polymq.broker.core import Core

NOTED_COUNT: Final = 1024
"""Clients of one op. More of them are noted in later iterations of the loop."""
GATHERED_SECONDS: Final = 1.0
"""How long an op gathers: so many clients may lose their connections at once."""


class Leaving(Protocol):
    """A session, as far as it matters here: see `session.MqttSession`."""

    number: int
    left_ms: int


S = TypeVar("S", bound=Leaving)


class Departures(Generic[S]):
    """Notes who went and who came back.

    Args:
        sessions: persistent sessions by number.
    """

    def __init__(self, core: Core, sessions: Mapping[int, S]) -> None:
        self._core = core
        self._sessions = sessions
        self._gone: dict[S, None] = {}  # of which the log does not know that yet
        self._back: dict[S, None] = {}  # that the log has as away
        self._noting = False
        core.gatherers.append(self._note)
        core.journal.handle("left", self._apply)

    def _apply(self, op: Op) -> Touched:
        """Clients are away since `t`, or there again (0)."""
        touched = []
        for number in op["s"]:
            session = self._sessions.get(number)
            if session is not None:
                session.left_ms = op["t"]
                touched.append(("session", str(number)))
        return touched

    def went(self, session: S) -> None:
        """Its client is gone, and the session does not expire."""
        self._back.pop(session, None)
        self._gone[session] = None
        self._note_soon()

    def came(self, session: S) -> None:
        """Its client is there."""
        self._gone.pop(session, None)
        if session.left_ms:
            session.left_ms = 0
            self._back[session] = None
            self._note_soon()

    def forget(self, session: S) -> None:
        """The session has ended."""
        self._gone.pop(session, None)
        self._back.pop(session, None)

    def _note_soon(self) -> None:
        if not self._noting:
            self._noting = True
            self._core.scheduler.call_later(GATHERED_SECONDS, self._note_later)

    def _note_later(self) -> None:
        core = self._core
        written = self._note_some()
        gathered = bool(self._gone or self._back)
        self._noting = gathered and core.failure is None and not core.follows
        if self._noting and written:
            core.scheduler.call_soon(self._note_later)
        elif self._noting:
            core.scheduler.call_later(GATHERED_SECONDS, self._note_later)

    def _note(self) -> None:
        """Write all that has gathered. What the log refuses gathers on."""
        while self._note_some():
            pass

    def _note_some(self) -> bool:
        """Write one op. Returns whether there was something, and the log took it."""
        gathered, since_ms = (self._gone, self._core.clock_ms()) if self._gone else (self._back, 0)
        some = list(islice(gathered, NOTED_COUNT))
        if not some or self._core.failure is not None or self._core.follows:
            return False
        numbers = [session.number for session in some]
        try:
            self._core.journal.write({"op": "left", "t": since_ms, "s": numbers})
        except Refused:
            return False
        for session in some:
            del gathered[session]
        return True
