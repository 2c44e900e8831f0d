"""The commit log: appends take all or none, records keep their places, the end moves in steps."""

from __future__ import annotations

import errno
import itertools
import struct
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymq.core_log import commit_log
from polymq.core_log.errors import (
    CorruptRecord,
    StorageBusy,
    StorageFailed,
    StorageFull,
    StoreRefused,
    TooLarge,
)
from polymq.core_log.kernels.batch import BLANK_SIZE, Batch
from polymq.core_log.queue_index import widen
from polymq.core_log.record import RecordTemplate
from polymq.core_log.settings import StoreSettings
from tests.harness.files import FailingFiles, HeldFiles, MemoryFiles
from tests.harness.stores import DIRECTORY, TINY, Bench, decode_all, numbered, select_readable

LOG = f"{DIRECTORY}/commitlog"


def positions(entries: bytes, stride: int = 20) -> list[int]:
    return [struct.unpack_from(">q", entries, at)[0] for at in range(0, len(entries), stride)]


def publish_until_refused(bench: Bench, count: int) -> None:
    """Runs of `count` messages, written but not flushed, until an append raises (or too many)."""
    for _ in range(200):
        bench.publish(numbered(len(bench.sent), count))
        bench.store.log.write()


# --- the end moves in steps -------------------------------------------------------------------


def test_appended_written_and_flushed_move_one_after_the_other() -> None:
    bench = Bench(MemoryFiles())
    log = bench.store.log
    start = log.flushed
    assert (log.appended, log.written, log.flushed) == (start, start, start)
    bench.publish(numbered(0, 2))
    end = log.appended
    assert (log.written, log.flushed, log.unflushed_bytes) == (start, start, end - start)
    log.write()
    assert (log.appended, log.written, log.flushed) == (end, end, start)
    assert bench.flush() == end
    assert log.unflushed_bytes == 0


def test_appended_records_are_read_hot_before_they_are_written() -> None:
    bench = Bench(MemoryFiles())
    bench.publish(numbered(0, 3))
    entries = bench.own.read_hot(0, 3)
    assert entries is not None
    records = bench.store.log.read_hot(entries, 20)
    assert records is not None
    assert [record.body for record in decode_all(records)] == numbered(0, 3)
    for index in range(3):  # one by one as well: nothing else has them yet
        records = bench.store.log.read_hot(entries[index * 20 : index * 20 + 20], 20)
        assert records is not None
        assert [record.body for record in decode_all(records)] == numbered(index, 1)


def test_hot_and_cold_give_the_same_bytes() -> None:
    bench = Bench(MemoryFiles())
    bench.publish(numbered(0, 5))
    bench.flush()
    for index in (bench.own, bench.private[0]):
        entries = index.read_hot(0, 5)
        assert entries is not None
        hot = bench.store.log.read_hot(entries, index.entry_size)
        assert hot == bench.store.log.read_cold(entries, index.entry_size)


def test_what_left_memory_is_read_cold_only() -> None:
    """The tail keeps 2 KiB of what is on the disk; an old record is not hot any more."""
    bench = Bench(MemoryFiles())
    for first in range(0, 60, 3):
        bench.publish(numbered(first, 3))
        bench.flush()
    old, new = bench.own.read_hot(0, 2), bench.own.read_hot(58, 2)
    assert old is not None
    assert new is not None
    assert bench.store.log.tail_start > positions(old)[-1]
    assert bench.store.log.read_hot(old, 20) is None
    assert bench.store.log.read_hot(old + new, 20) is None
    assert bench.store.log.read_hot(new, 20) == bench.store.log.read_cold(new, 20)
    assert [record.body for record in decode_all(bench.store.log.read_cold(old + new, 20))] == (
        numbered(0, 2) + numbered(58, 2)
    )


def test_memory_is_kept_until_it_is_flushed() -> None:
    """Nothing leaves memory before it is on the disk, however much it is, also when a flush that
    covers only the beginning is reported."""
    files = HeldFiles(MemoryFiles())
    settings = StoreSettings(segment_bytes=1 << 16, chunk_bytes=1024, tail_bytes_max=2048)
    bench = Bench(files, settings=settings)
    log, flusher = bench.store.log, bench.store.flusher
    files.block()
    bench.publish(numbered(0, 1))
    log.write()
    covered = log.written
    flusher.request()
    files.wait_until_held()
    for first in range(1, 61, 3):
        bench.publish(numbered(first, 3))
        log.write()
    files.release()
    assert select_readable(flusher.fileno())
    assert flusher.collect() == covered
    entries = bench.own.read_hot(1, 60)
    assert entries is not None
    assert log.read_hot(entries, 20) == log.read_cold(entries, 20)
    start = log.tail_start
    bench.flush()
    assert log.tail_start > start


def test_a_readers_memory_is_not_written_over() -> None:
    """Memory that left the tail serves again, but never while a span of it is held."""
    settings = StoreSettings(segment_bytes=1 << 20, chunk_bytes=1024, tail_bytes_max=2048)
    bench = Bench(MemoryFiles(), settings=settings)
    held = bench.publish(numbered(0, 3))
    before = [bytes(span.memory) for span in held]
    for first in range(3, 203, 4):
        bench.publish(numbered(first, 4))
        bench.flush()
    assert bench.store.log.tail_start > held[-1].position
    assert before == [bytes(span.memory) for span in held]
    assert numbered(0, 203)[:203] == bench.bodies()


# --- segments ---------------------------------------------------------------------------------


def test_a_segment_ends_with_a_blank_record_and_the_next_begins() -> None:
    files = MemoryFiles()
    bench = Bench(files)
    while bench.store.log.appended <= 2 * TINY.segment_bytes:
        bench.publish(numbered(len(bench.sent), 7))
    bench.flush()
    first = files.read(f"{LOG}/00000000000000000000")
    assert len(first) == TINY.segment_bytes
    entries = bench.own.read_hot(0, 1000)
    assert entries is not None
    last = max(offset for offset in positions(entries) if offset < TINY.segment_bytes)
    end = last + struct.unpack_from(">I", first, last)[0]
    remaining, magic = struct.unpack_from(">II", first, end)
    assert (remaining, magic) == (TINY.segment_bytes - end, 0xCBD43194)
    assert TINY.segment_bytes in positions(entries)
    assert [name for name in files.list(LOG) if name != "next"] == [
        f"{n * TINY.segment_bytes:020d}" for n in range(3)
    ]
    assert bench.bodies() == bench.sent


def test_a_run_is_one_span_unless_memory_or_a_segment_ends() -> None:
    bench = Bench(MemoryFiles())
    spans = bench.publish(numbered(0, 40))
    assert sum(span.count for span in spans) == 40
    records = []
    for span in spans:
        assert positions(span.entries)[0] == span.position
        records += decode_all(bytes(span.memory[span.start : span.end]))
    assert [record.body for record in records] == numbered(0, 40)
    bench = Bench(MemoryFiles(), settings=StoreSettings(segment_bytes=1 << 20))
    assert len(bench.publish(numbered(0, 40))) == 1


@given(st.lists(st.lists(st.integers(0, 1900), min_size=1, max_size=6), max_size=12))
def test_no_record_crosses_a_chunk_or_a_segment(runs: list[list[int]]) -> None:
    """Any sizes: dense positions but for blanks, each record whole in one segment, all readable."""
    bench = Bench(MemoryFiles())
    for sizes in runs:
        bench.publish([b"%d" % n + b"x" * size for n, size in enumerate(sizes)])
        if bench.store.log.unflushed_bytes > TINY.unflushed_bytes_max // 2:
            bench.flush()  # a run is smaller than the other half: nothing is refused
    bench.flush()
    records = bench.history()
    assert [record.body for record in records] == bench.sent
    end = bench.store.epochs[0][1]
    for record in records:
        segment = record.position // TINY.segment_bytes
        assert (record.position + record.size + 7) // TINY.segment_bytes == segment
        assert record.position >= end
        end = record.position + record.size
    assert bench.store.log.appended == end or not records
    bench.store.close()


class TellingFiles(MemoryFiles):
    """Says when a file was given room."""

    def __init__(self) -> None:
        super().__init__()
        self.preallocated = threading.Event()

    def preallocate(self, handle: int, size: int) -> None:
        super().preallocate(handle, size)
        self.preallocated.set()


def test_the_next_segment_is_made_ahead_of_use() -> None:
    """Past the middle of a segment, a flush lets a thread make a file of full size."""
    telling = TellingFiles()
    files = FailingFiles(telling)
    bench = Bench(files)
    telling.preallocated.clear()
    while bench.store.log.appended <= TINY.segment_bytes // 2:
        bench.publish(numbered(len(bench.sent), 1))
    bench.flush()
    assert telling.preallocated.wait(30)
    assert "next" in files.list(LOG)
    made = files.calls["preallocate"]
    while bench.store.log.appended < TINY.segment_bytes:
        bench.publish(numbered(len(bench.sent), 1))
    assert files.calls["preallocate"] == made
    assert files.list(LOG) == [f"{n * TINY.segment_bytes:020d}" for n in range(2)]
    bench.store.close()


# --- refusals ---------------------------------------------------------------------------------


def appended_nothing(bench: Bench, end: int) -> None:
    """The log is as it was, and goes on as if nothing had happened."""
    assert bench.store.log.appended == end
    before = list(bench.sent)
    bench.publish(numbered(900, 2))
    bench.flush()
    assert bench.bodies() == before + numbered(900, 2)


def test_one_body_too_large_refuses_the_whole_run() -> None:
    bench = Bench(MemoryFiles())
    bench.publish(numbered(0, 2))
    end = bench.store.log.appended
    bodies = [b"small", b"x" * (TINY.message_bytes_max + 1), b"small"]
    with pytest.raises(TooLarge, match="a body of 2001 bytes; the limit is 2000"):
        bench.publish(bodies)
    appended_nothing(bench, end)


def test_properties_too_large_refuse_the_whole_run() -> None:
    """The extra property grows by base64: 24,500 bytes are 32,668 in the record."""
    settings = StoreSettings(segment_bytes=1 << 20)
    bench = Bench(MemoryFiles(), settings=settings)
    bench.publish([b"x"], extra=b"e" * 24_400)
    end = bench.store.log.appended
    with pytest.raises(TooLarge, match=r"properties of \d+ bytes; the limit is 32767"):
        bench.publish([b"x"], extra=b"e" * 24_600)
    appended_nothing(bench, end)


def test_a_record_larger_than_a_segment_is_refused() -> None:
    settings = StoreSettings(segment_bytes=4096, message_bytes_max=1 << 20)
    bench = Bench(MemoryFiles(), settings=settings)
    end = bench.store.log.appended
    with pytest.raises(TooLarge, match="more than a segment holds"):
        bench.publish([b"x" * 4000])
    appended_nothing(bench, end)


def test_a_record_larger_than_a_chunk_gets_its_own() -> None:
    bench = Bench(MemoryFiles())
    bench.publish([b"s", b"x" * 1900, b"s"])
    bench.flush()
    assert bench.bodies() == [b"s", b"x" * 1900, b"s"]


def test_a_full_disk_refuses_the_run_that_needs_the_next_segment() -> None:
    """The segment that is there can still be filled. When there is room again, it goes on."""
    files = FailingFiles(MemoryFiles())
    bench = Bench(files)
    files.fail("preallocate", errno.ENOSPC, count=None)
    with pytest.raises(StorageFull, match="No space left"):
        publish_until_refused(bench, 3)
    assert len(bench.sent) > 9
    end = bench.store.log.appended
    assert end < TINY.segment_bytes
    with pytest.raises(StorageFull):
        bench.publish(numbered(len(bench.sent), 40))
    assert bench.store.log.appended == end
    assert bench.bodies() == bench.sent
    files.heal()
    appended_nothing(bench, end)


def test_a_run_that_fails_in_its_second_segment_is_taken_back() -> None:
    """A run over three segments, for the third of which there is no room: none of it stays, also
    not the second segment's first use; and the run fits later, at the same place."""
    files = FailingFiles(MemoryFiles())
    bench = Bench(files)
    bench.publish(numbered(0, 2))
    bench.flush()
    end = bench.store.log.appended
    files.fail("preallocate", errno.ENOSPC, after=1, count=None)
    with pytest.raises(StorageFull):
        bench.publish(numbered(2, 40))
    assert bench.store.log.appended == end
    assert bench.own.end_offset == 2
    files.heal()
    bench.publish(numbered(2, 40))
    bench.flush()
    assert bench.bodies() == numbered(0, 42)
    bench.store.close()
    assert Bench(files).bodies() == numbered(0, 42)


def test_a_write_that_meets_a_full_disk_keeps_records_and_refuses_more() -> None:
    files = FailingFiles(MemoryFiles())
    bench = Bench(files)
    bench.publish(numbered(0, 2))
    files.fail("pwritev", errno.ENOSPC)
    with pytest.raises(StorageFull):
        bench.store.log.write()
    end = bench.store.log.appended
    with pytest.raises(StorageFull):
        bench.publish(numbered(2, 1))
    assert bench.store.log.written < end
    bench.store.log.write()
    appended_nothing(bench, end)
    assert bench.bodies() == numbered(0, 2) + numbered(900, 2)


def test_a_failed_write_is_final() -> None:
    files = FailingFiles(MemoryFiles())
    bench = Bench(files)
    bench.publish(numbered(0, 2))
    written = bench.store.log.written
    files.fail("pwritev", errno.EIO)
    with pytest.raises(StorageFailed, match="writing the log: Input/output error"):
        bench.store.log.write()
    for action in (bench.store.log.write, lambda: bench.publish(numbered(2, 1))):
        with pytest.raises(StorageFailed, match="writing the log: Input/output error"):
            action()
    assert bench.store.log.written == written
    with pytest.raises(StorageFailed):
        bench.store.close()


def test_a_disk_that_does_not_keep_up_refuses_more() -> None:
    bench = Bench(MemoryFiles())
    with pytest.raises(StorageBusy, match="bytes wait for the disk"):
        publish_until_refused(bench, 10)
    end = bench.store.log.appended
    assert TINY.unflushed_bytes_max - 4096 < bench.store.log.unflushed_bytes
    assert bench.store.log.unflushed_bytes <= TINY.unflushed_bytes_max
    bench.flush()
    appended_nothing(bench, end)


def test_an_empty_run_appends_nothing() -> None:
    bench = Bench(MemoryFiles())
    end = bench.store.log.appended
    assert bench.publish([]) == []
    assert bench.store.log.append_atomic([], store_ms=1) == []
    appended_nothing(bench, end)


def test_rows_that_point_outside_the_buffer_are_refused_before_anything_is_taken() -> None:
    bench = Bench(MemoryFiles())
    end = bench.store.log.appended
    batch = Batch(2)
    batch.buffer = b"abc"
    batch.add((0, 0), (0, 3))
    batch.add((0, 0), (2, 2))
    with pytest.raises(ValueError, match="outside the buffer"):
        bench.store.log.append_run(
            RecordTemplate(b"t", 0, b""), batch, 0, 2, targets=(), born_ms=1, store_ms=1
        )
    appended_nothing(bench, end)


# --- atomic batches ---------------------------------------------------------------------------


def test_an_atomic_batch_is_consecutive_and_numbered() -> None:
    bench = Bench(MemoryFiles())
    bench.publish(numbered(0, 1))
    spans = bench.publish_atomic(numbered(1, 3))
    assert [span.count for span in spans] == [1, 1, 1]
    records = [decode_all(bytes(span.memory[span.start : span.end]))[0] for span in spans]
    identifier = spans[0].position
    assert [record.atomic for record in records] == [(identifier, n, 3) for n in range(3)]
    for before, after in itertools.pairwise(records):
        assert before.position + before.size == after.position
    bench.flush()
    assert bench.bodies() == numbered(0, 4)


def test_an_atomic_batch_that_does_not_fit_moves_to_the_next_segment_whole() -> None:
    bench = Bench(MemoryFiles())
    while bench.store.log.appended < TINY.segment_bytes - 600:
        bench.publish(numbered(len(bench.sent), 1))
    spans = bench.publish_atomic(numbered(len(bench.sent), 4))
    assert spans[0].position == TINY.segment_bytes
    bench.flush()
    assert bench.bodies() == bench.sent


@pytest.mark.parametrize("left", range(17))
def test_an_atomic_batch_leaves_room_for_the_blank_record(left: int) -> None:
    """It fits if it leaves `left` bytes of the segment, and the blank record needs eight of them;
    else all of it goes to the next one."""
    sizes = Bench(MemoryFiles())
    start = sizes.store.log.appended
    sizes.publish([b""])
    empty_size = sizes.store.log.appended - start
    sizes.publish_atomic(numbered(0, 3))
    batch_size = sizes.store.log.appended - start - empty_size

    bench = Bench(MemoryFiles())
    room = TINY.segment_bytes - bench.store.log.appended - batch_size - left
    while room > 0:
        body_size = min(room - empty_size, 700)
        if 0 < room - empty_size - body_size < empty_size:
            body_size -= empty_size
        bench.publish([b"x" * body_size])
        room -= empty_size + body_size
    assert bench.store.log.appended == TINY.segment_bytes - batch_size - left
    spans = bench.publish_atomic(numbered(len(bench.sent), 3))
    segments = {span.position // TINY.segment_bytes for span in spans}
    assert segments == {0 if left >= BLANK_SIZE else 1}
    bench.flush()
    assert bench.bodies() == bench.sent


def test_one_record_needs_no_batch() -> None:
    bench = Bench(MemoryFiles())
    span = bench.publish_atomic(numbered(0, 1))[0]
    assert decode_all(bytes(span.memory[span.start : span.end]))[0].atomic is None


def test_an_atomic_batch_larger_than_a_segment_is_refused() -> None:
    bench = Bench(MemoryFiles())
    end = bench.store.log.appended
    with pytest.raises(TooLarge, match="an atomic batch of"):
        bench.publish_atomic(numbered(0, 30))
    appended_nothing(bench, end)


def test_an_atomic_batch_has_at_most_so_many_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as its property can count, and not one more."""
    monkeypatch.setattr(commit_log, "BATCH_COUNT_MAX", 5)
    bench = Bench(MemoryFiles())
    assert len(bench.publish_atomic(numbered(0, 5))) == 5
    end = bench.store.log.appended
    with pytest.raises(TooLarge, match="an atomic batch of 6 records"):
        bench.publish_atomic(numbered(5, 6))
    appended_nothing(bench, end)


def test_many_queues_continue_in_system_records_of_the_same_batch() -> None:
    """700 targets: 256 in the record, the rest in two records that name it."""
    settings = StoreSettings(segment_bytes=1 << 20)
    bench = Bench(MemoryFiles(), settings=settings)
    spans = bench.publish(numbered(0, 2), wide=697)
    assert [span.count for span in spans] == [1, 1]
    bench.flush()
    records = list(bench.store._reader.walk(0).records(bench.store.log.flushed))
    main, *more = records[1:4]
    assert main.body == numbered(0, 1)[0]
    assert len(main.targets) == 256
    assert main.targets[0] == (1, 0)
    assert [record.topic for record in more] == [b"RMQ_SYS_POLYMQ_STATE"] * 2
    assert [record.atomic for record in (main, *more)] == [(main.position, n, 3) for n in range(3)]
    named = f"{main.position:016x}{main.size:08x}"
    assert all(record.properties["PMQ_OF"].startswith(named) for record in more)
    targets = [target for record in (main, *more) for target in record.targets]
    assert targets == [(1, 0), (2, 0), (3, 0)] + [(n, 0) for n in range(100, 797)]
    entries = bench.store.index(796, 32).read_hot(0, 5)
    assert entries is not None
    assert [record.body for record in decode_all(bench.store.log.read_cold(entries, 32))] == (
        numbered(0, 2)
    )


# --- cold reads check everything --------------------------------------------------------------


def test_a_record_that_rotted_is_never_served() -> None:
    files = MemoryFiles()
    bench = Bench(files)
    bench.publish(numbered(0, 3))
    bench.flush()
    path = f"{LOG}/00000000000000000000"
    sound = files.read(path)
    entries = bench.own.read_hot(0, 3)
    assert entries is not None
    offset = positions(entries)[1]
    for at in (offset, offset + 28, offset + 90, offset + 150):
        files.overwrite(path, sound[:at] + bytes((sound[at] ^ 4,)) + sound[at + 1 :])
        with pytest.raises(CorruptRecord) as caught:
            bench.store.log.read_cold(entries, 20)
        assert caught.value.position == offset
        assert len(decode_all(bench.store.log.read_cold(entries[:20], 20))) == 1


def test_entries_that_name_no_record_are_refused() -> None:
    bench = Bench(MemoryFiles())
    bench.publish(numbered(0, 3))
    bench.flush()
    entries = bench.own.read_hot(0, 3)
    assert entries is not None
    position, size, tag = struct.unpack_from(">qiq", entries)
    for wrong in (
        (position + 1, size),
        (position, size - 1),
        (position, size + 1),
        (position, 0),
        (position, -1),
        (-1, size),
        (1 << 50, size),
        (bench.store.log.appended, size),
        (TINY.segment_bytes - 10, size),
    ):
        with pytest.raises(CorruptRecord):
            bench.store.log.read_cold(struct.pack(">qiq", *wrong, tag), 20)


def test_an_unreadable_place_is_an_error_of_that_record_only() -> None:
    files = FailingFiles(MemoryFiles())
    bench = Bench(files)
    bench.publish(numbered(0, 3))
    bench.flush()
    entries = bench.own.read_hot(0, 3)
    assert entries is not None
    files.fail("pread", errno.EIO)
    with pytest.raises(CorruptRecord, match="it cannot be read: Input/output error"):
        bench.store.log.read_cold(entries, 20)
    assert len(decode_all(bench.store.log.read_cold(entries, 20))) == 3
    bench.publish(numbered(3, 1))
    bench.flush()


def test_scattered_entries_are_read_in_their_order() -> None:
    """Far apart, backwards, twice: one record after the other, as the entries say."""
    bench = Bench(MemoryFiles())
    bench.publish(numbered(0, 60))
    bench.flush()
    wanted = [59, 0, 1, 2, 30, 30, 7, 58]
    entries = b"".join(widen(bench.own.read_hot(offset, 1) or b"") for offset in wanted)
    records = decode_all(bench.store.log.read_cold(entries, 32))
    assert [record.body for record in records] == [numbered(offset, 1)[0] for offset in wanted]


def test_settings_that_can_not_be_are_refused() -> None:
    for wrong in (
        {"segment_bytes": 8},
        {"segment_bytes": 1 << 31},
        {"chunk_bytes": 0},
        {"index_file_entries": 0},
        {"tail_bytes_max": -1},
        {"unflushed_bytes_max": 0},
        {"write_slice_bytes": 0},
    ):
        with pytest.raises(ValueError, match="_"):
            StoreSettings(**wrong)  # type: ignore[arg-type]


def test_a_directory_is_opened_once() -> None:
    files = MemoryFiles()
    Bench(files)
    with pytest.raises(StoreRefused, match=f"{DIRECTORY} is in use: another process holds"):
        Bench(files)
