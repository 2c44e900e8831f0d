"""Commands that show something again and again: what they do while the server is restarted."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import IO, Final

import pytest

from interop_tests.conftest import Server
from interop_tests.people import PASSWORD, polymq

SECONDS_MAX: Final = 60.0
INTERRUPTED: Final = 130


class Watching:
    """A command that runs until it is interrupted, and its lines as they come."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._readers: list[threading.Thread] = []
        self.lines = self._lines_of(process.stdout)
        self.remarks = self._lines_of(process.stderr)

    def _lines_of(self, stream: IO[str] | None) -> queue.Queue[str]:
        assert stream is not None
        lines: queue.Queue[str] = queue.Queue()

        def read(stream: IO[str] = stream) -> None:
            with stream:
                for line in stream:
                    lines.put(line.rstrip())

        self._readers.append(threading.Thread(target=read))
        self._readers[-1].start()
        return lines

    def close(self) -> None:
        """End the command, whatever it does."""
        self.process.kill()
        self.process.wait()
        for reader in self._readers:
            reader.join()

    def line(self) -> str:
        """The next one that it shows."""
        return self.lines.get(timeout=SECONDS_MAX)

    def remark(self) -> str:
        """The next one on stderr."""
        return self.remarks.get(timeout=SECONDS_MAX)


@contextmanager
def watching(server: Server, *arguments: str) -> Iterator[Watching]:
    """Run a command for the server's data directory."""
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "polymq", *arguments),
            *("--data-directory", str(server.data_directory)),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with closing(Watching(process)) as command:
        yield command


@pytest.mark.parametrize(
    "arguments",
    [
        ("top", "--json", "--seconds", "0.5"),
        ("consumer", "list", "--json", "--watch", "0.5"),
    ],
)
def test_a_server_that_is_restarted_is_waited_for(server: Server, arguments: tuple[str]) -> None:
    """It says so in a line, and goes on with the new server, which has other ports and another
    token. The users make the token needed."""
    assert polymq(server, "user", "add", "ann", text=f"{PASSWORD}\n").returncode == 0
    with watching(server, *arguments) as command:
        assert json.loads(command.line())
        assert server.terminate() == 0
        assert command.remark().startswith("polymq: the server is away, and is waited for")
        server.admin_port = 0  # at another one
        server.start()
        assert command.remark() == "polymq: the server is back"
        while not command.lines.empty():
            command.line()
        assert json.loads(command.line())
        command.process.send_signal(signal.SIGINT)
        assert command.process.wait(SECONDS_MAX) == INTERRUPTED
        assert not command.remark(), "the line that the terminal shows ^C in"
        assert command.remark() == "polymq: interrupted"


def test_a_server_that_was_never_there_is_not_waited_for(server: Server) -> None:
    """Somebody may have mistyped the directory."""
    assert server.terminate() == 0
    ended = polymq(server, "top")
    assert (ended.returncode, ended.stdout) == (69, "")
    assert ended.stderr.startswith("polymq: no server answers at")
