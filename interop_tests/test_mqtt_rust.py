"""MQTT 3.1.1 and 5 with rumqttc, from crates.io.

`mqtt_rust/` plays the scenarios, once for each version; each test looks at one of them. Where there
is no Rust, or the registry does not answer, they are left out.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop_tests.scenarios import Results, build_folder, played

pytestmark = pytest.mark.slow(seconds=15)

PROJECT = Path(__file__).parent / "mqtt_rust"
FETCH_SECONDS_MAX = 90
BUILD_SECONDS_MAX = 400
COMMON = ("qos", "retained", "will", "session", "manual", "large", "kill")
OF_MQTT_5 = ("properties", "expiry", "aliases", "receive_maximum", "options")


def cargo(folder: Path, seconds: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What Cargo says. Raises subprocess.TimeoutExpired."""
    return subprocess.run(
        ["cargo", *arguments, "--locked"],
        cwd=PROJECT,
        env={**os.environ, "CARGO_TARGET_DIR": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
        check=False,
    )


def need_program() -> Path:
    """The program, which is built if it is not there."""
    if os.environ.get("POLYMQ_TESTS_WITHOUT_RUST"):
        pytest.skip("POLYMQ_TESTS_WITHOUT_RUST is set")
    if shutil.which("cargo") is None:
        pytest.skip("there is no Rust on this machine")
    folder = build_folder(PROJECT, ["Cargo.*", "src/*.rs"])
    program = folder / "debug" / "polymq-interop-mqtt"
    stamp = folder / "built"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in several processes
        if not stamp.exists():
            try:
                if cargo(folder, FETCH_SECONDS_MAX, "fetch").returncode:
                    pytest.skip("Cargo cannot fetch the crates here")
                made = cargo(folder, BUILD_SECONDS_MAX, "build", "--offline")
            except subprocess.TimeoutExpired:
                pytest.skip("the crates are too slow to come or to build here")
            assert made.returncode == 0, made.stdout[-4000:]
            stamp.touch()
    return program


def play(version: str, directory: Path) -> Iterator[Results]:
    with played(directory, [need_program(), version]) as results:
        yield results


@pytest.fixture(scope="module")
def of_3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Results]:
    yield from play("3", tmp_path_factory.mktemp("rust"))


@pytest.fixture(scope="module")
def of_5(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Results]:
    yield from play("5", tmp_path_factory.mktemp("rust"))


@pytest.mark.parametrize("scenario", COMMON)
def test_rumqttc_with_mqtt_3_1_1(of_3: Results, scenario: str) -> None:
    of_3.check(scenario)


@pytest.mark.parametrize("scenario", [*COMMON, *OF_MQTT_5])
def test_rumqttc_with_mqtt_5(of_5: Results, scenario: str) -> None:
    of_5.check(scenario)
