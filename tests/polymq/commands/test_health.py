"""`polymq health`: what a health check of a container sees."""

from __future__ import annotations

from pathlib import Path

import pytest

from polymq import program
from polymq.errors import ExitCode


@pytest.mark.parametrize(
    ("status", "code", "out", "err"),
    [
        ("ok", ExitCode.OK, "ok\n", ""),
        ("the disk is full", ExitCode.FAILED, "", "polymq: the disk is full\n"),
    ],
)
def test_the_exit_code_is_what_the_server_says(
    status: str,
    code: ExitCode,
    out: str,
    err: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("polymq.commands.health.server_health", lambda _: status)
    assert program.run(["health"]) == code
    said = capsys.readouterr()
    assert (said.out, said.err) == (out, err)


def test_no_server_is_another_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POLYMQ_ADMIN__PORT", "1")
    assert program.run(["health"]) == ExitCode.UNREACHABLE
    assert "no server answers" in capsys.readouterr().err
