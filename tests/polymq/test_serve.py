"""The process around a server, in the test's own process: what a disk failure makes of it, and
what is left when a start fails half way."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import resource
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from polymq.compose import Node
from polymq.core_log.files import RealFiles
from polymq.descriptors import raise_open_files
from polymq.errors import ExitCode, Failure
from polymq.open_store import open_store
from polymq.ports import Ports
from polymq.serve import run_server
from polymq.settings import Settings, load_settings
from tests.harness.files import FailingFiles

READY_SECONDS_MAX = 30.0


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    flags: dict[str, dict[str, Any]] = {
        listener: {"port": 0} for listener in ("mqtt", "amqp", "http", "rocketmq", "admin")
    }
    flags["server"] = {"data_directory": tmp_path / "data", "drain_seconds": 0.2}
    flags["names"] = {"enabled": False}
    flags["storage"] = {"segment_bytes": 1024 * 1024, "save_seconds": 0.05}
    return load_settings(flags=flags)


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> FailingFiles:
    """The disk of the servers of this test."""
    failing = FailingFiles(RealFiles())
    monkeypatch.setattr("polymq.open_store.RealFiles", lambda: failing)
    return failing


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def serve_until(
    settings: Settings, tmp_path: Path, when_ready: Callable[[dict[str, Any]], None]
) -> int:
    """Run a server in the main thread; when it is ready, do something beside it and stop it."""
    ready_file = tmp_path / "ready.json"
    failed: list[BaseException] = []

    def beside() -> None:
        try:
            pause = threading.Event()
            for _ in range(int(READY_SECONDS_MAX / 0.01)):
                if ready_file.exists():
                    when_ready(json.loads(ready_file.read_text()))
                    return
                pause.wait(0.01)
        except BaseException as error:
            failed.append(error)
            raise
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=beside)
    thread.start()
    try:
        return run_server(settings, ready_file=ready_file)
    finally:
        thread.join()
        assert not failed


def ask(port: int, path: str, method: str = "GET") -> tuple[int, str]:
    headers = {"X-PolyMQ-Admin": "test"}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", method=method, headers=headers
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_a_server_that_nothing_happens_to_ends_with_0(settings: Settings, tmp_path: Path) -> None:
    def look(ready: dict[str, Any]) -> None:
        assert ask(ready["admin"], "/health")[0] == 200

    assert serve_until(settings, tmp_path, look) == 0
    assert not (tmp_path / "ready.json").exists()


def test_after_a_disk_error_it_serves_read_only_says_so_and_ends_with_74(
    settings: Settings, tmp_path: Path, files: FailingFiles
) -> None:
    """fdatasync fails once: nothing is acknowledged from then on, and operators can see why."""

    def break_the_disk(ready: dict[str, Any]) -> None:
        admin = ready["admin"]
        assert ask(admin, "/api/v1/topics/before", "PUT")[0] == 201
        files.fail("fdatasync", errno.EIO, count=1)
        status, text = ask(admin, "/api/v1/topics/lost", "PUT")
        assert status == 503
        status, text = ask(admin, "/api/v1/topics/after", "PUT")
        assert (status, "read-only" in text) == (503, True)
        status, text = ask(admin, "/health")
        assert status == 503
        assert "read-only" in json.loads(text)["status"]
        assert "polymq_read_only 1.0" in ask(admin, "/metrics")[1]
        names = [topic["name"] for topic in json.loads(ask(admin, "/api/v1/topics")[1])["items"]]
        assert "before" in names

    with pytest.raises(Failure) as caught:
        serve_until(settings, tmp_path, break_the_disk)
    assert caught.value.code == ExitCode.DISK_FAILED
    assert "\n" not in caught.value.text


def test_a_disk_that_fails_at_the_start(settings: Settings, files: FailingFiles) -> None:
    files.fail("fdatasync", errno.EIO, count=None)
    with pytest.raises(Failure) as caught:
        open_store(settings)
    assert caught.value.code == ExitCode.DISK_FAILED


def test_a_full_disk_at_the_start(settings: Settings, files: FailingFiles) -> None:
    files.fail("pwritev", errno.ENOSPC, count=None)
    with pytest.raises(Failure) as caught:
        open_store(settings)
    assert caught.value.code == ExitCode.CANNOT_CREATE
    assert "No space left" in caught.value.text
    assert "storage.segment_bytes" in caught.value.text


def run_node(settings: Settings, scenario: Callable[[Node, Ports], Any]) -> None:
    async def inside() -> None:
        node = Node(settings, store)
        try:
            await scenario(node, await node.start())
        finally:
            await node.stop()

    store = open_store(settings)
    try:
        asyncio.run(inside())
    finally:
        store.close()


def test_a_start_that_fails_half_way_leaves_nothing_open(settings: Settings) -> None:
    """The last listener cannot open; the others are closed again and the store can be used anew."""

    async def fill_the_last_port(_node: Node, ports: Ports) -> None:
        assert ports.admin is not None
        taken = settings.model_copy(
            update={"admin": settings.admin.model_copy(update={"port": ports.admin})}
        )
        second = taken.model_copy(
            update={
                "server": settings.server.model_copy(
                    update={"data_directory": settings.server.data_directory / "second"}
                )
            }
        )
        store = open_store(second)
        node = Node(second, store)
        with pytest.raises(Failure) as caught:
            await node.start()
        assert caught.value.code == ExitCode.CANNOT_LISTEN
        await node.stop()
        store.close()
        open_store(second).close()

    run_node(settings, fill_the_last_port)


def test_a_bug_in_a_callback_is_counted_and_logged(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    async def break_something(_node: Node, ports: Ports) -> None:
        def broken() -> None:
            raise ZeroDivisionError("in a callback")

        assert ports.admin is not None
        loop = asyncio.get_running_loop()
        loop.call_soon(broken)
        _, text = await loop.run_in_executor(None, ask, ports.admin, "/metrics")
        assert "polymq_bugs_total 1.0" in text

    run_node(settings, break_something)


def test_the_limit_of_open_files_is_raised() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, before[1]), before[1]))
        assert raise_open_files() == before[1]
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
