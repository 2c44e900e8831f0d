"""Opening: stray files, epochs and the places they name, replay, what cannot be opened."""

from __future__ import annotations

import errno

import pytest

from polymq.core_log.errors import CorruptRecord, StoreRefused
from tests.harness.damage import (
    FIRST,
    LOG,
    QUEUES,
    WIDE,
    check_recovered,
    record_starts,
    written_store,
)
from tests.harness.files import EVERYTHING, FailingFiles, MemoryFiles
from tests.harness.stores import DIRECTORY, Bench, numbered

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
    for number, record in enumerate(records):
        assert [r.position for r in bench.store.replay(record.position)] == [
            r.position for r in records[number:]
        ]
    bench.publish(numbered(60, 1))
    bench.flush()
    assert len(list(bench.store.replay(0))) == 61
    assert list(bench.store.replay(bench.store.recovery.end)) == []


def test_replay_refuses_to_start_within_a_record() -> None:
    bench = Bench(written_store(5), settings=WIDE)
    with pytest.raises(CorruptRecord):
        list(bench.store.replay(10))


# --- directories that cannot be opened -------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "after", "error"),
    [
        ("make_directory", 0, errno.EACCES),
        ("make_directory", 1, errno.EROFS),
        ("open", 0, errno.EACCES),
        ("open", 1, errno.EACCES),
        ("pwritev", 0, errno.EIO),
        ("fdatasync", 0, errno.EIO),
        ("sync_directory", 1, errno.EIO),
        ("sync_directory", 3, errno.EIO),
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
