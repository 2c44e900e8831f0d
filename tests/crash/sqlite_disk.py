"""SQLite on the simulated disk: every call that it makes for a file is one of `Disk`.

`DiskStateDb` is the program's `StateDb` with SQLite as it is. Below it stands a VFS of SQLite that
asks a `Disk` for files, in the way of SQLite's own VFS for Unix (`os_unix.c`): the same calls, the
same answers to the same errors, a directory that is synced with the first sync of a new log or
journal, and whose failed sync is passed over there. So power may be cut at any of SQLite's calls,
any of them may fail, and other threads may have turns there, like everywhere on that disk.

Rules:

* One connection at a time has the file of one disk, as in the program: locks are always granted,
  and the index of SQLite's log is memory of its own for each connection.
* What a callback raises cannot pass SQLite, which is told that the call failed. Unless it was an
  error of the disk, it is raised again behind SQLite, and no later call reaches the disk: a process
  that was killed rolls nothing back.
* SQLite finds temporary files in memory: they need not survive anything.
"""

from __future__ import annotations

import _sqlite3
import ctypes
import errno
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, Final

from polymq.broker.state.database import SUFFIXES, Folded, Row, StateDb
from tests.crash.disk import Disk
from tests.harness.stores import DIRECTORY

PATH: Final = f"{DIRECTORY.rpartition('/')[0]}/state.db"
PRNG_SEED: Final = 28
"""`SQLITE_TESTCTRL_PRNG_SEED`."""
VFS_NAME: Final = b"polymq-crash"
PATH_BYTES_MAX: Final = 512
SECTOR_SIZE: Final = 4096
POWERSAFE_OVERWRITE: Final = 0x1000
"""What a write does not change stays as it is: SQLite's VFS for Unix says so, too."""

OK: Final = 0
IOERR: Final = 10
NOTFOUND: Final = 12
FULL: Final = 13
CANTOPEN: Final = 14
IOERR_READ: Final = IOERR | 1 << 8
IOERR_SHORT_READ: Final = IOERR | 2 << 8
IOERR_WRITE: Final = IOERR | 3 << 8
IOERR_FSYNC: Final = IOERR | 4 << 8
IOERR_DIR_FSYNC: Final = IOERR | 5 << 8
IOERR_TRUNCATE: Final = IOERR | 6 << 8
IOERR_FSTAT: Final = IOERR | 7 << 8
IOERR_DELETE: Final = IOERR | 10 << 8
IOERR_DELETE_NOENT: Final = IOERR | 23 << 8
OPEN_CREATE: Final = 0x4
OPEN_JOURNALS: Final = 0x800 | 0x4000 | 0x80000
"""Of a main database, of several, and the log."""

_pointer = ctypes.c_void_p
_int = ctypes.c_int
_long = ctypes.c_int64


class _SqliteFile(ctypes.Structure):
    """`sqlite3_file`, and behind it the number of what is open."""

    _fields_ = (("methods", _pointer), ("number", _long))


_File = ctypes.POINTER(_SqliteFile)
_METHODS: Final[tuple[tuple[str, Any], ...]] = (
    ("close", ctypes.CFUNCTYPE(_int, _File)),
    ("read", ctypes.CFUNCTYPE(_int, _File, _pointer, _int, _long)),
    ("write", ctypes.CFUNCTYPE(_int, _File, _pointer, _int, _long)),
    ("truncate", ctypes.CFUNCTYPE(_int, _File, _long)),
    ("sync", ctypes.CFUNCTYPE(_int, _File, _int)),
    ("size", ctypes.CFUNCTYPE(_int, _File, ctypes.POINTER(_long))),
    ("lock", ctypes.CFUNCTYPE(_int, _File, _int)),
    ("unlock", ctypes.CFUNCTYPE(_int, _File, _int)),
    ("is_reserved", ctypes.CFUNCTYPE(_int, _File, ctypes.POINTER(_int))),
    ("control", ctypes.CFUNCTYPE(_int, _File, _int, _pointer)),
    ("sector_size", ctypes.CFUNCTYPE(_int, _File)),
    ("characteristics", ctypes.CFUNCTYPE(_int, _File)),
    ("map", ctypes.CFUNCTYPE(_int, _File, _int, _int, _int, ctypes.POINTER(_pointer))),
    ("lock_map", ctypes.CFUNCTYPE(_int, _File, _int, _int, _int)),
    ("barrier", ctypes.CFUNCTYPE(None, _File)),
    ("unmap", ctypes.CFUNCTYPE(_int, _File, _int)),
)
_CALLS: Final[tuple[tuple[str, Any], ...]] = (
    (
        "open",
        ctypes.CFUNCTYPE(_int, _pointer, ctypes.c_char_p, _File, _int, ctypes.POINTER(_int)),
    ),
    ("delete", ctypes.CFUNCTYPE(_int, _pointer, ctypes.c_char_p, _int)),
    ("access", ctypes.CFUNCTYPE(_int, _pointer, ctypes.c_char_p, _int, ctypes.POINTER(_int))),
    ("full_path", ctypes.CFUNCTYPE(_int, _pointer, ctypes.c_char_p, _int, _pointer)),
)


class _IoMethods(ctypes.Structure):
    """`sqlite3_io_methods`, version 2."""

    _fields_ = (("version", _int), *_METHODS)


class _Vfs(ctypes.Structure):
    """`sqlite3_vfs`, version 1. What has no callback here is that of SQLite's own VFS."""

    _fields_ = (
        ("version", _int),
        ("file_size", _int),
        ("path_max", _int),
        ("following", _pointer),
        ("name", ctypes.c_char_p),
        ("data", _pointer),
        *_CALLS,
        *((name, _pointer) for name in ("dl_open", "dl_error", "dl_sym", "dl_close")),
        *((name, _pointer) for name in ("randomness", "sleep", "time", "last_error")),
    )


class OpenFile:
    """A file that SQLite has open.

    Attributes:
        handle: of the disk; 0 for a temporary file.
        unnamed: nobody has synced its name yet.
        maps: the index of the log, in pieces.
    """

    def __init__(self, session: Session, path: str, handle: int, *, unnamed: bool) -> None:
        self.session = session
        self.path = path
        self.handle = handle
        self.unnamed = unnamed
        self.maps: list[Any] = []
        self.temporary = bytearray()


class Session:
    """A connection, and the disk that it is on.

    Attributes:
        raised: what a callback raised that was no error of the disk: the process has ended.
    """

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.raised: BaseException | None = None

    def call(self, failed: int, function: Callable[[], int]) -> int:
        """What a call answers. `failed`: how SQLite names an error of the disk."""
        if self.raised is not None:
            return IOERR
        try:
            return function()
        except OSError as error:
            full = error.errno == errno.ENOSPC and failed == IOERR_WRITE
            return FULL if full else failed
        except BaseException as error:  # noqa: BLE001  (raised again behind SQLite)
            self.raised = error
            return IOERR


class DiskVfs:
    """The VFS, and all that SQLite has open on any disk."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self._files: dict[int, OpenFile] = {}
        self._numbers = count(1)
        library = ctypes.CDLL(getattr(_sqlite3, "__file__", None))  # what `sqlite3` itself uses
        library.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)
        own = library.sqlite3_vfs_find(None).contents
        methods = {name: kind(getattr(self, f"_{name}")) for name, kind in _METHODS}
        self._methods = _IoMethods(version=2, **methods)
        calls = {name: kind(getattr(self, f"_{name}")) for name, kind in _CALLS}
        others = ("dl_open", "dl_error", "dl_sym", "dl_close", "randomness", "sleep", "time")
        self._vfs = _Vfs(
            version=1,
            file_size=ctypes.sizeof(_SqliteFile),
            path_max=PATH_BYTES_MAX,
            name=VFS_NAME,
            **calls,
            **{name: getattr(own, name) for name in (*others, "last_error")},
        )
        library.sqlite3_vfs_register(ctypes.byref(self._vfs), 0)
        self._library = library

    def begin(self, disk: Disk) -> tuple[Session, str]:
        """A new connection's session, and the URI that it opens. SQLite's random numbers, which
        its journals have in their heads, are the same for each."""
        self._library.sqlite3_test_control(PRNG_SEED, 1, None)
        number = f"/{next(self._numbers)}"
        session = self._sessions[number] = Session(disk)
        return session, f"file:{number}{PATH}?vfs={VFS_NAME.decode()}"

    def end(self, session: Session) -> None:
        """The connection is closed."""
        self._sessions = {
            number: other for number, other in self._sessions.items() if other is not session
        }

    def _find(self, name: bytes) -> tuple[Session, str]:
        number, separator, path = name.decode()[1:].partition("/")
        return self._sessions[f"/{number}"], separator + path

    def _of(self, file: Any) -> OpenFile:
        return self._files[file.contents.number]

    # --- the VFS --------------------------------------------------------------------------------

    def _open(self, vfs: int, name: bytes | None, file: Any, flags: int, out: Any) -> int:
        file.contents.methods = None
        if name is None:
            session = Session(Disk())
            made = OpenFile(session, "", 0, unnamed=False)
        else:
            session, path = self._find(name)
            found: list[OpenFile] = []

            def open_file() -> int:
                disk = session.disk
                creates = bool(flags & OPEN_CREATE)
                is_new = creates and not disk.has(path)
                handle = disk.open(path, create=creates)
                unnamed = is_new and bool(flags & OPEN_JOURNALS)
                found.append(OpenFile(session, path, handle, unnamed=unnamed))
                return OK

            result = session.call(CANTOPEN, open_file)
            if result != OK:
                return result
            (made,) = found
        number = next(self._numbers)
        self._files[number] = made
        file.contents.number = number
        file.contents.methods = ctypes.addressof(self._methods)
        if out:
            out[0] = flags
        return OK

    def _delete(self, vfs: int, name: bytes, syncs: int) -> int:
        session, path = self._find(name)

        def delete() -> int:
            if not session.disk.has(path):
                return IOERR_DELETE_NOENT
            session.disk.unlink(path)
            return OK

        def sync() -> int:
            session.disk.sync_directory(path.rpartition("/")[0])
            return OK

        result = session.call(IOERR_DELETE, delete)
        if result == OK and syncs & 1:
            return session.call(IOERR_DIR_FSYNC, sync)
        return result

    def _access(self, vfs: int, name: bytes, flags: int, out: Any) -> int:
        session, path = self._find(name)
        out[0] = int(session.disk.has(path))
        return OK

    def _full_path(self, vfs: int, name: bytes, size: int, out: int) -> int:
        ctypes.memmove(out, name + b"\0", len(name) + 1)
        return OK

    # --- a file ---------------------------------------------------------------------------------

    def _close(self, file: Any) -> int:
        found = self._files.pop(file.contents.number)
        session = found.session
        if not found.handle:
            return OK

        def close() -> int:
            session.disk.close(found.handle)
            return OK

        session.call(IOERR, close)
        if session.raised is not None:  # the process has ended, and with it all that it had open
            session.disk.forget(found.handle)
        return OK

    def _read(self, file: Any, out: int, size: int, position: int) -> int:
        found = self._of(file)

        def read() -> int:
            if found.handle:
                data = found.session.disk.pread(found.handle, size, position)
            else:
                data = bytes(found.temporary[position : position + size])
            ctypes.memmove(out, data.ljust(size, b"\0"), size)
            return OK if len(data) == size else IOERR_SHORT_READ

        return found.session.call(IOERR_READ, read)

    def _write(self, file: Any, data: int, size: int, position: int) -> int:
        found = self._of(file)
        written = ctypes.string_at(data, size)

        def write() -> int:
            if found.handle:
                found.session.disk.pwritev(found.handle, (written,), position)
            else:
                found.temporary.extend(bytes(max(position + size - len(found.temporary), 0)))
                found.temporary[position : position + size] = written
            return OK

        return found.session.call(IOERR_WRITE, write)

    def _truncate(self, file: Any, size: int) -> int:
        found = self._of(file)

        def truncate() -> int:
            if found.handle:
                found.session.disk.truncate(found.handle, size)
            else:
                del found.temporary[size:]
            return OK

        return found.session.call(IOERR_TRUNCATE, truncate)

    def _sync(self, file: Any, flags: int) -> int:
        found = self._of(file)
        if not found.handle:
            return OK

        def sync() -> int:
            disk = found.session.disk
            disk.fdatasync(found.handle)
            if found.unnamed:
                with suppress(OSError):  # SQLite does not look at that one
                    disk.sync_directory(found.path.rpartition("/")[0])
                found.unnamed = False
            return OK

        return found.session.call(IOERR_FSYNC, sync)

    def _size(self, file: Any, out: Any) -> int:
        found = self._of(file)

        def size() -> int:
            disk = found.session.disk
            out[0] = disk.size(found.handle) if found.handle else len(found.temporary)
            return OK

        return found.session.call(IOERR_FSTAT, size)

    def _lock(self, file: Any, level: int) -> int:
        return OK

    def _unlock(self, file: Any, level: int) -> int:
        return OK

    def _is_reserved(self, file: Any, out: Any) -> int:
        out[0] = 0
        return OK

    def _control(self, file: Any, operation: int, value: int) -> int:
        return NOTFOUND

    def _sector_size(self, file: Any) -> int:
        return SECTOR_SIZE

    def _characteristics(self, file: Any) -> int:
        return POWERSAFE_OVERWRITE

    def _map(self, file: Any, piece: int, size: int, extends: int, out: Any) -> int:
        maps = self._of(file).maps
        while extends and len(maps) <= piece:
            maps.append(ctypes.create_string_buffer(size))
        out[0] = ctypes.addressof(maps[piece]) if piece < len(maps) else None
        return OK

    def _lock_map(self, file: Any, offset: int, count: int, flags: int) -> int:
        return OK

    def _barrier(self, file: Any) -> None:
        """There is one connection."""

    def _unmap(self, file: Any, deletes: int) -> int:
        self._of(file).maps.clear()
        return OK


@cache
def is_reachable() -> bool:
    """Whether SQLite can be given a VFS. Not so where Python has it within itself, with its names
    taken away."""
    return hasattr(ctypes.CDLL(getattr(_sqlite3, "__file__", None)), "sqlite3_vfs_register")


@cache
def disk_vfs() -> DiskVfs:
    """The one of this process: SQLite knows it until the process ends."""
    return DiskVfs()


class DiskConnection(sqlite3.Connection):
    """A connection that raises what ended the process while SQLite was at work."""

    session: Session

    def close(self) -> None:
        super().close()
        disk_vfs().end(self.session)


class DiskStateDb(StateDb):
    """`state.db` on a simulated disk.

    Args:
        on_saved: called in the thread that saved it.
    """

    def __init__(self, disk: Disk, on_saved: Callable[[], None] | None = None) -> None:
        super().__init__(Path(PATH))
        self.disk = disk
        self._on_saved = on_saved
        self._session: Session | None = None

    def load(self) -> Folded | None:
        try:
            return super().load()
        finally:
            self._raise_again()

    def save(self, position: int, epoch: int, rows: Iterable[Row]) -> None:
        try:
            super().save(position, epoch, rows)
        finally:
            self._raise_again()
        if self._on_saved is not None:
            self._on_saved()

    def _raise_again(self) -> None:
        session, self._session = self._session, None
        if session is not None and session.raised is not None:
            raise session.raised

    def _is_there(self) -> bool:
        return self.disk.has(PATH)

    def size_bytes(self) -> int:
        return len(self.disk.files()[PATH].data) if self._is_there() else 0

    def _open(self) -> sqlite3.Connection:
        handle = self.disk.open(PATH, create=True)
        self.disk.close(handle)
        session, uri = disk_vfs().begin(self.disk)
        self._session = session
        connection = sqlite3.connect(uri, uri=True, factory=DiskConnection)
        connection.session = session
        return connection

    def _remove(self) -> None:
        for suffix in SUFFIXES:
            self.disk.unlink(PATH + suffix)
