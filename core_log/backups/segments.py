"""Bytes of a segment on their way from one file to another: checked record by record, and hashed.

Rule: nothing counts as copied, and nothing as sound, whose records were not all checked (size,
position, checksum, whole atomic batches), and whose SHA-256 is not what it should be, where that is
known. Between a segment's last record and its end there is a blank record; what is behind its head
is only hashed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from polymq.core_log.backups.files import BackupDamaged, BackupError, SourceDamaged, failed
from polymq.core_log.errors import CorruptRecord, describe
from polymq.core_log.files import Files
from polymq.core_log.kernels import walking
from polymq.core_log.kernels.layout import NO_BATCH, REASONS, STOP_BLANK, STOP_END, STOP_SHORT

PIECE_BYTES: Final = 1 << 20
"""One read: a few milliseconds of a disk."""
SYNC_BYTES: Final = 16 << 20
"""How much is written between two syncs: else the system writes gigabytes at a time, and whoever
syncs on the same disk waits for that."""

Pace = Callable[[int], None]
"""Called with the number of bytes that were copied; may wait."""


class RecordCheck:
    """Checks the records of one segment, whose bytes come in pieces.

    Args:
        start: the position of the first byte.
        end: behind the last byte.
        closed: whether a blank record ends the segment there; else `end` is where a record ends.
    """

    def __init__(self, start: int, end: int, *, closed: bool) -> None:
        self.position = start
        self._end = end
        self._closed = closed
        self._batch = NO_BATCH
        self._parts: list[bytes] = []
        self._size = 0
        self._wanted = 1
        self._blank = False

    def take(self, piece: bytes) -> None:
        """The next bytes. Raises CorruptRecord."""
        if self._blank:
            return
        self._parts.append(piece)
        self._size += len(piece)
        if self._size < self._wanted:
            return  # the record is not whole yet
        memory = b"".join(self._parts) if len(self._parts) > 1 else piece
        size, _, reason, self._batch = walking.scan(
            memory, 0, len(memory), self.position, self._batch
        )
        self.position += size
        rest = memory[size:]
        self._parts, self._size, self._wanted = [rest], len(rest), 1
        if reason == STOP_SHORT:
            self._expect(int.from_bytes(rest[:4], "big") if len(rest) >= 4 else 1)
        elif reason == STOP_BLANK:
            self._pass_blank(rest)
        elif reason != STOP_END:
            raise CorruptRecord(self.position, REASONS[reason])

    def _expect(self, size: int) -> None:
        if size > self._end - self.position:
            raise CorruptRecord(self.position, "it would pass the end of what is there")
        self._wanted = size

    def _pass_blank(self, rest: bytes) -> None:
        remaining = int.from_bytes(rest[:4], "big")
        if not self._closed or remaining != self._end - self.position or self._batch != NO_BATCH:
            raise CorruptRecord(self.position, "the segment does not end there")
        self._blank = True
        self._parts = []

    def finish(self) -> None:
        """All bytes were taken. Raises CorruptRecord."""
        if self._blank:
            return
        if self._closed:
            raise CorruptRecord(self.position, "the segment has no end")
        if self.position != self._end or self._batch != NO_BATCH:
            raise CorruptRecord(self.position, "it is not whole")


def read_pieces(files: Files, handle: int, first: int, end: int) -> Iterator[bytes]:
    """The bytes [first, end) of a file, in pieces; fewer if the file ends before. Raises
    OSError."""
    while first < end:
        piece = files.pread(handle, min(PIECE_BYTES, end - first), first)
        if not piece:
            return
        yield piece
        first += len(piece)


def check_file(
    files: Files,
    path: str,
    start: int,
    wanted: Mapping[int, str],
    *,
    closed: bool,
    pace: Pace,
) -> None:
    """Read a segment's file of a backup, and compare it with what manifests say.

    Args:
        start: the position of its first byte.
        wanted: how many bytes, and their SHA-256.
        closed: whether the most of these are a whole segment.

    Raises:
        BackupDamaged: it is not what was written. The sentence says from which position on.
        TargetFailed: it cannot be read.
    """
    length = max(wanted)
    hashes = hashlib.sha256()
    check = RecordCheck(start, start + length, closed=closed and length > 0)
    at = 0
    handle = open_file(files, path)
    try:
        for stop in sorted(wanted):
            for piece in read_pieces(files, handle, at, stop):
                hashes.update(piece)
                check.take(piece)
                at += len(piece)
                pace(len(piece))
            if at < stop:
                raise BackupDamaged(path, f"it ends at position {start + at}, not {start + stop}")
            if hashes.copy().hexdigest() != wanted[stop]:
                raise BackupDamaged(
                    path, f"its SHA-256 up to position {start + stop} is wrong; the damage is"
                    f" behind the record at {check.position}"
                )  # fmt: skip
        check.finish()
    except CorruptRecord as error:
        raise BackupDamaged(path, str(error)) from error
    except OSError as error:
        raise failed(path, error) from error
    finally:
        files.close(handle)


def copy_segment(
    files: Files,
    source: str,
    target: str,
    *,
    start: int,
    length: int,
    closed: bool,
    known: tuple[int, str],
    from_backup: bool = False,
    pace: Pace,
) -> tuple[str, int]:
    """Copy the first bytes of a segment, as far as the target lacks them; what is copied is on the
    disk then, but for the name.

    Args:
        start: the position of the first byte.
        closed: whether that is a whole segment, with its end.
        known: how many bytes the target has, and their SHA-256. They are read again. What is behind
            them is overwritten.
        from_backup: which error is raised for a damaged source.

    Returns:
        The SHA-256 of all, and how many bytes were copied.

    Raises:
        SourceDamaged, BackupDamaged: the source or the target is not sound.
        TargetFailed: the target cannot be written.
    """
    has, digest = known
    hashes = hashlib.sha256()
    check = RecordCheck(start, start + length, closed=closed and length > 0)
    writing = open_file(files, target, create=True)
    try:
        try:
            for piece in read_pieces(files, writing, 0, has):
                hashes.update(piece)
                check.take(piece)
        except CorruptRecord as error:
            raise BackupDamaged(target, str(error)) from error
        except OSError as error:
            raise failed(target, error) from error
        if has and hashes.hexdigest() != digest:
            raise BackupDamaged(target, f"its SHA-256 up to position {start + has} is wrong")
        _append(files, source, target, writing, has, length, (hashes, check), from_backup, pace)
    finally:
        files.close(writing)
    return hashes.hexdigest(), length - has


def _append(
    files: Files,
    source: str,
    target: str,
    writing: int,
    first: int,
    end: int,
    checks: tuple[hashlib._Hash, RecordCheck],
    from_backup: bool,
    pace: Pace,
) -> None:
    """Copy the bytes [first, end). Raises as `copy_segment`."""
    hashes, check = checks
    reading = open_source(files, source, from_backup=from_backup)
    try:
        _write(files, target, lambda: files.truncate(writing, first))
        at = synced = first
        pieces = read_pieces(files, reading, first, end)
        while (piece := _next_piece(pieces, source, from_backup)) is not None:
            hashes.update(piece)
            check.take(piece)
            _write(files, target, lambda data=piece, to=at: files.pwritev(writing, (data,), to))  # type: ignore[misc]
            at += len(piece)
            if at - synced >= SYNC_BYTES:
                _write(files, target, lambda: files.fdatasync(writing))
                synced = at
            pace(len(piece))
        if at < end:
            raise _bad_source(source, "it ends too early", from_backup)
        check.finish()
        _write(files, target, lambda: files.fdatasync(writing))
    except CorruptRecord as error:
        raise _bad_source(source, str(error), from_backup) from error
    finally:
        files.close(reading)


def _next_piece(pieces: Iterator[bytes], source: str, from_backup: bool) -> bytes | None:
    try:
        return next(pieces, None)
    except OSError as error:
        raise _bad_source(source, f"it cannot be read: {describe(error)}", from_backup) from error


def _write(files: Files, path: str, write: Callable[[], None]) -> None:
    try:
        write()
    except OSError as error:
        raise failed(path, error) from error


def _bad_source(path: str, text: str, from_backup: bool) -> BackupError:
    return BackupDamaged(path, text) if from_backup else SourceDamaged(f"{path}: {text}")


def open_file(files: Files, path: str, *, create: bool = False) -> int:
    """Open a file of a backup. Raises BackupDamaged if it is missing, TargetFailed."""
    try:
        return files.open(path, create=create)
    except FileNotFoundError:
        raise BackupDamaged(path, "it is missing") from None
    except OSError as error:
        raise failed(path, error) from error


def open_source(files: Files, path: str, *, from_backup: bool) -> int:
    """Open what is to be copied. Raises SourceDamaged or BackupDamaged."""
    try:
        return files.open(path)
    except OSError as error:
        reason = "it is missing" if isinstance(error, FileNotFoundError) else describe(error)
        raise _bad_source(path, reason, from_backup) from error
