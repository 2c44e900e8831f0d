"""Listening on a Unix socket: the file, its permissions and its end.

A server that was killed leaves its socket behind. Such a file refuses connections, and is replaced.
What somebody listens on, and what is no socket, is left alone.
"""

from __future__ import annotations

import errno
import grp
import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path


class PathTaken(Exception):
    """The path cannot be used; the text says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnixAddress:
    """Where a Unix socket is.

    Attributes:
        path: absolute, at most 107 bytes (unix(7)).
        mode: permissions of the file.
        group: its group, by name or number; empty: that of the process.
    """

    path: str
    mode: int = 0o660
    group: str = ""


def check_unix(address: UnixAddress) -> None:
    """Whether `bind_unix` can use the path. Changes nothing.

    Raises:
        PathTaken: in one sentence for the user.
    """
    _group_id(address.group)
    _is_stale(address.path)
    directory = str(Path(address.path).parent)
    if not os.access(directory, os.W_OK | os.X_OK):
        reason = "cannot be written" if Path(directory).is_dir() else "is not a directory"
        raise PathTaken(f"the socket {address.path} cannot be made: {directory} {reason}")


def bind_unix(address: UnixAddress, backlog: int) -> socket.socket:
    """A socket that listens and does not block. Nobody can connect before the file has its mode and
    its group.

    Raises:
        PathTaken: in one sentence for the user.
    """
    path, group = address.path, _group_id(address.group)
    if _is_stale(path):
        Path(path).unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    is_bound = False
    try:
        listening.setblocking(False)
        listening.bind(path)
        is_bound = True
        Path(path).chmod(address.mode)
        if group is not None:
            os.chown(path, -1, group)
        listening.listen(backlog)
    except OSError as error:
        listening.close()
        if is_bound:
            Path(path).unlink(missing_ok=True)
        reason = error.strerror or str(error)
        if is_bound and error.errno == errno.EPERM:
            reason = f"its group cannot become {address.group}: the server is not in that group"
        raise PathTaken(f"the socket {path} cannot be made: {reason}") from error
    return listening


def file_number(path: str) -> int | None:
    """By which the file of a socket is recognized; None if there is none."""
    try:
        return os.lstat(path).st_ino
    except OSError:
        return None


def remove_unix(path: str, number: int | None) -> None:
    """Remove the file of a socket that is closed, unless it has been replaced since."""
    if number is not None and file_number(path) == number:
        Path(path).unlink(missing_ok=True)


def _is_stale(path: str) -> bool:
    """Whether a socket is at the path on which nobody listens. Raises PathTaken: something else
    is."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return False
    except OSError as error:
        raise PathTaken(f"the socket {path} cannot be made: {error.strerror}") from error
    if not stat.S_ISSOCK(mode):
        raise PathTaken(f"{path} exists and is no socket: remove it, or choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.setblocking(False)
        try:
            asking.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            return True
        except BlockingIOError:
            pass  # its backlog is full
        except OSError as error:
            text = f"the socket {path} exists and cannot be checked: {error.strerror}"
            raise PathTaken(f"{text}. Remove it, or choose another path") from error
    raise PathTaken(f"a program listens on the socket {path}: stop it, or choose another path")


def _group_id(group: str) -> int | None:
    if not group:
        return None
    try:
        return int(group) if group.isdigit() else grp.getgrnam(group).gr_gid
    except KeyError:
        raise PathTaken(f"there is no group {group} on this machine") from None
