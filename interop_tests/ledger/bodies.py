"""Bodies that prove themselves: who published which number, and a SHA-256 over all of it.

A body is `publisher number\\n`, random bytes, and the digest of everything before it. A reader that
knows nothing else can tell whether what it got is what was sent.
"""

from __future__ import annotations

import hashlib
import random

DIGEST_SIZE = 32
SMALL_BYTES = (0, 600)
LARGE_BYTES = (8_000, 64_000)
LARGE_SHARE = 0.01
HUGE_BYTES = (150_000, 250_000)
"""More than one AMQP frame."""
HUGE_SHARE = 0.001


class Corrupt(Exception):
    """The body is not what any publisher sent."""


def make_body(publisher: str, number: int, chance: random.Random) -> bytes:
    """A body of random size and content."""
    draw = chance.random()
    if draw < HUGE_SHARE:
        bounds = HUGE_BYTES
    elif draw < LARGE_SHARE:
        bounds = LARGE_BYTES
    else:
        bounds = SMALL_BYTES
    content = f"{publisher} {number}\n".encode() + chance.randbytes(chance.randint(*bounds))
    return content + hashlib.sha256(content).digest()


def read_body(body: bytes) -> tuple[str, int]:
    """Who published it, and its number. Raises Corrupt."""
    content, digest = body[:-DIGEST_SIZE], body[-DIGEST_SIZE:]
    if hashlib.sha256(content).digest() != digest:
        raise Corrupt(f"{len(body)} bytes that begin with {body[:40]!r}")
    publisher, number = content.partition(b"\n")[0].decode().split(" ")
    return publisher, int(number)
