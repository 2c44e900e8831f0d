"""Signed requests: how a client of RocketMQ says who it is (RocketMQ's ACL, `AclClientRPCHook`).

There is no login. Each request names an *access key* and proves with a signature that its sender
knows the secret that belongs to it:

    AccessKey = the key          SecurityToken = (optional, opaque)
    Signature = Base64(HMAC-SHA1(secret, content))
    content   = the values of all extFields, in the order of their names, then the body

Rules:

* What is signed is what stands on the wire: the short names of SEND_MESSAGE_V2 decide the order,
  and a value counts as its text (UTF-8). The opaque number, the flags and the code are not signed.
* A field that is null or empty adds nothing, so JSON and binary headers have the same signature.
* Some fields are added by a client's library after it has signed; they are left out (`_UNSIGNED`,
  `_UNSIGNED_BEFORE`). None of them means anything to a broker here.
* There is no time in it: who can listen can send the same request again. The secret never travels.

Pure: no clock, no chance.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from polymq.remoting.errors import LocalProtocolError
from polymq.remoting.frames import Command

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"
SIGNATURE: Final = "Signature"

_UNSIGNED: Final = frozenset((SIGNATURE, "__ZONE_NAME", "__ZONE_MODE"))
"""The signature itself, and where Java's 5.x clients are (`DynamicalExtFieldRPCHook`, which runs
behind the hook that signs)."""
_UNSIGNED_BEFORE: Final = "_UNIQUE_KEY_QUERY"
"""Not signed by clients up to 4.9.3, which sign the typed header only."""
_VERSION_4_9_3: Final = 399


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What a client signs with. The secret is in no `repr`, and so in no trace.

    Attributes:
        security_token: of temporary credentials, for servers that want one.
    """

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """What a request says about who sent it.

    Attributes:
        digest: HMAC-SHA1 of `content`, or no such thing; 20 bytes if the client is sound.
    """

    access_key: str
    digest: bytes
    content: bytes = field(repr=False)


def content_of(fields: Mapping[str, str], body: bytes, *, version: int | None = None) -> bytes:
    """What the signature of a request covers.

    Args:
        version: of the client that sent it (`Command.version`); None for a request of our own.
    """
    left_out = _UNSIGNED
    if version is not None and version <= _VERSION_4_9_3:
        left_out |= {_UNSIGNED_BEFORE}
    text = "".join([fields[name] for name in sorted(fields) if name not in left_out])
    return text.encode("utf-8", "surrogatepass") + body


def sign(fields: Mapping[str, str], body: bytes, credentials: Credentials) -> dict[str, str]:
    """The fields of a request with those that say who sends it."""
    signed = {**fields, ACCESS_KEY: credentials.access_key}
    if credentials.security_token is not None:
        signed[SECURITY_TOKEN] = credentials.security_token
    secret = credentials.secret_key.encode()
    digest = hmac.digest(secret, content_of(signed, body), "sha1")
    signed[SIGNATURE] = base64.b64encode(digest).decode()
    return signed


def signature_of(command: Command) -> Signature | None:
    """The signature of a request; None if it names no access key."""
    access_key = command.fields.get(ACCESS_KEY)
    if access_key is None:
        return None
    try:
        digest = base64.b64decode(command.fields.get(SIGNATURE, ""), validate=True)
    except (binascii.Error, ValueError):
        digest = b""
    return Signature(
        access_key=access_key,
        digest=digest,
        content=content_of(command.fields, command.body, version=command.version),
    )


def credentials_from(access_key: str | None, secret_key: str | None) -> Credentials | None:
    """What two options of a program say. Raises LocalProtocolError: one without the other."""
    if not access_key and not secret_key:
        return None
    if not access_key or not secret_key:
        raise LocalProtocolError(
            "an access key and a secret key have to be used together: give both"
        )
    return Credentials(access_key=access_key, secret_key=secret_key)
