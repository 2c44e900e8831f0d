"""Master and slave, put together from the settings. A part of the composition root (`compose.py`).

What a broker remembers beside the log stands in `replication.json` of the data directory: how far
the log is known to be committed, which a restart shows, and no more. Its role is not remembered: at
a start the settings say it. So a broker that was promoted, and then lost and replaced in its turn,
does not come back as a second master.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from broker.engine import Engine
from core_log.store import Store
from net.connection import Context
from net.listener import CannotListen
from polymq.errors import ExitCode, Failure
from polymq.logs import logger
from polymq.metrics import Probe
from polymq.ports import write_values
from polymq.settings import ReplicationSettings, Settings
from polymq.workers import Workers
from replication.client import MasterLink
from replication.limits import NONCE_SIZE, SECRET_SIZE_MIN
from replication.server import ReplicationServer
from replication.source import Identity

FILE_NAME: Final = "replication.json"
SAVE_SECONDS: Final = 1.0
"""How old the remembered points may be: what came since is held back after a restart until the
other side says again that it is committed."""
PORT_DEFAULT: Final = 10912
"""RocketMQ's for the same purpose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What `replication.json` has.

    Attributes:
        flushed, in_sync: the points that were told last.
    """

    flushed: int = 0
    in_sync: int = 0


def recall(settings: Settings) -> Memory | None:
    """What is remembered; None if nothing is, or it can not be read."""
    try:
        text = (settings.server.data_directory / FILE_NAME).read_text(encoding="utf-8")
        value = json.loads(text)
        memory = Memory(**value)
        assert type(memory.flushed) is int
        assert type(memory.in_sync) is int
    except (OSError, ValueError, TypeError, AssertionError):
        return None
    return memory


def follows(settings: Settings) -> bool:
    """Whether this broker is a slave now."""
    return settings.replication.role == "slave"


def refusal(settings: Settings) -> str:
    """What a slave's clients are told that want to change something; empty for a master."""
    if not follows(settings):
        return ""
    return f"this broker is a slave: its master is {settings.replication.master}, ask there"


class Replication:
    """A broker's part in replication, from `start` to `stop`.

    Attributes:
        ended: what the broker has to be opened anew for: a position to cut the log at, or a
            promotion (None).
    """

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings = settings
        self._chosen = settings.replication
        self._store = store
        self._memory = recall(settings)
        self._follows = follows(settings)
        self._engine: Engine
        self._context: Context
        self._server: ReplicationServer | None = None
        self._link: MasterLink | None = None
        self._saver: asyncio.Task[None] | None = None
        self.ended: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()

    @property
    def engine_options(self) -> dict[str, Any]:
        """What the engine has to know.

        A broker that never had replicas knows nothing of in-sync, and shows what it has.
        """
        memory = self._memory or Memory()
        if self._follows:
            why = refusal(self._settings)
            return {"follows": why, "shown": memory.flushed, "in_sync": memory.in_sync}
        return {"in_sync": None if self._memory is None else memory.in_sync}

    async def start(self, engine: Engine, context: Context, readers: Workers) -> int | None:
        """Listen for slaves, or follow a master; returns the port if there is one. Raises
        Failure."""
        self._engine, self._context = engine, context
        chosen = self._chosen
        port = None
        if self._follows:
            self._begin_to_follow()
        elif chosen.listen:
            port = await self._listen(readers)
        if self._follows or chosen.listen:
            self._save()
            self._saver = context.loop.create_task(self._keep_saving())
        return port

    async def stop(self) -> None:
        """End all connections, and remember the points."""
        if self._saver is not None:
            self._saver.cancel()
            await asyncio.wait([self._saver])
        if self._link is not None:
            await self._link.stop()
        if self._server is not None:
            self._engine.core.on_written = None
            await self._server.stop()
        if self._saver is not None:
            self._save()

    # --- the master ---------------------------------------------------------------------------

    async def _listen(self, readers: Workers) -> int:
        core = self._engine.core
        host, port = place_of(self._chosen.listen, "replication.listen")
        self._server = ReplicationServer(
            context=self._context,
            store=self._store,
            readers=readers,
            identity=self._identity(),
            points=self._points,
            replicas=core.replicas,
            new_nonce=new_nonce,
        )
        try:
            bound = await self._server.start(host, port)
        except CannotListen as error:
            raise Failure(ExitCode.CANNOT_LISTEN, f"replication: {error}") from error
        core.on_written = self._server.written
        return bound

    def _points(self) -> tuple[int, int]:
        points = self._engine.core.commits.points
        return points[1], points[2]

    # --- the slave ----------------------------------------------------------------------------

    def _begin_to_follow(self) -> None:
        standby = self._engine.standby
        assert standby is not None
        host, port = place_of(self._chosen.master, "replication.master")
        self._link = MasterLink(
            context=self._context,
            store=self._store,
            copy=standby,
            identity=self._identity(),
            name=self._chosen.name,
            host=host,
            port=port,
            cut=self._cut,
            new_nonce=new_nonce,
        )
        self._link.start()

    def _cut(self, position: int) -> None:
        logger("polymq").warning(
            "cutting what the master never had", position=position, end=self._store.log.appended
        )
        self._end(position)

    def promote(self) -> None:
        """Become the master. Raises Failure if this broker is one."""
        if not self._follows:
            raise Failure(ExitCode.FAILED, "this broker is a master already")
        self._save()
        logger("polymq").warning(
            "promoted: this broker becomes the master. Set replication.role to master in its "
            "settings now: they hold at its next start"
        )
        self._end(None)

    def _end(self, outcome: int | None) -> None:
        if not self.ended.done():
            self.ended.set_result(outcome)

    # --- both -----------------------------------------------------------------------------------

    def _identity(self) -> Identity:
        chosen = self._chosen
        return Identity(cluster=chosen.cluster, group=chosen.group, secret=read_secret(chosen))

    async def _keep_saving(self) -> None:
        while True:
            await asyncio.sleep(SAVE_SECONDS)
            self._save()

    def _save(self) -> None:
        """Remember the points, if they have moved."""
        standby = self._engine.standby
        flushed, in_sync = self._points() if standby is None else standby.said
        memory = Memory(flushed=flushed, in_sync=in_sync)
        if memory == self._memory:
            return
        self._memory = memory
        try:
            write_values(self._settings.server.data_directory / FILE_NAME, asdict(memory))
        except OSError as error:
            logger("polymq").warning("not saved", what=FILE_NAME, error=str(error))

    def value(self) -> dict[str, Any]:
        """What operators see: the answer of `/replication`."""
        standby, link, server = self._engine.standby, self._link, self._server
        found: dict[str, Any] = {
            "role": "slave" if self._follows else "master",
            "name": self._chosen.name,
            "epoch": self._store.epoch,
            "flushed": self._store.log.flushed if standby is None else standby.flushed,
        }
        if link is not None:
            found |= {
                "master": self._chosen.master,
                "following": link.following,
                "lag_bytes": link.lag_bytes,
            }
        if server is not None:
            found["slaves"] = {
                name: {"flushed": slave.source.flushed, "address": slave.peer}
                for name, slave in server.slaves.items()
            }
        return found

    def probes(self) -> list[Probe]:
        """For `/metrics`."""

        def link() -> MasterLink | None:
            return self._link  # made after the metrics are

        return [
            Probe(
                name="polymq_replica_lag_bytes",
                kind="gauge",
                text="What each slave does not have on its disk yet. A slave that is gone is "
                "missing here.",
                label="slave",
                read=lambda: {} if self._server is None else self._server.lags(),
            ),
            Probe(
                name="polymq_replication_following",
                kind="gauge",
                text="Of a slave: 1 while its master sends to it.",
                read=lambda: float((found := link()) is not None and found.following),
            ),
            Probe(
                name="polymq_replication_lag_bytes",
                kind="gauge",
                text="Of a slave: what its master has told of and is not on its disk.",
                read=lambda: 0.0 if (found := link()) is None else float(found.lag_bytes),
            ),
            Probe(
                name="polymq_replication_silence_seconds",
                kind="gauge",
                text="Of a slave: how long ago its master was last heard of; a second is usual.",
                read=lambda: (
                    0.0 if (found := link()) is None else self._context.now() - found.heard
                ),
            ),
        ]


def new_nonce() -> str:
    """Random hexadecimal digits, for a handshake."""
    return secrets.token_hex(NONCE_SIZE)


def place_of(text: str, setting: str) -> tuple[str, int]:
    """HOST:PORT, or HOST alone. Raises Failure."""
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(PORT_DEFAULT)
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise Failure(ExitCode.USAGE, f"{setting} is HOST:PORT, not {text!r}")
    return host.strip("[]"), int(port)


def check_settings(settings: Settings) -> None:
    """Raises Failure for settings of replication that do not fit together."""
    chosen = settings.replication
    if chosen.role == "slave" and not chosen.master:
        raise Failure(ExitCode.USAGE, "a slave needs replication.master, the HOST:PORT it follows")
    if chosen.role == "slave":
        place_of(chosen.master, "replication.master")
    if chosen.listen:
        place_of(chosen.listen, "replication.listen")
    if chosen.role == "slave" or chosen.listen:
        read_secret(chosen)


def read_secret(chosen: ReplicationSettings) -> bytes:
    """The secret of all brokers of the group. Raises Failure."""
    path = Path(chosen.secret_file)
    if not chosen.secret_file:
        raise Failure(
            ExitCode.USAGE,
            "replication needs a secret: name a file that all brokers of the group have a copy of "
            "with replication.secret_file (such as `openssl rand -hex 32 > FILE`, mode 0600)",
        )
    try:
        secret = path.read_bytes().strip()
        open_to_others = path.stat().st_mode & 0o077
    except OSError as error:
        text = f"cannot read replication.secret_file {path}: {error.strerror}"
        raise Failure(ExitCode.USAGE, text) from error
    if open_to_others:
        text = f"replication.secret_file {path} can be read by others: chmod 600 {path}"
        raise Failure(ExitCode.USAGE, text)
    if len(secret) < SECRET_SIZE_MIN:
        text = f"the secret in {path} has {len(secret)} bytes: make it at least {SECRET_SIZE_MIN}"
        raise Failure(ExitCode.USAGE, text)
    return secret
