"""A reload: the configuration is read and checked again, and what can be applied is applied.

Rules:

* A configuration that is wrong changes nothing, and says why in one line.
* One reload runs at a time. Others wait for it; a SIGHUP that comes while one is asked for already
  asks for no further one.
* The configuration comes from where it came from at the start: the same options, the environment of
  the process, the same file.
* What needs a restart is named again by each reload, until the restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from polymq.checks import check_all
from polymq.errors import ExitCode, Failure
from polymq.logs import logger
from polymq.metrics.registry import Probe, counter
from polymq.reloading.changes import Change, changes_between, with_changes
from polymq.service_manager import ServiceManager
from polymq.settings import Settings


class Reloadable(Protocol):
    """A server that runs: `compose.Node`."""

    @property
    def settings(self) -> Settings:
        """Those in force."""

    def prepare(self, settings: Settings) -> Callable[[], object]:
        """See `applying.prepare`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a reload has done."""

    changes: Sequence[Change]

    @property
    def applied(self) -> list[Change]:
        """Those that are in force now."""
        return [change for change in self.changes if change.is_applied]

    @property
    def restart(self) -> list[Change]:
        """Those that are not."""
        return [change for change in self.changes if not change.is_applied]


class Reloader:
    """Reloads the configuration of one process.

    Args:
        load: reads and merges the configuration, as at the start. Raises Failure.
        configured: what it was then.
        manager: is told about it.

    Attributes:
        server: what runs; None while there is nothing that could change.
    """

    def __init__(
        self, load: Callable[[], Settings], configured: Settings, manager: ServiceManager
    ) -> None:
        self._load = load
        self._configured = configured
        self._manager = manager
        self._lock = asyncio.Lock()
        self._asked: asyncio.Task[None] | None = None  # by a signal
        self._results = {"applied": 0, "failed": 0}
        self.server: Reloadable | None = None

    def hangup(self) -> None:
        """A SIGHUP came."""
        if self._asked is None:
            self._asked = asyncio.get_running_loop().create_task(self._hangup())

    async def _hangup(self) -> None:
        async with self._lock:
            self._asked = None  # what comes from now on asks for another one
            try:
                await self._reload()
            except Failure:
                pass  # it was logged

    async def reload(self) -> Outcome:
        """Reload. Raises Failure: nothing was changed."""
        async with self._lock:
            return await self._reload()

    async def _reload(self) -> Outcome:
        self._manager.reloading()
        log, status = logger("polymq"), ""
        try:
            outcome = await self._apply()
        except Failure as failure:
            self._results["failed"] += 1
            status = f"the last reload failed: {failure.text}"
            log.error("reload failed, and nothing was changed", reason=failure.text)
            raise
        finally:
            self._manager.ready(status)
        self._results["applied"] += 1
        log.info(
            "reloaded",
            applied={change.name: f"{change.old} -> {change.new}" for change in outcome.applied},
            need_restart=[change.name for change in outcome.restart],
        )
        return outcome

    async def _apply(self) -> Outcome:
        server = self.server
        if server is None:
            text = "the server is starting or changing its role: reload again when it is ready"
            raise Failure(ExitCode.FAILED, text)
        before = server.settings

        def prepare() -> tuple[list[Change], Settings, Callable[[], object]]:
            wanted = self._load()
            check_all(wanted)
            changes = changes_between(self._configured, wanted)
            configured = with_changes(self._configured, wanted, changes)
            return changes, configured, server.prepare(with_changes(before, wanted, changes))

        changes, configured, apply = await asyncio.to_thread(prepare)
        if server is not self.server:
            raise Failure(ExitCode.FAILED, "the server stopped or changed its role meanwhile")
        apply()
        self._configured = configured
        return Outcome(changes=changes)

    def probes(self) -> list[Probe]:
        """What operators see of it."""
        return [
            counter(
                "polymq_reloads",
                "Reloads of the configuration, those that failed and changed nothing included.",
                lambda: self._results,
                label="result",
            )
        ]
