"""The files of a backup directory, and what can go wrong with them.

    backup.json                          which store it belongs to
    segments/<position of first byte>    the bytes of a segment, as far as a backup needs them
    manifests/<position>.json            one backup: which bytes of which segments it has
    unfinished.json                      a manifest of what an interrupted backup has copied
    lock                                 held while the directory is changed

Every small file is a *document*: one line with the SHA-256 of the rest, and a JSON object.

    POLYMQ BACKUP 1 <64 hex digits>\\n
    {...}

Rules:

* Symbolic links are not followed: a backup is made of files of its own.
* A document is replaced whole, by a rename, when all that it speaks of is on the disk.
* Nothing here is written to a store.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from typing import Any, Final

from polymq.core_log.checkpoint import read_whole_file, write_whole_file
from polymq.core_log.errors import StoreError, describe
from polymq.core_log.files import FILE_MODE, Files, RealFiles

STORE_NAME: Final = "backup.json"
SEGMENTS_NAME: Final = "segments"
MANIFESTS_NAME: Final = "manifests"
UNFINISHED_NAME: Final = "unfinished.json"
TARGET_LOCK_NAME: Final = "lock"
RESTORING_NAME: Final = "restoring"
"""The directory in which a store is made of a backup: beside the later store, until it is whole."""
LOST_NAME: Final = "lost+found"
"""A directory that a file system has at its top: it makes no directory a used one."""
SUFFIX: Final = ".json"
DOCUMENT_BYTES_MAX: Final = 64 << 20
"""The manifest of half a million segments: a file that is larger is not ours."""
_TITLE: Final = "POLYMQ BACKUP 1"


class BackupError(StoreError):
    """Base of what a backup or a restore raises on purpose. The sentence is for the operator."""


class BackupDamaged(BackupError):
    """A file of a backup is not what was written.

    Args:
        path: the file.
        text: what is wrong with it, and where.
    """

    def __init__(self, path: str, text: str) -> None:
        super().__init__(f"{path} is damaged: {text}")
        self.path = path


class BackupRefused(BackupError):
    """The directory cannot be used for this. Nothing was changed."""


class BackupBusy(BackupRefused):
    """Another process is changing the directory."""


class SourceDamaged(BackupError):
    """What was to be copied is not sound."""


class TargetFailed(BackupError):
    """A file cannot be written or read where the copy is: no room, no rights, a bad disk."""


class BackupFiles(RealFiles):
    """The operating system's files, without symbolic links. What is not to be made is opened for
    reading only: so a backup can be read where nothing can be written, and a store that is copied
    cannot be changed."""

    def open(self, path: str, *, create: bool = False) -> int:
        """See `Files.open`."""
        flags = os.O_RDWR | os.O_CREAT if create else os.O_RDONLY
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)


def failed(path: str, error: OSError) -> TargetFailed:
    """The error to raise for a call that failed."""
    link = error.errno == errno.ELOOP
    reason = "it is a symbolic link" if link else describe(error)
    return TargetFailed(f"{path}: {reason}")


def encode_document(value: dict[str, Any]) -> bytes:
    """The bytes of a document."""
    text = json.dumps(value, separators=(",", ":")).encode() + b"\n"
    return f"{_TITLE} {hashlib.sha256(text).hexdigest()}\n".encode() + text


def decode_document(path: str, data: bytes) -> dict[str, Any]:
    """What a document says. Raises BackupDamaged."""
    head, _, text = data.partition(b"\n")
    if head != f"{_TITLE} {hashlib.sha256(text).hexdigest()}".encode():
        raise BackupDamaged(path, "its checksum is wrong")
    value = json.loads(text)
    if not isinstance(value, dict):
        raise BackupDamaged(path, "it is not a document of a backup")
    return value


def read_document(files: Files, path: str) -> dict[str, Any] | None:
    """A document; None if there is none. Raises BackupDamaged, TargetFailed."""
    try:
        data = read_whole_file(files, path, DOCUMENT_BYTES_MAX)
    except OSError as error:
        raise failed(path, error) from error
    return None if data is None else decode_document(path, data)


def write_document(files: Files, directory: str, name: str, value: dict[str, Any]) -> None:
    """Replace a document, durably. Raises TargetFailed."""
    try:
        write_whole_file(files, directory, name, encode_document(value))
    except OSError as error:
        raise failed(f"{directory}/{name}", error) from error
