"""Which addresses this broker sends to on behalf of others: no server-side request forgery.

Whoever may create a webhook makes the broker open connections. Without a guard that reaches what
only the broker can reach: itself, its neighbours, the cloud's metadata service.

Rules:

* The decision is made on the address of the socket that is about to connect, in the connector's
  socket factory, for every attempt. A check of the URL or of the resolver alone is bypassed: by
  an address literal, by a name that resolves differently the second time, by a spelling that only
  the C library understands (`2130706433`, `0177.1`, `①②⑦.⓪.⓪.①`).
* The URL is checked as well, so that most mistakes are told when the subscription is made.
* IPv6 forms that carry an IPv4 address are judged by that address and by their own.
* Not global means not allowed. The registries are written out here: what `ipaddress` calls global
  differs between Python versions.
* Redirects are never followed (`webhooks.py`).
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlsplit

from aiohttp.abc import AbstractResolver, ResolveResult

from polymq.gateways.http_cloudevents.limits import Network

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_CLOSED_4: Final = tuple(
    ipaddress.IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this host; many systems connect to themselves
        "10.0.0.0/8",
        "100.64.0.0/10",  # shared address space; 100.100.100.200 is a metadata service
        "127.0.0.0/8",
        "168.63.129.16/32",  # a cloud's wire server: global by registry, local by meaning
        "169.254.0.0/16",  # link-local; 169.254.169.254 is the metadata service of most clouds
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "192.175.48.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",  # and broadcast
    )
)
_OPEN_6: Final = ipaddress.IPv6Network("2000::/3")
"""Global unicast: everything else of IPv6 is closed."""
_CLOSED_6: Final = tuple(
    ipaddress.IPv6Network(text)
    for text in (
        "2001::/23",  # protocol assignments: Teredo, ORCHID, benchmarking
        "2001:db8::/32",
        "2620:4f:8000::/48",
        "3fff::/20",
    )
)

_EMBEDDED: Final = (
    # network, how far the IPv4 address stands from the right
    (ipaddress.IPv6Network("::ffff:0:0/96"), 0),  # mapped
    (ipaddress.IPv6Network("::ffff:0:0:0/96"), 0),  # translated (RFC 2765)
    (ipaddress.IPv6Network("64:ff9b::/96"), 0),  # NAT64
    (ipaddress.IPv6Network("2002::/16"), 80),  # 6to4
)
_ISATAP: Final = (0x00005EFE, 0x02005EFE)


class AddressRefused(OSError):
    """The guard does not let this address be reached. An OSError, as a failed connect is one."""


class AddressPolicy:
    """What may be reached.

    Args:
        allow: networks that may be reached although they are not public.
        deny: networks that may not be reached although they are public.
        allow_http: whether TLS may be left out.
    """

    def __init__(
        self,
        *,
        allow: tuple[Network, ...] = (),
        deny: tuple[Network, ...] = (),
        allow_http: bool = False,
    ) -> None:
        self.change(allow=allow, deny=deny, allow_http=allow_http)

    def change(
        self, *, allow: tuple[Network, ...], deny: tuple[Network, ...], allow_http: bool
    ) -> None:
        """Decide by this from now on."""
        self._allow = allow
        self._deny = deny
        self._allow_http = allow_http

    def check_url(self, url: str) -> None:
        """Raise ValueError, in words for the user, unless the URL may be a sink."""
        if not url.isascii() or any(char <= " " or char == "\x7f" or char == "\\" for char in url):
            raise ValueError("the sink is not an ASCII URL; use percent-encoding and punycode")
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise ValueError(f"the sink is not a URL: {error}") from None
        if parts.scheme != "https" and not (parts.scheme == "http" and self._allow_http):
            allowed = "https or http" if self._allow_http else "https"
            raise ValueError(f"the sink's scheme is {parts.scheme or 'missing'!r}; use {allowed}")
        if not host or port == 0:
            raise ValueError("the sink has no host or no port that can be reached")
        if "@" in parts.netloc:
            raise ValueError("the sink has a user name; pass a token as ?access_token= instead")
        if parts.fragment:
            raise ValueError("the sink has a fragment; leave out what follows '#'")
        address = literal_address(host)
        if address is not None:
            self.check_address(address)

    def check_address(self, address: Address) -> None:
        """Raise AddressRefused unless the address may be reached."""
        forms = (address, *embedded_addresses(address))
        for form in forms:
            if any(form in network for network in self._deny):
                raise AddressRefused(f"{address} is on the deny-list for webhooks")
        if any(form in network for form in forms for network in self._allow):
            return
        if not all(is_public(form) for form in forms):
            raise AddressRefused(
                f"{address} is not a public address; an operator can add its network to the "
                "allow-list for webhooks"
            )

    def socket(self, addr_info: tuple[Any, ...]) -> socket.socket:
        """Socket factory of the connector: the address that it is about to connect to is final."""
        family, kind, protocol, _, sockaddr = addr_info
        if family not in (socket.AF_INET, socket.AF_INET6):
            raise AddressRefused("only IPv4 and IPv6 are reached")
        self.check_address(_parse(sockaddr[0]))
        return socket.socket(family, kind, protocol)


class GuardedResolver(AbstractResolver):
    """A resolver that leaves out addresses that may not be reached.

    Not the guard itself (the socket factory is): it lets a name with one public and one private
    address be reached at the public one, and says early what is wrong.
    """

    def __init__(self, policy: AddressPolicy, inner: AbstractResolver) -> None:
        self._policy = policy
        self._inner = inner

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Raises AddressRefused if no address is left."""
        refused: AddressRefused | None = None
        allowed = []
        for result in await self._inner.resolve(host, port, family):
            try:
                self._policy.check_address(_parse(result["host"]))
                allowed.append(result)
            except AddressRefused as error:
                refused = error
        if not allowed and refused is not None:
            raise refused
        return allowed

    async def close(self) -> None:
        """Close the inner resolver."""
        await self._inner.close()


def _parse(text: str) -> Address:
    try:
        return ipaddress.ip_address(text.partition("%")[0])  # without an IPv6 zone
    except ValueError:
        raise AddressRefused(f"{text!r} is not an address") from None


def embedded_addresses(address: Address) -> Iterator[ipaddress.IPv4Address]:
    """The IPv4 addresses inside an IPv6 one, which some gateway would unpack."""
    if isinstance(address, ipaddress.IPv4Address):
        return
    number = int(address)
    for network, shift in _EMBEDDED:
        if address in network:
            yield ipaddress.IPv4Address(number >> shift & 0xFFFF_FFFF)
    if number >> 32 == 0:  # compatible (RFC 4291, deprecated), :: and ::1
        yield ipaddress.IPv4Address(number & 0xFFFF_FFFF)
    if number >> 32 & 0xFFFF_FFFF in _ISATAP:
        yield ipaddress.IPv4Address(number & 0xFFFF_FFFF)


def is_public(address: Address) -> bool:
    """Whether everybody on the internet may be taken to reach this address."""
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in _CLOSED_4)
    if int(address) >> 32 == 0 or any(address in network for network, _ in _EMBEDDED):
        return True  # Judged by the address inside alone.
    return address in _OPEN_6 and not any(address in network for network in _CLOSED_6)


_NUMERIC: Final = re.compile(r"(0[xX][0-9a-fA-F]*|[0-9]+)(\.(0[xX][0-9a-fA-F]*|[0-9]+)){0,3}\.?")


def literal_address(host: str) -> Address | None:
    """The address that a host names by itself, in any spelling that the C library takes.

    Raises:
        ValueError: it looks like a number but is none; no real name does (RFC 3696 2).
    """
    try:
        return ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        pass  # A name, or a spelling that only inet_aton knows.
    if _NUMERIC.fullmatch(host) is None:
        return None
    try:
        return ipaddress.IPv4Address(socket.inet_aton(host.rstrip(".")))
    except OSError:
        raise ValueError(f"the sink's host {host!r} is a number but not an address") from None
