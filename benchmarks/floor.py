"""The floor: the same bytes through a bare loop, without a broker.

What is read is appended to a file and written back. It is done by a C program, by as little Python
as uvloop allows, and by as little as our own socket shell (`net`) allows: the difference is what
the choice of the language and the loop costs before the first line of a broker's own code, and what
is above it is ours.

Run as a program it is one of those in Python (`uvloop` or `net`, then the file): it prints its port
and echoes until its input ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, cast

import uvloop

from benchmarks.errors import BenchmarkFailed
from benchmarks.generators import BUILT, RUN_SECONDS_MAX
from benchmarks.machine import HOST, ROOT, pinned
from polymq.net.connection import Context, SocketConnection
from polymq.net.listener import listen

MESSAGE_BYTES: Final = 100
READ_BYTES: Final = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """One loop and one load.

    Attributes:
        language: `C`, `uvloop` (its own transports) or `net` (the socket shell of the gateways).
        connections: each with one piece in flight.
        messages: of 100 bytes in each piece.
        logged: whether what is read is appended to a file.
    """

    language: str
    connections: int
    messages: int
    logged: bool

    @property
    def title(self) -> str:
        """For people."""
        what = "echo and file" if self.logged else "echo"
        return f"{what} in {self.language}, {self.connections} x {self.messages}"


FLOORS: Final = (
    Floor(language="C", connections=50, messages=1, logged=False),
    Floor(language="C", connections=50, messages=1, logged=True),
    Floor(language="uvloop", connections=50, messages=1, logged=True),
    Floor(language="net", connections=50, messages=1, logged=True),
    Floor(language="C", connections=1, messages=256, logged=True),
    Floor(language="uvloop", connections=1, messages=256, logged=True),
    Floor(language="net", connections=1, messages=256, logged=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FloorFigures:
    """What one floor measured: processor time of the echoing process, and messages."""

    floor: Floor
    cpu_us_per_message: float
    messages_per_second: float

    def value(self) -> dict[str, Any]:
        """For the JSON file."""
        return asdict(self)


def measure_floors(directory: Path, seconds: float) -> Iterator[FloorFigures]:
    """All floors, one after the other. Raises BenchmarkFailed."""
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / f"floor-{os.getpid()}"
    for floor in FLOORS:
        try:
            yield _measure(floor, file, seconds)
        finally:
            file.unlink(missing_ok=True)


def _measure(floor: Floor, file: Path, seconds: float) -> FloorFigures:
    program: Sequence[str] = (str(BUILT / "echogen"), "listen")
    if floor.language != "C":
        program = (sys.executable, "-m", "benchmarks.floor", floor.language)
    listening = subprocess.Popen(
        [*pinned("server"), *program, *([str(file)] if floor.logged else [])],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert listening.stdout is not None
    try:
        port = listening.stdout.readline().strip()
        size = floor.messages * MESSAGE_BYTES
        options = (port, floor.connections, size, seconds, listening.pid)
        ended = subprocess.run(
            [*pinned("generator"), str(BUILT / "echogen"), *map(str, options)],
            capture_output=True,
            text=True,
            check=False,
            timeout=RUN_SECONDS_MAX,
        )
    finally:
        listening.terminate()
        listening.communicate()
    if ended.returncode:
        raise BenchmarkFailed(f"echogen: {ended.stderr.strip()}")
    report = json.loads(ended.stdout)
    count = max(report["messages"] * floor.messages, 1)
    return FloorFigures(
        floor=floor,
        cpu_us_per_message=report["server_cpu_seconds"] * 1e6 / count,
        messages_per_second=count / report["seconds"],
    )


# --- the loop in Python -------------------------------------------------------------------------


class Echo(asyncio.BufferedProtocol):
    """One connection: what is read goes to the file and back."""

    def __init__(self, view: memoryview, file: int) -> None:
        self._view = view
        self._file = file
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio`."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are not derived from it

    def get_buffer(self, _sizehint: int) -> memoryview:
        """One buffer for all connections."""
        return self._view

    def buffer_updated(self, nbytes: int) -> None:
        """A read."""
        data = bytes(self._view[:nbytes])
        os.write(self._file, data)
        self._transport.write(data)


class NetEcho(SocketConnection):
    """The same in the socket shell of the gateways."""

    def __init__(self, context: Context, file: int) -> None:
        super().__init__(context)
        self._file = file

    def consume(self, buffer: bytearray, start: int, end: int) -> int:
        """A read."""
        data = bytes(buffer[start:end])
        os.write(self._file, data)
        self.write(data)
        return end


async def serve(language: str, path: str) -> None:
    """Echo until the input ends."""
    loop = asyncio.get_running_loop()
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    if language == "net":
        context = Context(loop)
        listener = await listen(
            context, lambda: NetEcho(context, file), host=HOST, port=0, connections_max=1000
        )
        port = listener.port
    else:
        view = memoryview(bytearray(READ_BYTES))
        server = await loop.create_server(lambda: Echo(view, file), HOST, 0)
        port = server.sockets[0].getsockname()[1]
    print(port, flush=True)
    ended = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), ended.set)
    await ended.wait()
    os.close(file)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(sys.argv[1], sys.argv[2]))
