"""Verifying a backup directory: every byte that a manifest speaks of is read and compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polymq.core_log.backups.files import (
    MANIFESTS_NAME,
    SEGMENTS_NAME,
    UNFINISHED_NAME,
    BackupDamaged,
    failed,
    read_document,
)
from polymq.core_log.backups.manifest import Manifest, manifest_names, read_manifest
from polymq.core_log.backups.segments import Pace, check_file
from polymq.core_log.backups.taking import check_is_backup
from polymq.core_log.files import Files
from polymq.core_log.segments import segment_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What verifying found.

    Attributes:
        manifests: the backups whose manifests are sound, oldest first.
        damage: a sentence for each damaged file.
        checked_bytes: how much was read.
    """

    manifests: tuple[Manifest, ...]
    damage: tuple[str, ...]
    checked_bytes: int


def verify(files: Files, directory: str, *, pace: Pace) -> Verified:
    """Read and check everything in a backup directory.

    Raises:
        BackupRefused: it is no backup directory.
        TargetFailed: it cannot be read.
    """
    damage: list[str] = []
    store = ""
    try:
        store = check_is_backup(files, directory)
    except BackupDamaged as error:
        damage.append(str(error))
    manifests = []
    try:
        names = manifest_names(files, directory)
    except OSError as error:
        raise failed(directory, error) from error
    for name in names:
        try:
            manifest = read_manifest(files, directory, name)
        except BackupDamaged as error:
            damage.append(str(error))
            continue
        manifests.append(manifest)
        if store and manifest.store != store:
            path = f"{directory}/{MANIFESTS_NAME}/{name}"
            damage.append(f"{path} is damaged: it is a manifest of another store")
    try:
        read_document(files, f"{directory}/{UNFINISHED_NAME}")
    except BackupDamaged as error:
        damage.append(f"{error}. No backup needs it; the next one removes it")
    checked = 0

    def counted(count: int) -> None:
        nonlocal checked
        checked += count
        pace(count)

    for start, wanted, closed in wanted_of(manifests):
        path = f"{directory}/{SEGMENTS_NAME}/{segment_name(start)}"
        try:
            check_file(files, path, start, wanted, closed=closed, pace=counted)
        except BackupDamaged as error:
            damage.append(str(error))
    return Verified(manifests=tuple(manifests), damage=tuple(damage), checked_bytes=checked)


def wanted_of(manifests: Sequence[Manifest]) -> list[tuple[int, dict[int, str], bool]]:
    """(start, SHA-256 by length, whether the longest is a whole segment) of each file that these
    backups need, oldest first."""
    wanted: dict[int, dict[int, str]] = {}
    closed: dict[int, int] = {}
    for manifest in manifests:
        for part in manifest.parts:
            wanted.setdefault(part.start, {})[part.length] = part.sha256
            if manifest.is_closed(part):
                closed[part.start] = part.length
    return [
        (start, lengths, closed.get(start) == max(lengths))
        for start, lengths in sorted(wanted.items())
    ]
