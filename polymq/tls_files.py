"""The TLS of all listeners, from files that may change while the server runs.

Certificate, key, authorities and revocation lists are read again on SIGHUP, and when one of the
files has changed. New connections have what is in the files then; existing ones continue. Files
that cannot be used change nothing: the listeners go on with what they have, and the log says why.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

from polymq.errors import Failure
from polymq.logs import logger
from polymq.net.tls_source import TlsSource
from polymq.settings import TlsSettings
from polymq.tls import make_tls, warn_of_dates

Stamp = tuple[tuple[int, int, int] | None, ...]
"""Of each file its number, size and time of change; None: it is not there."""


class _Renewed:
    """One context, and the settings that it is made from."""

    def __init__(self, settings: TlsSettings, protocols: tuple[str, ...], owner: str) -> None:
        self._settings, self._protocols, self._owner = settings, protocols, owner
        self.context = self._made()

    def _made(self) -> ssl.SSLContext:
        made = tls_of(self._settings, self._protocols, self._owner)
        assert made is not None, "there is a certificate"
        return made

    def renew(self) -> None:
        """Read the files again. Raises Failure: the context stays as it is."""
        self.context = self._made()

    def current(self) -> ssl.SSLContext:
        """See `TlsSource`."""
        return self.context

    @property
    def files(self) -> Iterable[str]:
        """All that it is made from."""
        found = self._settings
        return filter(None, (found.certificate, found.key, found.client_ca, found.crl))

    def warn_of_dates(self) -> None:
        """Say so if the certificate is not valid now, or not for long."""
        warn_of_dates(self._settings, datetime.now(UTC), logger("polymq").warning)


def tls_of(
    settings: TlsSettings, protocols: tuple[str, ...] = (), owner: str = ""
) -> ssl.SSLContext | None:
    """What a listener with TLS needs; None if there is no certificate.

    Args:
        owner: the listener with settings of its own, for messages.

    Raises:
        Failure: USAGE, a file is missing or not what it should be.
    """
    try:
        return make_tls(settings, protocols=protocols)
    except Failure as failure:
        if not owner:
            raise
        raise Failure(failure.code, f"{owner}: {failure}") from failure


class TlsFiles:
    """The TLS of all listeners of a server.

    Args:
        call_later: of the loop.
        check_seconds: how often the files are checked; 0: never.
    """

    def __init__(
        self,
        call_later: Callable[[float, Callable[[], None]], asyncio.TimerHandle],
        check_seconds: float,
    ) -> None:
        self._call_later = call_later
        self._seconds = check_seconds
        self._renewed: list[_Renewed] = []
        self._stamp: Stamp = ()  # of what was read last, or could not be used
        self._seen: Stamp = ()  # at the last check
        self._timer: asyncio.TimerHandle | None = None

    def source(
        self, settings: TlsSettings, protocols: tuple[str, ...] = (), owner: str = ""
    ) -> TlsSource | None:
        """The TLS of a listener; None if there is no certificate. Raises Failure."""
        if not settings.enabled:
            return None
        made = _Renewed(settings, protocols, owner)
        self._renewed.append(made)
        return made.current

    def start(self) -> None:
        """Check the files from now on."""
        self._stamp = self._seen = self._look()
        self._wait()

    def stop(self) -> None:
        """Check no more."""
        self._seconds = 0
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self) -> None:
        if self._seconds and self._renewed:
            self._timer = self._call_later(self._seconds, self._check)

    def _check(self) -> None:
        now = self._look()
        if now != self._stamp and now == self._seen:
            self.renew()
        self._seen = now
        self._wait()

    def renew(self) -> None:
        """Read all files again, now."""
        log = logger("polymq")
        self._stamp = self._seen = self._look()
        if not self._renewed:
            log.warning(
                "SIGHUP reads the files of TLS again, and there are none: the configuration is read"
                " at the start only. Stop with SIGTERM, and start again, to apply what has changed"
            )
            return
        failures = 0
        for each in self._renewed:
            try:
                each.renew()
            except Failure as failure:
                failures += 1
                log.error("TLS goes on with the former files", error=str(failure))
            else:
                each.warn_of_dates()
        if not failures:
            log.info("TLS files were read again: new connections use them", files=len(self._stamp))

    def _look(self) -> Stamp:
        names = {name for each in self._renewed for name in each.files}
        return tuple(_stamp_of(name) for name in sorted(names))


def _stamp_of(name: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(name)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
