"""Recovery of the log, one kind of damage at a time: what is kept, cut, refused, and
that a second recovery finds nothing to do."""

from __future__ import annotations

import errno
import os
from dataclasses import replace

import pytest

from polymq.core_log import recovery
from polymq.core_log.checkpoint import CHECKPOINT_NAME, read_checkpoint, write_checkpoint
from polymq.core_log.errors import StoreCorrupt, StoreRefused
from polymq.core_log.record import RecordTemplate
from polymq.core_log.settings import StoreSettings
from tests.harness.damage import (
    FIRST,
    LOG,
    WIDE,
    check_recovered,
    end_of,
    record_starts,
    sized,
    written_store,
)
from tests.harness.files import EVERYTHING, NOTHING, MemoryFiles, WrappedFiles
from tests.harness.stores import (
    DIRECTORY,
    LIVES,
    LIVES_ONCE,
    MESSAGE_SIZE,
    TEMPLATE,
    TINY,
    Bench,
    numbered,
    recover_only,
)

# --- the tail ---------------------------------------------------------------------------------


def test_a_store_that_was_closed_is_opened_without_reading_it() -> None:
    files = MemoryFiles()
    bench = Bench(files)
    bench.publish(numbered(0, 50))
    bench.store.close()
    bench.store.close()
    assert files.list(DIRECTORY) == [
        "checkpoint",
        "closed",
        "commitlog",
        "consumequeue",
        "epochFileCheckpoint",
        "lock",
        "packedqueue",
    ]
    before = files.image()
    recover_only(files, TINY)
    assert files.image() == before
    again = Bench(files)
    report = again.store.recovery
    assert (report.clean, report.scanned_bytes, report.removed, report.strays) == (True, 0, (), ())
    assert report.cut_bytes == 0
    assert again.bodies() == again.bodies(2) == numbered(0, 50)


def test_a_fresh_directory_is_made() -> None:
    bench = Bench(MemoryFiles())
    report = bench.store.recovery
    assert (report.clean, report.start, report.end) == (True, 0, 0)
    assert (bench.store.epoch, bench.store.epochs) == (1, [(1, 0)])


@pytest.mark.parametrize("tail", [b"", b"\0" * 300, b"\x5a" * 300, b"\xff" * 3])
def test_a_torn_tail_is_cut_wherever_it_tore(tail: bytes) -> None:
    """The log is torn at every byte of its last two records; behind that zeros or garbage."""
    files = written_store(4)
    data = files.read(FIRST)
    end = end_of(files)
    starts = record_starts(data)
    assert end == starts[-1] + MESSAGE_SIZE
    for torn in range(starts[-2], end):
        copy = files.after_crash(EVERYTHING)
        copy.overwrite(FIRST, (data[:torn] + tail).ljust(len(data), b"\0"))
        stored = sum(1 for start in starts[1:] if start + MESSAGE_SIZE <= torn)
        if data[torn : torn + len(tail)] == tail:  # what tore is what was there
            continue
        bench = Bench(copy, settings=WIDE)
        assert bench.bodies() == bench.bodies(3) == numbered(0, stored)
        assert bench.store.recovery.end == starts[1 + stored]
        bench.store.flusher.stop()


def test_records_larger_than_one_read_of_the_disk_are_recovered() -> None:
    """Recovery reads a mebibyte at a time; a record of three is read at one go, a torn one cut."""
    settings = StoreSettings(segment_bytes=16 << 20)
    files = MemoryFiles()
    bench = Bench(files, settings=settings)
    bodies = [b"small", b"x" * (3 << 20), b"y" * (1 << 20), *numbered(3, 2), b"z" * (2 << 20)]
    for body in bodies:
        bench.publish([body])
    bench.flush()
    end = bench.store.log.flushed
    files = files.after_crash(NOTHING)
    data = files.read(FIRST)
    found = Bench(files.after_crash(EVERYTHING), settings=settings)
    assert found.bodies() == bodies
    assert [record.body for record in found.store.replay(0)][1:] == bodies
    for torn in (end - 1, end - (1 << 20), end - (2 << 20)):
        files.overwrite(FIRST, data[:torn].ljust(len(data), b"\0"))
        assert Bench(files.after_crash(EVERYTHING), settings=settings).bodies() == bodies[:-1]
        files.overwrite(FIRST, data[:torn])
        assert Bench(files.after_crash(EVERYTHING), settings=settings).bodies() == bodies[:-1]


def test_a_torn_tail_is_reported() -> None:
    files = written_store(4)
    data = files.read(FIRST)
    starts = record_starts(data)
    files.overwrite(FIRST, data[: starts[-1] + 100].ljust(len(data), b"\0"))
    bench = check_recovered(files, numbered(0, 3))
    report = bench.store.recovery
    assert not report.clean
    assert report.end == starts[-1]
    assert report.cut_reason == "its sizes contradict each other"
    assert 90 < report.cut_bytes <= 100
    assert report.behind_cut is None


def test_a_hole_with_sound_records_behind_it_is_reported() -> None:
    """Power was cut and the disk had written later pages first, or a page rotted: nobody can tell.
    The log ends at the hole, so that positions and offsets have none; what is behind is named."""
    files = written_store(6)
    data = bytearray(files.read(FIRST))
    starts = record_starts(bytes(data))
    data[starts[3] + 100] ^= 1
    files.overwrite(FIRST, bytes(data))
    bench = check_recovered(files, numbered(0, 2))
    report = bench.store.recovery
    assert report.end == starts[3]
    assert report.cut_reason == "its checksum is wrong"
    assert report.behind_cut == starts[4]


@pytest.mark.parametrize(("looks", "found"), [(4, True), (3, False)])
def test_what_only_looks_like_records_is_looked_at_so_often(
    monkeypatch: pytest.MonkeyPatch, looks: int, found: bool
) -> None:
    """Behind the cut stand the damaged record, a body that twice shows the start of a record, and a
    sound record: it is looked as often as allowed, and not once more."""
    files = written_store(6)
    data = bytearray(files.read(FIRST))
    starts = record_starts(bytes(data))
    magic = data[starts[3] + 4 : starts[3] + 8]
    for offset in (100, 110):
        data[starts[3] + offset : starts[3] + offset + 4] = magic
    files.overwrite(FIRST, bytes(data))
    monkeypatch.setattr(recovery, "CANDIDATES_MAX", looks)
    report = check_recovered(files, numbered(0, 2)).store.recovery
    assert report.behind_cut == (starts[4] if found else None)


@pytest.mark.parametrize("hole", ["a flipped bit", "zeros right behind the checkpoint"])
def test_records_behind_the_cut_never_come_back(hole: str) -> None:
    """After the cut, new records grow up to exactly where an old one stood. It must be gone."""
    bit = hole == "a flipped bit"
    files = written_store(6, checkpoint_at=0 if bit else 2)
    data = bytearray(files.read(FIRST))
    starts = record_starts(bytes(data))
    if bit:
        data[starts[3] + 100] ^= 1
    else:
        data[starts[3] : starts[5]] = bytes(starts[5] - starts[3])
    files.overwrite(FIRST, bytes(data))
    bench = Bench(files, settings=WIDE)
    assert bench.store.recovery.end == starts[3]
    assert bench.store.recovery.behind_cut == starts[4 if bit else 5]
    bench.sent = numbered(0, 2)
    frame = MESSAGE_SIZE - 20
    bench.publish([b"x" * (starts[5] - bench.store.log.appended - frame)])
    assert bench.store.log.appended == bench.flush() == starts[5]
    found = Bench(files.after_crash(EVERYTHING), settings=WIDE)
    assert found.bodies() == bench.sent
    assert found.store.recovery.end == starts[5]


def test_a_record_of_another_place_is_refused() -> None:
    """A sound record that was written for another position (a misdirected write, a recycled file)
    ends the log: its own position says where it belongs."""
    files = written_store(4)
    data = bytearray(files.read(FIRST))
    starts = record_starts(bytes(data))
    data[starts[3] : starts[4]] = data[starts[2] : starts[3]]
    files.overwrite(FIRST, bytes(data))
    bench = check_recovered(files, numbered(0, 2))
    assert bench.store.recovery.cut_reason == "it belongs to another position"


def test_what_recovery_keeps_is_synced_before_it_serves() -> None:
    """The process was killed: its records are in the page cache only. Recovery counts them as
    flushed, so a power cut right afterwards must not take them."""
    files = MemoryFiles()
    bench = Bench(files)
    bench.publish(numbered(0, 60))
    bench.store.log.write()  # never flushed
    second = Bench(files.after_kill())
    assert second.bodies() == numbered(0, 60)
    assert second.store.log.flushed > 2 * TINY.segment_bytes
    assert Bench(files.after_crash(NOTHING)).bodies() == numbered(0, 60)


# --- segments ---------------------------------------------------------------------------------


def test_the_log_goes_on_over_blank_records() -> None:
    files = written_store(60, segment=4096)
    check_recovered(files, numbered(0, 60), TINY)


def test_a_log_that_ends_right_at_a_blank_record_goes_on() -> None:
    """The blank record is there, the next file is not: cut before it, and rolled anew."""
    files = written_store(60, segment=4096)
    last = [name for name in files.list(LOG) if name != "next"][-1]
    files.unlink(f"{LOG}/{last}")
    starts = []
    for name in files.list(LOG):
        if name != "next":
            starts += [int(name) + at for at in record_starts(files.read(f"{LOG}/{name}"))]
    check_recovered(files, numbered(0, len(starts) - 1), TINY)


def test_segments_behind_the_end_are_removed() -> None:
    files = written_store(60, segment=4096)
    later = [name for name in files.list(LOG) if name != "next"][1:]
    data = bytearray(files.read(FIRST))
    data[record_starts(bytes(data))[4]] ^= 0xFF
    files.overwrite(FIRST, bytes(data))
    bench = check_recovered(files, numbered(0, 3), TINY)
    assert len(later) >= 3
    for name in later:
        line = f"{LOG}/{name}: it is behind the end of the log"
        assert line in bench.store.recovery.removed


def test_a_gap_behind_the_checkpoint_ends_the_log() -> None:
    """The names of two new segments were not synced, and only the later one survived."""
    files = written_store(60, segment=4096)
    names = [name for name in files.list(LOG) if name != "next"]
    files.unlink(f"{LOG}/{names[1]}")
    count = len(record_starts(files.read(FIRST))) - 1
    bench = check_recovered(files, numbered(0, count), TINY)
    assert any("behind a gap in the log" in line for line in bench.store.recovery.removed)


def test_a_missing_segment_below_the_checkpoint_refuses_to_open() -> None:
    """Data that was synced is gone: nothing is changed, and the sentence says what is missing."""
    files = written_store(60, checkpoint_at=59, segment=4096)
    names = [name for name in files.list(LOG) if name != "next"]
    for name, says in (
        (names[1], "do not fit together: restore what is missing"),
        (names[-1], r"was synced up to \d+, but ends at"),
    ):
        copy = files.after_crash(EVERYTHING)
        copy.unlink(f"{LOG}/{name}")
        before = copy.image()
        with pytest.raises(StoreCorrupt, match=says):
            Bench(copy)
        assert copy.image() == before
        assert not copy._handles
    empty = files.after_crash(EVERYTHING)
    for name in empty.list(LOG):
        empty.unlink(f"{LOG}/{name}")
    with pytest.raises(StoreCorrupt, match="but is empty"):
        Bench(empty)


def test_a_log_that_begins_right_at_its_checkpoint_is_opened() -> None:
    """Retention took all that the checkpoint covers: nothing is missing."""
    files = written_store(60, checkpoint_at=59, segment=4096)
    names = [name for name in files.list(LOG) if name != "next"]
    checkpoint = read_checkpoint(files, DIRECTORY)
    assert checkpoint is not None
    write_checkpoint(files, DIRECTORY, replace(checkpoint, position=int(names[2])))
    for name in names[:2]:
        files.unlink(f"{LOG}/{name}")
    assert Bench(files, settings=sized(4096)).store.log.start == int(names[2])


@pytest.mark.parametrize("error", [errno.EIO, errno.EACCES, errno.EMFILE])
def test_a_checkpoint_that_can_not_be_read_is_not_taken_for_none(error: int) -> None:
    """Without it the whole log would be read, and be cut at a record that is damaged since long
    ago, with all that was acknowledged behind it."""
    files = written_store(6, checkpoint_at=5)
    data = bytearray(files.read(FIRST))
    data[record_starts(bytes(data))[2] + 100] ^= 1
    files.overwrite(FIRST, bytes(data))
    end = end_of(files)
    assert end == len(files.read(FIRST).rstrip(b"\0"))

    class Unreadable(WrappedFiles):
        def open(self, path: str, *, create: bool = False) -> int:
            if path == f"{DIRECTORY}/{CHECKPOINT_NAME}":
                raise OSError(error, os.strerror(error))
            return super().open(path, create=create)

    with pytest.raises(StoreRefused, match=os.strerror(error)):
        Bench(Unreadable(files), settings=WIDE)
    assert end_of(files) == end


def test_a_file_that_reaches_into_the_next_one_refuses_to_open() -> None:
    """A backup of another segment size was put back: whatever stands behind it is not taken for
    excess and removed, if it is synced, and that it begins where the checkpoint ends is enough."""
    files = written_store(60, checkpoint_at=59, segment=4096)
    names = [name for name in files.list(LOG) if name != "next"]
    checkpoint = read_checkpoint(files, DIRECTORY)
    assert checkpoint is not None
    write_checkpoint(files, DIRECTORY, replace(checkpoint, position=int(names[2])))
    path = f"{LOG}/{names[1]}"
    files.overwrite(path, files.read(path) + bytes(4096))
    before = files.image()
    with pytest.raises(StoreCorrupt, match="do not fit together"):
        Bench(files)
    assert files.image() == before


def test_a_shortened_log_refuses_to_open() -> None:
    files = written_store(20, checkpoint_at=19)
    files.overwrite(FIRST, files.read(FIRST)[:1000])
    before = files.image()
    with pytest.raises(StoreCorrupt, match=r"was synced up to \d+, but ends at 1000: restore"):
        Bench(files, settings=WIDE)
    assert files.image() == before


def test_a_half_made_segment_is_finished() -> None:
    """Power was cut between naming the file and giving it its size (or its size was lost)."""
    for size in (0, 100, 4000):
        files = written_store(5)
        data = files.read(FIRST)
        end = end_of(files)
        files.overwrite(FIRST, data[: max(end, size)])
        check_recovered(files, numbered(0, 5))
        assert len(files.read(FIRST)) == 1 << 16


def test_segments_may_become_larger_or_smaller() -> None:
    """The size of new segments is a setting; old ones keep theirs."""
    files = written_store(60, segment=4096)
    bench = Bench(files, settings=sized(16_384))
    assert bench.bodies() == numbered(0, 60)
    bench.sent = numbered(0, 60)
    bench.publish(numbered(60, 100))
    bench.store.close()
    again = Bench(files, settings=sized(4096))
    assert again.bodies() == again.bodies(2) == numbered(0, 160)
    again.sent = numbered(0, 160)
    again.publish(numbered(160, 60))
    again.store.close()
    assert Bench(files, settings=sized(8192)).bodies() == numbered(0, 220)


# --- atomic batches ---------------------------------------------------------------------------


def test_an_incomplete_atomic_batch_goes_as_a_whole() -> None:
    """Torn after any of its records, at any byte: all of them are there or none."""
    files = MemoryFiles()
    bench = Bench(files, settings=WIDE)
    bench.publish(numbered(0, 2))
    spans = bench.publish_atomic(numbered(2, 4))
    bench.flush()
    files = files.after_crash(EVERYTHING)
    data = files.read(FIRST)
    first, end = spans[0].position, spans[-1].position + spans[-1].end - spans[-1].start
    for torn in range(first, end, 7):
        copy = files.after_crash(EVERYTHING)
        copy.overwrite(FIRST, data[:torn].ljust(len(data), b"\0"))
        assert end_of(copy) == first
    copy.overwrite(FIRST, data[: end - 1].ljust(len(data), b"\0"))
    check_recovered(copy, numbered(0, 2))
    check_recovered(files, numbered(0, 6))


@pytest.mark.parametrize("template", [TEMPLATE, LIVES, LIVES_ONCE])
def test_a_message_with_many_queues_is_rebuilt_in_all_of_them(template: RecordTemplate) -> None:
    """Its age, its time to live and its priority, too, also where the list of queues goes on."""
    files = MemoryFiles()
    settings = StoreSettings(segment_bytes=1 << 18)
    bench = Bench(files, settings=settings)
    bench.template = template
    bench.publish(numbered(0, 3), wide=600)
    bench.flush()
    found = Bench(files.after_crash(NOTHING), settings=settings)
    for number in (1, 2, 3, 100, 353, 354, 699):
        size = 20 if number == 1 else 32
        index = found.store.index(number, size)
        expected = bench.store.index(number, size)
        assert index.read_hot(0, 9) == expected.read_hot(0, 9) != b""
    found.checkpoint()
    again = Bench(files.after_crash(NOTHING), settings=settings)
    assert again.store.index(699, 32).end_offset == 3
    again.store.close()
    last = Bench(files.after_crash(NOTHING), settings=settings)
    assert last.store.index(699, 32).end_offset == 3
