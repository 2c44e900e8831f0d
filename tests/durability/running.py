"""A whole server inside the test's process: real sockets, a real loop, and a disk that obeys.

The loop runs in a thread of its own, as `polymq serve` would run it, over the real store, engine
and listeners. Only the way to the disk is the test's: it can be held back, fail, or be full.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from polymq.admin.operator_token import read_token
from polymq.compose import Node
from polymq.core_log.errors import StoreError
from polymq.core_log.files import Files, RealFiles
from polymq.core_log.store import Store
from polymq.open_store import open_store
from polymq.ports import Ports
from polymq.settings import Settings, load_settings
from tests.harness.files import FailingFiles, HeldFiles, WrappedFiles

Result = TypeVar("Result")
SECONDS_MAX = 20.0
"""For each single thing that a test waits for. All of them come in milliseconds."""


class SteppedFiles(WrappedFiles):
    """Files whose syncs wait, and are let through one by one."""

    def __init__(self, files: Files) -> None:
        super().__init__(files)
        self._holding = False
        self._arrived = threading.Semaphore(0)
        self._permits = threading.Semaphore(0)

    free_bytes: int | None = None
    """Free space to tell of; None for the real one."""

    def space(self, path: str) -> tuple[int, int]:
        free_bytes, size_bytes = super().space(path)
        return free_bytes if self.free_bytes is None else self.free_bytes, size_bytes

    def block(self) -> None:
        """From now on each sync needs a permit."""
        self._holding = True

    def wait_until_held(self) -> None:
        """Return once a sync waits that no earlier call has seen."""
        assert self._arrived.acquire(timeout=SECONDS_MAX), "no sync was asked for"

    def step(self) -> None:
        """Let one sync through."""
        self._permits.release()

    def release(self) -> None:
        """Let all through."""
        self._holding = False
        self._permits.release()

    def fdatasync(self, handle: int) -> None:
        if self._holding:
            self._arrived.release()
            assert self._permits.acquire(timeout=SECONDS_MAX), "a held sync was never released"
        super().fdatasync(handle)


class Disk:
    """The way to the disk: real files, whose syncs can be held back, and which can fail."""

    def __init__(self) -> None:
        self.failing = FailingFiles(RealFiles())
        self.held = HeldFiles(self.failing, seconds_max=SECONDS_MAX)
        self.stepped = SteppedFiles(self.held)

    def block(self) -> None:
        """Hold back every fdatasync from now on."""
        self.held.block()

    def release(self) -> None:
        """Let them through."""
        self.stepped.release()
        self.held.release()

    def fail(self, name: str, error: int = errno.EIO) -> None:
        """Let every call of `name` fail from now on."""
        self.failing.fail(name, error, count=None)

    def leave_free(self, free_bytes: int | None) -> None:
        """Say that so much space is free; None: tell the truth."""
        self.stepped.free_bytes = free_bytes

    def heal(self) -> None:
        """Work again."""
        self.failing.heal()
        self.leave_free(None)


class Running:
    """A server in a thread.

    Attributes:
        disk: what it writes to.
        ports: where its listeners are.
        bugs: exceptions that reached the loop, in words.
    """

    def __init__(self, directory: Path, **options: Any) -> None:
        self.disk = Disk()
        self.bugs: list[str] = []
        self.ports: Ports
        self._settings = settings_for(directory, **options)
        self._store: Store
        self._node: Node
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="server", daemon=True)

    def start(self) -> None:
        """Return when the listeners are open."""
        self._thread.start()
        self._ready.result(SECONDS_MAX)

    def begin_stop(self) -> None:
        """What SIGTERM does."""
        self._loop.call_soon_threadsafe(self._stop.set)

    def stop(self) -> None:
        """Stop in order, as far as the disk allows; the disk is left as it was."""
        if self._thread.is_alive():
            self.begin_stop()
        self._thread.join(SECONDS_MAX)
        assert not self._thread.is_alive(), "the server does not stop"

    def call(self, function: Callable[[], Result]) -> Result:
        """Run a function on the loop's thread."""

        async def run() -> Result:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(SECONDS_MAX)

    def token(self) -> str:
        """What lets an operator in."""
        token = read_token(Path(self._settings.server.data_directory))
        assert token is not None
        return token

    def appended(self) -> int:
        """The end of what the log has in memory."""
        return self.call(lambda: self._store.log.appended)

    def wait_flushed(self) -> int:
        """Wait until the disk has what the log has now, each look in a turn of the server's loop;
        returns its end."""
        end = self.appended()
        for _ in range(100_000):
            if self.call(lambda: self._node.engine.core.commits.points[1]) >= end:
                return end
        raise AssertionError("nothing was flushed")

    def acked(self, position: int | None = None, replica_id: str = "replica") -> None:
        """A replica says that it has the log on its disk up to there; by default, all of it."""

        def tell() -> None:
            core = self._node.engine.core
            core.replicas.acked(replica_id, core.log.appended if position is None else position)

        self.call(tell)

    def wait_appended(self, position: int) -> int:
        """Wait until the log has grown beyond a position; returns its end.

        Each look is a turn of the server's loop, so it makes progress in between.
        """
        for _ in range(100_000):
            appended = self.appended()
            if appended > position:
                return appended
        raise AssertionError("nothing was appended")

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            try:
                runner.run(self._serve())
            except BaseException as error:
                if not self._ready.done():
                    self._ready.set_exception(error)
                raise

    def _note_bug(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        trace = traceback.format_exception(error) if error is not None else []
        self.bugs.append("".join([f"{context.get('message')}\n", *trace]))

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._store = open_store(self._settings, files=self.disk.stepped)
        node = Node(self._settings, self._store)
        try:
            self.ports = await node.start()
            self._node = node
            self._loop.set_exception_handler(self._note_bug)
            self._ready.set_result(None)
            await self._stop.wait()
        finally:
            await node.stop()
            # After a failure nothing more can be saved; the lock is released all the same.
            with contextlib.suppress(StoreError):
                self._store.close()


def settings_for(directory: Path, **options: Any) -> Settings:
    """Settings of such a server; an option is `section__key`."""
    sections: dict[str, dict[str, Any]] = {
        "server": {"data_directory": str(directory), "drain_seconds": 2},
        # No saving in between: the only syncs are those of the log.
        "storage": {
            "segment_bytes": 16 * 1024 * 1024,
            "save_seconds": 3600,
            # How much space the machine has to spare is not what the tests are about.
            "disk_reserve_bytes": 64 * 1024 * 1024,
            "disk_early_bytes": 64 * 1024 * 1024,
        },
        "http": {
            "webhook_allow_http": True,
            "webhook_allow_networks": ["127.0.0.0/8"],
            "webhook_handshake": False,
        },
        "mqtt": {},
        "amqp": {},
        "rocketmq": {},
        "admin": {},
        "names": {"enabled": False},
        "topics": {},
        "replication": {},
    }
    for listener in ("mqtt", "amqp", "http", "rocketmq", "admin"):
        sections[listener]["port"] = 0
    for key, value in options.items():
        section, _, name = key.partition("__")
        sections[section][name] = value
    return load_settings(flags=sections)


@contextlib.contextmanager
def running(directory: Path, **options: Any) -> Iterator[Running]:
    """A server that is stopped in the end, whatever its disk was told to do."""
    server = Running(directory, **options)
    server.start()
    try:
        yield server
    finally:
        server.disk.heal()
        server.disk.release()
        server.stop()
    if server.bugs:
        raise AssertionError("\n".join(["exceptions that nobody foresaw:", *server.bugs]))
