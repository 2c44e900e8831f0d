"""What can go wrong in the store, and who has to act.

* `TooLarge`: the caller's message. Nothing was stored and no offset was taken.
* `StorageFull`, `StorageBusy`: the disk has no room, or does not keep up. Nothing that append
  refuses was stored; reading goes on; the same call works again once there is room.
* `StorageShort`: the process has no descriptor or no memory for a call of the file system. The
  call did not happen, and it works again later.
* `Follows`: the log is the copy of another broker's. Reading goes on; publish there.
* `StorageFailed`: the disk failed a write or a sync. Final for this log directory until the
  process is started again, because after a failed sync nobody knows which pages are on the disk.
* `CorruptRecord`: bytes that are not the record that should stand there. Never served.
* `StoreRefused`, `StoreCorrupt`: the directory cannot be opened. One sentence says why and what
  the operator can do; nothing was changed.
"""

from __future__ import annotations

import errno
import os


class StoreError(Exception):
    """Base of everything that the store raises on purpose."""


class TooLarge(StoreError):
    """The body or the properties exceed a limit. Nothing was stored."""


class StorageFull(StoreError):
    """No room on the disk. What was refused was not stored; try again when there is room."""


class StorageBusy(StorageFull):
    """More is waiting for the disk than memory may hold. Try again after the next flush."""


class StorageShort(StorageFull):
    """The process has no descriptor or no memory for a call, which did not happen. Try again."""


class Follows(StorageFull):
    """The log is a copy of another broker's, and only what that one stored is appended to it."""


class StorageFailed(StoreError):
    """The disk failed. Final for the log directory until the process is started again."""


class CorruptRecord(StoreError):
    """The bytes at a position are not the record that should stand there.

    Args:
        position: where in the commit log (or in the given memory, when nothing better is known).
        text: what is wrong with it.
    """

    def __init__(self, position: int, text: str) -> None:
        super().__init__(f"record at {position}: {text}")
        self.position = position
        self.text = text


class StoreRefused(StoreError):
    """The directory cannot be opened as a store; the sentence says why."""


class StoreCorrupt(StoreRefused):
    """The directory holds a store that lost data which had been synced. Nothing was changed."""


class FailureLatch:
    """Remembers the first disk failure of a log directory, for ever.

    Shared by everything that writes to the directory, so that a failed sync in one thread stops
    the writes in all others. Never reset: a new process has to look at the disk anew.
    """

    __slots__ = ("_text", "failed", "short_count", "short_text")

    def __init__(self) -> None:
        self._text: str | None = None
        self.failed = False
        """Whether the directory has failed. Written once, by `fail`."""
        self.short_count = 0
        """How many calls did not happen for want of a descriptor or memory. They are repeated."""
        self.short_text = ""
        """The last of them."""

    def check(self) -> None:
        """Raise `StorageFailed` if the directory has failed."""
        if self._text is not None:
            raise StorageFailed(self._text)

    def fail(self, what: str, cause: OSError) -> StorageFailed:
        """Take note of a failure (the first one stays) and return the error to raise."""
        if self._text is None:
            self._text = f"{what}: {describe(cause)}"
            self.failed = True
        return StorageFailed(self._text)

    def translate(self, what: str, cause: OSError) -> StoreError:
        """The store's error for a failed call: a full disk is no failure, neither is a call that
        the process had no descriptor or memory for. Everything else is."""
        if is_full(cause):
            return StorageFull(f"{what}: {describe(cause)}")
        return self.short(what, cause) if is_short(cause) else self.fail(what, cause)

    def short(self, what: str, cause: OSError) -> StorageShort:
        """Take note of a call that did not happen, and return the error to raise. Any thread: two
        of them at the same moment may count as one."""
        self.short_text = f"{what}: {describe(cause)}"
        self.short_count += 1
        return StorageShort(self.short_text)


class SyncFailed(OSError):
    """A sync returned an error. Nobody knows what of it is on the disk, whatever the error is, so
    it is never a call that did not happen."""


class NotBegun(OSError):
    """A sync was not tried: the process has no descriptor or no memory for it. Nothing changed."""


def is_full(error: OSError) -> bool:
    """Whether the operating system says that there is no room: on the disk, in a quota, or below
    the largest size of a file that the process or the file system allows. A sync that says so has
    failed: what it should have written may be gone."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) and not isinstance(
        error, SyncFailed
    )


def is_short(error: OSError) -> bool:
    """Whether the call did not happen because the process has no descriptor or no memory for it."""
    return error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM) and not isinstance(
        error, SyncFailed
    )


def describe(error: OSError) -> str:
    """The operating system's words for an error, without Python's decoration."""
    return os.strerror(error.errno) if error.errno else str(error)
