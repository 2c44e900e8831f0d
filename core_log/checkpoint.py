"""The checkpoint file, and the abort file beside it.

The checkpoint has 4096 bytes: first RocketMQ's five longs, then ours. It says that the log is
synced up to `position`, and that all index entries of records before it are synced too; recovery
reads the log from there. It is replaced as a whole, by a rename, never overwritten.

Which indexes there are and where their entries stand is in the pack that it names, up to the
length that it says (`core_log.packs`).

    0   physicMsgTimestamp  8 | logicsMsgTimestamp  8 | indexMsgTimestamp  8
    24  masterFlushedOffset 8 | confirmPhyOffset    8
    40  "PMQC" 4 | version 4 | position 8 | pack generation 8 | pack length 8; zeros
    4092  CRC-32 of all before

The abort file (RocketMQ's) exists while a store is open, so finding it means that the last
process did not close the store. A store that is closed keeps it under another name, because a full
disk may have no room for a new file at the next start.
"""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass
from typing import Final

from polymq.core_log.files import Files, sync_file, sync_names

CHECKPOINT_NAME: Final = "checkpoint"
ABORT_NAME: Final = "abort"
CLOSED_NAME: Final = "closed"
"""The abort file's name while no process has the store open."""
CHECKPOINT_SIZE: Final = 4096

_FIELDS: Final = struct.Struct(">qqqqq4sIqqq")
_MAGIC: Final = b"PMQC"
_VERSION: Final = 3
"""Version 1 had no packs. Its indexes are made again from the log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """What a checkpoint says.

    Attributes:
        position: the log and its index entries are synced up to here.
        store_ms: when it was taken.
        pack_generation, pack_length: the pack that holds the catalogue of indexes, and how much of
            it counts; 0 if there is none yet.
    """

    position: int
    store_ms: int
    pack_generation: int = 0
    pack_length: int = 0


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """The checkpoint as the file's bytes."""
    stamp = checkpoint.store_ms
    fields = _FIELDS.pack(
        *(stamp, stamp, stamp, checkpoint.position, checkpoint.position, _MAGIC, _VERSION),
        *(checkpoint.position, checkpoint.pack_generation, checkpoint.pack_length),
    )
    covered = fields.ljust(CHECKPOINT_SIZE - 4, b"\0")
    return covered + struct.pack(">I", zlib.crc32(covered))


def decode_checkpoint(data: bytes) -> Checkpoint | None:
    """What the bytes say, or None if they are not a whole checkpoint of ours."""
    if len(data) != CHECKPOINT_SIZE:
        return None
    if zlib.crc32(data[:-4]) != struct.unpack(">I", data[-4:])[0]:
        return None
    stamp, _, _, _, _, magic, version, position, generation, length = _FIELDS.unpack_from(data)
    if (magic, version) != (_MAGIC, _VERSION):
        return None
    return Checkpoint(
        position=position, store_ms=stamp, pack_generation=generation, pack_length=length
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
        sync_file(files, handle)
    finally:
        files.close(handle)
    files.rename(new_path, f"{directory}/{name}")
    sync_names(files, directory)


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
    """Say that a process has the store open. A full disk is no hindrance, unless the store is new:
    the file is there under one of its names. Raises OSError."""
    names = files.list(directory)
    if ABORT_NAME not in names and CLOSED_NAME in names:
        files.rename(f"{directory}/{CLOSED_NAME}", f"{directory}/{ABORT_NAME}")
    elif ABORT_NAME not in names:
        write_whole_file(files, directory, ABORT_NAME, str(os.getpid()).encode())
        return
    sync_names(files, directory)


def remove_abort(files: Files, directory: str) -> None:
    """Say that the store was closed in order. Raises OSError."""
    files.rename(f"{directory}/{ABORT_NAME}", f"{directory}/{CLOSED_NAME}")
    sync_names(files, directory)
