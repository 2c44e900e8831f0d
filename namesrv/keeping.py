"""Where the key-value configuration is kept: one file, replaced in one step.

A change is written to a file beside it, synced, renamed over it, and the directory is synced: a
crash leaves the old configuration or the new one. A lock keeps a second name server away from the
directory, which would overwrite what this one was told.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final, Protocol, Self

import trio

from polymq.namesrv.errors import CannotKeep, InUse

FILE_NAME: Final = "kvConfig.json"
LOCK_NAME: Final = "namesrv.lock"


class Keeper(Protocol):
    """The way to the disk, of which there are others in simulations."""

    def load(self) -> bytes | None:
        """What was kept last; None if nothing ever was. Raises CannotKeep."""

    async def keep(self, data: bytes) -> None:
        """Return when it would survive a power cut. Raises CannotKeep: then the old is kept."""

    def close(self) -> None:
        """Let go of the place."""


class DirectoryKeeper:
    """Keeps the configuration in a directory, which it makes if it is missing.

    Raises:
        CannotKeep: the directory cannot be made or written.
        InUse: another name server has it.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self._lock = os.open(directory / LOCK_NAME, flags, 0o600)
        except OSError as error:
            raise CannotKeep(_explain(directory, error)) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise InUse(f"the directory {directory} is in use by another name server") from error

    def load(self) -> bytes | None:
        """See `Keeper.load`."""
        try:
            return (self._directory / FILE_NAME).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CannotKeep(_explain(self._directory / FILE_NAME, error)) from error

    async def keep(self, data: bytes) -> None:
        """See `Keeper.keep`. A thread writes, so that the name server goes on meanwhile."""
        await trio.to_thread.run_sync(self._replace, data)

    def close(self) -> None:
        """See `Keeper.close`."""
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _replace(self, data: bytes) -> None:
        path = self._directory / FILE_NAME
        partial = path.with_name(path.name + ".part")
        try:
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
            directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except OSError as error:
            raise CannotKeep(_explain(path, error)) from error


def _explain(path: Path, error: OSError) -> str:
    return f"{error.filename or path} cannot be read or written: {error.strerror or error}"
