"""Backups: what was flushed comes back, later backups copy what is new, and damage is found."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from polymq.core_log.backups import files as backup_files
from polymq.core_log.backups.checking import Verified, verify
from polymq.core_log.backups.files import (
    BackupBusy,
    BackupDamaged,
    BackupError,
    BackupFiles,
    BackupRefused,
    SourceDamaged,
    TargetFailed,
)
from polymq.core_log.backups.manifest import Manifest, encode_manifest, write_manifest
from polymq.core_log.backups.restoring import restore
from polymq.core_log.backups.taking import Source, changing, list_backups, prune, take_backup
from polymq.core_log.cutting import cut_log
from polymq.core_log.epochs import TERM_EPOCHS
from polymq.core_log.files import Buffer, RealFiles
from tests.harness.files import Chooser, MemoryFiles
from tests.harness.stores import DIRECTORY, TINY, Bench, numbered

SEGMENT = TINY.segment_bytes
STORE_ID = "51"
IN_MEMORY = "/backup"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """An open store with four segments."""
    made = opened(tmp_path / "data" / "store")
    made.publish(numbered(0, 50))
    made.flush()
    yield made
    made.store.close()


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "backup"


def opened(directory: Path, sent: Sequence[bytes] = ()) -> Bench:
    directory.parent.mkdir(parents=True, exist_ok=True)
    return Bench(RealFiles(), directory=str(directory), sent=sent)


def source_of(bench: Bench, directory: Path, store: str = STORE_ID) -> Source:
    opened_store = bench.store
    return Source(
        store=store,
        log=str(directory / "commitlog"),
        position=opened_store.log.flushed,
        segments=opened_store.segments(),
        epochs=[(e, start, opened_store.epoch_mark(e, start)) for e, start in opened_store.epochs],
    )


def take(
    bench: Bench,
    target: Path,
    *,
    store: str = STORE_ID,
    needs: Callable[[int], None] = lambda _: None,
    files: BackupFiles | None = None,
) -> Manifest:
    data = target.parent / "data" / "store"
    return take_backup(
        files or BackupFiles(),
        str(target),
        source_of(bench, data, store),
        clock_ms=lambda: 1,
        needs=needs,
        pace=lambda _: None,
    )


def restored(
    target: Path, manifest: Manifest, data: Path, pace: Callable[[int], None] = lambda _: None
) -> int:
    return restore(
        str(target),
        manifest,
        str(data),
        "store",
        files=RealFiles(),
        settings=TINY,
        clock_ms=lambda: 5,
        pace=pace,
    )


def checked(target: Path) -> Verified:
    return verify(BackupFiles(), str(target), pace=lambda _: None)


def check_restored(target: Path, manifest: Manifest, data: Path, bodies: list[bytes]) -> None:
    """Restore, and compare all queues of the store with what was sent."""
    restored(target, manifest, data)
    assert os.listdir(data) == ["store"]
    found = opened(data / "store")
    assert found.store.recovery.clean
    assert found.store.epoch == TERM_EPOCHS + 1  # the restore and this opening
    term, began = found.store.epochs[-2]
    assert term == TERM_EPOCHS
    assert manifest.position <= began < manifest.position + SEGMENT  # behind a blank record, maybe
    assert found.bodies() == found.bodies(2) == found.bodies(3) == bodies
    assert found.own.end_offset == len(bodies)
    found.store.close()


def position_of(bench: Bench, offset: int) -> int:
    entry = bench.own.read_hot(offset, 1) or bench.own.read_cold(offset, 1)
    return int.from_bytes(entry[:8], "big")


def segment_sizes(target: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in (target / "segments").iterdir()}


def test_everything_that_was_flushed_comes_back(bench: Bench, target: Path) -> None:
    bench.publish_atomic(numbered(50, 5))
    bench.flush()
    sent = list(bench.sent)
    manifest = take(bench, target)
    assert manifest.position == bench.store.log.flushed
    bench.publish(numbered(55, 5))
    bench.flush()
    check_restored(target, manifest, target.parent / "other", sent)


def test_what_is_not_flushed_is_not_in_it(bench: Bench, target: Path) -> None:
    sent = list(bench.sent)
    bench.publish(numbered(50, 1))
    bench.store.log.write()
    manifest = take(bench, target)
    check_restored(target, manifest, target.parent / "other", sent)


def test_a_backup_at_the_beginning_of_a_segment(bench: Bench, target: Path) -> None:
    """The next segment is there, and nothing of it is in the backup."""
    sent = list(bench.sent)
    source = source_of(bench, target.parent / "data" / "store")
    start = source.segments[-1][0]
    count = sum(position_of(bench, offset) < start for offset in range(len(sent)))
    assert 0 < count < len(sent)
    manifest = take_backup(
        BackupFiles(),
        str(target),
        replace(source, position=start),
        clock_ms=lambda: 1,
        needs=lambda _: None,
        pace=lambda _: None,
    )
    assert manifest.parts[-1].length == 0
    assert checked(target).damage == ()
    check_restored(target, manifest, target.parent / "other", sent[:count])


def test_a_later_backup_copies_what_is_new_and_both_can_be_restored(
    bench: Bench, target: Path
) -> None:
    first = take(bench, target)
    assert first.copied_bytes == first.position
    sent = list(bench.sent)
    inodes = {path.name: path.stat().st_ino for path in (target / "segments").iterdir()}
    bench.publish(numbered(50, 30))
    bench.flush()
    second = take(bench, target)
    assert second.copied_bytes == second.position - first.position
    assert {path.name: path.stat().st_ino for path in (target / "segments").iterdir()}.items() >= (
        inodes.items()
    )
    assert list_backups(BackupFiles(), str(target)) == [first, second]
    assert take(bench, target).copied_bytes == 0
    assert len(list_backups(BackupFiles(), str(target))) == 2
    check_restored(target, first, target.parent / "first", sent)
    check_restored(target, second, target.parent / "second", list(bench.sent))


def test_a_backup_keeps_what_the_source_has_deleted(bench: Bench, target: Path) -> None:
    first = take(bench, target)
    sent = list(bench.sent)
    bench.publish(numbered(50, 30))
    bench.flush()
    bench.checkpoint()
    bench.store.retire(2 * SEGMENT)
    bench.store.discard()
    second = take(bench, target)
    assert (first.start, second.start) == (0, 2 * SEGMENT)
    assert checked(target).damage == ()
    check_restored(target, first, target.parent / "first", sent)
    restored(target, second, target.parent / "second")
    removed, freed = prune(BackupFiles(), str(target), 1)
    assert removed == [first]
    assert freed == 2 * SEGMENT
    assert min(map(int, segment_sizes(target))) == 2 * SEGMENT
    assert checked(target).damage == ()


def test_pruning_leaves_what_the_others_need(bench: Bench, target: Path) -> None:
    manifests = []
    for number in range(50, 80, 10):
        manifests.append(take(bench, target))
        bench.publish(numbered(number, 10))
        bench.flush()
    before = segment_sizes(target)
    removed, freed = prune(BackupFiles(), str(target), 2)
    assert (removed, freed) == (manifests[:1], 0)
    assert segment_sizes(target) == before
    assert list_backups(BackupFiles(), str(target)) == manifests[1:]
    assert prune(BackupFiles(), str(target), 2) == ([], 0)
    check_restored(target, manifests[1], target.parent / "r", bench.sent[:60])


# --- damage -----------------------------------------------------------------------------------


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def test_each_flipped_bit_is_found_and_its_file_named(bench: Bench, target: Path) -> None:
    """In every kind of file; in the log also its position, as far as a record shows it."""
    take(bench, target)
    bench.publish(numbered(50, 20))
    bench.flush()
    manifest = take(bench, target)
    assert checked(target).damage == ()
    paths = [path for path in target.rglob("*") if path.is_file() and path.stat().st_size]
    assert {path.parent.name for path in paths} == {"backup", "segments", "manifests"}
    for path in paths:
        for at in range(0, path.stat().st_size, 61):
            flip(path, at)
            damage = checked(target).damage
            assert [text for text in damage if text.startswith(f"{path} is damaged")], (path, at)
            if path.parent.name == "segments":
                with pytest.raises(BackupDamaged, match=path.name):
                    restored(target, manifest, target.parent / "other")
                assert not (target.parent / "other").exists()
            flip(path, at)
    assert checked(target).damage == ()


def test_the_position_of_the_damage_is_named(bench: Bench, target: Path) -> None:
    take(bench, target)
    position = position_of(bench, 30)
    path = target / "segments" / f"{position // SEGMENT * SEGMENT:020d}"
    flip(path, position % SEGMENT + 100)
    assert checked(target).damage == (
        f"{path} is damaged: record at {position}: its checksum is wrong",
    )


@pytest.mark.parametrize("size", [0, 1000])
def test_a_file_that_is_cut_or_missing_is_found(bench: Bench, target: Path, size: int) -> None:
    manifest = take(bench, target)
    path = target / "segments" / f"{SEGMENT:020d}"
    data = path.read_bytes()
    path.write_bytes(data[:size])
    assert [text for text in checked(target).damage if text.startswith(f"{path} is damaged")]
    path.unlink()
    assert checked(target).damage == (f"{path} is damaged: it is missing",)
    with pytest.raises(BackupDamaged, match="missing"):
        restored(target, manifest, target.parent / "other")
    with pytest.raises(BackupDamaged, match="missing"):
        take(bench, target)


def test_a_file_that_is_to_grow_is_looked_at_first(bench: Bench, target: Path) -> None:
    """What an earlier backup has would be taken for sound by the next one."""
    first = take(bench, target)
    flip(target / "segments" / first.parts[-1].name, 50)
    bench.publish(numbered(50, 1))
    bench.flush()
    with pytest.raises(BackupDamaged, match=first.parts[-1].name):
        take(bench, target)
    assert list_backups(BackupFiles(), str(target)) == [first]


def test_a_file_that_is_to_grow_has_to_be_the_manifests(bench: Bench, target: Path) -> None:
    """Its records may be sound, and not those that were copied."""
    first = take(bench, target)
    parts = (*first.parts[:-1], replace(first.parts[-1], sha256="0" * 64))
    write_manifest(BackupFiles(), str(target), replace(first, parts=parts))
    bench.publish(numbered(50, 1))
    bench.flush()
    with pytest.raises(BackupDamaged, match=first.parts[-1].name):
        take(bench, target)


def test_a_damaged_source_gives_no_backup(bench: Bench, target: Path) -> None:
    position = position_of(bench, 30)
    path = target.parent / "data/store/commitlog" / f"{position // SEGMENT * SEGMENT:020d}"
    flip(path, position % SEGMENT + 100)
    with pytest.raises(SourceDamaged, match="its checksum is wrong"):
        take(bench, target)
    assert list_backups(BackupFiles(), str(target)) == []


def test_a_damaged_manifest_stops_what_would_delete(bench: Bench, target: Path) -> None:
    first = take(bench, target)
    bench.publish(numbered(50, 30))
    bench.flush()
    take(bench, target)
    before = segment_sizes(target)
    flip(target / "manifests" / first.name, 200)
    for change in (lambda: prune(BackupFiles(), str(target), 1), lambda: take(bench, target)):
        with pytest.raises(BackupDamaged, match=first.name):
            change()
    assert segment_sizes(target) == before


@pytest.mark.parametrize(
    "change",
    [
        {"position": "1"},
        {"position": -1},
        {"store": 5},
        {"epoch": 1 << 70},
        {"parts": None},
        {"parts": []},
        {"parts": [{"start": 0, "length": "../../x", "sha256": ""}]},
        {"parts": [{"start": 8, "length": 4, "sha256": ""}]},
        {"more": 1},
    ],
    ids=str,
)
def test_a_manifest_that_somebody_made_is_refused(
    bench: Bench, target: Path, change: dict[str, object]
) -> None:
    """Its checksum is right, and what it says cannot be."""
    manifest = take(bench, target)
    value = encode_manifest(manifest) | change
    (target / "manifests" / manifest.name).write_bytes(backup_files.encode_document(value))
    with pytest.raises(BackupDamaged, match=manifest.name):
        list_backups(BackupFiles(), str(target))


# --- interruptions ----------------------------------------------------------------------------


class Stopped(BaseException):
    """The process ends here."""


def test_an_interrupted_backup_is_not_listed_and_gone_on_with(bench: Bench, target: Path) -> None:
    def needs(position: int) -> None:
        if position >= 2 * SEGMENT:
            raise Stopped

    with pytest.raises(Stopped):
        take(bench, target, needs=needs)
    assert list_backups(BackupFiles(), str(target)) == []
    assert checked(target) == Verified(manifests=(), damage=(), checked_bytes=0)
    manifest = take(bench, target)
    assert manifest.copied_bytes == manifest.position - 2 * SEGMENT
    assert not (target / "unfinished.json").exists()
    check_restored(target, manifest, target.parent / "other", list(bench.sent))


class DyingFiles(BackupFiles):
    """Ends the process at the n-th call that changes something."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.left = calls

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Stopped

    def pwritev(self, handle: int, buffers: Sequence[Buffer], position: int) -> None:
        self._count()
        super().pwritev(handle, buffers, position)

    def truncate(self, handle: int, size: int) -> None:
        self._count()
        super().truncate(handle, size)

    def rename(self, path: str, new_path: str) -> None:
        self._count()
        super().rename(path, new_path)

    def unlink(self, path: str) -> None:
        self._count()
        super().unlink(path)

    def make_directory(self, path: str) -> bool:
        self._count()
        return super().make_directory(path)


def test_a_backup_killed_at_any_call_leaves_what_was_there(bench: Bench, target: Path) -> None:
    first = take(bench, target)
    sent = list(bench.sent)
    bench.publish(numbered(50, 30))
    bench.flush()
    saved = target.parent / "saved"
    shutil.copytree(target, saved)
    calls = 0
    while True:
        shutil.rmtree(target)
        shutil.copytree(saved, target)
        try:
            take(bench, target, files=DyingFiles(calls))
        except Stopped:
            calls += 1
        else:
            break
        found = list_backups(BackupFiles(), str(target))
        assert found[0] == first
        assert checked(target).damage == ()
        again = take(bench, target)
        assert list_backups(BackupFiles(), str(target)) == [first, again]
        assert checked(target).damage == ()
    assert calls > 8
    check_restored(target, first, target.parent / "first", sent)


def test_a_first_backup_killed_at_any_call_can_be_taken_again(bench: Bench, target: Path) -> None:
    calls = 0
    while True:
        try:
            take(bench, target, files=DyingFiles(calls))
        except Stopped:
            calls += 1
        else:
            break
        take(bench, target)
        assert checked(target).damage == ()
        shutil.rmtree(target)
    assert calls > 10


@pytest.mark.parametrize("likely", [0.0, 0.5, 1.1])
def test_a_power_cut_at_any_call_leaves_whole_backups(likely: float) -> None:
    """Whatever of it reached the disk: what is listed is sound, and the first backup stays."""
    chance = Chooser(Random(1), likely=likely)
    step = 0
    while True:
        files = MemoryFiles()
        bench = Bench(files)
        bench.publish(numbered(0, 20))
        bench.flush()
        first = take_in_memory(files, bench)
        bench.publish(numbered(20, 30))
        bench.flush()
        files.cut_power_after(step)
        try:
            take_in_memory(files, bench)
        except (BackupError, OSError):
            is_done = False
        else:
            is_done = True
        left = files.after_crash(chance)
        found = list_backups(left, IN_MEMORY)
        assert found[0] == first
        assert len(found) <= 2
        verified = verify(left, IN_MEMORY, pace=lambda _: None)
        assert [text for text in verified.damage if "unfinished" not in text] == []
        if is_done:
            assert len(found) == 2
            break
        step += 1
    assert step > 15


def take_in_memory(files: MemoryFiles, bench: Bench) -> Manifest:
    return take_backup(
        files,
        IN_MEMORY,
        source_of(bench, Path(DIRECTORY)),
        clock_ms=lambda: 1,
        needs=lambda _: None,
        pace=lambda _: None,
    )


def test_an_interrupted_restore_is_done_again(bench: Bench, target: Path) -> None:
    manifest = take(bench, target)
    data = target.parent / "other"
    total = 0

    def pace(count: int) -> None:
        nonlocal total
        total += count
        if total > SEGMENT:
            raise Stopped

    with pytest.raises(Stopped):
        restored(target, manifest, data, pace)
    assert os.listdir(data) == [backup_files.RESTORING_NAME]
    check_restored(target, manifest, data, list(bench.sent))


# --- directories that do not fit ----------------------------------------------------------------


def test_another_store_is_refused(bench: Bench, target: Path) -> None:
    take(bench, target)
    with pytest.raises(BackupRefused, match="another store"):
        take(bench, target, store="52")


def test_a_store_that_has_gone_back_in_time_is_refused(bench: Bench, target: Path) -> None:
    """The same positions have other records then, though the identity is the same."""
    manifest = take(bench, target)
    bench.store.close()
    data = target.parent / "data" / "store"
    cut_log(RealFiles(), str(data), int.from_bytes(bench.own.read_cold(20, 1)[:8], "big"))
    back = opened(data)
    back.publish(numbered(100, 50))
    back.flush()
    assert back.store.log.flushed > manifest.position
    with pytest.raises(BackupRefused, match="does not go on from"):
        take(back, target)
    back.store.close()


def test_the_copy_of_a_store_goes_another_way(bench: Bench, target: Path) -> None:
    """A data directory was copied, and both go on: the epochs have the same number there."""
    copied = target.parent / "copied"
    bench.store.close()
    shutil.copytree(target.parent / "data" / "store", copied)
    one, two = opened(target.parent / "data" / "store"), opened(copied)
    two.now_ms += 7
    two.store.close()
    two = opened(copied)
    for each in (one, two):
        each.publish(numbered(100, 5))
        each.flush()
    take(one, target)
    with pytest.raises(BackupRefused, match="does not go on from"):
        take_backup(
            BackupFiles(),
            str(target),
            source_of(two, copied),
            clock_ms=lambda: 1,
            needs=lambda _: None,
            pace=lambda _: None,
        )
    one.store.close()
    two.store.close()


def test_directories_of_other_kinds_are_refused(bench: Bench, target: Path) -> None:
    target.mkdir()
    (target / "thesis.txt").write_text("mine")
    with pytest.raises(BackupRefused, match="not empty"):
        take(bench, target)
    assert os.listdir(target) == ["thesis.txt"]
    link = target.parent / "link"
    link.symlink_to(target.parent / "elsewhere")
    with pytest.raises(BackupRefused, match="symbolic link"):
        take(bench, link)
    (target.parent / "file").write_text("")
    with pytest.raises(TargetFailed, match="Not a directory"):
        take(bench, target.parent / "file")
    with pytest.raises(BackupRefused, match="no backup directory"):
        prune(BackupFiles(), str(target), 1)
    with pytest.raises(BackupRefused, match="no backup directory"):
        checked(target)


def test_a_link_in_place_of_a_file_is_not_followed(bench: Bench, target: Path) -> None:
    first = take(bench, target)
    path = target / "segments" / first.parts[-1].name
    path.rename(target.parent / "moved")
    path.symlink_to(target.parent / "moved")
    bench.publish(numbered(50, 1))
    bench.flush()
    with pytest.raises(TargetFailed, match="symbolic link"):
        take(bench, target)


def test_one_command_at_a_time_changes_a_directory(bench: Bench, target: Path) -> None:
    take(bench, target)
    with changing(BackupFiles(), str(target)):
        for change in (lambda: prune(BackupFiles(), str(target), 1), lambda: take(bench, target)):
            with pytest.raises(BackupBusy):
                change()
    take(bench, target)


class FullFiles(BackupFiles):
    """A disk with room for a few bytes only."""

    def pwritev(self, handle: int, buffers: Sequence[Buffer], position: int) -> None:
        if sum(map(len, buffers)) > 400:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().pwritev(handle, buffers, position)


def test_a_full_disk_is_said_and_the_earlier_backups_stay(bench: Bench, target: Path) -> None:
    first = take(bench, target)
    bench.publish(numbered(50, 30))
    bench.flush()
    with pytest.raises(TargetFailed, match="No space left"):
        take(bench, target, files=FullFiles())
    assert list_backups(BackupFiles(), str(target)) == [first]
    assert checked(target).damage == ()


def test_a_store_is_restored_into_an_empty_directory_only(bench: Bench, target: Path) -> None:
    manifest = take(bench, target)
    data = target.parent / "data"
    with pytest.raises(BackupRefused, match="not empty"):
        restored(target, manifest, data)
    (target.parent / "link").symlink_to(target.parent / "elsewhere")
    with pytest.raises(BackupRefused, match="symbolic link"):
        restored(target, manifest, target.parent / "link")
    (target.parent / "empty").mkdir()
    check_restored(target, manifest, target.parent / "empty", list(bench.sent))


def test_nobody_else_can_read_a_backup(bench: Bench, target: Path) -> None:
    umask = os.umask(0)
    try:
        manifest = take(bench, target)
        restored(target, manifest, target.parent / "other")
    finally:
        os.umask(umask)
    found = [*target.rglob("*"), target, *(target.parent / "other").rglob("*")]
    assert [path for path in found if path.stat().st_mode & 0o077] == []
