"""One sabotage: break a copy, run the suites, and say whether they noticed.

*Caught* is a mistake that a test or a check of `make crash` complains about. That the broken code
does not even run (no import, no such name, a run that does not end) proves nothing about the
tests, and counts as not caught. A mistake in a compiled kernel is *skipped* where nothing compiles.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from tests.sabotage.builds import SUFFIX, CannotBuild, can_build
from tests.sabotage.copies import environment, sabotaged
from tests.sabotage.plan import Sabotage

MISTAKES_OF_OURS = {"ImportError", "SyntaxError", "NameError", "AttributeError", "TypeError"}
"""Errors that say that the sabotage is no code: any test would notice."""
RUNNING: set[subprocess.Popen[str]] = set()
"""What has to be killed when the command is interrupted."""
VIOLATION = re.compile(r"^seed \d+, \w+ \d+ .*", re.MULTILINE)


class Verdict(Enum):
    """What became of it."""

    CAUGHT = "caught"
    MISSED = "NOT caught"
    BROKEN = "broken otherwise"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one sabotage: what was found, how (which test, which line), and how long it took."""

    verdict: Verdict
    how: str
    seconds: float


def try_out(
    copy: Path, sabotage: Sabotage | None, commands: list[tuple[str, ...]], limit_seconds: float
) -> Outcome:
    """Run the suites on the copy with the sabotage in it (None: with none), until one notices."""
    began = time.monotonic()
    verdict, how = Verdict.MISSED, "all of its suite passed"
    if sabotage is not None and sabotage.path.endswith(SUFFIX) and not can_build():
        return Outcome(Verdict.SKIPPED, "there is no C compiler, or no Cython", 0.0)
    for command in commands:
        try:
            with sabotaged(copy, sabotage):
                pure = sabotage is not None and sabotage.pure
                verdict, how = run(copy, command, limit_seconds, pure=pure)
        except CannotBuild as error:
            verdict, how = Verdict.BROKEN, str(error)
        if verdict is not Verdict.MISSED:
            break
    return Outcome(verdict, how, time.monotonic() - began)


def run(
    copy: Path, command: tuple[str, ...], limit_seconds: float, *, pure: bool = False
) -> tuple[Verdict, str]:
    """Run one suite in the copy as it is."""
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        cwd=copy,
        env=environment(copy, pure=pure),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    RUNNING.add(process)
    try:
        output, _ = process.communicate(timeout=limit_seconds)
    except subprocess.TimeoutExpired:
        kill(process)
        process.communicate()
        return Verdict.BROKEN, f"it ran longer than {limit_seconds:.0f} s"
    finally:
        RUNNING.discard(process)
    if process.returncode == 0:
        return Verdict.MISSED, "all of its suite passed"
    if command[0] == "pytest":
        return judge_tests(process.returncode, copy / ".room/witness.json", output)
    return judge_crash(output)


def kill(process: subprocess.Popen[str]) -> None:
    """End a run, with the servers that it started."""
    with contextlib.suppress(ProcessLookupError):  # it has just ended
        os.killpg(process.pid, signal.SIGKILL)


def judge_tests(code: int, witness: Path, output: str) -> tuple[Verdict, str]:
    """What a run of pytest that did not pass says."""
    if code != 1 or not witness.exists():
        return Verdict.BROKEN, f"pytest ended with {code}: {last_line(output)}"
    found = json.loads(witness.read_text(encoding="utf-8"))
    text = found["text"].partition("\n")[0]
    how = f"{found['node']}, {found['at'] or found['when']} ({found['error']}: {text})"
    ours = found["when"] == "collect" or MISTAKES_OF_OURS & set(found["kinds"])
    return (Verdict.BROKEN if ours else Verdict.CAUGHT), how


def judge_crash(output: str) -> tuple[Verdict, str]:
    """What a run of `make crash` that did not pass says."""
    found = VIOLATION.search(output)
    if found is None:
        return Verdict.BROKEN, f"make crash: {last_line(output)}"
    ours = any(f" {name}: " in found[0] for name in MISTAKES_OF_OURS)
    return (Verdict.BROKEN if ours else Verdict.CAUGHT), f"make crash: {found[0]}"


def last_line(text: str) -> str:
    """The last line of an output, where programs say why they end."""
    lines = text.strip().splitlines()
    return lines[-1] if lines else "(no output)"
