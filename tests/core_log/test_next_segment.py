"""The next segment is made ready ahead of use, also of a file that was used before: an old byte may
never stand where the log goes on."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

import pytest

from polymq.core_log.atomic import row_of
from polymq.core_log.errors import FailureLatch, StorageFull, StoreError
from polymq.core_log.files import Buffer, Files
from polymq.core_log.kernels import walking, writing
from polymq.core_log.next_segment import NextSegment
from polymq.core_log.record import RecordTemplate, encode_host, encode_properties
from polymq.core_log.settings import StoreSettings
from polymq.core_log.store import Store
from tests.crash.disk import Disk, apply
from tests.crash.losses import POWER_CUTS, Subset
from tests.harness.files import FailingFiles, MemoryFiles, WrappedFiles
from tests.harness.stores import DIRECTORY, TINY

LOG = f"{DIRECTORY}/commitlog"
SEGMENT = 4096
SETTINGS = replace(
    TINY, segment_bytes=SEGMENT, message_bytes_max=3500, segments_zeroed=True, spare_segments_max=1
)
NOW_MS = 1_700_000_000_000
GOOD = RecordTemplate(b"good", 0, encode_properties({"TAGS": "t"}), 0)
FORGED = RecordTemplate(b"forged", 0, encode_properties({"TAGS": "t"}), 0)
HOSTS = encode_host("127.0.0.1", 10911)


class Writer:
    """A store that is written to record by record; its flusher works when it is told to."""

    def __init__(self, files: Files, settings: StoreSettings = SETTINGS) -> None:
        self.store = Store.open(
            DIRECTORY, files=files, clock_ms=lambda: NOW_MS, settings=settings, stepped=True
        )
        self.following = self.store._segments.following

    @property
    def end(self) -> int:
        """Where the log ends."""
        return self.store.log.appended

    def put(self, body: bytes = b"", *, flush: bool = True) -> int:
        """Append a record. Returns where it starts."""
        span = self.store.log.append_record(GOOD, body, born_ms=NOW_MS, store_ms=NOW_MS)
        self.store.log.write()
        if flush:
            self.flush()
        return span.position

    def flush(self) -> None:
        """Sync, and make the next segment as ready as it should be."""
        self.store.flusher.request()
        self.store.flusher.step()
        self.store.flusher.collect()

    def fill(self, position: int, *, flush: bool = True) -> None:
        """Append records of 256 bytes until the log has passed `position`."""
        while self.end < position:
            self.put(bytes(256 - OVERHEAD), flush=flush)

    def delete_before(self, position: int) -> None:
        """What retention does."""
        self.store.prepare_checkpoint()()
        self.store.retire(position)
        self.store.discard()


def record(template: RecordTemplate, body: bytes, position: int) -> bytes:
    """A sound record of a place."""
    memory = bytearray(SEGMENT)
    _, end, _ = writing.append_run(
        *(memory, 0, len(memory), position, template.form, HOSTS, b"", (), 0),
        *(row_of(body, b""), 0, 1, NOW_MS, NOW_MS),
    )
    return bytes(memory[:end])


OVERHEAD = len(record(GOOD, b"", 0))


def body_with_forgeries(start: int, target: int) -> tuple[bytes, int]:
    """A body for the record at `start` that is full of sound records for the places that its bytes
    would have in the segment at `target`. Returns it, and where the last one stands."""
    head = start % SEGMENT + record(GOOD, b"A" * 8, start).index(b"A" * 8)
    body = b""
    last = 0
    while head + len(body) < SEGMENT - 500:
        last = head + len(body)
        body += record(FORGED, b"believe me", target + last)
    return body, last


class ZerosLost:
    """A power cut that leaves all but what was written with zeros and not synced."""

    def keeps_name(self) -> bool:
        return True

    keeps_size = keeps_name

    def write(self, left: bytearray, offset: int, data: bytes) -> None:
        if any(data):
            apply(left, offset, data)


def is_forged(store: Store) -> bool:
    """Whether the store took a forgery for its own."""
    return any(found.topic == b"forged" for found in store.replay(0))


def check_after_power_cuts(disk: Disk, settings: StoreSettings, random: Random) -> int:
    """Open what every kind of power cut leaves of a disk; nothing forged may be there."""
    losses = [POWER_CUTS[kind](disk, random) for kind in ("few", "sectors", "most", "names")]
    losses += [Subset(random.getrandbits(64)), ZerosLost()]
    for loss in losses:
        found = disk.crash(loss)
        writer = Writer(found, settings)
        assert not is_forged(writer.store)
        stored = writer.end
        writer.put(b"goes on")
        again = Writer(found.kill(), settings)
        assert not is_forged(again.store)
        assert again.end > stored
    return len(losses)


def test_zeros_are_written_and_synced_as_the_log_goes_on() -> None:
    """At an eighth they begin, at seven eighths all is zero and on the disk."""
    disk = Disk()
    writer = Writer(disk)
    writer.fill(SEGMENT // 8)
    ready = []
    while writer.end < SEGMENT * 7 // 8:
        writer.fill(writer.end + 1)
        ready.append(writer.following.zeroed_bytes)
    assert ready == sorted(ready)
    assert len(set(ready)) > 4  # in slices
    assert ready[-1] == SEGMENT
    file = disk.files()[f"{LOG}/next"]
    assert file.disk == bytes(SEGMENT)
    assert not file.pending
    writer.fill(SEGMENT + 1)
    assert disk.files()[f"{LOG}/{SEGMENT:020}"] is file
    assert writer.following.zeroed_bytes == SEGMENT


def test_a_file_that_is_only_given_room_is_not_written() -> None:
    disk = Disk()
    writer = Writer(disk, replace(SETTINGS, segments_zeroed=False))
    writer.fill(SEGMENT // 4)
    assert f"{LOG}/next" not in disk.files()
    writer.fill(SEGMENT * 3 // 4)
    assert len(disk.files()[f"{LOG}/next"].data) == SEGMENT
    assert writer.following.zeroed_bytes == 0
    writer.fill(2 * SEGMENT + 1)
    writer.delete_before(SEGMENT)
    assert not [path for path in disk.files() if "spare" in path]


def test_large_syncs_make_no_zeros() -> None:
    """They would be as much again as the log writes. A spare stays one: it cannot be used without
    zeros."""
    disk = Disk()
    writer = Writer(disk, replace(SETTINGS, zeroed_sync_bytes_max=1000))
    for segment in range(24):  # the average needs some syncs
        writer.fill((segment + 1) * SEGMENT + 1, flush=False)
        writer.flush()
    writer.delete_before(writer.end - 1)
    zeroed = writer.following.zeroed_bytes
    start = writer.end - 1
    writer.fill(start + SEGMENT * 3 // 4, flush=False)
    writer.flush()
    assert writer.following.zeroed_bytes == zeroed
    assert f"{LOG}/next" in disk.files()
    assert f"{LOG}/spare1" in disk.files()


def test_zeros_come_back_with_small_syncs() -> None:
    """Into a file that was only given room, and a spare is used again."""
    disk = Disk()
    writer = Writer(disk, replace(SETTINGS, zeroed_sync_bytes_max=1000))
    for segment in range(24):
        writer.fill((segment + 1) * SEGMENT + 1, flush=False)
        writer.flush()
    writer.delete_before(writer.end - 1)
    reused = writer.following.reused_count
    end = writer.end - 1 + SEGMENT * 3 // 4
    writer.fill(end, flush=False)
    writer.flush()
    assert bytes(SEGMENT) == disk.files()[f"{LOG}/next"].data
    for _ in range(12):
        end += SEGMENT
        writer.fill(end)
    assert writer.following.reused_count == reused + 1
    assert writer.following.zeroed_bytes >= 10 * SEGMENT
    writer.store.close()
    assert Writer(disk).store.recovery.clean


def test_a_new_file_that_is_half_zeroed_is_taken_and_never_written_by_two() -> None:
    """The log is quicker than the zeros: they stop, and what the log wrote is there."""
    disk = Disk()
    writer = Writer(disk)
    writer.fill(SEGMENT // 2)
    zeroed = writer.following.zeroed_bytes
    assert 0 < zeroed < SEGMENT
    writer.fill(SEGMENT + 1000, flush=False)
    writer.flush()
    writer.fill(SEGMENT + 2 * SEGMENT // 3)
    writer.store.close()
    again = Writer(disk)
    assert [len(found.body) for found in again.store.replay(0) if found.topic == b"good"]
    assert again.store.recovery.clean
    assert again.end > SEGMENT + 2 * SEGMENT // 3


def test_a_retired_file_becomes_a_segment_again() -> None:
    disk = Disk()
    writer = Writer(disk)
    writer.fill(SEGMENT + 1)
    first = disk.files()[f"{LOG}/{0:020}"]
    writer.delete_before(SEGMENT)
    assert disk.files()[f"{LOG}/spare1"] is first
    writer.fill(SEGMENT + SEGMENT // 2)
    assert disk.files()[f"{LOG}/next"] is first
    writer.fill(2 * SEGMENT + 1)
    assert disk.files()[f"{LOG}/{2 * SEGMENT:020}"] is first
    assert writer.following.reused_count == 1
    assert b"good" not in first.disk[512:]
    writer.store.close()
    assert Writer(disk).store.recovery.clean


@pytest.mark.parametrize("spares", [0, 1, 2])
def test_only_so_many_files_are_kept(spares: int) -> None:
    files = MemoryFiles()
    writer = Writer(files, replace(SETTINGS, spare_segments_max=spares))
    writer.fill(4 * SEGMENT + 1)
    writer.delete_before(4 * SEGMENT)
    stored = [name for name in files.list(LOG) if name.startswith("spare")]
    assert stored == ["spare1", "spare2"][:spares]
    assert writer.store.drop_spares() == spares * SEGMENT
    assert not [name for name in files.list(LOG) if name.startswith("spare")]


def test_a_file_that_somebody_reads_is_removed_and_not_used_again() -> None:
    """A reader that is late gets what it came for, not zeros."""
    files = MemoryFiles()
    writer = Writer(files)
    offset = writer.put(b"read me")
    writer.fill(2 * SEGMENT + 1)
    segment = writer.store._segments.at(offset)
    assert segment is not None
    assert segment.enter()
    writer.delete_before(2 * SEGMENT)
    assert [name for name in files.list(LOG) if name.startswith("spare")] == ["spare1"]
    assert writer.store._segments.at(SEGMENT) is None
    writer.fill(3 * SEGMENT + 1)
    assert writer.following.reused_count == 1
    assert b"read me" in files.pread(segment.handle, SEGMENT, 0)
    segment.leave()


def test_another_size_of_segments_makes_spares_useless() -> None:
    files = MemoryFiles()
    writer = Writer(files)
    writer.fill(SEGMENT + 1)
    writer.delete_before(SEGMENT)
    writer.store.close()
    larger = Writer(files, replace(SETTINGS, segment_bytes=2 * SEGMENT))
    larger.fill(4 * SEGMENT)
    assert larger.following.reused_count == 0
    assert "spare1" not in files.list(LOG)


def test_a_start_that_wants_no_spares_removes_them_and_says_so() -> None:
    files = MemoryFiles()
    writer = Writer(files)
    writer.fill(SEGMENT + 1)
    writer.delete_before(SEGMENT)
    writer.store.close()
    assert "spare1" in files.list(LOG)
    again = Writer(files, replace(SETTINGS, segments_zeroed=False))
    assert "spare1" not in files.list(LOG)
    assert any("spare1" in removed for removed in again.store.recovery.removed)
    assert again.store.recovery.strays == ()


def test_spares_go_when_there_is_no_room_for_a_new_file() -> None:
    """The log is quicker than the zeros, and the disk is full: the spare's room is had."""
    files = FailingFiles(MemoryFiles())
    writer = Writer(files)
    writer.fill(SEGMENT + 1)
    writer.delete_before(SEGMENT)
    assert "spare1" in files.list(LOG)
    files.fail("preallocate", errno.ENOSPC)
    writer.fill(2 * SEGMENT + 1, flush=False)
    assert "spare1" not in files.list(LOG)
    assert writer.end > 2 * SEGMENT


def test_a_failed_sync_of_zeros_is_final() -> None:
    """Nobody knows what is on that disk any more."""
    files = FailingFiles(MemoryFiles())
    writer = Writer(files)
    writer.fill(SEGMENT // 8)
    files.fail("fdatasync", errno.EIO, after=1)  # the first is the log's
    with pytest.raises(StoreError):
        writer.fill(SEGMENT // 2)


def _whole(writer: Writer) -> None:
    writer.fill(2 * SEGMENT - 300)


def _in_part(writer: Writer) -> None:
    writer.fill(SEGMENT + SEGMENT // 2)
    writer.fill(2 * SEGMENT - 300, flush=False)


def _late(writer: Writer) -> None:
    writer.fill(2 * SEGMENT - 300, flush=False)


@pytest.mark.parametrize("wipe", [_whole, _in_part, _late])
def test_a_forgery_in_an_old_body_is_never_believed(wipe: Callable[[Writer], None]) -> None:
    """The body of a deleted message has sound records for the very places that come behind the
    log's end in the segment that its file may become. Power is cut at every change of the disk from
    the deletion on, in every way."""
    random = Random(20)
    disk = Disk()
    writer = Writer(disk)
    body, offset = body_with_forgeries(writer.end, 2 * SEGMENT)
    start = writer.put(body)
    file = disk.files()[f"{LOG}/{0:020}"]
    assert walking.check_record(bytes(file.data), offset, SEGMENT, 2 * SEGMENT + offset) == 0
    assert start < SEGMENT // 2 < offset
    writer.fill(SEGMENT + 1)
    states = 0

    def look() -> None:
        nonlocal states
        states += check_after_power_cuts(disk, SETTINGS, random)

    disk.on_change = look
    writer.delete_before(SEGMENT)
    wipe(writer)
    assert writer.end < 2 * SEGMENT
    writer.put(bytes(offset - OVERHEAD))  # does not fit: a new segment, whose end is the forgery's
    assert writer.end == 2 * SEGMENT + offset
    writer.put()
    if wipe is _whole:
        disk.on_change = None
    writer.fill(3 * SEGMENT + 1)
    assert states > 250
    assert writer.following.reused_count == 1  # in this segment, or in the next one


def test_an_unfinished_file_is_a_spare_again() -> None:
    """It is wiped from its beginning when its turn comes again."""
    disk = Disk()
    writer = Writer(disk)
    writer.fill(SEGMENT + 1)
    first = disk.files()[f"{LOG}/{0:020}"]
    writer.delete_before(SEGMENT)
    _in_part(writer)
    writer.fill(2 * SEGMENT + 1, flush=False)
    assert disk.files()[f"{LOG}/spare1"] is first
    assert disk.files()[f"{LOG}/{2 * SEGMENT:020}"] is not first
    writer.flush()
    writer.fill(3 * SEGMENT + 1)
    assert disk.files()[f"{LOG}/{3 * SEGMENT:020}"] is first


def test_the_goal_follows_the_log() -> None:
    """Between an eighth and seven eighths the zeros run ahead of the log, then they are done."""
    following = NextSegment(
        directory=LOG, files=MemoryFiles(), segment_bytes=1 << 30, failure=FailureLatch(),
        zeroed=True, zeroed_sync_bytes_max=1 << 20, spares_max=0,
    )  # fmt: skip
    size = 1 << 30
    assert following.goal(size // 8, size) == -1
    assert following.goal(size // 8 + 6, size) == (1 << 20) + 8
    assert following.goal(size // 2, size) == size // 2 + (1 << 20)
    assert following.goal(size * 7 // 8, size) == size
    assert following.goal(size, size) == size


class Watched(WrappedFiles):
    """Notes the calls, and calls back in a sync of the directory, or before that of a file."""

    def __init__(self, files: Files) -> None:
        super().__init__(files)
        self.calls: list[str] = []
        self.in_sync_directory: Callable[[], object] = lambda: None
        self.before_fdatasync: Callable[[], object] = lambda: None

    def fdatasync(self, handle: int) -> None:
        self.before_fdatasync()
        super().fdatasync(handle)

    def pwritev(self, handle: int, buffers: Sequence[Buffer], position: int) -> None:
        self.calls.append("pwritev")
        super().pwritev(handle, buffers, position)

    def rename(self, path: str, new_path: str) -> None:
        self.calls.append("rename")
        super().rename(path, new_path)

    def sync_directory(self, path: str) -> None:
        self.calls.append("sync_directory")
        super().sync_directory(path)
        self.in_sync_directory()


def following_with_a_spare(files: Files) -> NextSegment:
    """One spare, full of old bytes, waits to be used again."""
    for path in ("/data", DIRECTORY, LOG):
        files.make_directory(path)
    handle = files.open(f"{LOG}/old", create=True)
    files.pwritev(handle, (b"o" * SEGMENT,), 0)
    files.fdatasync(handle)
    files.close(handle)
    following = NextSegment(
        directory=LOG, files=files, segment_bytes=SEGMENT, failure=FailureLatch(),
        zeroed=True, zeroed_sync_bytes_max=1 << 20, spares_max=1,
    )  # fmt: skip
    assert following.keep(f"{LOG}/old", SEGMENT)
    files.sync_directory(LOG)
    return following


@pytest.mark.parametrize("steps", range(12))
def test_what_is_taken_has_no_old_byte_on_the_disk(steps: int) -> None:
    """However far the zeros have come: a file begins a segment when all of it is zero, and synced;
    or it does not."""
    disk = Disk()
    following = following_with_a_spare(disk)
    for _ in range(steps):
        following.work(SEGMENT, SEGMENT)
    following.take(f"{LOG}/{0:020}")
    taken = disk.files()[f"{LOG}/{0:020}"]
    assert taken.disk in (b"", bytes(SEGMENT))  # a new file's size is synced with its records
    assert taken.data == bytes(SEGMENT)
    assert following.reused_count == (steps >= 8)
    assert (f"{LOG}/spare1" in disk.files()) == (steps < 8)


def test_a_spare_has_its_new_name_on_the_disk_before_it_is_written_to() -> None:
    """Else a crash could leave it under both names: in the log, and to be overwritten."""
    files = Watched(MemoryFiles())
    following = following_with_a_spare(files)
    files.calls.clear()
    while following.work(SEGMENT, SEGMENT):
        pass
    assert files.calls[:3] == ["rename", "sync_directory", "pwritev"]


def test_a_spare_that_can_not_be_taken_now_is_not_kept_open() -> None:
    """Each attempt would use up a descriptor, as long as the disk is full."""
    disk = Disk()
    files = FailingFiles(disk)
    following = following_with_a_spare(files)
    files.fail("rename", errno.ENOSPC, count=3)
    for _ in range(3):
        with pytest.raises(StorageFull):
            following.work(SEGMENT, SEGMENT)
    assert disk.open_count == 0
    while following.work(SEGMENT, SEGMENT):
        pass
    following.take(f"{LOG}/{0:020}")
    assert following.reused_count == 1


def test_zeros_that_are_not_synced_do_not_count() -> None:
    """The log takes the file just when the last slice is written, and not on the disk yet."""
    disk = Disk()
    files = Watched(disk)
    following = following_with_a_spare(files)
    for _ in range(7):
        following.work(SEGMENT, SEGMENT)
    path = f"{LOG}/{0:020}"
    files.before_fdatasync = lambda: following.take(path)
    following.work(SEGMENT, SEGMENT)
    assert following.zeroed_bytes == SEGMENT
    assert following.reused_count == 0
    assert b"o" not in disk.files()[path].disk


def test_zeros_do_not_meet_what_the_log_wrote() -> None:
    """The log takes the file just when the thread is about to write to it."""
    memory = MemoryFiles()
    files = Watched(memory)
    following = following_with_a_spare(files)
    following.drop_spares()
    path = f"{LOG}/{0:020}"

    def take() -> None:
        files.in_sync_directory = lambda: None
        memory.pwritev(following.take(path), (b"a record",), 0)

    files.in_sync_directory = take
    following.work(SEGMENT, SEGMENT)
    assert memory.read(path).startswith(b"a record")
    while following.work(SEGMENT, SEGMENT):
        pass
    assert memory.read(path).startswith(b"a record")
    assert memory.read(f"{LOG}/next") == bytes(SEGMENT)
