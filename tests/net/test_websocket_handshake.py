"""The opening handshake: who comes in, and what the others are told."""

from __future__ import annotations

from typing import Any

import pytest

from interop_tests.websocket_wire import KEY, accepted, request
from polymq.net.websocket_handshake import (
    HEAD_BYTES_MAX,
    HandshakeRefused,
    Offer,
    accept,
    check_beginning,
)

OFFER = Offer(
    what="MQTT",
    paths=frozenset({"/mqtt", "/"}),
    subprotocols=frozenset({"mqtt", "mqttv3.1"}),
    frame_bytes_max=1000,
)
FENCED = Offer(
    what="MQTT",
    paths=OFFER.paths,
    subprotocols=OFFER.subprotocols,
    origins=frozenset({"https://app.example"}),
    frame_bytes_max=1000,
)


@pytest.mark.parametrize(
    ("wanted", "subprotocol"),
    [
        ({}, "mqtt"),
        ({"path": "/"}, "mqtt"),
        ({"path": "/mqtt?token=x"}, "mqtt"),
        ({"subprotocols": ("mqttv3.1",)}, "mqttv3.1"),
        ({"subprotocols": ("amqp", "mqttv3.1", "mqtt")}, "mqttv3.1"),
        ({"subprotocols": ()}, ""),
        ({"Connection": "keep-alive, upgrade"}, "mqtt"),
        ({"Upgrade": "h2c, WebSocket"}, "mqtt"),
        ({"origin": "https://anywhere.example"}, "mqtt"),
        ({"Sec_WebSocket_Extensions": "permessage-deflate; client_max_window_bits"}, "mqtt"),
        ({"Cookie": "a=b;  c=\xfc"}, "mqtt"),
    ],
)
def test_who_comes_in(wanted: dict[str, Any], subprotocol: str) -> None:
    """The client's first subprotocol that is known is chosen; extensions never are."""
    assert accept(OFFER, request(**wanted)) == accepted(subprotocol)


@pytest.mark.parametrize(
    ("wanted", "status", "text"),
    [
        ({"method": "POST"}, 405, "opened with GET"),
        ({"version": "HTTP/1.0"}, 400, "needs HTTP/1.1"),
        ({"version": "HTTP/2.0"}, 400, "no request of HTTP/1.1"),
        ({"method": "get"}, 400, "no request of HTTP/1.1"),
        ({"path": "/other"}, 404, "MQTT over WebSocket is at /mqtt or /"),
        ({"path": "//mqtt"}, 404, "There is nothing here"),
        ({"without": "Host"}, 400, "no Host header"),
        ({"without": "Upgrade"}, 426, "the request has to ask for that"),
        ({"Upgrade": "h2c"}, 426, "the request has to ask for that"),
        ({"Connection": "close"}, 400, "has to name Upgrade"),
        ({"Sec_WebSocket_Version": "8"}, 426, "version 13"),
        ({"without": "Sec-WebSocket-Version"}, 426, "version 13"),
        ({"without": "Sec-WebSocket-Key"}, 400, "16 bytes in Base64"),
        ({"Sec_WebSocket_Key": "c2hvcnQ="}, 400, "16 bytes in Base64"),
        ({"Sec_WebSocket_Key": "!" + KEY[1:]}, 400, "16 bytes in Base64"),
        ({"Sec_WebSocket_Key": "\xfc" + KEY[1:]}, 400, "16 bytes in Base64"),
        ({"subprotocols": ("amqp",)}, 400, "This server has mqtt and mqttv3.1"),
        ({"subprotocols": ("MQTT",)}, 400, "None of the subprotocols is known"),
        ({"subprotocols": (" ",)}, 400, "None of the subprotocols is known"),
        ({"host": "again"}, 400, "The header host is there twice"),
        ({"Bad header": "x"}, 400, "A header of the request is malformed"),
        ({"X": "a\x00b"}, 400, "A header of the request is malformed"),
        ({"X": "a\nSec-WebSocket-Protocol: mqtt"}, 400, "A header of the request is malformed"),
    ],
)
def test_who_is_refused_and_what_is_said(wanted: dict[str, Any], status: int, text: str) -> None:
    with pytest.raises(HandshakeRefused, match=text) as refused:
        accept(OFFER, request(**wanted))
    head, _, body = refused.value.answer().decode().partition("\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ")
    assert f"Content-Length: {len(body)}" in head
    assert "Connection: close" in head
    assert body.endswith(".\n")


def test_what_the_answer_says_of_what_would_be_right() -> None:
    for wanted, header in (
        ({"without": "Upgrade"}, "Upgrade: websocket"),
        ({"Sec_WebSocket_Version": "14"}, "Sec-WebSocket-Version: 13"),
        ({"method": "HEAD"}, "Allow: GET"),
    ):
        with pytest.raises(HandshakeRefused) as refused:
            accept(OFFER, request(**wanted))
        assert header in refused.value.answer().decode().split("\r\n")


def test_pages_of_other_origins_stay_out() -> None:
    """A client that is no browser says no origin, and comes in."""
    for origin in (None, "https://app.example", "HTTPS://App.Example"):
        assert accept(FENCED, request(origin=origin)) == accepted()
    for origin in ("https://app.example:8443", "http://app.example", "null", "https://evil"):
        with pytest.raises(HandshakeRefused, match="may not connect here") as refused:
            accept(FENCED, request(origin=origin))
        assert refused.value.status == 403


def test_what_cannot_become_a_request_is_refused_at_once() -> None:
    check_beginning(OFFER, b"")
    check_beginning(OFFER, b"GET " + b"x" * (HEAD_BYTES_MAX - 4))
    with pytest.raises(HandshakeRefused, match="more than 8192 bytes") as refused:
        check_beginning(OFFER, b"GET " + b"x" * (HEAD_BYTES_MAX - 3))
    assert refused.value.status == 431
    for first in (b"\x10", b"\x16", b"\0", b"g", b"\r"):
        with pytest.raises(HandshakeRefused, match="no HTTP request"):
            check_beginning(OFFER, first)


def test_a_header_of_any_size_is_looked_at_in_linear_time() -> None:
    """The pattern of a field has no two ways to match: 8 KiB of blanks take no time."""
    for value in (" " * 7000, " a" * 3500, "\t" * 2000 + "\x00", "a " * 3000 + "\x00"):
        data = request(X=value + "x")
        if "\x00" in value:
            with pytest.raises(HandshakeRefused, match="malformed"):
                accept(OFFER, data)
        else:
            assert accept(OFFER, data) == accepted()
