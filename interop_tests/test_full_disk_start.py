"""A server whose disk is full: it starts, consumers drain it, and publishers go on when there is
room again, which the server makes by itself when nobody needs its messages any more."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pika
import pytest

from interop_tests.conftest import Server, StartServer

DISK_BYTES = 48 << 20
DEADLINE_SECONDS = 40.0
OPTIONS: dict[str, object] = {
    "storage.segment_bytes": 1 << 20,
    "storage.save_seconds": 0.2,
    "storage.disk_check_seconds": 0.1,
    "storage.retention_check_seconds": 0.2,
    "storage.disk_reserve_bytes": 4 << 20,
    "storage.disk_early_bytes": 4 << 20,
    "topics.retention_seconds": 1,
    "names.enabled": True,
    "names.port": 0,
}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own."""
    directory = tmp_path / "disk"
    directory.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(directory)],
        check=False,
        capture_output=True,
    )
    if made.returncode:
        pytest.skip("only root can make a small file system")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


def fill(directory: Path) -> Path:
    """Take all room, to the last byte."""
    ballast = directory / "ballast"
    with ballast.open("ab", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                pass
    return ballast


@contextmanager
def channel_of(server: Server) -> Iterator[Any]:
    parameters = pika.ConnectionParameters("127.0.0.1", server.amqp_port)
    with pika.BlockingConnection(parameters) as connection:
        yield connection.channel()


def health(server: Server) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.admin_port, timeout=10)
    connection.request("GET", "/health")
    answer = connection.getresponse()
    status = json.loads(answer.read())["status"]
    connection.close()
    return answer.status, status


def until(what: str, condition: Callable[[], object]) -> None:
    pause = threading.Event()
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        pause.wait(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_starts_on_a_full_disk_and_is_drained(
    start_server: StartServer, small_disk: Path, end: signal.Signals
) -> None:
    server = start_server(**{**OPTIONS, "server.data_directory": small_disk / "data"})
    bodies = [b"%d " % number + b"x" * 50_000 for number in range(100)]
    with channel_of(server) as channel:
        channel.confirm_delivery()
        channel.queue_declare("work", durable=True)
        for body in bodies:
            channel.basic_publish("", "work", body)
    if end is signal.SIGKILL:
        server.kill()
    else:
        assert server.terminate() == 0
    ballast = fill(small_disk)
    server.launch()
    until("it does not start", lambda: answers(server.amqp_port) or died(server))
    assert server.process.poll() is None, "it ended instead"

    with channel_of(server) as channel:
        got: list[bytes] = []
        while len(got) < len(bodies):
            method, _, body = channel.basic_get("work")
            assert method is not None, f"{len(got)} of {len(bodies)} messages"
            channel.basic_ack(method.delivery_tag)
            got.append(body)
    assert got == bodies
    os.truncate(ballast, 0)
    until("its files do not follow", server.is_ready)
    until("it stays full", lambda: health(server) == (200, "ok"))
    with channel_of(server) as channel:
        channel.confirm_delivery()
        channel.basic_publish("", "work", b"again")
        assert channel.basic_get("work")[2] == b"again"
    assert server.terminate() == 0
    assert not [line for line in server.log_lines() if "cannot write None" in line]


def free_bytes(directory: Path) -> int:
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


@pytest.mark.slow
@pytest.mark.parametrize("is_killed", [False, True])
def test_a_full_disk_mends_itself(
    start_server: StartServer, small_disk: Path, is_killed: bool
) -> None:
    """Nobody makes room by hand: what consumers are done with goes, though saving the state, which
    comes before that, finds no free byte."""
    server = start_server(**{**OPTIONS, "server.data_directory": small_disk / "data"})
    with channel_of(server) as channel:
        channel.confirm_delivery()
        for name in ("work", *(f"other{number}" for number in range(200))):
            channel.queue_declare(name, durable=True)
        for number in range(240):
            channel.basic_publish("", "work", b"%d " % number + b"x" * 50_000)
    set_aside = small_disk / "data" / "store" / "ballast"
    assert set_aside.stat().st_blocks * 512 >= 1 << 20, "it is sparse"
    if is_killed:
        server.kill()
    fill(small_disk)
    assert free_bytes(small_disk) == 0
    if is_killed:
        server.launch()
        until("it does not start", lambda: answers(server.amqp_port) or died(server))

    with channel_of(server) as channel:
        for _ in range(240):
            method, _, _ = channel.basic_get("work")
            assert method is not None
            channel.basic_ack(method.delivery_tag)
    until("its files do not go", lambda: free_bytes(small_disk) > 8 << 20)
    until("its files do not follow", server.is_ready)
    until("it stays full", lambda: health(server) == (200, "ok"))
    until("no room is set aside again", lambda: set_aside.stat().st_blocks * 512 >= 1 << 20)
    with channel_of(server) as channel:
        channel.confirm_delivery()
        channel.basic_publish("", "work", b"again")
    server.kill()
    server.launch()
    until("it does not start", lambda: answers(server.amqp_port) or died(server))
    with channel_of(server) as channel:
        assert channel.basic_get("work")[2] == b"again"
    assert server.terminate() == 0


def answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def died(server: Server) -> bool:
    return server.process.poll() is not None
