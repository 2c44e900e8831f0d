"""Passwords: how they are kept, and whether one is right. Pure, and slow on purpose.

A password is kept as its scrypt hash (RFC 7914) with a salt of its own, and with the parameters
that it was made with, so that these can grow later without anybody's password being asked for:

    scrypt$16384$8$1$<salt>$<hash>          (base64)

Rules: hashing takes about 50 ms and 16 MiB, so it is never done on the loop (`logins.py`); what is
compared is compared in constant time.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Final

SCRYPT_N: Final = 2**14
SCRYPT_R: Final = 8
SCRYPT_P: Final = 1
"""16 MiB and about 50 ms: OWASP's figures for logins that people wait for."""
SALT_BYTES: Final = 16
HASH_BYTES: Final = 32
MEMORY_BYTES_MAX: Final = 64 * 1024 * 1024
"""What a stored hash may ask for: one that was tampered with does not take the machine down."""
PASSWORD_BYTES_MAX: Final = 1_024
"""Room for a token. More would let a stranger choose how long we hash."""

UNKNOWN: Final = "$".join(
    (
        f"scrypt${SCRYPT_N}${SCRYPT_R}${SCRYPT_P}",
        base64.b64encode(bytes(SALT_BYTES)).decode(),
        base64.b64encode(bytes(HASH_BYTES)).decode(),
    )
)
"""A hash that no password has: what an unknown user's password is compared with, so that it takes
as long as a known one's."""


class BadPassword(ValueError):
    """A password that cannot be set; the text says why."""


def check_new(password: bytes) -> None:
    """Whether this can be a password.

    Raises:
        BadPassword: it is empty, too long, or has a NUL, which SASL PLAIN cannot carry (RFC 4616).
    """
    if not password:
        raise BadPassword("a password must not be empty")
    if len(password) > PASSWORD_BYTES_MAX:
        raise BadPassword(f"a password has at most {PASSWORD_BYTES_MAX} bytes")
    if b"\x00" in password:
        raise BadPassword("a password must not contain a NUL byte: AMQP cannot send it")


def make_hash(password: bytes, salt: bytes) -> str:
    """The stored form of a password. Takes about 50 ms."""
    digest = _scrypt(password, salt, SCRYPT_N, SCRYPT_R, SCRYPT_P)
    parts = (
        "scrypt",
        str(SCRYPT_N),
        str(SCRYPT_R),
        str(SCRYPT_P),
        base64.b64encode(salt).decode(),
        base64.b64encode(digest).decode(),
    )
    return "$".join(parts)


def is_right(password: bytes, stored: str) -> bool:
    """Whether the password has this hash. Takes as long for a wrong one as for a right one.

    A stored form that cannot be read is wrong for every password.
    """
    try:
        kind, n, r, p, salt, digest = stored.split("$")
        if kind != "scrypt":
            return False
        # HMAC, inside of scrypt, pads its key with NULs: to it `secret` and `secret\0` are the
        # same. No password has one (`check_new`), so what has one is wrong, as what is too long;
        # the work is done all the same.
        cut = password[:PASSWORD_BYTES_MAX]
        found = _scrypt(cut, base64.b64decode(salt, validate=True), int(n), int(r), int(p))
        same = hmac.compare_digest(found, base64.b64decode(digest, validate=True))
        return same and cut == password and b"\x00" not in password
    except (ValueError, binascii.Error, MemoryError, OverflowError):
        return False


def _scrypt(password: bytes, salt: bytes, n: int, r: int, p: int) -> bytes:
    return hashlib.scrypt(
        password, salt=salt, n=n, r=r, p=p, maxmem=MEMORY_BYTES_MAX, dklen=HASH_BYTES
    )
