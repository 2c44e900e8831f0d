"""The settings of replication: what they mean, and whether they fit together."""

from __future__ import annotations

import secrets
import ssl
from typing import Final

from polymq.errors import ExitCode, Failure
from polymq.replication.limits import NONCE_SIZE
from polymq.replication.source import Identity
from polymq.secret_file import read_secret_file
from polymq.settings import ReplicationSettings, Settings
from polymq.tls import check_private

PORT_DEFAULT: Final = 10912
"""RocketMQ's for the same purpose."""


def identity_of(settings: Settings) -> Identity:
    """Whose log it is. Raises Failure."""
    names = settings.names
    return Identity(
        cluster=names.cluster, group=names.broker, secret=read_secret(settings.replication)
    )


def connecting_tls(settings: Settings) -> ssl.SSLContext | None:
    """With what a slave connects to its master; None if the log goes unencrypted. Raises
    Failure."""
    chosen, own = settings.replication, settings.tls
    if not chosen.tls:
        return None
    try:
        context = ssl.create_default_context(cafile=chosen.tls_ca or None)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if own.certificate and own.key:  # for a master that asks for clients' certificates
            check_private(own)
            context.load_cert_chain(own.certificate, own.key)
    except (OSError, ssl.SSLError) as error:
        text = f"replication.tls: {chosen.tls_ca or own.certificate} cannot be used: {error}"
        raise Failure(ExitCode.USAGE, text) from error
    return context


def new_nonce() -> str:
    """Random hexadecimal digits, for a handshake."""
    return secrets.token_hex(NONCE_SIZE)


def address_of(text: str, setting: str) -> tuple[str, int]:
    """HOST:PORT, or HOST alone. Raises Failure."""
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(PORT_DEFAULT)
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise Failure(ExitCode.USAGE, f"{setting} is HOST:PORT, not {text!r}")
    return host.strip("[]"), int(port)


def check_settings(settings: Settings) -> None:
    """Raises Failure for settings of replication that do not fit together."""
    chosen = settings.replication
    if chosen.role == "slave" and not chosen.master:
        raise Failure(ExitCode.USAGE, "a slave needs replication.master, the HOST:PORT it follows")
    if chosen.role == "slave":
        address_of(chosen.master, "replication.master")
    for peer in chosen.peers:
        address_of(peer, "replication.peers")
    if chosen.listen:
        address_of(chosen.listen, "replication.listen")
    if chosen.role == "slave" or chosen.listen:
        read_secret(chosen)
        connecting_tls(settings)
    if chosen.tls and chosen.listen and not settings.tls.enabled:
        raise Failure(
            ExitCode.USAGE,
            "replication.tls needs a certificate for replication.listen: set "
            "tls.certificate and tls.key",
        )


def read_secret(chosen: ReplicationSettings) -> bytes:
    """The secret of all brokers of the group. Raises Failure."""
    if not chosen.secret_file:
        raise Failure(
            ExitCode.USAGE,
            "replication needs a secret: name a file that all brokers of the group have a copy of "
            "with replication.secret_file (such as `openssl rand -hex 32 > FILE`, mode 0600)",
        )
    return read_secret_file(chosen.secret_file, "replication.secret_file")
