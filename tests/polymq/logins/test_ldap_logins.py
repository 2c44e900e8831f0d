"""Logins that an LDAP directory decides: what is asked of the library, what its answers mean, and
which settings are right. `interop_tests/test_ldap_logins.py` has a real directory."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from polymq.broker.accounts.login_answers import Question, Verdict
from polymq.broker.accounts.permissions import Action
from polymq.broker.accounts.service_answers import Result
from polymq.broker.port import Origin
from polymq.errors import Failure
from polymq.login_settings import LoginServiceSettings
from polymq.logins.ldap_logins import CannotDecide, LdapLogins

pytest.importorskip("ldap3", reason="polymq[ldap] is not installed")

URL = "ldaps://ldap.example.com"
BY_NAME = {"ldap_user_dn": "uid={user},ou=people"}
BY_SEARCH = {"ldap_search_base": "dc=example"}


class Connection:
    """What the library makes of a connection, with the answers of a test."""

    def __init__(self, answers: dict[str, int], entries: list[str]) -> None:
        self._answers = answers
        self._entries = entries
        self.result: dict[str, Any] = {}
        self.response: list[dict[str, str]] = []
        self.bound: list[tuple[str, str]] = []
        self.filters: list[str] = []
        self.name = ""
        self.gone = 0

    def bind(self, *, read_server_info: bool) -> bool:
        assert not read_server_info
        code = self._answers.get(self.name, 0)
        self.result = {"result": code, "description": "as a test says"}
        return code == 0

    def search(self, _base: str, pattern: str, **_: Any) -> None:
        self.filters.append(pattern)
        self.result = {"result": self._answers.get("search", 0), "description": "found"}
        self.response = [{"type": "searchResEntry", "dn": name} for name in self._entries]

    def unbind(self) -> None:
        self.gone += 1


def logins(
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    answers: dict[str, int] | None = None,
    entries: list[str] | None = None,
) -> tuple[LdapLogins, Connection]:
    """Logins, and the connection that they get."""
    made = LdapLogins(LoginServiceSettings(ldap_url=URL, **settings))
    connection = Connection(answers or {}, entries or [])

    def connect(name: str, password: str) -> Connection:
        connection.name = name
        connection.bound.append((name, password))
        return connection

    monkeypatch.setattr(made, "_connection", connect)
    return made, connection


def question(user: str = "ann", password: str = "secret") -> Question:
    return Question(user=user, password=password, address="127.0.0.1", origin=Origin())


def test_an_empty_password_is_wrong_without_a_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bind with none succeeds, and proves nothing."""
    made, connection = logins(monkeypatch, BY_NAME)
    assert made.decide(question(password="")).result is Result.DENY
    assert connection.bound == []


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        (BY_NAME, "uid=a\\,b\\=c\\+d,ou=people"),
        ({"ldap_user_dn": "{user}@example.com"}, "a,b=c+d@example.com"),
    ],
)
def test_a_name_is_a_value_of_the_pattern(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], name: str
) -> None:
    made, connection = logins(monkeypatch, settings)
    assert made.decide(question("a,b=c+d")).result is Result.ALLOW
    assert connection.bound == [(name, "secret")]
    assert connection.gone == 1


def test_a_name_is_a_value_of_the_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    made, connection = logins(monkeypatch, BY_SEARCH, entries=["uid=x"])
    assert made.decide(question("*)(uid=\\")).result is Result.ALLOW
    assert connection.filters == ["(uid=\\2a\\29\\28uid=\\5c)"]
    assert connection.bound == [("", ""), ("uid=x", "secret")]
    assert connection.gone == 2


def test_whom_the_search_does_not_find_is_left_to_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, _ = logins(monkeypatch, BY_SEARCH)
    assert made.decide(question()).result is Result.IGNORE


@pytest.mark.parametrize("code", [32, 34, 48, 49])
def test_what_denies(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    made, _ = logins(monkeypatch, BY_NAME, {"uid=ann,ou=people": code})
    assert made.decide(question()) == Verdict(result=Result.DENY)


@pytest.mark.parametrize(
    ("settings", "answers", "entries", "text"),
    [
        (BY_NAME, {"uid=ann,ou=people": 51}, [], "does not let users bind"),
        (BY_SEARCH, {"": 49}, ["x"], "does not take ldap_bind_dn"),
        (BY_SEARCH, {"search": 50}, [], "does not search"),
        (BY_SEARCH, {"search": 4}, ["x", "y"], "finds several entries"),
    ],
)
def test_what_decides_nothing(
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    answers: dict[str, int],
    entries: list[str],
    text: str,
) -> None:
    """A directory that is busy, or that is asked in a wrong way, is no wrong password."""
    made, _ = logins(monkeypatch, settings, answers, entries)
    with pytest.raises(CannotDecide, match=text):
        made.decide(question())


def test_topics_of_the_settings_are_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    granted = {"ldap_publish": ["a/${username}"], "ldap_subscribe": ["b/#"]}
    made, _ = logins(monkeypatch, {**BY_NAME, **granted})
    actions = {rule.action for rule in made.decide(question()).rules}
    assert {Action.PUBLISH, Action.SUBSCRIBE} <= actions
    with pytest.raises(Failure, match="ldap_publish or ldap_subscribe is wrong"):
        logins(monkeypatch, {**BY_NAME, "ldap_publish": ["a/#/b"]})


def asked(made: LdapLogins, ends: Callable[[], None] = lambda: None) -> Verdict | str:
    """What is answered on a loop."""

    async def scenario() -> Verdict | str:
        made.start()
        answer: asyncio.Future[Verdict | str] = asyncio.get_running_loop().create_future()
        made.ask(question(), answer.set_result)
        try:
            return await answer
        finally:
            ends()
            await made.stop()

    return asyncio.run(scenario())


def test_a_directory_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer comes in time; the thread gives up by itself."""
    made, connection = logins(monkeypatch, {**BY_NAME, "timeout_seconds": 0.01})
    goes_on = threading.Event()
    monkeypatch.setattr(connection, "bind", lambda **_: goes_on.wait())
    answer = asked(made, goes_on.set)
    assert answer == "the directory has not answered within 0.01 seconds"
    assert made.failures == {"timeout": 1, "error": 0}


def test_a_library_that_fails_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    made, connection = logins(monkeypatch, BY_NAME)

    def fail(**_: Any) -> bool:
        raise ValueError

    monkeypatch.setattr(connection, "bind", fail)
    assert asked(made) == "the directory failed: ValueError"
    assert made.failures == {"timeout": 0, "error": 1}


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"ldap_url": ""}, "ldap_url has to be set, too"),
        ({"ldap_url": "ldap://ldap.example.com"}, "must begin with ldaps://"),
        ({"ldap_url": "https://ldap.example.com"}, "must be a URL, such as ldaps://"),
        ({"ldap_url": "ldaps://u@ldap.example.com"}, "a host and a port only"),
        ({"ldap_url": "ldaps://ldap.example.com/dc=x"}, "a host and a port only"),
        ({"ldap_start_tls": True}, "has TLS already"),
        ({"url": "https://x.example.com"}, "set only one of"),
        ({"ldap_search_base": "dc=x"}, "set one of ldap_user_dn and ldap_search_base"),
        ({"ldap_user_dn": "uid=x"}, "has to contain {user}"),
        ({"ldap_bind_dn": "cn=x"}, "belong together"),
        ({"header_file": "/x"}, "url has to be set, too"),
    ],
)
def test_wrong_settings(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        LoginServiceSettings(**{"ldap_url": URL, **BY_NAME, **settings})


def test_plain_connections_to_hosts_that_are_named() -> None:
    for more in ({"plain_hosts": ["ldap.example.com"]}, {"ldap_start_tls": True}):
        settings: dict[str, Any] = {"ldap_url": "ldap://ldap.example.com", **BY_NAME, **more}
        assert LoginServiceSettings(**settings).enabled


def test_files_are_looked_at_at_the_start(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    secret.chmod(0o644)
    search = {**BY_SEARCH, "ldap_bind_dn": "cn=x", "ldap_bind_password_file": str(secret)}
    for settings, text in (
        (search, "can be read by others"),
        ({**BY_NAME, "ca": str(tmp_path / "none")}, "login_service.ca"),
    ):
        found: dict[str, Any] = {"ldap_url": URL, **settings}
        with pytest.raises(Failure, match=text):
            LdapLogins(LoginServiceSettings(**found))
