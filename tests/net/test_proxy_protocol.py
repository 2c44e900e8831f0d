"""The header of the PROXY protocol: whole, byte by byte, cut anywhere, and malformed."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymq.net.proxy_protocol import (
    HEADER_BYTES_MAX,
    SIGNATURE,
    ProxyError,
    ProxyHeader,
    ProxyParser,
)


def field(kind: int, value: bytes) -> bytes:
    return bytes([kind]) + len(value).to_bytes(2, "big") + value


def version_2(command: int, family: int, content: bytes) -> bytes:
    return SIGNATURE + bytes([command, family]) + len(content).to_bytes(2, "big") + content


def of_tls(name: bytes, client: int = 7, verify: int = 0) -> bytes:
    inner = bytes([client]) + verify.to_bytes(4, "big") + field(0x21, b"TLSv1.3")
    return field(0x20, inner + field(0x22, name))


IP_4, IP_6 = st.ip_addresses(v=4), st.ip_addresses(v=6)
PORTS = st.integers(0, 65_535)
FIELDS = st.lists(st.builds(field, st.integers(0x01, 0x1F), st.binary(max_size=40)), max_size=4)


@st.composite
def headers(draw: st.DrawFn) -> tuple[bytes, ProxyHeader]:
    """A header, and what it says."""
    client = draw(IP_4 | IP_6)
    assert isinstance(client, ipaddress.IPv4Address | ipaddress.IPv6Address)
    port = draw(PORTS)
    expected = ProxyHeader(address=str(client), port=port)
    own = ipaddress.ip_address("10.0.0.1" if client.version == 4 else "fd00::1")
    match draw(st.sampled_from(["1", "2", "tls", "local", "unknown"])):
        case "1":
            line = f"PROXY TCP{client.version} {client} {own} {port} 1883\r\n"
            return line.encode(), expected
        case "unknown":
            return b"PROXY UNKNOWN what ever\r\n", ProxyHeader()
        case "local":
            return version_2(0x20, draw(st.integers(0, 255)), draw(st.binary())), ProxyHeader()
        case "tls":
            more, expected = of_tls(b"ann"), ProxyHeader(
                address=str(client), port=port, common_name="ann"
            )  # fmt: skip
        case _:
            more = b""
    ports = port.to_bytes(2, "big") + bytes(2)
    content = client.packed + own.packed + ports + b"".join(draw(FIELDS)) + more
    return version_2(0x21, 0x11 if client.version == 4 else 0x21, content), expected


def parse(data: bytes, cuts: list[int]) -> tuple[ProxyHeader | None, int]:
    """What the pieces say, and how many bytes belong to the header."""
    parser, used = ProxyParser(), 0
    ends = [*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for end in ends:
        while parser.header is None and used < end:
            used += parser.feed(data[used:end])
    return parser.header, used


@given(header=headers(), behind=st.binary(max_size=50), cuts=st.lists(st.integers(0, 600)))
def test_headers_cut_anywhere(
    header: tuple[bytes, ProxyHeader], behind: bytes, cuts: list[int]
) -> None:
    """No byte behind the header is taken, and all say the same."""
    data, expected = header
    whole = parse(data + behind, [])
    assert whole == (expected, len(data))
    assert parse(data + behind, cuts) == whole
    assert parse(data + behind, list(range(len(data)))) == whole
    assert parse(data[:-1], cuts) == (None, len(data) - 1)


@given(
    start=st.sampled_from([b"", b"PROXY ", b"PROXY TCP4 ", SIGNATURE, SIGNATURE + b"\x21\x11"]),
    data=st.binary(max_size=700),
    cuts=st.lists(st.integers(0, 700)),
)
def test_any_bytes_are_a_header_or_an_error(start: bytes, data: bytes, cuts: list[int]) -> None:
    """However they are cut; and never are more bytes looked at than a header may have."""

    def outcome(cut: list[int]) -> object:
        try:
            return parse(start + data, cut)
        except ProxyError:
            return "error"

    whole = outcome([])
    assert outcome(cuts) == whole
    if isinstance(whole, tuple):
        assert whole[1] <= HEADER_BYTES_MAX


CONTENT = bytes(range(8)) + bytes(4)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n",
        b"\x10\x0d\x00\x04MQTT",
        b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2\n",
        b"PROXY TCP4 1.2.3.4 1.2.3.4 1\r\n",
        b"PROXY TCP4 1.2.3.4 1.2.3.4 01 2\r\n",
        b"PROXY TCP4 1.2.3.4 1.2.3.4 65536 2\r\n",
        b"PROXY TCP4 1.2.3.4 1.2.3.4 1 2 3\r\n",
        b"PROXY TCP4  1.2.3.4 1.2.3.4 1 2\r\n",
        b"PROXY TCP4 ::1 ::1 1 2\r\n",
        b"PROXY TCP6 1.2.3.4 1.2.3.4 1 2\r\n",
        b"PROXY UDP4 1.2.3.4 1.2.3.4 1 2\r\n",
        b"PROXY UNKNOWN" + b"x" * 100,
        version_2(0x11, 0x11, CONTENT),
        version_2(0x22, 0x11, CONTENT),
        version_2(0x21, 0x12, CONTENT),
        version_2(0x21, 0x11, CONTENT[:-1]),
        version_2(0x21, 0x21, CONTENT),
        version_2(0x21, 0x11, CONTENT + b"\x01\x00\x05abc"),
        version_2(0x21, 0x11, CONTENT + b"\x01\x00"),
        version_2(0x21, 0x11, CONTENT + field(0x20, b"\x01\x00")),
        version_2(0x21, 0x11, CONTENT + of_tls(b"\xff")),
        version_2(0x21, 0x11, CONTENT + bytes(600)),
    ],
)
def test_malformed_headers(data: bytes) -> None:
    with pytest.raises(ProxyError):
        parse(data, [])
    with pytest.raises(ProxyError):
        parse(data, list(range(len(data))))


@pytest.mark.parametrize(("client", "verify"), [(1, 0), (7, 1), (0, 0)])
def test_a_name_that_no_certificate_proves_is_none(client: int, verify: int) -> None:
    header, _ = parse(version_2(0x21, 0x11, CONTENT + of_tls(b"ann", client, verify)), [])
    assert header is not None
    assert header.common_name is None


def test_a_client_at_a_unix_socket() -> None:
    content = b"/run/client".ljust(108, b"\0") + bytes(108)
    header, _ = parse(version_2(0x21, 0x31, content), [])
    assert header == ProxyHeader(address="/run/client")
    assert header.peer == "/run/client"
