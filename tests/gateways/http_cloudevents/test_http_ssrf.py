"""No server-side request forgery: every spelling of an address that must not be reached.

The last tests connect for real: a server listens on loopback, and no spelling reaches it.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from typing import Any

import aiohttp
import pytest
from aiohttp.abc import AbstractResolver, ResolveResult
from hypothesis import given
from hypothesis import strategies as st

from polymq.gateways.http_cloudevents.ssrf import (
    AddressPolicy,
    AddressRefused,
    GuardedResolver,
    is_public,
    literal_address,
)

CLOSED = [
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "100.64.0.1",
    "100.100.100.200",
    "127.0.0.1",
    "127.255.255.254",
    "168.63.129.16",
    "169.254.0.1",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.1",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.0.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::2",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:7f00:1",
    "::ffff:169.254.169.254",
    "::ffff:0:127.0.0.1",
    "64:ff9b::127.0.0.1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::1",
    "100::1",
    "2001::1",
    "2001:0:7f00:1::",
    "2001:10::1",
    "2001:db8::1",
    "2002:7f00:1::",
    "2002:a9fe:a9fe::1",
    "3fff::1",
    "5f00::1",
    "fc00::1",
    "fd00:ec2::254",
    "fd00::5efe:8.8.8.8",
    "2600::5efe:127.0.0.1",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::1",
]
OPEN = [
    "1.1.1.1",
    "8.8.8.8",
    "100.63.255.255",
    "172.32.0.1",
    "192.0.1.1",
    "2606:4700:4700::1111",
    "2001:4860:4860::8888",
    "::ffff:8.8.8.8",
    "64:ff9b::8.8.8.8",
    "2002:808:808::1",
]


@pytest.mark.parametrize("address", CLOSED)
def test_closed_address(address: str) -> None:
    with pytest.raises(AddressRefused):
        AddressPolicy().check_address(ipaddress.ip_address(address))


@pytest.mark.parametrize("address", OPEN)
def test_open_address(address: str) -> None:
    AddressPolicy().check_address(ipaddress.ip_address(address))


LOOPBACK_SPELLINGS = [
    "127.0.0.1",
    "127.1",
    "127.0.1",
    "0",
    "0.0.0.0",
    "2130706433",
    "0x7f000001",
    "0X7F.1",
    "0x7f.0x0.0x0.0x1",
    "017700000001",
    "0177.0.0.1",
    "0177.1",
    "127.0.0.1.",
    "2130706433.",
    "[::1]",
    "[::]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[0:0:0:0:0:ffff:127.0.0.1]",
    "[::127.0.0.1]",
    "[64:ff9b::7f00:1]",
    "[2002:7f00:1::]",
    "[fe80::1%25lo]",
]


@pytest.mark.parametrize("host", LOOPBACK_SPELLINGS)
def test_url_with_a_literal_address(host: str) -> None:
    """Told when the subscription is made, in every spelling that the C library takes."""
    with pytest.raises(AddressRefused):
        AddressPolicy().check_url(f"https://{host}/hook")


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("http://example.com/", "use https"),
        ("ftp://example.com/", "use https"),
        ("file:///etc/passwd", "use https"),
        ("//example.com/", "scheme is 'missing'"),
        ("example.com", "scheme is 'missing'"),
        ("https://", "no host"),
        ("https:///path", "no host"),
        ("https://example.com:0/", "no port"),
        ("https://example.com:99999/", "not a URL"),
        ("https://user:secret@example.com/", "user name"),
        ("https://example.com@127.0.0.1/", "user name"),
        ("https://example.com/#x", "fragment"),
        ("https://ex ample.com/", "not an ASCII URL"),
        ("https://example.com\\@127.0.0.1/", "not an ASCII URL"),
        ("https://①②⑦.⓪.⓪.①/", "not an ASCII URL"),
        ("https://127。0。0。1/", "not an ASCII URL"),
        ("https://example.com/\n", "not an ASCII URL"),
        ("https://[::1/", "not a URL"),
        ("https://999.1.1.1/", "a number but not an address"),
        ("https://0x/", "no"),
        ("https://1.2.3.4.5/", None),
    ],
)
def test_url_that_is_no_sink(url: str, text: str | None) -> None:
    if text is None:  # A name of digits: DNS decides, and the socket's address after it.
        AddressPolicy().check_url(url)
        return
    with pytest.raises((ValueError, AddressRefused), match=text):
        AddressPolicy().check_url(url)


def test_plain_http_has_to_be_allowed() -> None:
    AddressPolicy(allow_http=True).check_url("http://example.com/")
    AddressPolicy().check_url("https://example.com:8443/path?x=y")


def test_allow_list_opens_just_its_networks() -> None:
    """What tests and demos use: loopback in every spelling, nothing else."""
    policy = AddressPolicy(allow=(ipaddress.ip_network("127.0.0.0/8"),))
    for address in ("127.0.0.1", "::ffff:127.0.0.1", "8.8.8.8"):
        policy.check_address(ipaddress.ip_address(address))
    for address in ("10.0.0.1", "::1", "169.254.169.254"):
        with pytest.raises(AddressRefused):
            policy.check_address(ipaddress.ip_address(address))


def test_deny_list_wins() -> None:
    everything = (ipaddress.ip_network("0.0.0.0/0"),)
    policy = AddressPolicy(allow=everything, deny=(ipaddress.ip_network("8.8.8.0/24"),))
    for address in ("8.8.8.8", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8"):
        with pytest.raises(AddressRefused, match="deny-list"):
            policy.check_address(ipaddress.ip_address(address))


@given(st.ip_addresses(v=4))
def test_what_python_calls_private_is_closed(address: ipaddress.IPv4Address) -> None:
    """The registries here are at least as strict as the library's."""
    if is_public(address):
        assert address.is_global


@given(st.ip_addresses(v=6))
def test_what_python_calls_private_in_ipv6_is_closed(address: ipaddress.IPv6Address) -> None:
    try:
        AddressPolicy().check_address(address)
    except AddressRefused:
        return
    # Later versions of Python call all of 6to4 private; here it is what is embedded in it.
    assert address.is_global or address.ipv4_mapped or address.sixtofour


@given(st.integers(0, 2**32 - 1))
def test_numbers_are_read_as_the_c_library_reads_them(number: int) -> None:
    expected = ipaddress.IPv4Address(number)
    for text in (str(number), hex(number), f"0{number:o}", f"{number >> 24}.{number & 0xFFFFFF}"):
        assert literal_address(text) == expected


# --- with sockets -----------------------------------------------------------------------------


class FixedResolver(AbstractResolver):
    """Names that resolve to what the test says, one answer after the other."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        address = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        found = socket.AF_INET6 if ":" in address else socket.AF_INET
        return [
            ResolveResult(hostname=host, host=address, port=port, family=found, proto=0, flags=0)
        ]

    async def close(self) -> None:
        pass


async def reach(
    url: str, policy: AddressPolicy, resolver: AbstractResolver | None = None
) -> tuple[Any, int]:
    """Try to get the URL, with {port} of a server on loopback. Returns the error and how many
    connections the server saw."""
    seen = 0

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal seen
        seen += 1
        writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    connector = aiohttp.TCPConnector(
        resolver=resolver, socket_factory=policy.socket, use_dns_cache=False
    )
    error = None
    try:
        async with aiohttp.ClientSession(connector=connector) as session:
            try:
                async with session.get(url.format(port=port)):
                    pass
            except (aiohttp.ClientError, OSError, ValueError) as caught:
                error = caught
    finally:
        server.close()
        await server.wait_closed()
    return error, seen


@pytest.mark.parametrize("host", [*LOOPBACK_SPELLINGS, "①②⑦.⓪.⓪.①", "localhost"])
def test_no_spelling_reaches_loopback(host: str) -> None:
    """No check of the URL, no guarded resolver: the socket factory alone is enough."""
    error, seen = asyncio.run(reach(f"http://{host}:{{port}}/", AddressPolicy()))
    assert seen == 0
    assert error is not None


def test_the_server_of_these_tests_can_be_reached() -> None:
    """Otherwise the test above would prove nothing."""
    policy = AddressPolicy(allow=(ipaddress.ip_network("127.0.0.0/8"),))
    error, seen = asyncio.run(reach("http://127.0.0.1:{port}/", policy))
    assert (error, seen) == (None, 1)


def test_a_name_that_resolves_to_loopback() -> None:
    policy = AddressPolicy()
    resolver = GuardedResolver(policy, FixedResolver("127.0.0.1"))
    error, seen = asyncio.run(reach("http://evil.example:{port}/", policy, resolver))
    assert seen == 0
    assert "not a public address" in str(error.os_error)


def test_a_name_that_changes_its_address_after_the_check() -> None:
    """DNS rebinding: the resolver's check saw a public address, the connection gets another."""
    policy = AddressPolicy()
    rebinding = FixedResolver("8.8.8.8", "127.0.0.1")

    async def scenario() -> tuple[Any, int]:
        guarded = GuardedResolver(policy, rebinding)
        first = await guarded.resolve("evil.example")
        assert first[0]["host"] == "8.8.8.8"
        return await reach("http://evil.example:{port}/", policy, rebinding)

    error, seen = asyncio.run(scenario())
    assert seen == 0
    assert error is not None


def test_a_name_with_one_public_address_stays_reachable() -> None:
    class Both(FixedResolver):
        async def resolve(
            self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
        ) -> list[ResolveResult]:
            found = await super().resolve(host, port, family)
            return found + await super().resolve(host, port, family)

    resolver = GuardedResolver(AddressPolicy(), Both("10.0.0.1", "1.1.1.1"))
    found = asyncio.run(resolver.resolve("mixed.example"))
    assert [result["host"] for result in found] == ["1.1.1.1"]


def test_a_unix_socket_is_no_sink() -> None:
    with pytest.raises(AddressRefused):
        AddressPolicy().socket((socket.AF_UNIX, socket.SOCK_STREAM, 0, "", ("/tmp/x",)))
