"""The files of large queue indexes: one directory for each, in RocketMQ's form.

    consumequeue/<number>/<byte offset of the file's first entry, 20 digits>

Every file but the last has room for the same number of entries; the last one grows. Entries are
written by the worker that runs a checkpoint and read by any thread; files are opened for each
access, so that an idle index holds none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from polymq.core_log.errors import StorageFailed
from polymq.core_log.files import Files, sync_file, sync_names
from polymq.core_log.segments import NAME_DIGITS

MENDING_SUFFIX: Final = ".mending"
"""Of the note that an index's files are being made again."""
BUFFERS_MAX: Final = 256
"""Buffers of one write: below every system's IOV_MAX."""


class IndexFiles:
    """Reads and writes the files of all large indexes of a store.

    Args:
        directory: where the indexes' directories stand.
        file_entries: how many entries one file holds.
    """

    def __init__(self, *, directory: str, files: Files, file_entries: int) -> None:
        self.directory = directory
        self._files = files
        self._file_entries = file_entries
        # Names that were made and are not synced yet, perhaps because a write behind it failed.
        self._new_files: set[int] = set()  # numbers of indexes with such files
        self._new_directories = False

    def names(self, number: int) -> list[str]:
        """The names of an index's files, in order. Raises OSError."""
        return [
            name
            for name in self._files.list(f"{self.directory}/{number}")
            if len(name) == NAME_DIGITS and name.isdigit()
        ]

    def write(self, number: int, size: int, first: int, pieces: Sequence[memoryview]) -> None:
        """Write and sync entries of `size` bytes from offset `first` on. Only after `sync_names`
        are they sure to be found. Raises OSError.
        """
        files = self._files
        path = f"{self.directory}/{number}"
        if files.make_directory(path):
            self._new_directories = True
        at = first * size
        whole = self._file_entries * size
        for start, buffers in split(pieces, at, whole):
            base = start - start % whole
            handle = files.open(f"{path}/{base:0{NAME_DIGITS}d}", create=True)
            try:
                if files.size(handle) == 0:
                    self._new_files.add(number)
                position = start - base
                for group in range(0, len(buffers), BUFFERS_MAX):
                    some = buffers[group : group + BUFFERS_MAX]
                    files.pwritev(handle, some, position)
                    position += sum(len(buffer) for buffer in some)
                sync_file(files, handle)
            finally:
                files.close(handle)
        if number in self._new_files:
            sync_names(files, path)
            self._new_files.discard(number)

    def sync_names(self) -> None:
        """Sync the names of the indexes' directories. Raises OSError."""
        if self._new_directories:
            sync_names(self._files, self.directory)
            self._new_directories = False

    def read(self, number: int, size: int, first: int, count: int) -> bytes:
        """Up to `count` entries from `first` on, from one file: at least one.

        Raises:
            StorageFailed: the file is too short. OSError.
        """
        start = first - first % self._file_entries
        count = min(count, start + self._file_entries - first)
        path = f"{self.directory}/{number}/{start * size:0{NAME_DIGITS}d}"
        handle = self._files.open(path)
        try:
            entries = self._files.pread(handle, count * size, (first - start) * size)
        finally:
            self._files.close(handle)
        if len(entries) < size:
            raise StorageFailed(f"reading {path}: it is shorter than it was written")
        return entries[: len(entries) // size * size]

    def covers(self, number: int, size: int, first: int, end: int) -> bool:
        """Whether files hold all of the offsets [first, end). Raises OSError."""
        whole = self._file_entries * size
        base = first * size - first * size % whole
        while base < end * size:
            path = f"{self.directory}/{number}/{base:0{NAME_DIGITS}d}"
            try:
                handle = self._files.open(path)
            except FileNotFoundError:
                return False
            try:
                if self._files.size(handle) < min(whole, end * size - base):
                    return False
            finally:
                self._files.close(handle)
            base += whole
        return True

    def cut(self, number: int, size: int, end: int) -> None:
        """Remove what is behind the offset `end`. Raises OSError."""
        for name in reversed(self.names(number)):
            path = f"{self.directory}/{number}/{name}"
            if int(name) >= end * size:
                self._files.unlink(path)
                continue
            handle = self._files.open(path)
            try:
                if self._files.size(handle) > end * size - int(name):
                    self._files.truncate(handle, end * size - int(name))
                    sync_file(self._files, handle)
            finally:
                self._files.close(handle)
            return

    def remove_before(self, number: int, size: int, first: int) -> None:
        """Remove the files that end at or before the offset `first`. Raises OSError."""
        whole = self._file_entries * size
        for name in self.names(number):
            if int(name) + whole > first * size:
                return
            self._files.unlink(f"{self.directory}/{number}/{name}")

    def begin_mending(self, number: int) -> None:
        """Note that an index's files are about to be written over: until `end_mending` a sound last
        entry does not say that they are whole. Raises OSError."""
        self._files.close(self._files.open(self._note(number), create=True))
        sync_names(self._files, self.directory)

    def end_mending(self, number: int) -> None:
        """They are whole, and synced. Raises OSError."""
        self._files.unlink(self._note(number))

    def _note(self, number: int) -> str:
        return f"{self.directory}/{number}{MENDING_SUFFIX}"

    def remove(self, number: int) -> None:
        """Remove an index's files and its directory. Raises OSError."""
        path = f"{self.directory}/{number}"
        for name in self._files.list(path):
            self._files.unlink(f"{path}/{name}")
        self._files.remove_directory(path)


def split(
    pieces: Sequence[memoryview], start: int, whole: int
) -> list[tuple[int, list[memoryview]]]:
    """Consecutive bytes from byte offset `start` on, by the file of `whole` bytes that they belong
    to: (byte offset, pieces) of each file."""
    found: list[tuple[int, list[memoryview]]] = []
    at = start
    for piece in pieces:
        view = piece
        while view:
            room = whole - at % whole
            if not found or at % whole == 0:
                found.append((at, []))
            found[-1][1].append(view[:room])
            at += len(view[:room])
            view = view[room:]
    return found
