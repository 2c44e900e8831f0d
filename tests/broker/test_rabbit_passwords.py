"""Hashes of RabbitMQ's users: as its definitions have them, and as they are kept here."""

from __future__ import annotations

import hashlib
from base64 import b64encode

import pytest

from polymq.broker.accounts.passwords import (
    PASSWORD_BYTES_MAX,
    BadPassword,
    from_rabbit,
    is_importable,
    is_outdated,
    is_right,
)

SHA256 = "rabbit_password_hashing_sha256"
SHA512 = "rabbit_password_hashing_sha512"
DOCUMENTED = "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"
"""The example of RabbitMQ's documentation: salt 908DC60A, password test12."""


def hashed(password: bytes, kind: str, salt: bytes = b"\x90\x8d\xc6\x0a") -> str:
    return b64encode(salt + hashlib.new(kind, salt + password).digest()).decode()


def test_the_example_of_rabbitmqs_documentation() -> None:
    stored = from_rabbit(SHA256, DOCUMENTED)
    assert is_right(b"test12", stored)
    assert not is_right(b"test13", stored)


@pytest.mark.parametrize(("algorithm", "kind"), [(SHA256, "sha256"), (SHA512, "sha512")])
def test_a_password_is_right_and_its_hash_is_replaced_then(algorithm: str, kind: str) -> None:
    stored = from_rabbit(algorithm, hashed(b"secret", kind))
    assert is_importable(stored)
    assert is_outdated(stored, 0)
    assert is_right(b"secret", stored)
    for wrong in (b"", b"secre", b"secret\x00", b"x" * (PASSWORD_BYTES_MAX + 1)):
        assert not is_right(wrong, stored)
    too_long = b"x" * (PASSWORD_BYTES_MAX + 1)
    assert not is_right(too_long, from_rabbit(algorithm, hashed(too_long, kind)))


@pytest.mark.parametrize(
    ("algorithm", "encoded"),
    [
        ("rabbit_password_hashing_md5", hashed(b"secret", "md5")),
        ("", hashed(b"secret", "sha256")),
        (SHA256, hashed(b"secret", "sha512")),
        (SHA512, hashed(b"secret", "sha256")),
        (SHA256, "*"),
        (SHA256, ""),
        (SHA256, hashed(b"secret", "sha256", b"longer")),
    ],
)
def test_other_hashes_are_refused(algorithm: str, encoded: str) -> None:
    with pytest.raises(BadPassword):
        from_rabbit(algorithm, encoded)


@pytest.mark.parametrize(
    "stored",
    ["$rabbit-sha1$AAAA$AAAA", "$rabbit-sha256$AAAA$AAAA", "$rabbit-sha256$*$*", "$rabbit-sha256$"],
)
def test_damaged_forms_are_wrong_for_every_password(stored: str) -> None:
    assert not is_importable(stored)
    assert not is_right(b"secret", stored)
