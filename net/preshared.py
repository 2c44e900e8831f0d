"""TLS with pre-shared keys (RFC 4279, RFC 5489; RFC 8446, part 2.2): a key for each identity.

Python's callback is told an identity, and not of which connection. So each connection has a context
of its own, which remembers the identity that was asked for: if the handshake succeeds, the client
has proven that it has this identity's key. A context costs about 0.4 ms, as much as a part of the
handshake. It issues no tickets, because a session that is resumed names no identity.

Python has this since 3.13 (`is_supported`).
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any, Final

CIPHERS: Final = "kECDHEPSK:kPSK:!eNULL:!CAMELLIA:!ARIA:!AESCCM"
"""Of TLS 1.2, in our order. First those that keep what was sent secret if the key becomes known
later."""


def is_supported() -> bool:
    """Whether this Python can do it."""
    return hasattr(ssl.SSLContext, "set_psk_server_callback") and bool(
        getattr(ssl, "HAS_PSK", False)
    )


class _Asked:
    """What OpenSSL asks for a key. It does not know its context: nothing goes in a circle."""

    __slots__ = ("_keys", "identity")

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        self._keys = keys
        self.identity = ""

    def __call__(self, identity: str | None) -> bytes:
        """The key; empty: there is none, and the handshake fails."""
        key = self._keys.get(identity or "", b"")
        self.identity = identity or "" if key else ""
        return key


class PresharedContext(ssl.SSLContext):
    """The context of one connection."""

    asked: _Asked


def preshared_context(keys: Mapping[str, bytes], hint: str = "") -> ssl.SSLContext:
    """A context for one connection of a server. This Python has to support it.

    Args:
        keys: by identity. Not copied: those that are there when the client asks count.
        hint: what clients of TLS 1.2 are told, so that they can choose an identity.
    """
    context = PresharedContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    context.options |= ssl.OP_NO_TICKET | ssl.OP_CIPHER_SERVER_PREFERENCE
    context.num_tickets = 0
    context.asked = _Asked(keys)
    set_callback: Any = getattr(context, "set_psk_server_callback")  # noqa: B009  # since 3.13
    set_callback(context.asked, hint or None)
    return context


def identity_of(connected: ssl.SSLObject | None) -> str:
    """The identity whose key a client has proven to have; empty: none."""
    context = None if connected is None else connected.context
    return context.asked.identity if isinstance(context, PresharedContext) else ""
