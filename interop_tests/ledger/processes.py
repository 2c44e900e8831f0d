"""Client processes as a test sees them: started, waited for, stopped, their books read."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from interop_tests.ledger.books import Line, Reader, What

ROOT = Path(__file__).resolve().parent.parent.parent
LOOK_SECONDS = 0.02


class Client:
    """One client process and its book.

    Attributes:
        lines: what its book says so far (see `read`).
        acked: (publisher, number) that the server has promised to keep.
        got: (publisher, number) that it received.
        connected: who of it has a connection; a process may be several publishers.
        sent_at: when each message was last sent.
        count: lines of each kind.
    """

    def __init__(
        self, module: str, directory: Path, *, port: int, name: str, topic: str, **options: int
    ) -> None:
        self.name = name
        self._module = module
        self._book_path = directory / f"{name}.book"
        self._error_path = directory / f"{name}.err"
        self._command = [
            *(sys.executable, "-m", f"interop_tests.ledger.{module}"),
            *("--port", str(port), "--book", str(self._book_path)),
            *("--name", name, "--topic", topic),
        ]
        for key, value in options.items():
            self._command += [f"--{key}", str(value)]
        self._reader = Reader(self._book_path)
        self._process: subprocess.Popen[bytes] | None = None
        self.lines: list[Line] = []
        self.acked: set[tuple[str, int]] = set()
        self.got: set[tuple[str, int]] = set()
        self.connected: set[str] = set()
        self.sent_at: dict[tuple[str, int], float] = {}
        self.count: Counter[What] = Counter()

    def start(self, *flags: str) -> None:
        """Start the process."""
        with self._error_path.open("ab") as errors:
            self._process = subprocess.Popen(
                [*self._command, *flags], cwd=ROOT, stdin=subprocess.DEVNULL, stderr=errors
            )

    def declare(self, seconds: float) -> None:
        """Let a consumer make its queue or subscription, and end."""
        self.start("--declare-only")
        self.wait_end(seconds)
        self.read()
        assert self.count[What.READY] == 1, f"{self.name}: {self.lines}"

    def read(self) -> list[Line]:
        """Take in what the book has that is new, and return it."""
        new = list(self._reader.new_lines())
        self.lines += new
        for line in new:
            self.count[line.what] += 1
            key = line.actor, line.number
            if line.what is What.SENT:
                self.sent_at[key] = line.at
            elif line.what is What.ACKED:
                self.acked.add(key)
            elif line.what is What.GOT:
                self.got.add(key)
            elif line.what is What.CONNECTED:
                self.connected.add(line.actor)
            elif line.what is What.DISCONNECTED:
                self.connected.discard(line.actor)
        return new

    def unacked_at(self, moment: float) -> int:
        """How many publishes it had sent before the moment and saw end without an answer after it.

        Exact until it sends again, that is until the server is back.
        """
        count = 0
        for line in reversed(self.lines):
            if line.at < moment:
                break
            if line.what is What.UNKNOWN:
                count += self.sent_at[line.actor, line.number] < moment
        return count

    def wait(self, condition: Callable[[Client], bool], seconds: float, text: str) -> None:
        """Wait until the book says something."""
        assert self._process is not None
        deadline = time.monotonic() + seconds
        self.read()
        while not condition(self):
            assert time.monotonic() < deadline, f"{self.name}: no {text} within {seconds} s"
            try:
                code = self._process.wait(LOOK_SECONDS)
            except subprocess.TimeoutExpired:
                self.read()
            else:
                self.read()
                assert condition(self), f"{self.name} ended with {code}: {self.errors()}"

    def wait_end(self, seconds: float) -> None:
        """Wait until it has ended by itself, in order."""
        assert self._process is not None
        code = self._process.wait(seconds)
        assert code == 0, f"{self.name} ended with {code}: {self.errors()}"

    def stop(self) -> None:
        """Ask it to come to its end."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)

    def errors(self) -> str:
        """What it said on stderr."""
        return self._error_path.read_text(errors="replace") if self._error_path.exists() else ""

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if error is not None and self.errors():
            print(f"--- {self.name}\n{self.errors()}")
