"""Connections that have not proven themselves yet, and which of them gives way to another. Pure.

Theory. Anybody who reaches a port can open connections and say nothing. The connections that have
not proven themselves (no login, no valid request) therefore compete only with each other. When one
of them has to go, the network with the most of them loses one. Idle connections from one place thus
push out each other, and a newcomer from elsewhere always gets in. There is no fixed share for a
network, so a thousand devices behind one address may come back at the same time.

Of the network's connections, those that have said nothing go before those that have, and the oldest
go first: an honest client speaks at once and needs a round trip or two. A client whose password is
still being checked has spoken.

Adding a connection, removing one and choosing the one to close each take constant time.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from ipaddress import AddressValueError, IPv6Address
from typing import Final, Generic, TypeVar

NETWORK_BITS_IPV6: Final = 64
"""A host on IPv6 usually gets this much and can have any address in it [RFC 6177]."""
HOST_BITS_IPV6: Final = 128 - NETWORK_BITS_IPV6

REMEMBERED_MAX: Final = 4096
"""Addresses whose network need not be worked out again: a flood asks for the same one."""


@lru_cache(maxsize=REMEMBERED_MAX)
def network_of(address: str) -> str:
    """What counts as one address: an IPv4 address, or the /64 of an IPv6 address.

    Args:
        address: without a port. An IPv4 address that is mapped into IPv6 counts as IPv4. Text that
            is no address stands for itself.
    """
    if ":" not in address:
        return address
    try:
        found = IPv6Address(address.strip("[]").partition("%")[0])
    except AddressValueError:
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    prefix = int(found) >> HOST_BITS_IPV6 << HOST_BITS_IPV6
    return f"{IPv6Address(prefix)}/{NETWORK_BITS_IPV6}"


N = TypeVar("N", bound=Hashable)


class _Network(Generic[N]):
    """The newcomers of one network, oldest first in each table."""

    __slots__ = ("name", "silent", "spoken")

    def __init__(self, name: str) -> None:
        self.name = name
        self.silent: dict[N, None] = {}
        self.spoken: dict[N, None] = {}

    @property
    def count(self) -> int:
        return len(self.silent) + len(self.spoken)

    def first(self) -> N:
        """The newcomer that gives way first."""
        return next(iter(self.silent or self.spoken))


class Newcomers(Generic[N]):
    """The connections that have not proven themselves, by network."""

    def __init__(self) -> None:
        self._networks: dict[str, _Network[N]] = {}
        self._network_of: dict[N, _Network[N]] = {}
        # Networks by their number of newcomers. In each group, those that joined it first are
        # first.
        self._groups: dict[int, dict[_Network[N], None]] = {}
        self._most = 0

    def __len__(self) -> int:
        return len(self._network_of)

    def __contains__(self, connection: object) -> bool:
        return connection in self._network_of

    @property
    def most(self) -> int:
        """How many newcomers the network with the most of them has."""
        return self._most

    def count_of(self, network: str) -> int:
        """How many newcomers a network has (`network_of`)."""
        found = self._networks.get(network)
        return 0 if found is None else found.count

    def add(self, newcomer: N, network: str) -> None:
        """A connection was accepted."""
        found = self._networks.get(network)
        if found is None:
            found = self._networks[network] = _Network(network)
        count = found.count
        found.silent[newcomer] = None
        self._network_of[newcomer] = found
        self._regroup(found, count, count + 1)

    def spoke(self, newcomer: N) -> None:
        """Its first words were valid: it gives way after those that have said nothing. No effect
        on a connection that is no newcomer, or that has spoken before."""
        network = self._network_of.get(newcomer)
        if network is not None and newcomer in network.silent:
            del network.silent[newcomer]
            network.spoken[newcomer] = None

    def move(self, newcomer: N, network: str) -> None:
        """It has turned out that the connection comes from another network. No effect on a
        connection that is no newcomer."""
        if newcomer in self._network_of:
            self.remove(newcomer)
            self.add(newcomer, network)

    def remove(self, newcomer: N) -> None:
        """It has proven itself, or is gone. No effect on a connection that is no newcomer."""
        network = self._network_of.pop(newcomer, None)
        if network is None:
            return
        count = network.count
        table = network.silent if newcomer in network.silent else network.spoken
        del table[newcomer]
        if count == 1:
            del self._networks[network.name]
        self._regroup(network, count, count - 1)

    def first_to_go(self, network: str) -> tuple[N, str] | None:
        """Which newcomer gives way when one of a network arrives.

        Returns:
            The newcomer and its network, which is the one that has the most newcomers. Of several
            that have as many, the arriving one competes with itself. None if there is none.
        """
        if not self._most:
            return None
        own = self._networks.get(network)
        if own is not None and own.count == self._most:
            return own.first(), own.name
        largest = next(iter(self._groups[self._most]))
        return largest.first(), largest.name

    def _regroup(self, network: _Network[N], before: int, after: int) -> None:
        if before:
            group = self._groups[before]
            del group[network]
            if not group:
                del self._groups[before]
        if after:
            self._groups.setdefault(after, {})[network] = None
        # One step at a time: if nothing has as many as the largest any more, it has one less.
        if after > self._most or self._most not in self._groups:
            self._most = after
