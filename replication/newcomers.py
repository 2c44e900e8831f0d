"""Connections that have not proven the secret yet, and which of them has to go when there are too
many. Pure.

Theory. Whoever reaches the port can open connections and say nothing. A slave must still get in,
so those connections have a small pool of their own. Each network has a share of that pool. When a
share or the pool is full, a connection that has said nothing goes before one that has, and the
oldest goes first: a slave needs two round trips, and then it is out of the pool.
"""

from __future__ import annotations

import ipaddress
from typing import Final, Generic, Protocol, TypeVar

from replication.limits import NEWCOMERS_MAX, NEWCOMERS_OF_A_NETWORK_MAX

NETWORK_BITS_IPV6: Final = 64
"""One customer gets at least so much of IPv6, and can have any address in it."""


class Newcomer(Protocol):
    """A connection in the pool."""

    @property
    def address(self) -> str:
        """The remote address, without the port."""

    @property
    def has_spoken(self) -> bool:
        """Whether a first frame came that is as it should be."""


N = TypeVar("N", bound=Newcomer)


def network_of(address: str) -> str:
    """What counts as one peer: an IPv4 address, or the /64 of an IPv6 address."""
    try:
        found = ipaddress.ip_address(address.strip("[]").partition("%")[0])
    except ValueError:
        return address
    if found.version == 4:
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.ip_network((found, NETWORK_BITS_IPV6), strict=False))


class Newcomers(Generic[N]):
    """The pool."""

    def __init__(self) -> None:
        self._networks: dict[str, dict[N, None]] = {}  # the connections of each, oldest first
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, newcomer: N) -> N | None:
        """Take it in. Returns the connection that has to be closed for it, or None."""
        network = network_of(newcomer.address)
        gone = None
        if len(self._networks.get(network, ())) >= NEWCOMERS_OF_A_NETWORK_MAX:
            gone = self._first_to_go(network)
        elif self._count >= NEWCOMERS_MAX:
            gone = self._first_to_go(
                max(self._networks, key=lambda name: len(self._networks[name]))
            )
        if gone is not None:
            self.remove(gone)
        self._networks.setdefault(network, {})[newcomer] = None
        self._count += 1
        return gone

    def remove(self, newcomer: N) -> None:
        """It has proven the secret, or is gone. No error if it is not in the pool."""
        network = network_of(newcomer.address)
        connections = self._networks.get(network, {})
        if newcomer in connections:
            del connections[newcomer]
            self._count -= 1
            if not connections:
                del self._networks[network]

    def _first_to_go(self, network: str) -> N:
        connections = self._networks[network]
        silent = (newcomer for newcomer in connections if not newcomer.has_spoken)
        return next(silent, next(iter(connections)))
