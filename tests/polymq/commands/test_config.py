"""`polymq config import mosquitto-conf`: what it prints and writes, and how it ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from polymq import program
from polymq.mosquitto.options import OPTIONS
from polymq.settings import load_settings

CONF = "listener 1885 127.0.0.1\nallow_anonymous true\n"
COMMAND = ("config", "import", "mosquitto-conf")

Run = tuple[int, str, str]


@pytest.fixture(autouse=True)
def empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> Run:
    """Exit code, output, errors."""
    code = program.run([*COMMAND, *arguments])
    said = capsys.readouterr()
    assert "Traceback" not in said.err
    return code, said.out, said.err


def test_what_has_a_counterpart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Settings on standard output, which a server takes."""
    Path("m.conf").write_text(CONF)
    code, out, err = run(capsys, "m.conf")
    assert (code, err) == (0, "2 lines converted, 0 not, 0 not needed or noted.\n")
    Path("polymq.toml").write_text(out)
    (listener,) = load_settings(file=tmp_path / "polymq.toml").mqtt.listeners
    assert (listener.port, listener.allow_anonymous) == (1885, True)


def test_what_has_none(capsys: pytest.CaptureFixture[str]) -> None:
    """One line for each, on standard error; the settings are written all the same."""
    Path("m.conf").write_text(f"{CONF}pid_file /run/m.pid\npersistence true\npassword_file /p\n")
    code, out, err = run(capsys, "m.conf")
    assert code == 1
    assert "[[mqtt.listeners]]" in out
    assert err.splitlines() == [
        f"m.conf:3: pid_file: no counterpart: {OPTIONS['pid_file'].text}",
        f"m.conf:4: persistence: not needed: {OPTIONS['persistence'].text}",
        "To do when the server runs:",
        "  polymq user import mosquitto-passwords /p",
        "    (m.conf:5)",
        "  polymq permission allow role:mosquitto publish,create,subscribe '#'",
        "    (there is no acl_file)",
        "  polymq permission allow role:anonymous publish,create,subscribe '#'",
        "    (clients without a login, as before; for all listeners with allow_anonymous)",
        "3 lines converted, 1 not, 1 not needed or noted.",
    ]


def test_wrong_lines_are_named_and_nothing_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    """A misspelt option may be the one that kept clients out."""
    Path("m.conf").write_bytes(CONF.encode() + b"requir_certificate true\nmount_point \x1b\xff\n")
    code, out, err = run(capsys, "m.conf", "--output", "new.toml")
    assert (code, out) == (2, "")
    assert err.splitlines() == [
        "m.conf:3: requir_certificate: wrong: mosquitto has no such option",
        "m.conf:4: mount_point: wrong: the value is not UTF-8",
        "polymq: m.conf has lines that are wrong: correct them first",
    ]
    assert not Path("new.toml").exists()


def test_a_file_is_not_overwritten_unless_asked(capsys: pytest.CaptureFixture[str]) -> None:
    Path("m.conf").write_text(CONF)
    assert run(capsys, "m.conf", "--output", "new.toml", "--dry-run")[0] == 0
    assert not Path("new.toml").exists()
    code, out, _ = run(capsys, "m.conf", "--output", "new.toml")
    assert (code, out) == (0, "")
    first = Path("new.toml").read_text()
    Path("m.conf").write_text(CONF.replace("1885", "1886"))
    code, _, err = run(capsys, "m.conf", "--output", "new.toml")
    assert code == 2
    assert "new.toml exists: choose another file, or use --overwrite" in err
    assert Path("new.toml").read_text() == first
    assert run(capsys, "m.conf", "--output", "new.toml", "--overwrite")[0] == 0
    assert "port-1886" in Path("new.toml").read_text()


def test_files_are_included_in_mosquittos_order(capsys: pytest.CaptureFixture[str]) -> None:
    """Upper case comes before the same letter in lower case, and only *.conf counts."""
    Path("conf.d").mkdir()
    for index, name in enumerate(("b", "A", "01", "a", "B", "00")):
        Path(f"conf.d/{name}.conf").write_text(f"listener {1900 + index} 127.0.0.1\n")
    Path("conf.d/x.txt").write_text("nonsense\n")
    Path("m.conf").write_text("include_dir conf.d\n")
    code, out, _ = run(capsys, "m.conf")
    assert code == 0
    names = [line.split('"')[1] for line in out.splitlines() if line.startswith("name = ")]
    assert names == [f"port-{port}" for port in (1905, 1902, 1901, 1903, 1904, 1900)]
    assert "port = 1900  # conf.d/b.conf:1" in out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("none.conf",), "cannot read none.conf: No such file or directory"),
        (("m.conf", "--output", "none/new.toml"), "cannot write none/new.toml: No such file"),
    ],
)
def test_files_that_cannot_be_used(
    arguments: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("m.conf").write_text(CONF)
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert text in err
    assert err.count("\n") == 1
