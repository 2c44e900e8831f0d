"""Sessions end whose clients stay away too long: else each of them holds the log for ever.

Theory. How long a session outlives its connection is its own matter (MQTT 5's Session Expiry
Interval), and the operator's: the lower of both counts. A client is away from the end of its
connection on. The op `away` notes since when, some moments later and for all that went meanwhile,
so that a restart does not begin to count anew. A client that comes back is noted as well.

Sessions that are due at about the same time share one timer (`pacing/due_groups.py`): nothing looks
through all sessions.

After a crash the log does not say when a client went that was connected until then. It was there
when the server last lived, so it is away since that time: the op `alive` says it, every
`ALIVE_SECONDS` while a session that expires is connected.

Rules:

* A session with a connection never ends here, and no session ends early.
* Sessions that are over end in slices, so that other work gets its turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from polymq.broker.errors import Refused
from polymq.broker.pacing.due_groups import DueGroups
from polymq.broker.sessions.departures import Departures
from polymq.broker.state.journal import Op, Touched
from polymq.broker.state.kinds import StateKind, single

if TYPE_CHECKING:
    from polymq.broker.core import Core
    from polymq.broker.port.sessions import SessionLink

SLICE_COUNT: Final = 512
"""Sessions that a start looks at in one iteration of the loop: about two milliseconds."""
ENDED_COUNT: Final = 64
"""Sessions that end in one iteration, about 40 us each. What they had is swept away later."""
NOTED_COUNT: Final = 1024
"""Clients of one `away`, 8 KB and two milliseconds. More of them are noted in later iterations."""
AWAY_SECONDS: Final = 1.0
"""How long `away` gathers: so many clients may lose their connections at once."""
ALIVE_SECONDS: Final = 10.0
ALIVE_LATE_MS: Final = 15_000
"""How long after the last `alive` the server lived at most, with some time for the loop and the
disk."""


class Expiring(Protocol):
    """A session, as far as it matters here: see `session.MqttSession`."""

    number: int
    link: SessionLink | None
    asked_seconds: int | None
    away_ms: int
    left_ms: int
    due_ms: int
    due_group: int


S = TypeVar("S", bound=Expiring)


class SessionExpiry(Generic[S]):
    """Ends sessions whose time is over.

    Args:
        seconds_max: how long any client may be away; 0: as long as its session says.
        sessions: persistent sessions by number.
        end: ends one with all that it has. Raises Refused.

    Attributes:
        expired_count: sessions that ended, since the start.
    """

    def __init__(
        self,
        core: Core,
        seconds_max: float,
        sessions: Mapping[int, S],
        end: Callable[[S], object],
    ) -> None:
        assert seconds_max >= 0
        self._core = core
        self._ms_max = round(1000 * seconds_max)
        self._sessions = sessions
        self._end = end
        self._waiting: DueGroups[S] = DueGroups(core.timers, self._are_over)
        self._over: deque[S] = deque()  # whose time is over
        self._ending = False
        self._departures: Departures[S] = Departures(core, sessions)
        self._gone: dict[S, None] = {}  # of which the log does not know that yet
        self._noting = False
        self._connected: dict[S, None] = {}  # those that would expire otherwise
        self._beating = False
        self._alive_ms = 0
        self.expired_count = 0
        core.gatherers.append(self._note)
        core.journal.handle("away", self._apply_away)
        core.journal.handle("alive", self._apply_alive)

    def change(self, seconds_max: float) -> None:
        """Clients may be away for another time at most, those that are away already included."""
        self._ms_max = round(1000 * seconds_max)
        if self._core.failure is None and not self._core.follows:
            self._wait_anew(iter(list(self._sessions.values())))

    def _wait_anew(self, sessions: Iterator[S]) -> None:
        """Let the next sessions wait for what is their time now. One that did not expire before is
        away since now: nothing says since when it is."""
        some = list(islice(sessions, SLICE_COUNT))
        now_ms = self._core.clock_ms()
        for session in some:
            if session.link is not None:
                self._connected.pop(session, None)
                if self.time_ms(session) is not None:
                    self._connected[session] = None
                continue
            self._waiting.remove(session, session.due_group)
            session.due_ms = session.due_group = 0
            time_ms = self.time_ms(session)
            if time_ms is None:
                self._gone.pop(session, None)
            elif time_ms == 0:
                self._over.append(session)
            else:
                if not session.away_ms:
                    self._gone[session] = None
                self._wait(session, session.away_ms or now_ms, time_ms)
        if self._gone and not self._noting:
            self._noting = True
            self._core.scheduler.call_later(AWAY_SECONDS, self._note_later)
        if self._connected and not self._beating:
            self._beat()
        self._end_soon()
        if len(some) == SLICE_COUNT:
            self._core.scheduler.call_soon(lambda: self._wait_anew(sessions))

    # --- what the log has of it ---------------------------------------------------------------

    def _apply_away(self, op: Op) -> Touched:
        """Clients are away since `t`, or there again (0)."""
        touched = []
        for number in op["s"]:
            session = self._sessions.get(number)
            if session is not None:
                session.away_ms = op["t"]
                touched.append(("session", str(number)))
        return touched

    def _apply_alive(self, op: Op) -> Touched:
        self._alive_ms = op["t"]
        return [("alive", "")]

    def state_kinds(self) -> tuple[StateKind, ...]:
        """See `state/kinds.py`."""
        return single("alive", lambda: self._alive_ms, self._load_alive)

    def _load_alive(self, value: int) -> None:
        self._alive_ms = value

    # --- clients come and go ------------------------------------------------------------------

    def time_ms(self, session: S) -> int | None:
        """How long the session outlives its connection; None: for ever."""
        asked = session.asked_seconds
        if asked is None:
            return self._ms_max or None
        return min(1000 * asked, self._ms_max) if self._ms_max else 1000 * asked

    def is_over(self, session: S) -> bool:
        """Whether the time of a session without a connection is over, though it is there yet."""
        return self.time_ms(session) == 0 or 0 < session.due_ms <= self._core.clock_ms()

    def came(self, session: S) -> None:
        """The client is there: its session does not expire."""
        self._wait_no_more(session)
        self._departures.came(session)
        if self.time_ms(session) is not None:
            self._connected[session] = None
            if not self._beating:
                self._beat()
        if session.away_ms:
            try:
                self._core.journal.write({"op": "away", "t": 0, "s": [session.number]})
            except Refused:  # the log takes nothing: a start before it does begins with old news
                session.away_ms = 0

    def went(self, session: S) -> None:
        """The client of a persistent session is gone."""
        self._wait_no_more(session)
        time_ms = self.time_ms(session)
        if time_ms is None:
            self._departures.went(session)
            return
        if time_ms == 0:
            self._end_one(session)
            return
        self._gone[session] = None
        if not self._noting:
            self._noting = True
            self._core.scheduler.call_later(AWAY_SECONDS, self._note_later)
        self._wait(session, self._core.clock_ms(), time_ms)

    def forget(self, session: S) -> None:
        """The session has ended."""
        self._wait_no_more(session)
        self._departures.forget(session)

    def _wait_no_more(self, session: S) -> None:
        """The session does not wait for its time any more: its client is there, or it has ended."""
        self._gone.pop(session, None)
        self._connected.pop(session, None)
        session.due_ms = 0
        self._waiting.remove(session, session.due_group)
        session.due_group = 0

    def _wait(self, session: S, since_ms: int, time_ms: int) -> None:
        """The session is one of those that end at about the same time."""
        session.due_ms = since_ms + time_ms
        session.due_group = self._waiting.add(session, session.due_ms, time_ms)

    # --- in the log ---------------------------------------------------------------------------

    def _note_later(self) -> None:
        core = self._core
        written = self._note_some()
        self._noting = bool(self._gone) and core.failure is None and not core.follows
        if self._noting and written:
            core.scheduler.call_soon(self._note_later)
        elif self._noting:
            core.scheduler.call_later(AWAY_SECONDS, self._note_later)

    def _note(self) -> None:
        """Write who went since the last time. What the log refuses gathers on."""
        while self._note_some():
            pass

    def _note_some(self) -> bool:
        """Write one record of it. Returns whether there was one, and the log took it."""
        some = list(islice(self._gone, NOTED_COUNT))
        if not some or self._core.failure is not None or self._core.follows:
            return False
        if not self._write_away(self._core.clock_ms(), [one.number for one in some]):
            return False
        for one in some:
            del self._gone[one]
        return True

    def _write_away(self, since_ms: int, numbers: list[int]) -> bool:
        try:
            self._core.journal.write({"op": "away", "t": since_ms, "s": numbers})
        except Refused:
            return False
        return True

    def _beat(self) -> None:
        """Say that the server lives, as long as it matters."""
        core = self._core
        self._beating = bool(self._connected) and core.failure is None and not core.follows
        if not self._beating:
            return
        now_ms = core.clock_ms()
        if not 0 <= now_ms - self._alive_ms < 1000 * ALIVE_SECONDS:
            try:
                core.journal.write({"op": "alive", "t": now_ms})
            except Refused:
                pass  # the log takes nothing now: the next one says it
        core.scheduler.call_later(ALIVE_SECONDS, self._beat)

    # --- a start ------------------------------------------------------------------------------

    def start(self) -> None:
        """A start's fold has ended: nobody is connected."""
        lived_ms = self._core.clock_ms()
        if self._alive_ms:
            lived_ms = min(lived_ms, self._alive_ms + ALIVE_LATE_MS)
        self._begin(iter(list(self._sessions.values())), lived_ms)

    def _begin(self, sessions: Iterator[S], lived_ms: int) -> None:
        """Let the next sessions wait for their time, those that are not known to be away since the
        server last lived."""
        some = list(islice(sessions, SLICE_COUNT))
        new: list[S] = []
        for session in some:
            time_ms = self.time_ms(session)
            if session.link is not None or session.due_ms:
                continue
            if time_ms is None:
                if not session.left_ms:
                    self._departures.went(session)
                continue
            if time_ms == 0:
                self._over.append(session)
                continue
            if not session.away_ms:
                new.append(session)
            self._wait(session, session.away_ms or lived_ms, time_ms)
        if new and not self._write_away(lived_ms, [session.number for session in new]):
            self._gone.update(dict.fromkeys(new))
        self._end_soon()
        if len(some) == SLICE_COUNT:
            self._core.scheduler.call_soon(lambda: self._begin(sessions, lived_ms))

    # --- the end ------------------------------------------------------------------------------

    def _are_over(self, sessions: Iterable[S]) -> None:
        """Their time has come."""
        self._over.extend(sessions)
        self._end_soon()

    def _end_soon(self) -> None:
        if self._over and not self._ending:
            self._ending = True
            self._core.scheduler.call_soon(self._end_some)

    def _end_some(self) -> None:
        self._ending = False
        core = self._core
        if core.failure is not None or core.follows:
            return
        for _ in range(min(ENDED_COUNT, len(self._over))):
            session = self._over[0]
            if self._may_end(session):
                try:
                    self._end(session)
                except Refused:  # the log takes nothing now
                    self._ending = True
                    core.scheduler.call_later(core.limits.lazy_flush_seconds, self._end_some)
                    return
                self.expired_count += 1
            self._over.popleft()
        self._end_soon()

    def _may_end(self, session: S) -> bool:
        """Whether it is there and its time is over: its client may have come back meanwhile."""
        is_there = self._sessions.get(session.number) is session
        return is_there and session.link is None and self.is_over(session)

    def _end_one(self, session: S) -> None:
        """A session ends with its connection."""
        try:
            self._end(session)
        except Refused:  # the log takes nothing now
            self._over.append(session)
            self._end_soon()
