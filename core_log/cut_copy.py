"""What a log lost when it was cut, kept in a file beside it.

Before anything is cut, a copy of it is on the disk. Nothing deletes such a file but its owner.

    "POLYMQ CUT 1\\n", a JSON object, spaces: 4,096 bytes in all
    the bytes of the log from `position` to `end`, as they stood there

The object has `position`, `end`, `epoch` (of the log that was cut) and `kept_ms` (when the copy was
made). Each record has its own checksum, as in the log.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from polymq.core_log.errors import CorruptRecord
from polymq.core_log.files import Files, make_directories
from polymq.core_log.kernels import walking
from polymq.core_log.kernels.batch import BLANK_SIZE, MAGIC_BLANK
from polymq.core_log.kernels.layout import REASONS, STOP_END
from polymq.core_log.record import Record, decode_record
from polymq.core_log.recovery import LOG_NAME, is_segment_name
from polymq.core_log.segments import segment_name

HEAD_BYTES: Final = 4096
SUFFIX: Final = ".cut"
_MAGIC: Final = b"POLYMQ CUT 1\n"
_PIECE_BYTES: Final = 4 * 1024 * 1024
_BLANK: Final = MAGIC_BLANK.to_bytes(4, "big")


@dataclass(frozen=True, slots=True, kw_only=True)
class CutHead:
    """What the file begins with; the attributes are described above."""

    position: int
    end: int
    epoch: int
    cut_ms: int

    @property
    def name(self) -> str:
        """The file's name: the same stretch of the same log has one file."""
        return f"{self.position:020d}-{self.end:020d}-{self.epoch}{SUFFIX}"


def keep_cut(files: Files, store: str, directory: str, head: CutHead) -> str:
    """Copy a stretch of a log, all of which is written, into a file of its own.

    Args:
        store: directory of the store, open or closed.
        directory: where the file belongs; made if it is not there.

    Returns:
        The file's path. It and its name are on the disk.

    Raises:
        OSError: nothing of it is left.
    """
    path = f"{directory}/{head.name}"
    make_directories(files, directory)
    if head.name in files.list(directory):
        return path  # it was kept before a crash, or before an operator decided
    partial = f"{path}.part"
    files.unlink(partial)
    handle = files.open(partial, create=True)
    try:
        text = json.dumps(
            {
                "position": head.position,
                "end": head.end,
                "epoch": head.epoch,
                "kept_ms": head.cut_ms,
            }
        )
        files.pwritev(handle, [(_MAGIC + text.encode()).ljust(HEAD_BYTES)], 0)
        for start, piece in _pieces(files, f"{store}/{LOG_NAME}", head.position, head.end):
            files.pwritev(handle, [piece], HEAD_BYTES + start - head.position)
        files.fdatasync(handle)
    except OSError:
        files.close(handle)
        files.unlink(partial)
        raise
    files.close(handle)
    files.rename(partial, path)
    files.sync_directory(directory)
    return path


def _pieces(files: Files, log: str, position: int, end: int) -> Iterator[tuple[int, bytes]]:
    """The bytes of a log between two positions, from its files."""
    starts = sorted(int(name) for name in files.list(log) if is_segment_name(name))
    for number, start in enumerate(starts):
        behind = starts[number + 1] if number + 1 < len(starts) else end
        first, last = max(start, position), min(behind, end)
        if first >= last:
            continue
        handle = files.open(f"{log}/{segment_name(start)}")
        try:
            while first < last:
                piece = files.pread(handle, min(_PIECE_BYTES, last - first), first - start)
                if not piece:
                    raise OSError(f"{segment_name(start)} ends before {last}")
                yield first, piece
                first += len(piece)
        finally:
            files.close(handle)


def list_cuts(files: Files, directory: str) -> list[tuple[str, int]]:
    """Path and size of each file that was kept, oldest position first. Raises OSError."""
    found = []
    for name in files.list(directory):
        if name.endswith(SUFFIX):
            handle = files.open(f"{directory}/{name}")
            try:
                found.append((f"{directory}/{name}", files.size(handle)))
            finally:
                files.close(handle)
    return found


class CutFile:
    """A file that was kept, open for reading.

    Raises:
        OSError: from all methods.
        ValueError: from the constructor: it is no such file.
    """

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self._handle = files.open(path)
        try:
            self.head = _decode_head(files.pread(self._handle, HEAD_BYTES, 0))
        except (OSError, ValueError):
            files.close(self._handle)
            raise

    def close(self) -> None:
        """Give the descriptor back."""
        self._files.close(self._handle)

    def records(self) -> Iterator[Record]:
        """All records, each checked. Raises CorruptRecord for the first that is not sound."""
        position = self.head.position
        while position + BLANK_SIZE <= self.head.end:
            begin = self._read(position, BLANK_SIZE)
            size = int.from_bytes(begin[:4], "big")
            if begin[4:8] == _BLANK:  # a segment ends here, and the next one begins behind it
                position += max(size, BLANK_SIZE)
                continue
            if not BLANK_SIZE < size <= self.head.end - position:
                raise CorruptRecord(position, "its size is impossible")
            memory = self._read(position, size)
            reason = walking.check_record(memory, 0, len(memory), position)
            if reason != STOP_END:
                raise CorruptRecord(position, REASONS[reason])
            yield decode_record(memory, verify=False)
            position += size

    def _read(self, position: int, size: int) -> bytes:
        return self._files.pread(self._handle, size, HEAD_BYTES + position - self.head.position)


def _decode_head(data: bytes) -> CutHead:
    if len(data) != HEAD_BYTES or not data.startswith(_MAGIC):
        raise ValueError("it is not a file with what was cut from a log")
    values = json.loads(data[len(_MAGIC) :])
    try:
        head = CutHead(cut_ms=values.pop("kept_ms"), **values)
    except (AttributeError, KeyError, TypeError):
        raise ValueError("its first 4,096 bytes are damaged") from None
    return head
