"""The operator's listener to backups: what `polymq backup create` asks of a running server.

The server copies nothing. It says as of which position the log can be copied, from which files, and
deletes none of them while the command renews what was reserved for it.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from polymq.admin.access import CALLER
from polymq.admin.bodies import json_object
from polymq.backup_memory import BackupMemory, recall_backups, recall_or_begin, remember_backups
from polymq.broker.accounts import audit
from polymq.broker.engine import Engine
from polymq.broker.errors import Reason, Refused
from polymq.core_log.errors import describe
from polymq.core_log.recovery import LOG_NAME
from polymq.core_log.store import Store
from polymq.logs import logger
from polymq.metrics.registry import Probe, counter, gauge
from polymq.replication_memory import STORE_DIRECTORY

SECONDS_DEFAULT: Final = 120
NUMBER_MAX: Final = 1 << 62
"""No position, size or time is larger."""
_KNOWN: Final = frozenset({"seconds", "position", "failed", "copied_bytes", "completed_ms"})


class BackupHandlers:
    """The answers under `/backups`.

    Args:
        directory: the data directory.

    Attributes:
        completed_count, failed_count, copied_bytes: of those that ended, since the start.
    """

    def __init__(self, engine: Engine, store: Store, directory: Path) -> None:
        self._store = store
        self._directory = directory
        self._reservations = engine.retention.reservations
        self._memory = recall_backups(directory)
        self._remembering = asyncio.Lock()
        self.completed_count = 0
        self.failed_count = 0
        self.copied_bytes = 0

    def routes(self) -> list[web.RouteDef]:
        """For the application."""
        return [
            web.post("/backups", self._begin),
            web.put("/backups/{backup}", self._renew),
            web.post("/backups/{backup}/end", self._end),
        ]

    async def _begin(self, request: web.Request) -> web.Response:
        body = await json_object(request, _KNOWN, default=b"{}")
        memory = await self._remember_identity()
        store = self._store
        # In one step of the loop: the files are those of the position, and none of them goes.
        position = store.log.flushed
        reserved = self._reservations.begin(
            store.log.start, position, _number(body, "seconds", SECONDS_DEFAULT)
        )
        segments = [found for found in store.segments() if found[0] <= position]
        epochs = [found for found in store.epochs if found[1] < position]
        marks = await asyncio.to_thread(partial(marks_of_epochs, store, epochs))
        audit.note("backup begun", backup=reserved.name, position=position, by=request[CALLER])
        value = {
            "name": reserved.name,
            "store": memory.store,
            "log": str((self._directory / STORE_DIRECTORY / LOG_NAME).absolute()),
            "position": position,
            "segments": segments,
            "epochs": marks,
            "seconds": reserved.seconds,
        }
        return web.json_response(value, status=201)

    async def _renew(self, request: web.Request) -> web.Response:
        body = await json_object(request, _KNOWN, default=b"{}")
        found = self._reservations.renew(
            request.match_info["backup"], int(_number(body, "position", 0))
        )
        return web.json_response({"name": found.name, "position": found.position})

    async def _end(self, request: web.Request) -> web.Response:
        body = await json_object(request, _KNOWN, default=b"{}")
        name = request.match_info["backup"]
        copied = int(_number(body, "copied_bytes", 0))
        completed_ms = int(_number(body, "completed_ms", 0))
        reserved = self._reservations.end(name)
        self.copied_bytes += copied
        if body.get("failed"):
            self.failed_count += 1
            logger("polymq").warning("backup failed", backup=name, copied_bytes=copied)
        else:
            self.completed_count += 1
            logger("polymq").info("backup taken", position=reserved.end, copied_bytes=copied)
            await self._remember(reserved.end, completed_ms)
        return web.Response(status=204)

    async def _remember_identity(self) -> BackupMemory:
        """The identity of the store; drawn and written if there is none. Raises Refused."""
        async with self._remembering:
            if self._memory is None:
                try:
                    self._memory = await asyncio.to_thread(recall_or_begin, self._directory)
                except OSError as error:
                    text = f"{self._directory} cannot be written: {describe(error)}"
                    raise Refused(Reason.READ_ONLY, text) from error
            return self._memory

    async def _remember(self, position: int, completed_ms: int) -> None:
        async with self._remembering:
            assert self._memory is not None
            self._memory = replace(self._memory, position=position, completed_ms=completed_ms)
            try:
                await asyncio.to_thread(remember_backups, self._directory, self._memory)
            except OSError as error:
                logger("polymq").warning("the time of a backup is not stored", error=str(error))

    def probes(self) -> list[Probe]:
        """What operators watch."""
        reservations = self._reservations
        return [
            gauge(
                "polymq_backups_active",
                "Backups that are being taken, for which the log is not deleted.",
                lambda: len(reservations),
            ),
            counter(
                "polymq_backups_completed", "Backups that were taken.", lambda: self.completed_count
            ),
            counter(
                "polymq_backup_failures",
                "Backups that failed, by cause: reported by the command, not heard of in time, or "
                "ended because the disk was full.",
                lambda: {
                    "reported": self.failed_count,
                    "silent": reservations.expired_count,
                    "disk_full": reservations.dropped_count,
                },
                label="cause",
            ),
            counter(
                "polymq_backup_copied_bytes",
                "Bytes that were copied for backups.",
                lambda: self.copied_bytes,
            ),
            gauge(
                "polymq_backup_last_timestamp_seconds",
                "When the newest backup was complete (Unix time). 0: there is none.",
                lambda: 0 if self._memory is None else self._memory.completed_ms / 1000,
            ),
        ]


def marks_of_epochs(store: Store, epochs: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Number, start and mark of these epochs. Any thread."""
    return [(number, start, store.epoch_mark(number, start)) for number, start in epochs]


def _number(body: dict[str, Any], name: str, default: float) -> float:
    value = body.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Refused(Reason.BAD_ARGUMENT, f"{name} must be a number")
    if not 0 <= value < NUMBER_MAX:  # nor NaN, which JSON's readers take
        raise Refused(Reason.BAD_ARGUMENT, f"{name} is out of range")
    return value
