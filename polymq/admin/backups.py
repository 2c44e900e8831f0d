"""Backups: what `polymq backup create` asks of a running server.

The server copies nothing. It says as of which position the log can be copied, from which files, and
deletes none of them while the command renews what was reserved for it.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import msgspec

from polymq.admin.operations import Call, Given, Group, Operation, Value
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

Number = Annotated[int, msgspec.Meta(ge=0, lt=NUMBER_MAX)]


class NewBackup(Given):
    """How the log is reserved for a backup.

    Attributes:
        seconds: the reservation ends by itself if it is not renewed for so long; at most an hour.
    """

    seconds: Annotated[float, msgspec.Meta(ge=0, lt=NUMBER_MAX)] = SECONDS_DEFAULT


class ReservedLog(Value):
    """A part of the log that is reserved, and what a backup copies of it.

    Attributes:
        name: of the reservation.
        store: the identity of the store.
        log: the directory with the segments.
        position: up to where the log is copied.
        segments: first position and end of each segment.
        epochs: number, first position and mark of each epoch.
        seconds: the reservation ends by itself if it is not renewed for so long.
    """

    name: str
    store: str
    log: str
    position: int
    segments: list[tuple[int, int]]
    epochs: list[tuple[int, int, int]]
    seconds: float


class Renewal(Given):
    """How far a backup has come.

    Attributes:
        position: what is before it may be deleted.
    """

    position: Number = 0


class Reserved(Value):
    """A reservation.

    Attributes:
        name: by which it is renewed and ended.
        position: nothing from here on is deleted.
    """

    name: str
    position: int


class EndedBackup(Given):
    """What became of a backup.

    Attributes:
        failed: whether it failed.
        copied_bytes: how much was copied for it.
        completed_ms: when it was complete, in milliseconds since the epoch.
    """

    failed: bool = False
    copied_bytes: Number = 0
    completed_ms: Number = 0


class Backups(Value):
    """Backups of this server.

    Attributes:
        running: those that are being taken.
        completed: how many were taken since the server started.
        failed: how many failed since then, as far as their commands said so.
        newest_ms: when the newest was complete, in milliseconds since the epoch; null: there is
            none.
        newest_position: as of which position of the log the newest is; null: there is none.
    """

    running: list[Reserved]
    completed: int
    failed: int
    newest_ms: int | None
    newest_position: int | None


class BackupHandlers:
    """Carries out the operations on backups.

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

    def group(self) -> Group:
        """The operations."""
        named = {"backup": "the name of its reservation"}
        return Group(
            name="backups",
            about="Backups that are being taken of the running server. `polymq backup create` "
            "copies the files of the log, which the server reserves meanwhile.",
            operations=[
                Operation(
                    method="GET",
                    path="/backups",
                    name="getBackups",
                    summary="Show the backups that are being taken, and the newest",
                    right="monitor",
                    handler=self._show,
                    answer=Backups,
                ),
                Operation(
                    method="POST",
                    path="/backups",
                    name="beginBackup",
                    summary="Reserve the log for a backup",
                    about="The answer says what has to be copied.",
                    right="admin",
                    handler=self._begin,
                    body=NewBackup,
                    answer=ReservedLog,
                    status=201,
                ),
                Operation(
                    method="PUT",
                    path="/backups/{backup}",
                    name="renewBackup",
                    summary="Renew the reservation of a backup",
                    right="admin",
                    handler=self._renew,
                    body=Renewal,
                    answer=Reserved,
                    path_about=named,
                ),
                Operation(
                    method="POST",
                    path="/backups/{backup}/end",
                    name="endBackup",
                    summary="End the reservation of a backup, and say what became of it",
                    right="admin",
                    handler=self._end,
                    body=EndedBackup,
                    path_about=named,
                ),
            ],
        )

    async def _show(self, _call: Call[Given]) -> Backups:
        memory = self._memory
        is_known = memory is not None and memory.completed_ms > 0
        return Backups(
            running=[
                Reserved(name=found.name, position=found.position) for found in self._reservations
            ],
            completed=self.completed_count,
            failed=self.failed_count,
            newest_ms=memory.completed_ms if memory is not None and is_known else None,
            newest_position=memory.position if memory is not None and is_known else None,
        )

    async def _begin(self, call: Call[Given]) -> ReservedLog:
        body: NewBackup = call.body
        memory = await self._remember_identity()
        store = self._store
        # In one step of the loop: the files are those of the position, and none of them goes.
        position = store.log.flushed
        reserved = self._reservations.begin(store.log.start, position, body.seconds)
        segments = [found for found in store.segments() if found[0] <= position]
        epochs = [found for found in store.epochs if found[1] < position]
        marks = await asyncio.to_thread(partial(marks_of_epochs, store, epochs))
        audit.note("backup begun", backup=reserved.name, position=position, by=call.caller)
        return ReservedLog(
            name=reserved.name,
            store=memory.store,
            log=str((self._directory / STORE_DIRECTORY / LOG_NAME).absolute()),
            position=position,
            segments=segments,
            epochs=marks,
            seconds=reserved.seconds,
        )

    async def _renew(self, call: Call[Given]) -> Reserved:
        body: Renewal = call.body
        found = self._reservations.renew(call.path["backup"], body.position)
        return Reserved(name=found.name, position=found.position)

    async def _end(self, call: Call[Given]) -> None:
        name, body = call.path["backup"], call.body
        copied: int = body.copied_bytes
        reserved = self._reservations.end(name)
        self.copied_bytes += copied
        audit.note("backup ended", backup=name, failed=body.failed, by=call.caller)
        if body.failed:
            self.failed_count += 1
            logger("polymq").warning("backup failed", backup=name, copied_bytes=copied)
        else:
            self.completed_count += 1
            logger("polymq").info("backup taken", position=reserved.end, copied_bytes=copied)
            await self._remember(reserved.end, body.completed_ms)

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
