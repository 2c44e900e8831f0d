"""The flusher: a position is flushed only after a sync that covers it came back without error."""

from __future__ import annotations

import errno
import select
import threading

import pytest

from polymq.core_log.errors import StorageFailed
from polymq.core_log.flusher import Flusher
from polymq.core_log.settings import StoreSettings
from polymq.core_log.store import Store
from tests.harness.files import EVERYTHING, NOTHING, FailingFiles, HeldFiles, MemoryFiles
from tests.harness.stores import DIRECTORY, TEMPLATE, TINY, Bench, numbered


def readable(flusher: Flusher, seconds: float) -> bool:
    return bool(select.select([flusher.fileno()], [], [], seconds)[0])


def test_nothing_is_flushed_while_the_sync_is_held() -> None:
    files = HeldFiles(MemoryFiles())
    bench = Bench(files)
    log, flusher = bench.store.log, bench.store.flusher
    before = log.flushed
    files.block()
    bench.publish(numbered(0, 3))
    log.write()
    flusher.request()
    files.wait_until_held()
    assert not readable(flusher, 0)
    assert flusher.collect() == before == log.flushed
    files.release()
    assert readable(flusher, 30)
    assert flusher.collect() == log.written == log.flushed


def test_what_is_written_during_a_sync_waits_for_the_next() -> None:
    """A sync covers what was written before it began, no more: it may have passed those pages."""
    files = HeldFiles(MemoryFiles())
    bench = Bench(files)
    log, flusher = bench.store.log, bench.store.flusher
    files.block()
    bench.publish(numbered(0, 1))
    log.write()
    flusher.request()
    files.wait_until_held()
    covered = log.written
    bench.publish(numbered(1, 1))
    log.write()
    files.release()
    assert readable(flusher, 30)
    assert flusher.collect() == covered < log.written
    assert not readable(flusher, 0)
    assert bench.flush() == log.written


def test_requests_during_a_sync_share_the_next_one() -> None:
    """Group commit: ten requests while one sync is on its way cost one more sync."""
    files = HeldFiles(MemoryFiles())
    bench = Bench(files, settings=StoreSettings(segment_bytes=1 << 20))
    log, flusher = bench.store.log, bench.store.flusher
    files.block()
    bench.publish(numbered(0, 1))
    log.write()
    flusher.request()
    files.wait_until_held()
    before = files.syncs_count
    for number in range(1, 11):
        bench.publish(numbered(number, 1, size=13))
        log.write()
        flusher.request()
    files.release()
    while flusher.collect() < log.written:
        assert readable(flusher, 30)
    assert files.syncs_count == before + 2


def test_a_request_for_nothing_new_asks_for_no_sync() -> None:
    files = HeldFiles(MemoryFiles())
    bench = Bench(files)
    bench.publish(numbered(0, 1))
    bench.flush()
    before = files.syncs_count
    for _ in range(3):
        bench.store.flusher.request()
    assert bench.store.flusher.collect() == bench.store.log.written
    bench.store.flusher.stop()
    assert files.syncs_count == before


def test_what_is_flushed_survives_a_power_cut_and_the_rest_need_not() -> None:
    files = MemoryFiles()
    bench = Bench(files)
    bench.publish(numbered(0, 5))
    bench.flush()
    bench.publish(numbered(5, 2))
    bench.store.log.write()
    assert Bench(files.after_crash(NOTHING)).bodies() == numbered(0, 5)
    assert Bench(files.after_crash(EVERYTHING)).bodies() == numbered(0, 7)


def test_a_flush_over_several_segments_syncs_all_of_them_and_their_names() -> None:
    files = MemoryFiles()
    bench = Bench(files)
    bench.publish(numbered(0, 60))
    assert bench.store.log.appended > 2 * TINY.segment_bytes
    bench.flush()
    assert Bench(files.after_crash(NOTHING)).bodies() == numbered(0, 60)


def collect_all(flusher: Flusher) -> None:
    """What the flusher reports, of an earlier flush, too."""
    while readable(flusher, 30):
        flusher.collect()


@pytest.mark.parametrize("name", ["fdatasync", "sync_directory"])
def test_a_failed_sync_is_final(name: str) -> None:
    """After EIO nothing more is reported flushed, though later syncs would succeed, and nothing
    more is written: the kernel may have dropped the pages that could not be synced."""
    files = FailingFiles(MemoryFiles())
    bench = Bench(files)
    log, flusher = bench.store.log, bench.store.flusher
    bench.publish(numbered(0, 2))
    before = bench.flush()
    bench.publish(numbered(2, 60))  # into the next segment, so that names are synced too
    log.write()
    files.fail(name, errno.EIO)
    flusher.request()
    failed = "syncing the log: Input/output error"
    with pytest.raises(StorageFailed, match=failed):
        collect_all(flusher)
    for _ in range(2):
        with pytest.raises(StorageFailed, match=failed):
            flusher.collect()
    assert log.flushed == before
    calls = files.calls["fdatasync"]
    flusher.request()
    with pytest.raises(StorageFailed):
        bench.publish(numbered(62, 1))
    with pytest.raises(StorageFailed):
        bench.store.prepare_checkpoint()()
    with pytest.raises(StorageFailed):
        bench.store.close()
    assert log.flushed == before
    assert files.calls["fdatasync"] == calls


def test_a_full_disk_ahead_of_use_does_not_fail_a_flush() -> None:
    """The next segment cannot be made; what is in this one is flushed all the same."""
    files = FailingFiles(MemoryFiles())
    bench = Bench(files)
    files.fail("preallocate", errno.ENOSPC, count=None)
    while bench.store.log.appended < TINY.segment_bytes * 3 // 4:
        bench.publish(numbered(len(bench.sent), 1))
        bench.flush()
    assert bench.store.log.flushed == bench.store.log.appended
    files.heal()
    bench.publish(numbered(len(bench.sent), 10))
    bench.flush()
    assert bench.bodies() == bench.sent


def test_a_failing_disk_ahead_of_use_is_reported() -> None:
    files = FailingFiles(MemoryFiles())
    bench = Bench(files)
    bench.publish(numbered(0, 9))
    bench.store.log.write()
    files.fail("preallocate", errno.EIO)
    bench.store.flusher.request()

    def collect_until_it_fails() -> None:
        while True:
            assert readable(bench.store.flusher, 30)
            bench.store.flusher.collect()

    with pytest.raises(StorageFailed, match=r"making .*next: Input/output error"):
        collect_until_it_fails()


def test_stop_flushes_what_is_written_and_ends_the_thread() -> None:
    before = set(threading.enumerate())  # other tests may have left some
    files = MemoryFiles()
    bench = Bench(files)
    bench.publish(numbered(0, 3))
    bench.store.log.write()
    bench.store.flusher.stop()
    bench.store.flusher.stop()
    assert bench.store.log.flushed == bench.store.log.written
    bench.store.flusher.request()
    assert bench.store.flusher.collect() == bench.store.log.flushed
    assert not [t for t in set(threading.enumerate()) - before if t.name == "flusher"]
    assert Bench(files.after_crash(NOTHING)).bodies() == numbered(0, 3)


def test_a_stepped_flusher_works_only_when_it_is_told_to() -> None:
    """A simulation has no threads: what reaches the disk, and when, is the caller's choice."""
    threads = threading.active_count()
    store = Store.open(
        DIRECTORY, files=MemoryFiles(), clock_ms=lambda: 1, settings=TINY, stepped=True
    )
    log, flusher = store.log, store.flusher
    before = log.flushed
    log.append_record(TEMPLATE, b"m", born_ms=1, store_ms=1)
    log.write()
    flusher.request()
    assert flusher.collect() == before
    flusher.step()
    assert flusher.collect() == log.written == log.flushed > before
    log.append_record(TEMPLATE, b"n", born_ms=1, store_ms=1)
    assert threading.active_count() == threads
    store.close()
    assert log.flushed == log.appended


def test_each_sync_that_succeeds_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed one says nothing about how long a sync takes."""
    files = FailingFiles(MemoryFiles())
    bench = Bench(files)
    flusher = bench.store.flusher
    monkeypatch.setattr(flusher, "_clock", iter((1.0, 1.3, 5.0, 6.0)).__next__)
    before = sum(flusher.durations.counts)
    bench.publish(numbered(0, 3))
    bench.flush()
    assert sum(flusher.durations.counts) == before + 1
    assert flusher.durations.total == pytest.approx(0.3, abs=0.05)
    files.fail("fdatasync", errno.EIO)
    bench.publish(numbered(3, 1))
    with pytest.raises(StorageFailed):
        bench.flush()
    assert sum(flusher.durations.counts) == before + 1
