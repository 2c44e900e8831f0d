"""Logins by a token in the place of a password: whose it is, what counts, and that a connection
ends when its token does."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from polymq.broker.accounts.token_logins import BadToken, Token, TokenLogins
from polymq.broker.port import LOGIN_EXPIRED, Reason, Refused
from tests.harness.broker import START_MS, Broker
from tests.harness.people import PASSWORD, add_user, allow, login

NOW = START_MS / 1000


class SpyChecker:
    """Tokens are `token:user:seconds`, and good if they end with those of the future."""

    def is_token(self, password: bytes) -> bool:
        return password.startswith(b"token:")

    def claimed_user(self, token: bytes) -> str:
        return token.split(b":")[1].decode()

    def check(self, token: bytes, now: float) -> Token:
        _, user, seconds = token.decode().split(":")
        if now >= NOW + float(seconds):
            raise BadToken("it has expired")
        return Token(user=user, expires_at=NOW + float(seconds))


@pytest.fixture
def house(broker: Broker) -> Broker:
    """A broker with ann, who may do something, and tokens."""
    engine = broker.engine
    engine.admission._token_logins = TokenLogins(
        users=engine.users,
        logins=engine.logins,
        checker=SpyChecker(),
        now=lambda: broker.loop.clock_ms() / 1000,
    )
    add_user(broker, "ann")
    allow(broker, "ann", "publish,create,subscribe", "a.#")
    return broker


def reason_of(answers: list[str | Refused]) -> Reason:
    assert len(answers) == 1
    assert isinstance(answers[0], Refused)
    return answers[0].reason


def test_a_token_says_who_it_is(house: Broker) -> None:
    for user in ("ann", "", None):
        assert login(house, user, b"token:ann:60") == ["ann"]
    assert login(house, "ann", PASSWORD) == ["ann"]
    assert house.engine.logins.hashed_count == 1


@pytest.mark.parametrize(
    ("user", "token"),
    [
        ("bob", b"token:ann:60"),
        ("ann", b"token:bob:60"),
        ("bob", b"token:bob:60"),  # there is no such user
        ("ann", b"token:ann:0"),
        (None, b"token::60"),
    ],
)
def test_a_token_that_is_not_this_users(house: Broker, user: str | None, token: bytes) -> None:
    assert reason_of(login(house, user, token)) is Reason.NOT_AUTHENTICATED
    assert house.engine.logins.failed_count == 1


def test_what_is_no_token_and_has_no_user_is_nobody(house: Broker) -> None:
    """Also where anonymous clients have rights: it meant to log in."""
    allow(house, "role:anonymous", "subscribe", "a.#")
    assert login(house, None, None) == ["anonymous"]
    assert reason_of(login(house, None, b"eyJ.x.y")) is Reason.NOT_AUTHENTICATED


def test_a_disabled_user_has_no_token_that_is_good(house: Broker) -> None:
    house.engine.users.set_disabled("ann", True)
    assert reason_of(login(house, "ann", b"token:ann:60")) is Reason.NOT_AUTHENTICATED


def test_wrong_tokens_are_slowed_like_wrong_passwords(house: Broker) -> None:
    for _ in range(5):
        login(house, "ann", b"token:bob:60")
    assert login(house, "ann", b"token:ann:60") == []
    assert reason_of(login(house, "ann", PASSWORD)) is Reason.LIMIT


@pytest.mark.parametrize("client_id", ["c1", None])
def test_a_connection_ends_when_its_token_does(house: Broker, client_id: str | None) -> None:
    """And no other: not one by password, nor one that is gone."""
    ends: list[tuple[str, str]] = []

    def note(name: str, why: str) -> None:
        ends.append((name, why))

    leaves = {}
    for name, secret in (
        ("short", b"token:ann:30"),
        ("gone", b"token:ann:30"),
        ("long", b"token:ann:90"),
        ("password", PASSWORD),
    ):
        (principal,) = login(house, "ann", secret)
        assert isinstance(principal, str)
        port = house.port.admission.for_principal(principal, client_id)
        leaves[name] = port.principal.enter(partial(note, name))
    leaves.pop("gone")()
    house.step(29)
    assert ends == []
    house.step(2)
    assert ends == [("short", LOGIN_EXPIRED)]
    house.step(60)
    assert ends == [("short", LOGIN_EXPIRED), ("long", LOGIN_EXPIRED)]
    for leave in leaves.values():
        leave()
    assert len(house.engine.admission._expiries) == 0
    assert house.engine.admission._inside == {}


def test_without_users_tokens_are_not_looked_at(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data")
    assert login(broker, "ann", b"token:bob:0") == ["ann"]
    broker.stop()
