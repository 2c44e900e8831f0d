"""MQTT with Eclipse's Paho for Java (MQTT 5) and HiveMQ's client (3.1.1 and 5), from Maven Central.

`mqtt_java/` plays the scenarios, once for each library; each test looks at one of them. Where there
is no Java or no Maven, or Maven Central does not answer, they are left out.
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

pytestmark = [pytest.mark.java_clients, pytest.mark.slow(seconds=25)]

PROJECT = Path(__file__).parent / "mqtt_java"
LIBRARIES = (
    "org.eclipse.paho:org.eclipse.paho.mqttv5.client:1.2.5",
    "com.hivemq:hivemq-mqtt-client:1.3.5",
)
REACH_SECONDS_MAX = 60
BUILD_SECONDS_MAX = 240
COMMON = ("qos", "retained", "will", "session", "manual", "large", "kill")
OF_MQTT_5 = ("properties", "expiry", "aliases", "receive_maximum", "options", "request")


def maven(folder: Path, seconds: int, *goals: str) -> subprocess.CompletedProcess[str] | None:
    """What Maven says; None if it takes too long."""
    try:
        return subprocess.run(
            ["mvn", "-B", "-q", f"-Dplace={folder}", *goals],
            cwd=PROJECT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None


def need_program() -> str:
    """The class path of the program, which is built if it is not there."""
    if os.environ.get("POLYMQ_TESTS_WITHOUT_JAVA_CLIENTS"):
        pytest.skip("POLYMQ_TESTS_WITHOUT_JAVA_CLIENTS is set")
    for program in ("java", "javac", "mvn"):
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program} on this machine")
    folder = build_folder(PROJECT, ["pom.xml", "src/**/*.java"])
    made = folder / "class-path"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in several processes
        libraries = made.read_text(encoding="utf-8").strip() if made.exists() else ""
        if not libraries or not all(Path(jar).exists() for jar in libraries.split(":")):
            for library in LIBRARIES:
                asked = (f"-Dartifact={library}:pom", "-Dtransitive=false")
                done = maven(folder, REACH_SECONDS_MAX, "dependency:get", *asked)
                if done is None or done.returncode:
                    pytest.skip("Maven Central cannot be reached from here")
            output = f"-Dmdep.outputFile={made}.new"
            done = maven(folder, BUILD_SECONDS_MAX, "compile", "dependency:build-classpath", output)
            if done is None:
                pytest.skip("Maven Central is too slow here")
            assert done.returncode == 0, done.stdout[-4000:]
            made.with_suffix(".new").rename(made)
        libraries = made.read_text(encoding="utf-8").strip()
    return f"{folder / 'classes'}:{libraries}"


def play(library: str, directory: Path) -> Iterator[Results]:
    options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    command = ["java", *options, "-cp", need_program(), "polymq.mqtt.Scenarios", library]
    with played(directory, command) as results:
        yield results


@pytest.fixture(scope="module")
def paho(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Results]:
    yield from play("paho", tmp_path_factory.mktemp("paho"))


@pytest.fixture(scope="module")
def hivemq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Results]:
    yield from play("hivemq", tmp_path_factory.mktemp("hivemq"))


@pytest.fixture(scope="module")
def hivemq3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Results]:
    yield from play("hivemq3", tmp_path_factory.mktemp("hivemq3"))


@pytest.mark.parametrize("scenario", [*COMMON, *OF_MQTT_5])
def test_paho_for_java(paho: Results, scenario: str) -> None:
    """MQTT 5."""
    paho.check(scenario)


@pytest.mark.parametrize("scenario", [*COMMON, *OF_MQTT_5])
def test_hivemqs_client(hivemq: Results, scenario: str) -> None:
    """MQTT 5."""
    hivemq.check(scenario)


@pytest.mark.parametrize("scenario", COMMON)
def test_hivemqs_client_with_mqtt_3_1_1(hivemq3: Results, scenario: str) -> None:
    hivemq3.check(scenario)
