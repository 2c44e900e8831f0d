"""Indexes that share packs: what is read is what was appended, wherever it is; what is damaged is
found out; what is out of date is given back."""

from __future__ import annotations

import errno
import gc
import threading
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polymq.core_log.errors import StorageFailed, StorageFull
from polymq.core_log.index_tail import BLOCK_BYTES, IndexTail
from polymq.core_log.packs import PackWriter
from polymq.core_log.queue_index import QueueIndex
from tests.harness.damage import QUEUES
from tests.harness.files import EVERYTHING, NOTHING, Chooser, FailingFiles, MemoryFiles
from tests.harness.stores import DIRECTORY, MIXED, PACKED, TINY, Bench, numbered, recover_only

PACKS = f"{DIRECTORY}/packedqueue"


def only_pack(files: MemoryFiles) -> str:
    """The one pack that there is."""
    (name,) = files.list(PACKS)
    return f"{PACKS}/{name}"


def publish_wide(bench: Bench, count: int, wide: int) -> None:
    """Messages that also go to `wide` queues from number 100 on."""
    for _ in range(count):
        bench.publish(numbered(len(bench.sent), 1), wide=wide)
    bench.flush()


# --- in memory --------------------------------------------------------------------------------


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("append"), st.integers(1, 4000)),
            st.tuples(st.just("take"), st.integers(0, 9000)),
            st.tuples(st.just("trim"), st.integers(0, 9000)),
        ),
        max_size=30,
    ),
    st.data(),
)
def test_a_tail_is_a_list_of_entries(steps: list[tuple[str, int]], data: st.DataObject) -> None:
    """Appending, taking and giving up in any order, compared with a plain list. What was taken
    stays as it was."""
    tail = IndexTail(20, 5)
    model: list[bytes] = []
    taken: list[tuple[list[memoryview], bytes]] = []
    for kind, value in steps:
        if kind == "append":
            more = [
                (100 * at_byte).to_bytes(8, "big") + bytes(12)
                for at_byte in range(len(model), len(model) + value)
            ]
            tail.append(b"".join(more), value)
            model += more
        elif kind == "take":
            views, count = tail.take(max(5, tail.start), 100 * value)
            expected = model[tail.start - 5 : max(value, tail.start - 5)]
            assert count == len(expected)
            taken.append((views, b"".join(expected)))
        if kind != "trim":
            continue
        before = tail.start
        if not tail.trim(5 + min(value, len(model)), 100 * value):
            assert value >= len(model)
            return
        assert before <= tail.start <= max(before, 5 + min(value, len(model)))
    for views, expected_bytes in taken:
        assert b"".join(views) == expected_bytes
    first = data.draw(st.integers(tail.start, tail.end))
    count = data.draw(st.integers(0, 9000))
    assert tail.read(first, count) == b"".join(model[first - 5 : first - 5 + count])


def test_what_is_not_stored_stays_in_memory() -> None:
    """Though its records have left memory; and what is stored stays while they have not."""
    entries = b"".join((100 * n).to_bytes(8, "big") + bytes(12) for n in range(4))
    for stored, position, left in ((0, 1000, True), (4, 0, True), (3, 1000, True), (4, 400, False)):
        tail = IndexTail(20, 0)
        tail.append(entries, 4)
        assert tail.trim(stored, position) is left
        assert not left or tail.read(0, 9) == entries


def test_taking_does_not_copy() -> None:
    """A million entries are taken as some hundred views of the blocks that hold them."""
    tail = IndexTail(32, 0)
    entries = b"".join(n.to_bytes(8, "big") + bytes(24) for n in range(1000))
    for _ in range(100):
        tail.append(entries, 1000)
    views, count = tail.take(0, 1 << 62)
    assert count == 100_000
    assert len(views) <= 1 + 32 * count // BLOCK_BYTES
    assert all(isinstance(view.obj, bytearray) for view in views)


# --- stored and read again --------------------------------------------------------------------


@pytest.mark.parametrize("shape", [PACKED, MIXED, TINY])
@settings(max_examples=25)
@given(
    steps=st.lists(
        st.tuples(st.integers(1, 9), st.integers(0, 4), st.sampled_from(("flush", "save", "open"))),
        max_size=10,
    )
)
def test_what_is_read_does_not_depend_on_how_it_is_kept(
    shape: object, steps: list[tuple[int, int, str]]
) -> None:
    """Queues of many sizes, checkpoints, openings after a stop or a crash: every queue has every
    message that named it, hot and cold."""
    assert isinstance(shape, type(TINY))
    files = MemoryFiles()
    bench = Bench(files, settings=shape)
    for count, wide, then in steps:
        publish_wide(bench, count, wide)
        if then == "save":
            bench.checkpoint()
        elif then == "open":
            if count % 2:
                bench.store.close()
            else:
                bench.abandon()
                files = files.after_crash(NOTHING)
            bench = Bench(files, settings=shape, sent=bench.sent)
            assert bench.store.recovery.rebuilt_all == ""
    named: dict[int, list[int]] = {}
    for record in bench.store.replay(0):
        for number, offset in record.targets:
            named.setdefault(number, []).append(offset)
    bench.checkpoint()
    bench.checkpoint()
    for number in bench.store.index_numbers():
        index = bench.store.index(number, 20 if number == 1 else 32)
        for hot in (True, False):
            offset = 0
            while offset < index.end_offset:
                found = index.read_hot(offset, 3) if hot else None
                entries = found or index.read_cold(offset, 3)
                assert entries
                for at_byte in range(len(entries) // index.entry_size):
                    at = at_byte * index.entry_size
                    location = int.from_bytes(entries[at : at + 8], "big")
                    found_record = bench.store._reader.record_at(location)
                    assert found_record is not None
                    assert (number, offset + at_byte) in found_record.targets
                offset += len(entries) // index.entry_size
    bench.store.close()
    recover_only(files.after_crash(EVERYTHING), shape)


def test_many_changed_queues_are_stored_with_one_sync() -> None:
    """A hundred queues of one message each: no file of their own, and as many changes to the disk
    as one queue takes."""
    files = MemoryFiles()
    bench = Bench(files, settings=replace(PACKED, segment_bytes=1 << 16))
    publish_wide(bench, 1, 1)
    bench.checkpoint()
    before = files.changes_count
    bench.checkpoint()
    nothing = files.changes_count - before
    publish_wide(bench, 1, 100)
    before = files.changes_count
    bench.checkpoint()
    assert files.changes_count - before == nothing + 2  # one write and one sync more
    assert files.list(QUEUES) == []


@pytest.mark.slow
def test_a_checkpoint_of_many_queues_is_nothing_for_the_garbage_collector(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What it keeps for each queue, while it is prepared and until it is stored, are no objects
    that the collector looks at: with many of them it would look at all objects of the process."""
    bench = Bench(MemoryFiles(), settings=replace(PACKED, segment_bytes=1 << 20))
    queues = 200
    publish_wide(bench, 2, queues)
    bench.checkpoint()
    publish_wide(bench, 1, queues)  # so that entries are read from the pack again
    held: list[int] = []

    def objects() -> int:
        gc.collect()
        return len(gc.get_objects())

    finish = PackWriter.finish

    def last_step(writer: PackWriter) -> None:
        held.append(objects())
        finish(writer)

    monkeypatch.setattr(PackWriter, "finish", last_step)
    before = objects()
    checkpoint = bench.store.prepare_checkpoint()
    held.append(objects())
    checkpoint()
    assert len(held) == 2
    assert max(held) - before < queues / 4


def test_the_entries_of_a_growing_queue_stay_in_few_extents() -> None:
    """A message per checkpoint, three hundred times: extents of about one size become one."""
    files = MemoryFiles()
    bench = Bench(files, settings=replace(PACKED, segment_bytes=1 << 20))
    for number in range(300):
        bench.publish(numbered(number, 1))
        bench.flush()
        bench.checkpoint()
        assert len(bench.own.extents) <= 2 * 9
    bench.checkpoint()
    assert bench.bodies() == bench.sent
    assert bench.own.read_cold(0, 1 << 20)


def test_a_queue_that_grows_large_gets_files_of_its_own() -> None:
    files = MemoryFiles()
    bench = Bench(files, settings=MIXED)
    bench.publish(numbered(0, 9))
    bench.flush()
    bench.checkpoint()
    assert files.list(QUEUES) == []
    bench.publish(numbered(9, 9))
    bench.flush()
    bench.checkpoint()
    assert files.list(QUEUES) == ["1", "2", "3"]
    assert files.read(f"{QUEUES}/1/{0:020d}") == bench.own.read_hot(0, 16)
    bench.publish(numbered(18, 2))
    bench.flush()
    bench.checkpoint()
    assert bench.own.filed_offset == 18
    found = Bench(files.after_crash(NOTHING), settings=MIXED)
    assert found.bodies() == found.bodies(2) == numbered(0, 20)
    assert found.own.read_cold(17, 9) != b""
    assert found.own.read_cold(18, 9) == bench.own.read_hot(18, 2)


# --- slices -----------------------------------------------------------------------------------


def test_a_checkpoint_is_prepared_in_slices_while_publishing_goes_on() -> None:
    """What is appended between two slices stands behind the checkpoint, in every queue."""
    files = MemoryFiles()
    bench = Bench(files, settings=replace(PACKED, segment_bytes=1 << 16))
    publish_wide(bench, 2, 6)
    preparation = bench.store.begin_checkpoint()
    slices = 1
    while not preparation.gather(2):
        publish_wide(bench, 1, 6)
        slices += 1
    assert slices >= 4
    bench.store.drop_index(103)
    preparation()
    end = preparation.position
    files = files.after_crash(NOTHING)
    found = Bench(files, settings=replace(PACKED, segment_bytes=1 << 16))
    assert found.store.recovery.rebuilt_all == ""
    assert found.bodies() == found.bodies(101) == bench.sent
    assert found.store.recovery.scanned_bytes > 0
    assert all(offset == 2 for n, offset in found.store.recovery.rebuilt.items() if n != 103)
    assert end < found.store.recovery.end


# --- dropping, trimming, compacting -----------------------------------------------------------


def test_dropped_queues_give_their_room_back() -> None:
    files = MemoryFiles()
    shape = replace(PACKED, segment_bytes=1 << 20)
    bench = Bench(files, settings=shape)
    for _ in range(2):
        publish_wide(bench, 10, 200)
    bench.checkpoint()
    full = len(files.read(only_pack(files)))
    for number in range(100, 300):
        bench.store.drop_index(number)
    bench.checkpoint()
    bench.checkpoint()
    assert len(files.read(only_pack(files))) < full / 20
    found = Bench(files.after_crash(NOTHING), settings=shape)
    assert sorted(found.store.index_numbers()) == [1, 2, 3]
    assert found.bodies(3) == numbered(0, 20)


def test_a_dropped_queue_does_not_come_back() -> None:
    """Its blocks still stand in the pack, and the last word on it is that it is gone."""
    files = MemoryFiles()
    shape = replace(PACKED, segment_bytes=1 << 16, index_slack_bytes=1 << 20)
    bench = Bench(files, settings=shape)
    publish_wide(bench, 3, 4)
    bench.checkpoint()
    bench.store.drop_index(102)
    bench.checkpoint()
    found = Bench(files.after_crash(NOTHING), settings=shape)
    assert sorted(found.store.index_numbers()) == [1, 2, 3, 100, 101, 103]
    assert found.bodies(103) == numbered(0, 3)


def test_a_pack_is_written_anew_when_most_of_it_is_out_of_date() -> None:
    """The pack stays within twice of what counts, whatever is appended and stored again."""
    files = MemoryFiles()
    bench = Bench(files, settings=PACKED)
    generations = set()
    for turn in range(60):
        publish_wide(bench, 1, turn % 5)
        bench.checkpoint()
        path = only_pack(files)
        generations.add(path)
        assert len(files.read(path)) <= 2 * bench.store._indexes.packs.live_bytes
    assert len(generations) > 3
    for number in (1, 2, 3, 100, 103):
        bench.bodies(number)
    bench.store.close()
    assert Bench(files, settings=PACKED).bodies() == bench.sent


def test_a_reader_finds_what_a_compaction_moves_under_its_hands() -> None:
    """A thread reads cold all the time while packs are replaced: never an error, always right."""
    files = MemoryFiles()
    bench = Bench(files, settings=replace(PACKED, segment_bytes=1 << 20))
    bench.publish(numbered(0, 30))
    bench.flush()
    bench.checkpoint()
    expected = bench.own.read_hot(0, 30) or b""
    wrong: list[object] = []
    ended = threading.Event()
    reads = 0

    def read() -> None:
        nonlocal reads
        while not ended.is_set():
            reads += 1
            try:
                found = bench.own.read_cold(0, 30)
            except StorageFailed as error:
                wrong.append(error)
                return
            if not found or found != expected[: len(found)]:
                wrong.append(found)
                return

    thread = threading.Thread(target=read)
    thread.start()
    try:
        for turn in range(150):
            bench.publish(numbered(30 + turn, 1))
            bench.flush()
            bench.checkpoint()
    finally:
        ended.set()
        thread.join()
    assert wrong == []
    assert reads > 10


@pytest.mark.parametrize("shape", [PACKED, MIXED, TINY])
def test_a_trimmed_index_begins_later_and_gives_its_files_back(shape: object) -> None:
    assert isinstance(shape, type(TINY))
    files = MemoryFiles()
    bench = Bench(files, settings=shape)
    bench.publish(numbered(0, 60))
    bench.flush()
    bench.checkpoint()
    bench.own.trim_before(40)
    bench.own.trim_before(7)
    assert (bench.own.first_offset, bench.own.end_offset) == (40, 60)
    assert bench.own.read_cold(39, 1) == b""
    bench.checkpoint()
    if shape is TINY:
        assert files.list(f"{QUEUES}/1")[0] == f"{32 * 20:020d}"
    for state in (files.after_crash(NOTHING), files.after_crash(EVERYTHING)):
        found = Bench(state, settings=shape)
        assert found.store.recovery.rebuilt_all == ""
        assert (found.own.first_offset, found.own.end_offset) == (40, 60)
        assert found.bodies() == numbered(40, 20)
    bench.own.trim_before(99)
    assert bench.own.first_offset == 60
    bench.checkpoint()
    bench.store.close()
    again = Bench(files, settings=shape)
    assert (again.own.first_offset, again.own.end_offset) == (60, 60)
    assert again.bodies(2) == numbered(0, 60)
    again.sent = numbered(0, 60)
    again.publish(numbered(60, 3))
    again.flush()
    assert again.bodies() == numbered(60, 3)


def removed_indexes(bench: Bench) -> list[str]:
    """What a start removed of them."""
    return [one for one in bench.store.recovery.removed if one.startswith(QUEUES)]


def test_an_index_of_which_no_entry_counts_gives_all_files_back() -> None:
    """With the checkpoint, as a start would: else a second start would change what the first has
    left. It goes on in new files."""
    files = MemoryFiles()
    bench = Bench(files, settings=TINY)
    bench.publish(numbered(0, 60))
    bench.flush()
    bench.checkpoint()
    assert "1" in files.list(QUEUES)
    bench.own.trim_before(60)
    bench.checkpoint()
    assert "1" not in files.list(QUEUES)
    assert removed_indexes(Bench(files.after_crash(EVERYTHING), settings=TINY)) == []
    for turn in range(3):
        bench.publish(numbered(60 + 20 * turn, 20))
        bench.flush()
        bench.checkpoint()
    assert "1" in files.list(QUEUES)
    assert bench.bodies() == numbered(60, 60)
    for state in (files.after_crash(NOTHING), files.after_crash(EVERYTHING)):
        found = Bench(state, settings=TINY)
        assert (found.own.first_offset, found.own.end_offset) == (60, 120)
        assert found.bodies() == numbered(60, 60)
        assert removed_indexes(found) == []


# --- damage -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_a_flipped_bit_in_a_pack_is_found_and_the_indexes_are_made_again(seed: int) -> None:
    """Anywhere in the pack: a reader gets an error, never a wrong entry; the next opening makes
    all indexes again from the log."""
    random = Random(seed)
    files = MemoryFiles()
    bench = Bench(files, settings=PACKED)
    publish_wide(bench, 12, 3)
    bench.checkpoint()
    bench.store.close()
    path = only_pack(files)
    data = files.read(path)
    for _ in range(40):
        copy = files.after_crash(EVERYTHING)
        at_byte, bit = random.randrange(len(data)), random.randrange(8)
        copy.overwrite(
            path, data[:at_byte] + bytes((data[at_byte] ^ 1 << bit,)) + data[at_byte + 1 :]
        )
        found = Bench(copy, settings=PACKED)
        assert found.store.recovery.rebuilt_all == "an index is missing or damaged"
        for number in (1, 2, 3, 102):
            assert found.bodies(number) == numbered(0, 12)
        found.abandon()
    index = bench.own
    assert isinstance(index, QueueIndex)
    position = index.extents[-1] & (1 << 40) - 1
    for at_byte in range(position, position + 72):
        files.overwrite(path, data[:at_byte] + bytes((data[at_byte] ^ 64,)) + data[at_byte + 1 :])
        with pytest.raises(StorageFailed, match=r"entries of queue 1 .* are damaged"):
            index.read_cold(11, 1)


@pytest.mark.parametrize("damage", ["missing", "empty", "short", "zeros", "another's"])
def test_a_pack_that_is_not_whole_is_not_believed(damage: str) -> None:
    files = MemoryFiles()
    bench = Bench(files, settings=PACKED)
    publish_wide(bench, 12, 3)
    bench.checkpoint()
    files = files.after_crash(EVERYTHING)
    path = only_pack(files)
    data = files.read(path)
    match damage:
        case "missing":
            files.unlink(path)
        case "empty":
            files.overwrite(path, b"")
        case "short":
            files.overwrite(path, data[:-1])
        case "zeros":
            files.overwrite(path, bytes(len(data)))
        case _:
            files.overwrite(path, data[:16].ljust(len(data), b"\x01"))
    found = Bench(files, settings=PACKED)
    assert found.store.recovery.rebuilt_all == "an index is missing or damaged"
    assert found.bodies() == found.bodies(102) == numbered(0, 12)
    found.store.close()
    assert Bench(files, settings=PACKED).store.recovery.clean


def test_what_stands_behind_the_checkpoint_in_a_pack_is_cut() -> None:
    """A frame that was written, and the checkpoint was not; or only a part of it; or another pack
    that was begun."""
    files = MemoryFiles()
    bench = Bench(files, settings=PACKED)
    publish_wide(bench, 6, 3)
    bench.checkpoint()
    path = only_pack(files)
    data = files.read(path)
    for more in (data, data[: len(data) // 2], bytes(100), b"\xff" * 7):
        copy = files.after_crash(EVERYTHING)
        copy.overwrite(path, data + more)
        copy.open(f"{PACKS}/{77:020d}", create=True)
        copy.open(f"{PACKS}/notes", create=True)
        report = recover_only(copy, PACKED)
        assert report.rebuilt_all == ""
        assert report.strays == (f"{PACKS}/notes",)
        assert copy.list(PACKS) == [path.split("/")[-1], "notes"]
        assert copy.read(path) == data
        assert Bench(copy, settings=PACKED).bodies(101) == numbered(0, 6)


def test_power_is_cut_at_every_operation_of_a_compaction() -> None:
    """From the last checkpoint in the old pack to the first in the new one."""
    shape = replace(PACKED, segment_bytes=1 << 16)

    for cut in range(20):
        disk = MemoryFiles()
        bench = Bench(disk, settings=shape)
        for _ in range(11):
            publish_wide(bench, 1, 3)
            bench.checkpoint()
        bench.store._indexes._slack_bytes = -(1 << 30)  # compact in any case
        publish_wide(bench, 1, 3)
        disk.cut_power_after(cut)
        try:
            bench.checkpoint()
        except StorageFailed:
            pass  # the machine is off
        for seed in range(4):
            state = disk.after_crash(Chooser(Random(seed), likely=(0.0, 0.5, 0.9, 1.1)[seed]))
            found = Bench(state, settings=shape)
            assert found.store.recovery.rebuilt_all == ""
            for number in (1, 2, 102):
                assert found.bodies(number) == bench.sent
            found.abandon()


def test_a_compaction_that_finds_no_room_is_tried_again() -> None:
    memory = MemoryFiles()
    files = FailingFiles(memory)
    bench = Bench(files, settings=PACKED)
    for after in range(12):
        publish_wide(bench, 1, 3)
        bench.store._indexes._slack_bytes = -(1 << 30)
        files.fail("pwritev", errno.ENOSPC, after=after % 4)
        try:
            bench.checkpoint()
        except StorageFull:
            pass  # the next one makes up for it
        files.heal()
    bench.checkpoint()
    assert len(memory.list(PACKS)) == 1
    assert bench.bodies() == bench.bodies(102) == bench.sent
    bench.store.close()
    assert Bench(files, settings=PACKED).store.recovery.clean
