"""The log's beginning goes: segments, index entries and epochs, over crashes and restarts."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from polymq.core_log.errors import CorruptRecord, StorageFailed
from polymq.core_log.files import RealFiles
from polymq.core_log.retention import first_after_position, first_after_time, position_at, sizes
from polymq.core_log.segment_files import CLOSED
from polymq.core_log.store import Store
from tests.harness.files import FailingFiles, MemoryFiles
from tests.harness.stores import DIRECTORY, TINY, Bench, numbered

LOG = f"{DIRECTORY}/commitlog"


def filled(files: MemoryFiles | FailingFiles, count: int = 100) -> Bench:
    """A store with some segments, all checkpointed; a message a second."""
    bench = Bench(files)
    for first in range(0, count, 5):
        bench.publish(numbered(first, 5))
        bench.now_ms += 5000
    bench.flush()
    bench.checkpoint()
    return bench


def delete_before(bench: Bench, position: int) -> int:
    """What retention does: restate, trim, checkpoint, delete. Returns the bytes given up."""
    starts = [start for start, end in bench.store.segments() if end > position]
    bench.store.restate_epochs()
    bench.flush()
    for index in (bench.own, *bench.private):
        index.trim_before(first_after_position(index, starts[0]))
    bench.checkpoint()
    count = bench.store.retire(starts[0])
    bench.store.discard()
    return count


def test_the_files_of_a_stretch_are_those_that_hold_bytes_of_it() -> None:
    """A flush that ends with its file syncs that one, and not the next one as well, which has
    nothing yet."""
    segments = filled(MemoryFiles()).store._segments
    first, second, *_ = segments.all()
    assert segments.between(first.start, first.end) == [first]
    assert segments.between(first.end, second.end) == [second]
    assert segments.between(first.end - 1, first.end + 1) == [first, second]
    assert segments.between(first.end, first.end) == []


def test_whole_segments_go_and_the_rest_is_there() -> None:
    files = MemoryFiles()
    bench = filled(files)
    names = [name for name in files.list(LOG) if name.isdigit()]
    assert len(names) > 4
    assert delete_before(bench, 2 * TINY.segment_bytes) == 2 * TINY.segment_bytes
    assert [name for name in files.list(LOG) if name.isdigit()] == names[2:]
    first = bench.own.first_offset
    assert 0 < first < 100
    assert bench.bodies() == bench.sent[first:]
    assert bench.store.log.start == 2 * TINY.segment_bytes
    bench.store.close()
    again = Bench(files, sent=bench.sent)
    assert again.store.recovery.clean
    assert again.store.recovery.start == 2 * TINY.segment_bytes
    for index in (again.own, *again.private):
        index.begin_at(first)
    assert again.bodies() == bench.sent[first:]
    assert again.own.end_offset == 100
    again.store.close()


def test_the_segment_that_is_written_to_stays() -> None:
    files = MemoryFiles()
    bench = filled(files)
    last = bench.store.segments()[-1]
    delete_before(bench, bench.store.checkpointed)
    assert bench.store.segments()[0] == last or bench.store.segments()[0][0] >= last[0]
    assert bench.store.segments()
    bench.publish(numbered(100, 1))
    bench.flush()
    bench.store.close()


@pytest.mark.parametrize("damage", ["none", "no checkpoint"])
def test_offsets_are_not_reused_when_all_messages_are_gone(damage: str) -> None:
    """Also if nothing in the store tells any more how far the queue had come."""
    files = MemoryFiles()
    bench = filled(files)
    end = bench.store.segments()[-1][1]
    while bench.store.log.appended < end:
        bench.store.restate_epochs()
    bench.flush()
    bench.checkpoint()
    delete_before(bench, end)
    assert bench.own.first_offset == 100
    assert bench.own.read_hot(99, 1) == b""
    assert bench.own.read_cold(99, 1) == b""
    bench.store.close()
    if damage == "no checkpoint":
        files.unlink(f"{DIRECTORY}/checkpoint")
    again = Bench(files, sent=bench.sent)
    assert again.own.end_offset == (100 if damage == "none" else 0)
    for index in (again.own, *again.private):
        index.begin_at(100)
    again.publish(numbered(100, 3))
    again.flush()
    again.checkpoint()
    assert again.bodies() == numbered(100, 3)
    again.store.close()
    third = Bench(files)
    assert third.store.recovery.clean
    assert (third.own.first_offset, third.own.end_offset) == (100, 103)
    assert third.bodies() == numbered(100, 3)
    third.store.close()


def test_an_index_that_goes_on_elsewhere_and_gets_nothing_is_kept_so() -> None:
    files = MemoryFiles()
    bench = Bench(files)
    bench.own.begin_at(7)
    bench.flush()
    bench.store.close()
    again = Bench(files)
    assert (again.own.first_offset, again.own.end_offset) == (7, 7)
    again.store.close()


def test_an_index_begins_where_it_was_trimmed() -> None:
    files = MemoryFiles()
    bench = filled(files)
    bench.own.trim_before(40)
    assert bench.own.read_hot(39, 1) == b""
    assert bench.bodies() == bench.sent[40:]
    bench.store.close()
    again = Bench(files)
    assert again.store.recovery.clean
    assert again.own.first_offset == 40
    again.own.begin_at(50)
    assert again.bodies() == bench.sent[50:]
    again.store.close()


def test_indexes_are_made_again_from_what_the_log_still_has() -> None:
    files = MemoryFiles()
    bench = filled(files)
    delete_before(bench, 2 * TINY.segment_bytes)
    first = bench.own.first_offset
    bench.publish(numbered(100, 1))
    bench.flush()
    left = files.after_kill()
    bench.abandon()
    left.unlink(f"{DIRECTORY}/checkpoint")
    again = Bench(left, sent=bench.sent)
    assert again.store.recovery.rebuilt_all
    assert again.own.first_offset <= first
    again.own.begin_at(first)
    assert again.bodies() == bench.sent[first:]
    again.store.close()


@pytest.mark.parametrize("damage", ["lost", "kept"])
def test_epochs_outlive_the_segment_that_they_began_in(damage: str) -> None:
    """A number that is given twice would let two histories look like one."""
    files = MemoryFiles()
    for _ in range(3):
        Bench(files).store.close()
    bench = filled(files)
    assert bench.store.epoch == 4
    began = bench.store.epochs[-1]
    delete_before(bench, 2 * TINY.segment_bytes)
    position = bench.store.log.flushed
    bench.store.close()
    if damage == "lost":
        files.unlink(f"{DIRECTORY}/epochFileCheckpoint")
        files.unlink(f"{DIRECTORY}/checkpoint")
    again = Bench(files)
    assert again.store.epoch == 5
    assert again.store.epochs[:-1] == [began]
    assert again.store.is_record_boundary(position, 4)
    again.store.close()


def test_a_crash_at_any_write_while_segments_go() -> None:
    """Whatever of it reached the disk, the store opens and has all that was not given up."""
    step = 0
    while True:
        files = MemoryFiles()
        bench = filled(files)
        given_up = first_after_position(bench.own, 3 * TINY.segment_bytes)
        files.cut_power_after(step)
        try:
            delete_before(bench, 3 * TINY.segment_bytes)
            done = True
        except (OSError, StorageFailed):
            done = False
        left = files.after_kill()
        bench.abandon()
        again = Bench(left, sent=bench.sent)
        start = again.store.recovery.start
        assert start in {n * TINY.segment_bytes for n in range(4)}
        for index in (again.own, *again.private):
            while index.first_offset < index.end_offset and (
                position_at(index, index.first_offset) < start
            ):
                index.trim_before(index.first_offset + 1)
        begin = again.own.first_offset
        assert again.bodies() == bench.sent[begin:]
        assert begin <= given_up
        again.store.close()
        if done:
            assert step > 5
            return
        step += 1


def test_a_segment_that_is_read_is_closed_by_its_last_reader(tmp_path: Path) -> None:
    """Its handle's number must not become another file's while somebody reads."""
    files = RealFiles()
    store = Store.open(str(tmp_path / "s"), files=files, clock_ms=lambda: 1, settings=TINY)
    segment = store._segments.all()[0]
    handle = segment.enter()
    segment.close()
    assert segment.enter() == CLOSED
    assert files.size(handle) == TINY.segment_bytes  # open still
    segment.leave()
    with pytest.raises(OSError, match="Bad file descriptor"):
        files.size(handle)
    with pytest.raises(CorruptRecord, match="no longer"):
        store._reader.pread(segment, 0, 1)
    store.flusher.stop()
    assert threading.active_count() >= 1


def test_a_file_that_cannot_be_removed_is_tried_again() -> None:
    memory = MemoryFiles()
    files = FailingFiles(memory)
    bench = filled(files)
    assert bench.store.retire(2 * TINY.segment_bytes)
    files.fail("unlink", errno.EACCES)
    with pytest.raises(OSError, match="Permission"):
        bench.store.discard()
    assert bench.store.log.start == 2 * TINY.segment_bytes
    bench.store.discard()
    assert int(memory.list(LOG)[0]) == 2 * TINY.segment_bytes
    bench.store.close()


def test_a_failed_sync_of_the_directory_is_final() -> None:
    """It may have been the one that names a new segment."""
    files = FailingFiles(MemoryFiles())
    bench = filled(files)
    bench.store.retire(TINY.segment_bytes)
    files.fail("sync_directory", errno.EIO)
    with pytest.raises(StorageFailed):
        bench.store.discard()
    files.heal()
    with pytest.raises(StorageFailed):
        bench.publish(numbered(100, 1))
    bench.abandon()


def test_the_first_message_after_a_time_or_a_place() -> None:
    files = MemoryFiles()
    bench = filled(files)
    begin_ms = 1_700_000_000_000
    store = bench.store
    for offset in (0, 1, 4, 5, 42, 99):
        assert first_after_position(bench.own, position_at(bench.own, offset)) == offset
    assert first_after_position(bench.own, position_at(bench.own, 7) + 1) == 8
    assert first_after_position(bench.own, store.log.flushed) == 100
    assert first_after_time(store, bench.own, begin_ms) == 0
    assert first_after_time(store, bench.own, begin_ms + 1) == 5
    assert first_after_time(store, bench.private[0], begin_ms + 50_000) == 50
    assert first_after_time(store, bench.own, begin_ms + 10_000_000) == 100
    assert sum(sizes(bench.own, 10, 12)) == 2 * sizes(bench.own, 10, 11)[0]
    bench.store.close()
