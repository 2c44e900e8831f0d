"""The file that says what may have been acknowledged, over crashes and damage; and the copies of
what is cut from a log."""

from __future__ import annotations

from random import Random

import pytest

from polymq.core_log.acknowledged import EVERYTHING, Acknowledged, AcknowledgedFile
from polymq.core_log.cut_copy import HEAD_BYTES, CutFile, CutHead, keep_cut, list_cuts
from polymq.core_log.errors import CorruptRecord
from polymq.core_log.store import Store
from tests.crash.disk import Disk
from tests.crash.losses import NOTHING, Parts
from tests.harness.stores import DIRECTORY, TINY
from tests.replication.logs import fill

POSITION = "/data"
CUTS = "/data/cut"


def opened(disk: Disk) -> AcknowledgedFile:
    """The file on this disk."""
    disk.make_directory(POSITION)
    return AcknowledgedFile(disk, POSITION)


def test_a_file_that_is_not_there_says_everything() -> None:
    """So it is with a new one, of which nothing was written."""
    disk = Disk()
    file = opened(disk)
    assert file.is_new
    assert file.value == Acknowledged(position=EVERYTHING, disks=1)
    again = opened(disk.kill())
    assert not again.is_new
    assert again.value.position == EVERYTHING


def test_what_was_written_is_there_after_a_power_cut() -> None:
    """Each value replaces the one before."""
    disk = Disk()
    disk.sync_directory("/")
    file = opened(disk)
    disk.sync_directory("/")
    for position in (10, 30, 20):
        file.write(Acknowledged(position=position, disks=2))
        assert opened(disk.crash(NOTHING)).value == Acknowledged(position=position, disks=2)


def test_a_torn_write_leaves_the_one_before() -> None:
    """Power goes in the middle of a write: nothing was promised by it."""
    found = set()
    for seed in range(40):
        disk = Disk()
        file = opened(disk)
        disk.sync_directory("/")
        file.write(Acknowledged(position=10, disks=2))
        disk.off_at = disk.changes_count + 1
        with pytest.raises(OSError, match="power was cut"):
            file.write(Acknowledged(position=20, disks=2))
        found.add(opened(disk.crash(Parts(Random(seed), 0.5))).value.position)
    assert found <= {10, 20}
    assert 10 in found


@pytest.mark.parametrize("at", range(0, 28, 3))
def test_a_damaged_slot_is_not_believed(at: int) -> None:
    """The other one counts; without any, everything may have been acknowledged."""
    disk = Disk()
    file = opened(disk)
    for position in (10, 20):
        file.write(Acknowledged(position=position, disks=2))
    handle = disk.open(f"{POSITION}/acknowledged")
    for slot, position in ((0, 10), (4096, EVERYTHING)):
        byte = disk.pread(handle, 1, slot + at)[0]
        disk.pwritev(handle, [bytes([byte ^ 0x40])], slot + at)
        assert opened(disk.kill()).value.position == position


def log_of(disk: Disk, seed: int = 1) -> Store:
    """A log of some segments."""
    store = Store.open(DIRECTORY, files=disk, clock_ms=lambda: 1, settings=TINY, stepped=True)
    fill(store, Random(seed), 30)
    store.flusher.request()
    store.flusher.step()
    store.flusher.collect()
    return store


def test_it_is_no_stray_file() -> None:
    """A recovery knows whose it is."""
    disk = Disk()
    log_of(disk)
    AcknowledgedFile(disk, DIRECTORY)
    assert log_of(disk.kill()).recovery.strays == ()


def test_the_copy_has_the_records_of_its_stretch() -> None:
    """From any record to the end, over the ends of segments, and after a power cut."""
    disk = Disk()
    disk.sync_directory("/")
    store = log_of(disk)
    records = list(store.records(0, store.log.written))
    assert len(store.segments()) > 3
    for first in (0, 1, len(records) // 2, len(records) - 1):
        head = CutHead(
            position=records[first].position, end=store.log.written, epoch=store.epoch, cut_ms=7
        )
        path = keep_cut(disk, DIRECTORY, CUTS, head)
        stored = CutFile(disk.crash(NOTHING), path)
        assert stored.head == head
        assert [record.raw for record in stored.records()] == [item.raw for item in records[first:]]
    sizes = dict(list_cuts(disk, CUTS))
    assert len(sizes) == 4
    assert sizes[path] == HEAD_BYTES + head.end - head.position


def test_a_copy_is_made_once_and_whole() -> None:
    """One that was begun before a crash is made again; a whole one is left as it is."""
    disk = Disk()
    store = log_of(disk)
    head = CutHead(position=0, end=store.log.written, epoch=store.epoch, cut_ms=7)
    disk.make_directory(CUTS)
    handle = disk.open(f"{CUTS}/{head.name}.part", create=True)
    disk.pwritev(handle, [b"x" * 9000], 0)
    path = keep_cut(disk, DIRECTORY, CUTS, head)
    assert [name for name, _ in list_cuts(disk, CUTS)] == [path]
    changes = disk.changes_count
    keep_cut(disk, DIRECTORY, CUTS, head)
    assert disk.changes_count - changes < 5
    assert len(list(CutFile(disk, path).records())) == len(list(store.records(0, head.end)))


def test_a_damaged_copy_is_not_served() -> None:
    """A record is checked, and so is what the file begins with."""
    disk = Disk()
    store = log_of(disk)
    head = CutHead(position=0, end=store.log.written, epoch=store.epoch, cut_ms=7)
    path = keep_cut(disk, DIRECTORY, CUTS, head)
    handle = disk.open(path)
    disk.pwritev(handle, [b"\xff"], HEAD_BYTES + 60)
    with pytest.raises(CorruptRecord):
        list(CutFile(disk, path).records())
    for damage in (b"X", b"POLYMQ CUT 1\n{}" + b" " * 200):
        disk.pwritev(handle, [damage], 0)
        with pytest.raises(ValueError, match=r"not a file|damaged"):
            CutFile(disk, path)
