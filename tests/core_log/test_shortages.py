"""A process without descriptors or memory: nothing fails for good, nothing is lost, and the store
goes on by itself. A sync that returned an error stays final, whatever the error was."""

from __future__ import annotations

import errno
import os
import select
from dataclasses import replace
from pathlib import Path

import pytest

from polymq.core_log.errors import NotBegun, StorageFailed, StorageFull, StorageShort
from polymq.core_log.files import Files, RealFiles
from polymq.core_log.segment_files import CLOSED, OpenSegments, Segment
from tests.harness.descriptors import no_more_descriptors
from tests.harness.files import FailingFiles, HeldFiles, MemoryFiles, WrappedFiles
from tests.harness.stores import PACKED, TINY, Bench, numbered, select_readable

SHORT = [errno.EMFILE, errno.ENFILE, errno.ENOMEM]
SEGMENT = TINY.segment_bytes
FEW = replace(TINY, open_segments_max=2)


class NoDirectories(WrappedFiles):
    """Files whose directories cannot be opened to be synced."""

    def __init__(self, files: Files) -> None:
        super().__init__(files)
        self.short = False
        self.refused_count = 0

    def sync_directory(self, path: str) -> None:
        if self.short:
            self.refused_count += 1
            raise NotBegun(errno.EMFILE, os.strerror(errno.EMFILE), path)
        self.files.sync_directory(path)


def fill(bench: Bench, count: int = 40) -> None:
    for _ in range(count):
        bench.publish(numbered(len(bench.sent), 1))


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("code", SHORT)
@pytest.mark.parametrize("call", ["open", "preallocate", "rename", "unlink"])
def test_a_roll_without_descriptors_is_refused_and_works_later(call: str, code: int) -> None:
    files = FailingFiles(MemoryFiles())
    bench = Bench(files)
    fill(bench, 10)
    bench.flush()
    files.fail(call, code, count=None)
    sent = len(bench.sent)
    with pytest.raises(StorageShort, match=os.strerror(code)):
        fill(bench)
    assert len(bench.sent) > sent  # as far as the segment went
    bench.flush()
    assert bench.store.short_count > 0
    assert os.strerror(code) in bench.store.short_text
    files.heal()
    fill(bench)
    bench.flush()
    assert bench.bodies() == bench.sent
    bench.store.close()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_roll_without_room_is_refused_and_works_later(code: int) -> None:
    files = FailingFiles(MemoryFiles())
    bench = Bench(files)
    files.fail("preallocate", code, count=None)
    with pytest.raises(StorageFull, match=os.strerror(code)):
        fill(bench)
    files.heal()
    fill(bench)
    bench.flush()
    bench.store.close()


@pytest.mark.parametrize("code", [*SHORT, errno.EFBIG, errno.ENOSPC, errno.EIO])
def test_a_sync_that_returned_an_error_is_final_whatever_it_was(code: int) -> None:
    files = FailingFiles(MemoryFiles())
    bench = Bench(files)
    bench.publish(numbered(0, 1))
    files.fail("fdatasync", code)
    with pytest.raises(StorageFailed, match=os.strerror(code)):
        bench.flush()
    with pytest.raises(StorageFailed):
        bench.publish(numbered(1, 1))


@pytest.mark.parametrize("code", [*SHORT, errno.EFBIG, errno.EIO])
def test_a_failed_sync_of_a_checkpoint_is_final_too(code: int) -> None:
    files = FailingFiles(MemoryFiles())
    bench = Bench(files, settings=PACKED)
    fill(bench, 5)
    bench.flush()
    files.fail("fdatasync", code)
    with pytest.raises(StorageFailed):
        bench.checkpoint()


@pytest.mark.parametrize("code", [*SHORT, errno.EFBIG])
@pytest.mark.parametrize("after", range(5))
@pytest.mark.parametrize("settings", [PACKED, TINY], ids=["packed", "files"])
def test_a_checkpoint_without_descriptors_is_made_up_for(
    settings: object, after: int, code: int
) -> None:
    memory = MemoryFiles()
    files = FailingFiles(memory)
    assert settings in (PACKED, TINY)
    bench = Bench(files, settings=PACKED if settings is PACKED else TINY)
    for _ in range(2):
        fill(bench, 8)
        bench.flush()
        bench.checkpoint()
    fill(bench, 8)
    bench.flush()
    files.fail("open", code, after=after, count=3)
    try:
        bench.checkpoint()
    except StorageFull:
        pass
    files.heal()
    fill(bench, 8)
    bench.flush()
    bench.checkpoint()
    assert bench.bodies() == bench.sent
    bench.store.close()
    again = Bench(memory, settings=PACKED if settings is PACKED else TINY, sent=bench.sent)
    assert again.store.recovery.clean
    assert again.bodies() == bench.sent


def test_a_flush_waits_for_a_descriptor_and_reports_nothing_before() -> None:
    """The bytes are synced; the new segment's name is not."""
    files = NoDirectories(MemoryFiles())
    bench = Bench(files)
    bench.flush()
    fill(bench, 30)  # more than a segment
    files.short = True
    before = bench.store.log.flushed
    bench.store.log.write()
    bench.store.flusher.request()
    assert not select_soon(bench)
    assert bench.store.flusher.collect() == before
    assert files.refused_count > 0
    assert bench.store.short_count == files.refused_count
    files.short = False
    while bench.store.flusher.collect() < bench.store.log.written:
        assert select_readable(bench.store.flusher.fileno())
    bench.store.close()


def select_soon(bench: Bench) -> bool:
    return bool(select.select([bench.store.flusher.fileno()], [], [], 0.3)[0])


def test_a_close_without_a_descriptor_says_that_it_is_not_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("polymq.core_log.flusher.RETRY_SECONDS", 0.001)
    memory = MemoryFiles()
    files = NoDirectories(memory)
    bench = Bench(files)
    fill(bench, 30)
    files.short = True
    with pytest.raises(StorageFailed, match="Too many open files"):
        bench.store.close()
    again = Bench(memory.after_kill(), sent=bench.sent)
    assert again.bodies() == bench.sent


def test_the_open_files_of_a_log_do_not_grow_with_its_segments(tmp_path: Path) -> None:
    files = RealFiles()
    bench = Bench(files, directory=str(tmp_path / "s"), settings=FEW)
    before = descriptors()
    for _ in range(30):
        fill(bench, 20)
        bench.flush()
    assert len(bench.store.segments()) > 25
    assert descriptors() - before <= 2
    assert bench.bodies() == bench.sent  # each was opened again
    assert bench.store.open_segments <= 3
    assert descriptors() - before <= 2
    bench.store.close()
    again = Bench(files, directory=str(tmp_path / "s"), settings=FEW, sent=bench.sent)
    assert again.store.open_segments <= 3
    assert again.bodies() == bench.sent
    again.store.close()


def test_a_file_is_not_closed_before_all_of_it_is_synced() -> None:
    """Whether a write reached the disk is told to those who have the file open."""
    files = HeldFiles(MemoryFiles())
    bench = Bench(files, settings=replace(FEW, open_segments_max=1))
    bench.flush()
    files.block()
    fill(bench, 60)
    bench.store.log.write()
    bench.store.flusher.request()
    files.wait_until_held()
    held = [segment for segment in bench.store._segments.all() if segment.start > 0]
    assert len(held) > 2
    bench.store._segments._opened.trim(0)
    assert all(segment.handle != CLOSED for segment in held)
    files.release()
    bench.flush()
    bench.store._segments._opened.trim(0)
    opened = [segment.start for segment in held if segment.handle != CLOSED]
    assert opened == [held[-1].start]
    assert bench.bodies() == bench.sent
    bench.store.close()


def test_a_roll_takes_the_descriptor_of_a_file_that_nobody_reads(tmp_path: Path) -> None:
    bench = Bench(RealFiles(), directory=str(tmp_path / "s"))
    for _ in range(5):
        fill(bench, 20)
        bench.flush()
    count = len(bench.store.segments())
    with no_more_descriptors():
        fill(bench, 20)
        bench.flush()
    assert len(bench.store.segments()) > count
    assert bench.store.short_count > 0
    bench.store.close()


def test_a_read_without_a_descriptor_is_no_damage(tmp_path: Path) -> None:
    bench = Bench(RealFiles(), directory=str(tmp_path / "s"), settings=FEW)
    for _ in range(5):
        fill(bench, 20)
        bench.flush()
    first = bench.store._segments.all()[0]
    bench.store._segments._opened.trim(0)
    assert first.handle == CLOSED
    with pytest.raises(StorageShort, match="Too many open files"), no_more_descriptors():
        bench.store.record_at(0)
    assert bench.store.record_at(0).topic


def test_the_oldest_used_file_is_closed_first() -> None:
    files = MemoryFiles()
    files.make_directory("/log")
    opened = OpenSegments(files=files, count_max=2)
    segments = []
    for start in range(3):
        files.close(files.open(f"/log/{start}", create=True))
        segments.append(Segment(start, start + 1, f"/log/{start}", opened))
    for number in (0, 1, 0, 2):
        assert segments[number].enter() != CLOSED
        segments[number].leave()
    assert [segment.handle == CLOSED for segment in segments] == [False, True, False]
    segments[0].enter()
    segments[2].enter()
    segments[1].enter()  # all are being read: it is opened all the same
    assert opened.count == 3
