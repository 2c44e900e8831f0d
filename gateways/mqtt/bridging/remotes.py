"""Where the remote broker of a bridge is: at one address, or at several. Pure.

Several are tried one after the other, without a pause between them. The first one is preferred: a
connection that ends is followed by an attempt there, and so is a pause.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

REMOTES_MAX: Final = 16
"""Addresses of one bridge."""


class Remote(NamedTuple):
    """One address of a remote broker.

    Attributes:
        host: a name or an IP address.
    """

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Remotes:
    """The addresses, of which one is the current one: the next to be tried, or the one that is
    connected."""

    def __init__(self, remotes: Sequence[Remote]) -> None:
        self._remotes = remotes
        self._at = 0

    @property
    def current(self) -> Remote:
        """The current one."""
        return self._remotes[self._at]

    def has_next(self) -> bool:
        """The current one could not be connected. Returns whether the next one is to be tried at
        once. If there is none, the first one is current again."""
        self._at = (self._at + 1) % len(self._remotes)
        return self._at > 0

    def begin_again(self) -> None:
        """The first one is current."""
        self._at = 0


def parse_remote(text: str, default_port: int) -> Remote:
    """An address from `HOST`, `HOST:PORT`, `[IPV6]` or `[IPV6]:PORT`. Raises ValueError: why it is
    none."""
    host, port = text, ""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError(f"{text!r} is neither [ADDRESS] nor [ADDRESS]:PORT")
        port = rest[1:] if rest else str(default_port)
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    else:
        port = str(default_port)
    if not host or host != host.strip():
        raise ValueError(f"{text!r} names no host")
    if not (port.isascii() and port.isdecimal() and 0 < int(port) <= 65_535):
        raise ValueError(f"{text!r}: the port is not a number from 1 to 65535")
    return Remote(host, int(port))
