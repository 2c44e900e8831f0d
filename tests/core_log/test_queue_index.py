"""Queue indexes: entries in memory, entries in files, and the checkpoint that moves them there."""

from __future__ import annotations

import errno
import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymq.core_log.errors import CorruptRecord, StorageFailed, StorageFull
from polymq.core_log.kernels.layout import ENTRY_AT_MOST_ONCE
from polymq.core_log.kernels.writing import expired, find_damaged
from polymq.core_log.queue_index import MemoryIndex, QueueIndex, widen
from polymq.core_log.settings import StoreSettings
from tests.harness.files import NOTHING, FailingFiles, MemoryFiles
from tests.harness.stores import DIRECTORY, TINY, Bench, decode_all, numbered

QUEUES = f"{DIRECTORY}/consumequeue"


def entry(position: int, size: int = 100, tag: int = -7) -> bytes:
    return struct.pack(">qiq", position, size, tag)


# --- entries ----------------------------------------------------------------------------------


def test_a_private_entry_says_how_old_a_message_is_and_how_long_it_lives() -> None:
    wide = widen(entry(5) + entry(9), store_ms=0x0102_0304_0506, priority=7, ttl_code=0xA0B0C0D0)
    assert len(wide) == 64
    for at, position in ((0, 5), (32, 9)):
        assert wide[at : at + 20] == entry(position)
        assert wide[at + 20 : at + 31] == bytes((1, 2, 3, 4, 5, 6, 7, 0xA0, 0xB0, 0xC0, 0xD0))


def test_any_flipped_bit_of_a_private_entry_shows() -> None:
    """What is said without a look at the log (how old, how large, how long to live) is checked."""
    wide = widen(entry(5) + entry(9) + entry(12), store_ms=1_700_000_000_000, ttl_code=60_001)
    assert find_damaged(wide) == -1
    for bit in range(32 * 8):
        damaged = bytearray(wide)
        damaged[32 + bit // 8] ^= 1 << bit % 8
        assert find_damaged(damaged) == 1
    assert find_damaged(wide + bytes(32)) == 3
    with pytest.raises(ValueError, match="not whole entries"):
        find_damaged(wide[:-1])


def test_widening_refuses_what_does_not_fit() -> None:
    for numbers in (
        (1 << 48, 0, 0),
        (-1, 0, 0),
        (0, 256, 0),
        (0, 0, 1 << 32),
    ):
        with pytest.raises(ValueError, match="do not fit an entry"):
            widen(entry(1), *numbers)
    with pytest.raises(ValueError, match="not whole entries"):
        widen(entry(1)[:-1])


def test_what_has_expired_is_told_from_entries() -> None:
    """The lower of both times to live counts; an end is named up to which none has expired."""
    entries = b"".join(
        (
            widen(entry(1), 1000, ttl_code=1),  # expired with its arrival
            widen(entry(2), 1000 | ENTRY_AT_MOST_ONCE, ttl_code=501),
            widen(entry(3), 1000),
            widen(entry(4), 1000 | ENTRY_AT_MOST_ONCE, ttl_code=5001),
            widen(entry(5), 1000, ttl_code=101),  # behind: not at the head, and expired
            widen(entry(6), 1000),
        )
    )
    assert expired(entries, 1499, 0) == (1, 3, 1500)
    assert expired(entries, 1500, 0) == (2, 2, -1)
    assert expired(entries[64:], 1500, 0) == (0, 2, -1)
    assert expired(entries[96:], 1500, 0) == (0, 1, 6000)
    assert expired(entries, 1500, 1001) == (2, 2, 2000)
    assert expired(entries, 9999, 1001) == (6, 0, -1)
    assert expired(b"", 5, 0) == (0, 0, -1)
    with pytest.raises(ValueError, match="not whole entries"):
        expired(bytes(31), 0, 0)


# --- in memory --------------------------------------------------------------------------------


def test_reading_stops_at_the_end() -> None:
    bench = Bench(MemoryFiles())
    bench.publish(numbered(0, 5))
    assert bench.own.read_hot(3, 10) == bench.own.read_hot(3, 2)
    assert bench.own.read_hot(5, 10) == b""
    assert (bench.own.first_offset, bench.own.end_offset) == (0, 5)


def test_parts_of_entries_are_refused() -> None:
    bench = Bench(MemoryFiles())
    for index, size in ((bench.own, 20), (bench.private[0], 32), (MemoryIndex(32, 5), 32)):
        with pytest.raises(ValueError, match=f"not whole entries of {size} bytes"):
            index.append(bytes(33))
        assert index.end_offset == 0


def test_a_queue_in_memory_drops_its_oldest_entries_and_counts_them() -> None:
    index = MemoryIndex(20, 3)
    index.append(entry(1) + entry(2))
    assert (index.first_offset, index.end_offset, index.dropped) == (0, 2, 0)
    index.append(entry(3) + entry(4) + entry(5))
    assert (index.first_offset, index.end_offset, index.dropped) == (2, 5, 2)
    assert index.read_hot(2, 9) == index.read_cold(2, 9) == entry(3) + entry(4) + entry(5)
    assert index.read_hot(1, 9) == b""
    index.forget(4)
    assert (index.first_offset, index.dropped) == (4, 2)
    assert index.read_hot(4, 9) == entry(5)
    index.forget(9)
    assert (index.first_offset, index.end_offset) == (5, 5)
    index.append(b"".join(entry(n) for n in range(10, 20)))
    assert (index.first_offset, index.end_offset, index.dropped) == (12, 15, 9)
    with pytest.raises(ValueError, match="at least one"):
        MemoryIndex(20, 0)


# --- checkpoints ------------------------------------------------------------------------------


def test_a_checkpoint_stores_entries_of_flushed_records_only() -> None:
    """An entry in a file always has its record on the disk."""
    files = MemoryFiles()
    bench = Bench(files)
    bench.publish(numbered(0, 5))
    bench.flush()
    bench.publish(numbered(5, 3))
    bench.store.log.write()
    bench.checkpoint()
    name = f"{QUEUES}/1/{0:020d}"
    assert files.read(name) == bench.own.read_hot(0, 5)
    assert bench.own.stored_offset == 5
    bench.flush()
    bench.checkpoint()
    assert files.read(name) == bench.own.read_hot(0, 8)


def test_files_are_named_by_their_first_byte_and_full_ones_have_one_size() -> None:
    files = MemoryFiles()
    bench = Bench(files)
    bench.publish(numbered(0, 40))
    bench.flush()
    bench.checkpoint()
    for number, size in ((1, 20), (2, 32), (3, 32)):
        whole = size * TINY.index_file_entries
        names = [f"{QUEUES}/{number}/{n * whole:020d}" for n in range(3)]
        assert [f"{QUEUES}/{number}/{name}" for name in files.list(f"{QUEUES}/{number}")] == names
        assert [len(files.read(name)) for name in names] == [whole, whole, 8 * size]


@given(
    st.lists(
        st.tuples(st.integers(1, 12), st.sampled_from(("flush", "checkpoint", ""))), max_size=15
    ),
    st.data(),
)
def test_what_is_read_does_not_depend_on_where_it_is(
    steps: list[tuple[int, str]], data: st.DataObject
) -> None:
    """Any mixture of appends, flushes and checkpoints: memory and files together hold each entry
    once, in order."""
    bench = Bench(MemoryFiles())
    expected = b""
    for count, then in steps:
        for span in bench.publish(numbered(len(bench.sent), count)):
            expected += span.entries
        if then:
            bench.flush()
        if then == "checkpoint":
            bench.checkpoint()
            bench.checkpoint()  # a second one may give up what the first one stored
    first = data.draw(st.integers(0, len(bench.sent)))
    count = data.draw(st.integers(1, 30))
    offset, found = first, b""
    while offset < min(first + count, len(bench.sent)):
        entries = bench.own.read_hot(offset, first + count - offset)
        if entries is None:
            entries = bench.own.read_cold(offset, first + count - offset)
        assert entries
        found += entries
        offset += len(entries) // 20
    assert found == expected[first * 20 : (first + count) * 20]
    bench.store.flusher.stop()


def test_entries_leave_memory_when_they_are_stored_and_their_records_left_too() -> None:
    bench = Bench(MemoryFiles())
    bench.publish(numbered(0, 30))
    bench.flush()
    bench.checkpoint()
    assert bench.own.read_hot(0, 1) is not None
    for first in range(30, 600, 30):
        bench.publish(numbered(first, 30))
        bench.flush()
        bench.checkpoint()
    bench.checkpoint()
    assert bench.own.read_hot(0, 1) is None
    assert len(bench.own.read_cold(0, 1000)) == 20 * TINY.index_file_entries
    assert bench.own.read_cold(0, 1) == bench.own.read_cold(0, 9)[:20]
    assert bench.bodies() == bench.sent


def test_an_idle_queue_holds_no_entries_in_memory() -> None:
    """Once its records have left the tail, the next two checkpoints empty it."""
    settings = StoreSettings(segment_bytes=1 << 16, chunk_bytes=512, tail_bytes_max=0)
    bench = Bench(MemoryFiles(), settings=settings)
    idle = bench.store.index(77, 32)
    span = bench.publish(numbered(0, 1))[0]
    idle.append(widen(span.entries))
    bench.flush()
    bench.publish(numbered(1, 9))
    bench.flush()
    bench.checkpoint()
    bench.checkpoint()
    assert idle.read_hot(0, 1) is None
    assert idle.read_cold(0, 1) == widen(span.entries)
    idle.append(widen(span.entries))
    assert idle.read_hot(1, 1) == widen(span.entries)


def test_a_damaged_entry_in_a_file_of_its_own_is_made_again() -> None:
    """The files of a large index have no checksum, so each entry is looked at when it is read."""
    files = MemoryFiles()
    settings = replace(TINY, index_packed_bytes_max=0, tail_bytes_max=0)
    bench = Bench(files, settings=settings)
    for first in range(0, 60, 30):
        bench.publish(numbered(first, 30))
        bench.flush()
        bench.checkpoint()
    queue = bench.private[0]
    sound = queue.read_cold(0, 4)
    assert find_damaged(sound) == -1
    path = f"{QUEUES}/{queue.number}/{0:020d}"
    handle = files.open(path)
    at = 2 * 32 + 25  # the age of the third
    files.pwritev(handle, (bytes((sound[at] ^ 4,)),), at)
    files.close(handle)
    assert queue.read_cold(0, 2) == sound[:64]
    assert queue.read_cold(0, 4) == sound[:64]  # what is sound before it
    assert queue.read_cold(2, 1) == sound[64:96]  # made again from the log
    assert bench.bodies() == bench.sent
    # Unless the record is damaged as well: then nothing is served in its place.
    position = int.from_bytes(sound[64:72], "big")
    handle = files.open(f"{DIRECTORY}/commitlog/{position - position % TINY.segment_bytes:020d}")
    files.pwritev(handle, (b"\xee",), position % TINY.segment_bytes + 100)
    files.close(handle)
    with pytest.raises(StorageFailed, match=f"message 2 of queue {queue.number} is damaged"):
        queue.read_cold(2, 1)
    assert queue.read_cold(3, 1) == sound[96:]


def test_a_checkpoint_that_failed_for_want_of_room_is_made_up_for_by_the_next() -> None:
    files = FailingFiles(MemoryFiles())
    bench = Bench(files)
    bench.publish(numbered(0, 20))
    bench.flush()
    for after in range(6):
        files.fail("pwritev", errno.ENOSPC, after=after)
        prepared = bench.store.prepare_checkpoint()
        try:
            prepared()
        except StorageFull as error:
            assert "writing a checkpoint: No space left" in str(error)  # noqa: PT017
    files.heal()
    bench.checkpoint()
    bench.publish(numbered(20, 3))
    bench.flush()
    bench.checkpoint()
    bench.store.close()
    again = Bench(files)
    assert again.store.recovery.clean
    assert again.bodies() == again.bodies(2) == numbered(0, 23)


def test_a_checkpoint_that_was_never_run_loses_nothing() -> None:
    files = MemoryFiles()
    bench = Bench(files)
    bench.publish(numbered(0, 20))
    bench.flush()
    bench.store.prepare_checkpoint()
    late = bench.store.prepare_checkpoint()
    bench.publish(numbered(20, 5))
    bench.flush()
    bench.checkpoint()
    late()  # two in the wrong order: the older one says less, and what it says is true
    found = Bench(files.after_crash(NOTHING))
    assert found.store.recovery.rebuilt_all == ""
    assert found.bodies() == found.bodies(3) == numbered(0, 25)


def test_a_failed_sync_of_an_index_is_final() -> None:
    files = FailingFiles(MemoryFiles())
    bench = Bench(files)
    bench.publish(numbered(0, 3))
    bench.flush()
    files.fail("fdatasync", errno.EIO)
    with pytest.raises(StorageFailed, match="writing a checkpoint: Input/output error"):
        bench.checkpoint()
    with pytest.raises(StorageFailed):
        bench.publish(numbered(3, 1))
    assert bench.own.read_hot(0, 3) is not None


def test_an_index_that_can_not_be_read_says_so() -> None:
    files = FailingFiles(MemoryFiles())
    bench = Bench(files)
    bench.publish(numbered(0, 3))
    bench.flush()
    bench.checkpoint()
    files.fail("open", errno.EIO)
    with pytest.raises(StorageFailed, match="reading queue 1: Input/output error"):
        bench.own.read_cold(0, 3)
    assert bench.own.read_cold(3, 1) == b""


# --- dropping ---------------------------------------------------------------------------------


def test_a_dropped_queue_is_gone_at_once_and_its_files_with_the_next_checkpoint() -> None:
    files = MemoryFiles()
    bench = Bench(files)
    bench.publish(numbered(0, 40))
    bench.flush()
    bench.checkpoint()
    assert sorted(bench.store.index_numbers()) == [1, 2, 3]
    bench.store.drop_index(2)
    bench.store.drop_index(2)
    assert sorted(bench.store.index_numbers()) == [1, 3]
    assert files.list(f"{QUEUES}/2")
    with pytest.raises(ValueError, match="queue 2 was dropped"):
        bench.store.index(2, 32)
    bench.checkpoint()
    assert files.list(QUEUES) == ["1", "3"]
    bench.checkpoint()
    found = Bench(files.after_crash(NOTHING))
    assert found.store.recovery.rebuilt_all == ""
    assert found.bodies(3) == numbered(0, 40)


def test_a_number_has_one_entry_size() -> None:
    bench = Bench(MemoryFiles())
    with pytest.raises(ValueError, match="queue 1 has entries of 20 bytes"):
        bench.store.index(1, 32)
    with pytest.raises(ValueError, match="20 or 32 bytes, not 24"):
        bench.store.index(9, 24)
    assert isinstance(bench.store.index(1, 20), QueueIndex)
    assert bench.store.index(1, 20) is bench.own


# --- history ----------------------------------------------------------------------------------


def test_history_is_read_in_pieces_that_fit() -> None:
    bench = Bench(MemoryFiles())
    bench.publish(numbered(0, 40))
    bench.flush()
    bench.checkpoint()
    index = bench.private[0]
    records, count = bench.store.read_history(index, 3, 5, 1 << 20)
    assert [record.body for record in decode_all(records)] == numbered(3, 5)
    assert count == 5
    size = len(records) // 5
    assert bench.store.read_history(index, 3, 5, size * 3 + 10)[1] in (3, 4)
    assert bench.store.read_history(index, 3, 5, 1)[1] == 1
    assert bench.store.read_history(index, 40, 5, 1 << 20) == (b"", 0)
    found: list[bytes] = []
    while len(found) < 40:
        records, count = bench.store.read_history(index, len(found), 7, 900)
        assert count >= 1
        found += [record.body for record in decode_all(records)]
    assert found == numbered(0, 40)


def test_history_refuses_an_entry_whose_record_is_of_another_place() -> None:
    """Two entries swapped in the file: each record is sound, but not what the offset means."""
    files = MemoryFiles()
    bench = Bench(files)
    bench.publish(numbered(0, 4))
    bench.flush()
    bench.checkpoint()
    path = f"{QUEUES}/1/{0:020d}"
    data = files.read(path)
    files.overwrite(path, data[:20] + data[40:60] + data[20:40] + data[60:])
    assert bench.store.read_history(bench.own, 0, 1, 1 << 20)[1] == 1
    with pytest.raises(CorruptRecord, match="it is not message 1 of queue 1"):
        bench.store.read_history(bench.own, 0, 4, 1 << 20)
