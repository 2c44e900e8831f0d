"""Logins that an LDAP directory decides, with OpenLDAP's server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pika
import pytest

from interop_tests.conftest import Server, StartServer
from interop_tests.ldap_directory import (
    BASE,
    PASSWORD,
    SEARCHER,
    SEARCHER_PASSWORD,
    SLAPD,
    Directory,
)
from interop_tests.people import (
    BAD_CREDENTIALS,
    COMMAND_SECONDS,
    REFUSED_FILTER,
    Admin,
    MqttClient,
    amqp,
    basic,
    http_publish,
)
from interop_tests.test_tls import FILES

pytest.importorskip("ldap3", reason="polymq[ldap] is not installed")
pytestmark = [
    pytest.mark.skipif(SLAPD is None, reason="slapd is not installed (apt install slapd)"),
    pytest.mark.slow,
]

BUSY = 136
"""As paho says CONNACK 3: nobody could say."""
BY_NAME = {"login_service.ldap_user_dn": f"uid={{user}},ou=people,{BASE}"}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Directory]:
    people = {"mia": "device", "max": "device", "eve": "guest", "CN=ann,O=x": "device"}
    made = Directory(tmp_path_factory.mktemp("slapd"), people)
    yield made
    made.stop()


@pytest.fixture
def by_search(directory: Directory, tmp_path: Path) -> dict[str, object]:
    """The settings of a search for devices, as somebody who may search."""
    secret = tmp_path / "searcher"
    secret.touch(mode=0o600)
    secret.write_text(SEARCHER_PASSWORD + "\n")
    return {
        "login_service.ldap_search_base": BASE,
        "login_service.ldap_search_filter": "(&(uid={user})(description=device))",
        "login_service.ldap_bind_dn": SEARCHER,
        "login_service.ldap_bind_password_file": secret,
    }


def start(start_server: StartServer, url: str, settings: dict[str, object]) -> Server:
    return start_server(
        **{
            "login_service.ldap_url": url,
            "login_service.ldap_publish": '["a/#"]',
            "login_service.ldap_subscribe": '["a/${username}"]',
            "login_service.cache_seconds": 0,
            "login_service.denied_cache_seconds": 0,
            **settings,
        }
    )


def code(server: Server, user: str, password: str = PASSWORD) -> int:
    """Of a login over MQTT."""
    client = MqttClient(server, user, password)
    client.close()
    return client.code


@pytest.mark.parametrize("way", ["name", "search"])
def test_who_can_bind_comes_in(
    start_server: StartServer, directory: Directory, by_search: dict[str, object], way: str
) -> None:
    """In all protocols, with the topics of the settings. A wrong password is that. So is an empty
    one, though a bind with it succeeds."""
    settings = BY_NAME if way == "name" else by_search
    server = start(start_server, f"ldap://127.0.0.1:{directory.port}", dict(settings))
    client = MqttClient(server, "mia", PASSWORD)
    assert client.code == 0
    assert client.subscribe("a/mia") == 1
    assert client.subscribe("a/max") == REFUSED_FILTER
    assert client.publish("a/mia", b"1")
    assert client.next() == ("a/mia", b"1")
    assert not client.publish("b/x", b"2")
    client.close()
    assert code(server, "mia", "wrong") == BAD_CREDENTIALS
    assert code(server, "mia", "") == BAD_CREDENTIALS
    amqp(server, "mia", PASSWORD).close()
    with pytest.raises(pika.exceptions.ProbableAuthenticationError, match="403"):
        amqp(server, "mia", "wrong")
    assert http_publish(server, "a", "x", b"1", basic("mia", PASSWORD)) < 300
    assert http_publish(server, "a", "x", b"1", basic("mia", "wrong")) == 401


def test_a_name_is_only_a_name(
    start_server: StartServer, directory: Directory, by_search: dict[str, object]
) -> None:
    """What would be a part of the filter finds nobody, and characters of names of entries are no
    parts of names either."""
    server = start(start_server, f"ldap://127.0.0.1:{directory.port}", by_search)
    for name in ("m*", "mia)(uid=*", "*"):
        assert code(server, name) == BAD_CREDENTIALS
    assert code(server, "CN=ann,O=x") == 0
    server = start(start_server, f"ldap://127.0.0.1:{directory.port}", dict(BY_NAME))
    assert code(server, "mia,ou=people") == BAD_CREDENTIALS
    assert code(server, "CN=ann,O=x") == 0


def test_users_of_the_server_are_beside_those_of_the_directory(
    start_server: StartServer, directory: Directory, by_search: dict[str, object]
) -> None:
    """Whom the search does not find, the server may know; whom it finds, the directory decides
    about."""
    server = start(start_server, f"ldap://127.0.0.1:{directory.port}", by_search)
    admin = Admin(server)
    for name in ("eve", "own", "max"):
        admin.add(name, password="stored-9351")
    assert code(server, "own", "stored-9351") == 0
    assert code(server, "eve", PASSWORD) == BAD_CREDENTIALS  # no device
    assert code(server, "eve", "stored-9351") == 0
    assert code(server, "max", "stored-9351") == BAD_CREDENTIALS
    assert code(server, "max", PASSWORD) == 0


@pytest.mark.parametrize("way", ["ldaps", "start_tls"])
def test_the_certificate_counts(start_server: StartServer, directory: Directory, way: str) -> None:
    """With its authority a user comes in; without, nobody can say who it is."""
    url, settings = f"ldaps://127.0.0.1:{directory.tls_port}", dict[str, object](BY_NAME)
    if way == "start_tls":
        url = f"ldap://127.0.0.1:{directory.port}"
        settings["login_service.ldap_start_tls"] = "true"
    trusting = start(start_server, url, {**settings, "login_service.ca": FILES / "ca.pem"})
    assert code(trusting, "mia") == 0
    assert code(trusting, "mia", "wrong") == BAD_CREDENTIALS
    doubting = start(start_server, url, settings)
    assert code(doubting, "mia") == BUSY


def test_a_directory_that_is_away_decides_nothing(
    start_server: StartServer, directory: Directory, by_search: dict[str, object]
) -> None:
    """The login is refused for the moment, and not as wrong; when it is back, users come in."""
    server = start(start_server, f"ldap://127.0.0.1:{directory.port}", by_search)
    assert code(server, "mia") == 0
    directory.stop()
    try:
        assert code(server, "mia") == BUSY
    finally:
        directory.start()
    assert code(server, "mia") == 0
    secret = by_search["login_service.ldap_bind_password_file"]
    Path(str(secret)).write_text("wrong")
    confused = start(start_server, f"ldap://127.0.0.1:{directory.port}", by_search)
    assert code(confused, "mia") == BUSY
    assert any("does not take ldap_bind_dn" in line for line in confused.log_lines())


def test_a_wrong_setting_is_one_line(start_server: StartServer, tmp_path: Path) -> None:
    missing = {"login_service.ca": tmp_path / "none.pem"}
    cases: list[tuple[str, dict[str, object], str]] = [
        ("ldap://ldap.example.com", dict(BY_NAME), "must begin with ldaps://"),
        ("ldaps://127.0.0.1", {}, "set one of ldap_user_dn and ldap_search_base"),
        ("ldaps://127.0.0.1", {**BY_NAME, **missing}, "none.pem"),
    ]
    for url, settings, text in cases:
        options = {"login_service.ldap_url": url, **settings}
        server = start_server(ready=False, **options)
        assert server.process.wait(COMMAND_SECONDS) in (2, 78)
        (line,) = server.log_lines()
        assert text in line
