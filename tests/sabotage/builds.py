"""Compiled kernels of a copy: a mistake in one of them has to be built before anything runs it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

SUFFIX: Final = ".pyx"


class CannotBuild(Exception):
    """There is no compiler, or the broken source does not compile; the text says which."""


def can_build() -> bool:
    """Whether this machine has what it takes."""
    there = shutil.which(os.environ.get("CC", "cc")) is not None
    return there and importlib.util.find_spec("Cython") is not None


@contextmanager
def rebuilt(copy: Path, source: Path) -> Iterator[None]:
    """The kernel is built anew from its source, which was broken. In the end the kernel that was
    there is back. Raises CannotBuild."""
    found = list(source.parent.glob(f"{source.stem}.*.so"))
    if len(found) != 1:
        raise CannotBuild(f"{source.name} is not compiled here")
    sound = found[0].read_bytes()
    try:
        build(copy, source)
        yield
    finally:
        for made in (found[0], source.with_suffix(".c")):
            made.unlink(missing_ok=True)
        found[0].write_bytes(sound)


def as_in_the_package(copy: Path, source: Path) -> Path:
    """The source behind the package's link to its folder: from this path Cython takes the name."""
    inside = source.relative_to(copy)
    return "polymq" / inside if (copy / "polymq" / inside).exists() else inside


def build(copy: Path, source: Path) -> None:
    """Compile one kernel in its place. Raises CannotBuild."""
    command = [sys.executable, "-m", "Cython.Build.Cythonize", "--inplace", "--force", "-3"]
    done = subprocess.run(
        [*command, str(as_in_the_package(copy, source))],
        cwd=copy,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["(no output)"]
        raise CannotBuild(f"{source.name} does not compile: {lines[-1]}")
