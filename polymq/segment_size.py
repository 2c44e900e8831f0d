"""How large the files of the log are, where the configuration leaves it open.

A gigabyte each, as RocketMQ has it. On a small disk that is much at once for a first message, and
retention deletes whole files: there they are a sixty-fourth of the free room. It is decided when a
log is first made: later starts keep the size that its files have.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from polymq.core_log.files import Files
from polymq.core_log.recovery import LOG_NAME, is_segment_name
from polymq.logs import logger
from polymq.replication_memory import STORE_DIRECTORY
from polymq.settings import MIB, Settings

SEGMENT_BYTES_MAX: Final = 1024 * MIB
SEGMENT_BYTES_MIN: Final = 16 * MIB
"""Four times the largest message, and a file for a second of a busy server."""
ROOM_PART: Final = 64


def segment_bytes_of(settings: Settings, files: Files) -> int:
    """The size of new files of the log. Raises OSError."""
    chosen = settings.storage.segment_bytes
    if chosen:
        return chosen
    found = _found(settings.server.data_directory / STORE_DIRECTORY / LOG_NAME)
    if found:
        return found
    nearest = settings.server.data_directory.absolute()
    while not nearest.exists():
        nearest = nearest.parent
    free_bytes = files.space(str(nearest))[0]
    replicated = settings.replication.listen or settings.replication.role == "slave"
    # Of a group of replicas all have the same size, whatever their disks.
    return SEGMENT_BYTES_MAX if replicated else _rounded(free_bytes // ROOM_PART)


def say_size(segment_bytes: int, free_bytes: int) -> None:
    """A log is about to be made: what that takes of the disk."""
    logger("polymq").info(
        "a new log: each of its segments takes its whole size on the disk from the start, and one "
        "is prepared ahead of use (storage.segment_bytes)",
        segment_bytes=segment_bytes,
        free_bytes=free_bytes,
    )


def _found(directory: Path) -> int:
    """The size of the files that there are; 0 without any. A crash may have left a shorter one."""
    if not directory.is_dir():
        return 0
    sizes = [path.stat().st_size for path in directory.iterdir() if is_segment_name(path.name)]
    largest = max(sizes, default=0)
    return largest if not largest or largest == SEGMENT_BYTES_MAX else _at_least(largest)


def _rounded(size: int) -> int:
    """The largest power of two that is not above, within the limits."""
    return min(max(1 << max(size.bit_length() - 1, 0), SEGMENT_BYTES_MIN), SEGMENT_BYTES_MAX)


def _at_least(size: int) -> int:
    """The smallest power of two that is not below, within the limits."""
    return min(max(1 << (size - 1).bit_length(), SEGMENT_BYTES_MIN), SEGMENT_BYTES_MAX)
