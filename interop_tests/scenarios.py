"""Programs in other languages that go through scenarios with a server, each with a library.

A program is given the library (where it has several) and the server's port. It prints a line of
JSON for each scenario: `{"scenario": "will", "error": ""}`. With `{"kill": true}` it asks for the
server to be killed and started again, and waits for a line on its standard input.
"""

from __future__ import annotations

import hashlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from interop_tests.conftest import Server

RUN_SECONDS_MAX = 150.0
"""A run takes some 20 seconds; where a library's patience ends, a scenario takes 20 more."""
LIBRARIES_SAY = 4000
"""Characters of what a library has said, below a failed test."""


class Results:
    """What a program has found."""

    def __init__(self) -> None:
        self.errors: dict[str, str] = {}

    def check(self, scenario: str) -> None:
        """The scenario was played, and all was well."""
        assert scenario in self.errors, f"{scenario} was not played; played were {[*self.errors]}"
        assert not self.errors[scenario], self.errors[scenario]


@contextmanager
def played(directory: Path, command: Sequence[str | Path], **options: object) -> Iterator[Results]:
    """Start a server, and a program whose last argument becomes the port; both have ended when the
    results are there. What they said is printed at the end."""
    server = Server(directory / "server", options, {}, (sys.executable, "-m", "polymq"))
    results = Results()
    log = directory / "program.log"
    try:
        server.start()
        with log.open("w") as output:
            _play(server, [*command, str(server.mqtt_port)], results, output)
        yield results
    finally:
        server.close(sys.stdout)
        if log.exists():
            print(log.read_text(errors="replace")[-LIBRARIES_SAY:])


def _play(server: Server, command: Sequence[str | Path], results: Results, log: Any) -> None:
    program = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
    )
    assert program.stdin is not None
    assert program.stdout is not None
    lines: queue.Queue[str | None] = queue.Queue()
    reader = threading.Thread(target=_read, args=(program, lines))
    reader.start()
    deadline = time.monotonic() + RUN_SECONDS_MAX
    try:
        while (text := lines.get(timeout=max(deadline - time.monotonic(), 0.001))) is not None:
            line = json.loads(text)
            if line.get("kill"):
                server.kill()
                server.start()
                program.stdin.write("done\n")
                program.stdin.flush()
            else:
                results.errors[line["scenario"]] = line["error"]
    except queue.Empty:
        pass  # what was not played in time fails
    finally:
        program.kill()
        program.wait()
        reader.join()
        program.stdin.close()
        program.stdout.close()


def _read(program: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    assert program.stdout is not None
    for line in program.stdout:
        lines.put(line)
    lines.put(None)


# --- where programs are built ---------------------------------------------------------------------


def build_folder(project: Path, inputs: Sequence[str]) -> Path:
    """A folder outside the tree for what is built of a project, whose name changes with its files.

    Args:
        inputs: patterns of these files.
    """
    digest = hashlib.sha256()
    for path in sorted(path for pattern in inputs for path in project.glob(pattern)):
        digest.update(str(path.relative_to(project)).encode() + path.read_bytes())
    named = os.environ.get("POLYMQ_TESTS_CACHE")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "polymq-tests"
    folder = (Path(named) if named else cache) / f"{project.name}-{digest.hexdigest()[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
