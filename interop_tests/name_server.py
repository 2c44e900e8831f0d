"""A name server as a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

SECONDS_MAX = 40.0
LOOK_SECONDS = 0.05


class NameServer:
    """A process of `polymq namesrv`."""

    def __init__(self, directory: Path, port: int = 0) -> None:
        directory.mkdir(exist_ok=True)
        self.port = port
        self.log_path = directory / "names.log"
        self.process: subprocess.Popen[bytes]
        self._directory = directory

    def launch(self, *more: str) -> None:
        """Start the process and return at once."""
        self._ready_file.unlink(missing_ok=True)
        command = [sys.executable, "-m", "polymq", "namesrv", "--port", str(self.port)]
        command += ["--data-directory", str(self._directory), "--ready-file", str(self._ready_file)]
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *more], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    @property
    def _ready_file(self) -> Path:
        return self._directory / "ready.json"

    def start(self) -> None:
        """Start the process and return when it listens."""
        self.launch()
        wait_until(lambda: self._ready_file.exists() or self.process.poll() is not None)
        assert self.process.poll() is None, self.log_path.read_text()
        self.port = json.loads(self._ready_file.read_text())["names"]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


MakeNameServer = Callable[..., NameServer]
"""What makes a name server, at a port if one is given."""


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        pause.wait(LOOK_SECONDS)
