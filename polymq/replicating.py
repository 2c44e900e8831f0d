"""Master and slave, put together from the settings. A part of the composition root (`compose.py`).

What a broker remembers beside the log stands in `replication.json` of the data directory: how far
the log is known to be committed, which a restart shows, the role that it had, and the highest term
that it heard of. The settings say the role. That it was a slave before and is a master now is a
promotion, whether a command or the settings made it one: a new term begins. A master that has
heard of a higher term than its log's was replaced: it is *fenced*. It opens its log as a slave
does, serves readers by offset, and takes nothing, until it is started as a slave or promoted.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import ssl
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal

from broker.engine import Engine
from core_log.epochs import read_epochs, term_of
from core_log.files import RealFiles
from core_log.store import Store
from net.connection import Context
from net.listener import CannotListen
from polymq.errors import ExitCode, Failure
from polymq.logs import logger
from polymq.metrics import Probe
from polymq.ports import write_values
from polymq.secret_file import read_secret_file
from polymq.settings import ReplicationSettings, Settings
from polymq.tls import make_tls
from replication.client import MasterLink
from replication.limits import MEETINGS_SECONDS, NONCE_SIZE
from replication.meeting import meet
from replication.server import ReplicationServer
from replication.source import Identity

FILE_NAME: Final = "replication.json"
STORE_DIRECTORY: Final = "store"
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
        role: `master`, `slave` or `fenced`.
        heard: the highest term of another master that this broker was told of.
    """

    flushed: int = 0
    in_sync: int = 0
    role: str = "master"
    heard: int = 0


def recall(settings: Settings) -> Memory | None:
    """What is remembered; None if nothing is, or it can not be read."""
    try:
        text = (settings.server.data_directory / FILE_NAME).read_text(encoding="utf-8")
        value = json.loads(text)
        memory = Memory(**value)
        assert type(memory.flushed) is int
        assert type(memory.in_sync) is int
        assert type(memory.role) is str
        assert type(memory.heard) is int
    except (OSError, ValueError, TypeError, AssertionError):
        return None
    return memory


def remember(settings: Settings, memory: Memory) -> None:
    """Write `replication.json`. Raises OSError."""
    write_values(settings.server.data_directory / FILE_NAME, asdict(memory))


def last_epoch(settings: Settings) -> int:
    """The epoch of the closed log; 0 if there is none, or its list can not be read."""
    with contextlib.suppress(OSError):
        epochs = read_epochs(RealFiles(), str(settings.server.data_directory / STORE_DIRECTORY))
        return epochs[-1][0] if epochs else 0
    return 0


def fenced(settings: Settings) -> int:
    """The term that another broker leads in, of one that its settings call a master; 0 if it may
    lead. To be asked before the log is opened."""
    memory = recall(settings)
    if settings.replication.role == "slave" or memory is None or memory.role == "slave":
        return 0
    return memory.heard if memory.heard > term_of(last_epoch(settings)) else 0


def refusal(settings: Settings) -> str:
    """What the clients of a broker are told that want to change something, if it is a slave or
    fenced; empty if it leads."""
    if settings.replication.role == "slave":
        return f"this broker is a slave: its master is {settings.replication.master}, ask there"
    term = fenced(settings)
    if not term:
        return ""
    return (
        f"this broker was replaced as the master: another one leads in term {term}, publish there. "
        "Start this one as its slave"
    )


def above_term(settings: Settings) -> int | None:
    """Of a slave that is a master from now on: the highest term that it heard of."""
    memory = recall(settings)
    if memory is None or memory.role != "slave" or settings.replication.role == "slave":
        return None
    return memory.heard


def peers_of(settings: Settings) -> list[str]:
    """Where others of the group listen when they lead."""
    chosen = settings.replication
    if chosen.role == "slave" or not chosen.listen:
        return []
    return sorted({*chosen.peers, chosen.master} - {"", chosen.listen})


async def ask_peers(settings: Settings, epoch: int) -> int:
    """Meet all peers that lead; the highest of their terms, 0 if there are none."""
    chosen, tls = settings.replication, connecting_tls(settings)
    found = await asyncio.gather(
        *(
            meet(
                *place_of(peer, "replication.peers"),
                identity=identity_of(settings),
                name=chosen.name,
                nonce=new_nonce(),
                epoch=epoch,
                tls=tls,
            )
            for peer in peers_of(settings)
        )
    )
    return max((answer.term for answer in found if answer is not None), default=0)


async def look_for_a_higher_term(settings: Settings) -> None:
    """Before the log is opened: whether another broker was promoted since this one led."""
    if not peers_of(settings) or above_term(settings) is not None:
        return
    term = await ask_peers(settings, last_epoch(settings))
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


class Replication:
    """A broker's part in replication, from `start` to `stop`.

    Attributes:
        ended: what the broker has to be opened anew for.
    """

    def __init__(self, settings: Settings, store: Store) -> None:
        self._settings = settings
        self._chosen = settings.replication
        self._store = store
        self._memory = recall(settings)
        self._why = refusal(settings)
        self._fenced = fenced(settings)
        self._follows = bool(self._why)
        self._engine: Engine
        self._context: Context
        self._process = new_nonce()  # names this broker's links as those of one process
        self._saved = False  # what is remembered is for the next role: leave it
        self._server: ReplicationServer | None = None
        self._link: MasterLink | None = None
        self._saver: asyncio.Task[None] | None = None
        self._meetings: asyncio.Task[None] | None = None
        self.ended: asyncio.Future[Turn] = asyncio.get_running_loop().create_future()

    @property
    def engine_options(self) -> dict[str, Any]:
        """What the engine has to know.

        A broker that never had replicas knows nothing of in-sync, and shows what it has.
        """
        memory = self._memory or Memory()
        if self._follows:
            return {"follows": self._why, "shown": memory.flushed, "in_sync": memory.in_sync}
        return {"in_sync": None if self._memory is None else memory.in_sync}

    async def start(self, engine: Engine, context: Context) -> int | None:
        """Listen for slaves, or follow a master; returns the port if there is one. Raises
        Failure."""
        self._engine, self._context = engine, context
        chosen = self._chosen
        port = None
        if self._fenced:
            logger("polymq").error("fenced: " + self._why)
        elif self._follows:
            self._begin_to_follow()
        elif chosen.listen:
            port = await self._listen()
            self._meetings = context.loop.create_task(self._keep_meeting())
        if self._follows or chosen.listen:
            self._save()
            self._saver = context.loop.create_task(self._keep_saving())
        return port

    async def stop(self) -> None:
        """End all connections, and remember the points."""
        for task in (self._saver, self._meetings):
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
        if self._link is not None:
            await self._link.stop()
        if self._server is not None:
            self._engine.core.on_written = None
            await self._server.stop()
        if self._saver is not None:
            self._save()

    # --- the master ---------------------------------------------------------------------------

    async def _listen(self) -> int:
        core = self._engine.core
        host, port = place_of(self._chosen.listen, "replication.listen")
        self._server = ReplicationServer(
            context=self._context,
            store=self._store,
            readers=core.patient_readers,
            identity=identity_of(self._settings),
            points=self._points,
            replicas=core.replicas,
            outranked=self._outranked,
            new_nonce=new_nonce,
        )
        try:
            tls = make_tls(self._settings.tls) if self._chosen.tls else None
            bound = await self._server.start(host, port, tls)
        except CannotListen as error:
            raise Failure(ExitCode.CANNOT_LISTEN, f"replication: {error}") from error
        core.on_written = self._server.written
        return bound

    async def _keep_meeting(self) -> None:
        while peers_of(self._settings):
            await asyncio.sleep(MEETINGS_SECONDS)
            with contextlib.suppress(Failure):  # the secret's file can not be read now
                self._outranked(await ask_peers(self._settings, self._store.epoch))

    def _outranked(self, term: int) -> None:
        """Another broker leads in this term: if it is a higher one, take nothing any more."""
        if term > term_of(self._store.epoch) and not self.ended.done():
            # At once: the doors take their time to close.
            self._engine.core.resign("this broker was replaced as the master: it takes no more")
            memory = replace(self._memory or Memory(), heard=term)
            try:
                remember(self._settings, memory)
            except OSError as error:  # it takes nothing all the same, and tries again
                logger("polymq").error("not saved", what=FILE_NAME, error=str(error))
                return
            self._memory = memory
            self._end(Turn(role="master"))  # which it can not be: see `fenced`

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
            identity=identity_of(self._settings),
            name=self._chosen.name,
            host=host,
            port=port,
            cut=self._cut,
            tls=connecting_tls(self._settings),
            new_nonce=new_nonce,
            process=self._process,
        )
        self._link.start()

    def _cut(self, position: int) -> None:
        logger("polymq").warning(
            "cutting what the master never had", position=position, end=self._store.log.appended
        )
        self._end(Turn(role="slave", cut=position))

    def promote(self) -> None:
        """Become the master. Raises Failure if this broker is one."""
        if not self._follows:
            raise Failure(ExitCode.FAILED, "this broker is a master already")
        self._save()
        try:
            remember(self._settings, replace(self._memory or Memory(), role="slave"))
        except OSError as error:
            raise Failure(ExitCode.FAILED, f"{FILE_NAME} can not be written: {error}") from error
        self._saved = True
        logger("polymq").warning(
            "promoted: this broker becomes the master. Set replication.role to master in its "
            "settings now: they hold at its next start"
        )
        self._end(Turn(role="master"))

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
        heard = 0 if self._memory is None else self._memory.heard
        memory = Memory(flushed=flushed, in_sync=in_sync, role=self.role, heard=heard)
        if memory == self._memory or self._saved:
            return
        self._memory = memory
        try:
            remember(self._settings, memory)
        except OSError as error:
            logger("polymq").warning("not saved", what=FILE_NAME, error=str(error))

    @property
    def role(self) -> str:
        """`master`, `slave` or `fenced`."""
        if self._fenced:
            return "fenced"
        return "slave" if self._follows else "master"

    def value(self) -> dict[str, Any]:
        """What operators see: the answer of `/replication`."""
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
            }
        if server is not None:
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
            Probe(
                name="polymq_replica_lag_bytes",
                kind="gauge",
                text="What each slave does not have on its disk yet. A slave that is gone is "
                "missing here.",
                label="slave",
                read=lambda: {} if self._server is None else self._server.lags(),
            ),
            Probe(
                name="polymq_replica_lag_seconds",
                kind="gauge",
                text="How long ago each slave last had all of the log on its disk; 0: it has it "
                "now.",
                label="slave",
                read=lambda: {} if self._server is None else self._server.lag_seconds(),
            ),
            Probe(
                name="polymq_replication_fenced",
                kind="gauge",
                text="1 on a master that was replaced: it takes nothing.",
                read=lambda: float(bool(self._fenced)),
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
                name="polymq_replication_lag_seconds",
                kind="gauge",
                text="Of a slave: how long ago it last had on its disk all that its master had; 0: "
                "it has it now.",
                read=lambda: 0.0 if (found := link()) is None else found.lag_seconds,
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


def identity_of(settings: Settings) -> Identity:
    """Whose log it is. Raises Failure."""
    names = settings.names
    return Identity(
        cluster=names.cluster, group=names.broker, secret=read_secret(settings.replication)
    )


def connecting_tls(settings: Settings) -> ssl.SSLContext | None:
    """With what a slave connects to its master; None if the log goes unencrypted. Raises
    Failure."""
    chosen, own = settings.replication, settings.tls
    if not chosen.tls:
        return None
    try:
        context = ssl.create_default_context(cafile=chosen.tls_ca or None)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if own.certificate and own.key:  # for a master that asks for clients' certificates
            context.load_cert_chain(own.certificate, own.key)
    except (OSError, ssl.SSLError) as error:
        text = f"replication.tls: {chosen.tls_ca or own.certificate} can not be used: {error}"
        raise Failure(ExitCode.USAGE, text) from error
    return context


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
    for peer in chosen.peers:
        place_of(peer, "replication.peers")
    if chosen.listen:
        place_of(chosen.listen, "replication.listen")
    if chosen.role == "slave" or chosen.listen:
        read_secret(chosen)
        connecting_tls(settings)
    if chosen.tls and chosen.listen and not settings.tls.enabled:
        raise Failure(
            ExitCode.USAGE,
            "replication.tls needs a certificate for replication.listen: set "
            "tls.certificate and tls.key",
        )


def read_secret(chosen: ReplicationSettings) -> bytes:
    """The secret of all brokers of the group. Raises Failure."""
    if not chosen.secret_file:
        raise Failure(
            ExitCode.USAGE,
            "replication needs a secret: name a file that all brokers of the group have a copy of "
            "with replication.secret_file (such as `openssl rand -hex 32 > FILE`, mode 0600)",
        )
    return read_secret_file(chosen.secret_file, "replication.secret_file")
