"""How connections are encrypted, as a value: an `ssl.SSLContext` cannot be pickled or compared."""

from __future__ import annotations

import ssl
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Encrypt, and check who answers.

    Attributes:
        authorities: certificates in PEM form. A server's has to be one of them, or from one of
            them. Empty: those that the system trusts.
        check_names: whether a server's certificate has to be for the name or address that was
            asked for.
    """

    authorities: str = ""
    check_names: bool = True

    def context(self) -> ssl.SSLContext:
        """What a connection needs. Raises ssl.SSLError: the authorities are no certificates."""
        context = ssl.create_default_context(cadata=self.authorities or None)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.authorities:  # a server's own certificate is enough
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.check_hostname = self.check_names
        return context
