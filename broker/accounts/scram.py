"""SCRAM-SHA-256: a login that never sends the password (RFC 5802, RFC 7677). Pure: bytes in, bytes
out, no clock and no randomness.

The client proves that it knows the password, and the server proves that it knows what the password
gives; neither can pose as the other with what it heard. What is stored of a password is

    SCRAM-SHA-256$16384:<salt>$<StoredKey>:<ServerKey>          (base64)

Rules:

* Whoever reads StoredKey can test guesses, but cannot log in with it.
* There is no channel binding. A client that could bind (`y`) is served: only a server that offers
  SCRAM-SHA-256-PLUS has to refuse it. A client that demands it (`p=`) is refused.
* The client's last message has to repeat the header of its first one, and the whole nonce.
* A user that is not there gets a salt like any other, always the same one (`decoy`), and fails
  where a wrong password fails.
* A password that is UTF-8 is prepared with SASLprep (RFC 4013) first. Bytes that are not, or that
  SASLprep prohibits, are taken as they are, as PostgreSQL does.
"""

from __future__ import annotations

import base64
import binascii
import enum
import hashlib
import hmac
import re
import stringprep
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

METHOD: Final = "SCRAM-SHA-256"
"""The name of the mechanism, which MQTT 5 uses as Authentication Method."""
ITERATIONS: Final = 16_384
"""Of PBKDF2: four times what RFC 7677 asks for at least. It takes a server 14 ms, and a device of
240 MHz some seconds at each login."""
ITERATIONS_MIN: Final = 4_096
"""RFC 7677 part 4."""
ITERATIONS_MAX: Final = 1_000_000
SALT_BYTES: Final = 16
NONCE_BYTES: Final = 18
"""Random bytes of the server's part of the nonce, written as 24 characters."""
NONCE_CHARACTERS_MAX: Final = 256
"""Of the client's part; 24 are usual."""
MESSAGE_BYTES_MAX: Final = 1_024
"""Of a message of the client: names have 64 characters, proofs 44."""
FINAL_BYTES: Final = 2 + 44
"""Of the server's last message: `v=` and a signature."""

_DIGEST: Final = "sha256"
_DIGEST_BYTES: Final = 32
_NONCE: Final = re.compile(rb"[!-+\--~]+")  # printable ASCII but the comma (RFC 5802 part 7)
_PROHIBITED: Final = (
    stringprep.in_table_c12,
    stringprep.in_table_c21_c22,
    stringprep.in_table_c3,
    stringprep.in_table_c4,
    stringprep.in_table_c5,
    stringprep.in_table_c6,
    stringprep.in_table_c7,
    stringprep.in_table_c8,
    stringprep.in_table_c9,
)


class BadExchange(ValueError):
    """A message of the client that is not one, or asks for what there is not; the text says which.
    The exchange has failed."""


# --- keys --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """What is stored of a password (RFC 5802 part 3)."""

    salt: bytes
    iterations: int
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    def __str__(self) -> str:
        salt, stored, server = (
            base64.b64encode(one).decode() for one in (self.salt, self.stored_key, self.server_key)
        )
        return f"{METHOD}${self.iterations}:{salt}${stored}:{server}"


def derive(password: bytes, salt: bytes, iterations: int = ITERATIONS) -> Keys:
    """The keys of a password. Takes some milliseconds, so it is done in a thread."""
    salted = hashlib.pbkdf2_hmac(_DIGEST, prepared(password), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", _DIGEST)
    return Keys(
        salt=salt,
        iterations=iterations,
        stored_key=hashlib.sha256(client_key).digest(),
        server_key=hmac.digest(salted, b"Server Key", _DIGEST),
    )


def keys_from(text: str) -> Keys | None:
    """The keys of their text; None if it cannot be read."""
    try:
        method, parameters, found = text.split("$")
        iterations, salt = parameters.split(":")
        stored, server = (base64.b64decode(one, validate=True) for one in found.split(":"))
        count = int(iterations)
        if method != METHOD or len(stored) != _DIGEST_BYTES or len(server) != _DIGEST_BYTES:
            return None
        raw = base64.b64decode(salt, validate=True)
        return Keys(salt=raw, iterations=count, stored_key=stored, server_key=server)
    except (ValueError, binascii.Error):
        return None


def decoy(user: str, secret: bytes, iterations: int = ITERATIONS) -> Keys:
    """Keys that no password has: always the same salt for the same name, as a user has."""
    name = user.encode("utf-8", "surrogatepass")
    salt = hmac.digest(secret, b"salt" + name, _DIGEST)[:SALT_BYTES]
    nobodys = hmac.digest(secret, b"keys" + name, _DIGEST)
    return Keys(salt=salt, iterations=iterations, stored_key=nobodys, server_key=nobodys)


def prepared(password: bytes) -> bytes:
    """A password after SASLprep (RFC 4013), as far as it can be prepared."""
    try:
        text = password.decode()
    except UnicodeDecodeError:
        return password
    if text.isascii():
        return password
    mapped = "".join(
        " " if stringprep.in_table_c12(one) else one
        for one in text
        if not stringprep.in_table_b1(one)
    )
    normal = unicodedata.normalize("NFKC", mapped)
    if not normal or any(bad(one) for one in normal for bad in _PROHIBITED):
        return password
    if any(map(stringprep.in_table_d1, normal)):  # text from right to left (RFC 3454 part 6)
        ends = stringprep.in_table_d1(normal[0]) and stringprep.in_table_d1(normal[-1])
        if not ends or any(map(stringprep.in_table_d2, normal)):
            return password
    return normal.encode()


# --- the exchange ------------------------------------------------------------------------------


class State(enum.Enum):
    """Where an exchange is."""

    WAIT_FINAL = "the client has the challenge"
    PROVEN = "the client has proven itself"
    FAILED = "it has not"


class Exchange:
    """The server's side of one exchange, from the client's first message on.

    Args:
        first: the client's first message.
        keys_of: the keys of a user, or a decoy.
        nonce: the server's part, of which no two exchanges have the same.

    Attributes:
        user: who the client says it is.
        keys: those that it has to prove itself against.
        challenge: the server's first message, to be sent to the client.
        state: where the exchange is.

    Raises:
        BadExchange: the client's message is not a first one.
    """

    __slots__ = ("_auth_start", "_header", "_nonce", "challenge", "keys", "state", "user")

    def __init__(self, first: bytes, *, keys_of: Callable[[str], Keys], nonce: bytes) -> None:
        if len(first) > MESSAGE_BYTES_MAX:
            raise BadExchange(f"the client's message has more than {MESSAGE_BYTES_MAX} bytes")
        binding, authorized, bare = _split_header(first)
        self._header = b",".join((binding, authorized, b""))
        fields = bare.split(b",")
        if fields[0].startswith(b"m="):
            raise BadExchange("it asks for an extension that there is not")
        if len(fields) < 2 or not fields[0].startswith(b"n=") or not fields[1].startswith(b"r="):
            raise BadExchange("the client's first message is not n=USER,r=NONCE")
        self.user = _user(fields[0][2:])
        if authorized and _user(authorized[2:]) != self.user:
            raise BadExchange("nobody may log in as another user")
        asked = fields[1][2:]
        if len(asked) > NONCE_CHARACTERS_MAX or not _NONCE.fullmatch(asked):
            raise BadExchange("the client's nonce is empty, too long, or not printable ASCII")
        self._nonce = asked + nonce
        self.keys = keys_of(self.user)
        salt = base64.b64encode(self.keys.salt)
        self.challenge = b"r=%b,s=%b,i=%d" % (self._nonce, salt, self.keys.iterations)
        self._auth_start = bare + b"," + self.challenge + b","
        self.state = State.WAIT_FINAL

    def finish(self, final: bytes) -> bytes | None:
        """The client's last message: the server's last one, which proves the server, to be sent to
        the client; None if the client has not proven itself.

        Raises:
            BadExchange: the message is not a last one, or belongs to another exchange.
        """
        if self.state is not State.WAIT_FINAL:
            raise BadExchange("the exchange has ended")
        self.state = State.FAILED
        if len(final) > MESSAGE_BYTES_MAX:
            raise BadExchange(f"the client's message has more than {MESSAGE_BYTES_MAX} bytes")
        without_proof, _, sent = final.rpartition(b",p=")
        fields = without_proof.split(b",")
        if len(fields) < 2 or not fields[0].startswith(b"c=") or not fields[1].startswith(b"r="):
            raise BadExchange("the client's last message is not c=HEADER,r=NONCE,p=PROOF")
        if _base64(fields[0][2:]) != self._header:
            raise BadExchange("the client's last message has another header than its first one")
        if not hmac.compare_digest(fields[1][2:], self._nonce):
            raise BadExchange("the client's last message has another nonce than the challenge")
        proof = _base64(sent)
        if len(proof) != _DIGEST_BYTES:
            raise BadExchange(f"the client's proof has not {_DIGEST_BYTES} bytes")
        text = self._auth_start + without_proof
        signature = hmac.digest(self.keys.stored_key, text, _DIGEST)
        client_key = bytes(one ^ other for one, other in zip(proof, signature, strict=True))
        found = hashlib.sha256(client_key).digest()
        if not hmac.compare_digest(found, self.keys.stored_key):
            return None
        self.state = State.PROVEN
        return b"v=" + base64.b64encode(hmac.digest(self.keys.server_key, text, _DIGEST))


def _split_header(first: bytes) -> tuple[bytes, bytes, bytes]:
    """The two parts of the GS2 header, and what follows it."""
    parts = first.split(b",", 2)
    if len(parts) < 3:
        raise BadExchange("the client's first message does not begin with n,, or y,,")
    binding, authorized, bare = parts
    if binding.startswith(b"p="):
        raise BadExchange("it demands channel binding, which there is not")
    if binding not in (b"n", b"y") or (authorized and not authorized.startswith(b"a=")):
        raise BadExchange("the client's first message does not begin with n,, or y,,")
    return binding, authorized, bare


def _user(name: bytes) -> str:
    """A `saslname` (RFC 5802 part 7): `=2C` stands for a comma, `=3D` for an equals sign."""
    if re.search(rb"=(?!2C|3D)", name):
        raise BadExchange("the user's name has an equals sign that is not =2C or =3D")
    try:
        text = name.decode()
    except UnicodeDecodeError as error:
        raise BadExchange("the user's name is not UTF-8") from error
    if not text or "\x00" in text:
        raise BadExchange("the user's name is empty, or has a NUL")
    return text.replace("=2C", ",").replace("=3D", "=")


def _base64(text: bytes) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise BadExchange("a part of the client's last message is not base64") from error
