"""Manifests: which bytes of which segments a backup consists of.

Theory. The log never changes below its flushed position. So the first bytes of a segment are the
same in every backup that has them: a later one needs more of the same file, and an earlier one
goes on to mean its beginning. A manifest therefore says, for each segment, how many bytes count
and their SHA-256.

A backup is there when its manifest is. Its name is its position, which a history of a log passes
once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from polymq.core_log.backups.files import (
    MANIFESTS_NAME,
    SUFFIX,
    UNFINISHED_NAME,
    BackupDamaged,
    read_document,
    write_document,
)
from polymq.core_log.epochs import epoch_covers
from polymq.core_log.files import Files
from polymq.core_log.segments import NAME_DIGITS, segment_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The bytes of one segment that a backup has.

    Attributes:
        start: the position of the first.
        length: how many; 0 where the position of the backup is the segment's beginning.
        sha256: over them, in hex digits.
    """

    start: int
    length: int
    sha256: str

    @property
    def name(self) -> str:
        """The name of the file."""
        return segment_name(self.start)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One backup: the log from the first segment to `position`.

    Attributes:
        store: the identity of the store.
        position: everything before it is in the backup, and nothing from it on.
        epoch, epoch_start, epoch_mark: the epoch that the position is in; see `core_log.epochs`.
        created_ms: when the backup was complete.
        copied_bytes: how much had to be copied for it.
        parts: of the segments, oldest first, without a hole.
    """

    store: str
    position: int
    epoch: int
    epoch_start: int
    epoch_mark: int
    created_ms: int
    copied_bytes: int
    parts: tuple[Part, ...]

    @property
    def start(self) -> int:
        """The first position that the backup has."""
        return self.parts[0].start if self.parts else self.position

    @property
    def name(self) -> str:
        """The name of the file."""
        return segment_name(self.position) + SUFFIX

    def is_closed(self, part: Part) -> bool:
        """Whether a part is a whole segment, with its end."""
        return part.start + part.length < self.position or part is not self.parts[-1]

    def is_of_history(self, epochs: Sequence[tuple[int, int, int]], end: int) -> bool:
        """Whether a log with these epochs (number, start, mark; the mark is 0 if it is unknown)
        that ends at `end` has all that this backup has, as far as both still tell."""
        known = {number: (start, mark) for number, start, mark in epochs}
        if self.epoch not in known:
            # The log may have lost the epoch with its oldest part: then the two share no segment.
            return bool(epochs) and self.epoch < epochs[0][0] and self.position <= epochs[0][1]
        start, mark = known[self.epoch]
        if start != self.epoch_start or (mark and self.epoch_mark and mark != self.epoch_mark):
            return False
        pairs = [(number, start) for number, start, _ in epochs]
        return epoch_covers(pairs, self.epoch, self.position, end)


NUMBER_MAX: Final = 1 << 62
"""No position, size or time is larger."""
_NUMBERS: Final = (
    *("position", "epoch", "epoch_start", "epoch_mark"),
    *("created_ms", "copied_bytes"),
)


def encode_manifest(manifest: Manifest) -> dict[str, Any]:
    """As a JSON object."""
    return asdict(manifest)


def decode_manifest(path: str, value: dict[str, Any]) -> Manifest:
    """Back from a JSON object whose checksum was right. Raises BackupDamaged."""
    try:
        parts = tuple(Part(**part) for part in value.pop("parts"))
        manifest = Manifest(parts=parts, **value)
        numbers = [value[name] for name in _NUMBERS]
        numbers += [number for part in parts for number in (part.start, part.length)]
        assert all(type(number) is int and 0 <= number < NUMBER_MAX for number in numbers)
        assert all(type(text) is str for text in (value["store"], *[p.sha256 for p in parts]))
    except (KeyError, TypeError, AssertionError):
        raise BackupDamaged(path, "it is not a manifest of this version") from None
    at = manifest.start
    for part in parts:
        if part.start != at:
            raise BackupDamaged(path, f"its segments do not fit together at {part.start}")
        at += part.length
    if not parts or at != manifest.position:
        raise BackupDamaged(path, f"its segments do not reach its position {manifest.position}")
    return manifest


def manifest_names(files: Files, directory: str) -> list[str]:
    """The names of all manifests, oldest position first. Raises OSError."""
    names = files.list(f"{directory}/{MANIFESTS_NAME}")
    return [name for name in names if len(name) == NAME_DIGITS + len(SUFFIX) and is_named(name)]


def is_named(name: str) -> bool:
    """Whether a file's name is that of a manifest."""
    digits = name.removesuffix(SUFFIX)
    return name.endswith(SUFFIX) and digits.isascii() and digits.isdigit()


def read_manifest(files: Files, directory: str, name: str) -> Manifest:
    """One manifest. Raises BackupDamaged, TargetFailed."""
    path = f"{directory}/{MANIFESTS_NAME}/{name}"
    value = read_document(files, path)
    if value is None:
        raise BackupDamaged(path, "it is missing")
    manifest = decode_manifest(path, value)
    if manifest.name != name:
        raise BackupDamaged(path, f"it is the manifest of position {manifest.position}")
    return manifest


def read_manifests(files: Files, directory: str) -> list[Manifest]:
    """All backups of a directory, oldest first. Raises BackupDamaged, TargetFailed, OSError."""
    return [read_manifest(files, directory, name) for name in manifest_names(files, directory)]


def read_unfinished(files: Files, directory: str) -> Manifest | None:
    """What an interrupted backup has copied, if there is one and it can be read. Raises
    TargetFailed."""
    path = f"{directory}/{UNFINISHED_NAME}"
    try:
        value = read_document(files, path)
        return None if value is None else decode_manifest(path, value)
    except BackupDamaged:
        return None  # it is a saving of work, and nobody's backup


def write_manifest(files: Files, directory: str, manifest: Manifest) -> None:
    """Let a backup be there. Everything that it speaks of has to be on the disk. Raises
    TargetFailed."""
    write_document(files, f"{directory}/{MANIFESTS_NAME}", manifest.name, encode_manifest(manifest))


MANIFESTS_MAX: Final = 10_000
"""Backups in one directory: one an hour for a year. The next one is refused."""


def longest_parts(manifests: Iterable[Manifest]) -> dict[int, Part]:
    """By its start, the part of each segment that has the most of it."""
    found: dict[int, Part] = {}
    for manifest in manifests:
        for part in manifest.parts:
            if part.start not in found or found[part.start].length < part.length:
                found[part.start] = part
    return found
