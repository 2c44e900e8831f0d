"""Which user a connection proves to be without a password: by its certificate, by a pre-shared key,
or by its proxy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from polymq.broker.port import Reason, Refused
from polymq.gateways.mqtt.rules import UserOf
from polymq.net.certificates import Names, names_of
from polymq.net.connection import SocketConnection
from polymq.net.preshared import identity_of


def proxied_user(connection: SocketConnection) -> str | None:
    """The common name of the certificate that a proxy has verified."""
    return connection.proxied_name


def preshared_user(connection: SocketConnection) -> str | None:
    """The identity whose pre-shared key the client has proven to have. Raises Refused:
    NOT_AUTHENTICATED."""
    transport = connection.transport
    identity = identity_of(None if transport is None else transport.get_extra_info("ssl_object"))
    if not identity:
        raise Refused(Reason.NOT_AUTHENTICATED, "its TLS handshake named no identity")
    return identity


def user_of(part: str) -> UserOf | None:
    """Who asks a certificate for this part of it: `cn`, `san_dns`, `san_email` or `subject`; None
    for an empty one."""
    return partial(_certified_user, part) if part else None


def _certified_user(part: str, connection: SocketConnection) -> str | None:
    """The user that is named by the client's certificate, which the handshake has verified.

    Raises:
        Refused: NOT_AUTHENTICATED, it has no such name.
    """
    transport = connection.transport
    own = None if transport is None else transport.get_extra_info("ssl_object")
    certificate = None if own is None else own.getpeercert(binary_form=True)
    if certificate is None:
        return None
    try:
        user = _PARTS[part](names_of(certificate))
    except ValueError as error:
        text = f"its certificate cannot be read: {error}"
        raise Refused(Reason.NOT_AUTHENTICATED, text) from error
    if not user:
        raise Refused(Reason.NOT_AUTHENTICATED, f"its certificate names no user ({part})")
    return user


def _common_name(names: Names) -> str:
    if len(names.common_names) > 1:
        raise ValueError("it has more than one common name")
    return next(iter(names.common_names), "")


_PARTS: Final[dict[str, Callable[[Names], str]]] = {
    "cn": _common_name,
    "san_dns": lambda names: next(iter(names.dns_names), ""),
    "san_email": lambda names: next(iter(names.mail_addresses), ""),
    "subject": lambda names: names.subject,
}
