"""Who is logged in at the console: in memory only, by the browser's cookie."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from polymq.console.api import Login

LOGINS_MAX: Final = 1_000
"""The one that was used longest ago goes first."""
IDLE_SECONDS_MAX: Final = 12 * 3600.0
"""After so long without a request a login ends."""


class Logins:
    """The logins by the identifier of the browser.

    Args:
        now: a monotonic clock, in seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._logins: OrderedDict[str, tuple[Login, float]] = OrderedDict()
        self._dark: OrderedDict[str, bool] = OrderedDict()

    def put(self, browser: str, login: Login) -> None:
        """Somebody logged in."""
        self._logins[browser] = (login, self._now())
        self._logins.move_to_end(browser)
        while len(self._logins) > LOGINS_MAX:
            self._logins.popitem(last=False)

    def get(self, browser: str) -> Login | None:
        """The login of a browser; it is used."""
        login, used = self._logins.get(browser, (None, 0.0))
        if login is None:
            return None
        if self._now() - used > IDLE_SECONDS_MAX:
            del self._logins[browser]
            return None
        self.put(browser, login)
        return login

    def dark(self, browser: str) -> bool | None:
        """Whether the browser is shown dark screens; None: as its system says."""
        return self._dark.get(browser)

    def set_dark(self, browser: str, *, wanted: bool) -> None:
        """Somebody chose."""
        self._dark[browser] = wanted
        self._dark.move_to_end(browser)
        while len(self._dark) > LOGINS_MAX:
            self._dark.popitem(last=False)

    def drop(self, browser: str) -> None:
        """Somebody logged out, or the broker no longer takes the password."""
        self._logins.pop(browser, None)
