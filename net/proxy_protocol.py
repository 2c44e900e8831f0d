"""The header of the PROXY protocol, versions 1 and 2: bytes in, the client's address out. Pure.

A proxy begins each connection with this header; what follows is the client's. The parser takes no
byte behind the header, however the bytes are cut. Source: HAProxy's "The PROXY protocol", versions
1 & 2 (proxy-protocol.txt), whose parts are named here.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

HEADER_BYTES_MAX: Final = 536
"""Of a header: what fits into the first segment of every TCP connection (part 2)."""
VERSION_1_BYTES_MAX: Final = 107
"""Of a header of version 1, with its CR and LF (part 2.1)."""
VERSION_1: Final = b"PROXY "
SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
"""The first twelve bytes of version 2 (part 2.2)."""
FIXED_BYTES: Final = 16
"""Signature, version and command, family, length."""

_LOCAL, _PROXY = 0x20, 0x21
_UNSPECIFIED, _TCP_4, _TCP_6, _UNIX = 0x00, 0x11, 0x21, 0x31
_ADDRESS_BYTES: Final = {_TCP_4: 12, _TCP_6: 36, _UNIX: 216}
_TYPE_SSL, _SUBTYPE_SSL_CN = 0x20, 0x22
_CERTIFIED: Final = 0x02 | 0x04
"""PP2_CLIENT_CERT_CONN and PP2_CLIENT_CERT_SESS: the client gave a certificate (part 2.2.6)."""
_SSL_BYTES: Final = 5
_PORT: Final = re.compile(rb"0|[1-9][0-9]{0,4}")
_FIELDS: Final = 6
_PORT_MAX: Final = 65_535


class ProxyError(Exception):
    """The bytes are no header; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyHeader:
    """What a proxy says of a connection.

    Attributes:
        address: the client's IP address, or the path of its Unix socket, which may be empty. None:
            the connection is the proxy's own (LOCAL), or the proxy does not know (UNKNOWN): the
            socket's own address counts.
        port: the client's; None where it has none.
        common_name: of the client's certificate, if the proxy has verified one. None: it has not.
    """

    address: str | None = None
    port: int | None = None
    common_name: str | None = None

    @property
    def peer(self) -> str:
        """The address and port for log lines, as those of other connections are."""
        if self.port is None:
            return self.address or "unix"
        return f"{self.address}:{self.port}"


class ProxyParser:
    """Finds the header at the start of a connection.

    Attributes:
        header: None until it is whole.
    """

    def __init__(self) -> None:
        self.header: ProxyHeader | None = None
        self._data = b""

    def feed(self, data: bytes) -> int:
        """Look at what came.

        Returns:
            How many bytes of it belong to the header: all, until the header is whole.

        Raises:
            ProxyError: that is no header, or a longer one than there may be.
        """
        if self.header is not None:
            return 0
        before = len(self._data)
        data = self._data + data
        size = _header_size(data)
        if size is None or size > len(data):
            self._data = data
            return len(data) - before
        whole = data[:size]
        self.header = _version_1(whole) if whole.startswith(VERSION_1) else _version_2(whole)
        self._data = b""
        return size - before


def _header_size(data: bytes) -> int | None:
    """The size of the header that begins so; None if that is not known yet. Raises ProxyError."""
    if _begins(data, VERSION_1):
        end = data.find(b"\n", 0, VERSION_1_BYTES_MAX) + 1
        if not end and len(data) >= VERSION_1_BYTES_MAX:
            raise ProxyError(f"a header of version 1 with more than {VERSION_1_BYTES_MAX} bytes")
        return end or None
    if not _begins(data, SIGNATURE):
        raise ProxyError("there is no PROXY header")
    if len(data) < FIXED_BYTES:
        return None
    size = FIXED_BYTES + int.from_bytes(data[14:16], "big")
    if size > HEADER_BYTES_MAX:
        raise ProxyError(f"a header of {size} bytes, and {HEADER_BYTES_MAX} are the most")
    return size


def _begins(data: bytes, start: bytes) -> bool:
    """Whether the data, as far as it is here, begins with this."""
    return start.startswith(data[: len(start)])


# --- version 1 (part 2.1) ----------------------------------------------------------------------


def _version_1(line: bytes) -> ProxyHeader:
    if not line.endswith(b"\r\n"):
        raise ProxyError("a header of version 1 that does not end with CR and LF")
    fields = line[:-2].split(b" ")
    if fields[1] == b"UNKNOWN":
        return ProxyHeader()
    families = {b"TCP4": ipaddress.IPv4Address, b"TCP6": ipaddress.IPv6Address}
    family = families.get(fields[1])
    if family is None:
        raise ProxyError("a header of version 1 for neither TCP4 nor TCP6")
    if len(fields) != _FIELDS:
        raise ProxyError("a header of version 1 has two addresses and two ports")
    try:
        source, _ = (family(field.decode("ascii")) for field in fields[2:4])
    except ValueError as error:
        raise ProxyError("a header of version 1 with a malformed address") from error
    ports = [int(field) for field in fields[4:] if _PORT.fullmatch(field)]
    if len(ports) != len(fields) - 4 or max(ports) > _PORT_MAX:
        raise ProxyError("a header of version 1 with a malformed port")
    return ProxyHeader(address=str(source), port=ports[0])


# --- version 2 (part 2.2) ----------------------------------------------------------------------


def _version_2(data: bytes) -> ProxyHeader:
    command, family = data[12], data[13]
    if command == _LOCAL:
        return ProxyHeader()  # whatever else it has is to be ignored
    if command != _PROXY:
        raise ProxyError(f"a header with the version and command {command:#04x}")
    content = data[FIXED_BYTES:]
    if family == _UNSPECIFIED:
        return ProxyHeader()
    size = _ADDRESS_BYTES.get(family)
    if size is None:
        raise ProxyError(f"a header for the family and transport {family:#04x}, not TCP")
    if len(content) < size:
        raise ProxyError("a header that is too short for its addresses")
    common_name = _common_name(content[size:])
    if family == _UNIX:
        path = content[: size // 2].partition(b"\0")[0].decode("utf-8", "backslashreplace")
        return ProxyHeader(address=path, common_name=common_name)
    address_bytes = (size - 4) // 2
    source = ipaddress.ip_address(content[:address_bytes])
    port = int.from_bytes(content[size - 4 : size - 2], "big")
    return ProxyHeader(address=str(source), port=port, common_name=common_name)


def _common_name(data: bytes) -> str | None:
    """PP2_SUBTYPE_SSL_CN of a certificate that the proxy has verified (part 2.2.6)."""
    found = None
    for kind, value in _fields(data):
        if kind != _TYPE_SSL:
            continue
        if len(value) < _SSL_BYTES:
            raise ProxyError("a header with a truncated field on TLS")
        client, failed = value[0], any(value[1:_SSL_BYTES])
        for subkind, name in _fields(value[_SSL_BYTES:]):
            if subkind == _SUBTYPE_SSL_CN and client & _CERTIFIED and not failed:
                found = _text(name)
    return found


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and value of each TLV. Raises ProxyError."""
    at = 0
    while at < len(data):
        start = at + 3
        end = start + int.from_bytes(data[at + 1 : start], "big")
        if start > len(data) or end > len(data):
            raise ProxyError("a header with a truncated field")
        yield data[at], data[start:end]
        at = end


def _text(name: bytes) -> str:
    try:
        return name.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ProxyError("a header whose common name is not UTF-8") from error
