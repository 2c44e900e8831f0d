"""The TLS of all listeners, from files that may change while the server runs.

Certificate, key, authorities and revocation lists are read again by a reload, and when one of the
files has changed. New connections have what is in the files then; existing ones continue.

Rules:

* All listeners change together, or none does. Files that cannot be used, such as a certificate
  whose key is not there yet, change nothing: the listeners go on with what they have, and the log
  says why, once for each change of the files.
* Files are read in a thread: a disk or a network may take its time.
* A change is taken up when two looks have found the same: who writes files is given the time to
  write all of them.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from polymq.errors import Failure
from polymq.logs import logger
from polymq.metrics.registry import Probe, counter
from polymq.net.tls_source import TlsSource, fixed
from polymq.preshared_keys import KeyFile, make_preshared
from polymq.settings import TlsSettings
from polymq.tls import make_tls, warn_of_dates

Stamp = tuple[tuple[int, int, int] | None, ...]
"""Of each file its number, size and time of change; None: it is not there."""
ListenerFiles = TlsSettings | KeyFile
"""What a listener has TLS with: a certificate, or pre-shared keys."""
SettingsOf = Callable[[str], ListenerFiles]
"""The settings of a listener, by its owner (`TlsFiles.source`)."""


@dataclass(slots=True)
class _Renewed:
    """The contexts of one listener, and what they are made from."""

    settings: ListenerFiles
    protocols: tuple[str, ...]
    owner: str
    make: TlsSource

    def current(self) -> ssl.SSLContext:
        """See `TlsSource`."""
        return self.make()


def source_of(
    settings: ListenerFiles, protocols: tuple[str, ...] = (), owner: str = ""
) -> TlsSource | None:
    """Where a listener has the contexts of new connections from, as the files are now. As
    `tls_of`."""
    if not isinstance(settings, KeyFile):
        return fixed(tls_of(settings, protocols, owner))
    try:
        return make_preshared(settings)
    except Failure as failure:
        raise Failure(failure.code, f"{owner}: {failure}") from failure


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
    """The TLS of all listeners of a server. `prepare` and `changed` may be called in a thread, one
    at a time."""

    def __init__(self) -> None:
        self._renewed: list[_Renewed] = []
        self._stamp: Stamp = ()  # of what was read last, or could not be used
        self._seen: Stamp = ()  # at the last look
        self._count = 0  # of what was taken up
        self._results = {"renewed": 0, "failed": 0}

    def source(
        self, settings: ListenerFiles, protocols: tuple[str, ...] = (), owner: str = ""
    ) -> TlsSource | None:
        """The TLS of a listener; None if there is no certificate. Raises Failure."""
        make = source_of(settings, protocols, owner)
        if make is None:
            return None
        made = _Renewed(settings, protocols, owner, make)
        self._renewed.append(made)
        return made.current

    def begin(self) -> None:
        """All listeners have their TLS: what changes from now on is a change."""
        self._stamp = self._seen = _look(each.settings for each in self._renewed)

    def prepare(self, settings_of: SettingsOf | None = None) -> Callable[[], None]:
        """Read all files again.

        Args:
            settings_of: which files; by default those that were read before.

        Returns:
            What lets new connections have them.

        Raises:
            Failure: one of them cannot be used.
        """
        chosen = [
            each.settings if settings_of is None else settings_of(each.owner)
            for each in self._renewed
        ]
        stamp, count = _look(chosen), self._count
        if settings_of is None:
            self._stamp = stamp
        made = [
            source_of(settings, each.protocols, each.owner)
            for each, settings in zip(self._renewed, chosen, strict=True)
        ]
        log = logger("polymq")
        certified = [one for one in chosen if not isinstance(one, KeyFile)]
        for settings in {one.certificate: one for one in certified}.values():
            warn_of_dates(settings, datetime.now(UTC), log.warning)

        def apply() -> None:
            if not made or (settings_of is None and count != self._count):
                return  # there is no TLS, or a reload has read others after these
            self._count += 1
            self._results["renewed"] += 1
            self._stamp = self._seen = stamp
            for each, files, make in zip(self._renewed, chosen, made, strict=True):
                assert make is not None, "there is a certificate"
                each.settings, each.make = files, make
            log.info("TLS files were read again: new connections use them", files=len(stamp))

        return apply

    def changed(self) -> Callable[[], None] | None:
        """Look whether files have changed. Returns what lets new connections have them; None if
        there is nothing new, or it cannot be used."""
        now = _look(each.settings for each in self._renewed)
        is_steady, self._seen = now == self._seen, now
        if now == self._stamp or not is_steady:
            return None
        try:
            return self.prepare()
        except Failure as failure:
            self._results["failed"] += 1
            logger("polymq").error("TLS goes on with the former files", error=str(failure))
            return None

    def probes(self) -> list[Probe]:
        """What operators see of it."""
        return [
            counter(
                "polymq_tls_renewals",
                "Changes of the files of TLS that were taken up (renewed), and that could not be "
                "used (failed).",
                lambda: self._results,
                label="result",
            )
        ]


class TlsWatch:
    """Looks at the files from time to time, between `start` and `stop`, on the running loop.

    Args:
        seconds: how often; 0: never.
    """

    def __init__(self, files: TlsFiles, seconds: float) -> None:
        self._files = files
        self._seconds = seconds
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._files.begin()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """End."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def every(self, seconds: float) -> None:
        """Look so often from now on."""
        self._seconds = seconds
        self._changed.set()

    async def _run(self) -> None:
        while True:
            self._changed.clear()
            try:
                async with asyncio.timeout(self._seconds or None):
                    await self._changed.wait()
            except TimeoutError:
                apply = await asyncio.to_thread(self._files.changed)
                if apply is not None:
                    apply()


def _look(settings: Iterable[ListenerFiles]) -> Stamp:
    names = {name for one in settings for name in _files_of(one)}
    return tuple(_stamp_of(name) for name in sorted(names))


def _files_of(settings: ListenerFiles) -> Sequence[str]:
    if isinstance(settings, KeyFile):
        return [settings.path]
    named = (settings.certificate, settings.key, settings.client_ca, settings.crl)
    return [name for name in named if name]


def _stamp_of(name: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(name)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
