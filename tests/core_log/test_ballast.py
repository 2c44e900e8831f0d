"""Room that is set aside for a full disk: how much, given up and taken back, and after a crash."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from polymq.core_log.ballast import BALLAST_NAME, DISK_PART_MAX, Ballast
from polymq.core_log.files import Files, RealFiles
from tests.harness.files import FailingFiles, MemoryFiles
from tests.harness.stores import DIRECTORY, Bench, numbered

MIB = 1 << 20
DISK = 1000 * MIB
PATH = f"/store/{BALLAST_NAME}"


def ballast_of(files: Files, directory: str = "/store") -> Ballast:
    return Ballast(directory=directory, files=files, bytes_min=4 * MIB, bytes_max=16 * MIB)


def memory_files() -> MemoryFiles:
    files = MemoryFiles()
    files.make_directory("/store")
    return files


def size_of(files: MemoryFiles) -> int:
    return len(files.read(PATH))


def test_it_is_as_large_as_saving_needs_within_its_bounds() -> None:
    files = memory_files()
    ballast = ballast_of(files)
    for state_bytes, expected in ((0, 4), (3 * MIB, 6), (MIB, 6), (100 * MIB, 16)):
        ballast.see_to(state_bytes, 500 * MIB, DISK)
        assert ballast.held_bytes == size_of(files) == expected * MIB


def test_it_takes_a_small_part_of_a_small_disk_and_leaves_as_much_as_it_takes() -> None:
    files = memory_files()
    ballast_of(files).see_to(0, 50 * MIB, 64 * MIB)
    assert size_of(files) == 64 * MIB // DISK_PART_MAX
    files = memory_files()
    ballast = ballast_of(files)
    free = 3 * MIB
    for _ in range(5):  # looking again does not take more and more
        held = max(ballast.held_bytes, 0)
        ballast.see_to(0, free, DISK)
        free -= ballast.held_bytes - held
    assert (ballast.held_bytes, free) == (3 * MIB // 2, 3 * MIB // 2)


def test_what_was_lent_is_taken_back_as_far_as_it_is_there() -> None:
    """An attempt that deleted nothing leaves room for the next one, all but what was saved."""
    files = memory_files()
    ballast = ballast_of(files)
    ballast.see_to(0, 500 * MIB, DISK)
    assert ballast.lend() == 4 * MIB
    assert (ballast.is_lent, size_of(files)) == (True, 0)
    ballast.see_to(0, 3 * MIB, DISK)
    assert (ballast.is_lent, size_of(files)) == (False, 3 * MIB)
    ballast.see_to(0, 100 * MIB, DISK)
    assert size_of(files) == 4 * MIB


def test_one_that_somebody_has_removed_is_made_again() -> None:
    files = memory_files()
    ballast = ballast_of(files)
    ballast.see_to(0, 500 * MIB, DISK)
    files.unlink(PATH)
    ballast.see_to(0, 500 * MIB, DISK)
    assert ballast.held_bytes == size_of(files) == 4 * MIB


def test_a_file_system_that_has_less_than_it_says_gives_a_part() -> None:
    memory = memory_files()
    files = FailingFiles(memory)
    ballast = ballast_of(files)
    files.fail("preallocate", errno.ENOSPC, count=2)
    ballast.see_to(0, 500 * MIB, DISK)
    assert ballast.held_bytes == size_of(memory) == MIB
    ballast.see_to(0, 500 * MIB, DISK)
    assert size_of(memory) == 4 * MIB


def test_a_full_disk_without_the_file_is_no_error_and_a_bad_disk_is_one() -> None:
    """A data directory of an earlier version, on a disk without a free byte."""
    files = FailingFiles(memory_files())
    ballast = ballast_of(files)
    files.fail("open", errno.ENOSPC)
    ballast.see_to(0, 0, DISK)
    assert ballast.held_bytes == 0
    for call in ("open", "preallocate"):
        files.fail(call, errno.EROFS)
        with pytest.raises(OSError, match="Read-only"):
            ballast.see_to(0, 500 * MIB, DISK)
    ballast.see_to(0, 500 * MIB, DISK)
    assert ballast.held_bytes == 4 * MIB


@pytest.mark.parametrize("at", range(8))
def test_a_kill_at_any_moment_leaves_a_file_that_the_next_start_goes_on_with(at: int) -> None:
    files = memory_files()
    files.cut_power_after(at)
    ballast = ballast_of(files)
    try:
        ballast.see_to(0, 500 * MIB, DISK)
        ballast.lend()
        ballast.see_to(0, 500 * MIB, DISK)
    except OSError:
        pass
    left = files.after_kill()
    again = ballast_of(left)
    again.see_to(0, 500 * MIB, DISK)
    assert again.held_bytes == size_of(left) == 4 * MIB
    assert again.lend() == 4 * MIB


def test_its_room_is_real_also_where_a_copy_of_the_directory_had_holes(tmp_path: Path) -> None:
    path = tmp_path / BALLAST_NAME
    path.touch()
    os.truncate(path, 4 * MIB)
    assert path.stat().st_blocks == 0
    ballast_of(RealFiles(), str(tmp_path)).see_to(0, 500 * MIB, DISK)
    assert path.stat().st_blocks * 512 >= 4 * MIB


def test_a_store_knows_the_file_and_opens_without_it() -> None:
    memory = MemoryFiles()
    bench = Bench(memory)
    bench.publish(numbered(0, 3))
    bench.flush()
    bench.store.ballast.see_to(0, 1 << 40, 1 << 40)
    bench.store.close()
    found = Bench(memory, sent=bench.sent)
    assert found.store.recovery.strays == ()
    found.store.close()
    memory.unlink(f"{DIRECTORY}/{BALLAST_NAME}")
    again = Bench(memory, sent=bench.sent)
    assert again.bodies() == bench.sent
