"""Opening the store of a data directory: with which sizes, and how a program ends that cannot."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from polymq.core_log.backups.files import RESTORING_NAME
from polymq.core_log.errors import StorageFailed, StorageFull, StoreCorrupt, StoreError
from polymq.core_log.files import Files
from polymq.core_log.settings import StoreSettings
from polymq.descriptors import open_files_max, open_segments_max
from polymq.errors import ExitCode, Failure
from polymq.segment_size import segment_bytes_of
from polymq.settings import Settings


def store_settings_of(settings: Settings, files: Files) -> StoreSettings:
    """The sizes of the store. Raises OSError."""
    storage = settings.storage
    return StoreSettings(
        segment_bytes=segment_bytes_of(settings, files),
        segments_zeroed=storage.segments_ahead == "zeros",
        spare_segments_max=storage.spare_segments,
        open_segments_max=open_segments_max(open_files_max()),
        tail_bytes_max=storage.tail_bytes_max,
        message_bytes_max=storage.message_bytes_max,
    )


def check_is_whole(directory: Path) -> None:
    """Raises Failure if a restore into the data directory was not brought to its end."""
    if (directory / RESTORING_NAME).exists():
        raise Failure(
            ExitCode.DATA_DAMAGED,
            f"the data directory {directory} has a restore that is not complete: run `polymq backup"
            f" restore` again, or remove {directory / RESTORING_NAME}",
        )


def code_of(error: StoreError) -> ExitCode:
    """Which way of not opening this is, for who starts servers by script."""
    if isinstance(error, StoreCorrupt):
        return ExitCode.DATA_DAMAGED
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, StorageFull):
            return ExitCode.CANNOT_CREATE
        if isinstance(cause, StorageFailed):
            return ExitCode.DISK_FAILED
        if isinstance(cause, OSError):
            return ExitCode.DISK_FAILED if cause.errno == errno.EIO else ExitCode.CANNOT_CREATE
        cause = cause.__cause__
    return ExitCode.IN_USE if "is in use" in str(error) else ExitCode.DATA_DAMAGED


def advice(error: StoreError, directory: Path) -> str:
    """Why the log cannot be opened, and what to do about it where that is known."""
    code, text = code_of(error), str(error)
    if code is ExitCode.IN_USE:
        return f"the data directory {directory} is in use: stop the server there, or choose another"
    if code is ExitCode.CANNOT_CREATE and os.strerror(errno.ENOSPC) in text:
        return f"{text}: free some space, or choose a smaller storage.segment_bytes"
    return text
