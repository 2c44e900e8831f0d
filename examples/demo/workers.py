"""Processes of the demo: how they are started and ended, and how they tell what they see.

A worker prints one JSON object a line. It ends by itself, or when its standard input is closed.
Every process has a session of its own: Ctrl-C reaches the demo alone, which ends all others, and
with each of them whatever it started. Where the demo itself is killed, its watcher does that.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

HOST = "127.0.0.1"
ROOT = Path(__file__).resolve().parent.parent.parent
END_SECONDS_MAX = 20.0

_printing = threading.Lock()


def say(**values: Any) -> None:
    """In a worker: tell the demo something."""
    line = json.dumps(values)
    with _printing:
        print(line, flush=True)


def say_acked(tag: str, sent: float) -> None:
    """In a publisher: the server promised to keep this message."""
    say(event="acked", tag=tag, sent=sent, at=time.monotonic())


class Receiver:
    """In a subscriber: tells what came, spoiled where that was asked for."""

    def __init__(self, corrupt: str | None) -> None:
        self._corrupt = corrupt

    def received(self, tag: str, body: bytes, **attributes: Any) -> None:
        """A message came."""
        at = time.monotonic()
        if self._corrupt is not None and tag.startswith(f"{self._corrupt}."):
            body = body[:-1] + bytes([body[-1] ^ 1]) if body else b"\0"
        digest = hashlib.sha256(body).hexdigest()
        say(event="received", tag=tag, digest=digest, at=at, attributes=attributes)


def until_input_closes() -> None:
    """In a worker: wait for the demo to close our standard input."""
    sys.stdin.read()


class DemoFailed(Exception):
    """Something did not hold; the text says what, to a person."""


class Processes:
    """All processes that the demo has started, and a watcher that ends them should the demo be
    killed: its standard input closes then, whatever else happens."""

    def __init__(self) -> None:
        self._started: list[subprocess.Popen[Any]] = []
        self._watcher = subprocess.Popen(
            [sys.executable, "-S", "-c", _WATCH], stdin=subprocess.PIPE, start_new_session=True
        )

    def start(self, command: Sequence[object], **options: Any) -> subprocess.Popen[Any]:
        """Start one; see `subprocess.Popen`."""
        options = {"stdin": subprocess.DEVNULL, "start_new_session": True, **options}
        process = subprocess.Popen([str(part) for part in command], **options)
        self._started.append(process)
        assert self._watcher.stdin is not None
        self._watcher.stdin.write(b"%d\n" % process.pid)
        self._watcher.stdin.flush()
        return process

    def end_all(self) -> None:
        """End those that still run, at once."""
        for process in self._started:
            end(process)
        self._watcher.kill()
        assert self._watcher.stdin is not None
        self._watcher.stdin.close()
        self._watcher.wait()


_WATCH: Final = """
import os, signal, sys
for line in sys.stdin.readlines():  # all of them are there when the demo is gone
    try:
        os.killpg(int(line), signal.SIGKILL)
    except ProcessLookupError:
        pass  # it ended before
"""


def end(process: subprocess.Popen[Any]) -> None:
    """End a process and what it started, if it still runs."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def module(name: str, *arguments: object) -> list[object]:
    """The command that runs a module of the demo."""
    return [sys.executable, "-m", f"examples.demo.{name}", *arguments]


class Worker:
    """A started worker and the lines that it says."""

    def __init__(
        self, processes: Processes, name: str, command: Sequence[object], **options: Any
    ) -> None:
        self.name = name
        self.spoke = time.monotonic()
        """When it said something, or was started."""
        self._process = processes.start(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            **options,
        )
        self._lines: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read_lines, daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def tell(self, **values: Any) -> None:
        """Write a line to its standard input. If it has failed, `said` raises why."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(values) + "\n")

    def close_input(self) -> None:
        """There is nothing more to tell."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def _read_lines(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.spoke = time.monotonic()
            self._lines.put(json.loads(line))
        self._lines.put(None)

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        self._errors += self._process.stderr

    def said(self, seconds: float) -> Iterator[dict[str, Any]]:
        """What it says, until it ends. Raises DemoFailed when the time is up or it fails."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                text = f"{self.name} said nothing more within {seconds:g} s"
                raise DemoFailed(text) from None
            if line is None:
                self._check_end()
                return
            yield line

    def said_until_quiet(self, seconds: float) -> Iterator[dict[str, Any]]:
        """What it says, until it ends or says nothing for so long."""
        while True:
            try:
                left = self.spoke + seconds - time.monotonic()
                line = self._lines.get(timeout=max(0.0, left))
            except queue.Empty:
                if time.monotonic() - self.spoke < seconds:
                    continue
                return
            if line is None:
                self._check_end()
                return
            yield line

    def said_so_far(self) -> Iterator[dict[str, Any]]:
        """What it said and nobody has read yet."""
        while True:
            try:
                line = self._lines.get_nowait()
            except queue.Empty:
                return
            if line is None:
                self._check_end()
                return
            yield line

    def wait_ready(self, seconds: float = 30.0) -> None:
        """Wait until it says that it is ready."""
        for line in self.said(seconds):
            if line["event"] == "ready":
                return
        raise DemoFailed(f"{self.name} ended before it was ready")

    def _check_end(self) -> None:
        code = self._process.wait(END_SECONDS_MAX)
        if code:
            self._readers[1].join(END_SECONDS_MAX)
            raise DemoFailed(f"{self.name} failed:\n{''.join(self._errors[-15:])}")

    def finish(self) -> None:
        """Ask it to end, and see that it does."""
        self.close_input()
        try:
            self._process.wait(END_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            raise DemoFailed(f"{self.name} did not end when it was asked to") from None
        self._check_end()

    def kill(self) -> None:
        """End it at once."""
        end(self._process)
