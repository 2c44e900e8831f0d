"""A simulated disk that knows what it was not told to keep.

`Disk` is a `core_log.files.Files` in memory, for one thread at a time. For each file it holds what
processes see, what a power cut surely leaves, and the changes in between; for each directory the
same of its names. `crash(loss)` is the disk that is found after a power cut, where a `Loss`
(`losses.py`) decides about each change; `kill()` is the disk that is found when only the process
died.

The fault model, which is what the store has to bear:

* `fdatasync` keeps a file's bytes and its size, `sync_directory` a directory's names, as they were
  when it was called. Nothing else is kept: not a file's bytes by syncing its directory, not its
  name by syncing the file.
* Unsynced changes reach the disk in any order, also across files and directories, each or not: a
  sector of 512 bytes is written wholly or not at all, names and sizes change singly. A rename
  sets both names or none.
* A sector that was being written may also hold zeros, noise, or other places of the log. Bytes of
  it that the write did not change stay as they were: disks write sectors whole.
* A failed sync drops the dirty pages: processes go on to see them until they drop the cache, no
  later sync writes them. As long as the machine runs, the next process sees what an earlier one
  wrote, also a note.
* A full disk may take a part of a write before it says so.
* Any call may fail with any errno that the real one can give (`faults.py`). A name may be changed
  although the call that did it failed (EIO, EINTR).
* Preallocated room reads as zeros, as file systems with extents promise; what an earlier file with
  the same name held at the same place does not come back.
"""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from polymq.core_log.errors import NotBegun, is_short
from polymq.core_log.files import Buffer

if TYPE_CHECKING:
    from tests.crash.faults import Fault

SECTOR: Final = 512
LOG_PART: Final = "/commitlog/"
NEVER: Final = 1 << 60
ROOM_BYTES: Final = 1 << 40
"""Of a disk with room for everything."""


class Loss(Protocol):
    """Decides what of the unsynced changes a power cut left, one change after the other."""

    def keeps_name(self) -> bool:
        """Whether a name was made, removed or renamed."""

    def keeps_size(self) -> bool:
        """Whether a file's size was set."""

    def write(self, left: bytearray, offset: int, data: bytes) -> None:
        """Let some of the bytes that were written at `offset` be there."""


class File:
    """A file: what processes see (`data`), what the disk has, and the changes in between.

    Attributes:
        pending: (place, bytes written there), or (size, None) where the size was set.
        whole: whether `disk` and `pending` make up `data`. Not so after a failed sync.
    """

    __slots__ = ("data", "disk", "gone", "holder", "path", "pending", "whole")

    def __init__(self, data: bytes | bytearray = b"", disk: bytes | None = None) -> None:
        self.data = data
        self.disk = bytes(data) if disk is None else disk
        self.pending: list[tuple[int, bytes | None]] = []
        self.gone = 0  # how many changes are not pending any more
        self.holder = 0  # the handle that has the lock
        self.path = ""  # by which it was opened last
        self.whole = True

    def change(self, offset: int, written: bytes | None) -> None:
        """A process changes the file."""
        if isinstance(self.data, bytes):
            self.data = bytearray(self.data)
        self.pending.append((offset, written))
        apply(self.data, offset, written)

    @property
    def changes_count(self) -> int:
        """How many times processes have changed the file."""
        return self.gone + len(self.pending)

    def sync(self, changes_count: int = NEVER) -> None:
        """What is pending of the first so many changes is kept."""
        synced = self.pending[: max(changes_count - self.gone, 0)]
        if self.whole and len(synced) == len(self.pending):
            self.disk = bytes(self.data)
        else:
            left = bytearray(self.disk)
            for offset, written in synced:
                apply(left, offset, written)
            self.disk = bytes(left)
        self._forget(len(synced))

    def _forget(self, count: int) -> None:
        del self.pending[:count]
        self.gone += count

    def drop_cache(self) -> None:
        """Processes see what the disk has, and what is still to be written."""
        left = bytearray(self.disk)
        for offset, written in self.pending:
            apply(left, offset, written)
        self.data = left
        self.whole = True

    def left_by(self, loss: Loss) -> bytes:
        """What a power cut leaves."""
        if not self.pending:
            return self.disk
        left = bytearray(self.disk)
        for offset, written in self.pending:
            if written is not None:
                loss.write(left, offset, written)
            elif loss.keeps_size():
                apply(left, offset, None)
        return bytes(left)

    def fail_sync(self, loss: Loss) -> None:
        """A sync fails: some of it is on the disk, and the pages are clean."""
        self.disk = self.left_by(loss)
        self._forget(len(self.pending))
        self.whole = False

    def copy(self) -> File:
        """The same file, for another future."""
        made = File(bytes(self.data), self.disk)
        made.pending = list(self.pending)
        made.whole = self.whole
        return made


class Directory:
    """A directory: names as processes see them, as the disk has them, and changes in between."""

    __slots__ = ("disk", "gone", "names", "pending")

    def __init__(self) -> None:
        self.names: dict[str, Node] = {}
        self.disk: dict[str, Node] = {}
        self.pending: list[dict[str, Node | None]] = []
        self.gone = 0  # how many changes are not pending any more

    @property
    def changes_count(self) -> int:
        """How many times processes have changed the names."""
        return self.gone + len(self.pending)

    def change(self, changed: dict[str, Node | None]) -> None:
        """A process sets or removes (None) names, together."""
        self.pending.append(changed)
        rename(self.names, changed)

    def sync(self, changes_count: int) -> None:
        """What is pending of the first so many changes is kept."""
        synced = self.pending[: max(changes_count - self.gone, 0)]
        for changed in synced:
            rename(self.disk, changed)
        del self.pending[: len(synced)]
        self.gone += len(synced)

    def left_by(self, loss: Loss) -> Directory:
        """What a power cut leaves, with all that is below."""
        names = self.disk
        if self.pending:
            names = dict(names)
            for changed in self.pending:
                if loss.keeps_name():
                    rename(names, changed)
        left = Directory()
        for name, node in names.items():
            if isinstance(node, File):
                left.names[name] = File(node.left_by(loss))
            else:
                left.names[name] = node.left_by(loss)
        left.disk = dict(left.names)
        return left

    def copy(self, made: dict[int, Node]) -> Directory:
        """The same directory, for another future. `made`: nodes that were copied, by identity."""
        copied = Directory()

        def copy_of(node: Node) -> Node:
            found = made.get(id(node))
            if found is None:
                found = node.copy() if isinstance(node, File) else node.copy(made)
                made[id(node)] = found
            return found

        copied.names = {name: copy_of(node) for name, node in self.names.items()}
        copied.disk = {name: copy_of(node) for name, node in self.disk.items()}
        copied.pending = [
            {name: None if node is None else copy_of(node) for name, node in changed.items()}
            for changed in self.pending
        ]
        return copied


Node = File | Directory


def apply(data: bytearray, offset: int, written: bytes | None) -> None:
    """Write into a file's bytes, or set their number."""
    end = offset if written is None else offset + len(written)
    if len(data) < end:
        data.extend(bytes(end - len(data)))
    if written is None:
        del data[offset:]
    else:
        data[offset:end] = written


def rename(names: dict[str, Node], changed: dict[str, Node | None]) -> None:
    """Set or remove names."""
    for name, node in changed.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


class Disk:
    """A file system in memory. For one thread at a time.

    Attributes:
        changes_count: operations so far that change something or sync.
        off_at: power is cut during the change with this number: it may be there or not, and it and
            all later ones raise EIO.
        on_change: called after each change, before its call returns.
        yields: called when a call begins, before one that changes something returns, and while one
            syncs: other threads may have turns.
        fault: the error that some calls get.
        room: what `space` says; nothing takes from it.
        log_bytes_read: how much of the commit log's files was read.
        open_count: how many files are open.
    """

    def __init__(self, root: Directory | None = None) -> None:
        self._root = root or Directory()
        self._found: dict[str, Directory] = {}
        self._handles: dict[int, File] = {}
        self._next_handle = 1
        self.changes_count = 0
        self.off_at = NEVER
        self.on_change: Callable[[], None] | None = None
        self.yields: Callable[[], None] | None = None
        self.fault: Fault | None = None
        self.room = ROOM_BYTES, ROOM_BYTES
        self.log_bytes_read = 0

    @property
    def open_count(self) -> int:
        return len(self._handles)

    # --- futures --------------------------------------------------------------------------------

    def crash(self, loss: Loss) -> Disk:
        """The disk that is found when the machine is up again."""
        return Disk(self._root.left_by(loss))

    def kill(self) -> Disk:
        """The disk that is found when only the process died: all is there, and still unsynced."""
        return Disk(self._root.copy({}))

    def files(self) -> dict[str, File]:
        """All files by path, as processes see them."""
        found: dict[str, File] = {}

        def collect(directory: Directory, path: str) -> None:
            for name, node in directory.names.items():
                if isinstance(node, File):
                    found[f"{path}/{name}"] = node
                else:
                    collect(node, f"{path}/{name}")

        collect(self._root, "")
        return found

    def image(self) -> dict[str, bytes]:
        """The bytes of all files by path."""
        return {path: bytes(file.data) for path, file in self.files().items()}

    def has(self, path: str) -> bool:
        """Whether there is such a file."""
        try:
            self._file(path)
        except OSError:
            return False
        return True

    # --- inside ---------------------------------------------------------------------------------

    def _begin(self, call: str, path: str) -> None:
        """Count a change. Raises OSError where it must not take place."""
        self.changes_count += 1
        if self.changes_count > self.off_at:
            raise OSError(errno.EIO, "the machine is off")
        self._meet(call, path)

    def _meet(self, call: str, path: str) -> None:
        """Raise the error that the call gets, if there is one."""
        if self.fault is not None:
            error = self.fault.strikes(self.changes_count, call, path)
            if error:
                raise OSError(error, f"{call} fails")

    def _end(self) -> None:
        if self.changes_count == self.off_at:
            raise OSError(errno.EIO, "power was cut")
        if self.on_change is not None:
            self.on_change()
        self._yield()

    def _yield(self) -> None:
        if self.yields is not None:
            self.yields()

    def _change_names(
        self, call: str, path: str, directory: Directory, changed: dict[str, Node | None]
    ) -> None:
        """A call that sets or removes names. After some errors it has done so all the same."""
        try:
            self._begin(call, path)
        except OSError as error:
            if self.changes_count <= self.off_at:
                assert self.fault is not None
                if self.fault.is_done_all_the_same(error):
                    directory.change(changed)
            raise
        directory.change(changed)
        self._end()

    def _directory(self, path: str) -> Directory:
        found = self._found.get(path)
        if found is None:
            if path in ("", "/"):
                return self._root
            node = self._directory(posixpath.dirname(path)).names.get(posixpath.basename(path))
            if node is None:
                raise FileNotFoundError(errno.ENOENT, path)
            if isinstance(node, File):
                raise NotADirectoryError(errno.ENOTDIR, path)
            found = self._found[path] = node
        return found

    def _file(self, path: str) -> File:
        parent, _, name = path.rpartition("/")
        node = self._directory(parent).names.get(name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, path)
        if isinstance(node, Directory):
            raise IsADirectoryError(errno.EISDIR, path)
        return node

    # --- Files ----------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> int:
        self._yield()
        try:
            file = self._file(path)
        except FileNotFoundError:
            if not create:
                raise
            parent, _, name = path.rpartition("/")
            directory = self._directory(parent)
            file = File()
            self._change_names("create", path, directory, {name: file})
        else:
            self._meet("open", path)
        file.path = path
        handle = self._next_handle
        self._next_handle += 1
        self._handles[handle] = file
        return handle

    def close(self, handle: int) -> None:
        self._yield()
        file = self._handles.pop(handle)
        if file.holder == handle:
            file.holder = 0

    def forget(self, handle: int) -> None:
        """The process that had it open has ended."""
        self._handles.pop(handle, None)

    def size(self, handle: int) -> int:
        self._yield()
        file = self._handles[handle]
        self._meet("size", file.path)
        return len(file.data)

    def pread(self, handle: int, size: int, position: int) -> bytes:
        self._yield()
        file = self._handles[handle]
        self._meet("pread", file.path)
        found = bytes(file.data[position : position + size])
        if LOG_PART in file.path:
            self.log_bytes_read += len(found)
        return found

    def pwritev(self, handle: int, buffers: Sequence[Buffer], position: int) -> None:
        self._yield()
        data = b"".join(buffers)
        file = self._handles[handle]
        try:
            self._begin("pwritev", file.path)
        except OSError:
            if self.changes_count <= self.off_at:
                assert self.fault is not None
                file.change(position, data[: self.fault.random.randint(0, len(data))])
            raise
        file.change(position, data)
        self._end()

    def write_part(
        self, handle: int, memory: bytearray, start: int, end: int, position: int
    ) -> None:
        self.pwritev(handle, (memoryview(memory)[start:end],), position)

    def truncate(self, handle: int, size: int) -> None:
        self._yield()
        file = self._handles[handle]
        self._begin("truncate", file.path)
        file.change(size, None)
        self._end()

    def preallocate(self, handle: int, size: int) -> None:
        self._yield()
        file = self._handles[handle]
        if len(file.data) < size:
            self._begin("preallocate", file.path)
            file.change(size, None)
            self._end()

    def fdatasync(self, handle: int) -> None:
        self._yield()
        file = self._handles[handle]
        changes_count = file.changes_count
        self._yield()
        try:
            self._begin("fdatasync", file.path)
        except OSError:
            if self.changes_count <= self.off_at:
                assert self.fault is not None
                file.fail_sync(self.fault.loss)
            raise
        if self.changes_count != self.off_at:
            file.sync(changes_count)
        self._end()

    def drop_cache(self, handle: int) -> None:
        self._handles[handle].drop_cache()

    def lock(self, handle: int) -> bool:
        file = self._handles[handle]
        self._meet("lock", file.path)
        if file.holder:
            return False
        file.holder = handle
        return True

    def list(self, path: str) -> list[str]:
        self._yield()
        self._meet("list", path)
        try:
            return sorted(self._directory(path).names)
        except FileNotFoundError:
            return []

    def make_directory(self, path: str) -> bool:
        self._yield()
        parent, _, name = path.rpartition("/")
        directory = self._directory(parent)
        there = directory.names.get(name)
        if isinstance(there, File):
            raise FileExistsError(errno.EEXIST, path)
        if there is None:
            self._change_names("make_directory", path, directory, {name: Directory()})
        return there is None

    def remove_directory(self, path: str) -> None:
        self._yield()
        try:
            found = self._directory(path)
        except FileNotFoundError:
            return
        if found.names:
            raise OSError(errno.ENOTEMPTY, path)
        parent, _, name = path.rpartition("/")
        self._begin("remove_directory", path)
        self._found.pop(path, None)
        self._directory(parent).change({name: None})
        self._end()

    def sync_directory(self, path: str) -> None:
        self._yield()
        directory = self._directory(path)
        changes_count = directory.changes_count
        self._yield()
        try:
            self._begin("sync_directory", path)
        except OSError as error:
            if is_short(error):
                raise NotBegun(error.errno, "no descriptor for the directory") from error
            raise
        if self.changes_count != self.off_at:
            directory.sync(changes_count)
        self._end()

    def keep_directory(self, path: str) -> None:
        """Nothing: there are no descriptors."""

    def forget_directory(self, path: str) -> None:
        """Nothing."""

    def rename(self, path: str, new_path: str) -> None:
        self._yield()
        parent, _, name = path.rpartition("/")
        new_parent, _, new_name = new_path.rpartition("/")
        assert parent == new_parent, "a rename that two directories would have to agree on"
        file = self._file(path)
        self._change_names("rename", path, self._directory(parent), {name: None, new_name: file})

    def unlink(self, path: str) -> None:
        self._yield()
        try:
            self._file(path)
        except FileNotFoundError:
            return
        parent, _, name = path.rpartition("/")
        self._change_names("unlink", path, self._directory(parent), {name: None})

    def space(self, path: str) -> tuple[int, int]:
        self._meet("space", path)
        return self.room
