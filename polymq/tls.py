"""TLS for the listeners: the server's certificate and key, and who may connect, from the settings.

What is wrong with the files is said at the start, in one sentence, and the server does not start.
Only a certificate that has expired, or is not valid yet, is a warning: clients decide about it, and
a server that would not start again on the day after would be worse.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from polymq.errors import ExitCode, Failure
from polymq.remoting.tls import Tls
from polymq.settings import Settings, TlsSettings

HTTP_PROTOCOLS: Final = ("http/1.1",)
SOON_DAYS: Final = 14
"""A certificate that ends within so many days is mentioned."""

_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"

_SEQUENCE, _CONTEXT_0 = 0x30, 0xA0
_UTC_TIME, _GENERAL_TIME = 0x17, 0x18


def names_tls(settings: Settings) -> ssl.SSLContext | None:
    """With what a broker registers at its name servers; None without TLS. Raises Failure."""
    chosen, own = settings.names, settings.tls
    if not chosen.tls:
        return None
    context = _connecting("names.tls_ca", chosen.tls_ca).context()
    if own.certificate and own.key:  # for a name server that asks for clients' certificates
        try:
            check_private(own)
            context.load_cert_chain(own.certificate, own.key, password=_no_password)
        except (OSError, ssl.SSLError) as error:
            text = f"names.tls: {own.certificate} cannot be used: {error}"
            raise Failure(ExitCode.USAGE, text) from error
    return context


def chosen_tls(file: str | None) -> Tls:
    """How a command connects whose options name a file with authorities, or none. Raises
    Failure."""
    return _connecting("--tls-ca", file or "")


def own_tls(settings: TlsSettings) -> Tls:
    """How commands on this machine connect to its server: they know its certificate, so it need not
    be for an address of loopback, nor from an authority. Raises Failure."""
    if not settings.certificate:
        raise Failure(
            ExitCode.USAGE,
            "the server's RocketMQ port without TLS is closed: name its certificate in the"
            " configuration of this command, too (tls.certificate)",
        )
    chain = _connecting("tls.certificate", settings.certificate).authorities
    own = chain[chain.find(_BEGIN) :].partition(_END)[0]  # the first is the server's
    return Tls(authorities=own + _END + "\n", check_names=False)


def _connecting(name: str, file: str) -> Tls:
    """How to connect to servers whose certificates are from an authority in the file, or from one
    that the system trusts. Raises Failure: `name` is what named the file."""
    try:
        tls = Tls(authorities=Path(file).read_text(encoding="utf-8") if file else "")
        tls.context()
    except (OSError, UnicodeError, ssl.SSLError) as error:
        reason = "it holds no certificates in PEM form"
        if isinstance(error, OSError) and not isinstance(error, ssl.SSLError):
            reason = error.strerror or str(error)
        raise Failure(ExitCode.USAGE, f"{name}: {file} cannot be used: {reason}") from error
    return tls


def make_tls(settings: TlsSettings, *, protocols: tuple[str, ...] = ()) -> ssl.SSLContext | None:
    """What a listener with TLS needs; None if no certificate is configured.

    Args:
        protocols: names for ALPN.

    Raises:
        Failure: USAGE, a file is missing or not what it should be.
    """
    if not settings.enabled:
        return None
    for name in ("certificate", "key"):
        if not getattr(settings, name):
            raise Failure(
                ExitCode.USAGE, f"tls.{name} is not set: TLS needs a certificate and a key"
            )
    certificate = _read("certificate", settings.certificate)
    _read("key", settings.key)
    check_private(settings)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.certificate, settings.key, password=_no_password)
    except ssl.SSLError as error:
        raise Failure(ExitCode.USAGE, _why(settings, certificate, error)) from error
    if settings.client_ca:
        _read("client_ca", settings.client_ca)
        try:
            context.load_verify_locations(settings.client_ca)
        except ssl.SSLError as error:
            text = f"tls.client_ca: {settings.client_ca} holds no certificates in PEM form"
            raise Failure(ExitCode.USAGE, text) from error
        optional = settings.client_certificates == "optional"
        context.verify_mode = ssl.CERT_OPTIONAL if optional else ssl.CERT_REQUIRED
    if settings.crl:
        _load_revoked(context, settings)
    if protocols:
        context.set_alpn_protocols(list(protocols))
    return context


def _load_revoked(context: ssl.SSLContext, settings: TlsSettings) -> None:
    """Check clients' certificates for revocation. Raises Failure."""
    if not settings.client_ca:
        text = "tls.crl is set, but no client needs a certificate: set tls.client_ca"
        raise Failure(ExitCode.USAGE, text)
    text = _read("crl", settings.crl)
    try:
        if "BEGIN X509 CRL" not in text:
            raise ssl.SSLError("there is none")
        context.load_verify_locations(settings.crl)
    except ssl.SSLError as error:
        text = f"tls.crl: {settings.crl} holds no certificate revocation lists in PEM form"
        raise Failure(ExitCode.USAGE, text) from error
    # Only of the clients' own certificates: there need be no lists of the authorities' authorities.
    context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF


def _read(name: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace")
    except OSError as error:
        reason = error.strerror or str(error)
        raise Failure(ExitCode.USAGE, f"tls.{name}: {path} cannot be read: {reason}") from error


def check_private(settings: TlsSettings) -> None:
    """Refuse a private key that others can read, be it in a file of its own or in that of the
    certificate. Raises Failure: USAGE; OSError: a file cannot be read.

    A key of root's may be readable for a group, in which the server's user is: so systems hand keys
    to servers.
    """
    if others_read(settings.key):
        text = f"tls.key: {settings.key} can be read by others: chmod 600 {settings.key}"
        raise Failure(ExitCode.USAGE, text)
    own = settings.certificate
    if others_read(own) and b"PRIVATE KEY-----" in Path(own).read_bytes():
        text = (
            f"tls.certificate: {own} holds a private key and can be read by others: chmod 600 "
            f"{own}, or keep only certificates in it"
        )
        raise Failure(ExitCode.USAGE, text)


def others_read(path: str) -> bool:
    """Whether others than its owner, and a group of root's, can read a file. Raises OSError."""
    found = Path(path).stat()
    return bool(found.st_mode & (0o037 if found.st_uid == 0 else 0o077))


def _no_password() -> str:
    raise Failure(ExitCode.USAGE, "tls.key is encrypted: use a key without a passphrase")


def _why(settings: TlsSettings, certificate: str, error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"tls.key: {settings.key} is not the key of the certificate {settings.certificate}"
    if "BEGIN CERTIFICATE" not in certificate:
        return f"tls.certificate: {settings.certificate} holds no certificate in PEM form"
    return f"tls: {settings.certificate} and {settings.key} cannot be used: {error.reason or error}"


def warn_of_dates(settings: TlsSettings, now: datetime, warn: Callable[[str], None]) -> None:
    """Say so if the certificate is not valid now, or not for long."""
    try:
        pem = Path(settings.certificate).read_text(encoding="ascii", errors="replace")
        begin, end = validity(pem)
    except (OSError, ValueError):
        return  # what clients see is what OpenSSL took from it
    if now >= end:
        warn(f"the certificate {settings.certificate} expired on {end:%Y-%m-%d}: replace it")
    elif now < begin:
        warn(f"the certificate {settings.certificate} is not valid before {begin:%Y-%m-%d}")
    elif (end - now).days < SOON_DAYS:
        warn(f"the certificate {settings.certificate} expires on {end:%Y-%m-%d}: replace it soon")


# --- dates of a certificate (RFC 5280, 4.1) ----------------------------------------------------


def validity(pem: str) -> tuple[datetime, datetime]:
    """When the first certificate of a PEM file is valid. Raises ValueError."""
    start = pem.index(ssl.PEM_HEADER)
    stop = pem.index(ssl.PEM_FOOTER, start) + len(ssl.PEM_FOOTER)
    der = ssl.PEM_cert_to_DER_cert(pem[start:stop])
    certificate = _contents(der, 0, _SEQUENCE)
    fields = _contents(certificate, 0, _SEQUENCE)
    at = 0
    if fields[0] == _CONTEXT_0:  # the version
        at = _end(fields, at)
    for _ in range(3):  # serial number, signature, issuer
        at = _end(fields, at)
    dates = _contents(fields, at, _SEQUENCE)
    return _time(dates, 0), _time(dates, _end(dates, 0))


def _span(der: bytes, at: int) -> tuple[int, int]:
    """Where the contents of the element at `at` begin and end. Raises ValueError."""
    if at + 2 > len(der):
        raise ValueError("a certificate ends too early")
    size, start = der[at + 1], at + 2
    if size & 0x80:
        count = size & 0x7F
        size, start = int.from_bytes(der[start : start + count], "big"), start + count
    if start + size > len(der):
        raise ValueError("a certificate ends too early")
    return start, start + size


def _contents(der: bytes, at: int, kind: int) -> bytes:
    start, end = _span(der, at)
    if der[at] != kind:
        raise ValueError(f"expected {kind:#x} in a certificate, not {der[at]:#x}")
    return der[start:end]


def _end(der: bytes, at: int) -> int:
    return _span(der, at)[1]


def _time(der: bytes, at: int) -> datetime:
    start, end = _span(der, at)
    text = der[start:end].decode("ascii")
    if der[at] == _UTC_TIME:  # two digits of the year, of 1950 to 2049
        text = ("19" if text[:2] >= "50" else "20") + text
    elif der[at] != _GENERAL_TIME:
        raise ValueError("a certificate without dates")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
