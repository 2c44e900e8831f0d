"""Mosquitto's files as users and rules: no rule allows more than its line, and what no rule can say
is listed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from polymq.broker.accounts import passwords
from polymq.mosquitto.files import Imported, ImportedRule, Problem, read_acl, read_passwords
from tests.broker.conftest import broker
from tests.harness.broker import Broker
from tests.harness.people import login
from tests.polymq.commands.test_users import Cli, with_server

__all__ = ["broker"]

PBKDF2 = (
    "$7$101$py5PaRrOpNlVd0J8$s0epOtIjFuQi7M5nji4iVAIvNlDvlNvKW01AVTzxpMEUiL6dT5wWhgfaCJiGKeUyAzrQS2"
    "UetqUH0E/x0PR5tg=="
)
"""Of `secret`, by mosquitto_passwd 2.0.11."""
SHA512 = (
    "$6$ynilX5a3u2aBiL5o$TEq88Jqqnsl4ozFdaXRHux0FhT+fsPbAnY4ieYYYRBEBcyai05Y3z3JAW8WIIaOAioh5REsQMY"
    "hOFsPl6N4NOQ=="
)
"""Of `secret2`, by the same."""

PASSWORDS = f"""\
# comment
ann:{PBKDF2}

bob:{SHA512}
ann:{SHA512}
no colon
d e v:{SHA512}
eve:plain
joe:$7$101$x$y
kim:PBKDF2$sha512$100000$x$y
"""

ACL = """\
# comment
topic read news/#
topic deny news/secret

user ann
topic write a/b
topic a/+/c
topic read #
topic read +
topic readwrite topic with spaces
topic read $SYS/#
topic read v1.2
topic read v1.2/x
topic read a/*
topic write a/%u
topic write {user}/x
topic read a/#/b
topic grant x
topic
user d e v
topic read x
pattern read devices/%c/#
pattern write devices/x-%c
acl x
"""


def test_a_password_file() -> None:
    found = list(read_passwords(PASSWORDS.split("\n")))
    assert found[:2] == [Imported(2, "ann", PBKDF2), Imported(4, "bob", SHA512)]
    problems = found[2:]
    said = ["twice", "colon", "cannot be a user's name", "not hashed", "neither", "not hashed"]
    assert len(problems) == len(said)
    for problem, word in zip(problems, said, strict=True):
        assert isinstance(problem, Problem)
        assert word in problem.text
    assert [problem.line for problem in problems] == [5, 6, 7, 8, 9, 10]


def test_an_access_control_list() -> None:
    found = list(read_acl(ACL.split("\n"), "all"))
    assert [one for one in found if isinstance(one, ImportedRule)] == [
        ImportedRule(2, "allow", "role:anonymous", ("subscribe",), "{exact}/news/#"),
        ImportedRule(3, "deny", "role:anonymous", ("publish", "subscribe"), "{exact}/news/secret"),
        ImportedRule(6, "allow", "ann", ("publish", "create"), "{exact}/a/b"),
        ImportedRule(7, "allow", "ann", ("publish", "create", "subscribe"), "{exact}/a/+/c"),
        ImportedRule(8, "allow", "ann", ("subscribe",), "#"),
        ImportedRule(9, "allow", "ann", ("subscribe",), "*"),
        ImportedRule(10, "allow", "ann", ("publish", "create", "subscribe"), "topic with spaces"),
        ImportedRule(12, "allow", "ann", ("subscribe",), "{exact}/v1.2"),
        ImportedRule(13, "allow", "ann", ("subscribe",), "{exact}/v1.2/x"),
        ImportedRule(22, "allow", "role:all", ("subscribe",), "{exact}/devices/%c/#"),
    ]
    problems = [one.line for one in found if isinstance(one, Problem)]
    assert problems == [11, *range(14, 22), 23, 24]


@pytest.mark.parametrize(("stored", "password"), [(PBKDF2, b"secret"), (SHA512, b"secret2")])
def test_a_login_checks_the_hash_as_it_is_and_replaces_it(
    broker: Broker, stored: str, password: bytes
) -> None:
    users = broker.engine.users
    users.add("ann", stored)
    for wrong in (b"", b"secret3", password + b"\x00"):
        assert login(broker, "ann", wrong, f"10.0.0.{len(wrong)}") != ["ann"]
    assert users.users["ann"].password_hash == stored
    broker.restart()
    users = broker.engine.users
    assert login(broker, "ann", password) == ["ann"]
    assert users.users["ann"].password_hash.startswith("scrypt$")
    assert passwords.scram_keys(users.users["ann"].password_hash) is not None
    broker.restart()
    assert login(broker, "ann", password) == ["ann"]
    assert login(broker, "ann", b"wrong") != ["ann"]


@pytest.mark.parametrize(
    "stored",
    [
        "$7$0$py5PaRrOpNlVd0J8$" + PBKDF2.split("$")[4],
        "$7$999999999$py5PaRrOpNlVd0J8$" + PBKDF2.split("$")[4],  # hours of work
        "$7$x$py5PaRrOpNlVd0J8$" + PBKDF2.split("$")[4],
        "$6$$" + SHA512.split("$")[3],
        "$6$ynilX5a3u2aBiL5o$AAAA",
        "$5$ynilX5a3u2aBiL5o$" + SHA512.split("$")[3],
        SHA512 + "$",
    ],
)
def test_hashes_that_are_none(stored: str) -> None:
    assert not passwords.is_importable(stored)
    assert not passwords.is_right(b"secret", stored)


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    users, rules = tmp_path / "passwd", tmp_path / "acl"
    users.write_text(PASSWORDS)
    rules.write_text(ACL)

    def scenario(run: Cli) -> None:
        imports = ("user", "import", "mosquitto-passwords", str(users))
        code, said = run(*imports, "--dry-run")
        assert (code, said.splitlines()[-1]) == (1, "2 users can be imported, 6 not.")
        assert "line 8: the password is not hashed" in said
        assert run("user", "list")[1].startswith("There are no users")
        assert run(*imports)[1].endswith("2 users imported, 6 not.\n")
        assert run(*imports)[1].endswith("0 users imported, 8 not.\n")
        assert run("user", "list")[1] == ("ann  enabled   mosquitto\nbob  enabled   mosquitto\n")
        acl = ("permission", "import", "mosquitto-acl", str(rules))
        assert run(*acl, "--dry-run")[1].endswith("10 lines can be imported, 11 not.\n")
        assert run("permission", "list")[1].startswith("There are no rules")
        code, said = run(*acl)
        assert (code, said.splitlines()[-1]) == (1, "10 lines imported, 11 not.")
        check = ("permission", "check", "ann", "subscribe", "devices.d1.x")
        assert run(*check, "--client-id", "d1")[0] == 0
        writes = ("permission", "check", "ann", "publish")
        assert run(*writes, "a/b")[0] == run(*writes, "{exact}/a/b")[0] == 0
        assert run(*writes, "{exact}/a.b")[0] == 1  # mosquitto keeps ann out there
        rules.write_text("user nobody\ntopic read x\n")
        assert run(*acl)[1].startswith("line 2: there is no user 'nobody'")
        rules.write_text("user ann\ntopic read x\n")
        assert run(*acl) == (0, "allow  ann  subscribe  x\n1 line imported, 0 not.\n")
        assert run("permission", "import", "mosquitto-acl", str(tmp_path / "none"))[0] == 2
        rules.write_bytes(b"\xff")
        assert run(*acl)[0] == 2

    with_server(tmp_path, monkeypatch, scenario)


@pytest.mark.skipif(shutil.which("mosquitto_passwd") is None, reason="it is not installed")
@pytest.mark.parametrize("form", ["sha512", "sha512-pbkdf2"])
def test_files_that_mosquitto_passwd_makes(tmp_path: Path, form: str) -> None:
    file = tmp_path / "passwd"
    for name in ("ann", "bob"):
        create = () if file.exists() else ("-c",)
        subprocess.run(
            ["mosquitto_passwd", "-H", form, *create, "-b", str(file), name, f"pass {name} ü"],
            check=True,
        )
    found = list(read_passwords(file.read_text().split("\n")))
    assert len(found) == 2
    for entry in found:
        assert isinstance(entry, Imported)
        assert passwords.is_right(f"pass {entry.name} ü".encode(), entry.password_hash)
        assert not passwords.is_right(b"pass", entry.password_hash)
