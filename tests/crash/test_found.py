"""States that once broke a promise, each by its name.

`make crash` found them; here they stand alone, so that they stay found.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random

import pytest

from polymq.broker.port import REST
from polymq.core_log.checkpoint import read_checkpoint, write_checkpoint
from polymq.core_log.errors import (
    CorruptRecord,
    StorageFailed,
    StoreCorrupt,
    StoreError,
    StoreRefused,
)
from polymq.core_log.kernels.batch import BLANK_SIZE, MAGIC_V1
from polymq.core_log.recovery import CANDIDATES_BYTES_MAX
from polymq.core_log.settings import StoreSettings
from tests.crash.actor import WIDE_FIRST, Actor, open_store
from tests.crash.attempted import Attempted
from tests.crash.checks import check_contents
from tests.crash.disk import Disk
from tests.crash.engine import LAZY_SECONDS, OWNER, EngineActor, MemoryStateDb, World
from tests.crash.faults import NEVER, SYNCS, Fault
from tests.crash.losses import EVERYTHING, NOTHING, Parts, damage
from tests.harness.stores import DIRECTORY, OWN, read_messages, recover_only

SETTINGS = StoreSettings(
    segment_bytes=4096,
    chunk_bytes=1024,
    tail_bytes_max=2048,
    message_bytes_max=2000,
    index_file_entries=16,
)
FIRST_SEGMENT = f"{DIRECTORY}/commitlog/{0:020d}"


class Nth(Fault):
    """One call of a kind fails, for want of memory, behind so many that do not."""

    def __init__(self, call: str, skipped: int, random: Random) -> None:
        super().__init__(
            error=errno.ENOMEM, calls=(call,), first=0, count=1, random=random, loss=NOTHING
        )
        self._skipped = skipped

    def _draw(self, call: str) -> int:
        error = super()._draw(call)
        if error and self._skipped:
            self._skipped -= 1
            return 0
        return error


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


@pytest.mark.parametrize("code", [errno.EDQUOT, errno.EIO, errno.ENOSPC, errno.EROFS])
def test_a_start_does_not_pass_over_a_failed_sync_of_what_an_earlier_one_made(code: int) -> None:
    """The first start made the data directory and could not sync its name. The second one found it,
    and took every error of that sync for a directory that somebody else had made."""
    disk = Disk()
    random = Random(1)
    disk.fault = Nth("sync_directory", 1, random)
    with pytest.raises(StoreRefused):
        open_store(disk, SETTINGS)
    disk.fault = Fault(
        error=code, calls=("sync_directory",), first=0, count=1, random=random, loss=NOTHING
    )
    with pytest.raises(StoreRefused):
        open_store(disk, SETTINGS)
    disk.fault = None
    promised_after(disk, 3)


def test_a_segment_found_by_its_name_is_not_yet_durable() -> None:
    """An earlier process named the first segment, and wrote nothing that made it sync the name."""
    disk = Disk()
    recover_only(disk, SETTINGS)
    promised_after(disk, 3)


@pytest.mark.parametrize("remaining", [0.0, 0.5, 0.9])
def test_what_recovery_keeps_after_a_failed_sync_is_on_the_disk(remaining: float) -> None:
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
        loss=Parts(random, remaining),
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


def test_the_file_that_is_written_to_stays_open_after_a_recovery() -> None:
    """Recovery syncs the last segment up to its end, and took that for the end of its use. Once
    readers had opened enough other files it was closed, and the log went on in whatever file got
    the descriptor."""
    disk = Disk()
    settings = replace(SETTINGS, open_segments_max=1)
    actor = Actor(disk, settings, Attempted())
    for _ in range(3):
        actor.publish(12, 20)
        actor.flush()
    actor.prepare()
    actor.store_prepared()
    actor.flush()
    found = disk.crash(EVERYTHING)
    actor = Actor(found, settings, actor.attempted)
    log = actor.store.log
    log.read_cold(actor.attempted.entries[0], 20)
    log.read_cold(actor.attempted.entries[20], 20)
    before = actor.attempted.count
    actor.publish(2, 20)
    actor.flush()
    left = open_store(found.crash(NOTHING), settings)
    assert check_contents(left, actor.attempted) == before + 2


@pytest.mark.parametrize("call", ["size", "list", "pread", "open"])
def test_a_start_that_is_refused_keeps_no_file_open(call: str) -> None:
    """The file whose size could not be asked for, and all others where the directory could not be
    listed for the second time, stayed open: whoever tried again lacked more and more."""
    disk = Disk()
    actor = Actor(disk, SETTINGS, Attempted())
    actor.publish(30, 20)
    actor.close()
    random = Random(1)
    refused = 0
    for skipped in range(40):
        disk.fault = Nth(call, skipped, random)
        try:
            store = open_store(disk, SETTINGS)
        except StoreRefused:
            refused += 1
            assert disk.open_count == 0
        else:
            disk.fault = None
            store.close()
    assert refused >= 3


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOMEM])
@pytest.mark.parametrize("call", ["open", "size", "pread"])
def test_a_bookmark_that_can_not_be_read_is_no_reason_not_to_start(call: str, code: int) -> None:
    """It is a hint. The error ended a start without state.db, with a traceback."""
    disk = Disk()
    actor = Actor(disk, SETTINGS, Attempted())
    actor.publish(5, 20)
    actor.flush()
    actor.store.set_bookmark(actor.attempted.ends[1])
    assert actor.store.bookmark() == actor.attempted.ends[1]
    disk.fault = Fault(error=code, calls=(call,), first=0, count=1, random=Random(1), loss=NOTHING)
    assert actor.store.bookmark() is None
    assert disk.fault.failed == 1


def test_a_torn_message_full_of_heads_does_not_hold_up_a_start() -> None:
    """Behind the end of the log, recovery looks for sound records, to say whether a disk lost some.
    What looks like the head of one may be a client's bytes, and each was read in the size that it
    named: ten thousand times a gigabyte."""
    settings = StoreSettings(segment_bytes=1 << 20, chunk_bytes=1 << 14)
    disk = Disk()
    actor = Actor(disk, settings, Attempted())
    actor.publish(1, 20)
    actor.flush()
    torn = actor.store.log.flushed
    head = (900_000).to_bytes(4, "big") + MAGIC_V1.to_bytes(4, "big")
    actor.publish(1, 50_000)
    actor.flush()
    found = disk.crash(EVERYTHING)
    file = found.files()[FIRST_SEGMENT]
    body = head * 6_000
    damage(file, bytes(file.data[: torn + 100]) + body + bytes(file.data[torn + 100 + len(body) :]))
    report = recover_only(found, settings)
    assert report.end == torn
    assert report.cut_bytes > 40_000
    assert report.behind_cut is None
    assert found.log_bytes_read < CANDIDATES_BYTES_MAX + (5 << 20)


@pytest.mark.parametrize("call", ["open", "size", "pread"])
def test_a_checkpoint_that_can_not_be_read_is_not_one_that_is_missing(call: str) -> None:
    """Without one the log is read from its beginning, and ends at the first damaged record: such a
    record, and an error at the wrong moment, would cost all that was acknowledged behind it."""
    disk = Disk()
    actor = Actor(disk, SETTINGS, Attempted())
    actor.publish(12, 20)
    actor.flush()
    actor.prepare()
    actor.store_prepared()
    left = disk.crash(NOTHING)
    file = left.files()[FIRST_SEGMENT]
    data = bytearray(file.data)
    data[int.from_bytes(actor.attempted.entries[4][:8], "big") + 100] ^= 1
    damage(file, bytes(data))
    fault = Fault(
        error=errno.EIO, calls=(call,), first=0, count=NEVER, random=Random(1), loss=NOTHING
    )
    fault.below = f"{DIRECTORY}/checkpoint"
    left.fault = fault
    with pytest.raises(StoreRefused, match="Input/output error"):
        open_store(left, SETTINGS)
    left.fault = None
    found = open_store(left, SETTINGS)
    assert found.index(OWN, 20).end_offset == 12
    with pytest.raises(CorruptRecord):
        read_messages(found, found.index(OWN, 20), 4, 1)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM])
def test_a_sync_that_says_that_the_disk_is_full_has_failed(code: int) -> None:
    """It is told once. The pages that it should have written may be gone, so a checkpoint that is
    tried again would speak of entries that no disk has."""
    disk = Disk()
    actor = Actor(disk, SETTINGS, Attempted())
    actor.publish(5, 20)
    actor.flush()
    actor.prepare()
    disk.fault = Fault(
        error=code, calls=("fdatasync",), first=0, count=1, random=Random(1), loss=NOTHING
    )
    with pytest.raises(StorageFailed):
        actor.store_prepared()
    with pytest.raises(StorageFailed):
        actor.publish(1, 20)


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


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("steps", ["prepare drop store", "drop prepare store"])
def test_a_queue_is_dropped_from_a_checkpoint_only_if_the_log_says_so(
    steps: str, compacted: bool
) -> None:
    """A checkpoint that had left out a queue dropped meanwhile knew fewer of its messages than the
    records behind it went on from, so all indexes were made again. And one that was told of a drop
    that the log then lost took the queue's messages from it."""
    disk = Disk()
    actor = Actor(disk, SETTINGS, Attempted())
    actor.publish(3, 20, [WIDE_FIRST])
    actor.flush()
    actor.prepare()
    actor.store_prepared()
    actor.publish(2, 20, [WIDE_FIRST])
    actor.flush()
    actor.publish(2, 20, [WIDE_FIRST])
    actor.write()
    if compacted:
        actor.store._indexes._slack_bytes = -(1 << 30)
    acts: dict[str, Callable[[], object]] = {
        "prepare": actor.prepare,
        "drop": partial(actor.drop, WIDE_FIRST),
        "store": actor.store_prepared,
    }
    for step in steps.split():
        acts[step]()
    for loss, remaining in ((NOTHING, 5), (EVERYTHING, 7)):
        found = open_store(disk.crash(loss), SETTINGS)
        assert found.recovery.rebuilt_all == ""
        assert check_contents(found, actor.attempted) == remaining
        index = found.find_index(WIDE_FIRST)
        assert index is not None
        assert index.end_offset == remaining


@pytest.mark.parametrize("deleted", [False, True])
def test_a_queue_that_is_there_is_reached_by_its_name(deleted: bool) -> None:
    """The log may end behind any record. Declaring a queue was two records: with only the first of
    them it was there for ever, declared again with an ok, and nothing reached it. Deleting one
    took its bindings before itself."""
    actor = EngineActor(Disk(), MemoryStateDb(), World())
    actor.declare("q")
    actor.bind("q", "amq.fanout", "")
    actor.engine.port.queues.declare_subscription("s", ("t", REST))
    if deleted:
        actor.engine.port.queues.delete("q", if_unused=False, if_empty=False, owner=OWNER)
    actor.flush(LAZY_SECONDS)
    whole = EngineActor(actor.disk.crash(EVERYTHING), MemoryStateDb(), World())
    ends = [record.position + record.size for record in whole.store.replay(0)]
    found = []
    for end in ends:
        disk = actor.disk.crash(EVERYTHING)
        file = disk.files()[FIRST_SEGMENT]
        damage(file, bytes(file.data[:end]).ljust(len(file.data), b"\0"))
        again = EngineActor(disk, MemoryStateDb(), World())
        queues = again.engine.named_queues.queues
        found.append(len(queues))
        if "q" in queues:
            route = again.engine.port.exchanges.route("", "q")
            assert route is not None
            assert route.routed
        again.engine.port.queues.declare_subscription("s", ("t", REST))
        assert again.engine.port.topics.route("t", "x").routed
    assert found == sorted(found) or deleted
    assert {0, 1, 2} <= set(found)


def test_a_checkpoint_while_the_log_goes_on_in_the_next_segment_by_slices() -> None:
    """A write that ended with a segment's blank record was flushed, and the checkpoint named the
    place behind the blank's head, where zeros stand. After a crash the log ended there."""
    settings = replace(SETTINGS, write_slice_bytes=600)
    actor = Actor(Disk(), settings, Attempted())
    for step in range(40):
        actor.publish(2, 400 + step)
        actor.write()
        assert actor.store.log.written - BLANK_SIZE not in actor.attempted.ends
        actor.store.flusher.request()
        actor.turn()
        actor.prepare()
        actor.store_prepared()
        found = open_store(actor.disk.crash(NOTHING), settings)
        check_contents(found, actor.attempted)
    assert len(actor.store.segments()) > 5


def test_a_checkpoint_of_a_former_version_behind_the_head_of_a_blank_record() -> None:
    """The log goes on in the next segment."""
    actor = Actor(Disk(), SETTINGS, Attempted())
    while len(actor.store.segments()) < 3:
        actor.publish(1, 700)
    actor.flush()
    actor.prepare()
    actor.store_prepared()
    positions = [(attempted, end) for attempted, end in enumerate(actor.attempted.ends, 1)]
    second = actor.store.segments()[1][0]
    remaining, end = max((remaining, end) for remaining, end in positions if end < second)
    disk = actor.disk.crash(NOTHING)
    checkpoint = read_checkpoint(disk, DIRECTORY)
    assert checkpoint is not None
    write_checkpoint(disk, DIRECTORY, replace(checkpoint, position=end + BLANK_SIZE))
    assert remaining < actor.attempted.promised
    assert check_contents(open_store(disk, SETTINGS), actor.attempted) == actor.attempted.promised


def test_a_checkpoint_while_an_atomic_batch_is_written_by_slices() -> None:
    """A part of the batch was flushed and named by a checkpoint. After a crash the log ended there,
    whatever had been acknowledged since: a start takes a record in the middle of a batch for none.
    """
    settings = replace(SETTINGS, write_slice_bytes=600)
    actor = Actor(Disk(), settings, Attempted())
    for step in range(30):
        actor.publish_atomic(5, 300 + step)
        actor.publish(1, 700)
        actor.write()
        actor.store.flusher.request()
        actor.turn()
        actor.prepare()
        actor.store_prepared()
        actor.write()
        found = open_store(actor.disk.crash(NOTHING), settings)
        check_contents(found, actor.attempted)
        actor.flush()
        found = open_store(actor.disk.crash(NOTHING), settings)
        assert check_contents(found, actor.attempted) == actor.attempted.promised
    assert len(actor.store.segments()) > 5
