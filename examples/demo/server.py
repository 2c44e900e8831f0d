"""The server that the demo drives: a process like any other, in a directory of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from examples.demo.workers import HOST, DemoFailed

READY_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 30.0
LOOK_SECONDS = 0.02

OPTIONS = (
    # 1 GiB is reserved for a segment by default: too much for a temporary directory.
    "storage.segment_bytes=67108864",
    # The webhook receiver of the demo is on this machine and has no certificate.
    "http.webhook_allow_http=true",
    'http.webhook_allow_networks=["127.0.0.0/8"]',
)


class DemoServer:
    """`polymq serve` on free ports of loopback. The ports stay the same over a restart."""

    def __init__(self, directory: Path) -> None:
        self.data_directory = directory / "data"
        self.log_path = directory / "server.log"
        self._ready_file = directory / "ready.json"
        self._process: subprocess.Popen[bytes] | None = None
        self.ports = dict.fromkeys(("mqtt", "amqp", "http", "rocketmq", "names", "admin"), 0)

    def start(self) -> None:
        """Start, and wait until clients can connect."""
        self._ready_file.unlink(missing_ok=True)
        assignments = [f"server.data_directory={self.data_directory}", *OPTIONS]
        assignments += [f"{door}.port={port}" for door, port in self.ports.items()]
        arguments = [part for assignment in assignments for part in ("--set", assignment)]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "polymq", "serve", *arguments, "--ready-file",
                 str(self._ready_file)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )  # fmt: skip
        deadline = time.monotonic() + READY_SECONDS_MAX
        while not self._ready_file.exists():
            if self._ended(LOOK_SECONDS):
                raise DemoFailed(f"the server did not start:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise DemoFailed(f"the server is not ready in time:\n{self.log_tail()}")
        ready = json.loads(self._ready_file.read_text(encoding="utf-8"))
        self.ports = {door: ready[door] or 0 for door in self.ports}

    def _ended(self, seconds: float) -> bool:
        assert self._process is not None
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """SIGKILL: the server has no chance to tidy up."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """SIGTERM, and wait for the end."""
        assert self._process is not None
        self._process.terminate()
        if not self._ended(STOP_SECONDS_MAX):
            raise DemoFailed(f"the server does not stop:\n{self.log_tail()}")
        if self._process.returncode:
            text = f"the server ended with code {self._process.returncode}:\n{self.log_tail()}"
            raise DemoFailed(text)

    def address(self, door: str) -> str:
        """HOST:PORT of a door."""
        return f"{HOST}:{self.ports[door]}"

    def log_tail(self) -> str:
        """The last lines that the server said."""
        if not self.log_path.exists():
            return ""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-20:])
