"""File systems for tests: one that loses what was not synced, one that holds syncs back, one that
fails where it is told to.

`MemoryFiles` keeps, beside what a process sees, what the disk surely has, and the list of changes
in between. `cut_power_after(n)` lets the n-th changing operation be the last one: it and all later
ones raise EIO, so the code under test stops by itself. `after_crash(chooser)` is then the file
system that the next process finds; the chooser decides which of the unsynced changes are there:

    NOTHING      only what was synced
    EVERYTHING   all of it
    Chooser(random)   any part: single sectors of 512 bytes in any order, names made, renamed or
                      removed or not, sizes without data; with `trash`, sectors of random bytes

`after_kill()` is what is found when only the process died: everything is there, but what was not
synced still is not.

`HeldFiles` and `FailingFiles` wrap any other files, real ones too.
"""

from __future__ import annotations

import errno
import os
import posixpath
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from polymq.core_log.files import Buffer, Files

SECTOR = 512


class Chooser:
    """Decides, change by change, what a crash left on the disk.

    Args:
        random: the source of decisions.
        likely: how likely it is that a change is there.
        trash: how likely it is that a sector that was being written holds random bytes.
    """

    def __init__(self, random: Random, *, likely: float = 0.5, trash: float = 0.0) -> None:
        self._random = random
        self._likely = likely
        self._trash = trash

    def takes(self) -> bool:
        return self._random.random() < self._likely

    def trashes(self) -> bool:
        return self._trash > 0 and self._random.random() < self._trash

    def noise(self, size: int) -> bytes:
        return self._random.randbytes(size)


NOTHING = Chooser(Random(0), likely=0.0)
EVERYTHING = Chooser(Random(0), likely=1.1)


@dataclass
class FileNode:
    """A file: what processes see, what the disk has, and the changes in between."""

    now: bytearray = field(default_factory=bytearray)
    synced: bytes = b""
    pending: list[tuple[int, bytes | None]] = field(default_factory=list)
    """(place, bytes written there), or (size, None) where the size was set."""
    holder: int | None = None
    """The handle that holds the lock."""

    def apply(self, offset: int, data: bytes | None) -> None:
        """A process changes the file."""
        self.pending.append((offset, data))
        change(self.now, offset, data)

    def after_crash(self, chooser: Chooser) -> bytes:
        """What of the file a crash left."""
        left = bytearray(self.synced)
        for offset, data in self.pending:
            if data is None:
                if chooser.takes():
                    change(left, offset, None)
                continue
            for start in range(offset - offset % SECTOR, offset + len(data), SECTOR):
                low, high = max(start, offset), min(start + SECTOR, offset + len(data))
                if chooser.trashes():
                    change(left, low, chooser.noise(high - low))
                elif chooser.takes():
                    change(left, low, data[low - offset : high - offset])
        return bytes(left)


@dataclass
class DirectoryNode:
    """A directory: names as processes see them, as the disk has them, and changes in between."""

    now: dict[str, FileNode | DirectoryNode] = field(default_factory=dict)
    synced: dict[str, FileNode | DirectoryNode] = field(default_factory=dict)
    pending: list[dict[str, FileNode | DirectoryNode | None]] = field(default_factory=list)
    """Each change: the names that it set (or removed), together."""

    def apply(self, changed: dict[str, FileNode | DirectoryNode | None]) -> None:
        self.pending.append(changed)
        rename_all(self.now, changed)

    def after_crash(self, chooser: Chooser) -> DirectoryNode:
        names = dict(self.synced)
        for changed in self.pending:
            if chooser.takes():
                rename_all(names, changed)
        left = DirectoryNode()
        for name, node in names.items():
            if isinstance(node, DirectoryNode):
                left.now[name] = node.after_crash(chooser)
            else:
                data = node.after_crash(chooser)
                left.now[name] = FileNode(now=bytearray(data), synced=data)
        left.synced = dict(left.now)
        return left


def change(data: bytearray, offset: int, written: bytes | None) -> None:
    """Write into a file's bytes, or set their number."""
    size = offset if written is None else offset + len(written)
    if len(data) < size:
        data.extend(bytes(size - len(data)))
    if written is None:
        del data[offset:]
    else:
        data[offset:size] = written


def rename_all(
    names: dict[str, FileNode | DirectoryNode],
    changed: dict[str, FileNode | DirectoryNode | None],
) -> None:
    for name, node in changed.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


class MemoryFiles:
    """A file system in memory that knows what was synced."""

    size_bytes = 1 << 40
    free_bytes = 1 << 40
    """What `space` says; nothing takes from it."""

    def __init__(self, root: DirectoryNode | None = None) -> None:
        self._root = root or DirectoryNode()
        self._handles: dict[int, FileNode] = {}
        self._next_handle = 1
        self._mutex = threading.RLock()
        self._changes_left: int | None = None
        self.changes_count = 0
        """Changing operations so far: where power can be cut."""

    # --- the test's side ------------------------------------------------------------------------

    def cut_power_after(self, count: int) -> None:
        """Let `count` more changing operations succeed; the next one is cut short."""
        self._changes_left = count

    def after_crash(self, chooser: Chooser) -> MemoryFiles:
        """The file system that is found when the machine is up again."""
        with self._mutex:
            return MemoryFiles(self._root.after_crash(chooser))

    def after_kill(self) -> MemoryFiles:
        """What the next process finds when only the process died: the same pages, of which some
        are still not on the disk."""
        with self._mutex:
            for node in self._handles.values():
                node.holder = None
            return MemoryFiles(self._root)

    def read(self, path: str) -> bytes:
        """A file's bytes."""
        return bytes(self._file(path).now)

    def overwrite(self, path: str, data: bytes) -> None:
        """Replace a file's bytes, on the disk too: damage, not a write."""
        node = self._file(path)
        node.now[:] = data
        node.synced = bytes(data)
        node.pending.clear()

    def image(self) -> dict[str, bytes]:
        """All files by path."""
        found: dict[str, bytes] = {}

        def collect(directory: DirectoryNode, path: str) -> None:
            for name, node in directory.now.items():
                if isinstance(node, DirectoryNode):
                    collect(node, f"{path}/{name}")
                else:
                    found[f"{path}/{name}"] = bytes(node.now)

        collect(self._root, "")
        return found

    # --- inside ---------------------------------------------------------------------------------

    def _changing(self) -> bool:
        """Count a changing operation. True if power is cut during it: do it, then raise."""
        self.changes_count += 1
        if self._changes_left is None:
            return False
        self._changes_left -= 1
        if self._changes_left < -1:
            raise OSError(errno.EIO, "the machine is off")
        return self._changes_left == -1

    @staticmethod
    def _cut(cut: bool) -> None:
        if cut:
            raise OSError(errno.EIO, "power was cut")

    def _directory(self, path: str) -> DirectoryNode:
        node: FileNode | DirectoryNode | None = self._root
        for name in path.strip("/").split("/"):
            if name:
                if isinstance(node, FileNode):
                    raise NotADirectoryError(errno.ENOTDIR, path)
                assert node is not None
                node = node.now.get(name)
                if node is None:
                    raise FileNotFoundError(errno.ENOENT, path)
        if not isinstance(node, DirectoryNode):
            raise NotADirectoryError(errno.ENOTDIR, path)
        return node

    def _file(self, path: str) -> FileNode:
        node = self._directory(posixpath.dirname(path)).now.get(posixpath.basename(path))
        if node is None:
            raise FileNotFoundError(errno.ENOENT, path)
        if isinstance(node, DirectoryNode):
            raise IsADirectoryError(errno.EISDIR, path)
        return node

    # --- Files ----------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> int:
        with self._mutex:
            try:
                node = self._file(path)
            except FileNotFoundError:
                if not create:
                    raise
                directory = self._directory(posixpath.dirname(path))
                cut = self._changing()
                node = FileNode()
                directory.apply({posixpath.basename(path): node})
                self._cut(cut)
            handle = self._next_handle
            self._next_handle += 1
            self._handles[handle] = node
            return handle

    def close(self, handle: int) -> None:
        with self._mutex:
            node = self._handles.pop(handle)
            if node.holder == handle:
                node.holder = None

    def size(self, handle: int) -> int:
        with self._mutex:
            return len(self._handles[handle].now)

    def pread(self, handle: int, size: int, position: int) -> bytes:
        with self._mutex:
            return bytes(self._handles[handle].now[position : position + size])

    def pwritev(self, handle: int, buffers: Sequence[Buffer], position: int) -> None:
        with self._mutex:
            cut = self._changing()
            self._handles[handle].apply(position, b"".join(buffers))
            self._cut(cut)

    def write_part(
        self, handle: int, memory: bytearray, start: int, end: int, position: int
    ) -> None:
        self.pwritev(handle, (memoryview(memory)[start:end],), position)

    def truncate(self, handle: int, size: int) -> None:
        with self._mutex:
            cut = self._changing()
            self._handles[handle].apply(size, None)
            self._cut(cut)

    def preallocate(self, handle: int, size: int) -> None:
        with self._mutex:
            if len(self._handles[handle].now) < size:
                self.truncate(handle, size)

    def fdatasync(self, handle: int) -> None:
        with self._mutex:
            self._cut(self._changing())
            node = self._handles[handle]
            node.synced = bytes(node.now)
            node.pending.clear()

    def drop_cache(self, handle: int) -> None:
        """Nothing: no sync fails here without power being cut, too."""

    def lock(self, handle: int) -> bool:
        with self._mutex:
            node = self._handles[handle]
            if node.holder is not None:
                return False
            node.holder = handle
            return True

    def list(self, path: str) -> list[str]:
        with self._mutex:
            try:
                return sorted(self._directory(path).now)
            except FileNotFoundError:
                return []

    def make_directory(self, path: str) -> bool:
        with self._mutex:
            directory = self._directory(posixpath.dirname(path))
            name = posixpath.basename(path)
            there = directory.now.get(name)
            if isinstance(there, FileNode):
                raise FileExistsError(errno.EEXIST, path)
            if there is None:
                cut = self._changing()
                directory.apply({name: DirectoryNode()})
                self._cut(cut)
            return there is None

    def remove_directory(self, path: str) -> None:
        with self._mutex:
            try:
                node = self._directory(path)
            except FileNotFoundError:
                return
            if node.now:
                raise OSError(errno.ENOTEMPTY, path)
            cut = self._changing()
            self._directory(posixpath.dirname(path)).apply({posixpath.basename(path): None})
            self._cut(cut)

    def sync_directory(self, path: str) -> None:
        with self._mutex:
            node = self._directory(path)
            self._cut(self._changing())
            node.synced = dict(node.now)
            node.pending.clear()

    def keep_directory(self, path: str) -> None:
        """Nothing: there are no descriptors."""

    def forget_directory(self, path: str) -> None:
        """Nothing."""

    def rename(self, path: str, new_path: str) -> None:
        with self._mutex:
            directory = self._directory(posixpath.dirname(path))
            assert directory is self._directory(posixpath.dirname(new_path))
            node = self._file(path)
            cut = self._changing()
            directory.apply({posixpath.basename(path): None, posixpath.basename(new_path): node})
            self._cut(cut)

    def unlink(self, path: str) -> None:
        with self._mutex:
            try:
                self._file(path)
            except FileNotFoundError:
                return
            cut = self._changing()
            self._directory(posixpath.dirname(path)).apply({posixpath.basename(path): None})
            self._cut(cut)

    def space(self, path: str) -> tuple[int, int]:
        return self.free_bytes, self.size_bytes


class WrappedFiles:
    """Passes everything on to other files. The base of those that interfere."""

    def __init__(self, files: Files) -> None:
        self.files = files

    def open(self, path: str, *, create: bool = False) -> int:
        return self.files.open(path, create=create)

    def close(self, handle: int) -> None:
        self.files.close(handle)

    def size(self, handle: int) -> int:
        return self.files.size(handle)

    def pread(self, handle: int, size: int, position: int) -> bytes:
        return self.files.pread(handle, size, position)

    def pwritev(self, handle: int, buffers: Sequence[Buffer], position: int) -> None:
        self.files.pwritev(handle, buffers, position)

    def write_part(
        self, handle: int, memory: bytearray, start: int, end: int, position: int
    ) -> None:
        self.pwritev(handle, (memoryview(memory)[start:end],), position)

    def truncate(self, handle: int, size: int) -> None:
        self.files.truncate(handle, size)

    def preallocate(self, handle: int, size: int) -> None:
        self.files.preallocate(handle, size)

    def fdatasync(self, handle: int) -> None:
        self.files.fdatasync(handle)

    def drop_cache(self, handle: int) -> None:
        self.files.drop_cache(handle)

    def lock(self, handle: int) -> bool:
        return self.files.lock(handle)

    def list(self, path: str) -> list[str]:
        return self.files.list(path)

    def make_directory(self, path: str) -> bool:
        return self.files.make_directory(path)

    def remove_directory(self, path: str) -> None:
        self.files.remove_directory(path)

    def sync_directory(self, path: str) -> None:
        self.files.sync_directory(path)

    def keep_directory(self, path: str) -> None:
        self.files.keep_directory(path)

    def forget_directory(self, path: str) -> None:
        self.files.forget_directory(path)

    def rename(self, path: str, new_path: str) -> None:
        self.files.rename(path, new_path)

    def unlink(self, path: str) -> None:
        self.files.unlink(path)

    def space(self, path: str) -> tuple[int, int]:
        return self.files.space(path)


class HeldFiles(WrappedFiles):
    """Files whose `fdatasync` waits while it is held.

    `block()`, let the code ask for a sync, `wait_until_held()`, look at what must not have
    happened, `release()`. Nothing here waits longer than `seconds_max`.
    """

    def __init__(self, files: Files, *, seconds_max: float = 30.0) -> None:
        super().__init__(files)
        self._seconds_max = seconds_max
        self._open = threading.Event()
        self._open.set()
        self._arrived = threading.Semaphore(0)
        self.syncs_count = 0
        """Syncs that were let through."""

    def block(self) -> None:
        """From now on, syncs wait."""
        self._open.clear()

    def wait_until_held(self) -> None:
        """Return once a sync waits that no earlier call has seen."""
        assert self._arrived.acquire(timeout=self._seconds_max), "no sync was asked for"

    def release(self) -> None:
        """Let all through."""
        self._open.set()

    def fdatasync(self, handle: int) -> None:
        if not self._open.is_set():
            self._arrived.release()
            assert self._open.wait(self._seconds_max), "a held sync was never released"
        self.syncs_count += 1
        self.files.fdatasync(handle)


class FailingFiles(WrappedFiles):
    """Files that fail where they are told to.

    `fail("fdatasync", errno.EIO)` lets the next fdatasync fail; `after=2` the third; `count=None`
    that one and all later ones. `calls` counts all calls by name.
    """

    NAMES = (
        "open",
        "pread",
        "pwritev",
        "truncate",
        "preallocate",
        "fdatasync",
        "list",
        "make_directory",
        "sync_directory",
        "rename",
        "unlink",
    )

    def __init__(self, files: Files) -> None:
        super().__init__(files)
        self.calls: dict[str, int] = dict.fromkeys(self.NAMES, 0)
        self._plans: dict[str, tuple[int, int | None, int]] = {}
        for name in self.NAMES:
            setattr(self, name, self._watched(name, getattr(files, name)))

    def fail(self, name: str, error: int, *, after: int = 0, count: int | None = 1) -> None:
        """Let calls of `name` fail with an errno: `count` of them (None: all), `after` others."""
        first = self.calls[name] + after
        self._plans[name] = (first, None if count is None else first + count, error)

    def heal(self) -> None:
        """Fail no more."""
        self._plans.clear()

    def _watched(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            number = self.calls[name]
            self.calls[name] = number + 1
            first, end, error = self._plans.get(name, (number + 1, None, 0))
            if first <= number and (end is None or number < end):
                raise OSError(error, os.strerror(error))
            return method(*args, **kwargs)

        return call
