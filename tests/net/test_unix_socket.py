"""The file of a Unix socket: made, replaced if its server is dead, and left alone otherwise."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from polymq.net.unix_socket import (
    PathTaken,
    UnixAddress,
    bind_unix,
    check_unix,
    file_number,
    remove_unix,
)


def test_a_dead_socket_is_replaced_and_a_living_one_is_not(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with bind_unix(UnixAddress(path=path, mode=0o600), 9) as living:
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        for look in (check_unix, lambda address: bind_unix(address, 1)):
            with pytest.raises(PathTaken, match="a program listens on the socket"):
                look(UnixAddress(path=path))
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
        living.close()
    check_unix(UnixAddress(path=path))
    with bind_unix(UnixAddress(path=path, group=str(os.getgid())), 1):
        remove_unix(path, -1)  # somebody else's
        assert file_number(path) is not None
        remove_unix(path, file_number(path))
        assert file_number(path) is None


def test_what_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("text")
    with pytest.raises(PathTaken, match="is no socket: remove it"):
        bind_unix(UnixAddress(path=str(file)), 1)
    assert file.read_text() == "text"
    with pytest.raises(PathTaken, match="is not a directory"):
        check_unix(UnixAddress(path=str(tmp_path / "none" / "s")))
    with pytest.raises(PathTaken, match="there is no group nobody-7"):
        check_unix(UnixAddress(path=str(tmp_path / "s"), group="nobody-7"))
