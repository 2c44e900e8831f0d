"""Which URLs of services that decide about logins may be called: https, with certificates that are
checked; http only where nobody else listens, or to hosts that the operator names."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit


def check_url(text: str, plain_hosts: Collection[str] = ()) -> None:
    """Whether a URL may be called.

    Args:
        plain_hosts: hosts that may be called without TLS.

    Raises:
        ValueError: with a sentence for the operator.
    """
    parts = urlsplit(text)
    host = parts.hostname or ""
    if parts.scheme not in ("http", "https") or not host or parts.port == 0:
        raise ValueError("must be a URL, such as https://login.example.com/path")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise ValueError("must be a URL without user, password and fragment")
    if not text.isascii() or any(letter <= " " or letter == "\x7f" for letter in text):
        raise ValueError("must be a URL of printable ASCII characters")
    if parts.scheme == "http" and not _is_loopback(host) and host not in plain_hosts:
        raise ValueError(f"must begin with https://, because {host} is another machine")


def check_directory_url(text: str, plain_hosts: Collection[str] = (), *, start_tls: bool) -> None:
    """Whether an LDAP directory may be asked.

    Args:
        plain_hosts: hosts that may be asked without TLS.
        start_tls: TLS begins after the connection is made.

    Raises:
        ValueError: with a sentence for the operator.
    """
    parts = urlsplit(text)
    host = parts.hostname or ""
    if parts.scheme not in ("ldap", "ldaps") or not host or parts.port == 0:
        raise ValueError("must be a URL, such as ldaps://ldap.example.com")
    if parts.netloc.rpartition("@")[0] or parts.path not in ("", "/") or parts.query:
        raise ValueError("must have a host and a port only: names have settings of their own")
    if parts.scheme == "ldaps" and start_tls:
        raise ValueError("has TLS already: unset ldap_start_tls")
    is_plain = parts.scheme == "ldap" and not start_tls
    if is_plain and not _is_loopback(host) and host not in plain_hosts:
        text = "must begin with ldaps://, or ldap_start_tls has to be set"
        raise ValueError(f"{text}, because {host} is another machine")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
