"""Master and slave, put together from the settings. A part of the composition root (`compose.py`).

Which role a broker has follows from its settings and from what it remembers
(`replication_memory.py`); whether it may be promoted stands in `promotion.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal

from polymq.acknowledging import Acknowledging, is_stored
from polymq.broker.engine import Engine
from polymq.broker.errors import StorageFailed, UnknownChange
from polymq.broker.following.divergence import Divergence
from polymq.core_log.acknowledged import ACKNOWLEDGED_NAME
from polymq.core_log.epochs import term_of
from polymq.core_log.errors import StoreRefused
from polymq.core_log.files import RealFiles
from polymq.core_log.store import Store
from polymq.errors import ExitCode, Failure
from polymq.logs import logger
from polymq.metrics.registry import Probe, gauge
from polymq.net.connection import Context
from polymq.net.listener import CannotListen, reserve
from polymq.net.roster import Roster
from polymq.net.tls_source import TlsSource
from polymq.promotion import Copy, ask_others, objections, others_of
from polymq.rejoining import Rejoining
from polymq.replication.client import MasterLink
from polymq.replication.limits import MEETINGS_SECONDS
from polymq.replication.server import ReplicationServer
from polymq.replication_memory import (
    FILE_NAME,
    STORE_DIRECTORY,
    Memory,
    above_term,
    fenced,
    last_epoch,
    recall,
    refusal,
    remember,
)
from polymq.replication_settings import address_of, connecting_tls, identity_of, new_nonce
from polymq.settings import Settings
from polymq.store_opening import code_of
from polymq.tls_files import TlsFiles

SAVE_SECONDS: Final = 1.0
"""How old the remembered points may be: what came since is held back after a restart until the
other side says again that it is committed."""


FLUSH_SECONDS_MAX: Final = 10.0
"""How long a promotion waits until what came of the master's log is on this disk."""
FLUSH_LOOK_SECONDS: Final = 0.01


def peers_of(settings: Settings) -> list[str]:
    """Whom a master asks whether they were promoted; empty for a slave."""
    chosen = settings.replication
    return [] if chosen.role == "slave" or not chosen.listen else others_of(settings)


async def highest_term(settings: Settings, epoch: int) -> int:
    """Meet all peers; the highest of their terms, 0 if there are none. Raises Failure."""
    if not peers_of(settings):
        return 0
    return max((found.term for found in (await ask_others(settings, epoch)).values()), default=0)


async def listening_sockets(settings: Settings) -> list[socket.socket]:
    """Bind `replication.listen`, for all roles that this process will have: a port that is taken
    is found out at the start, and not when the broker is the last one left. Raises Failure."""
    chosen = settings.replication
    if not chosen.listen:
        return []
    try:
        address = address_of(chosen.listen, "replication.listen")
        return await reserve(asyncio.get_running_loop(), *address)
    except CannotListen as error:
        raise Failure(ExitCode.CANNOT_LISTEN, f"replication: {error}") from error


async def look_for_a_higher_term(settings: Settings) -> None:
    """Before the log of a master is opened: whether another broker was promoted since it led.
    Raises Failure."""
    if not peers_of(settings) or above_term(settings) is not None:
        return
    term = await highest_term(settings, last_epoch(settings))
    memory = recall(settings) or Memory()
    if term > max(memory.heard, term_of(last_epoch(settings))):
        directory = settings.server.data_directory
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            remember(settings, replace(memory, heard=term))
        except OSError as error:
            text = f"cannot write {directory / FILE_NAME}: {error.strerror}"
            raise Failure(ExitCode.CANNOT_CREATE, text) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What a broker becomes in the same process.

    Attributes:
        role: as the settings have it.
        cut: where its log has to be cut before.
    """

    role: Literal["master", "slave"]
    cut: int | None = None


def promoted_value(store: Store) -> dict[str, Any]:
    """What is answered to a promotion, when the log is open."""
    return {
        "role": "master",
        "epoch": store.epoch,
        "term": term_of(store.epoch),
        "flushed": store.log.flushed,
    }


class Replication:
    """A broker's part in replication, from `start` to `stop`.

    Args:
        sockets: bound to `replication.listen` (`listening_sockets`). They stay the caller's, who
            keeps them while roles change. Without them it binds its own.
        clock_ms: the time of day.

    Attributes:
        ended: what the broker has to be opened anew for.
        turned: who asked for a promotion waits for this: the log is open in the new role, or a
            Failure. None while nobody asks.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        *,
        clock_ms: Callable[[], int],
        sockets: Sequence[socket.socket] = (),
    ) -> None:
        self._settings = settings
        self._chosen = settings.replication
        self._store = store
        self._memory = recall(settings)
        self._why = refusal(settings)
        self._fenced = fenced(settings)
        self._follows = bool(self._why)
        self._engine: Engine
        self._context: Context
        self._clock_ms = clock_ms
        self._sockets = sockets
        self._acknowledging = self._open_acknowledged()
        self._rejoining: Rejoining | None = None
        self._process = new_nonce()  # names this broker's links as those of one process
        self._saved = False  # what is remembered is for the next role: leave it
        self._server: ReplicationServer | None = None
        self._link: MasterLink | None = None
        self._saver: asyncio.Task[None] | None = None
        self._meetings: asyncio.Task[None] | None = None
        self.ended: asyncio.Future[Turn] = asyncio.get_running_loop().create_future()
        self.turned: asyncio.Future[dict[str, Any]] | None = None

    def _open_acknowledged(self) -> Acknowledging | None:
        """Open the file that says what may have been acknowledged; None for a broker that never had
        to do with replicas. Raises Failure."""
        settings, files = self._settings, RealFiles()
        directory = str(settings.server.data_directory / STORE_DIRECTORY)
        leads = not self._follows
        try:
            if leads and not self._chosen.listen and not is_stored(files, directory):
                return None
            return Acknowledging(
                files,
                directory,
                self._store,
                leads=leads,
                disks=1
                if settings.topics.durability == "page_cache"
                else settings.replication.min_in_sync,
                failed=self._not_stored,
            )
        except OSError as error:
            text = f"{directory}/{ACKNOWLEDGED_NAME} cannot be written: {error.strerror}"
            raise Failure(ExitCode.CANNOT_CREATE, text) from error

    def _not_stored(self, error: Exception) -> None:
        self._engine.core.fail(StorageFailed(f"{ACKNOWLEDGED_NAME} cannot be written: {error}"))

    @property
    def engine_options(self) -> dict[str, Any]:
        """What the engine has to know.

        A broker that never had replicas knows nothing of in-sync, and shows what it has.
        """
        memory = self._memory or Memory()
        if self._follows:
            return {"follows": self._why, "shown": memory.flushed, "in_sync": memory.in_sync}
        return {"in_sync": None if self._memory is None else memory.in_sync}

    async def start(self, engine: Engine, context: Context, tls_files: TlsFiles) -> int | None:
        """Listen for slaves, or follow a master; returns the port if there is one.

        Args:
            tls_files: has the TLS of the listener.

        Raises:
            Failure: it cannot listen, or a file cannot be used.
        """
        self._engine, self._context = engine, context
        if self._acknowledging is not None:
            self._acknowledging.start(context)
            if not self._follows:
                engine.core.replicas.keep = self._acknowledging.keep
        port = None
        if self._chosen.listen:
            tls = tls_files.source(self._settings.tls) if self._chosen.tls else None
            port = await self._listen(tls)
        if self._fenced:
            logger("polymq").error("fenced: " + self._why)
        elif self._follows:
            self._begin_to_follow()
        elif port is not None:
            engine.core.on_written = self._server.written if self._server is not None else None
            self._meetings = context.loop.create_task(self._keep_meeting())
        if self._follows or port is not None:
            self._save()
            self._saver = context.loop.create_task(self._keep_saving())
        return port

    async def stop(self) -> None:
        """End all connections, and remember the points."""
        for task in (self._saver, self._meetings):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        if self._saver is not None:
            self._save()  # while it is known whether this broker follows
        if self._link is not None:
            await self._link.stop()
        if self._server is not None:
            self._engine.core.on_written = None
            await self._server.stop()
        if self._acknowledging is not None:
            self._engine.core.replicas.keep = None
            self._acknowledging.close()

    @property
    def rosters(self) -> Sequence[Roster[Any]]:
        """The connections to the port for slaves; none without one."""
        return () if self._server is None else self._server.rosters

    # --- the listener -------------------------------------------------------------------------

    async def _listen(self, tls: TlsSource | None) -> int:
        """Listen: for slaves, or, where this broker does not lead, to say so. Raises Failure."""
        core = self._engine.core
        host, port = address_of(self._chosen.listen, "replication.listen")
        self._server = ReplicationServer(
            context=self._context,
            store=self._store,
            readers=core.patient_readers,
            identity=identity_of(self._settings),
            points=self._points,
            replicas=core.replicas,
            outranked=self._outranked,
            new_nonce=new_nonce,
            name=self._chosen.name,
            follows=self._why,
        )
        sockets = [bound.dup() for bound in self._sockets]
        try:
            return await self._server.start(host, port, tls, sockets)
        except CannotListen as error:
            raise Failure(ExitCode.CANNOT_LISTEN, f"replication: {error}") from error

    # --- the master ---------------------------------------------------------------------------

    async def _keep_meeting(self) -> None:
        while peers_of(self._settings):
            await asyncio.sleep(MEETINGS_SECONDS)
            with contextlib.suppress(Failure):  # the secret's file cannot be read now
                self._outranked(await highest_term(self._settings, self._store.epoch))

    def _outranked(self, term: int) -> None:
        """Another broker leads in this term: if it is a higher one, take nothing any more."""
        if not self._follows and term > term_of(self._store.epoch) and not self.ended.done():
            # At once: the listeners take their time to close.
            self._engine.core.resign(
                "this broker was replaced as the master: it accepts nothing more"
            )
            memory = replace(self._memory or Memory(), heard=term)
            try:
                remember(self._settings, memory)
            except OSError as error:  # it takes nothing all the same, and tries again
                logger("polymq").error("not saved", what=FILE_NAME, error=str(error))
                return
            self._memory = memory
            self._end(Turn(role="master"))  # which it cannot be: see `fenced`

    def _points(self) -> tuple[int, int]:
        points = self._engine.core.commits.points
        return points[1], points[2]

    # --- the slave ----------------------------------------------------------------------------

    def _begin_to_follow(self) -> None:
        standby = self._engine.standby
        assert standby is not None
        host, port = address_of(self._chosen.master, "replication.master")
        assert self._acknowledging is not None
        self._rejoining = Rejoining(
            directory=self._settings.server.data_directory,
            store=self._store,
            engine=self._engine,
            readers=self._engine.core.patient_readers,
            acknowledging=self._acknowledging,
            clock_ms=self._clock_ms,
            cut=self._cut,
        )
        self._link = MasterLink(
            context=self._context,
            store=self._store,
            copy=standby,
            identity=identity_of(self._settings),
            name=self._chosen.name,
            host=host,
            port=port,
            cut=self._lacks,
            refused=self._cannot_follow,
            joined=self._joined,
            tls=connecting_tls(self._settings),
            new_nonce=new_nonce,
            process=self._process,
        )
        self._link.start()

    def _joined(self) -> None:
        """What the master sends is told to it when it is on this disk, from now on."""
        assert self._rejoining is not None
        self._rejoining.forget()
        try:
            if self._acknowledging is not None:
                self._acknowledging.follow()
        except OSError as error:
            raise StoreRefused(f"{ACKNOWLEDGED_NAME}: {error.strerror}") from error

    def _cannot_follow(self, error: StoreRefused) -> None:
        """The master sent what this version cannot take: the process ends as a start with this log
        would."""
        master = self._chosen.master
        what = error.what if isinstance(error, UnknownChange) else str(error)
        text = (
            f"this slave cannot follow its master {master} any more: a newer version of PolyMQ runs"
            f" there, and wrote {what}, which this version does not know. Upgrade this broker"
        )
        if not self.ended.done():
            self.ended.set_exception(Failure(code_of(error), text))

    def _lacks(self, position: int, epoch: int) -> None:
        """The master has this log up to a position only. Its term is noted: should this broker be
        promoted in its place, a higher one has to begin."""
        assert self._rejoining is not None
        known = self._memory or Memory()
        if term_of(epoch) > known.heard:
            self._memory = replace(known, heard=term_of(epoch))
            self._remember(self._memory)
        self._rejoining.look(position)

    def _cut(self, divergence: Divergence, path: str) -> None:
        """What the master lacks may go, and a copy of it stands at `path`."""
        logger("polymq").warning(
            "cutting what the master never had",
            position=divergence.position,
            end=divergence.end,
            messages=divergence.messages,
            stored_in=path,
        )
        self._end(Turn(role="slave", cut=divergence.position))

    @property
    def refusal(self) -> str:
        """Why a slave does not follow its master, where an operator has to decide; else empty."""
        return "" if self._rejoining is None else self._rejoining.refusal

    def follow(self, *, force: bool) -> dict[str, Any]:
        """Give up what the master lacks, and follow it. Returns what is given up. Raises Failure if
        there is no such thing, or `force` is False."""
        if self._rejoining is None:
            raise Failure(ExitCode.FAILED, "this broker is the master: it follows no other broker")
        return self._rejoining.give_up(force=force)

    def _whole(self) -> bool:
        """Whether this broker's copy is known to be all that its master had: see `Memory`."""
        standby, link = self._engine.standby, self._link
        if standby is None or link is None or link.following:
            return False
        if link.has_followed:
            return standby.flushed >= standby.said[0]
        return self._memory is not None and self._memory.whole

    def _heard_ms(self) -> int:
        """When the master was last heard of."""
        known = 0 if self._memory is None else self._memory.heard_ms
        if self._link is None or not self._link.has_followed:
            return known
        silence = self._context.now() - self._link.heard
        return self._clock_ms() - int(silence * 1000)

    async def _caught_up(self) -> None:
        """Wait until what came of the master's log is on this disk, if that takes no longer than
        `FLUSH_SECONDS_MAX`."""
        standby, log = self._engine.standby, self._store.log
        deadline = self._context.now() + FLUSH_SECONDS_MAX
        while standby is not None and standby.flushed < log.appended:
            if self._context.now() > deadline:
                break
            await asyncio.sleep(FLUSH_LOOK_SECONDS)

    async def promote(self, *, force: bool) -> asyncio.Future[dict[str, Any]]:
        """Become the master.

        Args:
            force: whatever speaks against it.

        Returns:
            What is done when the log is open as a master's: its value as of `value`. It fails with
            a Failure if that cannot be done, and then the process ends.

        Raises:
            Failure: this broker is a master, or something would be lost and `force` is False, or
                its files cannot be written. Nothing has changed.
        """
        if not self._follows:
            raise Failure(ExitCode.FAILED, "this broker is a master already")
        await self._caught_up()
        standby = self._engine.standby
        assert standby is not None
        copy = Copy(
            epoch=self._store.epoch,
            end=standby.flushed,
            master_flushed=standby.said[0],
            whole=self._whole(),
            heard_ms=self._heard_ms(),
            following=self._link is not None and self._link.following,
            led_in_term=self._fenced,
        )
        found = await objections(self._settings, copy)
        if self.turned is not None:
            return self.turned  # somebody else has asked meanwhile
        if found and not force:
            raise Failure(
                ExitCode.FAILED,
                "not promoted: "
                + "; ".join(found)
                + ". `polymq broker promote --force` promotes it all the same",
            )
        for doubt in found:
            logger("polymq").warning(f"promoted by force: {doubt}")
        self._save()
        memory = replace(self._memory or Memory(), role="slave", promoted=True)
        try:
            remember(self._settings, memory)
        except OSError as error:
            raise Failure(ExitCode.FAILED, f"{FILE_NAME} cannot be written: {error}") from error
        self._saved = True
        logger("polymq").warning(
            "promoted: this broker becomes the master. Set replication.role to master in its "
            "settings now: they apply at its next start"
        )
        self.turned = self._context.loop.create_future()
        self._end(Turn(role="master"))
        return self.turned

    def _end(self, outcome: Turn) -> None:
        if not self.ended.done():
            self.ended.set_result(outcome)

    # --- both -----------------------------------------------------------------------------------

    async def _keep_saving(self) -> None:
        while True:
            await asyncio.sleep(SAVE_SECONDS)
            self._save()

    def _save(self) -> None:
        """Remember the points, if they have moved."""
        standby = self._engine.standby
        flushed, in_sync = self._points() if standby is None else standby.said
        known = self._memory or Memory()
        memory = Memory(
            flushed=flushed,
            in_sync=in_sync,
            role=self.role,
            heard=known.heard,
            whole=self._whole(),
            heard_ms=known.heard_ms,
        )
        if memory != known and standby is not None:
            memory = replace(memory, heard_ms=self._heard_ms())
        acknowledging = self._acknowledging
        if standby is None and acknowledging is not None and in_sync > acknowledging.position:
            acknowledging.keep(in_sync, lambda: None)
        if memory == self._memory or self._saved:
            return
        self._memory = memory
        self._remember(memory)

    def _remember(self, memory: Memory) -> None:
        try:
            remember(self._settings, memory)
        except OSError as error:
            logger("polymq").warning("not saved", what=FILE_NAME, error=str(error))

    @property
    def role(self) -> Literal["master", "slave", "fenced"]:
        """`master`, `slave` or `fenced`."""
        if self._fenced:
            return "fenced"
        return "slave" if self._follows else "master"

    def value(self) -> dict[str, Any]:
        """What operators see."""
        standby, link, server = self._engine.standby, self._link, self._server
        found: dict[str, Any] = {
            "role": self.role,
            "name": self._chosen.name,
            "epoch": self._store.epoch,
            "term": term_of(self._store.epoch),
            "flushed": self._store.log.flushed if standby is None else standby.flushed,
        }
        if self._fenced:
            found |= {"led_in_term": self._fenced, "reason": self._why}
        if link is not None:
            found |= {
                "master": self._chosen.master,
                "following": link.following,
                "lag_bytes": link.lag_bytes,
                "lag_seconds": round(link.lag_seconds, 3),
                "heard_ms": self._heard_ms(),
            }
        if self._rejoining is not None and self._rejoining.found is not None:
            found["diverged"] = asdict(self._rejoining.found)
        if server is not None and not self._follows:
            lags = server.lags()
            found["replicas"] = {
                name: {
                    "address": slave.peer,
                    "flushed": slave.source.flushed,
                    "lag_bytes": int(lags[name]),
                    "lag_seconds": round(slave.lag_seconds, 3),
                }
                for name, slave in server.slaves.items()
            }
        return found

    def probes(self) -> list[Probe]:
        """For `/metrics`."""

        def link() -> MasterLink | None:
            return self._link  # made after the metrics are

        return [
            gauge(
                "polymq_replica_lag_bytes",
                "Bytes of the log that each connected slave does not have on its disk yet.",
                lambda: {} if self._server is None else self._server.lags(),
                label="slave",
            ),
            gauge(
                "polymq_replica_lag_seconds",
                "Time since each connected slave last had the whole log on its disk. 0: it "
                "has it now.",
                lambda: {} if self._server is None else self._server.lag_seconds(),
                label="slave",
            ),
            gauge(
                "polymq_replication_fenced",
                "1 on a master that was replaced: it accepts nothing.",
                lambda: float(bool(self._fenced)),
            ),
            gauge(
                "polymq_replication_slave",
                "1 on a slave, 0 on a master.",
                lambda: float(self.role == "slave"),
            ),
            gauge(
                "polymq_replication_following",
                "1 on a slave while its master sends to it.",
                lambda: float((found := link()) is not None and found.following),
            ),
            gauge(
                "polymq_replication_lag_bytes",
                "On a slave: bytes of its master's log that are not on its own disk yet.",
                lambda: 0.0 if (found := link()) is None else float(found.lag_bytes),
            ),
            gauge(
                "polymq_replication_lag_seconds",
                "On a slave: time since its disk last had the whole log of its master. 0: it "
                "has it now.",
                lambda: 0.0 if (found := link()) is None else found.lag_seconds,
            ),
            gauge(
                "polymq_replication_silence_seconds",
                "On a slave: time since it last heard from its master. A second is usual.",
                lambda: 0.0 if (found := link()) is None else self._context.now() - found.heard,
            ),
        ]
