"""Apache's Java clients: where they are built, and how they are driven.

`java/` is a small Maven project; Maven Central has the clients. What is built is kept outside the
tree (`POLYMQ_TESTS_CACHE`, or `polymq-tests` in the user's cache), under a name that changes with
the project's files. Where there is no Java, no Maven, or no Maven Central, the tests that need
them are left out and say why; so they are if POLYMQ_TESTS_WITHOUT_JAVA_CLIENTS is set. What cannot
be built although Maven Central answers fails them.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import pytest

from interop_tests.line_driver import LineDriver

PROJECT = Path(__file__).parent / "java"
VERSIONS = {"4": "4.9.8", "5": "5.5.0"}
"""Of the clients, by the generation that the Maven profiles are named after."""
REACH_SECONDS_MAX = 90
"""For the one small file that tells whether Maven Central can be reached."""
BUILD_SECONDS_MAX = 420
"""A cold build of one generation fetches up to 100 MB."""


def need_clients(generation: str) -> list[str]:
    """The class path of a generation's clients, tools and examples, and of our driver."""
    if os.environ.get("POLYMQ_TESTS_WITHOUT_JAVA_CLIENTS"):
        pytest.skip("POLYMQ_TESTS_WITHOUT_JAVA_CLIENTS is set")
    for program in ("java", "javac", "mvn"):
        if shutil.which(program) is None:
            pytest.skip(f"there is no {program} on this machine")
    folder = _cache() / f"java-{_digest()}-{generation}"
    folder.mkdir(parents=True, exist_ok=True)
    class_path = folder / "class-path"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in several processes
        if not class_path.exists() or not _all_there(class_path):
            _build(generation, folder, class_path)
    return [str(folder / "classes"), class_path.read_text(encoding="utf-8").strip()]


def _cache() -> Path:
    named = os.environ.get("POLYMQ_TESTS_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "polymq-tests"


@functools.cache
def _digest() -> str:
    digest = hashlib.sha256()
    for path in sorted(path for path in PROJECT.rglob("*") if path.is_file()):
        digest.update(str(path.relative_to(PROJECT)).encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _all_there(class_path: Path) -> bool:
    """Whether the libraries are still where they were: Maven's own cache may have been emptied."""
    return all(Path(jar).exists() for jar in class_path.read_text(encoding="utf-8").split(":"))


def _build(generation: str, folder: Path, class_path: Path) -> None:
    _look_for_maven_central(folder)
    made = folder / "class-path.new"
    done = _maven(
        folder,
        BUILD_SECONDS_MAX,
        f"-Pclients{generation}",
        "compile",
        "dependency:build-classpath",
        f"-Dmdep.outputFile={made}",
    )
    if done is None or done.returncode:
        said = "it took too long" if done is None else done.stdout[-4000:]
        pytest.fail(
            "Maven cannot build the Java clients (to leave these tests out, set "
            f"POLYMQ_TESTS_WITHOUT_JAVA_CLIENTS=1):\n{said}"
        )
    made.rename(class_path)


def _look_for_maven_central(folder: Path) -> None:
    client = f"org.apache.rocketmq:rocketmq-all:{VERSIONS['4']}:pom"
    goal = ("dependency:get", f"-Dartifact={client}", "-Dtransitive=false")
    done = _maven(folder, REACH_SECONDS_MAX, "-Pclients4", *goal)
    if done is None or done.returncode:
        pytest.skip("Maven Central cannot be reached from here")


def _maven(folder: Path, seconds: int, *goals: str) -> subprocess.CompletedProcess[str] | None:
    """What Maven says; None if it takes too long."""
    command = ["mvn", "-B", "-q", f"-Dplace={folder}", *goals]
    try:
        return subprocess.run(
            command,
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


class JavaDriver(LineDriver):
    """A Java machine with clients.

    Args:
        names: `host:port` of the name server that they ask.
        serialize: how they write the headers of frames: `JSON`, or `ROCKETMQ` for binary ones.
        more: further properties of the system.
    """

    def __init__(
        self,
        class_path: list[str],
        names: str,
        *,
        serialize: str,
        home: Path,
        log: IO[str],
        more: Mapping[str, object] | None = None,
    ) -> None:
        settings = {
            "user.home": home,  # where the clients keep logs, and offsets of broadcasts
            "rocketmq.namesrv.addr": names,
            "rocketmq.serialize.type": serialize,
            "rocketmq.home.dir": class_path[0],
            "rocketmq.client.logRoot": home,
            "com.rocketmq.remoting.client.connect.timeout": 30_000,  # with all of TLS to be loaded
            **(more or {}),
        }
        command = [
            "java",
            "-Xmx256m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            *[f"-D{name}={value}" for name, value in settings.items()],
            "-cp",
            ":".join(class_path),
            "polymq.interop.Driver",
            names,
        ]
        super().__init__(command, directory=home, log=log)

    def run(self, name: str, *arguments: str, named: str | None = None) -> str:
        """Begin the main of one of Apache's classes; returns the name under which it prints."""
        named = named or name
        self.ask(
            "main", **{"class": f"org.apache.rocketmq.{name}"}, name=named, arguments=arguments
        )
        return named

    def printed(self, named: str) -> list[str]:
        """The lines that a program has printed so far."""
        self.take_news()
        return [line["printed"] for line in self.said if line.get("by") == named]

    def ended(self, named: str) -> list[dict[str, Any]]:
        """That a program's main has returned, with what it threw; empty if it has not."""
        self.take_news()
        return [line for line in self.said if line.get("ended") == named]
