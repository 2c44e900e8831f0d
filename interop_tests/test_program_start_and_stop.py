"""A server's life as the operating system sees it: ready file, signals, exit codes, one line."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from interop_tests.conftest import Server, StartServer

LINE_SECONDS_MAX = 60.0


def test_ready_means_that_every_listener_is_open(server: Server) -> None:
    """The ready file comes last: whoever waits for it can connect to every port in it."""
    for port in (server.mqtt_port, server.amqp_port, server.http_port, server.rocketmq_port):
        socket.create_connection((server.host, port), timeout=5).close()
    written = json.loads((server.data_directory / "server.json").read_text())
    assert written["pid"] == server.process.pid
    assert written["mqtt"] == server.mqtt_port


@pytest.mark.parametrize("command", [("serve",), ("namesrv", "--port", "0")])
def test_a_ready_file_that_cannot_be_written(tmp_path: Path, command: tuple[str, ...]) -> None:
    """It is said in one line before anything starts: who waits for the file would wait for ever."""
    file = tmp_path / "missing" / "ready.json"
    data = tmp_path / "data"
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "polymq", *command, "--ready-file", str(file)),
            *("--data-directory", str(data)),
        ],
        capture_output=True,
        text=True,
        timeout=LINE_SECONDS_MAX,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == (
        f"polymq: --ready-file: there is no directory {file.parent}: create it first "
        f"(see polymq {command[0]} --help)\n"
    )
    assert not data.exists()


def test_nobody_else_can_read_the_data(server: Server) -> None:
    assert stat.S_IMODE(server.data_directory.stat().st_mode) == 0o700
    segments = list((server.data_directory / "store" / "commitlog").iterdir())
    assert segments
    assert {stat.S_IMODE(path.stat().st_mode) for path in segments} == {0o600}


def test_only_loopback_is_bound(server: Server) -> None:
    """Another address of this machine does not answer: here one of the loopback network."""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", server.mqtt_port), timeout=5)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_in_order(server: Server, number: signal.Signals) -> None:
    """Code 0, the ports file is gone, and the next start has nothing to recover."""
    server.process.send_signal(number)
    assert server.process.wait(LINE_SECONDS_MAX) == 0
    assert not (server.data_directory / "server.json").exists()
    assert server.log_events()[-1]["event"] == "stopped"
    assert not [event for event in server.log_events() if event["level"] != "info"]
    server.restart()
    opened = [event for event in server.log_events() if event["event"].startswith("log ")]
    assert [event["epoch"] for event in opened] == [1, 2]
    assert opened[1]["clean"] is True


@pytest.mark.slow
def test_after_sigkill_the_next_start_says_that_it_recovered(server: Server) -> None:
    server.kill()
    server.restart()
    (recovered,) = [e for e in server.log_events() if e["event"].startswith("log recovered")]
    assert recovered["level"] == "warning"
    assert recovered["clean"] is False


def test_a_second_ctrl_c_ends_at_once(start_server: StartServer) -> None:
    """The first one waits for a client that takes its time; the second does not."""
    server = start_server(**{"server.drain_seconds": 600})
    with http_request_under_way(server):
        server.process.send_signal(signal.SIGINT)
        wait_for_line(server, "stopping; Ctrl-C again to stop at once")
        assert not server.ended_within(0.3)
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(10) == 130
    assert server.log_lines()[-1] == "polymq: stopped at once"


@pytest.mark.slow
def test_sigterm_does_not_wait_longer_than_it_should(start_server: StartServer) -> None:
    """A client that does not go is closed when the time to take leave is over."""
    server = start_server(**{"server.drain_seconds": 0.5})
    with http_request_under_way(server):
        assert server.terminate() == 0


def http_request_under_way(server: Server) -> socket.socket:
    """A connection with half a request on it: the server waits for the rest."""
    connection = socket.create_connection((server.host, server.http_port), timeout=5)
    connection.sendall(
        b"POST /topics/t HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\nhalf"
    )
    # Answered requests on the same port show that the server has read ours before.
    assert raw_status(server) == 200
    return connection


def raw_status(server: Server) -> int:
    with socket.create_connection((server.host, server.http_port), timeout=5) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        return int(connection.makefile("rb").readline().split()[1])


def wait_for_line(server: Server, text: str) -> None:
    for _ in range(500):
        if any(text in line for line in server.log_lines()):
            return
        assert not server.ended_within(0.02), "the server ended"
    raise AssertionError(f"the server did not say {text!r}")


# --- what keeps a server from starting ------------------------------------------------------


def failed_start(start_server: StartServer, **options: object) -> tuple[int, str]:
    """Exit code and the one line of a server that cannot start."""
    server = start_server(ready=False, **options)
    code = server.process.wait(LINE_SECONDS_MAX)
    text = server.log_path.read_text()
    assert "Traceback" not in text
    complaints = [line for line in text.splitlines() if line.startswith("polymq: ")]
    assert len(complaints) == 1, text
    return code, complaints[0]


def test_a_taken_port_is_named(start_server: StartServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, line = failed_start(start_server, **{"mqtt.port": port})
    assert code == 71
    assert f"port {port} on 127.0.0.1 is taken" in line
    assert line.startswith("polymq: mqtt: ")


@pytest.mark.parametrize("listener", ["amqp", "http", "rocketmq", "admin"])
def test_every_listener_tells_that_its_port_is_taken(
    start_server: StartServer, listener: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, line = failed_start(start_server, **{f"{listener}.port": port})
    assert code == 71
    assert str(port) in line
    assert line.startswith(f"polymq: {listener}: ")


def test_an_address_of_another_machine_cannot_be_bound(start_server: StartServer) -> None:
    options = {"server.host": "192.0.2.1", "server.allow_insecure": True}
    code, line = failed_start(start_server, **options)
    assert code == 71
    assert "192.0.2.1 is not an address of this machine" in line


def test_a_data_directory_that_cannot_be_made(start_server: StartServer, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    options = {"server.data_directory": tmp_path / "file" / "data"}
    code, line = failed_start(start_server, **options)
    assert code == 73
    assert "file/data" in line


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_data_directory_that_may_not_be_written(
    start_server: StartServer, tmp_path: Path
) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    options = {"server.data_directory": tmp_path / "closed" / "data"}
    code, line = failed_start(start_server, **options)
    assert code == 73
    assert "Permission denied" in line


def test_a_data_directory_in_use(start_server: StartServer, server: Server) -> None:
    code, line = failed_start(start_server, **{"server.data_directory": server.data_directory})
    assert code == 75
    assert "is in use: stop the server there" in line
    assert server.process.poll() is None


def test_a_data_directory_that_lost_what_had_been_synced(
    start_server: StartServer, server: Server
) -> None:
    """Somebody truncated the log: better to say so than to serve what is left."""
    assert server.terminate() == 0
    for segment in (server.data_directory / "store" / "commitlog").iterdir():
        os.truncate(segment, 16)
    code, line = failed_start(start_server, **{"server.data_directory": server.data_directory})
    assert code == 65
    assert "commitlog" in line or "log" in line


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("[mqtt]\nprot = 1\n", "there is no setting mqtt.prot (did you mean mqtt.port?)"),
        ("[mqtt]\nport = 'x'\n", "mqtt.port"),
        ("[mqtt\n", "is not TOML"),
    ],
)
def test_a_wrong_configuration(tmp_path: Path, content: str, expected: str) -> None:
    (tmp_path / "polymq.toml").write_text(content)
    ended = subprocess.run(
        [sys.executable, "-m", "polymq", "serve"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
        timeout=LINE_SECONDS_MAX,
    )
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert ended.stderr.startswith("polymq: ")
    assert expected in ended.stderr
    assert not (tmp_path / "data").exists()


def test_compiled_kernels_are_demanded_or_pure_ones_taken(start_server: StartServer) -> None:
    server = start_server(environment={"POLYMQ_KERNELS": "pure"})
    assert raw_status(server) == 200
    health = admin_health(server)
    assert set(health["kernels"].values()) == {"pure"}


def admin_health(server: Server) -> dict[str, Any]:
    with socket.create_connection((server.host, server.admin_port), timeout=5) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        content = connection.makefile("rb").read().partition(b"\r\n\r\n")[2]
    health: dict[str, Any] = json.loads(content)
    return health


def test_a_server_that_nobody_can_connect_to_says_so(start_server: StartServer) -> None:
    """It may be wanted, to look into a store; but then it is no accident that goes unseen."""
    listeners = ("mqtt", "amqp", "http", "rocketmq")
    server = start_server(**{f"{listener}.enabled": False for listener in listeners})
    reported = [event["event"] for event in server.log_events() if event.get("level") == "warning"]
    assert any("no client can connect" in text for text in reported)
    assert set(admin_health(server)["kernels"])
