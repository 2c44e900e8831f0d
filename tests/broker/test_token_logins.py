"""Logins by a token in the place of a password: whose it is, what counts, and that a connection
ends when its token does."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from polymq.broker.accounts.granting import parse_permissions
from polymq.broker.accounts.permissions import Rule
from polymq.broker.accounts.token_logins import BadToken, KeysMissing, Token, TokenLogins
from polymq.broker.port import LOGIN_EXPIRED, Reason, Refused
from tests.harness.broker import START_MS, Broker
from tests.harness.people import (
    PASSWORD,
    add_user,
    allow,
    deny,
    forbidden,
    login,
    port_of,
    template_of,
)

NOW = START_MS / 1000


class SpyChecker:
    """Tokens are `token:user:seconds`, and good if they end with those of the future.

    Attributes:
        granted: what each token grants.
        is_ready: whether the keys are there.
    """

    granted: tuple[Rule, ...] | None = None
    is_ready = True

    def check_keys(self, token: bytes) -> None:
        if not self.is_ready:
            raise KeysMissing("try again in a moment")

    def is_token(self, password: bytes) -> bool:
        return password.startswith(b"token:")

    def claimed_user(self, token: bytes) -> str:
        return token.split(b":")[1].decode()

    def check(self, token: bytes, now: float) -> Token:
        _, user, seconds = token.decode().split(":")
        if now >= NOW + float(seconds):
            raise BadToken("it has expired")
        return Token(user=user, expires_at=NOW + float(seconds), rules=self.granted)


@pytest.fixture
def checker() -> SpyChecker:
    return SpyChecker()


@pytest.fixture
def house(broker: Broker, checker: SpyChecker) -> Broker:
    """A broker with ann, who may do something, and tokens."""
    engine = broker.engine
    engine.admission._token_logins = TokenLogins(
        users=engine.users,
        logins=engine.logins,
        checker=checker,
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


def test_without_keys_a_token_is_refused_and_not_wrong(house: Broker, checker: SpyChecker) -> None:
    checker.is_ready = False
    for _ in range(10):
        assert reason_of(login(house, "ann", b"token:ann:60")) is Reason.LIMIT
    checker.is_ready = True
    assert login(house, "ann", b"token:ann:60") == ["ann"]
    assert house.engine.logins.failed_count == 0
    assert house.engine.logins.refused_count == 10


def test_a_token_that_grants_needs_no_user(house: Broker, checker: SpyChecker) -> None:
    """Of a name that a user could have. What it grants is that connection's, and no other's."""
    assert reason_of(login(house, "bob", b"token:bob:60")) is Reason.NOT_AUTHENTICATED
    checker.granted = parse_permissions({"all": ["b/#"]}, "bob")
    assert reason_of(login(house, "a b", b"token:a b:60")) is Reason.NOT_AUTHENTICATED
    assert reason_of(login(house, "anonymous", b"token:anonymous:60")) is Reason.NOT_AUTHENTICATED
    (principal,) = login(house, "bob", b"token:bob:60")
    assert isinstance(principal, str)
    template_of(port_of(house, principal), "b", "x")
    forbidden(lambda: template_of(port_of(house, principal), "a", "x"))
    forbidden(lambda: template_of(port_of(house, "bob"), "b", "x"))


def test_stored_rules_count_beside_granted_ones(house: Broker, checker: SpyChecker) -> None:
    checker.granted = parse_permissions({"pub": ["b/#"]}, "ann")
    (principal,) = login(house, "ann", b"token:ann:60")
    assert isinstance(principal, str)
    port = port_of(house, principal)
    for topic in ("a", "b"):
        template_of(port, topic, "x")
    deny(house, "ann", "publish", "b.x")
    forbidden(lambda: template_of(port, "b", "x"))
    house.engine.users.set_disabled("ann", True)
    forbidden(lambda: template_of(port, "b", "y"))


def test_where_others_may_log_in_nobody_is_let_in_without(tmp_path: Path) -> None:
    """Also while there are no users; and what others left has owners whose rights are asked for."""
    broker = Broker(tmp_path / "data")
    broker.engine.users.outsiders = True
    assert reason_of(login(broker, "ann", PASSWORD)) is Reason.NOT_AUTHENTICATED
    assert reason_of(login(broker, None, None)) is Reason.NOT_AUTHENTICATED
    assert not broker.engine.admission.is_open
    forbidden(lambda: template_of(port_of(broker, "ann"), "a", "x"))
    assert not broker.engine.port.owners.exists("ann:0")
    broker.stop()
