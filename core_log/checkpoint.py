"""The checkpoint file, and the abort file beside it.

The checkpoint has 4096 bytes: first RocketMQ's five longs, then ours. It says that the log is
synced up to `position`, and that all index entries of records before it are synced too; recovery
reads the log from there. It is replaced as a whole, by a rename, never overwritten.

`index_sum` is a sum over all queue indexes (number, entry size, first and last offset at
`position`): if the files that recovery finds have another, an index is missing or damaged, and all
are made again from the log. `dropping` are the queues that were dropped since the checkpoint
before, whose files may still be there.

    0   physicMsgTimestamp  8 | logicsMsgTimestamp  8 | indexMsgTimestamp  8
    24  masterFlushedOffset 8 | confirmPhyOffset    8
    40  "PMQC" 4 | version 4 | position 8 | index count 8 | index sum 8 | dropping count 4
    76  dropping: 4 each; zeros
    4092  CRC-32 of all before

The abort file (RocketMQ's) exists while a store is open, so finding it means that the last
process did not close the store.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from dataclasses import dataclass
from typing import Final

from core_log.files import Files

CHECKPOINT_NAME: Final = "checkpoint"
CHECKPOINT_NEW_NAME: Final = "checkpoint.new"
ABORT_NAME: Final = "abort"
CHECKPOINT_SIZE: Final = 4096
DROPPING_COUNT_MAX: Final = 1000
"""What surely fits; further drops wait for the next checkpoint."""

_FIELDS: Final = struct.Struct(">qqqqq4sIqqQI")
_MAGIC: Final = b"PMQC"
_VERSION: Final = 1
_SUM_MASK: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What a checkpoint says.

    Attributes:
        position: the log and its index entries are synced up to here.
        store_ms: when it was taken.
        index_count, index_sum: which indexes there are, and where they end at `position`.
        dropping: queues whose files may still have to be removed.
    """

    position: int
    store_ms: int
    index_count: int = 0
    index_sum: int = 0
    dropping: tuple[int, ...] = ()


def index_digest(number: int, entry_size: int, first_offset: int, end_offset: int) -> int:
    """What one index adds to `index_sum`; an empty index adds nothing."""
    if first_offset == end_offset:
        return 0
    text = f"{number} {entry_size} {first_offset} {end_offset}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


def add_digests(total: int, added: int, removed: int = 0) -> int:
    """`total` with one index's digest added and another (its old one) taken away."""
    return (total + added - removed) & _SUM_MASK


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """The checkpoint as the file's bytes."""
    assert len(checkpoint.dropping) <= DROPPING_COUNT_MAX
    stamp = checkpoint.store_ms
    fields = _FIELDS.pack(
        *(stamp, stamp, stamp, checkpoint.position, checkpoint.position, _MAGIC, _VERSION),
        *(checkpoint.position, checkpoint.index_count, checkpoint.index_sum),
        len(checkpoint.dropping),
    )
    numbers = struct.pack(f">{len(checkpoint.dropping)}I", *checkpoint.dropping)
    covered = (fields + numbers).ljust(CHECKPOINT_SIZE - 4, b"\0")
    return covered + struct.pack(">I", zlib.crc32(covered))


def decode_checkpoint(data: bytes) -> Checkpoint | None:
    """What the bytes say, or None if they are not a whole checkpoint of ours."""
    if len(data) != CHECKPOINT_SIZE:
        return None
    if zlib.crc32(data[:-4]) != struct.unpack(">I", data[-4:])[0]:
        return None
    stamp, _, _, _, _, magic, version, position, count, total, dropping = _FIELDS.unpack_from(data)
    if (magic, version) != (_MAGIC, _VERSION):
        return None
    return Checkpoint(
        position=position,
        store_ms=stamp,
        index_count=count,
        index_sum=total,
        dropping=struct.unpack_from(f">{dropping}I", data, _FIELDS.size),
    )


def write_whole_file(files: Files, directory: str, name: str, data: bytes) -> None:
    """Replace a small file so that after a crash it is the old one or the new one, whole.

    Raises OSError.
    """
    new_path = f"{directory}/{name}.new"
    handle = files.open(new_path, create=True)
    try:
        files.truncate(handle, 0)
        files.pwritev(handle, (data,), 0)
        files.fdatasync(handle)
    finally:
        files.close(handle)
    files.rename(new_path, f"{directory}/{name}")
    files.sync_directory(directory)


def read_whole_file(files: Files, path: str, size_max: int) -> bytes | None:
    """A small file's bytes, at most `size_max`; None if there is no such file. Raises OSError."""
    try:
        handle = files.open(path)
    except FileNotFoundError:
        return None
    try:
        return files.pread(handle, min(files.size(handle), size_max), 0)
    finally:
        files.close(handle)


def read_checkpoint(files: Files, directory: str) -> Checkpoint | None:
    """The directory's checkpoint; None if it is missing or not sound. Raises OSError."""
    data = read_whole_file(files, f"{directory}/{CHECKPOINT_NAME}", CHECKPOINT_SIZE + 1)
    return None if data is None else decode_checkpoint(data)


def write_checkpoint(files: Files, directory: str, checkpoint: Checkpoint) -> None:
    """Replace the directory's checkpoint. Raises OSError."""
    write_whole_file(files, directory, CHECKPOINT_NAME, encode_checkpoint(checkpoint))


def make_abort(files: Files, directory: str) -> None:
    """Say that a process has the store open. Raises OSError."""
    write_whole_file(files, directory, ABORT_NAME, str(os.getpid()).encode())


def remove_abort(files: Files, directory: str) -> None:
    """Say that the store was closed in order. Raises OSError."""
    files.unlink(f"{directory}/{ABORT_NAME}")
    files.sync_directory(directory)
