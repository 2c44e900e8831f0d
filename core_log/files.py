"""The only listener to the disk.

`Files` is everything that the store asks of a file system; `RealFiles` is the operating system.
Tests put other implementations here: one that drops what was not synced, one whose sync is held
back, one that fails.

Rules:

* Every method raises `OSError` and nothing else. The caller translates.
* A handle is an int that `open` gave out. All methods may be called from any thread.
* `pwritev` writes all of it or raises. After it raised, any part may have been written.
* What must survive a power cut: `fdatasync` for a file's bytes and size, `sync_directory` for
  names that were made, renamed or removed in it. The store calls them by `sync_file` and
  `sync_names`, which tell a sync that failed from one that was not tried.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Sequence
from typing import Protocol

from polymq.core_log.errors import NotBegun, SyncFailed, is_short
from polymq.core_log.kernels.files import write_part

Buffer = bytes | bytearray | memoryview

FILE_MODE = 0o600
"""Messages are nobody else's business (a broker that left them readable got a CVE for it)."""
DIRECTORY_MODE = 0o700

NOT_OURS = (errno.EACCES, errno.EPERM, errno.EINVAL, errno.EOPNOTSUPP)
"""Errors that say that a directory is not one that this process, or one like it, has made."""


class Files(Protocol):
    """A file system, as far as the store needs one."""

    def open(self, path: str, *, create: bool = False) -> int:
        """Open for reading and writing; with `create`, make an empty file if there is none."""

    def close(self, handle: int) -> None:
        """Give the handle back. Releases its lock."""

    def size(self, handle: int) -> int:
        """The file's size in bytes."""

    def pread(self, handle: int, size: int, position: int) -> bytes:
        """Read up to `size` bytes; fewer only at the end of the file."""

    def pwritev(self, handle: int, buffers: Sequence[Buffer], position: int) -> None:
        """Write all buffers, one after the other, from `position` on."""

    def write_part(
        self, handle: int, memory: bytearray, start: int, end: int, position: int
    ) -> None:
        """Write `memory[start:end]` from `position` on: `pwritev` of what is written most."""

    def truncate(self, handle: int, size: int) -> None:
        """Set the size; new bytes are zero."""

    def preallocate(self, handle: int, size: int) -> None:
        """Give the file room for `size` bytes, so that writing there cannot meet a full disk.
        New bytes are zero; what is there stays."""

    def fdatasync(self, handle: int) -> None:
        """Return once the file's bytes and its size are on the disk."""

    def drop_cache(self, handle: int) -> None:
        """Let reads see what the disk has, not what memory holds of it; what is synced stays the
        same. After a failed sync, memory may go on to show what was never written."""

    def lock(self, handle: int) -> bool:
        """Take the file's one exclusive lock, without waiting. False if somebody has it."""

    def list(self, path: str) -> list[str]:
        """The names in a directory, sorted; empty if there is no such directory."""

    def make_directory(self, path: str) -> bool:
        """Make a directory, whose parent has to exist. False if it is there already."""

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory; no error if there is none."""

    def sync_directory(self, path: str) -> None:
        """Return once the names in the directory are on the disk. Raises `NotBegun` where it could
        not be tried; any other error is a failed sync."""

    def keep_directory(self, path: str) -> None:
        """Keep the directory open, so that `sync_directory` of it needs no descriptor. A hint."""

    def forget_directory(self, path: str) -> None:
        """Undo `keep_directory`, if it was called."""

    def rename(self, path: str, new_path: str) -> None:
        """Give a file another name, replacing the file that has it."""

    def unlink(self, path: str) -> None:
        """Remove a file; no error if there is none."""

    def space(self, path: str) -> tuple[int, int]:
        """Bytes that may still be written to the file system of `path`, and its size."""


class RealFiles:
    """The operating system's files: owner only (0600, 0700), closed on exec."""

    def __init__(self) -> None:
        self._open_directories: dict[str, int] = {}  # open directories, by path

    def open(self, path: str, *, create: bool = False) -> int:
        """See `Files.open`."""
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return os.open(path, flags, FILE_MODE)

    def close(self, handle: int) -> None:
        """See `Files.close`."""
        os.close(handle)

    def size(self, handle: int) -> int:
        """See `Files.size`."""
        return os.fstat(handle).st_size

    def pwritev(self, handle: int, buffers: Sequence[Buffer], position: int) -> None:
        """See `Files.pwritev`."""
        written = os.pwritev(handle, buffers, position)
        if written == sum(map(len, buffers)):
            return
        rest = memoryview(b"".join(buffers))
        while written < len(rest):  # bounded: every turn writes at least a byte or raises
            step = os.pwrite(handle, rest[written:], position + written)
            if step == 0:
                raise OSError(errno.EIO, "a write made no progress")
            written += step

    write_part = staticmethod(write_part)
    """See `Files.write_part`; a kernel."""

    def pread(self, handle: int, size: int, position: int) -> bytes:
        """See `Files.pread`."""
        first = os.pread(handle, size, position)
        if len(first) == size or not first:
            return first
        parts = [first]
        missing = size - len(first)
        while missing:  # bounded: every turn reads at least a byte or ends
            part = os.pread(handle, missing, position + size - missing)
            if not part:
                break
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def truncate(self, handle: int, size: int) -> None:
        """See `Files.truncate`."""
        os.ftruncate(handle, size)

    def preallocate(self, handle: int, size: int) -> None:
        """See `Files.preallocate`."""
        if size == 0:
            return
        try:
            os.posix_fallocate(handle, 0, size)
        except OSError as error:
            # A file system without reservation still works: a full disk then shows at the write.
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
            if os.fstat(handle).st_size < size:
                os.ftruncate(handle, size)

    def fdatasync(self, handle: int) -> None:
        """See `Files.fdatasync`."""
        os.fdatasync(handle)

    def drop_cache(self, handle: int) -> None:
        """See `Files.drop_cache`."""
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)

    def lock(self, handle: int) -> bool:
        """See `Files.lock`."""
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def list(self, path: str) -> list[str]:
        """See `Files.list`."""
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def make_directory(self, path: str) -> bool:
        """See `Files.make_directory`."""
        try:
            os.mkdir(path, DIRECTORY_MODE)
        except FileExistsError:
            if not os.path.isdir(path):
                raise
            return False
        return True

    def remove_directory(self, path: str) -> None:
        """See `Files.remove_directory`."""
        try:
            os.rmdir(path)
        except FileNotFoundError:
            return

    def sync_directory(self, path: str) -> None:
        """See `Files.sync_directory`."""
        handle = self._open_directories.get(path)
        if handle is not None:
            os.fsync(handle)
            return
        try:
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            if is_short(error):
                raise NotBegun(error.errno, error.strerror, path) from error
            raise
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def keep_directory(self, path: str) -> None:
        """See `Files.keep_directory`."""
        try:
            handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return  # it is opened for each sync
        self.forget_directory(path)
        self._open_directories[path] = handle

    def forget_directory(self, path: str) -> None:
        """See `Files.forget_directory`."""
        handle = self._open_directories.pop(path, None)
        if handle is not None:
            os.close(handle)

    def rename(self, path: str, new_path: str) -> None:
        """See `Files.rename`."""
        os.rename(path, new_path)

    def unlink(self, path: str) -> None:
        """See `Files.unlink`."""
        try:
            os.unlink(path)
        except FileNotFoundError:
            return

    def space(self, path: str) -> tuple[int, int]:
        """See `Files.space`."""
        found = os.statvfs(path)
        return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


def sync_file(files: Files, handle: int) -> None:
    """`Files.fdatasync`. Raises `SyncFailed`, which is never temporary."""
    try:
        files.fdatasync(handle)
    except OSError as error:
        raise SyncFailed(error.errno, error.strerror) from error


def sync_names(files: Files, path: str) -> None:
    """`Files.sync_directory`.

    Raises:
        NotBegun: it was not tried; try again.
        SyncFailed: never temporary.
    """
    try:
        files.sync_directory(path)
    except NotBegun:
        raise
    except OSError as error:
        raise SyncFailed(error.errno, error.strerror, path) from error


def make_directories(files: Files, path: str) -> None:
    """Make a directory and the parents that it lacks, and make all their names durable.

    The names of those that are there are synced too: an earlier process may have made one and
    died before it synced it. Where that is not allowed or not possible (such a directory was not
    made by us), what is above is taken as durable.

    Raises OSError.
    """
    parent = os.path.dirname(path)
    try:
        made = files.make_directory(path)
    except FileNotFoundError:
        if parent == path:
            raise
        make_directories(files, parent)
        made = files.make_directory(path)
    if made:
        files.sync_directory(parent)
        path, parent = parent, os.path.dirname(parent)
    while path != parent:  # ends at the root
        try:
            files.sync_directory(parent)
        except OSError as error:
            if error.errno not in NOT_OURS:
                raise
            return
        path, parent = parent, os.path.dirname(parent)
