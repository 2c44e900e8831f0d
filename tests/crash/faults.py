"""Errors that a disk answers with.

A `Fault` decides for each call of `Files` whether it fails, and with which errno. Some errors say
that a call did not happen (`SHORTAGES`), some that there is no room (`FULL`): neither says anything
of the disk, and the store has to go on by itself when they are over. A sync that fails is final,
whatever its errno. So is every other error.
"""

from __future__ import annotations

import errno
from collections.abc import Collection, Mapping
from random import Random
from typing import Final

from polymq.core_log.ballast import BALLAST_NAME
from tests.crash.disk import Loss
from tests.crash.losses import Parts

NEVER: Final = 1 << 60
SPARE_NAMES: Final = ("state.db", BALLAST_NAME)
"""In the paths of files that the store does not need."""
SYNCS: Final = frozenset(("fdatasync", "sync_directory"))
NEED_ROOM: Final = frozenset(
    ("create", "pwritev", "truncate", "preallocate", "make_directory", "rename")
)
"""Calls that a full disk may refuse."""
REMOVE: Final = frozenset(("unlink", "remove_directory"))

SHORTAGES: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))
"""The process, or the machine, has no descriptor or no memory for a call."""
FULL: Final = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))

_OPEN: Final = (errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
_ROOM: Final = (errno.EIO, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_NAMES: Final = (errno.EIO, errno.ENOMEM, errno.EROFS, errno.EINTR)
CAN_GIVE: Final[Mapping[str, tuple[int, ...]]] = {
    "open": _OPEN,
    "create": (*_OPEN, errno.ENOSPC, errno.EDQUOT, errno.EROFS),
    "size": (errno.EIO, errno.ENOMEM),
    "pread": (errno.EIO, errno.ENOMEM),
    "pwritev": (*_ROOM, errno.EFBIG),
    "truncate": (*_ROOM, errno.EFBIG),
    "preallocate": (*_ROOM, errno.EFBIG),
    "fdatasync": _ROOM,
    "lock": (errno.ENOMEM, errno.ENOLCK),
    "list": _OPEN,
    "make_directory": (*_ROOM, errno.EINTR),
    "remove_directory": _NAMES,
    "sync_directory": (*_OPEN, errno.ENOSPC, errno.EDQUOT, errno.EROFS),
    "rename": (*_NAMES, errno.ENOSPC, errno.EDQUOT),
    "unlink": _NAMES,
    "space": (errno.EIO, errno.ENOMEM, errno.EINTR),
}
"""What each call may answer, by its manual page and by what network file systems add. Python and
the kernels repeat all others that a signal interrupts (PEP 475). "create" is an `open` that makes a
file. Three calls have no errors: what `drop_cache` does is a hint, `keep_directory` too, and
`close` gives the descriptor back whatever it answers."""


class Fault:
    """One error for some calls, once or for a while.

    Args:
        error: the errno.
        calls: the calls that may fail.
        first: the change (see `Disk.changes_count`) from which on calls may fail.
        count: how many calls fail.
        random: how much of a failing write, or of a failing sync, is there all the same.
        loss: decides what a failing sync leaves.

    Attributes:
        name: what it is, for the report.
        below: paths of the files whose calls may fail begin with this.
        failed: how many calls have failed.
        last: the last of them, and its errno.
        is_final: whether one of them says that the disk has failed.
        sync_failed: whether a sync did, since the store was opened.
        is_silent: whether a sync failed, and after it what would have left a note of that.
    """

    def __init__(
        self,
        *,
        error: int,
        calls: Collection[str],
        first: int,
        count: int,
        random: Random,
        loss: Loss,
    ) -> None:
        self.name = errno.errorcode.get(error, "")
        self.below = ""
        self.first = first
        self.random = random
        self.loss = loss
        self.failed = 0
        self.last = ""
        self.is_final = False
        self.sync_failed = False
        self.is_silent = False
        self._error = error
        self._calls = calls
        self._count = count
        self._unsynced = False

    def strikes(self, change: int, call: str, path: str) -> int:
        """The errno with which this call fails, or 0."""
        if not path.startswith(self.below):
            return 0
        if change < self.first or self.failed >= self._count:
            return 0
        error = self._draw(call)
        if error:
            self.failed += 1
            self.last = f"{errno.errorcode[error]} at {call}, change {change}"
            if any(name in path for name in SPARE_NAMES):
                return error  # it says nothing of the log
            passing = error in SHORTAGES or error in FULL
            if call in SYNCS:
                passing = call == "sync_directory" and error in SHORTAGES  # it was not tried
                self._unsynced = self._unsynced or not passing
                self.sync_failed = self.sync_failed or not passing
            elif self._unsynced and call == "create":
                self.is_silent = True
            self.is_final = self.is_final or not passing
        return error

    def is_done_all_the_same(self, error: OSError) -> bool:
        """Whether a call that changes a name has changed it, although it failed."""
        return error.errno in (errno.EIO, errno.EINTR) and self.random.random() < 0.5

    def _draw(self, call: str) -> int:
        return self._error if call in self._calls else 0


class Sprinkled(Fault):
    """Errors of many kinds, at any call, now and then.

    Args:
        name: see `Fault`.
        errors: which of those that a call can give.
        chance: how likely it is that a call fails which can give one of them.
    """

    def __init__(
        self, name: str, *, errors: Collection[int], chance: float, random: Random
    ) -> None:
        super().__init__(
            error=0,
            calls=(),
            first=0,
            count=NEVER,
            random=random,
            loss=Parts(random, random.choice((0.0, 0.5, 1.0))),
        )
        self.name = name
        self._chance = chance
        self._possible = {
            call: tuple(error for error in given if error in errors)
            for call, given in CAN_GIVE.items()
        }

    def _draw(self, call: str) -> int:
        possible = self._possible[call]
        if not possible or self.random.random() >= self._chance:
            return 0
        return self.random.choice(possible)


EVERY: Final = frozenset(error for given in CAN_GIVE.values() for error in given)
SPRINKLED: Final = (
    ("shortages", SHORTAGES),
    ("shortages and a full disk", SHORTAGES | FULL),
    ("any errors", EVERY),
    ("any errors", EVERY),
)
"""What may be sprinkled over calls: its name, and the errors."""
START_CHANCES: Final = (0.01, 0.03, 0.1)
"""How many calls of a start fail; it has about a hundred."""
