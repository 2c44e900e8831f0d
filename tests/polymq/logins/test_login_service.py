"""The settings of a login service, and what is said of those that cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from polymq.doctor import Status, check_logins
from polymq.errors import ExitCode, Failure
from polymq.login_settings import LoginServiceSettings
from polymq.logins.login_service import HttpLoginService
from polymq.settings import Settings, load_settings

URL = "https://accounts.example.com/login"


@pytest.fixture
def header(tmp_path: Path) -> Path:
    file = tmp_path / "header"
    file.write_text("Authorization: Bearer 0123456789abcdef\n")
    file.chmod(0o600)
    return file


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"url": "accounts.example.com"}, "must be a URL"),
        ({"url": "http://accounts.example.com/"}, "plain_hosts does not list"),
        ({"url": "http://127.0.0.1.example.com/"}, "plain_hosts does not list"),
        ({"url": "https://me@accounts.example.com/"}, "without user"),
        ({"url": "https://accounts.example.com:99999/"}, "url"),
        ({"ca": "ca.pem"}, "url has to be set"),
        ({"url": URL, "timeout_seconds": 0}, "greater than 0"),
        ({"url": URL, "calls_max": 0}, "greater than or equal to 1"),
        ({"url": URL, "cache": 1}, "there is no setting"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(Failure, match=text) as caught:
        load_settings(flags={"login_service": settings})
    assert caught.value.code is ExitCode.USAGE
    assert "login_service" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("http://localhost:8000/x", []),
        ("http://127.0.0.2/", []),
        ("http://[::1]:8000/", []),
        ("http://accounts/", ["accounts"]),
        (URL, []),
    ],
)
def test_where_a_service_may_be(url: str, hosts: list[str]) -> None:
    LoginServiceSettings(url=url, plain_hosts=hosts)


def test_the_header(header: Path) -> None:
    settings = LoginServiceSettings(url=URL, header_file=str(header))
    assert HttpLoginService(settings)._headers == {"Authorization": "Bearer 0123456789abcdef"}


@pytest.mark.parametrize(
    "text",
    [
        "Authorization Bearer 0123456789",
        "Two words: 0123456789abcdef",
        "Authorization:                ",
        "Host: accounts.example.com",
        "A: 0123456789\r\nB: 0123456789",
        "A: 0123456789\xff0123456789",
    ],
)
def test_headers_that_are_none(header: Path, text: str) -> None:
    header.write_text(text, encoding="latin-1")
    settings = Settings(login_service=LoginServiceSettings(url=URL, header_file=str(header)))
    (found,) = check_logins(settings)
    assert found.status is Status.BAD
    assert "login_service.header_file" in found.text or "the secret in" in found.text


def test_the_doctor_looks_at_logins(header: Path) -> None:
    assert list(check_logins(Settings())) == []
    settings = LoginServiceSettings(url=URL, header_file=str(header))
    (found,) = check_logins(Settings(login_service=settings))
    assert (found.status, found.text) == (Status.GOOD, "[login_service] can be used")
    header.chmod(0o644)
    (found,) = check_logins(Settings(login_service=settings))
    assert found.status is Status.BAD
    assert "chmod 600" in found.text
