"""Compressed bodies: what is decoded and what is refused, and that nothing is decoded in vain."""

from __future__ import annotations

import asyncio
import gzip
import os
import zlib
from collections.abc import Callable
from typing import cast

import aiohttp
import pytest
from aiohttp import web

from polymq.broker.port import BrokerPort
from polymq.gateways.http_cloudevents.content_codings import (
    PIECE_BYTES,
    BrokenCoding,
    Decoder,
    content_coding,
)
from polymq.gateways.http_cloudevents.limits import Limits as HttpLimits
from polymq.gateways.http_cloudevents.server import Server as HttpServer
from polymq.net.connection import Context
from tests.gateways.http_cloudevents.http_harness import BINARY, http, run
from tests.gateways.http_cloudevents.http_spy_port import SpyPort

BODIES = {
    "empty": b"",
    "small": b"small",
    "one piece": bytes(PIECE_BYTES),
    "one piece and a byte": bytes(PIECE_BYTES + 1),
    "incompressible": os.urandom(200_000),
    "compressible": b"ab" * 1_000_000,
}


def raw_deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    return packer.compress(body) + packer.flush()


def decode(decoder: Decoder, body: bytes) -> bytes:
    plain = b"".join(decoder.decode(body))
    decoder.finish()
    return plain


CODINGS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "zlib": ("deflate", zlib.compress),
    "raw": ("deflate", raw_deflate),
}


@pytest.mark.parametrize("step", [1, 1000, 1 << 30])
@pytest.mark.parametrize("name", CODINGS)
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_what_was_encoded_is_decoded_in_pieces(body: bytes, name: str, step: int) -> None:
    coding, encode = CODINGS[name]
    encoded = encode(body)
    decoder = Decoder(coding)
    pieces = [
        piece
        for start in range(0, len(encoded), step)
        for piece in decoder.decode(encoded[start : start + step])
    ]
    decoder.finish()
    assert b"".join(pieces) == body
    assert max(map(len, pieces)) <= PIECE_BYTES


@pytest.mark.parametrize("name", CODINGS)
def test_bytes_that_are_not_of_the_coding_are_broken(name: str) -> None:
    coding, encode = CODINGS[name]
    encoded = encode(b"something " * 1000)
    for broken in (b"", encoded[:-1], encoded[:10], encoded + b"x", encoded + encoded):
        with pytest.raises(BrokenCoding):
            decode(Decoder(coding), broken)
    decoder = Decoder(coding)
    list(decoder.decode(encoded))
    with pytest.raises(BrokenCoding, match="follow the end"):
        list(decoder.decode(b"x"))


@pytest.mark.parametrize(
    ("values", "coding"),
    [
        ([], None),
        ([""], None),
        (["identity"], None),
        (["GZip"], "gzip"),
        (["x-gzip"], "gzip"),
        ([" deflate "], "deflate"),
        (["identity, gzip"], "gzip"),
    ],
)
def test_coding_of_headers(values: list[str], coding: str | None) -> None:
    assert content_coding(values) == coding


@pytest.mark.parametrize("values", [["br"], ["zstd"], ["gzip, gzip"], ["gzip", "deflate"]])
def test_codings_that_are_not_supported(values: list[str]) -> None:
    """More than one, too: each would multiply what a few bytes stand for."""
    with pytest.raises(ValueError, match=values[-1]):
        content_coding(values)


def test_published_in_each_coding() -> None:
    async def scenario() -> None:
        async with http() as gateway:
            for coding, encode in CODINGS.values():
                headers = {**BINARY, "Content-Type": "a/b", "Content-Encoding": coding}
                assert await gateway.publish(encode(b"plain"), headers) == (204, None)
                status, problem = await gateway.publish(encode(b"cut " * 100)[:-2], headers)
                assert status == 400
                assert problem["title"] == "Broken body"
            assert [batch.body for batch in gateway.port.stored] == [b"plain"] * len(CODINGS)

    run(scenario())


def test_another_coding_is_415_and_says_which_are_taken() -> None:
    async def scenario() -> None:
        async with http() as gateway:
            status, problem, headers = await gateway.call(
                "POST", "/topics/t", b"x", Content_Encoding="br"
            )
            assert (status, problem["title"]) == (415, "Unsupported content coding")
            assert headers["Accept-Encoding"] == "gzip, deflate"
            assert gateway.port.stored == []

    run(scenario())


def test_a_body_is_not_decoded_unless_a_handler_does() -> None:
    """aiohttp would decode a body to its end for a request that is refused."""
    sizes = []

    async def drain(request: web.Request) -> web.Response:
        sizes.append(len(await request.read()))
        return web.Response()

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        server = HttpServer(
            port=cast("BrokerPort", SpyPort()),
            context=Context(loop=loop),
            limits=HttpLimits(),
            routes=[web.post("/drain", drain)],
        )
        bound = await server.start("127.0.0.1", 0)
        try:
            async with (
                aiohttp.ClientSession() as client,
                client.post(
                    f"http://127.0.0.1:{bound}/drain",
                    data=bomb,
                    headers={"Content-Encoding": "gzip"},
                ) as answer,
            ):
                assert answer.status == 200
        finally:
            await server.stop(1)

    bomb = gzip.compress(bytes(1_000_000))
    run(scenario())
    assert sizes == [len(bomb)]


def test_a_connection_goes_on_behind_a_compressed_body_that_nobody_read() -> None:
    """Its bytes are dropped as they are, whatever they stand for."""

    async def scenario() -> None:
        async with http() as gateway:
            bomb = gzip.compress(bytes(10_000_000))
            head = b"POST /nix HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: "
            last = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            answers = await gateway.raw(head + b"%d\r\n\r\n" % len(bomb) + bomb + last)
            assert b" 404 Not Found" in answers
            assert b" 200 OK" in answers

    run(scenario())
