"""Recovery of the checkpoint and the indexes: what is believed, what is cut, what is made again."""

from __future__ import annotations

import struct
from random import Random

import pytest

from polymq.core_log import index_recovery
from polymq.core_log.errors import CorruptRecord, StoreError
from polymq.core_log.indexes import Indexes
from polymq.core_log.settings import StoreSettings
from tests.harness.damage import (
    FIRST,
    QUEUES,
    WIDE,
    check_recovered,
    record_starts,
    written_store,
)
from tests.harness.files import EVERYTHING, NOTHING, SECTOR, Chooser, MemoryFiles
from tests.harness.stores import DIRECTORY, MESSAGE_SIZE, TINY, Bench, numbered, recover_only

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
        why = "there is no checkpoint" if damage == "missing" else "the checkpoint is damaged"
        assert report.rebuilt_all == why
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
        report = recover_only(copy)
        assert report.rebuilt_all == ""
        damaged = {path.split("/")[-2] for path in gone}
        assert len(report.mended) == len(damaged)
        assert all(f"queue {number} " in " ".join(report.mended) for number in damaged)
        assert not report.clean
        assert {p: data for p, data in copy.image().items() if p.startswith(QUEUES)} == expected
        assert recover_only(copy).mended == ()
        assert Bench(copy).bodies(3) == numbered(0, 40)


def test_a_long_log_is_gone_through_with_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries that are made again go to the disk piece by piece, all that are known so far."""
    files = MemoryFiles()
    bench = Bench(files)
    for first in range(0, 120, 10):
        bench.publish(numbered(first, 10))
    bench.flush()
    spill, held = Indexes.spill, []

    def spill_and_count(indexes: Indexes, position: int) -> None:
        spill(indexes, position)
        found = [indexes.find(number) for number in (1, 2, 3)]
        held.append([i.end_offset - i.stored_offset for i in found if i is not None])

    monkeypatch.setattr(index_recovery, "SPILL_BYTES_MAX", 1000)
    monkeypatch.setattr(Indexes, "spill", spill_and_count)
    found = files.after_crash(NOTHING)
    check_recovered(found, numbered(0, 120))
    assert len(held) > 2
    assert held == [[0, 0, 0]] * len(held)


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
            assert found.store.recovery.rebuilt_all == ""
            assert len(found.store.recovery.mended) == 1
            assert found.bodies(number) == numbered(0, 40)
            found.store.close()
            assert copy.read(path) == data


def test_a_power_cut_while_indexes_are_made_again_leaves_no_half_made_ones() -> None:
    """The files are half there: the right size, the right end, and a hole in the middle. The old
    checkpoint, whose sum such files would fit, must be gone by then."""
    settings = StoreSettings(
        segment_bytes=1 << 16, index_file_entries=300, index_packed_bytes_max=0
    )
    files = MemoryFiles()
    bench = Bench(files, settings=settings)
    bench.publish(numbered(0, 200))
    bench.store.close()
    path = f"{QUEUES}/2/{0:020d}"
    assert len(files.read(path)) > 10 * SECTOR
    files.unlink(path)
    whole = files.after_crash(EVERYTHING)
    recover_only(whole, settings)
    count = whole.changes_count  # the last six replace the checkpoint
    for cut in range(count - 12, count - 5):
        for seed in range(8):
            disk = files.after_crash(EVERYTHING)
            disk.cut_power_after(cut)
            with pytest.raises((StoreError, OSError)):
                recover_only(disk, settings)
            found = Bench(disk.after_crash(Chooser(Random(seed), likely=0.8)), settings=settings)
            for number in (1, 2, 3):
                assert found.bodies(number) == numbered(0, 200)


def test_entries_behind_the_checkpoint_are_not_believed() -> None:
    """An index file that is longer than the checkpoint covers (its checkpoint was not written any
    more), longer than the log, or has garbage at its end: cut, and made again from the log, which
    the next checkpoint stores."""
    files = written_store(40, checkpoint_at=20)
    path = f"{QUEUES}/1/{16 * 20:020d}"
    data = files.read(path)
    assert len(data) == 4 * 20
    later = struct.pack(">qiq", 1 << 40, 230, 1)
    copy = files.after_crash(EVERYTHING)
    copy.overwrite(path, data + later * 12)
    recover_only(copy, WIDE)
    assert copy.read(path) == data
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
    assert f"{32 * 20:020d}" not in copy.list(f"{QUEUES}/1")
    whole = written_store(40, checkpoint_at=40)
    whole.overwrite(extra, whole.read(extra) + later * 5)
    recover_only(whole, WIDE)
    assert len(whole.read(extra)) == 8 * 20


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
    stored = {path: data for path, data in files.image().items() if "/2/" in path}
    bench.store.drop_index(2)
    bench.checkpoint()
    files = files.after_crash(EVERYTHING)
    files.make_directory(f"{QUEUES}/2")
    for path, data in list(stored.items())[1:]:
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


def test_a_dropped_queue_whose_last_messages_are_behind_the_checkpoint_is_whole() -> None:
    """Records behind the checkpoint still name it, and what says that it was dropped would stand
    there, too: all of it is there until the engine drops it again."""
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
    assert (index.first_offset, index.end_offset) == (0, 25)
    assert found.bodies(2) == numbered(0, 25)
    assert found.bodies() == numbered(0, 25)
    found.store.close()
    again = Bench(found.store._files)
    assert again.store.recovery.clean
    assert again.bodies(2) == numbered(0, 25)


def test_what_was_made_again_is_stored_by_the_next_checkpoint() -> None:
    """A start stores nothing of it: each crash before that checkpoint leaves the same work, and
    nothing is gone then or afterwards."""
    files = written_store(40, checkpoint_at=30)
    checkpoint = files.read(f"{DIRECTORY}/checkpoint")
    check_recovered(files.after_crash(EVERYTHING), numbered(0, 40))
    for _ in range(3):
        bench = Bench(files, settings=WIDE)
        assert bench.store.recovery.rebuilt == {1: 30, 2: 30, 3: 30}
        assert files.read(f"{DIRECTORY}/checkpoint") == checkpoint
        assert bench.store.checkpointed < bench.store.recovery.end
        assert bench.bodies(1) == bench.bodies(2) == numbered(0, 40)
        bench.flush()
        files = files.after_crash(NOTHING)
    bench = Bench(files, settings=WIDE)
    bench.flush()
    bench.checkpoint()
    assert bench.store.checkpointed > bench.store.recovery.end
    bench = Bench(files.after_crash(NOTHING), settings=WIDE)
    assert bench.store.recovery.rebuilt == {}
    assert bench.bodies(1) == bench.bodies(2) == numbered(0, 40)
