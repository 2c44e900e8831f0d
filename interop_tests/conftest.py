"""A started server for tests that speak to it from outside, and nothing of its code.

`server` is one server with an empty data directory on ports that the system picks.
`start_server(...)` starts more of them, or differently configured ones; all are gone after the
test. What a server said stands below a failed test.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import pytest

# Whoever starts these tests in the background may have told them to ignore Ctrl-C, and the programs
# that they start would inherit that; a handler, unlike "ignore", is not inherited.
signal.signal(signal.SIGINT, signal.default_int_handler)

READY_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 60.0
LOOK_SECONDS = 0.02
LOG_LINES_SHOWN = 200
LISTENERS = ("mqtt", "amqp", "http", "rocketmq", "admin")

DEFAULTS: dict[str, object] = {
    # Preallocating 1 GiB for a handful of messages is only slow.
    "storage.segment_bytes": 64 * 1024 * 1024,
    # How much space the machine has to spare is not what the tests are about.
    "storage.disk_reserve_bytes": 64 * 1024 * 1024,
    "storage.disk_early_bytes": 64 * 1024 * 1024,
    "log.format": "json",
    # A thread and a port that only the tests of name servers need.
    "names.enabled": False,
}


def _close(sockets: list[socket.socket]) -> None:
    for each in sockets:
        each.close()
    sockets.clear()


class Server:
    """A server process.

    Attributes:
        host: where its listeners are.
        mqtt_port, amqp_port, http_port, rocketmq_port, admin_port: 0 before the first start, or
            where the listener is not open. They stay the same over a restart.
        data_directory: where it keeps its messages.
        process: the running or ended process.
        log_path: what it said on stderr, over all restarts.
        command: what is started; `serve` and the settings are added.
    """

    host = "127.0.0.1"

    def __init__(
        self,
        directory: Path,
        options: Mapping[str, object],
        environment: Mapping[str, str],
        command: tuple[str, ...],
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.data_directory = directory / "data"
        self.log_path = directory / "server.log"
        self.process: subprocess.Popen[bytes]
        self.mqtt_port = self.amqp_port = self.http_port = 0
        self.rocketmq_port = self.admin_port = 0
        self._ready_file = directory / "ready.json"
        self._options = {**DEFAULTS, **options}
        self._environment = environment
        self.command = command
        self._held: list[socket.socket] = []
        weakref.finalize(self, _close, self._held)  # of who kills and never starts again

    def configure(self, **options: object) -> None:
        """Change options for the next start."""
        self._options.update(options)

    def launch(self) -> None:
        """Start the process and return at once."""
        self._ready_file.unlink(missing_ok=True)
        arguments = ["--ready-file", str(self._ready_file)]
        settings = {"server.data_directory": self.data_directory}
        for listener in LISTENERS:
            settings[f"{listener}.port"] = getattr(self, f"{listener}_port")
        for key, value in {**settings, **self._options}.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            arguments += ["--set", f"{key}={text}"]
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.command, "serve", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self._environment},
                start_new_session=True,
            )

    def start(self) -> None:
        """Start the process and return when its listeners are open."""
        self.launch()
        deadline = time.monotonic() + READY_SECONDS_MAX
        while not self.is_ready():
            if self.ended_within(LOOK_SECONDS):
                raise AssertionError(f"the server ended with {self.process.returncode}")
            assert time.monotonic() < deadline, "the server is not ready in time"
        ready = json.loads(self._ready_file.read_text(encoding="utf-8"))
        assert ready["pid"] == self.process.pid
        for listener in LISTENERS:
            setattr(self, f"{listener}_port", ready[listener] or 0)
        self._let_ports_go()

    def is_ready(self) -> bool:
        """Whether the process that was started last has opened its listeners."""
        return self._ready_file.exists()

    def ended_within(self, seconds: float) -> bool:
        """Whether the process ends in this time."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """SIGKILL, as a crash: no goodbye, nothing flushed."""
        self.process.kill()
        self.process.wait()
        self._reserve_ports()

    def terminate(self) -> int:
        """SIGTERM, and wait for the end; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(STOP_SECONDS_MAX)
        self._reserve_ports()
        return code

    def _reserve_ports(self) -> None:
        """Until the next start, the system gives the ports to nobody who asks for any: a socket is
        bound there that does not listen, which keeps out no server that wants just this port."""
        for listener in LISTENERS:
            port = getattr(self, f"{listener}_port")
            if port:
                holder = socket.socket()
                holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                with contextlib.suppress(OSError):  # somebody was quicker
                    holder.bind((self.host, port))
                self._held.append(holder)

    def _let_ports_go(self) -> None:
        _close(self._held)

    def restart(self) -> None:
        """Start again on the same data and the same ports; stops a running one in order first."""
        if self.process.poll() is None:
            assert self.terminate() == 0
        self.start()

    def log_lines(self) -> list[str]:
        """What the server said so far."""
        return self.log_path.read_text(encoding="utf-8", errors="replace").splitlines()

    def log_events(self) -> list[dict[str, Any]]:
        """What the server logged so far, parsed; other lines are left out."""
        events = []
        for line in self.log_lines():
            with contextlib.suppress(ValueError):
                value = json.loads(line)
                if isinstance(value, dict):
                    events.append(value)
        return events

    def close(self, output: IO[str]) -> None:
        """End the process whatever it does, and show what it said."""
        if hasattr(self, "process") and self.process.poll() is None:
            self.kill()
        self._let_ports_go()
        if self.log_path.exists():
            print(
                f"--- {self.log_path}", *self.log_lines()[-LOG_LINES_SHOWN:], sep="\n", file=output
            )


StartServer = Callable[..., Server]


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    """Start servers: `start_server(**{"mqtt.connections_max": 3}, environment={...})`.

    Options by key of the configuration. `directory` keeps data and log somewhere else;
    `ready=False` only launches, for servers that are expected to fail; `command` replaces
    `python -m polymq`.
    """
    servers: list[Server] = []

    def start(
        *,
        directory: Path | None = None,
        environment: Mapping[str, str] | None = None,
        ready: bool = True,
        command: tuple[str, ...] = (sys.executable, "-m", "polymq"),
        **options: object,
    ) -> Server:
        folder = directory or tmp_path / f"server-{len(servers)}"
        made = Server(folder, options, environment or {}, command)
        servers.append(made)
        if ready:
            made.start()
        else:
            made.launch()
        return made

    yield start
    for server in servers:
        server.close(sys.stdout)


@pytest.fixture
def server(start_server: StartServer) -> Server:
    """A running server with an empty data directory."""
    return start_server()


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A running server that the tests of a file share: each cleans up before itself, or uses names
    that no other test there uses."""
    made = Server(tmp_path_factory.mktemp("shared"), {}, {}, (sys.executable, "-m", "polymq"))
    made.start()
    yield made
    made.close(sys.stdout)
