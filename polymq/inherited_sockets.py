"""Listening sockets that the service manager has opened for this process (sd_listen_fds(3)).

systemd opens the sockets of a socket unit, and hands them to the service: they exist before it
starts and while it restarts, so clients that connect meanwhile wait and are not refused.

Rules:

* Each socket has a name (`FileDescriptorName=` of the socket unit), which is the label of the
  listener that it is for. A name that no listener has is an error: a socket that nobody accepts
  from would let its clients wait for ever.
* The address of such a socket takes the place of the host and the port in the settings. It may not
  be reached by more than the settings say: a server that is only for this machine accepts no socket
  that others reach.
* The sockets stay open as long as the process lives. A listener gets duplicates, so that another
  role of the process has them again.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Final

from polymq.errors import ExitCode, Failure
from polymq.settings import is_loopback

FIRST_DESCRIPTOR: Final = 3
COUNT_MAX: Final = 256
"""Sockets that a process inherits: there are some thirty listeners at most."""
VARIABLES: Final = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PIDFDID")


class InheritedSockets:
    """Sockets by the labels of the listeners that they are for."""

    def __init__(self, sockets: Mapping[str, Sequence[socket.socket]]) -> None:
        self._sockets = sockets

    @property
    def labels(self) -> frozenset[str]:
        """The listeners that have sockets already."""
        return frozenset(self._sockets)

    def take(self, label: str) -> list[socket.socket]:
        """Duplicates of the sockets for a listener; none if it has to bind its own."""
        return [one.dup() for one in self._sockets.get(label, ())]

    def check(self, hosts: Mapping[str, str]) -> None:
        """Whether each socket is for a listener that there is.

        Args:
            hosts: the host that the settings say, by label; empty for a Unix socket.

        Raises:
            Failure: USAGE, a socket is for nobody, or for more clients than the settings say.
        """
        for label, sockets in self._sockets.items():
            if label not in hosts:
                raise Failure(ExitCode.USAGE, _nobody(label, hosts))
            for one in sockets:
                _check_address(label, one, hosts[label])

    def close(self) -> None:
        """Close all. Those of listeners stay."""
        for sockets in self._sockets.values():
            for one in sockets:
                one.close()


NOTHING_INHERITED: Final = InheritedSockets({})


def inherit_sockets(environment: MutableMapping[str, str]) -> InheritedSockets:
    """Take the sockets that the variables of the environment name, and the variables: they are not
    for children. Raises Failure: USAGE, the variables or the sockets are not what they should
    be."""
    values = {name: environment.pop(name, "") for name in VARIABLES}
    if values["LISTEN_PID"] != str(os.getpid()):  # not set, or for another process
        return NOTHING_INHERITED
    text = values["LISTEN_FDS"]
    if not (text.isascii() and text.isdecimal()) or int(text) > COUNT_MAX:
        raise Failure(ExitCode.USAGE, f"LISTEN_FDS is {text!r}: it is a number up to {COUNT_MAX}")
    count = int(text)
    names = values["LISTEN_FDNAMES"].split(":") if values["LISTEN_FDNAMES"] else []
    if len(names) != count:
        raise Failure(
            ExitCode.USAGE,
            f"LISTEN_FDNAMES has {len(names)} names for {count} sockets: give each socket unit a "
            "FileDescriptorName= that is the name of a listener",
        )
    found: dict[str, list[socket.socket]] = {}
    for descriptor, name in enumerate(names, FIRST_DESCRIPTOR):
        found.setdefault(name, []).append(_adopted(descriptor, name))
    return InheritedSockets(found)


def _adopted(descriptor: int, name: str) -> socket.socket:
    """The socket of a descriptor. Raises Failure."""
    try:
        os.set_inheritable(descriptor, False)
        adopted = socket.socket(fileno=descriptor)
        listens = bool(adopted.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    except OSError as error:
        text = f"the inherited descriptor {descriptor} ({name}) is no socket: {error.strerror}"
        raise Failure(ExitCode.USAGE, text) from error
    if adopted.type != socket.SOCK_STREAM or not listens:
        adopted.close()
        raise Failure(
            ExitCode.USAGE,
            f"the inherited socket {name} does not listen for connections: use ListenStream= and "
            "Accept=no in its socket unit",
        )
    adopted.setblocking(False)
    return adopted


def _nobody(label: str, hosts: Iterable[str]) -> str:
    return (
        f"there is no listener {label!r} for an inherited socket: FileDescriptorName= is one of "
        f"{', '.join(hosts)}; or the listener is switched off in the configuration"
    )


def _check_address(label: str, adopted: socket.socket, host: str) -> None:
    """Raises Failure."""
    wants_unix = not host
    if (adopted.family == socket.AF_UNIX) != wants_unix:
        kind = "a Unix socket" if wants_unix else "a TCP socket"
        raise Failure(ExitCode.USAGE, f"the inherited socket {label} has to be {kind}")
    if wants_unix or not is_loopback(host):
        return
    address, port = adopted.getsockname()[:2]
    if not is_loopback(address):
        raise Failure(
            ExitCode.USAGE,
            f"the inherited socket {label} listens on {address}:{port}, but the configuration says "
            f"that only this machine may reach it ({host}): change server.host or the socket unit",
        )
