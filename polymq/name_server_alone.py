"""What there is beside a name server that is a program of its own: signals, what the service
manager is told, and a reload of its TLS and its log."""

from __future__ import annotations

import functools
import math
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final

import trio

from polymq.errors import Failure
from polymq.logs import change_logs, logger
from polymq.reloading.changes import Change, changes_between, with_changes
from polymq.service_manager import ServiceManager
from polymq.settings import Settings
from polymq.tls_files import TlsFiles

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
WAITING_SECONDS: Final = 1.0
"""How often messages for the service manager are sent again that it had no room for."""
READ: Final = ("server", "tls", "names", "log")
"""Sections that a name server reads."""
CHANGED: Final = ("tls", "log")
"""Those of which a reload applies something."""


class Alone:
    """What there is beside the name server itself.

    Args:
        load: reads the configuration again. Raises Failure.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        load: Callable[[], Settings],
        manager: ServiceManager,
        tls_files: TlsFiles,
    ) -> None:
        self._settings = settings
        self._load = load
        self._manager = manager
        self._tls_files = tls_files
        self._changed = trio.Event()  # the settings

    @contextmanager
    def until_signal(self) -> Iterator[Callable[[], Awaitable[None]]]:
        """Take signals inside. Gives what waits for the one that ends the server."""
        with trio.open_signal_receiver(*SIGNALS) as signals:
            yield functools.partial(self._wait_for_end, signals)

    async def _wait_for_end(self, signals: AsyncIterator[int]) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._beat)
            nursery.start_soon(self._watch_files)
            async for number in signals:
                if number == signal.SIGHUP:
                    await self.reload()
                    continue
                if number == signal.SIGINT:
                    print("polymq: stopping", file=sys.stderr, flush=True)
                break
            self._manager.stopping()
            nursery.cancel_scope.cancel()

    async def _beat(self) -> None:
        """Feed the watchdog, as long as the loop runs; and send what waits."""
        seconds = self._manager.watchdog_seconds
        while True:
            if seconds:
                self._manager.beat()
            await trio.sleep(seconds or WAITING_SECONDS)
            self._manager.send_waiting()

    async def _watch_files(self) -> None:
        while True:
            self._changed = trio.Event()
            with trio.move_on_after(self._settings.tls.check_files_seconds or math.inf):
                await self._changed.wait()
                continue  # the interval may be another one
            apply = await trio.to_thread.run_sync(self._tls_files.changed)
            if apply is not None:
                apply()

    async def reload(self) -> None:
        """Apply what has changed. A configuration that is wrong changes nothing."""
        self._manager.reloading()
        log, status = logger("polymq.namesrv"), ""
        try:
            changes, settings, apply = await trio.to_thread.run_sync(self._prepare)
        except Failure as failure:
            status = f"the last reload failed: {failure.text}"
            log.error("reload failed, and nothing was changed", reason=failure.text)
        else:
            apply()
            if settings.log != self._settings.log:
                change_logs(settings.log)
            self._settings = settings
            self._changed.set()
            log.info(
                "reloaded",
                applied=[change.name for change in changes if change.is_applied],
                need_restart=[change.name for change in changes if not change.is_applied],
            )
        finally:
            self._manager.ready(status)

    def _prepare(self) -> tuple[list[Change], Settings, Callable[[], None]]:
        """Raises Failure."""
        wanted = self._load()
        changes = [
            change
            for change in changes_between(self._settings, wanted)
            if _is_in(change, CHANGED) or (_is_in(change, READ) and not change.is_applied)
        ]
        settings = with_changes(self._settings, wanted, changes)
        return changes, settings, self._tls_files.prepare(lambda _owner: settings.tls)


def _is_in(change: Change, sections: tuple[str, ...]) -> bool:
    return change.name.partition(".")[0] in sections
