"""Taking a backup: the log as of one position, into a directory that may have earlier backups.

The steps, in order. A crash leaves a directory with the backups that it had; the next backup goes
on with what was copied.

    1. Lock        nobody else changes the directory meanwhile
    2. Compare     the directory belongs to this store, and to this past of it
    3. Copy        what the directory lacks of each segment, oldest first, checked and hashed; after
                   each segment `unfinished.json` says so
    4. Names       of new files are synced
    5. Manifest    written last, by a rename: from then on the backup is there
    6. Leftovers   files that no manifest needs

Rules:

* Bytes that an earlier manifest speaks of are never overwritten.
* What the source says is read once more only where a file grows: then its SHA-256 goes on from the
  bytes that are there, and these are compared with the earlier manifest.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from polymq.core_log.backups.files import (
    LOST_NAME,
    MANIFESTS_NAME,
    SEGMENTS_NAME,
    STORE_NAME,
    TARGET_LOCK_NAME,
    UNFINISHED_NAME,
    BackupBusy,
    BackupDamaged,
    BackupRefused,
    TargetFailed,
    failed,
    read_document,
    write_document,
)
from polymq.core_log.backups.manifest import (
    MANIFESTS_MAX,
    Manifest,
    Part,
    encode_manifest,
    longest_parts,
    manifest_names,
    read_manifest,
    read_manifests,
    read_unfinished,
    write_manifest,
)
from polymq.core_log.backups.segments import Pace, copy_segment
from polymq.core_log.files import Files, make_directories
from polymq.core_log.recovery import is_segment_name
from polymq.core_log.segments import segment_name

NOTHING_KNOWN = (0, "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The log that is copied.

    Attributes:
        store: the identity of the store.
        log: the directory of its segments.
        position: everything before it is on the disk, and stays until the copy is made.
        segments: (start, end) of the files that hold it, oldest first.
        epochs: (number, start, mark) of the living epochs, oldest first; a mark of 0 is not known.
    """

    store: str
    log: str
    position: int
    segments: Sequence[tuple[int, int]]
    epochs: Sequence[tuple[int, int, int]]

    def lengths(self) -> list[tuple[int, int, bool]]:
        """(start, how many bytes count, whether that is all of it) of each segment."""
        return [
            (start, min(end, self.position) - start, end <= self.position)
            for start, end in self.segments
            if start <= self.position
        ]

    def manifest(
        self, position: int, parts: tuple[Part, ...], copied_bytes: int, created_ms: int
    ) -> Manifest:
        """The manifest of a backup of this log, as of a position."""
        before = [epoch for epoch in self.epochs if epoch[1] <= position]
        number, start, mark = before[-1] if before else self.epochs[0]
        return Manifest(
            store=self.store,
            position=position,
            epoch=number,
            epoch_start=start,
            epoch_mark=mark,
            created_ms=created_ms,
            copied_bytes=copied_bytes,
            parts=parts,
        )


def take_backup(
    files: Files,
    directory: str,
    source: Source,
    *,
    clock_ms: Callable[[], int],
    needs: Callable[[int], None],
    pace: Pace,
) -> Manifest:
    """Take a backup.

    Args:
        needs: called again and again with the first position that has still to be read. What it
            raises ends the backup.
        pace: called with numbers of bytes that were read; may wait.

    Raises:
        BackupRefused: nothing was changed.
        BackupDamaged, SourceDamaged, TargetFailed: there is no new backup; earlier ones are as they
            were.
    """
    with changing(files, directory, create=True):
        earlier = _compare(files, directory, source)
        unfinished = read_unfinished(files, directory)
        if unfinished is not None and not _fits(unfinished, source):
            unfinished = None
        known = longest_parts([*earlier, *([unfinished] if unfinished else [])])
        parts: list[Part] = []
        copied_bytes = 0
        for start, length, closed in source.lengths():
            needs(start)
            part, copied = _copy(
                files, directory, source, known.get(start), (start, length, closed), pace, needs
            )
            parts.append(part)
            copied_bytes += copied
            if copied and closed:
                _sync_names(files, f"{directory}/{SEGMENTS_NAME}")
                so_far = source.manifest(start + length, tuple(parts), copied_bytes, clock_ms())
                write_document(files, directory, UNFINISHED_NAME, encode_manifest(so_far))
        _sync_names(files, f"{directory}/{SEGMENTS_NAME}")
        manifest = source.manifest(source.position, tuple(parts), copied_bytes, clock_ms())
        write_manifest(files, directory, manifest)
        remove_unneeded(files, directory, [*earlier, manifest])
        return manifest


@contextmanager
def changing(files: Files, directory: str, *, create: bool = False) -> Iterator[None]:
    """Have the directory for oneself. Raises BackupBusy, BackupRefused, TargetFailed."""
    path = f"{directory}/{TARGET_LOCK_NAME}"
    if os.path.islink(directory):
        raise BackupRefused(f"{directory} is a symbolic link: name the directory itself")
    try:
        if create:
            _make_directories(files, directory)
        handle = files.open(path, create=True)
    except OSError as error:
        raise failed(directory, error) from error
    try:
        if not files.lock(handle):
            raise BackupBusy(f"{directory} is in use: another command is changing it")
        yield
    finally:
        files.close(handle)


def _make_directories(files: Files, directory: str) -> None:
    """Make what a backup directory has. Raises BackupRefused, OSError."""
    names = {*files.list(directory)}
    begun = {TARGET_LOCK_NAME, SEGMENTS_NAME, MANIFESTS_NAME, f"{STORE_NAME}.new", LOST_NAME}
    if STORE_NAME not in names and not names <= begun:
        raise BackupRefused(f"{directory} is not empty, and is no backup directory")
    make_directories(files, os.path.abspath(directory))
    for name in (SEGMENTS_NAME, MANIFESTS_NAME):
        if os.path.islink(f"{directory}/{name}"):
            raise BackupRefused(f"{directory}/{name} is a symbolic link")
        files.make_directory(f"{directory}/{name}")
    files.sync_directory(directory)


def _compare(files: Files, directory: str, source: Source) -> list[Manifest]:
    """The earlier backups, which have to be of this store. Raises BackupRefused, BackupDamaged,
    TargetFailed."""
    value = read_document(files, f"{directory}/{STORE_NAME}")
    earlier = list_backups(files, directory)
    if value is None and not earlier:
        write_document(files, directory, STORE_NAME, {"store": source.store})
    elif value is None:
        raise BackupDamaged(f"{directory}/{STORE_NAME}", "it is missing")
    elif value.get("store") != source.store:
        raise BackupRefused(
            f"{directory} has backups of another store, or of this one before it was restored: use"
            " another directory"
        )
    if len(earlier) >= MANIFESTS_MAX:
        raise BackupRefused(f"{directory} has {len(earlier)} backups: remove some with `prune`")
    for manifest in earlier:
        if not _fits(manifest, source):
            raise BackupRefused(
                f"{directory} has a backup as of position {manifest.position:,} that the log does"
                " not go on from: its end was cut, or the data directory was copied. Use another"
                " directory"
            )
    return earlier


def _fits(manifest: Manifest, source: Source) -> bool:
    return manifest.store == source.store and manifest.is_of_history(source.epochs, source.position)


def _copy(
    files: Files,
    directory: str,
    source: Source,
    known: Part | None,
    wanted: tuple[int, int, bool],
    pace: Pace,
    needs: Callable[[int], None],
) -> tuple[Part, int]:
    """One segment. Returns its part, and how many bytes were copied."""
    start, length, closed = wanted
    path = f"{directory}/{SEGMENTS_NAME}/{segment_name(start)}"
    if known is not None and known.length == length and _size(files, path) >= length:
        return known, 0
    if known is not None and known.length > length:
        raise BackupRefused(f"{directory} has more of the log than position {source.position:,}")

    def paced(count: int) -> None:
        pace(count)
        needs(start)

    digest, copied = copy_segment(
        files,
        f"{source.log}/{segment_name(start)}",
        path,
        start=start,
        length=length,
        closed=closed,
        known=NOTHING_KNOWN if known is None else (known.length, known.sha256),
        pace=paced,
    )
    return Part(start=start, length=length, sha256=digest), copied


def _size(files: Files, path: str) -> int:
    """The size of a file that an earlier manifest needs. Raises BackupDamaged, TargetFailed."""
    try:
        handle = files.open(path)
    except FileNotFoundError:
        raise BackupDamaged(path, "it is missing") from None
    except OSError as error:
        raise failed(path, error) from error
    try:
        return files.size(handle)
    finally:
        files.close(handle)


def _sync_names(files: Files, directory: str) -> None:
    try:
        files.sync_directory(directory)
    except OSError as error:
        raise failed(directory, error) from error


# --- removing ---------------------------------------------------------------------------------


def remove_unneeded(files: Files, directory: str, manifests: Sequence[Manifest]) -> int:
    """Remove what no backup needs. Returns how many bytes that frees. Raises TargetFailed."""
    needed = longest_parts(manifests)
    folder = f"{directory}/{SEGMENTS_NAME}"
    freed = 0
    try:
        for name in files.list(directory):
            if name == UNFINISHED_NAME or name.endswith(".new"):
                files.unlink(f"{directory}/{name}")
        for name in files.list(f"{directory}/{MANIFESTS_NAME}"):
            if name.endswith(".new"):
                files.unlink(f"{directory}/{MANIFESTS_NAME}/{name}")
        for name in files.list(folder):
            if is_segment_name(name) and int(name) not in needed:
                freed += _size(files, f"{folder}/{name}")
                files.unlink(f"{folder}/{name}")
        files.sync_directory(folder)
        files.sync_directory(directory)
    except OSError as error:
        raise failed(directory, error) from error
    return freed


def prune(files: Files, directory: str, count: int) -> tuple[list[Manifest], int]:
    """Remove all backups but the newest `count`, and the files that only they need.

    Returns:
        What was removed, and how many bytes that freed.

    Raises:
        BackupRefused, BackupDamaged (nobody knows what a damaged manifest needs): nothing was
            removed. TargetFailed.
    """
    check_is_backup(files, directory)
    with changing(files, directory):
        found = list_backups(files, directory)
        removed, remaining = found[:-count], found[-count:]
        try:
            for manifest in removed:  # oldest first: what is left is always a whole list
                files.unlink(f"{directory}/{MANIFESTS_NAME}/{manifest.name}")
            files.sync_directory(f"{directory}/{MANIFESTS_NAME}")
        except OSError as error:
            raise failed(directory, error) from error
        return removed, remove_unneeded(files, directory, remaining)


# --- listing ----------------------------------------------------------------------------------


def check_is_backup(files: Files, directory: str) -> str:
    """The identity of the store that a directory has backups of. Raises BackupRefused if it is no
    backup directory, BackupDamaged, TargetFailed."""
    path = f"{directory}/{STORE_NAME}"
    value = read_document(files, path)
    if value is None:
        raise BackupRefused(f"{directory} is no backup directory: there is no {path}")
    store = value.get("store")
    if not isinstance(store, str):
        raise BackupDamaged(path, "it does not name a store")
    return store


def list_backups(files: Files, directory: str) -> list[Manifest]:
    """All backups of a directory, oldest first. Raises BackupDamaged, TargetFailed."""
    try:
        return read_manifests(files, directory)
    except OSError as error:
        raise TargetFailed(f"{directory}: {error.strerror}") from error


def sound_backups(files: Files, directory: str) -> tuple[list[Manifest], list[BackupDamaged]]:
    """The backups of a directory whose manifests can be read, oldest first, and what is wrong with
    the others. Raises TargetFailed."""
    found: list[Manifest] = []
    damaged: list[BackupDamaged] = []
    try:
        for name in manifest_names(files, directory):
            try:
                found.append(read_manifest(files, directory, name))
            except BackupDamaged as error:
                damaged.append(error)
    except OSError as error:
        raise TargetFailed(f"{directory}: {error.strerror}") from error
    return found, damaged
