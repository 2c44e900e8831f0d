"""States that once broke a promise, each by its name.

`make crash` found them; here they stand alone, so that they stay found.
"""

from __future__ import annotations

import errno
from random import Random

import pytest

from core_log.errors import StorageFailed, StoreCorrupt, StoreError
from core_log.settings import StoreSettings
from tests.crash.actor import Actor, Attempted, open_store
from tests.crash.checks import check_contents
from tests.crash.disk import NEVER, SYNCS, Disk, Fault
from tests.crash.losses import NOTHING, Parts, damage
from tests.harness.stores import DIRECTORY, recover_only

SETTINGS = StoreSettings(
    segment_bytes=4096,
    chunk_bytes=1024,
    tail_bytes_max=2048,
    message_bytes_max=2000,
    index_file_entries=16,
)
FIRST_SEGMENT = f"{DIRECTORY}/commitlog/{0:020d}"


def promised_after(disk: Disk, count: int) -> None:
    """Messages are flushed, power is cut, and they are there."""
    actor = Actor(disk, SETTINGS, Attempted())
    actor.publish(count, 20)
    actor.flush()
    assert check_contents(open_store(disk.crash(NOTHING), SETTINGS), actor.attempted) == count


@pytest.mark.parametrize("change", range(1, 25))
def test_a_process_that_died_in_its_first_start_leaves_no_name_unsynced(change: int) -> None:
    """It may have made the data directory, or its parents, and died before it synced the name:
    then the next process finds it, and is the one that has to sync it."""
    disk = Disk()
    disk.off_at = change
    with pytest.raises(StoreError):
        open_store(disk, SETTINGS)
    promised_after(disk.kill(), 3)


def test_a_segment_found_by_its_name_is_not_yet_durable() -> None:
    """An earlier process named the first segment, and wrote nothing that made it sync the name."""
    disk = Disk()
    recover_only(disk, SETTINGS)
    promised_after(disk, 3)


@pytest.mark.parametrize("kept", [0.0, 0.5, 0.9])
def test_what_recovery_keeps_after_a_failed_sync_is_on_the_disk(kept: float) -> None:
    """After a failed sync the pages are clean and still shown: the next process would read records
    that are not on the disk, and no sync would write them. Writing them again in place is no way
    out: what had been acked stands among them, and power may be cut meanwhile."""
    disk = Disk()
    actor = Actor(disk, SETTINGS, Attempted())
    actor.publish(5, 20)
    actor.flush()
    actor.publish(20, 20)
    random = Random(1)
    disk.fault = Fault(
        error=errno.EIO,
        calls=SYNCS,
        first=0,
        count=NEVER,
        random=random,
        loss=Parts(random, kept),
    )
    with pytest.raises(StorageFailed):
        actor.flush()
    found = disk.kill()
    store = open_store(found, SETTINGS)
    served = check_contents(store, actor.attempted)
    assert 5 <= served <= 25
    again = open_store(found.crash(NOTHING), SETTINGS)
    assert check_contents(again, actor.attempted) == served
    store.close()
    assert f"{DIRECTORY}/commitlog/unsynced" not in found.files()


def test_indexes_are_not_made_again_from_a_part_of_the_log() -> None:
    """A damaged record below the checkpoint, and indexes that do not fit: what is behind the
    record must not be forgotten, nor the log be cut there by the opening after this one."""
    disk = Disk()
    actor = Actor(disk, SETTINGS, Attempted())
    actor.publish(40, 20)
    actor.flush()
    actor.prepare()
    actor.store_prepared()
    left = disk.crash(NOTHING)
    paths = [path for path in left.files() if "/commitlog/" not in path and "queue" in path]
    for path in (FIRST_SEGMENT, *paths):
        file = left.files()[path]
        data = bytearray(file.data)
        data[len(data) // 2] ^= 1
        data[-10 if path != FIRST_SEGMENT else 2000] ^= 1
        damage(file, bytes(data))
    for _ in range(2):
        with pytest.raises(StoreCorrupt, match="is damaged"):
            open_store(left, SETTINGS)
    assert len(left.files()[FIRST_SEGMENT].data) == SETTINGS.segment_bytes
