"""What holds for all tests of the project: which process runs which first, and where files are.

Tests run in several processes, and a long one that begins last decides when all have ended. xdist's
`worksteal` cuts the list of tests into a piece for each process, and who is ready takes from the
end of another's piece. So the list is dealt like cards: a file with long tests goes to the process
that has the least of them so far, to the beginning of its piece; the others fill the pieces up. A
file stays together, with the servers, Java machines and Spark sessions that its tests share.

A test opens a store or two, and a store syncs each step of its making: on a disk that others use
too, most of a run is waiting for syncs of which no test can see whether they happened. (A process
that is killed loses nothing that the kernel has; what a power cut loses is played in `tests/crash`
on files that are made up.) So the files of tests are in memory where there is room. Those marked
`disk` have them on the disk, and so has everybody with `PYTEST_DEBUG_TEMPROOT=/tmp`.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

MEMORY_DIRECTORY: Final = Path("/dev/shm")
"""Files in memory, on Linux."""
ROOT_VARIABLE: Final = "PYTEST_DEBUG_TEMPROOT"
"""Where pytest makes the directories of tests."""
ROOM_BYTES_MIN: Final = 8 << 30
"""Of memory that nobody uses. A run of all tests needs a quarter of it: four processes, each with
some servers of three segments of 64 MiB, and what failed tests leave."""

SECONDS: Final = {"slow": 5.0, "spark": 10.0, "java_clients": 4.0}
"""What a test with this mark takes about, unless the mark says it: `slow(seconds=60)`."""
SERVER_SECONDS: Final = 2.0
"""What one takes that starts a server."""
SERVER_TESTS: Final = Path(__file__).parent / "interop_tests"
"""Where those are."""
CERTIFICATES: Final = SERVER_TESTS / "certificates"
LONG_SECONDS: Final = 3.0
"""A file that takes so much begins a piece."""


def pytest_configure() -> None:
    """Choose where files are, before the first directory is made; and make private keys private,
    which a checkout does not do."""
    for key in CERTIFICATES.glob("*.key"):
        key.chmod(0o600)
    if ROOT_VARIABLE not in os.environ and _has_room(MEMORY_DIRECTORY):
        os.environ[ROOT_VARIABLE] = str(MEMORY_DIRECTORY)


def _has_room(directory: Path) -> bool:
    """Whether the directory is there, and both it and the memory have room."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = shutil.disk_usage(directory).free
    except OSError:
        return False
    available = [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    return os.access(directory, os.W_OK) and min(free, *available) >= ROOM_BYTES_MIN


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """An empty directory, for a test that is marked `disk` on the disk."""
    if request.node.get_closest_marker("disk") is None:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="polymq-test-") as directory:
        yield Path(directory)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deal the tests out to as many processes as there are, the longest first in each."""
    processes = getattr(config, "workerinput", {}).get("workercount", 1)
    files = [list(tests) for _, tests in itertools.groupby(items, key=lambda item: item.path)]
    files.sort(key=_seconds, reverse=True)
    long = list(itertools.takewhile(lambda tests: _seconds(tests) >= LONG_SECONDS, files))
    short = [item for tests in files[len(long) :] for item in tests]
    items[:] = _deal(long, short, processes)


def _deal(
    long: list[list[pytest.Item]], short: list[pytest.Item], processes: int
) -> Iterator[pytest.Item]:
    """All tests, in pieces of the lengths into which xdist cuts them: the long ones of a piece,
    then as many short ones as it has room for."""
    pieces: list[list[pytest.Item]] = [[] for _ in range(processes)]
    for tests in long:
        min(pieces, key=_seconds).extend(tests)
    left = sum(map(len, pieces)) + len(short)
    for number, piece in enumerate(pieces):
        wanted = left // (processes - number)
        room = max(0, wanted - len(piece))
        piece += short[:room]
        del short[:room]
        left -= len(piece)
        yield from piece
    yield from short


def _seconds(tests: list[pytest.Item]) -> float:
    """About how long these take, one after the other."""
    return sum(map(_seconds_of_one, tests))


def _seconds_of_one(item: pytest.Item) -> float:
    for mark, seconds in SECONDS.items():
        if (found := item.get_closest_marker(mark)) is not None:
            return float(found.kwargs.get("seconds", seconds))
    return SERVER_SECONDS if item.path.parent == SERVER_TESTS else 0.0
