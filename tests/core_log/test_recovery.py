"""Recovery, one kind of damage at a time: what is kept, what is cut, what is made again, what is
refused, and that a second recovery finds nothing to do."""

from __future__ import annotations

import errno
import struct
from random import Random

import pytest

from core_log.errors import CorruptRecord, StoreCorrupt, StoreError, StoreRefused
from core_log.kernels.batch import MAGIC_V1
from core_log.settings import StoreSettings
from tests.harness.files import EVERYTHING, NOTHING, SECTOR, Chooser, FailingFiles, MemoryFiles
from tests.harness.stores import DIRECTORY, MESSAGE_SIZE, TINY, Bench, numbered, recover_only

LOG = f"{DIRECTORY}/commitlog"
QUEUES = f"{DIRECTORY}/consumequeue"
FIRST = f"{LOG}/{0:020d}"


def written_store(count: int, *, checkpoint_at: int = 0, segment: int = 1 << 16) -> MemoryFiles:
    """What a killed process left: `count` messages, a checkpoint after some of them."""
    files = MemoryFiles()
    bench = Bench(files, settings=sized(segment))
    bench.publish(numbered(0, checkpoint_at))
    bench.flush()
    if checkpoint_at:
        bench.checkpoint()
    for number in range(checkpoint_at, count):
        bench.publish(numbered(number, 1))
    bench.flush()
    return files.after_crash(EVERYTHING)


def sized(segment: int) -> StoreSettings:
    """Tiny settings with segments of this size."""
    return StoreSettings(
        segment_bytes=segment,
        chunk_bytes=1024,
        tail_bytes_max=2048,
        message_bytes_max=2000,
        index_file_entries=16,
    )


WIDE = sized(1 << 16)


def end_of(files: MemoryFiles, settings: StoreSettings = WIDE) -> int:
    """Where the log ends, as a recovery of a copy finds it."""
    return recover_only(files.after_crash(EVERYTHING), settings).end


def check_recovered(
    files: MemoryFiles, expected: list[bytes], settings: StoreSettings = WIDE
) -> Bench:
    """Open, compare all queues, recover once more without any change, and go on."""
    image = files.after_crash(EVERYTHING)
    recover_only(image, settings)
    once = image.image()
    recover_only(image, settings)
    assert image.image() == once
    bench = Bench(files, settings=settings)
    for number in (1, 2, 3):
        assert bench.bodies(number) == expected
        assert bench.store.index(number, 20 if number == 1 else 32).end_offset == len(expected)
    bench.sent = list(expected)
    bench.publish(numbered(500, 3))
    bench.flush()
    assert bench.bodies() == expected + numbered(500, 3)
    found = Bench(files.after_crash(NOTHING), settings=settings)
    assert found.bodies() == found.bodies(2) == expected + numbered(500, 3)
    assert len(found.store.epochs) == len(bench.store.epochs) + 1
    return bench


# --- the tail ---------------------------------------------------------------------------------


def test_a_store_that_was_closed_is_opened_without_reading_it() -> None:
    files = MemoryFiles()
    bench = Bench(files)
    bench.publish(numbered(0, 50))
    bench.store.close()
    bench.store.close()
    assert files.list(DIRECTORY) == [
        "checkpoint",
        "commitlog",
        "consumequeue",
        "epochFileCheckpoint",
        "lock",
    ]
    before = files.image()
    recover_only(files, TINY)
    assert files.image() == before
    again = Bench(files)
    report = again.store.recovery
    assert (report.clean, report.scanned_bytes, report.removed, report.strays) == (True, 0, (), ())
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
        kept = sum(1 for start in starts[1:] if start + MESSAGE_SIZE <= torn)
        if data[torn : torn + len(tail)] == tail:  # what tore is what was there
            continue
        bench = Bench(copy, settings=WIDE)
        assert bench.bodies() == bench.bodies(3) == numbered(0, kept)
        assert bench.store.recovery.end == starts[1 + kept]
        bench.store.flusher.stop()


def record_starts(data: bytes) -> list[int]:
    """Where the records of a segment start (the first is the epoch's)."""
    starts = []
    at = 0
    while int.from_bytes(data[at + 4 : at + 8], "big") == MAGIC_V1:
        starts.append(at)
        at += int.from_bytes(data[at : at + 4], "big")
    return starts


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


def test_records_behind_the_cut_never_come_back() -> None:
    """After the cut, new records grow up to exactly where an old one stood. It must be gone."""
    files = written_store(6)
    data = bytearray(files.read(FIRST))
    starts = record_starts(bytes(data))
    data[starts[3] + 100] ^= 1
    files.overwrite(FIRST, bytes(data))
    bench = Bench(files, settings=WIDE)
    assert bench.store.recovery.end == starts[3]
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
    data = bytearray(files.read(FIRST))
    data[record_starts(bytes(data))[4]] ^= 0xFF
    files.overwrite(FIRST, bytes(data))
    bench = check_recovered(files, numbered(0, 3), TINY)
    removed = bench.store.recovery.removed
    assert [line.split(": ")[1] for line in removed if ": it is behind the end" in line] == [
        "it is behind the end of the log"
    ] * (len(removed) - 1)
    assert len(removed) >= 3


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
    empty = files.after_crash(EVERYTHING)
    for name in empty.list(LOG):
        empty.unlink(f"{LOG}/{name}")
    with pytest.raises(StoreCorrupt, match="but is empty"):
        Bench(empty)


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


def test_a_message_with_many_queues_is_rebuilt_in_all_of_them() -> None:
    files = MemoryFiles()
    settings = StoreSettings(segment_bytes=1 << 18)
    bench = Bench(files, settings=settings)
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


# --- checkpoint and abort file ----------------------------------------------------------------


@pytest.mark.parametrize(
    "damage",
    ["missing", "empty", "short", "long", "one bit", "zeros", "old file behind a half-made one"],
)
def test_without_a_sound_checkpoint_everything_is_read_again(damage: str) -> None:
    files = written_store(40, checkpoint_at=30)
    path = f"{DIRECTORY}/checkpoint"
    data = files.read(path)
    assert len(data) == 4096
    match damage:
        case "missing":
            files.unlink(path)
        case "empty":
            files.overwrite(path, b"")
        case "short":
            files.overwrite(path, data[:-1])
        case "long":
            files.overwrite(path, data + b"\0")
        case "one bit":
            files.overwrite(path, data[:45] + bytes((data[45] ^ 8,)) + data[46:])
        case "zeros":
            files.overwrite(path, bytes(4096))
        case _:
            files.open(f"{path}.new", create=True)
    bench = check_recovered(files, numbered(0, 40))
    report = bench.store.recovery
    if damage.startswith("old"):
        assert report.rebuilt_all == ""
        assert report.removed[0] == f"{path}.new: it was not finished"
        assert report.rebuilt == {1: 30, 2: 30, 3: 30}
    else:
        assert report.rebuilt_all == "there is no sound checkpoint"
        assert report.scanned_bytes == report.end
        assert report.rebuilt == {1: 0, 2: 0, 3: 0}


def test_only_the_part_behind_the_checkpoint_is_read() -> None:
    files = written_store(40, checkpoint_at=38)
    bench = check_recovered(files, numbered(0, 40))
    assert bench.store.recovery.scanned_bytes == 2 * MESSAGE_SIZE
    assert bench.store.recovery.rebuilt == {1: 38, 2: 38, 3: 38}


def test_the_abort_file_says_that_a_process_has_the_store_open() -> None:
    files = MemoryFiles()
    bench = Bench(files)
    assert files.read(f"{DIRECTORY}/abort").isdigit()
    killed = files.after_crash(EVERYTHING)
    bench.store.close()
    assert "abort" not in files.list(DIRECTORY)
    assert not Bench(killed).store.recovery.clean
    assert Bench(files).store.recovery.clean


def test_the_checkpoint_is_laid_out_as_rocketmqs() -> None:
    """Five longs: two timestamps that its recovery uses, the index's, and two positions."""
    files = MemoryFiles()
    bench = Bench(files)
    bench.publish(numbered(0, 3))
    bench.flush()
    bench.checkpoint()
    longs = struct.unpack(">5q", files.read(f"{DIRECTORY}/checkpoint")[:40])
    end = bench.store.log.flushed
    assert longs == (bench.now_ms, bench.now_ms, bench.now_ms, end, end)


# --- indexes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("closed", [True, False])
def test_missing_indexes_are_made_again_equal(closed: bool) -> None:
    """Any file of any index, an index, or all of them: afterwards the files are the same bytes."""
    files = MemoryFiles()
    bench = Bench(files)
    bench.publish(numbered(0, 40))
    bench.flush()
    bench.checkpoint()
    if closed:
        bench.store.close()
    files = files.after_crash(EVERYTHING)
    expected = {path: data for path, data in files.image().items() if path.startswith(QUEUES)}
    assert len(expected) == 9
    for gone in (*[[path] for path in expected], [p for p in expected if "/2/" in p], [*expected]):
        copy = files.after_crash(EVERYTHING)
        for path in gone:
            copy.unlink(path)
        if len(gone) > 1:
            for number in (1, 2, 3):
                if not copy.list(f"{QUEUES}/{number}"):
                    copy.remove_directory(f"{QUEUES}/{number}")
        found = Bench(copy)
        assert found.store.recovery.rebuilt_all == "an index is missing or damaged"
        assert not found.store.recovery.clean
        found.store.close()
        assert {p: data for p, data in copy.image().items() if p.startswith(QUEUES)} == expected


def test_a_damaged_index_is_made_again() -> None:
    """Zeros, garbage, a lost end, entries of another log: none of it is believed."""
    files = MemoryFiles()
    bench = Bench(files)
    bench.publish(numbered(0, 40))
    bench.flush()
    bench.checkpoint()
    files = files.after_crash(EVERYTHING)
    for number, size in ((1, 20), (2, 32)):
        path = f"{QUEUES}/{number}/{2 * size * TINY.index_file_entries:020d}"
        data = files.read(path)
        assert len(data) == 8 * size
        for damaged in (
            bytes(len(data)),
            b"\xee" * len(data),
            data[:-size],
            data[: -size // 2],
            data[:-size] + bytes(size),
            data[:-size] + data[:size],
            b"",
        ):
            copy = files.after_crash(EVERYTHING)
            copy.overwrite(path, damaged)
            found = Bench(copy)
            assert found.store.recovery.rebuilt_all == "an index is missing or damaged"
            assert found.bodies(number) == numbered(0, 40)
            found.store.close()
            assert copy.read(path) == data


def test_a_power_cut_while_indexes_are_made_again_leaves_no_half_made_ones() -> None:
    """The files are half there: the right size, the right end, and a hole in the middle. The old
    checkpoint, whose sum such files would fit, must be gone by then."""
    settings = StoreSettings(segment_bytes=1 << 16, index_file_entries=300)
    files = MemoryFiles()
    bench = Bench(files, settings=settings)
    bench.publish(numbered(0, 200))
    bench.store.close()
    path = f"{QUEUES}/2/{0:020d}"
    assert len(files.read(path)) > 10 * SECTOR
    files.unlink(path)
    for cut in range(30):
        for seed in range(2):
            disk = files.after_crash(EVERYTHING)
            disk.cut_power_after(cut)
            try:
                recover_only(disk, settings)
            except (StoreError, OSError):
                pass  # the machine is off
            found = Bench(disk.after_crash(Chooser(Random(seed), likely=0.7)), settings=settings)
            assert found.bodies(2) == numbered(0, 200)


def test_entries_behind_the_checkpoint_are_not_believed() -> None:
    """An index file that is longer than the checkpoint covers (its checkpoint was not written any
    more), longer than the log, or has garbage at its end: cut, and made again from the log."""
    files = written_store(40, checkpoint_at=20)
    path = f"{QUEUES}/1/{16 * 20:020d}"
    data = files.read(path)
    assert len(data) == 4 * 20
    later = struct.pack(">qiq", 1 << 40, 230, 1)
    copy = files.after_crash(EVERYTHING)
    copy.overwrite(path, data + later * 12)
    recover_only(copy, WIDE)
    assert len(copy.read(path)) == 16 * 20
    assert later not in copy.read(path)
    for more in (bytes(60), later * 3, b"\xff" * 20, data[-20:], data[-20:] * 2, b"\x01" * 7):
        copy = files.after_crash(EVERYTHING)
        copy.overwrite(path, data + more)
        bench = check_recovered(copy, numbered(0, 40))
        assert bench.store.recovery.rebuilt_all == ""
        bench.store.close()
        assert copy.read(path)[: len(data)] == data
    copy = files.after_crash(EVERYTHING)
    extra = f"{QUEUES}/1/{32 * 20:020d}"
    copy.open(extra, create=True)
    copy.overwrite(extra, later * 15)
    check_recovered(copy.after_crash(EVERYTHING), numbered(0, 40))
    recover_only(copy, WIDE)
    assert len(copy.read(extra)) == 8 * 20


def test_an_index_longer_than_the_log_is_cut_with_it() -> None:
    """The checkpoint is lost, the index files are there, and the log lost its tail."""
    files = written_store(40, checkpoint_at=40)
    data = files.read(FIRST)
    starts = record_starts(data)
    files.overwrite(FIRST, data[: starts[31]].ljust(len(data), b"\0"))
    files.unlink(f"{DIRECTORY}/checkpoint")
    check_recovered(files, numbered(0, 30))


def test_a_log_cut_below_its_checkpoint_is_found_out_when_it_is_read() -> None:
    """What the checkpoint covers is not read at opening: damage there is found by whoever reads."""
    files = written_store(40, checkpoint_at=40)
    data = bytearray(files.read(FIRST))
    data[record_starts(bytes(data))[5] + 95] ^= 1
    files.overwrite(FIRST, bytes(data))
    bench = Bench(files, settings=WIDE)
    with pytest.raises(CorruptRecord, match="its checksum is wrong"):
        bench.bodies()
    with pytest.raises(CorruptRecord, match="its checksum is wrong"):
        list(bench.store.replay(0))


def test_a_drop_that_was_interrupted_is_finished() -> None:
    """The checkpoint names the dropped queue; its files came back, in part, with the crash."""
    files = MemoryFiles()
    bench = Bench(files)
    bench.publish(numbered(0, 40))
    bench.flush()
    bench.checkpoint()
    kept = {path: data for path, data in files.image().items() if "/2/" in path}
    bench.store.drop_index(2)
    bench.checkpoint()
    files = files.after_crash(EVERYTHING)
    files.make_directory(f"{QUEUES}/2")
    for path, data in list(kept.items())[1:]:
        files.open(path, create=True)
        files.overwrite(path, data)
    found = Bench(files)
    assert found.store.recovery.rebuilt_all == ""
    assert any("/2: none of its entries counts" in line for line in found.store.recovery.removed)
    assert files.list(QUEUES) == ["1", "3"]


def test_a_queue_that_was_dropped_after_the_checkpoint_comes_back_to_be_dropped_again() -> None:
    files = MemoryFiles()
    bench = Bench(files)
    bench.publish(numbered(0, 20))
    bench.flush()
    bench.checkpoint()
    bench.store.drop_index(2)
    found = Bench(files.after_crash(EVERYTHING))
    assert sorted(found.store.index_numbers()) == [1, 2, 3]
    assert found.store.recovery.rebuilt_all == ""
    found.store.drop_index(2)
    found.store.close()
    assert files.after_crash(NOTHING).list(QUEUES)


def test_a_dropped_queue_whose_last_messages_are_behind_the_checkpoint_is_known_in_part() -> None:
    """Its files are gone, records behind the checkpoint still name it: an index that starts at
    their offsets, until the engine drops it again. Nothing else is made again for that."""
    files = MemoryFiles()
    bench = Bench(files)
    bench.publish(numbered(0, 20))
    bench.flush()
    bench.publish(numbered(20, 5))
    bench.store.drop_index(2)
    bench.private = [index for index in bench.private if index.number != 2]
    bench.checkpoint()  # the flushed position is before the last five
    bench.store.log.write()
    found = Bench(files.after_crash(EVERYTHING))
    assert found.store.recovery.rebuilt_all == ""
    index = found.store.index(2, 32)
    assert (index.first_offset, index.end_offset) == (20, 25)
    assert found.bodies(2) == numbered(20, 5)
    assert found.bodies() == numbered(0, 25)
    found.store.close()
    again = Bench(found.store._files)
    assert again.store.recovery.clean
    assert again.store.index(2, 32).first_offset == 20
    assert again.bodies(2) == numbered(20, 5)


# --- strays -----------------------------------------------------------------------------------


def test_strays_are_named_and_left_alone() -> None:
    files = written_store(10, checkpoint_at=5)
    strays = [
        f"{DIRECTORY}/notes.txt",
        f"{LOG}/backup",
        f"{LOG}/123",
        f"{QUEUES}/sensors",
        f"{QUEUES}/007",
    ]
    for path in strays:
        files.open(path, create=True)
    files.open(f"{LOG}/next", create=True)
    bench = check_recovered(files, numbered(0, 10))
    assert sorted(bench.store.recovery.strays) == sorted(strays)
    assert f"{LOG}/next: it was made ahead and never used" in bench.store.recovery.removed
    for path in strays:
        assert files.read(path) == b""


# --- epochs -----------------------------------------------------------------------------------


def test_every_opening_is_an_epoch_in_the_log() -> None:
    files = MemoryFiles()
    sent: list[bytes] = []
    starts = []
    for epoch in range(1, 5):
        bench = Bench(files)
        assert bench.store.epoch == epoch
        starts.append(bench.store.recovery.end)
        assert bench.store.epochs == list(enumerate(starts, 1))
        bench.publish(numbered(len(sent), 30))
        sent += numbered(len(sent), 30)
        if epoch % 2:
            bench.store.close()
        else:
            bench.flush()
            files = files.after_crash(EVERYTHING)


@pytest.mark.parametrize("damage", ["missing", "one bit", "empty", "words"])
def test_epochs_are_read_from_the_log_where_their_file_is_damaged(damage: str) -> None:
    files = written_store(10)
    for _ in range(3):
        Bench(files, settings=WIDE).store.close()
    path = f"{DIRECTORY}/epochFileCheckpoint"
    data = files.read(path)
    expected = Bench(files.after_crash(EVERYTHING), settings=WIDE).store.epochs
    assert len(expected) == 5
    match damage:
        case "missing":
            files.unlink(path)
        case "one bit":
            files.overwrite(path, data[:-3] + bytes((data[-3] ^ 1,)) + data[-2:])
        case "empty":
            files.overwrite(path, b"")
        case _:
            files.overwrite(path, b"these are\nno epochs\n")
    assert Bench(files, settings=WIDE).store.epochs == expected


def test_epochs_behind_the_end_of_the_log_are_forgotten() -> None:
    """The epoch's record was torn off: the same number begins again, at the new end."""
    files = written_store(10)
    second = Bench(files, settings=WIDE)
    start = second.store.epochs[1][1]
    files = files.after_crash(EVERYTHING)
    data = files.read(FIRST)
    starts = record_starts(data)
    files.overwrite(FIRST, data[: starts[-2]].ljust(len(data), b"\0"))
    files.unlink(f"{DIRECTORY}/checkpoint")
    third = Bench(files, settings=WIDE)
    assert third.store.epochs == [(1, 0), (2, starts[-2])]
    assert starts[-2] < start


def test_a_place_is_known_by_position_and_epoch() -> None:
    """`state.db` names the place that it is folded up to; a log that lost that place says no."""
    files = MemoryFiles()
    bench = Bench(files)
    bench.publish(numbered(0, 30))
    bench.flush()
    store = bench.store
    records = list(store._reader.walk(0).records(store.log.flushed))
    for record in records:
        assert store.is_record_boundary(record.position, 1)
        assert not store.is_record_boundary(record.position + 1, 1)
        assert not store.is_record_boundary(record.position, 2)
        assert store.is_record_boundary(record.position + record.size, 1)
    end = store.log.flushed
    assert store.is_record_boundary(0, 1)
    assert not store.is_record_boundary(end + 1, 1)
    assert not store.is_record_boundary(1 << 50, 1)
    bench.publish(numbered(30, 1))
    assert not store.is_record_boundary(store.log.appended, 1)  # not flushed yet
    store.close()
    second = Bench(files).store
    assert second.is_record_boundary(end, 1)
    assert second.is_record_boundary(second.epochs[1][1], 1)
    assert second.is_record_boundary(second.epochs[1][1], 2)
    assert not second.is_record_boundary(end, 2)
    assert not second.is_record_boundary(second.log.flushed, 1)


# --- replay -----------------------------------------------------------------------------------


def test_replay_gives_every_record_that_was_kept_from_any_place() -> None:
    files = written_store(60, segment=4096)
    bench = Bench(files)
    records = list(bench.store.replay(0))
    assert [record.body for record in records[1:]] == numbered(0, 60)
    assert records[0].properties["PMQ_E"] == f"{1:016x}"
    for place, record in enumerate(records):
        assert [r.position for r in bench.store.replay(record.position)] == [
            r.position for r in records[place:]
        ]
    bench.publish(numbered(60, 1))
    bench.flush()
    assert len(list(bench.store.replay(0))) == 61
    assert list(bench.store.replay(bench.store.recovery.end)) == []


def test_replay_refuses_to_start_within_a_record() -> None:
    bench = Bench(written_store(5), settings=WIDE)
    with pytest.raises(CorruptRecord):
        list(bench.store.replay(10))


# --- directories that can not be opened -------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "after", "error"),
    [
        ("make_directory", 0, errno.EACCES),
        ("make_directory", 1, errno.EROFS),
        ("open", 0, errno.EACCES),
        ("open", 1, errno.EACCES),
        ("pwritev", 0, errno.EIO),
        ("fdatasync", 0, errno.EIO),
        ("sync_directory", 2, errno.EIO),
        ("preallocate", 0, errno.ENOSPC),
        ("rename", 0, errno.EACCES),
    ],
)
def test_a_directory_that_can_not_be_written_is_refused_by_name(
    name: str, after: int, error: int
) -> None:
    """One sentence with the path and the system's words; the lock is free afterwards."""
    memory = MemoryFiles()
    files = FailingFiles(memory)
    files.fail(name, error, after=after)
    with pytest.raises(StoreRefused, match=rf"{DIRECTORY}.*: .*") as caught:
        Bench(files)
    assert type(caught.value) is StoreRefused
    assert "\n" not in str(caught.value)
    files.heal()
    bench = Bench(files)
    bench.publish(numbered(0, 3))
    bench.store.close()
    assert memory._handles == {}
