"""The management API with rabbit-hole, RabbitMQ's client for Go. `management_go/` plays the
scenarios. Where there is no Go, or the module proxy does not answer, they are left out."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop_tests.conftest import Server
from interop_tests.management import SETTINGS, port_of
from interop_tests.scenarios import Results, build_folder

pytestmark = pytest.mark.slow(seconds=15)

PROJECT = Path(__file__).parent / "management_go"
FETCH_SECONDS_MAX = 90
BUILD_SECONDS_MAX = 240
RUN_SECONDS_MAX = 60
SCENARIOS = ("overview", "queues", "bindings", "health", "absent", "definitions", "users")


def go(seconds: int, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """What Go says. Raises subprocess.TimeoutExpired."""
    return subprocess.run(
        ["go", *arguments],
        cwd=PROJECT,
        env={**os.environ, "GOFLAGS": "-mod=readonly -buildvcs=false", "GOTOOLCHAIN": "local"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
        check=False,
    )


def need_program() -> Path:
    """The program, which is built if it is not there."""
    if os.environ.get("POLYMQ_TESTS_WITHOUT_GO"):
        pytest.skip("POLYMQ_TESTS_WITHOUT_GO is set")
    if shutil.which("go") is None:
        pytest.skip("there is no Go on this machine")
    folder = build_folder(PROJECT, ["go.mod", "go.sum", "*.go"])
    program = folder / "program"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in several processes
        if not program.exists():
            try:
                fetched = go(FETCH_SECONDS_MAX, "list", "-deps", ".")
                if fetched.returncode:
                    pytest.skip(f"Go cannot fetch the modules here: {fetched.stdout[-500:]}")
                made = go(BUILD_SECONDS_MAX, "build", "-o", program, ".")
            except subprocess.TimeoutExpired:
                pytest.skip("Go's module proxy is too slow here")
            assert made.returncode == 0, made.stdout[-4000:]
    return program


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Results]:
    program = need_program()
    directory = tmp_path_factory.mktemp("management")
    server = Server(directory / "server", SETTINGS, {}, (sys.executable, "-m", "polymq"))
    found = Results()
    try:
        server.start()
        ended = subprocess.run(
            [program, str(port_of(server))],
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS_MAX,
            check=False,
        )
        for line in ended.stdout.splitlines():
            value = json.loads(line)
            found.errors[value["scenario"]] = value["error"]
        print(ended.stderr)
        yield found
    finally:
        server.close(sys.stdout)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_rabbit_hole(results: Results, scenario: str) -> None:
    results.check(scenario)
