"""What systemd is told, by real datagrams."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from polymq.service_manager import ServiceManager

STAMP_NS = 1_234_567_890
OWN = "own"


@pytest.fixture(params=["path", "abstract"])
def heard(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    """The address of a service manager, as a service is told it, and what hears there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.settimeout(5)
        if request.param == "path":
            address = str(tmp_path / "notify")
            bound.bind(address)
        else:
            address = f"@polymq-test-{os.getpid()}-{time.monotonic_ns()}"
            bound.bind("\0" + address[1:])
        yield address, bound


def lines(bound: socket.socket) -> list[str]:
    return bound.recv(4096).decode().split("\n")


def test_the_life_of_a_service(heard: tuple[str, socket.socket]) -> None:
    address, bound = heard
    environment = {"NOTIFY_SOCKET": address, "PATH": "/bin"}
    manager = ServiceManager(environment, now_ns=lambda: STAMP_NS)
    assert environment == {"PATH": "/bin"}  # children are not the service
    manager.status("recovering the log")
    assert lines(bound) == ["STATUS=recovering the log"]
    manager.serving = "master: mqtt 1883"
    manager.ready()
    assert lines(bound) == ["READY=1", "STATUS=master: mqtt 1883"]
    manager.reloading()
    assert lines(bound) == ["RELOADING=1", "MONOTONIC_USEC=1234567", "STATUS=reloading"]
    manager.ready("the last reload failed:\nREADY=0")
    assert lines(bound) == ["READY=1", "STATUS=the last reload failed: READY=0"]
    manager.beat()
    assert lines(bound) == ["WATCHDOG=1"]
    manager.stopping()
    assert lines(bound) == ["STOPPING=1", "STATUS=stopping"]
    manager.close()
    manager.beat()  # nobody hears of it


def test_the_stamp_of_a_reload_is_that_of_the_systems_clock(
    heard: tuple[str, socket.socket],
) -> None:
    """systemd compares it with its own reading of CLOCK_MONOTONIC."""
    address, bound = heard
    manager = ServiceManager({"NOTIFY_SOCKET": address})
    before = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    manager.reloading()
    stamp = int(lines(bound)[1].partition("=")[2])
    assert before <= stamp <= time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    manager.close()


@pytest.mark.parametrize(
    ("microseconds", "process", "seconds"),
    [
        ("3000000", None, 1.0),
        ("3000000", OWN, 1.0),
        ("3000000", "1", 0.0),
        ("", None, 0.0),
        ("soon", None, 0.0),
        ("-5", None, 0.0),
    ],
)
def test_how_often_the_watchdog_is_fed(
    tmp_path: Path, microseconds: str, process: str | None, seconds: float
) -> None:
    """Three times in its time; and not at all if it watches another process."""
    environment = {"NOTIFY_SOCKET": str(tmp_path / "none"), "WATCHDOG_USEC": microseconds}
    if process is not None:
        environment["WATCHDOG_PID"] = str(os.getpid()) if process is OWN else process
    manager = ServiceManager(environment)
    assert manager.watchdog_seconds == seconds
    assert environment == {}
    manager.close()


def test_without_a_manager_nothing_is_sent_and_nobody_watches() -> None:
    manager = ServiceManager({"WATCHDOG_USEC": "1000000"})
    with capture_logs() as logged:
        manager.ready()
        manager.beat()
    assert manager.watchdog_seconds == 0
    assert logged == []


@pytest.mark.parametrize("address", ["vsock:2:1234", "relative"])
def test_an_address_that_is_no_unix_socket_is_told_once(address: str) -> None:
    with capture_logs() as logged:
        manager = ServiceManager({"NOTIFY_SOCKET": address})
        manager.ready()
        manager.ready()
    assert len(logged) == 1


def test_a_manager_that_does_not_hear_holds_up_nobody(heard: tuple[str, socket.socket]) -> None:
    """Its buffer is full: beats are left out, and all else is sent when there is room."""
    address, bound = heard
    called: list[Callable[[], None]] = []
    manager = ServiceManager({"NOTIFY_SOCKET": address})
    manager.call_with(lambda _seconds, callback: called.append(callback))
    for _ in range(10_000):
        manager.beat()
    assert called == []
    manager.reloading()
    manager.ready()
    assert len(called) == 1
    bound.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while lines(bound) == ["WATCHDOG=1"]:
            pass
    called.pop()()
    assert [lines(bound)[0] for _ in range(2)] == ["RELOADING=1", "READY=1"]
    assert called == []
    manager.close()


def test_a_manager_that_is_gone_is_told_once_in_the_log(tmp_path: Path) -> None:
    manager = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "gone")})
    with capture_logs() as logged:
        for _ in range(100):
            manager.beat()
            manager.ready()
    assert [line["log_level"] for line in logged] == ["warning"]
    manager.close()
