"""The opening handshake of a WebSocket (RFC 6455 part 4.2): pure, bytes in, bytes out.

A server that speaks one protocol needs little of HTTP: one request without a body, and one answer.
What is not the handshake that the RFC describes is refused in plain words, with the status that
says best what is wrong: somebody who opens the port in a browser should learn what it is for.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

HEAD_BYTES_MAX: Final = 8 * 1024
"""A request with its headers. Cookies of a browser and a token fit; nginx and Apache: 8 KiB."""
HEAD_END: Final = b"\r\n\r\n"
_SUFFIX: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_VERSION: Final = "13"
_KEY_BYTES: Final = 16
_REQUEST: Final = re.compile(r"([A-Z]+) (\S+) HTTP/1\.([0-9])")
_FIELD: Final = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([\t\x20-\x7e\x80-\xff]*)")
"""There is one way to match it, so it takes linear time."""
_SINGLE: Final = ("host", "origin", "sec-websocket-key", "sec-websocket-version")


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a server offers to those who want to open a WebSocket.

    Attributes:
        what: its name for people, such as "MQTT".
        paths: of the URL; what stands behind a question mark is not looked at.
        subprotocols: a client that names some has to name one of these.
        origins: where the pages come from that may open one; empty: from anywhere. Clients that are
            no browsers send no origin, and are let in.
        frame_bytes_max: what a frame may carry.
    """

    what: str
    paths: frozenset[str]
    subprotocols: frozenset[str]
    origins: frozenset[str] = frozenset()
    frame_bytes_max: int


class HandshakeRefused(Exception):
    """This is not the handshake of a client that may come in.

    Attributes:
        status: of HTTP.
        text: what is wrong, in one sentence.
        headers: that the answer needs.
    """

    def __init__(
        self, status: HTTPStatus, text: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.headers = headers or {}

    def answer(self) -> bytes:
        """What the client gets; the connection ends with it."""
        body = f"{self.text}\n".encode()
        headers = {
            **self.headers,
            "Content-Type": "text/plain; charset=utf-8",
            "Content-Length": str(len(body)),
            "Connection": "close",
        }
        return _head(self.status, headers) + body


def check_beginning(offer: Offer, head: bytes | bytearray) -> None:
    """Whether what came so far may become a request. Raises HandshakeRefused.

    Who speaks MQTT or TLS here need not wait until the time is up.
    """
    if head and not 0x41 <= head[0] <= 0x5A:
        text = f"This port speaks {offer.what} over WebSocket, and this is no HTTP request."
        raise HandshakeRefused(HTTPStatus.BAD_REQUEST, text)
    if len(head) > HEAD_BYTES_MAX:
        text = f"The request has more than {HEAD_BYTES_MAX} bytes."
        raise HandshakeRefused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, text)


def accept(offer: Offer, head: bytes) -> bytes:
    """The answer to a request, which ends with `HEAD_END`: the WebSocket is open then.

    Raises:
        HandshakeRefused: it is not; `answer` is what the client gets.
    """
    lines = head[: -len(HEAD_END)].decode("latin-1").split("\r\n")
    _check_request_line(offer, lines[0])
    fields = _fields(lines[1:])
    if not fields.get("host"):
        raise _bad("The request has no Host header.")
    if "websocket" not in _tokens(fields, "upgrade"):
        text = f"This port speaks {offer.what} over WebSocket: the request has to ask for that."
        raise HandshakeRefused(HTTPStatus.UPGRADE_REQUIRED, text, {"Upgrade": "websocket"})
    if "upgrade" not in _tokens(fields, "connection"):
        raise _bad("The Connection header has to name Upgrade.")
    if fields.get("sec-websocket-version") != _VERSION:
        text = f"This server speaks version {_VERSION} of WebSocket."
        needed = {"Sec-WebSocket-Version": _VERSION}
        raise HandshakeRefused(HTTPStatus.UPGRADE_REQUIRED, text, needed)
    key = fields.get("sec-websocket-key", "")
    _check_key(key)
    origin = fields.get("origin")
    if origin is not None and offer.origins and origin.lower() not in offer.origins:
        text = f"Pages from {origin} may not connect here."
        raise HandshakeRefused(HTTPStatus.FORBIDDEN, text)
    subprotocol = _subprotocol(offer, fields)
    digest = hashlib.sha1(key.encode("ascii") + _SUFFIX, usedforsecurity=False).digest()
    headers = {
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Accept": base64.b64encode(digest).decode("ascii"),
    }
    if subprotocol:
        headers["Sec-WebSocket-Protocol"] = subprotocol
    return _head(HTTPStatus.SWITCHING_PROTOCOLS, headers)


def _check_request_line(offer: Offer, line: str) -> None:
    request = _REQUEST.fullmatch(line)
    if request is None:
        raise _bad("This is no request of HTTP/1.1.")
    method, target, minor = request.groups()
    if method != "GET":
        text = "A WebSocket is opened with GET."
        raise HandshakeRefused(HTTPStatus.METHOD_NOT_ALLOWED, text, {"Allow": "GET"})
    if minor == "0":
        raise _bad("A WebSocket needs HTTP/1.1.")
    path = target.partition("?")[0]
    if path not in offer.paths:
        known = " or ".join(sorted(offer.paths, reverse=True))
        text = f"There is nothing here: {offer.what} over WebSocket is at {known}."
        raise HandshakeRefused(HTTPStatus.NOT_FOUND, text)


def _fields(lines: Sequence[str]) -> dict[str, str]:
    """The header fields by their names in lower case; several of a list are one list."""
    found: dict[str, str] = {}
    for line in lines:
        field = _FIELD.fullmatch(line)
        if field is None:
            raise _bad("A header of the request is malformed.")
        name, value = field[1].lower(), field[2].strip(" \t")
        if name not in found:
            found[name] = value
        elif name in _SINGLE:
            raise _bad(f"The header {name} is there twice.")
        else:
            found[name] += f",{value}"
    return found


def _items(fields: Mapping[str, str], name: str) -> list[str]:
    return [item for part in fields.get(name, "").split(",") if (item := part.strip(" \t"))]


def _tokens(fields: Mapping[str, str], name: str) -> list[str]:
    return [item.lower() for item in _items(fields, name)]


def _check_key(key: str) -> None:
    try:
        size = len(base64.b64decode(key.encode("latin-1"), validate=True))
    except binascii.Error:
        size = 0
    if size != _KEY_BYTES:
        raise _bad(f"Sec-WebSocket-Key has to be {_KEY_BYTES} bytes in Base64.")


def _subprotocol(offer: Offer, fields: Mapping[str, str]) -> str:
    """The first one that the client names and we have [MQTT-6.0.0-4]. Empty: it names none."""
    named = _items(fields, "sec-websocket-protocol")
    if "sec-websocket-protocol" not in fields:
        return ""
    for name in named:
        if name in offer.subprotocols:
            return name
    known = " and ".join(sorted(offer.subprotocols))
    raise _bad(f"None of the subprotocols is known here. This server has {known}.")


def _bad(text: str) -> HandshakeRefused:
    return HandshakeRefused(HTTPStatus.BAD_REQUEST, text)


def _head(status: HTTPStatus, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status.value} {status.phrase}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode("latin-1") + HEAD_END
