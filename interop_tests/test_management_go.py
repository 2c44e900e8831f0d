"""The management API with rabbit-hole, RabbitMQ's client for Go. `management_go/` plays the
scenarios. Where there is no Go, or the module proxy does not answer, they are left out."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop_tests.conftest import Server
from interop_tests.go_programs import need_program
from interop_tests.management import SETTINGS, port_of
from interop_tests.scenarios import Results

pytestmark = pytest.mark.slow(seconds=15)

PROJECT = Path(__file__).parent / "management_go"
RUN_SECONDS_MAX = 60
SCENARIOS = ("overview", "queues", "bindings", "health", "absent", "definitions", "users")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Results]:
    program = need_program(PROJECT)
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
