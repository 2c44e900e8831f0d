"""A store is opened on a disk without a free byte: everything that was there can be read, and what
the start could not write is written when there is room."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import replace

import pytest

from polymq.core_log.checkpoint import ABORT_NAME, CHECKPOINT_NAME, CLOSED_NAME
from polymq.core_log.epochs import read_epochs
from polymq.core_log.errors import StorageFull
from polymq.core_log.files import Buffer
from polymq.core_log.settings import StoreSettings
from tests.harness.files import MemoryFiles, WrappedFiles
from tests.harness.stores import DIRECTORY, PACKED, TINY, Bench, numbered

SETTINGS = {"packed": PACKED, "files": TINY, "spares": replace(TINY, segments_zeroed=True)}


class FullDisk(WrappedFiles):
    """While it is full no file is made and none grows."""

    def __init__(self, files: MemoryFiles) -> None:
        super().__init__(files)
        self.full = False
        self.refused: list[str] = []

    def _need(self, call: str, wanted: bool) -> None:
        if self.full and wanted:
            self.refused.append(call)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def open(self, path: str, *, create: bool = False) -> int:
        if create:
            name = path.rpartition("/")
            self._need(f"open {path}", name[2] not in self.files.list(name[0]))
        return self.files.open(path, create=create)

    def pwritev(self, handle: int, buffers: Sequence[Buffer], position: int) -> None:
        end = position + sum(len(buffer) for buffer in buffers)
        self._need("pwritev", end > self.files.size(handle))
        self.files.pwritev(handle, buffers, position)

    def truncate(self, handle: int, size: int) -> None:
        self.files.truncate(handle, size)

    def preallocate(self, handle: int, size: int) -> None:
        self.files.preallocate(handle, size)


@pytest.fixture(params=sorted(SETTINGS))
def settings(request: pytest.FixtureRequest) -> StoreSettings:
    return SETTINGS[request.param]


@pytest.mark.parametrize("end", ["kill", "close"])
@pytest.mark.parametrize("behind", [0, 3, 40])
def test_a_store_opens_on_a_full_disk(settings: StoreSettings, behind: int, end: str) -> None:
    """`behind`: messages that no checkpoint knows."""
    memory = MemoryFiles()
    bench = Bench(memory, settings=settings)
    for number in range(20):
        bench.publish(numbered(number, 1))
    bench.flush()
    bench.checkpoint()
    for number in range(20, 20 + behind):
        bench.publish(numbered(number, 1))
    bench.flush()
    sent = bench.sent
    if end == "kill":
        bench.abandon()
        memory = memory.after_kill()
    else:
        bench.store.close()

    disk = FullDisk(memory)
    disk.full = True
    full = Bench(disk, settings=settings, sent=sent)
    assert full.bodies() == sent
    assert disk.refused
    assert full.store.checkpointed <= full.store.recovery.end
    with pytest.raises(StorageFull):
        full.checkpoint()

    # It is killed again, and the disk is still full: the next start finds all epochs.
    full.abandon()
    disk = FullDisk(memory.after_kill())
    disk.full = True
    full = Bench(disk, settings=settings, sent=sent)
    assert [number for number, _ in full.store.epochs] == [1, 2, 3]
    assert full.bodies() == sent

    disk.full = False
    full.checkpoint()
    assert read_epochs(disk, DIRECTORY) == full.store.epochs
    full.publish(numbered(len(sent), 30))
    full.flush()
    full.store.close()
    last = Bench(disk, settings=settings, sent=full.sent)
    assert last.store.recovery.clean
    assert last.bodies() == full.sent


def test_a_store_without_its_checkpoint_opens_on_a_full_disk(settings: StoreSettings) -> None:
    """All indexes are made again from the log, and the new checkpoint finds no room."""
    memory = MemoryFiles()
    bench = Bench(memory, settings=settings)
    bench.publish(numbered(0, 20))
    bench.flush()
    bench.abandon()
    left = memory.after_kill()
    left.unlink(f"{DIRECTORY}/{CHECKPOINT_NAME}")
    disk = FullDisk(left)
    disk.full = True
    full = Bench(disk, settings=settings, sent=bench.sent)
    assert full.store.recovery.rebuilt_all == "there is no checkpoint"
    assert full.store.checkpointed == 0
    assert full.bodies() == bench.sent
    disk.full = False
    full.checkpoint()
    assert full.store.checkpointed >= full.store.recovery.end


def test_nothing_is_deleted_that_no_checkpoint_covers() -> None:
    """The checkpoint of a start that found no room says nothing of what was recovered."""
    memory = MemoryFiles()
    bench = Bench(memory)
    for number in range(60):
        bench.publish(numbered(number, 1))
    bench.flush()
    bench.abandon()
    disk = FullDisk(memory.after_kill())
    disk.full = True
    full = Bench(disk, sent=bench.sent)
    assert full.store.checkpointed == 0
    disk.full = False
    full.checkpoint()
    assert full.store.checkpointed == full.store.log.flushed


def test_the_abort_file_is_there_while_the_store_is_open_and_only_then() -> None:
    memory = MemoryFiles()
    bench = Bench(memory)
    assert ABORT_NAME in memory.list(DIRECTORY)
    bench.store.close()
    assert {ABORT_NAME, CLOSED_NAME} & set(memory.list(DIRECTORY)) == {CLOSED_NAME}
    again = Bench(memory)
    assert again.store.recovery.clean
    assert {ABORT_NAME, CLOSED_NAME} & set(memory.list(DIRECTORY)) == {ABORT_NAME}
    again.store.close()
