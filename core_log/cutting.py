"""Cutting a closed log to the place up to which another broker has the same.

A follower may have records that its new master never had. They go before it follows: those that
nobody was promised (`broker/following/divergence.py`), or an operator decided so. A copy of them
was kept before (`cut_copy.py`). What the store derives from them goes, too: a checkpoint that
speaks of them, and then recovery makes the indexes again from the log.

A crash in between leaves a log that ends somewhere behind the place; it is cut again before it
follows. The order matters: the checkpoint first, or it would speak of what is not there.
"""

from __future__ import annotations

from polymq.core_log.checkpoint import CHECKPOINT_NAME, make_abort, read_checkpoint
from polymq.core_log.errors import StoreError, StoreRefused, describe
from polymq.core_log.files import Files
from polymq.core_log.key_index import KEY_INDEX_NAME, KNOWN_NAME
from polymq.core_log.recovery import LOG_NAME, is_segment_name
from polymq.core_log.segments import segment_name
from polymq.core_log.store import take_lock


def cut_log(files: Files, directory: str, position: int) -> None:
    """Let the log of a closed store end at `position`, where a record ends.

    Raises:
        StoreRefused: another process has it open, the log begins behind that place, or the disk
            refused.
    """
    lock = take_lock(files, directory)
    try:
        _cut(files, directory, position)
    except OSError as error:
        raise StoreRefused(f"{directory} cannot be cut: {describe(error)}") from error
    except StoreError as error:
        raise StoreRefused(f"{directory} cannot be cut: {error}") from error
    finally:
        files.close(lock)


def _cut(files: Files, directory: str, position: int) -> None:
    log = f"{directory}/{LOG_NAME}"
    starts = sorted(int(name) for name in files.list(log) if is_segment_name(name))
    if not starts or starts[0] > position:
        raise StoreRefused(f"the log of {directory} does not reach back to {position}")
    make_abort(files, directory)
    checkpoint = read_checkpoint(files, directory)
    if checkpoint is None or checkpoint.position > position:
        files.unlink(f"{directory}/{CHECKPOINT_NAME}")
        files.sync_directory(directory)
    if KEY_INDEX_NAME in files.list(directory):
        files.unlink(f"{directory}/{KEY_INDEX_NAME}/{KNOWN_NAME}")
        files.sync_directory(f"{directory}/{KEY_INDEX_NAME}")
    while starts[-1] > position:
        files.unlink(f"{log}/{segment_name(starts.pop())}")
        files.sync_directory(log)  # or an earlier name might go first, and leave a hole
    handle = files.open(f"{log}/{segment_name(starts[-1])}")
    try:
        files.truncate(handle, position - starts[-1])
        files.fdatasync(handle)
    finally:
        files.close(handle)
