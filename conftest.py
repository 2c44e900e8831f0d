"""What holds for all tests of the project: the longest begin first, and where their files are.

Tests run in several processes, and the last to begin decides when all have ended.

A test opens a store or two, and a store syncs each step of its making: on a disk that others use
too, most of a run is waiting for syncs of which no test can see whether they happened. (A process
that is killed loses nothing that the kernel has; what a power cut loses is played in `tests/crash`
on files that are made up.) So the files of tests are in memory where there is room. Those marked
`disk` have them on the disk, and so has everybody with `PYTEST_DEBUG_TEMPROOT=/tmp`.
"""

from __future__ import annotations

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


def pytest_configure() -> None:
    """Choose where files are, before the first directory is made."""
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
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spark first, then what is marked as slow, then the rest in the order that they have."""
    items.sort(key=_haste)


def _haste(item: pytest.Item) -> int:
    if item.get_closest_marker("spark") is not None:
        return 0
    return 1 if item.get_closest_marker("slow") is not None else 2
