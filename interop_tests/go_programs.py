"""Programs in Go that play scenarios: built once for all processes of tests, and left out where
there is no Go, or the module proxy does not answer."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from interop_tests.scenarios import build_folder

FETCH_SECONDS_MAX = 90
BUILD_SECONDS_MAX = 240


def go(project: Path, seconds: int, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """What Go says. Raises subprocess.TimeoutExpired."""
    return subprocess.run(
        ["go", *arguments],
        cwd=project,
        env={**os.environ, "GOFLAGS": "-mod=readonly -buildvcs=false", "GOTOOLCHAIN": "local"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
        check=False,
    )


def need_program(project: Path) -> Path:
    """The program of a folder, which is built if it is not there."""
    if os.environ.get("POLYMQ_TESTS_WITHOUT_GO"):
        pytest.skip("POLYMQ_TESTS_WITHOUT_GO is set")
    if shutil.which("go") is None:
        pytest.skip("there is no Go on this machine")
    folder = build_folder(project, ["go.mod", "go.sum", "*.go"])
    program = folder / "program"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in several processes
        if not program.exists():
            try:
                fetched = go(project, FETCH_SECONDS_MAX, "list", "-deps", ".")
                if fetched.returncode:
                    pytest.skip(f"Go cannot fetch the modules here: {fetched.stdout[-500:]}")
                made = go(project, BUILD_SECONDS_MAX, "build", "-o", program, ".")
            except subprocess.TimeoutExpired:
                pytest.skip("Go's module proxy is too slow here")
            assert made.returncode == 0, made.stdout[-4000:]
    return program
