"""Opening what a process left behind."""

from __future__ import annotations

from dataclasses import dataclass, field

from core_log.errors import FailureLatch, StoreRefused
from core_log.files import Files
from core_log.indexes import Indexes
from core_log.segments import Segment
from core_log.settings import StoreSettings

LOG_NAME = "commitlog"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryReport:
    """What recovery found and did, for the log line at start.

    Attributes:
        clean: whether the last process had closed the store.
        start: the first position that the log has.
        end: where the log ended, and goes on.
        scanned_bytes: how much of the log was read and checked.
        cut_bytes: what was behind the last sound record: how far bytes were found there.
        cut_reason: why the log ends where it ends.
        behind_cut: the position of a sound record behind the cut, or None. A crash can leave one
            (the disk may write later pages first), and so can a damaged disk.
        removed: files that were removed, with the reason.
        strays: files that are not ours and were left alone.
        rebuilt: queue number -> the first offset whose entry was made again from the log. Private
            entries made again have no expiry, priority or flags.
        rebuilt_all: why all indexes were made again, or empty.
    """

    clean: bool
    start: int
    end: int
    scanned_bytes: int = 0
    cut_bytes: int = 0
    cut_reason: str = ""
    behind_cut: int | None = None
    removed: tuple[str, ...] = ()
    strays: tuple[str, ...] = ()
    rebuilt: dict[int, int] = field(default_factory=dict)
    rebuilt_all: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """What a store goes on with."""

    segments: list[Segment]
    indexes: Indexes
    epochs: list[tuple[int, int]]
    report: RecoveryReport


def recover(
    *, directory: str, files: Files, settings: StoreSettings, failure: FailureLatch
) -> Recovered:
    """Bring a directory into order. Raises StoreRefused, OSError."""
    if files.list(f"{directory}/{LOG_NAME}"):
        raise StoreRefused(f"{directory} is not empty, and reading an old store comes next")
    indexes = Indexes(
        directory=directory,
        files=files,
        file_entries=settings.index_file_entries,
        failure=failure,
    )
    report = RecoveryReport(clean=True, start=0, end=0)
    return Recovered(segments=[], indexes=indexes, epochs=[], report=report)
