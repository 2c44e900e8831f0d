"""Room that is set aside for a full disk: a file that holds nothing, and can be given up.

Theory. To delete its oldest files, a store has to write first: rows of the state with SQLite's
journal, what a checkpoint says of the indexes, the list of epochs. Without a free byte it can write
nothing, and keeps what nobody wants. So a file holds the room for that while the disk has some. On
a full disk it is given up for the time in which the store saves and deletes (`lend`), and made
anew from what is left (`see_to`). An attempt that deletes nothing gets its room back, so that the
next one has it, too.

    the disk fills    no room is free, the file is whole
    lend              the file is empty; the store saves and deletes
    see_to            the file is whole again, and what was deleted is free

Rules:

* Nobody reads it and nothing depends on it: it is never synced, and whatever a crash leaves of it
  is right. A file of any size is taken as it is, and one that is missing is made.
* It is at most as large as what it leaves free, unless that much was lent.
* It is no part of a backup.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from polymq.core_log.errors import is_full
from polymq.core_log.files import Files

BALLAST_NAME: Final = "ballast"
DISK_PART_MAX: Final = 32
"""At most this part of a small disk (3 %)."""
HALVINGS_MAX: Final = 4
"""A file system needs some room for the file itself: half as much may fit where all does not."""


class Ballast:
    """The file of one store. One thread at a time.

    Args:
        directory: of the store.
        bytes_min, bytes_max: bounds of its size, whatever is asked for.

    Attributes:
        held_bytes: how much room it holds; -1 before the first `see_to`.
        is_lent: its room was given up, and `see_to` was not called since.
    """

    def __init__(self, *, directory: str, files: Files, bytes_min: int, bytes_max: int) -> None:
        self._directory = directory
        self._path = f"{directory}/{BALLAST_NAME}"
        self._files = files
        self._bytes_min = bytes_min
        self._bytes_max = bytes_max
        self._lent_bytes = 0
        self.held_bytes = -1
        self.is_lent = False

    def needed(self, state_bytes: int) -> int:
        """How much room saving and deleting take, at the most, where the saved state has this
        size: SQLite writes each page that changes to its journal first, and then to the file."""
        return min(max(2 * state_bytes, self._bytes_min), self._bytes_max)

    def see_to(self, state_bytes: int, free_bytes: int, disk_bytes: int) -> None:
        """Hold what is needed, or less if there is less room. Cheap if there is nothing to do.

        Raises:
            OSError: the file cannot be made; not because the disk is full.
        """
        if self.held_bytes > 0 and BALLAST_NAME not in self._files.list(self._directory):
            self.held_bytes = -1  # somebody has removed it
        goal = min(self.needed(state_bytes), disk_bytes // DISK_PART_MAX)
        held = max(self.held_bytes, 0)
        half = (held + free_bytes) // 2
        size = min(goal, max(half, min(self._lent_bytes, free_bytes)))
        if size > held or self.is_lent or self.held_bytes < 0:
            self._keep(size)

    def _keep(self, size: int) -> None:
        try:
            handle = self._files.open(self._path, create=True)
        except OSError as error:
            if not is_full(error):
                raise
            self.held_bytes = 0
            return
        try:
            held = self._files.size(handle)
            first, self.held_bytes = self.held_bytes < 0, held
            if first and held:
                self._allocate(handle, held)  # a copy of the directory may have left holes
            for _ in range(HALVINGS_MAX):
                if size <= held or self._allocate(handle, size):
                    break
                size = held + (size - held) // 2
        finally:
            self._files.close(handle)
            self.is_lent, self._lent_bytes = False, 0

    def _allocate(self, handle: int, size: int) -> bool:
        """Whether the file has room for so much now. Raises OSError."""
        held = self.held_bytes
        try:
            self._files.preallocate(handle, size)
        except OSError as error:
            if not is_full(error):
                raise
            with suppress(OSError):  # some of the room may have been taken
                self._files.truncate(handle, held)
            return False
        self.held_bytes = size
        return True

    def lend(self) -> int:
        """Give its room up. Returns how much that is. Raises OSError."""
        handle = self._files.open(self._path, create=True)
        try:
            size = self._files.size(handle)
            self._files.truncate(handle, 0)
        finally:
            self._files.close(handle)
        self.held_bytes, self._lent_bytes, self.is_lent = 0, size, True
        return size
