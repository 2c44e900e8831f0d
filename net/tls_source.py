"""Where a listener has its TLS from: a function, because files are read again while it runs."""

from __future__ import annotations

import ssl
from collections.abc import Callable

TlsSource = Callable[[], ssl.SSLContext]
"""The context for a new connection. It returns the same one until certificate, key, authorities or
revocation lists have changed; existing connections keep theirs."""


def fixed(context: ssl.SSLContext | None) -> TlsSource | None:
    """The source of a context that never changes; None without one."""
    return None if context is None else lambda: context
