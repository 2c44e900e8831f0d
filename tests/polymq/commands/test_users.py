"""`polymq user` and `polymq permission` against a server in the same process: what they print, how
they end, and where passwords may come from."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog

from polymq import program
from polymq.admin.operator_token import TOKEN_FILE, read_token
from polymq.serve import run_server
from polymq.settings import load_settings

PASSWORD = "correct horse"
READY_SECONDS_MAX = 30


class Cli:
    """Runs commands for one data directory.

    Only standard input and output of the thread that asks are exchanged, one command at a time.
    """

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        self._monkeypatch = monkeypatch

    def __call__(self, *arguments: str, text: str = "") -> tuple[int, str]:
        """Exit code, and what was printed."""
        said = io.StringIO()
        with self._monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
            patch.setattr(sys, "stdout", said)
            patch.setattr(sys, "stderr", said)
            code = program.run([*arguments, "--data-directory", str(self.directory)])
        assert "Traceback" not in said.getvalue()
        return code, said.getvalue()


def with_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scenario: Callable[[Cli], None]
) -> None:
    """Run the scenario beside a server, which has the main thread because of its signals."""
    flags: dict[str, dict[str, Any]] = {
        listener: {"port": 0} for listener in ("mqtt", "amqp", "http", "rocketmq", "admin")
    }
    flags["server"] = {"data_directory": tmp_path / "data", "drain_seconds": 0.2}
    flags["storage"] = {"segment_bytes": 1024 * 1024}
    flags["names"] = {"enabled": False}
    ready_file = tmp_path / "ready.json"
    failed: list[BaseException] = []

    def beside() -> None:
        pause = threading.Event()
        try:
            for _ in range(READY_SECONDS_MAX * 100):
                if ready_file.exists():
                    scenario(Cli(tmp_path / "data", monkeypatch))
                    return
                pause.wait(0.01)
            raise AssertionError("the server is not ready in time")
        except BaseException as error:  # noqa: BLE001  (it belongs to the test's own thread)
            failed.append(error)
        finally:
            os.kill(os.getpid(), 15)

    thread = threading.Thread(target=beside)
    thread.start()
    assert run_server(load_settings(flags=flags), ready_file=ready_file) == 0
    thread.join()
    structlog.reset_defaults()
    if failed:
        raise failed[0]


def test_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    password = tmp_path / "password"
    password.write_text(PASSWORD + "\n")
    as_root = ("--as", "root", "--as-password-file", str(password))

    def scenario(run: Cli) -> None:
        assert run("user", "list")[1].startswith("There are no users")
        assert run("user", "add", "root", "--role", "admin", text=PASSWORD + "\n")[0] == 0
        assert run("user", "add", "root", text="x\n") == (
            1,
            "polymq: user 'root' exists: change it, or delete it first\n",
        )
        assert run("user", "add", "dev", "--password-file", str(password))[0] == 0
        assert run("user", "add", "d e v", "--password-file", str(password))[0] == 1
        assert run("user", "add", "eve", text="\n") == (
            2,
            "polymq: there is no password in standard input\n",
        )
        assert run("user", "role", "dev", "--add", "device")[1] == "Roles of dev: device\n"
        assert run("user", "role", "dev", "--add", "x", "--remove", "device")[1] == (
            "Roles of dev: x\n"
        )
        assert run("user", "disable", "dev")[0] == 0
        assert run("user", "list")[1] == "dev   disabled  x\nroot  enabled   admin\n"
        assert run("user", "enable", "dev")[0] == 0
        assert "connections = 5\n" in run("user", "quota", "dev", "connections=5")[1]
        assert "connections = none\n" in run("user", "quota", "dev", "connections=none")[1]
        assert "connections = 10,000\n" in run("user", "quota", "dev", "connections=default")[1]
        assert run("user", "quota", "dev", "speed=5")[0] == 1
        # Without the operator's token it is the user's right that counts.
        token = run.directory / TOKEN_FILE
        assert token.stat().st_mode & 0o777 == 0o600
        stored = token.read_text()
        token.unlink()
        assert run("topic", "list")[0] == 1
        assert run("user", "add", "eve", text="x\n")[0] == 1
        as_dev = ("--as", "dev", "--as-password-file", str(password))
        assert run("topic", "list", *as_dev) == (1, "polymq: user 'dev' may not monitor #\n")
        assert run("topic", "create", "t", *as_root)[0] == 0
        assert run("topic", "list", "--as", "root")[0] == 2  # no terminal, no file
        token.write_text(stored)
        assert run("message", "publish", "t", "x", "body")[0] == 1
        assert run("message", "publish", "t", "x", "body", *as_root)[0] == 0
        listed = json.loads(run("user", "list", "--json")[1])["items"]
        assert [user["name"] for user in listed] == ["dev", "root"]
        assert "scrypt" not in repr(listed)
        assert run("user", "password", "dev", text="new\n")[0] == 0
        assert run("user", "delete", "dev", "--yes") == (0, "User dev deleted.\n")
        assert run("user", "delete", "dev", "--yes")[0] == 1
        code, said = run("user", "delete", "root", "--yes")
        assert code == 0
        assert "every client that is accepted may do everything again" in said

    with_server(tmp_path, monkeypatch, scenario)
    assert read_token(tmp_path / "data") is None


def test_access_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made, listed and removed; the secret is shown once, and reads what its user may read."""
    secret_file = tmp_path / "secret"

    def scenario(run: Cli) -> None:
        assert run("topic", "create", "fish")[0] == 0
        assert run("user", "access-key", "add", "lake") == (
            1,
            "polymq: there is no user 'lake'\n",
        )
        assert run("user", "add", "lake", text="x\n")[0] == 0
        assert run("user", "access-key", "list", "lake")[1] == "User lake has no access keys.\n"
        code, said = run("user", "access-key", "add", "lake")
        assert code == 0
        found = re.fullmatch(
            r"Access key: ([0-9A-F]{20})\nSecret key: ([0-9a-f]{64})\n"
            r"The secret key is not shown again.\n",
            said,
        )
        assert found is not None, said
        key, secret = found.groups()
        other = json.loads(run("user", "access-key", "add", "lake", "--json")[1])
        assert other.keys() == {"access_key", "secret_key"}
        listed = run("user", "access-key", "list", "lake")[1].splitlines()
        assert [line.split()[0] for line in listed] == [key, other["access_key"]]
        for shown in ((), ("--json",)):
            said = run("user", "access-key", "list", "lake", *shown)[1]
            said += run("user", "list", *shown)[1]
            assert secret not in said
            assert other["secret_key"] not in said
        secret_file.write_text(secret + "\n")
        read = ("message", "read", "fish", "--access-key", key)
        signed = (*read, "--secret-key-file", str(secret_file))
        assert run(*read)[0] == 2
        code, said = run(*read, "--secret-key-file", str(tmp_path / "none"))
        assert (code, "cannot read the secret key in" in said) == (2, True)
        code, said = run(*signed)
        assert (code, "user 'lake' may do nothing: no rule allows it" in said) == (1, True)
        assert run("permission", "allow", "lake", "subscribe", "birds.#")[0] == 0
        code, said = run(*signed)
        assert (code, "user 'lake' may not subscribe fish.#" in said) == (1, True)
        assert run("permission", "allow", "lake", "subscribe", "fish.#")[0] == 0
        assert run(*signed) == (0, "There are no messages to read in fish.\n")
        assert run("user", "access-key", "remove", "lake", key) == (
            0,
            f"Access key {key} removed.\n",
        )
        code, said = run(*signed)
        assert (code, "access key" in said) == (1, True)
        assert run("user", "access-key", "remove", "lake", key) == (
            1,
            f"polymq: user 'lake' has no access key '{key}'\n",
        )

    with_server(tmp_path, monkeypatch, scenario)
    log = b"".join(path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file())
    assert log.count(secret_file.read_bytes().strip()) > 0  # readable: what signs is no hash


def test_permissions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def scenario(run: Cli) -> None:
        assert run("user", "add", "dev", "--role", "device", text="x\n")[0] == 0
        assert run("permission", "list")[1].startswith("There are no rules")
        allow = ("permission", "allow", "role:device", "publish,create", "devices.{client_id}.#")
        assert run(*allow)[1] == (
            "allow  role:device  publish  devices.{client_id}.#\n"
            "allow  role:device  create  devices.{client_id}.#\n"
        )
        assert run("permission", "deny", "dev", "publish", "devices/+/admin")[0] == 0
        check = ("permission", "check", "dev", "publish")
        assert run(*check, "devices.d7.temp", "--client-id", "d7") == (
            0,
            "allowed: allow role:device publish devices.{client_id}.#\n",
        )
        assert run(*check, "devices.d7.temp")[0] == 1
        assert run(*check, "devices.d7.admin", "--client-id", "d7") == (
            1,
            "not allowed: deny dev publish devices.*.admin\n",
        )
        assert run(*check, "orders") == (1, "not allowed: no rule allows it\n")
        # The first message would make the topic, which is a right of its own.
        assert run("permission", "allow", "dev", "publish", "new.#")[0] == 0
        assert run(*check, "new.x") == (
            1,
            "not allowed (the topic does not exist: that needs create, too): no rule allows it\n",
        )
        assert run("topic", "create", "new")[0] == 0
        assert run(*check, "new.x") == (0, "allowed: allow dev publish new.#\n")
        assert run("permission", "remove", "dev", "publish", "new.#")[0] == 0
        assert run("permission", "check", "anonymous", "subscribe", "#")[0] == 1
        assert run("permission", "check", "nobody", "publish", "x")[0] == 1
        assert run("permission", "list", "dev")[1] == "deny   dev  publish  devices.*.admin\n"
        remove = ("permission", "remove", "dev", "publish", "devices.*.admin")
        assert run(*remove)[0] == 0
        assert run(*remove)[0] == 1
        assert len(json.loads(run("permission", "list", "--json")[1])["items"]) == 2
        for subject, topic, why in (
            ("nobody", "x", "there is no user 'nobody'"),
            ("dev", "a#", "is not a level"),
            ("dev", "a.#.b", "must be the last level"),
            ("role:admin", "x", "may do everything"),
        ):
            code, said = run("permission", "allow", subject, "publish", topic)
            assert code == 1
            assert why in said
            assert said.count("\n") == 1

    with_server(tmp_path, monkeypatch, scenario)
