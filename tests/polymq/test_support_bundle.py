"""`polymq doctor --bundle`: what support gets, and that no secret is in it."""

from __future__ import annotations

import io
import os
import re
import stat
import tarfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from pydantic import SecretStr

from polymq import program
from polymq.admin.operator_token import write_token
from polymq.bridge_settings import BridgeTopic, MqttBridge
from polymq.errors import ExitCode, Failure
from polymq.hiding import SECRET_FILES, Remover, remover_for, without_secrets
from polymq.listener_settings import MqttListener
from polymq.ports import FILE_NAME, Ports, write_ports
from polymq.render import render_toml
from polymq.secret_names import HIDDEN, SECRET_NAMES
from polymq.setting_kinds import Section
from polymq.settings import Settings
from polymq.support_bundle import FOLDER, LOG_BYTES_MAX, Part, make_bundle, parts_of

SECRETS = {"mqtt.bridges.password", "names.access_key"}
"""The settings that are secrets themselves. A new one belongs here, and has to be hidden."""
FILES = {
    "jwt.public_key_file",
    "jwt.jwks_file",
    "jwt.secret_file",
    "login_service.amqtt_config_file",
    "login_service.header_file",
    "login_service.ldap_bind_password_file",
    "mqtt.bridges.password_file",
    "mqtt.bridges.tls_key",
    "mqtt.listeners.tls_key",
    "mqtt.listeners.tls_psk_file",
    "names.secret_key_file",
    "permission_service.amqtt_config_file",
    "permission_service.header_file",
    "replication.secret_file",
    "telemetry.header_file",
    "tls.key",
}
"""The settings that name files which are not to be told."""
URLS = {"jwt.jwks_url", "login_service.ldap_url", "login_service.url", "permission_service.url"}
"""Those that may have a key behind their question mark."""


@pytest.fixture(autouse=True)
def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Java machine that is asked for its version takes a second."""
    monkeypatch.setattr("polymq.doctor.find_java", lambda: None)


def full(section: Section, prefix: str, marks: dict[str, str], directory: Path) -> Any:
    """The section, with a secret in every setting that may have one; they are added to `marks`."""
    changed: dict[str, Any] = {}
    for name in type(section).model_fields:
        value, key = getattr(section, name), f"{prefix}{name}"
        mark = f"mark-of-{key.replace('.', '-')}"
        if isinstance(value, Section):
            changed[name] = full(value, f"{key}.", marks, directory)
        elif isinstance(value, list) and value and isinstance(value[0], Section):
            changed[name] = [full(item, f"{key}.", marks, directory) for item in value]
        elif isinstance(value, SecretStr):
            changed[name] = SecretStr(mark)
        elif isinstance(value, str) and SECRET_NAMES.search(name):
            changed[name] = mark
        elif isinstance(value, str) and SECRET_FILES.search(name):
            file = directory / key
            file.write_text(f"-----BEGIN PRIVATE KEY-----\n{mark}\n")
            changed[name] = str(file)
        elif isinstance(value, str) and name.endswith("url"):
            changed[name] = f"https://login.example.com/?key={mark}"
        if name in changed and not isinstance(value, Section | list):
            marks[key] = mark
    return section.model_copy(update=changed)


@pytest.fixture
def marks() -> dict[str, str]:
    """Each setting with a secret, and the secret."""
    return {}


@pytest.fixture
def settings(tmp_path: Path, marks: dict[str, str]) -> Settings:
    """Settings with all secrets that there can be."""
    bridge = MqttBridge(name="b", topics=[BridgeTopic(pattern="a")])
    mqtt = Settings().mqtt.model_copy(
        update={"bridges": [bridge], "listeners": [MqttListener(name="l")]}
    )
    server = Settings().server.model_copy(update={"data_directory": tmp_path / "data"})
    (tmp_path / "data").mkdir()
    plain = Settings().model_copy(update={"mqtt": mqtt, "server": server})
    found: Settings = full(plain, "", marks, tmp_path)
    return found


def test_the_settings_with_secrets_are_known(settings: Settings, marks: dict[str, str]) -> None:
    """A new setting that looks like a secret is found by its name; here it has to be named, too."""
    assert settings.mqtt.bridges[0].user == ""
    assert set(marks) == SECRETS | FILES | URLS


def test_no_secret_of_any_setting_is_in_the_bundle(
    settings: Settings, marks: dict[str, str], tmp_path: Path
) -> None:
    """Neither as the settings say it, nor where a log repeats it."""
    token = "a" * 20 + "operators-token"
    write_token(settings.server.data_directory, token)
    log = tmp_path / "log"
    log.write_text("".join(f"connected with {mark}\n" for mark in [*marks.values(), token]))
    content = make_bundle(parts_of(settings, log), remover_for(settings))
    files = unpacked(content)
    assert {"settings.toml", "log.txt", "doctor.txt", "platform.txt", "versions.txt"} <= set(files)
    everything = "".join(files.values())
    assert [mark for mark in [*marks.values(), token] if mark in everything] == []
    assert files["log.txt"].count(HIDDEN) == len(marks) + 1


def test_hidden_settings_say_where_something_is_hidden(settings: Settings) -> None:
    """And the names of the files are shown: support has to know that there are some."""
    text = render_toml(without_secrets(settings))
    assert f'access_key = "{HIDDEN}"' in text
    assert f'jwks_url = "https://login.example.com/?{HIDDEN}"' in text
    assert f'secret_file = "{settings.replication.secret_file}"' in text
    assert render_toml(without_secrets(Settings())) == render_toml(Settings())


def test_a_token_in_a_header_is_a_secret_by_itself(tmp_path: Path) -> None:
    """`Authorization: Bearer TOKEN` is a line of a file; a log would have the token alone."""
    (tmp_path / "header").write_text("Authorization: Bearer 6f1c2e3d4a5b6978\n")
    asked = Settings().login_service.model_copy(update={"header_file": str(tmp_path / "header")})
    remove = remover_for(Settings().model_copy(update={"login_service": asked}))
    assert remove("sent 6f1c2e3d4a5b6978 to it") == f"sent {HIDDEN} to it"


def test_a_secret_within_another_is_removed_with_it() -> None:
    remove = Remover(["pass", "password1", "abc", ""])
    assert remove("password1 pass abc") == f"{HIDDEN} {HIDDEN} abc"
    assert Remover([])("unchanged") == "unchanged"


def unpacked(content: bytes) -> dict[str, str]:
    """The files of a bundle, by their names in its folder."""
    files = {}
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:gz") as archive:
        for member in archive:
            file = archive.extractfile(member)
            assert file is not None
            files[member.name.removeprefix(f"{FOLDER}/")] = file.read().decode()
    return files


def test_what_cannot_be_had_is_named_and_the_rest_is_there() -> None:
    """The bundle is wanted most when something does not work."""

    def failing() -> str:
        raise Failure(ExitCode.UNREACHABLE, "nobody answers with a secret")

    parts = [Part(name="a.txt", text=failing), Part(name="b.txt", text=lambda: "B")]
    files = unpacked(make_bundle(iter(parts), Remover(["a secret"])))
    assert files == {"b.txt": "B", "missing.txt": f"a.txt: nobody answers with {HIDDEN}\n"}


def bundle(*options: str) -> int:
    return program.run(["doctor", *options])


@pytest.fixture
def no_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty directory, and a port that nobody listens on."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POLYMQ_ADMIN__PORT", "1")


@pytest.mark.usefixtures("no_server")
def test_the_file_is_its_owners_and_replaces_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert bundle("--bundle", "b.tgz") == ExitCode.OK
    assert capsys.readouterr().out == ""
    assert stat.S_IMODE(Path("b.tgz").stat().st_mode) == 0o600
    files = unpacked(Path("b.tgz").read_bytes())
    assert "health.json: no server answers" in files["missing.txt"]
    assert "use --log-file" in files["missing.txt"]
    assert "POLYMQ_ADMIN__PORT" in files["platform.txt"]
    assert bundle("--bundle", "b.tgz") == ExitCode.CANNOT_CREATE
    assert "cannot write the bundle b.tgz: File exists" in capsys.readouterr().err


@pytest.mark.usefixtures("no_server")
def test_a_bundle_for_standard_output(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """A container with a read-only file system has nowhere else."""
    assert bundle("--bundle", "-") == ExitCode.OK
    assert "doctor.txt" in unpacked(capfdbinary.readouterr().out)
    assert not Path("-").exists()


@pytest.mark.usefixtures("no_server")
def test_of_a_long_log_whole_lines_of_its_end(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    line = "x" * 99 + "\n"
    log.write_text("the beginning\n" + line * (LOG_BYTES_MAX // 100 + 10) + "the end\n")
    assert bundle("--bundle", "b.tgz", "--log-file", str(log)) == ExitCode.OK
    text = unpacked(Path("b.tgz").read_bytes())["log.txt"]
    assert text.startswith(line)
    assert text.endswith("the end\n")
    assert LOG_BYTES_MAX - 100 <= len(text) <= LOG_BYTES_MAX


class _Admin(BaseHTTPRequestHandler):
    """Answers like the operator's listener, to the token only."""

    def do_GET(self) -> None:
        is_asked_by_operator = self.headers["Authorization"] == "Bearer the-token"
        self.send_response(200 if is_asked_by_operator or self.path == "/health" else 401)
        self.end_headers()
        self.wfile.write(b'{"status": "ok"}' if self.path != "/metrics" else b"polymq_a 1\n")

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def admin_port() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), _Admin) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_a_running_server_says_what_it_is(
    admin_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Health, store and metrics, with the operator's token; and its log, as far as stderr is a
    file."""
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "data"
    data.mkdir()
    ports = dict.fromkeys(("mqtt", "amqp", "http", "rocketmq"))
    write_ports(data / FILE_NAME, Ports(host="127.0.0.1", admin=admin_port, **ports))
    write_token(data, "the-token")
    with (tmp_path / "log").open("w") as log:
        log.write("the server's log\n")
        log.flush()
        before = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            assert bundle("--bundle", "b.tgz") == ExitCode.OK
        finally:
            os.dup2(before, 2)
            os.close(before)
    files = unpacked(Path("b.tgz").read_bytes())
    assert files["health.json"] == '{\n  "status": "ok"\n}\n'
    assert files["metrics.txt"] == "polymq_a 1\n"
    assert files["log.txt"] == "the server's log\n"
    assert "missing.txt" not in files
    assert re.search(r"server +process \d+: ok", files["doctor.txt"])
