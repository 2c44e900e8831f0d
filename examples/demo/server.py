"""A server that the demo drives: a process like any other, in a directory of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

from examples.demo.workers import HOST, DemoFailed, Processes, end

READY_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 30.0
COMMAND_SECONDS_MAX = 120.0
LOOK_SECONDS = 0.02
POLYMQ = (sys.executable, "-m", "polymq")
LISTENERS = ("mqtt", "amqp", "http", "rocketmq", "names", "admin")

OPTIONS = {
    # 1 GiB is reserved for a segment by default: too much for a temporary directory.
    "storage.segment_bytes": 64 * 1024 * 1024,
    # The webhook receiver of the demo is on this machine and has no certificate.
    "http.webhook_allow_http": "true",
    "http.webhook_allow_networks": '["127.0.0.0/8"]',
}


class DemoServer:
    """`polymq serve` on free ports of loopback. The ports stay the same over a restart.

    Args:
        options: settings that differ from the demo's.

    Attributes:
        ports: by listener, since the first start; `replication` is None where there is none.
    """

    def __init__(
        self, processes: Processes, directory: Path, options: dict[str, object] | None = None
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.processes = processes
        self.options = {**OPTIONS, **(options or {})}
        self.data_directory = directory / "data"
        self.log_path = directory / "server.log"
        self._ready_file = directory / "ready.json"
        self._process: subprocess.Popen[bytes] | None = None
        self.ports: dict[str, int] = dict.fromkeys(LISTENERS, 0)

    def start(self) -> None:
        """Start, and return at once: `wait_ready` comes next."""
        self._ready_file.unlink(missing_ok=True)
        settings = {
            **self.options,
            "server.data_directory": self.data_directory,
            **{f"{listener}.port": self.ports[listener] for listener in LISTENERS},
        }
        arguments = [
            part for key, value in settings.items() for part in ("--set", f"{key}={value}")
        ]
        with self.log_path.open("ab") as log:
            self._process = self.processes.start(
                [*POLYMQ, "serve", *arguments, "--ready-file", self._ready_file],
                stdout=log,
                stderr=log,
            )

    def wait_ready(self) -> None:
        """Wait until clients can connect."""
        deadline = time.monotonic() + READY_SECONDS_MAX
        while not self._ready_file.exists():
            if self._ended(LOOK_SECONDS):
                raise DemoFailed(f"the server did not start:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise DemoFailed(f"the server is not ready in time:\n{self.log_tail()}")
        ready = json.loads(self._ready_file.read_text(encoding="utf-8"))
        self.ports = {name: port for name, port in ready.items() if isinstance(port, int)}

    def command(self, *arguments: str) -> str:
        """Run a command of `polymq` for this server; returns what it prints."""
        process = self.processes.start(
            [*POLYMQ, *arguments, "--data-directory", self.data_directory],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            printed, errors = process.communicate(timeout=COMMAND_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            end(process)
            raise DemoFailed(f"polymq {' '.join(arguments)} does not end") from None
        if process.returncode:
            raise DemoFailed(f"polymq {' '.join(arguments)} failed:\n{errors}")
        return str(printed)

    def _ended(self, seconds: float) -> bool:
        assert self._process is not None
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """SIGKILL: the server has no chance to tidy up."""
        if self._process is not None:
            end(self._process)

    def pause(self) -> None:
        """SIGSTOP: it does nothing until it is told to go on."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """After a pause."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self) -> None:
        """SIGTERM, and wait for the end."""
        assert self._process is not None
        self._process.terminate()
        if not self._ended(STOP_SECONDS_MAX):
            raise DemoFailed(f"the server does not stop:\n{self.log_tail()}")
        if self._process.returncode:
            text = f"the server ended with code {self._process.returncode}:\n{self.log_tail()}"
            raise DemoFailed(text)

    def address(self, listener: str) -> str:
        """HOST:PORT of a listener."""
        return f"{HOST}:{self.ports[listener]}"

    def log_tail(self) -> str:
        """The last lines that the server said."""
        if not self.log_path.exists():
            return ""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-20:])
