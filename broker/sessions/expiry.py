"""Sessions end whose clients stay away too long: else each of them holds the log for ever.

Theory. A client is away from the end of its connection on. A round that looks at all sessions every
now and then notes since when, in one record for all of them (the op `away`), so that a restart does
not begin to count anew. A client that comes back is noted as well. A session that ended its
connection within the last round before a crash begins to count at the start.

Rules:

* A session with a connection never ends here.
* Rounds go on in slices: other work gets its turn after so many sessions that were looked at, and
  after so many that ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from polymq.broker.errors import Refused

if TYPE_CHECKING:
    from polymq.broker.core import Core
    from polymq.broker.sessions.session import MqttSession

SLICE_COUNT: Final = 4096
"""Sessions looked at in one iteration of the loop: about a millisecond."""
ENDED_COUNT: Final = 256
"""Sessions that end in one iteration, about 20 us each. What they had is swept away later."""
ROUND_SECONDS_MAX: Final = 60.0
ROUNDS_PER_EXPIRY: Final = 10
"""So a session lives a tenth longer than it may, at most."""


class SessionExpiry:
    """Ends sessions whose time is over.

    Args:
        seconds: how long a client may be away.
        sessions: all persistent sessions, as they are now.
        end: ends one with all that it has. Raises Refused.

    Attributes:
        expired_count: sessions that ended, since the start.
    """

    def __init__(
        self,
        core: Core,
        seconds: float,
        sessions: Callable[[], list[MqttSession]],
        end: Callable[[MqttSession], object],
    ) -> None:
        assert seconds > 0
        self._core = core
        self._expiry_ms = round(1000 * seconds)
        self._round_seconds = min(ROUND_SECONDS_MAX, seconds / ROUNDS_PER_EXPIRY)
        self._sessions = sessions
        self._end = end
        self._left: list[MqttSession] = []  # of this round
        self._over: list[MqttSession] = []  # whose time is over
        self.expired_count = 0

    def start(self) -> None:
        """Look for the first time: a start's fold has ended."""
        self._core.scheduler.call_soon(self._begin)

    def _begin(self) -> None:
        self._left = self._sessions()
        self._step()

    def _step(self) -> None:
        core = self._core
        if core.failure is not None or core.follows:
            return
        try:
            self._look()
            self._end_some()
        except Refused:  # the log takes nothing: the next round tries again
            self._left, self._over = [], []
        if self._left or self._over:
            core.scheduler.call_soon(self._step)
        else:
            core.scheduler.call_later(self._round_seconds, self._begin)

    def _look(self) -> None:
        now_ms = self._core.clock_ms()
        some, self._left = self._left[:SLICE_COUNT], self._left[SLICE_COUNT:]
        away = [session for session in some if session.link is None]
        self._over += [s for s in away if s.away_ms and now_ms - s.away_ms >= self._expiry_ms]
        new = [session.number for session in away if not session.away_ms]
        if new:
            self._core.journal.write({"op": "away", "t": now_ms, "s": new})

    def _end_some(self) -> None:
        ended = 0
        while self._over and ended < ENDED_COUNT:
            session = self._over.pop()
            if session.link is None and session.away_ms:
                ended += 1
                self._end(session)
                self.expired_count += 1
