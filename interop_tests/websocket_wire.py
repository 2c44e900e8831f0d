"""WebSocket by hand (RFC 6455): what a client sends, and what comes from a server."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
KEY = "dGhlIHNhbXBsZSBub25jZQ=="
MASK = b"\x11\x22\x33\x44"


def frame(
    data: bytes = b"",
    *,
    opcode: int = BINARY,
    last: bool = True,
    mask: bytes | None = MASK,
    reserved: int = 0,
    length_bytes: int | None = None,
) -> bytes:
    """A frame of a client.

    Args:
        mask: None leaves it unmasked.
        length_bytes: 0, 2 or 8 for the length behind the second byte; None for the shortest.
    """
    size = len(data)
    if length_bytes is None:
        length_bytes = 0 if size < 126 else 2 if size < 1 << 16 else 8
    short = {0: size, 2: 126, 8: 127}[length_bytes]
    head = bytes((last << 7 | reserved << 4 | opcode, (mask is not None) << 7 | short))
    head += size.to_bytes(length_bytes, "big") if length_bytes else b""
    if mask is None:
        return head + data
    return head + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))


def close(code: int | None = None, reason: bytes = b"") -> bytes:
    """A Close of a client."""
    data = b"" if code is None else code.to_bytes(2, "big") + reason
    return frame(data, opcode=CLOSE)


def server_frame(data: bytes = b"", *, opcode: int = BINARY) -> bytes:
    """A frame of a server."""
    return frame(data, opcode=opcode, mask=None)


def request(
    path: str = "/mqtt",
    *,
    subprotocols: Iterable[str] = ("mqtt",),
    origin: str | None = None,
    without: str = "",
    method: str = "GET",
    version: str = "HTTP/1.1",
    **changed: str,
) -> bytes:
    """The request that opens a WebSocket.

    Args:
        without: the name of a header that is left out.
        changed: other values, by names with underscores.
    """
    headers = {
        "Host": "broker.example",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Key": KEY,
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Protocol": ", ".join(subprotocols),
        "Origin": origin,
    }
    headers |= {name.replace("_", "-"): value for name, value in changed.items()}
    lines = [f"{method} {path} {version}"]
    lines += [f"{name}: {value}" for name, value in headers.items() if value and name != without]
    return "\r\n".join([*lines, "", ""]).encode()


def accepted(subprotocol: str = "mqtt") -> bytes:
    """The answer to a request with `KEY`."""
    digest = hashlib.sha1(KEY.encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
    lines = [
        "HTTP/1.1 101 Switching Protocols",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Accept: {base64.b64encode(digest).decode()}",
    ]
    if subprotocol:
        lines.append(f"Sec-WebSocket-Protocol: {subprotocol}")
    return "\r\n".join([*lines, "", ""]).encode()


def take_frame(data: bytes | bytearray) -> tuple[int, bytes, int] | None:
    """Opcode and content of the first frame of a server, and where it ends; None: it is not there
    as a whole."""
    if len(data) < 2:
        return None
    assert data[0] & 0xF0 == 0x80, "a server sends whole frames, and negotiates no extension"
    assert not data[1] & 0x80, "a server masks nothing"
    size, at = data[1], 2
    if size >= 126:
        at = 4 if size == 126 else 10
        if len(data) < at:
            return None
        size = int.from_bytes(data[2:at], "big")
    if len(data) < at + size:
        return None
    return data[0] & 0x0F, bytes(data[at : at + size]), at + size
