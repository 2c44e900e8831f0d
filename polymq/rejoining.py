"""A slave has what its master lacks: look at it, keep a copy, and cut it if nobody was promised it.

Else it stays as it is, a read-only copy that follows nobody, until an operator decides: to promote
the broker that has these records, or to give them up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from polymq.acknowledging import Acknowledging
from polymq.broker.engine import Engine
from polymq.broker.following.divergence import Divergence, diverged
from polymq.broker.topics.topic import Topic
from polymq.core_log.cut_copy import CutHead, keep_cut
from polymq.core_log.files import RealFiles
from polymq.core_log.store import Store
from polymq.errors import ExitCode, Failure
from polymq.logs import logger
from polymq.promotion import moment
from polymq.replication.server import Readers
from polymq.replication_memory import CUT_DIRECTORY, STORE_DIRECTORY


def disks_of(topic: Topic) -> int:
    """How many disks the messages of a topic wait for; 0 if it has no number of its own."""
    if topic.own_values.get("durability") == "page_cache":
        return 1
    return int(topic.own_values.get("min_in_sync", 0))


@dataclass(slots=True, kw_only=True, eq=False)
class Rejoining:
    """What one slave has beyond its master.

    Args:
        directory: the data directory.
        store: the slave's, to which nothing is appended while it does not follow.
        readers: threads that look and copy.
        cut: called with what may go, and with the path of its copy.

    Attributes:
        found: what hinders the slave from following; None if nothing does, or it is not known yet.
    """

    directory: Path
    store: Store
    engine: Engine
    readers: Readers
    acknowledging: Acknowledging
    clock_ms: Callable[[], int]
    cut: Callable[[Divergence, str], None]
    found: Divergence | None = None
    _looking: bool = False
    _path: str = ""  # of the copy of what was found

    def forget(self) -> None:
        """The slave follows: nothing hinders it."""
        self.found = None

    def look(self, position: int) -> None:
        """The master has this log up to a position only: see whether the rest may go. Returns at
        once, and does nothing while that is being looked at, or waits for an operator."""
        end, known = self.store.log.written, self.found
        if self._looking or (known is not None and (known.position, known.end) == (position, end)):
            return
        self._looking = True
        topics = self.engine.topics.topics.values()
        work = partial(
            self._look_and_keep,
            CutHead(position=position, end=end, epoch=self.store.epoch, cut_ms=self.clock_ms()),
            {topic.stored.encode(): disks_of(topic) for topic in topics},
        )
        self.readers.submit(work, self._looked)

    def _look_and_keep(self, head: CutHead, disks: dict[bytes, int]) -> tuple[Divergence, str]:
        """In a worker's thread. Raises CorruptRecord, OSError."""
        found = diverged(
            self.store,
            head.position,
            head.end,
            acknowledged=self.acknowledging.value,
            disks=disks,
        )
        store, directory = (str(self.directory / name) for name in (STORE_DIRECTORY, CUT_DIRECTORY))
        return found, keep_cut(RealFiles(), store, directory, head)

    def _looked(self, found: tuple[Divergence, str] | None, error: Exception | None) -> None:
        self._looking = False
        if found is None:
            logger("polymq").error(
                "not cut: what the master lacks cannot be read or copied", error=str(error)
            )
            return
        divergence, self._path = found
        if divergence.promised:
            self.found = divergence
            logger("polymq").error(self.refusal)
        else:
            self.cut(divergence, self._path)

    @property
    def refusal(self) -> str:
        """Why this broker does not follow, and what to do; empty if nothing was found."""
        found = self.found
        if found is None:
            return ""
        times = ""
        if found.messages:
            times = f", stored from {moment(found.first_ms)} to {moment(found.last_ms)}"
        return (
            f"not cut: the master has this log only up to {found.position:,}. After that this "
            f"broker has {found.messages:,} messages and {found.changes:,} changes of state "
            f"(positions {found.position:,} to {found.end:,}, {found.end - found.position:,} "
            f"bytes{times}), of which {found.promised:,} may have been acknowledged. It stays a "
            "read-only copy. Promote the broker that has them, or look at them (`polymq store cut "
            f"show {self._path}`) and give them up (`polymq broker follow --force`)"
        )

    def give_up(self, *, force: bool) -> dict[str, Any]:
        """Cut what was found. Returns it as a JSON value. Raises Failure if nothing was found, or
        `force` is False."""
        found = self.found
        if found is None:
            raise Failure(ExitCode.FAILED, "this broker has nothing that its master lacks")
        if not force:
            raise Failure(ExitCode.FAILED, self.refusal)
        self.cut(found, self._path)
        return {**asdict(found), "stored_in": self._path}
