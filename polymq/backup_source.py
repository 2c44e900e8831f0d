"""The log that a backup copies: of a running server, which reserves it, or of a stopped one."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path
from typing import Final

from polymq.admin.client import AdminClient, RefusedRequest, api_path
from polymq.backup_memory import recall_or_begin, remember_backups
from polymq.core_log.backups.files import SourceDamaged
from polymq.core_log.backups.manifest import Manifest
from polymq.core_log.backups.taking import Source
from polymq.core_log.errors import StoreError
from polymq.core_log.files import RealFiles
from polymq.core_log.recovery import LOG_NAME
from polymq.core_log.store import Store
from polymq.errors import ExitCode, Failure
from polymq.replication_memory import STORE_DIRECTORY
from polymq.settings import Settings
from polymq.store_opening import advice, check_is_whole, code_of, store_settings_of

RENEWALS: Final = 10
"""How often a reservation is renewed within the time after which it ends."""
RENEW_SECONDS_MAX: Final = 5.0
STARTED_AGAIN: Final = (
    "the server does not reserve the log for this backup any more: it was started again"
)
"""What it means if a token that was good is not any more: each start makes a new one."""
WHY: Final = "a backup is being taken"


@dataclass(slots=True, eq=False)
class Copying:
    """A source while it is copied.

    Attributes:
        needs: see `take_backup`.
        completed: called with the backup, when it is there.
    """

    source: Source
    needs: Callable[[int], None]
    completed: Callable[[Manifest], None]
    is_running: bool


@contextmanager
def running_source(client: AdminClient, seconds: float) -> Iterator[Copying]:
    """The log of a running server. It is given back at the end in any case. Raises Failure."""
    value = client.ask("POST", api_path("backups"), {"seconds": seconds})
    backup = value["name"]
    source = Source(
        store=value["store"],
        log=value["log"],
        position=value["position"],
        segments=[(start, end) for start, end in value["segments"]],
        epochs=[(number, start, mark) for number, start, mark in value["epochs"]],
    )
    every = min(value["seconds"] / RENEWALS, RENEW_SECONDS_MAX)
    renewed = time.monotonic()
    taken: list[Manifest] = []

    def needs(position: int) -> None:
        nonlocal renewed
        now = time.monotonic()
        if now - renewed >= every:
            try:
                client.request("PUT", api_path("backups", backup), {"position": position})
            except RefusedRequest as refused:
                if refused.status != HTTPStatus.UNAUTHORIZED:
                    raise
                raise Failure(ExitCode.FAILED, STARTED_AGAIN) from refused
            renewed = now

    path = api_path("backups", backup, "end")
    try:
        yield Copying(source, needs, taken.append, is_running=True)
    except BaseException as error:
        try:
            client.request("POST", path, {"failed": True})
        except Failure as failure:  # the server has gone, or does not reserve the log any more
            if isinstance(error, SourceDamaged) and failure.code is ExitCode.FAILED:
                raise failure from error  # so what was to be copied was deleted meanwhile
        raise
    for manifest in taken:
        with contextlib.suppress(Failure):  # the backup is there all the same
            client.request(
                "POST",
                path,
                {"copied_bytes": manifest.copied_bytes, "completed_ms": manifest.created_ms},
            )


@contextmanager
def stopped_source(settings: Settings, clock_ms: Callable[[], int]) -> Iterator[Copying]:
    """The log of a stopped server: opened, recovered if that has to be, and locked meanwhile.
    Nothing is added to it. Raises Failure."""
    directory = settings.server.data_directory
    check_is_whole(directory)
    if not (directory / STORE_DIRECTORY / LOG_NAME).is_dir():
        raise Failure(ExitCode.FAILED, f"the data directory {directory} has no store to back up")
    files = RealFiles()
    try:
        store = Store.open(
            str(directory / STORE_DIRECTORY),
            files=files,
            clock_ms=clock_ms,
            settings=replace(store_settings_of(settings, files), segments_zeroed=False),
            follows=WHY,
        )
    except OSError as error:
        text = f"the data directory {directory} cannot be read: {error.strerror or error}"
        raise Failure(ExitCode.CANNOT_CREATE, text) from error
    except StoreError as error:
        raise Failure(code_of(error), advice(error, directory)) from error
    try:
        yield _of_store(store, directory)
    finally:
        store.close()


def _of_store(store: Store, directory: Path) -> Copying:
    try:
        memory = recall_or_begin(directory)
    except OSError as error:
        text = f"{directory} cannot be written: {error.strerror or error}"
        raise Failure(ExitCode.CANNOT_CREATE, text) from error
    position = store.log.flushed
    source = Source(
        store=memory.store,
        log=str(directory / STORE_DIRECTORY / LOG_NAME),
        position=position,
        segments=[found for found in store.segments() if found[0] <= position],
        epochs=[
            (number, start, store.epoch_mark(number, start))
            for number, start in store.epochs
            if start < position
        ],
    )

    def completed(manifest: Manifest) -> None:
        with contextlib.suppress(OSError):  # the backup is there all the same
            remember_backups(
                directory,
                replace(memory, position=manifest.position, completed_ms=manifest.created_ms),
            )

    return Copying(source, lambda _: None, completed, is_running=False)
