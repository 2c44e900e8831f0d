"""Who is logged in at the console: bounded, and not for ever."""

from __future__ import annotations

from polymq.console.api import Login
from polymq.console.logins import IDLE_SECONDS_MAX, LOGINS_MAX, Logins


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_login_ends_when_it_is_not_used() -> None:
    clock = Clock()
    logins = Logins(clock)
    logins.put("a", Login("ann"))
    clock.now = IDLE_SECONDS_MAX
    assert logins.get("a") == Login("ann")
    clock.now += IDLE_SECONDS_MAX
    assert logins.get("a") is not None, "it was used meanwhile"
    clock.now += IDLE_SECONDS_MAX + 1
    assert logins.get("a") is None
    clock.now = 0.0
    assert logins.get("a") is None, "it is forgotten"


def test_a_login_that_was_dropped_is_gone() -> None:
    logins = Logins(Clock())
    logins.put("a", Login("ann"))
    logins.drop("a")
    logins.drop("a")
    assert logins.get("a") is None


def test_the_one_that_was_used_longest_ago_makes_room() -> None:
    logins = Logins(Clock())
    for number in range(LOGINS_MAX):
        logins.put(str(number), Login(str(number)))
    logins.get("0")
    logins.put("new", Login("new"))
    assert logins.get("0") is not None
    assert logins.get("1") is None


def test_what_a_browser_is_shown_in_is_bounded_too() -> None:
    logins = Logins(Clock())
    for number in range(LOGINS_MAX + 1):
        logins.set_dark(str(number), wanted=True)
    assert logins.dark("0") is None
    assert logins.dark("1") is True


def test_a_password_is_not_printed() -> None:
    assert "secret" not in repr(Login("ann", "secret"))
