"""The store on the operating system's files: modes, locks, processes that die."""

from __future__ import annotations

import errno
import os
import resource
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from polymq.core_log.errors import StoreRefused
from polymq.core_log.files import RealFiles
from polymq.core_log.settings import StoreSettings
from polymq.core_log.store import Store
from tests.harness.files import HeldFiles
from tests.harness.forms import form_id, forms_of
from tests.harness.stores import Bench, numbered, select_readable

ROOT = Path(__file__).resolve().parents[2]

HOLDER = """
import sys
from polymq.core_log.files import RealFiles
from polymq.core_log.store import Store
try:
    store = Store.open(sys.argv[1], files=RealFiles(), clock_ms=lambda: 1)
except Exception as error:
    print(type(error).__name__, error, flush=True)
else:
    print("open", flush=True)
    sys.stdin.read()
"""

PUBLISHER = """
import sys
from polymq.core_log.files import RealFiles
from tests.harness.stores import Bench, numbered
bench = Bench(RealFiles(), directory=sys.argv[1])
while True:
    bench.publish(numbered(len(bench.sent), 5))
    bench.flush()
    print(bench.promised, flush=True)
    if bench.promised % 20 == 0:
        bench.checkpoint()
"""


def start(program: str, directory: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, str(directory)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_only_the_owner_can_read_what_is_stored(tmp_path: Path) -> None:
    """Directories 0700, files 0600, whatever the umask says."""
    before = os.umask(0)
    try:
        bench = Bench(RealFiles(), directory=f"{tmp_path}/a/b/store")
        bench.publish(numbered(0, 60))
        bench.flush()
        bench.checkpoint()
        found = list((tmp_path / "a").rglob("*"))
        assert len(found) > 15
        for path in found:
            mode = stat.S_IMODE(path.stat().st_mode)
            assert mode == (0o700 if path.is_dir() else 0o600), path
        bench.store.close()
    finally:
        os.umask(before)


def test_a_second_process_gets_one_clear_sentence(tmp_path: Path) -> None:
    """And the directory is free again when the first one is gone, however it went."""
    with start(HOLDER, tmp_path) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "open\n"
        with start(HOLDER, tmp_path) as second:
            assert second.stdout is not None
            assert second.stdout.readline() == (
                f"StoreRefused {tmp_path} is in use: another process holds {tmp_path}/lock\n"
            )
        with pytest.raises(StoreRefused, match="is in use"):
            Bench(RealFiles(), directory=str(tmp_path))
        first.send_signal(signal.SIGKILL)
    Bench(RealFiles(), directory=str(tmp_path)).store.close()


def test_a_path_that_can_not_be_a_directory_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    for name in ("file", "file/store"):
        path = f"{tmp_path}/{name}"
        with pytest.raises(StoreRefused, match=rf"^{path} cannot be written: "):
            Bench(RealFiles(), directory=path)


@pytest.mark.disk
@pytest.mark.slow
def test_a_killed_process_keeps_its_promises(tmp_path: Path) -> None:
    """Killed after a number of flushes, several times on one directory: all that it reported as
    flushed is there, and what is there is a beginning of what it sent."""
    for lifetime in range(4):
        directory = tmp_path / str(lifetime)
        promised = 0
        with start(PUBLISHER, directory) as process:
            assert process.stdout is not None
            for line in process.stdout:
                promised = int(line)
                if promised >= 50 * (lifetime + 1):
                    process.send_signal(signal.SIGKILL)
                    break
            rest = process.stdout.read().split()
        promised = int(rest[-1]) if rest else promised
        bench = Bench(RealFiles(), directory=str(directory))
        bodies = bench.bodies()
        assert len(bodies) >= promised
        assert bodies == bench.bodies(3) == numbered(0, len(bodies))
        assert not bench.store.recovery.clean
        bench.store.close()


def test_the_default_sizes_work_on_a_real_disk(tmp_path: Path) -> None:
    """1 GiB is reserved, not written: opening is quick and takes no time to close."""
    store = Store.open(str(tmp_path / "store"), files=RealFiles(), clock_ms=lambda: 1)
    segment = tmp_path / "store" / "commitlog" / f"{0:020d}"
    assert segment.stat().st_size == StoreSettings().segment_bytes == 1 << 30
    store.close()
    again = Store.open(str(tmp_path / "store"), files=RealFiles(), clock_ms=lambda: 1)
    assert again.recovery.clean
    again.close()


def test_syncs_of_a_real_disk_can_be_held(tmp_path: Path) -> None:
    """The harness holds a real fdatasync, so that programs can be tested around it."""
    files = HeldFiles(RealFiles())
    bench = Bench(files, directory=str(tmp_path))
    files.block()
    bench.publish(numbered(0, 2))
    bench.store.log.write()
    before = bench.store.log.flushed
    bench.store.flusher.request()
    files.wait_until_held()
    assert bench.store.flusher.collect() == before
    files.release()
    assert select_readable(bench.store.flusher.fileno())
    assert bench.store.flusher.collect() == bench.store.log.written
    bench.store.close()


def test_files_read_and_write_whole_ranges(tmp_path: Path) -> None:
    files = RealFiles()
    handle = files.open(f"{tmp_path}/file", create=True)
    files.preallocate(handle, 100)
    assert files.size(handle) == 100
    files.pwritev(handle, [b"abc", bytearray(b"def"), memoryview(b"ghi")], 10)
    assert files.pread(handle, 11, 9) == b"\0abcdefghi\0"
    assert files.pread(handle, 50, 95) == bytes(5)
    assert files.pread(handle, 5, 200) == b""
    files.truncate(handle, 12)
    files.preallocate(handle, 0)
    files.preallocate(handle, 20)
    assert files.pread(handle, 100, 0) == bytes(10) + b"ab" + bytes(8)
    files.fdatasync(handle)
    files.close(handle)
    files.rename(f"{tmp_path}/file", f"{tmp_path}/other")
    files.sync_directory(str(tmp_path))
    assert files.list(str(tmp_path)) == ["other"]
    files.unlink(f"{tmp_path}/other")
    files.unlink(f"{tmp_path}/other")
    assert files.list(f"{tmp_path}/none") == []
    files.remove_directory(f"{tmp_path}/none")
    assert files.make_directory(f"{tmp_path}/made")
    assert not files.make_directory(f"{tmp_path}/made")
    files.remove_directory(f"{tmp_path}/made")
    with pytest.raises(FileNotFoundError):
        files.open(f"{tmp_path}/none")


def test_large_writes_arrive_whole_though_the_system_takes_them_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A short write is gone on with; one that makes no progress is an error."""
    files = RealFiles()
    handle = files.open(f"{tmp_path}/file", create=True)
    real = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda h, b, at: real(h, [memoryview(b[0])[:3]], at))
    files.pwritev(handle, [b"abcdef", b"ghi"], 5)
    assert files.pread(handle, 50, 0) == bytes(5) + b"abcdefghi"
    monkeypatch.setattr(os, "pwrite", lambda h, b, at: 0)
    with pytest.raises(OSError, match="no progress"):
        files.pwritev(handle, [b"abcdef"], 5)
    files.close(handle)


@pytest.mark.parametrize("files", forms_of("polymq.core_log.kernels.files"), ids=form_id)
def test_a_part_that_the_system_takes_in_parts_is_gone_on_with(tmp_path: Path, files: Any) -> None:
    """The system takes what is below a limit, and says why it takes no more."""
    handle = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    limit = 1 << 30  # above what anybody else writes meanwhile
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        files.write_part(handle, bytearray(b"__whole__"), 2, 7, limit - 50)
        with pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
            files.write_part(handle, bytearray(b"__in parts__"), 2, 10, limit - 5)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.pread(handle, 100, limit - 50) == b"whole" + bytes(40) + b"in pa"
    for start, end in ((-1, 2), (3, 2), (0, 5)):
        with pytest.raises(ValueError, match="no part of 4 bytes"):
            files.write_part(handle, bytearray(4), start, end, 0)
    os.close(handle)
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        files.write_part(handle, bytearray(4), 0, 4, 0)


def test_a_file_system_without_reservation_still_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file gets its size, and what is there stays; another error of the call is an error."""

    def refuse(error: int) -> None:
        def call(handle: int, start: int, size: int) -> None:
            raise OSError(error, os.strerror(error))

        monkeypatch.setattr(os, "posix_fallocate", call)

    files = RealFiles()
    handle = files.open(f"{tmp_path}/file", create=True)
    files.pwritev(handle, [b"abc"], 0)
    refuse(errno.EOPNOTSUPP)
    files.preallocate(handle, 10)
    files.preallocate(handle, 5)
    assert files.pread(handle, 20, 0) == b"abc" + bytes(7)
    refuse(errno.ENOSPC)
    with pytest.raises(OSError, match="No space left"):
        files.preallocate(handle, 20)
    files.close(handle)


def test_dropping_the_cache_changes_no_byte(tmp_path: Path) -> None:
    """Written or not, what a process wrote is read: only what memory alone knows may go."""
    files = RealFiles()
    handle = files.open(str(tmp_path / "file"), create=True)
    files.pwritev(handle, (b"synced",), 0)
    files.fdatasync(handle)
    files.pwritev(handle, (b"not yet",), 6)
    files.drop_cache(handle)
    assert files.pread(handle, 100, 0) == b"syncednot yet"
    files.close(handle)
