"""Started as systemd starts services: with a socket for notifications, and sockets that listen."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from interop_tests.conftest import Server, StartServer
from interop_tests.listener_clients import connect_code
from interop_tests.people import polymq

SECONDS = 60
HAND_OVER = """
import os, sys
count = int(sys.argv[1])
for at in range(count):
    os.dup2(int(sys.argv[2 + at]), 100 + at)
for at in range(count):
    os.dup2(100 + at, 3 + at)
    os.close(100 + at)
os.environ["LISTEN_PID"] = str(os.getpid())
os.environ["LISTEN_FDS"] = str(count)
os.environ["LISTEN_FDNAMES"] = sys.argv[2 + count]
os.execv(sys.executable, [sys.executable, "-m", "polymq", *sys.argv[3 + count:]])
"""
"""What systemd does between fork and exec: descriptors from 3 on, and the variables for them."""


class Manager:
    """Hears what a service says of itself."""

    def __init__(self, path: Path) -> None:
        self.environment = {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "600000"}
        self.heard: list[dict[str, str]] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))

    def wait_for(self, name: str, seconds: float = SECONDS) -> dict[str, str]:
        """The next message with this name; what came before it is in `heard`."""
        deadline = time.monotonic() + seconds
        while True:
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            text = self._socket.recv(4096).decode()
            message = dict(line.split("=", 1) for line in text.split("\n"))
            self.heard.append(message)
            if name in message:
                return message

    def falls_silent(self) -> bool:
        """Whether nothing comes for two seconds, behind the little that was sent before."""
        self._socket.settimeout(2)
        for _ in range(10):
            try:
                self._socket.recv(4096)
            except TimeoutError:
                return True
        return False

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    made = Manager(tmp_path / "notify")
    yield made
    made.close()


def test_the_life_of_a_service(start_server: StartServer, manager: Manager) -> None:
    """Ready when clients can connect, alive as long as its loop runs, reloading and ready again,
    stopping."""
    server = start_server(environment=manager.environment)
    ready = manager.wait_for("READY")
    assert [message for message in manager.heard if "READY" in message] == [ready]
    assert f"mqtt {server.mqtt_port}" in ready["STATUS"]
    assert connect_code(server.mqtt_port) == "Success"
    for _ in range(3):
        manager.wait_for("WATCHDOG", seconds=5)
    asked = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    server.process.send_signal(signal.SIGHUP)
    assert int(manager.wait_for("RELOADING")["MONOTONIC_USEC"]) >= asked
    assert manager.wait_for("READY")["STATUS"] == ready["STATUS"]
    assert polymq(server, "reload").returncode == 0
    manager.wait_for("RELOADING")
    manager.wait_for("READY")
    server.process.send_signal(signal.SIGTERM)
    manager.wait_for("STOPPING")
    assert server.process.wait(SECONDS) == 0


def test_a_loop_that_hangs_does_not_feed_the_watchdog(
    start_server: StartServer, manager: Manager
) -> None:
    """The process is there and does nothing, as a loop that is stuck: nothing is sent any more."""
    server = start_server(environment=manager.environment)
    manager.wait_for("WATCHDOG")
    server.process.send_signal(signal.SIGSTOP)
    try:
        assert manager.falls_silent()
    finally:
        server.process.send_signal(signal.SIGCONT)
    manager.wait_for("WATCHDOG")


def test_a_name_server_is_a_service_as_well(tmp_path: Path, manager: Manager) -> None:
    """On a socket that it inherits."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        arguments = ["namesrv", "--data-directory", str(tmp_path / "names"), "--port", "0"]
        descriptor = listening.fileno()
        process = subprocess.Popen(
            [sys.executable, "-c", HAND_OVER, "1", str(descriptor), "names", *arguments],
            env={**os.environ, **manager.environment},
            pass_fds=[descriptor],
            stderr=subprocess.DEVNULL,
        )
        try:
            ready = manager.wait_for("READY")
            assert ready["STATUS"].endswith(f"port {listening.getsockname()[1]}")
            with socket.create_connection(listening.getsockname(), timeout=SECONDS):
                pass
            manager.wait_for("WATCHDOG")
            process.send_signal(signal.SIGHUP)
            manager.wait_for("RELOADING")
            manager.wait_for("READY")
            process.terminate()
            manager.wait_for("STOPPING")
            assert process.wait(SECONDS) == 0
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()


def command_with(*sockets: tuple[str, socket.socket]) -> tuple[str, ...]:
    """`python -m polymq` as systemd starts it, with these sockets."""
    numbers = []
    for _, one in sockets:
        one.set_inheritable(True)
        numbers.append(str(one.fileno()))
    names = ":".join(name for name, _ in sockets)
    return (sys.executable, "-c", HAND_OVER, str(len(sockets)), *numbers, names)


def keep_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a started server inherit what is inheritable."""
    popen = subprocess.Popen

    def inheriting(*arguments: object, **options: object) -> subprocess.Popen[bytes]:
        return popen(*arguments, close_fds=False, **options)  # type: ignore[call-overload,no-any-return]

    monkeypatch.setattr(subprocess, "Popen", inheriting)


def test_listeners_take_the_sockets_of_their_names(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of all protocols, of a further listener, of a Unix socket, and of the operator's listener.
    Ports that the settings name are not bound then. The file of the Unix socket stays."""
    keep_descriptors(monkeypatch)
    path = tmp_path / "polymq.sock"
    unix = socket.socket(socket.AF_UNIX)
    unix.bind(str(path))
    unix.listen()
    labels = ("mqtt", "amqp", "http", "rocketmq", "admin", "mqtt-plant", "mqtt_ws")
    sockets = {label: socket.create_server(("127.0.0.1", 0)) for label in labels}
    ports = {label: one.getsockname()[1] for label, one in sockets.items()}
    listeners = [
        {"name": "plant", "port": ports["mqtt-plant"]},
        {"name": "local", "type": "unix", "path": "/no/such/directory/socket"},
    ]
    server = start_server(
        command=command_with(*sockets.items(), ("mqtt-local", unix)),
        **{
            "mqtt.listeners": json.dumps(listeners),
            "mqtt.websocket": True,
            "amqp.port": ports["amqp"],  # which nobody else may bind
        },
    )
    for one in (*sockets.values(), unix):
        one.close()
    found = json.loads((server.data_directory / "server.json").read_text())
    for label in ("mqtt", "amqp", "http", "rocketmq", "admin", "mqtt_ws"):
        assert found[label] == ports[label]
    assert found["mqtt_listeners"] == {"plant": ports["mqtt-plant"], "local": str(path)}
    assert connect_code(ports["mqtt"]) == "Success"
    assert connect_code(ports["mqtt-plant"]) == "Success"
    assert connect_code(str(path), transport="unix") == "Success"
    assert polymq(server, "ban", "list").returncode == 0
    for label in ("amqp", "http", "rocketmq"):
        with socket.create_connection(("127.0.0.1", ports[label]), timeout=SECONDS):
            pass
    assert server.terminate() == 0
    assert path.exists()


@pytest.mark.parametrize(
    ("name", "host", "text"),
    [
        ("mqttt", "127.0.0.1", "there is no listener 'mqttt'"),
        ("mqtts", "127.0.0.1", "there is no listener 'mqtts'"),
        ("mqtt", "0.0.0.0", "only this machine may reach it"),
    ],
)
def test_a_socket_that_fits_no_listener_ends_the_start(
    start_server: StartServer, monkeypatch: pytest.MonkeyPatch, name: str, host: str, text: str
) -> None:
    """One line and exit code 2, and nothing is written."""
    keep_descriptors(monkeypatch)
    with socket.create_server((host, 0)) as one:
        server: Server = start_server(ready=False, command=command_with((name, one)))
        assert server.process.wait(SECONDS) == 2
    (line,) = server.log_lines()
    assert line.startswith("polymq: ")
    assert text in line
    assert not server.data_directory.exists()
