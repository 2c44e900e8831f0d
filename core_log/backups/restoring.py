"""Restoring a backup: a new store with everything before the backup's position.

Theory. The log alone is a whole store: recovery makes the indexes again, and a start folds the
state. So restoring copies segments, checked and hashed, into a directory beside the store's later
one (`restoring`), opens the store there once, and renames it. A crash leaves `restoring`, with
which no server starts, or the whole store.

The opening begins a new *term*. The store that the backup is of may have gone on, and has other
records behind the position; its followers have them, too. Epochs tell the two apart: a follower
that has more than the backup does not follow by itself, and another master gives way to the higher
term as soon as it hears of it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable

from polymq.core_log.backups.files import (
    LOST_NAME,
    RESTORING_NAME,
    SEGMENTS_NAME,
    BackupBusy,
    BackupDamaged,
    BackupFiles,
    BackupRefused,
    TargetFailed,
    failed,
)
from polymq.core_log.backups.manifest import Manifest
from polymq.core_log.backups.segments import Pace, copy_segment
from polymq.core_log.errors import StoreError, StoreRefused
from polymq.core_log.files import Files, make_directories
from polymq.core_log.recovery import LOCK_NAME, LOG_NAME
from polymq.core_log.settings import StoreSettings
from polymq.core_log.store import Store, take_lock

NOTHING_KNOWN = (0, "")


def restore(
    directory: str,
    manifest: Manifest,
    data_directory: str,
    store_name: str,
    *,
    files: Files,
    settings: StoreSettings,
    clock_ms: Callable[[], int],
    pace: Pace,
) -> int:
    """Make a store of a backup.

    Args:
        directory: the backup directory.
        data_directory: has to be empty or absent, but for an interrupted restore.
        store_name: what the store is called in it.
        files: the way to the new store.
        settings: of the new store.

    Returns:
        The epoch that the new store begins with.

    Raises:
        BackupRefused: the data directory is in use, or not empty.
        BackupDamaged, TargetFailed: there is no store; what was copied is removed.
    """
    made = _check_is_empty(files, data_directory)
    staging = f"{data_directory}/{RESTORING_NAME}"
    try:
        make_directories(files, os.path.abspath(staging))
        lock = take_lock(files, staging)
    except OSError as error:
        raise failed(data_directory, error) from error
    except StoreRefused as error:
        if "is in use" in str(error):
            raise BackupBusy(f"{data_directory} is in use: another restore goes on there") from None
        raise TargetFailed(str(error)) from error
    try:
        try:
            _clear(staging)
            _make_log(files, staging)
            _copy_all(directory, manifest, staging, pace)
        finally:
            files.close(lock)
        epoch = _open_once(directory, manifest, staging, files, settings, clock_ms)
        try:
            files.rename(staging, f"{data_directory}/{store_name}")
            files.sync_directory(data_directory)
        except OSError as error:
            raise failed(data_directory, error) from error
    except (StoreError, OSError):
        shutil.rmtree(staging, ignore_errors=True)
        if made:
            files.remove_directory(data_directory)
        raise
    return epoch


def _check_is_empty(files: Files, directory: str) -> bool:
    """Whether the data directory has to be made. Raises BackupRefused, TargetFailed."""
    if os.path.islink(directory):
        raise BackupRefused(f"{directory} is a symbolic link: name the directory itself")
    try:
        names = {*files.list(directory)}
    except OSError as error:
        raise failed(directory, error) from error
    if names - {RESTORING_NAME, LOST_NAME}:
        raise BackupRefused(f"{directory} is not empty: restore into a new or empty directory")
    return not os.path.isdir(directory)


def _clear(staging: str) -> None:
    """Remove what an interrupted restore has copied. Raises TargetFailed."""
    try:
        for entry in os.scandir(staging):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            elif entry.name != LOCK_NAME:
                os.unlink(entry.path)
    except OSError as error:
        raise failed(staging, error) from error


def _make_log(files: Files, staging: str) -> None:
    """Make the directory of the segments. Raises TargetFailed."""
    try:
        files.make_directory(f"{staging}/{LOG_NAME}")
    except OSError as error:
        raise failed(staging, error) from error


def _copy_all(directory: str, manifest: Manifest, staging: str, pace: Pace) -> None:
    """Copy what the manifest speaks of. Raises BackupDamaged, TargetFailed."""
    files = BackupFiles()
    for part in manifest.parts:
        source = f"{directory}/{SEGMENTS_NAME}/{part.name}"
        digest, _ = copy_segment(
            files,
            source,
            f"{staging}/{LOG_NAME}/{part.name}",
            start=part.start,
            length=part.length,
            closed=manifest.is_closed(part),
            known=NOTHING_KNOWN,
            from_backup=True,
            pace=pace,
        )
        if digest != part.sha256:
            end = part.start + part.length
            raise BackupDamaged(source, f"its SHA-256 up to position {end} is wrong")


def _open_once(
    directory: str,
    manifest: Manifest,
    staging: str,
    files: Files,
    settings: StoreSettings,
    clock_ms: Callable[[], int],
) -> int:
    """Open the store, which makes its indexes and begins a term; returns the epoch. Raises
    BackupDamaged, StoreError, TargetFailed."""
    store = Store.open(staging, files=files, clock_ms=clock_ms, settings=settings, above_term=0)
    try:
        if store.recovery.end != manifest.position:
            raise BackupDamaged(
                f"{directory}/{SEGMENTS_NAME}",
                f"the log ends at {store.recovery.end}, not at {manifest.position}"
                f" ({store.recovery.cut_reason})",
            )
    finally:
        store.close()
    return store.epoch
