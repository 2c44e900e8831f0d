"""How much room the disk has, and what follows from it.

    ok      enough
    low     below the early mark: retention deletes earlier than due what it may
    full    below the reserve, or a write met a full disk: publishers are refused

Theory. A log that fills its disk to the last byte cannot even take the acks that would let it
delete something. So publishers are refused while there is still a reserve: acks, deletions and
whatever else lets go of messages are written into it, readers go on, and retention can write its
snapshot. With room again (a little more than the reserve, so that it does not flap) publishers go
on by themselves.

Rules:

* This file measures nothing and waits for nothing: it is told (`measured`, `met_full`, `wrote`).
* `full` is what the publish path asks; `log_full` is what the log itself met.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

RESERVE_SEGMENTS: Final = 3
"""The segment that is written to may need a next one, and a snapshot of the state one more."""
RESERVE_PART: Final = 20
"""A twentieth of the disk (5 %) ..."""
RESERVE_BYTES_MAX: Final = 16 << 30
"""... but not more than acks ever need, on however large a disk."""
RESERVE_PART_MAX: Final = 4
"""Of a small disk, never more than a quarter."""
MIB: Final = 1024 * 1024
SHORT: Final = "the process has no file descriptor or no memory left"
RESUME_PART: Final = 10
"""Room beyond the reserve, as a part of it, before publishers go on."""


class DiskState(enum.Enum):
    """What the room on the disk allows."""

    OK = "ok"
    LOW = "low"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskSettings:
    """Where the marks are.

    Attributes:
        reserve_bytes: free space below which publishers are refused. 0: the larger of three
            segments and 5 % of the disk (at most 16 GiB), but at most a quarter of the disk.
        early_bytes: free space below which is deleted earlier than due. 0: twice the reserve.
        log_bytes_max: how large the log may become before topics whose retention has a limit lose
            their oldest messages earlier than due, by their place in the log; 0: as large as the
            disk allows.
        drop_oldest: whether queues and sessions lose their oldest unsettled messages before
            publishers are refused for want of room.
    """

    reserve_bytes: int = 0
    early_bytes: int = 0
    drop_oldest: bool = False
    log_bytes_max: int = 0


class Disk:
    """The room on the log's disk.

    Args:
        segment_bytes: the size of one of the log's files.

    Attributes:
        full: publishers are refused.
        log_full: a write met a full disk; everything appended waits in memory.
        free_bytes, size_bytes: as last measured; -1 before that.
    """

    def __init__(self, *, segment_bytes: int, settings: DiskSettings) -> None:
        self.settings = settings
        self.full = False
        self.log_full = False
        self.free_bytes = -1
        self.size_bytes = -1
        self._segment_bytes = segment_bytes
        self._log_reason = ""
        self._short = False
        self._watchers: list[Callable[[str], None]] = []

    def watch(self, callback: Callable[[str], None]) -> None:
        """Call back when publishers begin to be refused, with the reason, and with an empty text
        when they are not any more."""
        self._watchers.append(callback)

    def change(self, settings: DiskSettings) -> None:
        """Other marks from now on."""
        self.settings = settings
        if self.size_bytes >= 0:
            self.measured(self.free_bytes, self.size_bytes)

    # --- what it is told --------------------------------------------------------------------

    def measured(self, free_bytes: int, size_bytes: int) -> None:
        """The file system was asked."""
        self.free_bytes, self.size_bytes = free_bytes, size_bytes
        reserve = self.reserve_bytes
        self._short = free_bytes < reserve + (reserve // RESUME_PART if self._short else 0)
        self._decide()

    def met_full(self, reason: str = "the disk is full: free some space") -> None:
        """A write of the log met a full disk, or there was no memory for it."""
        self.log_full = True
        self._log_reason = reason
        self._decide()

    def wrote(self) -> None:
        """The log could be written."""
        self.log_full = False
        self._decide()

    def _decide(self) -> None:
        full = self.log_full or self._short
        if full != self.full:
            self.full = full
            for callback in self._watchers:
                callback(self.reason)

    # --- what follows -----------------------------------------------------------------------

    @property
    def reserve_bytes(self) -> int:
        """Free space below which publishers are refused."""
        if self.settings.reserve_bytes:
            return self.settings.reserve_bytes
        part = min(self.size_bytes // RESERVE_PART, RESERVE_BYTES_MAX)
        reserve = max(RESERVE_SEGMENTS * self._segment_bytes, part)
        return min(reserve, self.size_bytes // RESERVE_PART_MAX)

    @property
    def early_bytes(self) -> int:
        """Free space below which retention deletes earlier than due."""
        return max(self.settings.early_bytes or 2 * self.reserve_bytes, self.reserve_bytes)

    @property
    def wanted_bytes(self) -> int:
        """How much has to be deleted to be above the early mark; 0 if nothing."""
        return max(0, self.early_bytes - self.free_bytes) if self.size_bytes > 0 else 0

    @property
    def state(self) -> DiskState:
        """In one word."""
        if self.full:
            return DiskState.FULL
        return DiskState.LOW if self.wanted_bytes else DiskState.OK

    @property
    def reason(self) -> str:
        """Why publishers are refused; empty if they are not."""
        if self.log_full:
            return self._log_reason
        if self._short:
            return (
                f"the disk is nearly full ({self.free_bytes / MIB:,.1f} MiB are free, and "
                f"{self.reserve_bytes / MIB:,.1f} MiB are reserved for acknowledgements): free "
                "some space"
            )
        return ""
