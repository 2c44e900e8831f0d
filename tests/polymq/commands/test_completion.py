"""`polymq completion`: scripts for shells, what they get as answers, and how soon."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from polymq import program
from polymq.cli import ELSEWHERE
from polymq.commands.completion import SHELLS, VARIABLE
from polymq.errors import ExitCode

ROOT = Path(__file__).resolve().parents[3]


def script_of(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert program.run(["completion", shell]) == ExitCode.OK
    return capsys.readouterr().out


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_asks_the_program_by_the_variable_that_it_knows(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    script = script_of(shell, capsys)
    assert f"{VARIABLE}={shell}_complete" in script
    assert "polymq" in script


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_can_read_its_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = script_of(shell, capsys)
    ended = subprocess.run(
        [shell, "-n"], input=script, capture_output=True, text=True, check=False, timeout=30
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def test_another_shell_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.run(["completion", "tcsh"]) == ExitCode.USAGE
    assert "'tcsh' is not one of" in capsys.readouterr().err


START = """
import sys
from polymq.program import run
try:
    run([])
finally:
    print(*sys.modules, file=sys.stderr)
"""


def completed(line: str) -> tuple[list[str], set[str]]:
    """What bash gets for a line with the cursor at its end, and the modules that it took."""
    ended = subprocess.run(
        [sys.executable, "-c", START],
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            VARIABLE: "bash_complete",
            "COMP_WORDS": line,
            "COMP_CWORD": str(line.count(" ")),
        },
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    answers = [answer.partition(",")[2] for answer in ended.stdout.splitlines()]
    return answers, set(ended.stderr.split())


def test_commands_are_completed_without_importing_them() -> None:
    """Who presses Tab waits: the modules of all commands would take as long as the rest."""
    found, imported = completed("polymq ")
    assert {"serve", "topic", "completion", "doctor"} <= set(found)
    assert "polymq.cli" in imported
    assert imported & set(ELSEWHERE.values()) == set()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("polymq topi", ["topic"]),
        ("polymq topic de", ["delete"]),
        ("polymq --ver", ["--version"]),
        ("polymq serve --mqtt-p", ["--mqtt-port"]),
        ("polymq completion z", ["zsh"]),
    ],
)
def test_what_a_line_is_completed_to(line: str, expected: list[str]) -> None:
    assert completed(line)[0] == expected
