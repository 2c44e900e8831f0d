"""Opening the log of a server that starts, and saying what became of it."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from polymq.checks import check_all
from polymq.core_log.errors import StoreError
from polymq.core_log.files import Files, RealFiles
from polymq.core_log.store import Store
from polymq.errors import ExitCode, Failure
from polymq.logs import logger
from polymq.net.kernels.streams import clock_ms
from polymq.replication_memory import STORE_DIRECTORY, above_term, refusal
from polymq.segment_size import say_size
from polymq.settings import Settings
from polymq.store_opening import advice, check_is_whole, code_of, store_settings_of


def open_store(settings: Settings, *, files: Files | None = None) -> Store:
    """Open the log, recover it if the last server did not close it. Raises Failure.

    Args:
        files: the way to the disk; the operating system's by default.
    """
    directory = settings.server.data_directory
    check_all(settings)
    try:
        files = files or RealFiles()
        _make_directory(directory)
        check_is_whole(directory)
        store_settings = store_settings_of(settings, files)
        if not (directory / STORE_DIRECTORY).exists():
            say_size(store_settings.segment_bytes, files.space(str(directory))[0])
        store = Store.open(
            str(directory / STORE_DIRECTORY),
            files=files,
            clock_ms=clock_ms,
            settings=store_settings,
            follows=refusal(settings),
            above_term=above_term(settings),
        )
    except OSError as error:
        path = error.filename or directory
        text = f"the data directory {path} cannot be written: {error.strerror or error}"
        raise Failure(ExitCode.CANNOT_CREATE, text) from error
    except StoreError as error:
        raise Failure(code_of(error), advice(error, directory)) from error
    report = store.recovery
    tell = logger("polymq").info if report.clean else logger("polymq").warning
    found = {field.name: getattr(report, field.name) for field in fields(report)}
    rebuilt = found.pop("rebuilt")
    if not report.cut_bytes:
        del found["cut_reason"]
    tell(
        "log opened" if report.clean else "log recovered: the last server did not close it",
        epoch=store.epoch,
        rebuilt_queues=len(rebuilt),
        **{name: value for name, value in found.items() if value not in ("", (), None)},
    )
    return store


def _make_directory(directory: Path) -> None:
    """Make the data directory, if it is not there. Raises Failure, OSError."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError as error:
        text = f"the data directory {directory} is a file: remove it, or choose another name"
        raise Failure(ExitCode.CANNOT_CREATE, text) from error
