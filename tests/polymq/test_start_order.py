"""The order of a start: ports before the store; and its ways to fail that nobody must wait for."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from polymq import name_server
from polymq.core_log.files import Files
from polymq.errors import ExitCode, Failure
from polymq.held_ports import reserve_ports
from polymq.name_server import NameServerThread
from polymq.names import Registration
from polymq.net.budget import Budget
from polymq.ports import Ports
from polymq.segment_size import segment_bytes_of
from polymq.serve import run_server, with_ports
from polymq.settings import MIB, Settings, load_settings
from tests.harness.broker import Broker
from tests.harness.files import MemoryFiles

LISTENERS = ("mqtt", "amqp", "http", "rocketmq", "admin", "names")


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def settings_for(tmp_path: Path, **ports: int) -> Settings:
    flags: dict[str, dict[str, Any]] = {
        listener: {"port": ports.get(listener, 0)} for listener in LISTENERS
    }
    flags["server"] = {"data_directory": tmp_path / "data", "drain_seconds": 0.2}
    return load_settings(flags=flags)


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that another program listens at."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield int(other.getsockname()[1])


@pytest.mark.parametrize("listener", LISTENERS)
def test_a_start_that_finds_a_port_taken_writes_nothing(
    tmp_path: Path, taken: int, listener: str
) -> None:
    settings = settings_for(tmp_path, **{listener: taken})
    with pytest.raises(Failure, match=f"^{listener}: port {taken}") as caught:
        run_server(settings, ready_file=None)
    assert caught.value.code == ExitCode.CANNOT_LISTEN
    assert not (tmp_path / "data").exists()


def test_a_start_on_a_host_that_is_not_ours_writes_nothing(tmp_path: Path) -> None:
    """Whichever ports the system would pick there."""
    settings = settings_for(tmp_path)
    server = settings.server.model_copy(update={"host": "192.0.2.1"})  # RFC 5737: for documents
    with pytest.raises(Failure, match="not an address of this machine") as caught:
        run_server(settings.model_copy(update={"server": server}), ready_file=None)
    assert caught.value.code == ExitCode.CANNOT_LISTEN
    assert not (tmp_path / "data").exists()


def test_two_listeners_do_not_have_one_port(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    with pytest.raises(Failure, match=f"^amqp: port {port} is that of mqtt"):
        run_server(settings_for(tmp_path, mqtt=port, amqp=port), ready_file=None)
    assert not (tmp_path / "data").exists()


def with_websocket(settings: Settings, **changed: object) -> Settings:
    mqtt = settings.mqtt.model_copy(update={"websocket": True, **changed})
    return settings.model_copy(update={"mqtt": mqtt})


def test_a_port_for_websocket_is_looked_at_like_the_others(tmp_path: Path, taken: int) -> None:
    """Taken by another program, or by another listener; not where it is not to be opened."""
    settings = with_websocket(settings_for(tmp_path), websocket_port=taken)
    with pytest.raises(Failure, match=f"^mqtt_ws: port {taken}") as caught:
        run_server(settings, ready_file=None)
    assert caught.value.code == ExitCode.CANNOT_LISTEN
    free = free_port()
    settings = with_websocket(settings_for(tmp_path, amqp=free), websocket_port=free)
    with pytest.raises(Failure, match=f"^mqtt_ws: port {free} is that of amqp"):
        reserve_ports(settings)
    for changed in ({"websocket": False}, {"enabled": False}, {"plain": False}):
        reserve_ports(
            with_websocket(settings_for(tmp_path), websocket_port=taken, **changed)
        ).close()


def test_another_role_keeps_the_port_for_websocket(tmp_path: Path) -> None:
    ports = Ports(
        host="127.0.0.1", mqtt=1, amqp=2, http=3, rocketmq=4, admin=5, mqtt_ws=6, names=None
    )
    mqtt = with_ports(with_websocket(settings_for(tmp_path)), ports).mqtt
    assert (mqtt.websocket, mqtt.port, mqtt.websocket_port) == (True, 1, 6)


def test_another_role_has_the_ports_of_the_further_listeners(tmp_path: Path) -> None:
    """Those that the system chose; a Unix socket has none."""
    settings = settings_for(tmp_path)
    unix = {"name": "b", "type": "unix", "path": "/run/b"}
    listeners = load_settings(flags={"mqtt": {"listeners": [{"name": "a"}, unix]}}).mqtt.listeners
    mqtt = settings.mqtt.model_copy(update={"listeners": listeners})
    settings = settings.model_copy(update={"mqtt": mqtt})
    ports = Ports(
        host="127.0.0.1",
        mqtt=1,
        amqp=2,
        http=3,
        rocketmq=4,
        admin=5,
        mqtt_listeners={"a": 7, "b": "/run/b"},
    )
    changed = with_ports(settings, ports).mqtt
    assert [listener.port for listener in changed.listeners] == [7, 0]
    assert changed.port == 1


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_held_port_is_nobody_elses_and_its_listeners_own(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    with reserve_ports(settings_for(tmp_path, mqtt=port)):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=10)
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        with socket.create_server(("127.0.0.1", port), reuse_port=False):
            socket.create_connection(("127.0.0.1", port), timeout=10).close()


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), ImportError("no trio")])
def test_a_name_server_that_dies_at_once_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Whatever it meets, on its very first line."""

    def fail(self: NameServerThread) -> None:
        raise error

    monkeypatch.setattr(NameServerThread, "_serve", fail)
    thread = NameServerThread(settings_for(tmp_path), Budget())
    with pytest.raises(Failure, match="names: the name server ended") as caught:
        asyncio.run(thread.start())
    assert str(error) in caught.value.text
    thread.stop()


def test_a_name_server_that_never_comes_up_is_not_waited_for_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = threading.Event()
    monkeypatch.setattr(NameServerThread, "_serve", lambda self: go.wait(60))
    monkeypatch.setattr(name_server, "START_SECONDS_MAX", 0.05)
    thread = NameServerThread(settings_for(tmp_path), Budget())
    try:
        with pytest.raises(Failure, match="did not start within"):
            asyncio.run(thread.start())
    finally:
        go.set()
        thread.stop()


def test_a_name_server_that_is_stopped_before_it_serves_ends(tmp_path: Path) -> None:
    """A signal during the start is not left waiting for a thread that nobody can end."""
    thread = NameServerThread(settings_for(tmp_path), Budget())
    thread._thread.start()
    thread.stop()
    assert not thread._thread.is_alive()


def test_a_start_can_be_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM comes while the name server hangs."""
    go = threading.Event()

    def hang(self: NameServerThread) -> None:
        os.kill(os.getpid(), signal.SIGHUP)  # which is ignored
        os.kill(os.getpid(), signal.SIGTERM)
        go.wait(60)

    monkeypatch.setattr(NameServerThread, "_serve", hang)
    monkeypatch.setattr(name_server, "STOP_SECONDS_MAX", 0.05)
    ready_file = tmp_path / "ready.json"
    began = time.monotonic()
    try:
        assert run_server(settings_for(tmp_path), ready_file=ready_file) == 0
    finally:
        go.set()
    assert time.monotonic() - began < 30
    assert not ready_file.exists()
    assert not (tmp_path / "data" / "store" / "abort").exists()


class SomeRoom(MemoryFiles):
    """Files on a disk with so much free."""

    def __init__(self, free_bytes: int) -> None:
        super().__init__()
        self.free_bytes = free_bytes


@pytest.mark.parametrize(
    ("free", "size"),
    [(1, 16), (4 * 1024, 64), (7 * 1024, 64), (63 * 1024, 512), (64 * 1024, 1024), (9**9, 1024)],
)
def test_a_small_disk_has_small_files(tmp_path: Path, free: int, size: int) -> None:
    files: Files = SomeRoom(free * MIB)
    assert segment_bytes_of(settings_for(tmp_path), files) == size * MIB


def test_a_log_keeps_the_size_of_its_files(tmp_path: Path) -> None:
    """Its disk may be larger, or fuller, at a later start."""
    log = tmp_path / "data" / "store" / "commitlog"
    log.mkdir(parents=True)
    for number, size in enumerate((64 * MIB, 64 * MIB, 100)):  # the last was cut by a crash
        with (log / f"{number * 64 * MIB:020}").open("wb") as file:
            file.truncate(size)
    (log / "next").touch()
    assert segment_bytes_of(settings_for(tmp_path), SomeRoom(9**9 * MIB)) == 64 * MIB


def test_a_start_waits_until_the_name_server_beside_has_answered(tmp_path: Path) -> None:
    """A client that comes as soon as the server is ready asks that one for routes. One that does
    not let the broker in does not keep it from starting."""
    broker = Broker(tmp_path)

    async def scenario() -> None:
        asked, answered = asyncio.Event(), asyncio.Event()

        async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            asked.set()
            await answered.wait()
            writer.close()

        async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
            registration = Registration(
                settings_for(tmp_path),
                broker.engine,
                port=1,
                beside=server.sockets[0].getsockname()[1],
                epoch=1,
                clock_ms=broker.loop.clock_ms,
            )
            starting = asyncio.create_task(registration.start())
            await asked.wait()
            assert not starting.done()
            answered.set()
            await starting
            await registration.stop()

    asyncio.run(scenario())
    broker.stop()
