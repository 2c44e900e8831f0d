"""Passwords: how they are kept, and whether one is right. Pure, and slow on purpose.

A password is kept as its scrypt hash (RFC 7914) with a salt of its own, and with the parameters
that it was made with, so that these can grow later without anybody's password being asked for:

    scrypt$16384$8$1$<salt>$<hash>          (base64)

The keys of SCRAM (`scram.py`) follow it after a semicolon, if that is not turned off. Hashes that
come from mosquitto's password files are accepted as they are, and replaced at the next login:

    $6$<salt>$<hash>                        SHA-512 of password and salt
    $7$<iterations>$<salt>$<hash>           PBKDF2 with HMAC-SHA-512

and so are those of RabbitMQ, whose salt stands before the password:

    $rabbit-sha256$<salt>$<hash>            SHA-256 of salt and password
    $rabbit-sha512$<salt>$<hash>            SHA-512

Rules: hashing takes about 50 ms and 16 MiB, so it is never done on the loop (`logins.py`); what is
compared is compared in constant time.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Final

from polymq.broker.accounts import scram
from polymq.broker.accounts.scram import Keys

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

MOSQUITTO_ITERATIONS_MAX: Final = 1_000_000
"""Of a hash that was imported: half a second. Mosquitto's own are 101, since 2.1 1000."""
RABBIT_SALT_BYTES: Final = 4
_RABBIT_PREFIX: Final = "rabbit-"
_RABBIT_ALGORITHMS: Final = {
    "rabbit_password_hashing_sha256": "sha256",
    "rabbit_password_hashing_sha512": "sha512",
}
_SEPARATOR: Final = ";"

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


def make_hash(password: bytes, salt: bytes, *, scram_iterations: int = scram.ITERATIONS) -> str:
    """The stored form of a password. Takes about 50 ms.

    Args:
        scram_iterations: of the keys of SCRAM; 0: there are none.
    """
    digest = _scrypt(password, salt, SCRYPT_N, SCRYPT_R, SCRYPT_P)
    parts = (
        "scrypt",
        str(SCRYPT_N),
        str(SCRYPT_R),
        str(SCRYPT_P),
        base64.b64encode(salt).decode(),
        base64.b64encode(digest).decode(),
    )
    stored = "$".join(parts)
    if not scram_iterations:
        return stored
    # The salts are as public as each other, and must not be the same.
    other_salt = hashlib.sha256(b"scram" + salt).digest()[: scram.SALT_BYTES]
    return f"{stored}{_SEPARATOR}{scram.derive(password, other_salt, scram_iterations)}"


def split(stored: str) -> tuple[str, str]:
    """The hash of a stored form, and the text of its SCRAM keys, which may be empty."""
    digest, _, keys = stored.partition(_SEPARATOR)
    return digest, keys


def join(digest: str, keys: str) -> str:
    """What `split` splits."""
    return f"{digest}{_SEPARATOR}{keys}" if keys else digest


def scram_keys(stored: str) -> Keys | None:
    """The SCRAM keys of a stored form, if it has any."""
    return scram.keys_from(split(stored)[1])


def is_outdated(stored: str, scram_iterations: int) -> bool:
    """Whether a stored form should be replaced when its password is known the next time: it comes
    from elsewhere, or has no keys for SCRAM though it should."""
    digest, keys = split(stored)
    return not digest.startswith("scrypt$") or bool(scram_iterations and not keys)


def is_stored_form(stored: str) -> bool:
    """Whether a password may be kept so: as `make_hash` gives it, or as another broker's hash."""
    if is_importable(stored):
        return True
    digest, keys = split(stored)
    try:
        kind, *parameters, salt, found = digest.split("$")
        has_salt = bool(base64.b64decode(salt, validate=True))
        size = len(base64.b64decode(found, validate=True))
    except (ValueError, binascii.Error):
        return False
    ours = [str(SCRYPT_N), str(SCRYPT_R), str(SCRYPT_P)]  # others could ask for any work
    if kind != "scrypt" or parameters != ours or not has_salt or size != HASH_BYTES:
        return False
    return not keys or scram_keys(stored) is not None


def is_importable(stored: str) -> bool:
    """Whether it is a hash of another broker's that a login can check."""
    return _parse_mosquitto(stored) is not None or _parse_rabbit(stored) is not None


def from_rabbit(algorithm: str, encoded: str) -> str:
    """The stored form of a hash as RabbitMQ's definitions have it: `password_hash`, which is salt
    and hash in base64, and `hashing_algorithm`. Raises BadPassword."""
    kind = _RABBIT_ALGORITHMS.get(algorithm)
    if kind is None:
        known = ", ".join(_RABBIT_ALGORITHMS)
        raise BadPassword(f"there is no hashing algorithm {algorithm!r} here: {known}")
    try:
        raw = base64.b64decode(encoded, validate=True)
    except (ValueError, binascii.Error):
        raw = b""
    if len(raw) != RABBIT_SALT_BYTES + hashlib.new(kind).digest_size:
        raise BadPassword(f"password_hash is no hash of {algorithm}")
    salt, digest = raw[:RABBIT_SALT_BYTES], raw[RABBIT_SALT_BYTES:]
    parts = (base64.b64encode(part).decode() for part in (salt, digest))
    return "$".join(("", f"{_RABBIT_PREFIX}{kind}", *parts))


def is_right(password: bytes, stored: str) -> bool:
    """Whether the password has this hash. Takes as long for a wrong one as for a right one.

    A stored form that cannot be read is wrong for every password.
    """
    mosquitto, rabbit = _parse_mosquitto(stored), _parse_rabbit(stored)
    if mosquitto is not None or rabbit is not None:
        if mosquitto is not None and _is_right_for_mosquitto(password, *mosquitto):
            return True
        if rabbit is not None and _is_right_for_rabbit(password, *rabbit):
            return True
        stored = UNKNOWN  # else it would tell by its speed that the user is there
    try:
        kind, n, r, p, salt, digest = split(stored)[0].split("$")
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


def _parse_mosquitto(stored: str) -> tuple[int, bytes, bytes] | None:
    """Iterations (0: plain SHA-512), salt and hash of a line of mosquitto's; None if it is none."""
    try:
        start, kind, *parts = stored.split("$")
        if start or (kind, len(parts)) not in (("6", 2), ("7", 3)):
            return None
        iterations = int(parts[0]) if kind == "7" else 0
        salt, digest = (base64.b64decode(one, validate=True) for one in parts[-2:])
    except (ValueError, binascii.Error):
        return None
    if len(digest) != hashlib.sha512().digest_size or not salt:
        return None
    if kind == "7" and not 0 < iterations <= MOSQUITTO_ITERATIONS_MAX:
        return None
    return iterations, salt, digest


def _is_right_for_mosquitto(password: bytes, iterations: int, salt: bytes, digest: bytes) -> bool:
    cut = password[:PASSWORD_BYTES_MAX]
    if iterations:
        found = hashlib.pbkdf2_hmac("sha512", cut, salt, iterations)
    else:
        found = hashlib.sha512(cut + salt).digest()
    return hmac.compare_digest(found, digest) and cut == password and b"\x00" not in password


def _parse_rabbit(stored: str) -> tuple[str, bytes, bytes] | None:
    """Algorithm, salt and hash of the stored form of one of RabbitMQ's; None if it is none."""
    start, *parts = stored.split("$")
    if start or len(parts) != 3 or not parts[0].startswith(_RABBIT_PREFIX):
        return None
    kind = parts[0].removeprefix(_RABBIT_PREFIX)
    try:
        salt, digest = (base64.b64decode(one, validate=True) for one in parts[1:])
    except (ValueError, binascii.Error):
        return None
    if kind not in _RABBIT_ALGORITHMS.values() or len(digest) != hashlib.new(kind).digest_size:
        return None
    return kind, salt, digest


def _is_right_for_rabbit(password: bytes, kind: str, salt: bytes, digest: bytes) -> bool:
    cut = password[:PASSWORD_BYTES_MAX]
    found = hashlib.new(kind, salt + cut).digest()
    return hmac.compare_digest(found, digest) and cut == password and b"\x00" not in password
