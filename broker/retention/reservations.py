"""Reservations: parts of the log that somebody outside is copying, such as a backup.

What is reserved is not deleted. Whoever has a reservation renews it, says from which position on it
still needs the log, and ends it. One that is not renewed ends by itself, so nobody who was killed
or hangs holds the disk. All end when the disk is so full that publishers are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from polymq.broker.disk import Disk, DiskState
from polymq.broker.errors import Reason, Refused
from polymq.broker.pacing.scheduler import Scheduler

RESERVATIONS_MAX: Final = 4
"""More backups at a time only take the disk from each other."""
SECONDS_MAX: Final = 3600
"""A reservation that is not renewed for an hour belongs to nobody."""


class Reservation:
    """A part of the log, from a position on.

    Attributes:
        name: by which its owner renews and ends it.
        position: nothing from here on is deleted.
        end: up to where the owner copies.
        seconds: it ends by itself that long after the last renewal, or at most twice as long.
    """

    __slots__ = ("end", "name", "position", "renewed", "seconds")

    def __init__(self, name: str, position: int, end: int, seconds: float) -> None:
        self.name = name
        self.position = position
        self.end = end
        self.seconds = seconds
        self.renewed = True


class Reservations:
    """All reservations. They belong to the loop's thread, and do not survive the process.

    Args:
        disk: the log's.
        epoch: of this opening of the log: names that another process has given are not found.

    Attributes:
        expired_count: those that were not renewed in time, since the start.
        dropped_count: those that ended because the disk was full.
    """

    def __init__(self, *, scheduler: Scheduler, disk: Disk, epoch: int) -> None:
        self._scheduler = scheduler
        self._disk = disk
        self._epoch = epoch
        self._active: dict[str, Reservation] = {}
        self._begun_count = 0
        self.expired_count = 0
        self.dropped_count = 0
        disk.watch(self._room_changed)

    def __iter__(self) -> Iterator[Reservation]:
        return iter(list(self._active.values()))

    def __len__(self) -> int:
        return len(self._active)

    @property
    def lowest(self) -> Reservation | None:
        """The one that needs the oldest part."""
        return min(self._active.values(), key=lambda found: found.position, default=None)

    def bound(self, position: int) -> int:
        """Up to where the log may be deleted of what is before `position`."""
        lowest = self.lowest
        return position if lowest is None else min(position, lowest.position)

    def begin(self, position: int, end: int, seconds: float) -> Reservation:
        """Reserve the log from a position on. Raises Refused."""
        if not 0 < seconds <= SECONDS_MAX:
            raise Refused(Reason.BAD_ARGUMENT, f"seconds must be above 0, up to {SECONDS_MAX}")
        if len(self._active) >= RESERVATIONS_MAX:
            raise Refused(
                Reason.LIMIT, f"{len(self._active)} backups are being taken: wait for one of them"
            )
        if self._disk.state is DiskState.FULL:
            raise Refused(Reason.STORAGE_FULL, self._disk.reason)
        self._begun_count += 1
        name = f"{self._epoch}-{self._begun_count}"
        made = self._active[name] = Reservation(name, position, end, seconds)
        self._watch(made)
        return made

    def renew(self, name: str, position: int) -> Reservation:
        """It is still needed, from a position on. Raises Refused: it has ended."""
        found = self._active.get(name)
        if found is None:
            raise Refused(
                Reason.NOT_FOUND,
                "the server does not reserve the log for this backup any more: it was not heard of"
                " for too long, the disk is full, or the server was started again",
            )
        found.renewed = True
        found.position = max(found.position, position)
        return found

    def end(self, name: str) -> Reservation:
        """It is not needed any more. Raises Refused: it has ended already."""
        found = self.renew(name, 0)
        del self._active[name]
        return found

    def _room_changed(self, reason: str) -> None:
        if reason:
            self.dropped_count += len(self._active)
            self._active.clear()

    def _watch(self, watched: Reservation) -> None:
        watched.renewed = False
        self._scheduler.call_later(watched.seconds, lambda: self._look(watched))

    def _look(self, watched: Reservation) -> None:
        if self._active.get(watched.name) is not watched:
            return
        if watched.renewed:
            self._watch(watched)
            return
        del self._active[watched.name]
        self.expired_count += 1
