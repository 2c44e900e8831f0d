"""How many messages a client may have in flight, and how that number grows.

Nobody knows what a client can take when it connects: it begins with few messages, and the window is
twice as large each time that all of it was acknowledged quickly.
"""

from __future__ import annotations

from polymq.broker.limits import Limits


class Window:
    """The window of one connection of a session.

    Attributes:
        size_max: how large it may become: what the client or the broker allows.
    """

    __slots__ = ("_allowed", "_limits", "_round_end", "_round_ms", "size_max")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.size_max = self._allowed = limits.inflight_count_max
        self._round_end = 0  # the last tag of the window that is being acknowledged
        self._round_ms = 0  # when that window was full

    def begin(self, size_max: int | None) -> int:
        """A connection begins, and may have up to `size_max` messages in flight (None: as many as
        the broker allows). Returns the window."""
        self._allowed = min(
            size_max or self._limits.inflight_count_max, self._limits.inflight_count_max
        )
        return self._start(self._allowed)

    def send_singly(self, singly: bool) -> int:
        """From now on one message at a time, or again as many as the connection may have. Returns
        the window."""
        return self._start(1 if singly else self._allowed)

    def _start(self, size_max: int) -> int:
        self.size_max = size_max
        self._round_end = 0
        self._round_ms = 0
        return min(self._limits.inflight_count_start, size_max)

    def is_round_over(self, size: int, oldest_tag: int) -> bool:
        """Whether a window that may grow is acknowledged as a whole."""
        return size < self.size_max and oldest_tag > self._round_end

    def widen(self, size: int, now_ms: int) -> int:
        """All that was in flight when the window was full is acknowledged: if that was quick, the
        next window is twice as large. Returns it."""
        was_quick = now_ms - self._round_ms <= self._limits.inflight_round_ms
        self._round_ms = now_ms
        return min(2 * size, self.size_max) if was_quick else size

    def fill(self, last_tag: int) -> None:
        """The next window has been sent: up to this tag."""
        self._round_end = last_tag
