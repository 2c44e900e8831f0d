"""A damaged index is made again from the log by itself; where the log is damaged too, what is sure
stays, and nothing else is served."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from polymq.core_log.errors import CorruptRecord, StorageFailed, StoreError
from polymq.core_log.index_recovery import DAMAGED
from tests.harness.files import EVERYTHING, Chooser, MemoryFiles
from tests.harness.stores import DIRECTORY, TINY, Bench, numbered, recover_only

LOG = f"{DIRECTORY}/commitlog"
QUEUES = f"{DIRECTORY}/consumequeue"
COUNT = 60
WIDE = replace(TINY, index_file_entries=1000)


def closed_store() -> MemoryFiles:
    """A store with three large indexes over some segments, closed."""
    files = MemoryFiles()
    bench = Bench(files, settings=WIDE)
    for first in range(0, COUNT, 5):
        bench.publish(numbered(first, 5))
        bench.flush()
    assert len(bench.store.segments()) > 3
    bench.store.close()
    return files


def flip(files: MemoryFiles, path: str, at_byte: int) -> None:
    data = files.read(path)
    files.overwrite(path, data[:at_byte] + bytes([data[at_byte] ^ 4]) + data[at_byte + 1 :])


def position_of(files: MemoryFiles, number: int, offset: int) -> int:
    """Where the message stands, as its index says."""
    size = 20 if number == 1 else 32
    data = files.read(f"{QUEUES}/{number}/{0:020d}")
    return int.from_bytes(data[offset * size : offset * size + 8], "big")


def damage_record(files: MemoryFiles, position: int, at_byte: int) -> None:
    """Flip a bit of the record at `position`."""
    start = position - position % TINY.segment_bytes
    flip(files, f"{LOG}/{start:020d}", position - start + at_byte)


def readable(bench: Bench, number: int) -> dict[int, bytes]:
    """The messages that can be read one by one, by offset."""
    index = bench.store.index(number, 20 if number == 1 else 32)
    found = {}
    for offset in range(index.first_offset, index.end_offset):
        try:
            records, count = bench.store.read_history(index, offset, 1, 1 << 20)
        except (CorruptRecord, StorageFailed):
            continue
        assert count == 1
        body_size = int.from_bytes(records[84:88], "big")
        found[offset] = records[88 : 88 + body_size]
    return found


@pytest.mark.parametrize("at_byte", [100, 30, 5, 2], ids=["body", "position", "magic", "size"])
@pytest.mark.parametrize("number", [1, 2])
def test_a_damaged_last_record_of_a_large_index_does_not_keep_a_start(
    number: int, at_byte: int
) -> None:
    """One message is lost, as it would be in the middle; all others are there, and offsets go on
    behind it."""
    files = closed_store()
    path = f"{QUEUES}/{number}/{0:020d}"
    size = 20 if number == 1 else 32
    data = files.read(path)
    damage_record(files, position_of(files, number, COUNT - 1), at_byte)
    assert len(data) == COUNT * size
    bench = Bench(files, settings=WIDE, sent=numbered(0, COUNT))
    assert bench.store.recovery.rebuilt_all == ""
    assert (bench.store.recovery.mended == ()) == (at_byte == 100)  # its head tells what it was
    found = readable(bench, number)
    assert found == dict(enumerate(numbered(0, COUNT - 1)))
    index = bench.store.index(number, size)
    assert index.end_offset == COUNT
    bench.store.close()


@pytest.mark.parametrize("number", [1, 2, 3])
def test_only_what_is_damaged_is_made_again(number: int) -> None:
    files = closed_store()
    path = f"{QUEUES}/{number}/{0:020d}"
    sound = files.image()
    flip(files, path, len(files.read(path)) - (20 if number == 1 else 32) + 6)
    bench = Bench(files, settings=WIDE)
    assert [text for text in bench.store.recovery.mended if f"queue {number} " in text]
    assert len(bench.store.recovery.mended) == 1
    assert bench.store.recovery.rebuilt == {}
    assert bench.bodies(number) == numbered(0, COUNT)
    assert {p: d for p, d in files.image().items() if p.startswith(QUEUES)} == {
        p: d for p, d in sound.items() if p.startswith(QUEUES)
    }


@pytest.mark.parametrize("number", [1, 2])
def test_what_stands_behind_a_damaged_record_is_lost_up_to_the_next_segment(number: int) -> None:
    """The index is gone and a record in the middle of the log is damaged. Offsets stay; what can
    not be found cannot be read; nothing stands in its place; and it is told once."""
    files = closed_store()
    broken = COUNT // 2
    position = position_of(files, number, broken)
    damage_record(files, position, 100)
    positions = [position_of(files, number, offset) for offset in range(COUNT)]
    files.unlink(f"{QUEUES}/{number}/{0:020d}")
    bench = Bench(files, settings=WIDE)
    segment_end = position - position % TINY.segment_bytes + TINY.segment_bytes
    lost = [offset for offset in range(broken, COUNT) if positions[offset] < segment_end]
    assert readable(bench, number) == {
        offset: body for offset, body in enumerate(numbered(0, COUNT)) if offset not in lost
    }
    (text,) = bench.store.recovery.mended
    assert f"{len(lost)} of its messages are behind a damaged record" in text
    index = bench.store.index(number, 20 if number == 1 else 32)
    assert (index.first_offset, index.end_offset) == (0, COUNT)
    bench.store.close()
    again = Bench(files, settings=WIDE)
    assert again.store.recovery.mended == ()
    assert again.store.recovery.rebuilt_all == ""


def test_what_the_log_has_no_more_is_not_missed() -> None:
    """The log's beginning is gone, and the index did not say so yet."""
    files = MemoryFiles()
    bench = Bench(files, settings=WIDE)
    for first in range(0, COUNT, 5):
        bench.publish(numbered(first, 5))
        bench.flush()
    bench.checkpoint()
    bench.store.retire(bench.store.segments()[2][0])
    bench.store.discard()
    first = bench.store.log.start
    bench.store.close()
    stored = [offset for offset in range(COUNT) if position_of(files, 2, offset) >= first]
    files.unlink(f"{QUEUES}/2/{0:020d}")
    again = Bench(files, settings=WIDE)
    index = again.store.index(2, 32)
    assert (index.first_offset, index.end_offset) == (stored[0], COUNT)
    assert sorted(readable(again, 2)) == stored
    again.store.close()
    third = Bench(files, settings=WIDE)
    assert third.store.recovery.clean
    assert third.store.index(2, 32).first_offset == stored[0]


def test_a_power_cut_while_an_index_is_mended_leaves_no_half_made_one() -> None:
    """Its file may have the right size and the right end then, and a hole in the middle."""
    files = closed_store()
    files.unlink(f"{QUEUES}/1/{0:020d}")
    whole = files.after_crash(EVERYTHING)
    recover_only(whole, WIDE)
    for cut in range(1, whole.changes_count + 1):
        for seed in range(6):
            disk = files.after_crash(EVERYTHING)
            disk.cut_power_after(cut)
            try:
                recover_only(disk, WIDE)
            except (StoreError, OSError):
                pass
            found = Bench(disk.after_crash(Chooser(Random(seed), likely=0.7)), settings=WIDE)
            for number in (1, 2, 3):
                assert found.bodies(number) == numbered(0, COUNT)
            assert found.store.recovery.rebuilt_all in ("", DAMAGED)
            assert found.store.recovery.strays == ()
