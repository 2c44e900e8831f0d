"""Access keys: what programs sign their requests with, where a protocol has no password.

RocketMQ's clients send an HMAC of each request (`remoting.signing` has its form). Whoever checks an
HMAC needs the secret itself: unlike a password it cannot be kept as a hash. So it is made by the
server and never chosen, is worth nothing anywhere else, and is shown once; but it stands readable
in the log and in `state.db`, as the messages do.

Rules:

* A key belongs to one user, and goes with it. It has that user's rights, whatever its number.
* The name of a key is no secret; names are unique among all users.
* Signatures are compared in constant time, and a key that is not there costs as much as one that
  is. There is no slowing down of guesses: 256 random bits are not guessed.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

KEY: Final = re.compile(r"[A-Za-z0-9]{8,64}")
KEY_BYTES: Final = 10
"""Random bytes of a key's name, written as 20 hex digits."""
SECRET_BYTES: Final = 32
"""Random bytes of a secret, written as 64 hex digits: 256 bits, as HMAC's hash of its key allows,
and nothing that a shell or a properties file would read in another way."""
_DIGEST: Final = "sha1"  # RocketMQ's; sound within an HMAC (RFC 6194)
_NOBODYS: Final = "0" * (2 * SECRET_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessKey:
    """One key of a user.

    Attributes:
        created_ms: when it was made, in milliseconds since the epoch.
    """

    name: str
    secret: str = field(repr=False)
    created_ms: int


class KeyRing:
    """Whose is which key: an index of what the users have."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[str, AccessKey]] = {}  # by the key's name

    def replace(self, user: str, before: Sequence[AccessKey], after: Sequence[AccessKey]) -> None:
        """A user has other keys than before."""
        for key in before:
            self._found.pop(key.name, None)
        for key in after:
            self._found[key.name] = user, key

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def owner(self, name: str) -> str | None:
        """The user whose key this is."""
        found = self._found.get(name)
        return None if found is None else found[0]

    def signer(self, name: str, content: bytes, digest: bytes) -> str | None:
        """The user whose key this is, if the content is signed with its secret.

        Args:
            digest: HMAC-SHA1, as the client gave it.
        """
        found = self._found.get(name)
        secret = _NOBODYS if found is None else found[1].secret
        right = hmac.compare_digest(hmac.digest(secret.encode(), content, _DIGEST), digest)
        return found[0] if found is not None and right else None


def rows(keys: Sequence[AccessKey]) -> list[list[Any]]:
    """Keys as a JSON value, a part of their user's row."""
    return [[key.name, key.secret, key.created_ms] for key in keys]


def from_row(row: Mapping[str, Any]) -> tuple[AccessKey, ...]:
    """The keys of a user's row; those that were written before there were any have none."""
    return tuple(
        AccessKey(name=name, secret=secret, created_ms=created_ms)
        for name, secret, created_ms in row.get("keys", ())
    )
