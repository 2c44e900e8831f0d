"""Where the remote broker of a bridge is: at one address, or at several. Pure.

Several are tried one after the other, without a pause between them. The first one is preferred: a
connection that ends is followed by an attempt there, and so is a pause.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Final, NamedTuple

from polymq.gateways.mqtt.topic_filters import shortened

REMOTES_MAX: Final = 16
"""Addresses of one bridge."""
NAME_MAX: Final = 253
LABEL_MAX: Final = 63
"""Characters of the name of a host, and of each part of it between dots (RFC 1035 part 2.3.4)."""


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


def check_host(host: str) -> None:
    """Whether this can be the name of a host or an IP address. Raises ValueError: why not."""
    shown = repr(shortened(host))
    if "://" in host:
        raise ValueError(f"{shown} is a URL: the name of the host is wanted, without a scheme")
    if ":" in host or host.startswith("["):
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            raise ValueError(f"{shown} is neither the name of a host nor an IP address") from None
        return
    labels = host.removesuffix(".").split(".")
    if len(host) > NAME_MAX or not all(0 < len(label) <= LABEL_MAX for label in labels):
        raise ValueError(f"{shown} names no host: a part of it is empty or too long")
    if not all(letter.isalnum() or letter in "-_" for label in labels for letter in label):
        raise ValueError(f"{shown} names no host: it has a character that no name has")


def parse_remote(text: str, default_port: int) -> Remote:
    """An address from `HOST`, `HOST:PORT`, `[IPV6]` or `[IPV6]:PORT`. Raises ValueError: why it is
    none."""
    host, port = text, ""
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError(f"{shortened(text)!r} is neither [ADDRESS] nor [ADDRESS]:PORT")
        port = rest[1:] if rest else str(default_port)
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    else:
        port = str(default_port)
    if not host:
        raise ValueError(f"{shortened(text)!r} names no host")
    check_host(host)
    if not (port.isascii() and port.isdecimal() and 0 < int(port) <= 65_535):
        raise ValueError(f"{shortened(text)!r}: the port is not a number from 1 to 65535")
    return Remote(host, int(port))
