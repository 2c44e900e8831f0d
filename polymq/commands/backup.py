"""`polymq backup`: taking, listing, verifying, restoring and removing backups."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from polymq.commands.access import admin_client_of, credentials, operator_options
from polymq.commands.options import config_option, setting_flag, settings_from
from polymq.errors import ExitCode, Failure
from polymq.ports import running_server
from polymq.settings import Settings
from polymq.terminal import echo

if TYPE_CHECKING:
    from polymq.backup_source import Copying
    from polymq.core_log.backups.manifest import Manifest
    from polymq.core_log.errors import StoreError
    from polymq.core_log.settings import StoreSettings

MIB: Final = 1024 * 1024
RATE_MIB: Final = 100
PAUSE_SECONDS_MIN: Final = 0.01
"""Shorter pauses are added up."""
PAUSE_SECONDS_MAX: Final = 1.0
_GIVE_UP: Final = "remove the manifest to give that backup up"

backup_directory = click.argument("directory", type=click.Path(path_type=Path))
rate_option = click.option(
    "--rate",
    "rate_mib",
    type=click.IntRange(min=0),
    default=RATE_MIB,
    show_default=True,
    metavar="MIB",
    help="Read at most so many MiB in a second. 0: no limit.",
)


class Pacer:
    """Lets a copy take the disk and the processor for a part of the time only.

    Args:
        rate: bytes in a second; 0: no limit.
    """

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._due = time.monotonic()

    def __call__(self, count: int) -> None:
        """So many bytes were read. Waits, if that was too quick."""
        if not self._rate:
            return
        now = time.monotonic()
        self._due = max(self._due, now - PAUSE_SECONDS_MAX) + count / self._rate
        if self._due - now >= PAUSE_SECONDS_MIN:
            time.sleep(min(self._due - now, PAUSE_SECONDS_MAX))


@click.group()
def backup() -> None:
    """Take backups of a server, verify them, and restore them.

    A backup directory has any number of backups of one server. Later backups copy only what the
    log has grown by. A backup has all messages, queues, sessions, users and settings of topics. It
    does not have the configuration file and certificates.
    """


@backup.command()
@operator_options
@backup_directory
@rate_option
@click.option(
    "--reserve-seconds",
    type=click.IntRange(min=1, max=3600),
    default=120,
    show_default=True,
    help="How long the server waits for this command, if it hangs or was killed, before it may "
    "delete segments that are not copied yet.",
)
def create(directory: Path, rate_mib: int, reserve_seconds: int, **options: Any) -> None:
    """Take a backup into DIRECTORY.

    The server may be running: the backup then has everything that was on its disk when the command
    began. Of a stopped server, the data directory is locked meanwhile. The command needs to read
    the files of the data directory, so run it as the server's user.
    """
    from polymq.core_log.backups.files import BackupFiles  # noqa: PLC0415  (loads the store)
    from polymq.core_log.backups.taking import take_backup  # noqa: PLC0415

    named = credentials(options)
    settings = settings_from(options)
    _check_is_outside(directory, settings.server.data_directory)
    with _failures(), _source(settings, named, reserve_seconds) as copying:
        manifest = take_backup(
            BackupFiles(),
            str(directory),
            copying.source,
            clock_ms=_clock_ms,
            needs=copying.needs,
            pace=Pacer(rate_mib * MIB),
        )
        copying.completed(manifest)
    echo(
        f"Backup as of position {manifest.position:,} is complete: {manifest.copied_bytes:,} bytes "
        f"were copied to {directory}."
    )


@backup.command("list")
@backup_directory
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def backup_list(directory: Path, as_json: bool) -> None:
    """List the backups in DIRECTORY, oldest first.

    The size of a backup counts the files that it shares with others.
    """
    from polymq.core_log.backups.files import BackupFiles  # noqa: PLC0415  (loads the store)
    from polymq.core_log.backups.taking import check_is_backup, sound_backups  # noqa: PLC0415

    with _failures():
        check_is_backup(BackupFiles(), str(directory))
        found, damaged = sound_backups(BackupFiles(), str(directory))
    for manifest in found:
        _show(manifest, as_json)
    for error in damaged:
        echo(str(error), err=True)
    if damaged:
        raise Failure(ExitCode.DATA_DAMAGED, f"{directory} has a damaged manifest: {_GIVE_UP}")
    if not found and not as_json:
        echo(f"There is no complete backup in {directory}.", err=True)


@backup.command()
@backup_directory
@rate_option
def verify(directory: Path, rate_mib: int) -> int:
    """Read all files in DIRECTORY and check them.

    They are compared with their checksums. The command names each damaged file, and the position of
    the log where the damage is. The exit code is then 65.
    """
    from polymq.core_log.backups.checking import verify as verify_all  # noqa: PLC0415
    from polymq.core_log.backups.files import BackupFiles  # noqa: PLC0415  (loads the store)

    with _failures():
        found = verify_all(BackupFiles(), str(directory), pace=Pacer(rate_mib * MIB))
    for text in found.damage:
        echo(text, err=True)
    if found.damage:
        files = "file is" if len(found.damage) == 1 else "files are"
        raise Failure(ExitCode.DATA_DAMAGED, f"{len(found.damage)} {files} damaged in {directory}")
    count = len(found.manifests)
    if not count:
        raise Failure(ExitCode.FAILED, f"there is no complete backup in {directory}")
    backups = "1 backup is" if count == 1 else f"{count:,} backups are"
    echo(f"{backups} sound; {found.checked_bytes:,} bytes were read.")
    return ExitCode.OK


@backup.command()
@config_option
@setting_flag(
    "--data-directory",
    "server.data_directory",
    "Data directory to restore into. It has to be empty or absent.",
)
@backup_directory
@click.option(
    "--position",
    type=click.IntRange(min=0),
    help="Restore the backup as of this position (see `polymq backup list`). Default: the newest.",
)
@rate_option
def restore(directory: Path, position: int | None, rate_mib: int, **options: Any) -> None:
    """Restore a backup from DIRECTORY into a new data directory.

    Every byte is checked while it is copied. The restored server begins a new term, so brokers that
    followed the old one and have more than the backup do not follow it: see docs/backup.md.
    """
    from polymq.core_log.backups.files import BackupFiles  # noqa: PLC0415  (loads the store)
    from polymq.core_log.backups.restoring import restore as restore_store  # noqa: PLC0415
    from polymq.core_log.backups.taking import check_is_backup, sound_backups  # noqa: PLC0415
    from polymq.core_log.files import RealFiles  # noqa: PLC0415
    from polymq.replication_memory import STORE_DIRECTORY  # noqa: PLC0415
    from polymq.store_opening import store_settings_of  # noqa: PLC0415

    settings = settings_from(options)
    target = settings.server.data_directory
    if directory.resolve() in (target.resolve(), *target.resolve().parents):
        text = f"{target} is inside the backup directory {directory}: use another directory"
        raise Failure(ExitCode.USAGE, text)
    with _failures():
        check_is_backup(BackupFiles(), str(directory))
        found, damaged = sound_backups(BackupFiles(), str(directory))
        if damaged and position is None:
            text = f"{damaged[0]}. Name the backup to restore by its --position, or {_GIVE_UP}"
            raise Failure(ExitCode.DATA_DAMAGED, text)
        manifest = _chosen(found, position, directory)
        epoch = restore_store(
            str(directory),
            manifest,
            str(target),
            STORE_DIRECTORY,
            files=RealFiles(),
            settings=_sizes(store_settings_of(settings, RealFiles()), settings, manifest),
            clock_ms=_clock_ms,
            pace=Pacer(rate_mib * MIB),
        )
    echo(
        f"The backup as of position {manifest.position:,} is restored into {target}, in epoch "
        f"{epoch}. Start it with `polymq serve --data-directory {target}`."
    )


@backup.command()
@backup_directory
@click.option(
    "--keep",
    "count",
    type=click.IntRange(min=1),
    required=True,
    metavar="N",
    help="How many backups stay.",
)
def prune(directory: Path, count: int) -> None:
    """Remove all but the newest N backups in DIRECTORY.

    Files that one of the remaining backups needs stay.
    """
    from polymq.core_log.backups.files import BackupFiles  # noqa: PLC0415  (loads the store)
    from polymq.core_log.backups.taking import prune as prune_backups  # noqa: PLC0415

    with _failures():
        removed, freed = prune_backups(BackupFiles(), str(directory), count)
    backups = "1 backup was" if len(removed) == 1 else f"{len(removed):,} backups were"
    echo(f"{backups} removed, and {freed:,} bytes are free.")


# --- parts of the commands ----------------------------------------------------------------------


def _check_is_outside(directory: Path, data_directory: Path) -> None:
    """A backup on the disk that it is for would be lost with it. Raises Failure."""
    target, data = directory.resolve(), data_directory.resolve()
    if target == data or data in target.parents:
        text = f"{directory} is inside the data directory {data_directory}: use another directory"
        raise Failure(ExitCode.USAGE, text)


@contextmanager
def _source(settings: Settings, named: str | None, seconds: float) -> Iterator[Copying]:
    """The log of the server that uses the data directory, running or not. Raises Failure."""
    from polymq.backup_source import running_source, stopped_source  # noqa: PLC0415

    with contextlib.ExitStack() as stack:
        unreachable: Failure | None = None
        copying: Copying | None = None
        if running_server(settings) is not None:
            client = admin_client_of(settings, named)
            try:
                copying = stack.enter_context(running_source(client, seconds))
            except Failure as failure:
                if failure.code is not ExitCode.UNREACHABLE:
                    raise
                unreachable = failure  # it may have been killed
        if copying is None:
            try:
                copying = stack.enter_context(stopped_source(settings, _clock_ms))
            except Failure as failure:
                if unreachable is not None and failure.code is ExitCode.IN_USE:
                    raise unreachable from failure
                raise
        yield copying


def _chosen(found: list[Manifest], position: int | None, directory: Path) -> Manifest:
    """The backup to restore. Raises Failure."""
    if not found:
        raise Failure(ExitCode.FAILED, f"there is no complete backup in {directory}")
    for manifest in found:
        if manifest.position == position:
            return manifest
    if position is not None:
        known = ", ".join(str(manifest.position) for manifest in found[-10:])
        text = f"{directory} has no backup as of position {position}; it has {known}"
        raise Failure(ExitCode.FAILED, text)
    return found[-1]


def _sizes(sizes: StoreSettings, settings: Settings, manifest: Manifest) -> StoreSettings:
    """The sizes of the new store: segments are as large as those of the source, unless the settings
    say something else."""
    whole = [part.length for part in manifest.parts if manifest.is_closed(part)]
    if settings.storage.segment_bytes or not whole:
        return sizes
    return replace(sizes, segment_bytes=max(whole))


def _show(manifest: Manifest, as_json: bool) -> None:
    size = sum(part.length for part in manifest.parts)
    if as_json:
        value = {"position": manifest.position, "start": manifest.start}
        value |= {"created_ms": manifest.created_ms, "epoch": manifest.epoch, "bytes": size}
        value |= {"copied_bytes": manifest.copied_bytes, "segments": len(manifest.parts)}
        echo(json.dumps(value))
        return
    at = datetime.fromtimestamp(manifest.created_ms / 1000, UTC)
    segments = "1 segment" if len(manifest.parts) == 1 else f"{len(manifest.parts):,} segments"
    echo(
        f"position {manifest.position}  {at:%Y-%m-%d %H:%M:%S} UTC  {size:,} bytes in {segments}, "
        f"of which {manifest.copied_bytes:,} were copied for it"
    )


def _clock_ms() -> int:
    return time.time_ns() // 1_000_000


@contextmanager
def _failures() -> Iterator[None]:
    """What goes wrong with a backup, as a line and an exit code."""
    from polymq.core_log.errors import StoreError, describe  # noqa: PLC0415  (loads the store)

    try:
        yield
    except StoreError as error:
        raise Failure(_code_of(error), str(error)) from error
    except BrokenPipeError:  # nobody reads the output any more
        raise
    except OSError as error:
        path = f"{os.fsdecode(error.filename)}: " if error.filename else ""
        raise Failure(ExitCode.CANNOT_CREATE, f"{path}{describe(error)}") from error


def _code_of(error: StoreError) -> ExitCode:
    from polymq.core_log.backups import files  # noqa: PLC0415  (loads the store)
    from polymq.store_opening import code_of  # noqa: PLC0415

    if isinstance(error, files.BackupDamaged | files.SourceDamaged):
        return ExitCode.DATA_DAMAGED
    if isinstance(error, files.BackupBusy):
        return ExitCode.IN_USE
    if isinstance(error, files.TargetFailed):
        return ExitCode.CANNOT_CREATE
    return ExitCode.FAILED if isinstance(error, files.BackupRefused) else code_of(error)
