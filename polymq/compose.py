"""The composition root: the only place that knows every part and puts them together.

Clock, disk, threads, randomness and the loop enter here and nowhere else. The order of a start:
store (recovers the log), engine (folds the state), listeners (accept clients). A stop goes back:
the listeners take leave of their clients while the engine still answers, the state is saved, the
store is closed.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import socket
from collections.abc import Callable, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from polymq.admin.backups import BackupHandlers
from polymq.admin.connections import ADMIN_CONNECTIONS_MAX
from polymq.admin.exposition import Exposition, Survey
from polymq.admin.health import Health
from polymq.admin.monitoring import MONITORS_MAX, MonitoringServer
from polymq.admin.mqtt_names import MqttNames
from polymq.admin.operator_token import new_token, remove_token, write_token
from polymq.admin.replication import replication_routes
from polymq.admin.server import AdminServer
from polymq.broker import errors as broker_errors
from polymq.broker.disk import DiskSettings
from polymq.broker.engine import Engine
from polymq.broker.limits import Limits as EngineLimits
from polymq.broker.sessions.settings import SessionSettings
from polymq.broker.state.database import StateDb
from polymq.broker.topics.settings import TopicSettings
from polymq.core_log.errors import StoreError, is_full
from polymq.core_log.files import Files, RealFiles
from polymq.core_log.store import Store
from polymq.descriptors import (
    connection_budget,
    open_files_max,
    say_what_was_lowered,
)
from polymq.errors import ExitCode, Failure
from polymq.gateways.amqp.headers import AmqpHeaders
from polymq.kernel_forms import kernel_forms
from polymq.logins.outside_logins import OutsideLogins
from polymq.logs import logger, suppressed_lines
from polymq.metrics.http import http_probes, webhook_names
from polymq.metrics.log import log_probes
from polymq.metrics.logins import login_probes
from polymq.metrics.mqtt import is_mqtt, limit_probes, mqtt_probes
from polymq.metrics.protocols import protocol_probes
from polymq.metrics.queues import queue_probes
from polymq.metrics.readers import ReaderSurvey
from polymq.metrics.registry import Probe, counter, gauge
from polymq.metrics.rosters import Rosters, roster_probes
from polymq.metrics.topics import TopicSurvey
from polymq.mqtt_bridges import Bridges, BridgeStates, check_bridges
from polymq.mqtt_listeners import (
    check_listeners_tls,
    is_private,
    open_listeners,
    open_websockets,
    plain_listeners,
)
from polymq.name_server import NameServerThread, is_installed, names_credentials
from polymq.names import Registration, names_probe, record_host
from polymq.net.budget import Budget
from polymq.net.connection import Context
from polymq.net.kernels.streams import clock_ms
from polymq.net.listener import CannotListen
from polymq.net.roster import Roster
from polymq.pauses import Departed, Pauses
from polymq.ports import Ports
from polymq.remoting.compression import plain_body
from polymq.replicating import Replication, promoted_value
from polymq.replication_memory import CUT_DIRECTORY, STORE_DIRECTORY, above_term, refusal
from polymq.replication_settings import check_settings
from polymq.segment_size import say_size
from polymq.servers import (
    LISTENERS,
    GatewayServer,
    ManyPorts,
    check_tls,
    connection_settings,
)
from polymq.settings import Settings, is_loopback
from polymq.store_opening import advice, check_is_whole, code_of, store_settings_of
from polymq.store_report import store_probes, store_value
from polymq.sys_figures import make_sys_topics
from polymq.tls import HTTP_PROTOCOLS, warn_of_dates
from polymq.tls_files import TlsFiles
from polymq.upkeep import Upkeep
from polymq.workers import HASHERS_COUNT, READERS_COUNT, Workers

if TYPE_CHECKING:
    from polymq.gateways.mqtt.sys_topics import NoSysTopics

STATE_FILE: Final = "state.db"
NAME_BYTES: Final = 16
"""Randomness in names that the server makes up: nobody guesses another client's queue."""


def random_name() -> str:
    """A name that nobody guesses."""
    return secrets.token_urlsafe(NAME_BYTES)


def open_store(settings: Settings, *, files: Files | None = None) -> Store:
    """Open the log, recover it if the last server did not close it. Raises Failure.

    Args:
        files: the way to the disk; the operating system's by default.
    """
    directory = settings.server.data_directory
    check_settings(settings)
    check_tls(settings)
    OutsideLogins(settings)
    check_listeners_tls(settings)
    check_bridges(settings)
    names_credentials(settings)
    try:
        files = files or RealFiles()
        _make_directory(directory)
        check_is_whole(directory)
        store_settings = store_settings_of(settings, files)
        if not (directory / STORE_DIRECTORY).exists():
            say_size(store_settings.segment_bytes, files.space(str(directory))[0])
        store = Store.open(
            str(directory / STORE_DIRECTORY),
            files=files,
            clock_ms=clock_ms,
            settings=store_settings,
            follows=refusal(settings),
            above_term=above_term(settings),
        )
    except OSError as error:
        path = error.filename or directory
        text = f"the data directory {path} cannot be written: {error.strerror or error}"
        raise Failure(ExitCode.CANNOT_CREATE, text) from error
    except StoreError as error:
        raise Failure(code_of(error), advice(error, directory)) from error
    report = store.recovery
    tell = logger("polymq").info if report.clean else logger("polymq").warning
    found = {field.name: getattr(report, field.name) for field in fields(report)}
    rebuilt = found.pop("rebuilt")
    if not report.cut_bytes:
        del found["cut_reason"]
    tell(
        "log opened" if report.clean else "log recovered: the last server did not close it",
        epoch=store.epoch,
        rebuilt_queues=len(rebuilt),
        **{name: value for name, value in found.items() if value not in ("", (), None)},
    )
    return store


def _make_directory(directory: Path) -> None:
    """Make the data directory, if it is not there. Raises Failure, OSError."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError as error:
        text = f"the data directory {directory} is a file: remove it, or choose another name"
        raise Failure(ExitCode.CANNOT_CREATE, text) from error


class Node:
    """A standalone server: store, engine and every listener, on the running loop.

    Args:
        replication_sockets: see `Replication`.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        budget: Budget | None = None,
        *,
        replication_sockets: Sequence[socket.socket] = (),
    ) -> None:
        self._replication_sockets = replication_sockets
        self._admin: AdminServer | None = None
        self._settings = settings
        self._store = store
        self._budget = budget or connection_budget(open_files_max())
        self._stack: list[Callable[[], Any]] = []
        self._servers: dict[str, GatewayServer] = {}
        self._mqtt_listeners: dict[str, int | str] = {}  # port or path, by name
        self._tls_files: TlsFiles | None = None
        self._engine: Engine
        self._upkeep: Upkeep
        self._registration: Registration | None = None
        self._name_server: NameServerThread | None = None
        self._outside = OutsideLogins(settings)
        self.replication: Replication
        self.unwritten: list[Callable[[], object]] = []
        """Files for which the disk had no room: they are to be written later."""
        self.pauses: Pauses
        """What stops the loop. Whoever has started the node starts it."""
        self._monitoring: MonitoringServer | None = None
        self._probed = Health(self._why_not_ready)
        self._bugs_count = 0  # exceptions that nobody foresaw, in callbacks of the loop
        self.failure: broker_errors.StorageFailed | None = None
        """Set when the disk fails: the server goes on read-only, so that readers get theirs."""

    @property
    def engine(self) -> Engine:
        """The engine, once `start` has made it."""
        return self._engine

    # --- start and stop -------------------------------------------------------------------

    async def start(self) -> Ports:
        """Fold the state, open the listeners. Raises Failure; call `stop` in any case."""
        settings, loop = self._settings, asyncio.get_running_loop()
        loop.set_exception_handler(self._report_bug)
        workers = Workers(loop, name="polymq-reader", count=READERS_COUNT)
        self._stack.append(workers.close)
        savers = Workers(loop, name="polymq-saver", count=1)
        self._stack.append(savers.close)
        watchers = Workers(loop, name="polymq-disk", count=1)  # never behind a long saving
        self._stack.append(watchers.close)
        hashers = Workers(loop, name="polymq-hasher", count=HASHERS_COUNT)
        self._stack.append(hashers.close)
        context = Context(loop, budget=self._budget)
        self._stack.append(context.close)
        departed = Departed()
        context.on_ended = departed.note
        self.pauses = Pauses(departed, loop.call_soon)
        self._stack.append(self.pauses.stop)
        self.replication = Replication(
            settings, self._store, clock_ms=clock_ms, sockets=self._replication_sockets
        )
        try:
            self._engine = self._make_engine(context, workers, hashers)
        except StoreError as error:
            raise Failure(code_of(error), str(error)) from error
        context.accepts = self._engine.bans.accepts
        self._stack.append(self._engine.core.timers.stop)  # before the threads that they use
        self._engine.core.when_failed(self._storage_failed)
        flusher = self._store.flusher.fileno()
        context.add_reader(flusher, self._engine.core.flush_finished)
        self._stack.append(lambda: context.remove_reader(flusher))
        logger("polymq").info(
            "state folded",
            topics=self._engine.topics.shown_count,
            folded_records=self._engine.fold.count,
        )
        self._log_access()
        self._outside.start()
        self._stack.append(self._outside.stop)
        upkeep = self._upkeep = Upkeep(
            engine=self._engine,
            store=self._store,
            workers=savers,
            save_seconds=settings.storage.save_seconds,
            tidy_seconds=settings.storage.retention_check_seconds,
            watchers=watchers,
            disk_seconds=settings.storage.disk_check_seconds,
        )
        await upkeep.measure_disk()
        upkeep.start()
        self._stack.append(upkeep.stop)
        ports = await self._open_listeners(context)
        port = ports["rocketmq"] or ports.get("rocketmqs")  # where routes lead to
        if port is not None:
            self._store.log.stand_at(*record_host(settings, port))
        ports["names"] = await self._open_names(port)
        beside = self._name_server
        ports["names_tls"] = None if beside is None else beside.tls_port
        self._stack.append(self.replication.stop)
        ports["replication"] = await self.replication.start(self._engine, context)
        say_what_was_lowered(self._budget, open_files_max())
        self.pauses.on_tick = self._engine.core.sample_deliveries
        self._probed.started = True
        return Ports(
            host=settings.server.host, **ports, mqtt_listeners=self._mqtt_listeners or None
        )

    def renew_tls(self) -> None:
        """Read the files of TLS again; new connections use them."""
        if self._tls_files is not None:
            self._tls_files.renew()

    def _make_engine(self, scheduler: Context, readers: Workers, hashers: Workers) -> Engine:
        """Fold the state. Raises StoreError."""
        settings = self._settings
        return Engine(
            store=self._store,
            clock_ms=clock_ms,
            scheduler=scheduler,
            readers=readers,
            new_name=random_name,
            limits=EngineLimits(
                subscriptions_per_session_max=settings.mqtt.subscriptions_max,
                scram_iterations=settings.login.scram_iterations,
                retained_max=settings.mqtt.retained_max,
                retained_bytes_max=settings.mqtt.retained_bytes_max,
            ),
            state_db=StateDb(settings.server.data_directory / STATE_FILE),
            hashers=hashers,
            outside=self._outside.for_engine,
            header_reader=AmqpHeaders(),
            plain_body=plain_body,
            strangers=is_private(settings) or settings.server.allow_insecure,
            topic_defaults=TopicSettings().with_values(
                {**settings.topics.model_dump(), "min_in_sync": settings.replication.min_in_sync}
            ),
            min_in_sync=settings.replication.min_in_sync,
            session_settings=SessionSettings(
                expiry_seconds=settings.mqtt.session_expiry_seconds,
                keeps_qos_0=settings.mqtt.queue_qos0_messages,
                waiting_max=settings.mqtt.session_queue_max,
                overflow=settings.mqtt.session_queue_overflow,
                share_strategy=settings.mqtt.shared_subscription_strategy,
            ),
            connection_settings=connection_settings(settings),
            **self.replication.engine_options,
            disk_settings=DiskSettings(
                reserve_bytes=settings.storage.disk_reserve_bytes,
                early_bytes=settings.storage.disk_early_bytes,
                drop_oldest=settings.storage.disk_full_drops_oldest,
                log_bytes_max=settings.storage.log_bytes_max,
            ),
        )

    def _log_access(self) -> None:
        settings, users = self._settings, self._engine.users.users
        log = logger("polymq")
        outside = not is_private(settings)
        if self._engine.admission.is_open:
            clients = (
                "every client that reaches a port" if outside else "every client on this machine"
            )
            tell = log.warning if outside else log.info
            tell(
                f"there are no users: {clients} may do everything; `polymq user add NAME` ends that"
            )
        elif not users and self._engine.users.outsiders:
            log.info("clients have to log in; there are no users stored here")
        elif not users:
            log.warning("there are no users: no client is accepted before `polymq user add NAME`")
        else:
            log.info("clients have to log in", users=len(users))
        sections = settings.listeners.items()
        plain = [name for name, section in sections if section.enabled and section.plain]
        if is_loopback(settings.server.host):
            plain = []
        plain += plain_listeners(settings)
        metrics = settings.metrics
        if metrics.enabled and metrics.login and not metrics.tls:
            plain += [] if is_loopback(metrics.host or settings.server.host) else ["metrics"]
        if plain:
            log.warning(
                "messages and passwords cross the network unencrypted at the ports without TLS",
                servers=plain,
            )
        if settings.tls.certificate:
            warn_of_dates(settings.tls, datetime.now(UTC), log.warning)

    async def stop(self) -> None:
        """Close the listeners, save, and undo what `start` did, however far it came."""
        if self._registration is not None:
            await self._registration.stop()  # first: who asks for a route is not sent here any more
        drain_seconds = self._settings.server.drain_seconds
        if self._servers:
            self._engine.core.begin_stop()
        await asyncio.gather(*(client.stop(drain_seconds) for client in self._servers.values()))
        while self._stack:
            result = self._stack.pop()()
            if asyncio.iscoroutine(result):
                await result

    async def leave(self, outcome: Store | Failure) -> None:
        """Tell who asked for a promotion what came of it, and close the operator's listener, which
        was
        left open for that.

        Args:
            outcome: the log in its new role, or why it cannot be opened.
        """
        admin, self._admin = self._admin, None
        if admin is None:
            return
        turned = self.replication.turned
        if turned is not None and not turned.done():
            if isinstance(outcome, Failure):
                turned.set_exception(outcome)
            else:
                turned.set_result(promoted_value(outcome))
        await admin.stop()

    async def _open_listeners(self, context: Context) -> dict[str, int | None]:
        settings = self._settings
        bridges = Bridges(settings, self._engine, context, random.random, random_name)
        backups = BackupHandlers(self._engine, self._store, settings.server.data_directory)
        exposition = self._make_exposition([*bridges.probes(), *backups.probes()])
        self._stack.append(exposition.stop)
        ports: dict[str, int | None] = {}
        tls_files = self._tls_files = TlsFiles(context.call_later, settings.tls.check_files_seconds)
        self._stack.append(tls_files.stop)
        if settings.metrics.enabled:
            ports["metrics"] = await self._open_monitoring(exposition, tls_files)
        sys_topics: NoSysTopics | None = None
        if settings.mqtt.enabled or settings.mqtt.listeners:
            sys_topics = self._make_sys_topics(context, bridges.states)
        for name, section in settings.listeners.items():
            ports[name] = None
            if not section.enabled:
                continue
            made = partial(LISTENERS[name], settings, self._engine.port, context, exposition)
            if name == "mqtt":
                made = partial(made, sys_topics=sys_topics)
            try:
                ports |= await self._open_listener(name, made, tls_files)
            except CannotListen as error:
                raise Failure(ExitCode.CANNOT_LISTEN, f"{name}: {error}") from error
        opened = self._servers.__setitem__
        if settings.mqtt.enabled and settings.mqtt.websocket:
            ports |= await open_websockets(
                settings, self._engine.port, context, tls_files, opened, sys_topics
            )
        self._mqtt_listeners = await open_listeners(
            settings, self._engine.port, context, tls_files, opened, sys_topics
        )
        self._stack.append(partial(bridges.stop, settings.server.drain_seconds))
        bridges.start(self._servers.values())
        if not any(ports.values()) and not self._mqtt_listeners:
            logger("polymq").warning(
                "no client can connect: mqtt, amqp, http and rocketmq are all switched off "
                "(enabled = false)"
            )
        ports["admin"] = None
        if settings.admin.enabled:
            ports |= await self._open_admin(exposition, backups, tls_files)
        tls_files.start()
        return ports

    async def _open_listener(
        self, name: str, make: Callable[[], GatewayServer], tls_files: TlsFiles
    ) -> dict[str, int | None]:
        """Open one protocol's port, its port with TLS, or both. Raises Failure, CannotListen."""
        settings = self._settings
        host, section = settings.server.host, settings.listeners[name]
        tls = tls_files.source(settings.tls, HTTP_PROTOCOLS if name == "http" else ())
        assert tls is not None or section.plain, "check_tls was asked before"
        client = self._servers[name] = make()
        if tls is None:
            return {name: await client.start(host, section.port)}
        secure = f"{name}s"
        if not section.plain:
            return {secure: await client.start(host, section.tls_port, tls)}
        ports: dict[str, int | None] = {name: await client.start(host, section.port)}
        if isinstance(client, ManyPorts):
            ports[secure] = await client.listen_too(host, section.tls_port, tls)
        else:
            client = self._servers[secure] = make()
            ports[secure] = await client.start(host, section.tls_port, tls)
        return ports

    def _make_sys_topics(self, context: Context, bridges: BridgeStates) -> NoSysTopics:
        return make_sys_topics(
            self._engine,
            self._store,
            context,
            servers=self._mqtt_servers,
            interval_seconds=self._settings.mqtt.sys_interval_seconds,
            bridges=bridges,
        )

    def _mqtt_servers(self) -> list[object]:
        return [server for label, server in self._servers.items() if is_mqtt(label)]

    async def _open_names(self, readers_port: int | None) -> int | None:
        """Run a name server beside the broker, and register with all of them."""
        settings, beside = self._settings, None
        if settings.names.enabled and not is_installed():
            logger("polymq").warning(
                "there is no name server beside this broker: it needs trio (pip install trio)"
            )
        elif settings.names.enabled:
            thread = NameServerThread(settings, self._budget)
            self._stack.append(lambda: asyncio.to_thread(thread.stop))
            beside = await thread.start()
            self._name_server = thread
        if readers_port is not None:  # else there is nothing that a route could name
            self._registration = Registration(
                settings,
                self._engine,
                port=readers_port,
                beside=beside,
                epoch=self._store.epoch,
                clock_ms=clock_ms,
            )
            self._registration.start()
        return beside

    async def _open_monitoring(self, exposition: Exposition, tls_files: TlsFiles) -> int:
        chosen = self._settings.metrics
        server = self._monitoring = MonitoringServer(
            port=self._engine.port,
            users=self._engine.users,
            exposition=exposition,
            health=self._probed,
            login=chosen.login,
            share=self._budget.share(MONITORS_MAX),
        )
        self._stack.append(server.stop)
        tls = tls_files.source(self._settings.tls, HTTP_PROTOCOLS) if chosen.tls else None
        return await server.start(chosen.host or self._settings.server.host, chosen.port, tls)

    async def _open_admin(
        self, exposition: Exposition, backups: BackupHandlers, tls_files: TlsFiles
    ) -> dict[str, int | None]:
        directory = self._settings.server.data_directory
        token = new_token()
        try:
            write_token(directory, token)
        except OSError as error:
            if not is_full(error):
                raise
            self.unwritten.append(partial(write_token, directory, token))
        self._stack.append(lambda: remove_token(directory))
        admin = AdminServer(
            engine=self._engine,
            token=token,
            exposition=exposition,
            health=self._health,
            probes=self._probed,
            store=lambda: store_value(self._engine, self._store, str(directory / CUT_DIRECTORY)),
            more=[*replication_routes(self.replication), *backups.routes()],
            share=self._budget.share(ADMIN_CONNECTIONS_MAX),
            mqtt_topic=self._settings.mqtt.topic,
            connections=self._client_connections,
        )
        self._admin = admin
        self._stack.append(self._close_admin)
        ports: dict[str, int | None] = {"admin": await admin.start(self._settings.admin.port)}
        api = self._settings.api
        if api.enabled:
            tls = tls_files.source(self._settings.tls, HTTP_PROTOCOLS)
            host = api.host or self._settings.server.host
            ports["api"] = await admin.start_remote(host, api.port, tls)
        return ports

    async def _close_admin(self) -> None:
        """Close the operator's listener; while somebody waits for a promotion, `leave` does
        that."""
        admin = self._admin
        if admin is not None and self.replication.turned is not None:
            admin.pause()
        elif admin is not None:
            self._admin = None
            await admin.stop()

    def _client_connections(self) -> list[Any]:
        """All connections of the listeners for clients."""
        servers = self._servers.values()
        return [c for server in servers for roster in server.rosters for c in roster.connections]

    # --- what operators see ---------------------------------------------------------------

    def _storage_failed(self, error: broker_errors.StorageFailed) -> None:
        self.failure = error
        logger("polymq").error(
            "read-only: the log failed, and what is not acknowledged may be lost", error=str(error)
        )

    def _report_bug(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An exception that reached the loop. What it interrupted is not acknowledged."""
        self._bugs_count += 1
        error = context.get("exception")
        logger("polymq").error("bug", what=context.get("message", ""), exc_info=error)

    def _health(self) -> dict[str, Any]:
        core = self._engine.core
        if self.failure is not None:
            status = f"read-only: {self.failure}"
        elif core.disk.full:
            status = core.disk.reason
        elif self._upkeep.short_text:
            status = self._upkeep.short_text
        else:
            status = self.replication.refusal or "ok"
        return {
            "status": status,
            "epoch": self._store.epoch,
            "kernels": kernel_forms(),
            "set_aside": self._engine.set_aside.set_aside_count,
        }

    def _why_not_ready(self) -> str:
        """See `Health`."""
        if self._engine.core.is_stopping or self.replication.turned is not None:
            return "stopping"
        if self.failure is not None:
            return "read-only, because the disk has failed"
        if self.replication.role == "fenced":
            return "replaced by another broker"
        return "not following its master" if self.replication.refusal else ""

    def _make_exposition(self, more: Sequence[Probe]) -> Exposition:
        engine, chosen = self._engine, self._settings.metrics
        shown_max = chosen.objects_max if chosen.per_object else 0
        readers = ReaderSurvey(
            engine,
            clock_ms=clock_ms,
            webhooks=partial(webhook_names, self._http_server),
            filter_name=MqttNames(engine.port, self._settings.mqtt.topic).name,
            shown_max=shown_max,
        )
        surveys: list[Survey] = [TopicSurvey(engine, shown_max=shown_max), readers]
        return Exposition([*self._probes(), *more], surveys, engine.core.reading)

    def _http_server(self) -> object:
        return self._servers.get("http") or self._servers.get("https")

    def _probes(self) -> list[Probe]:
        return [
            *store_probes(self._engine, self._store),
            *log_probes(self._engine, self._store),
            *protocol_probes(lambda: self._servers),
            *queue_probes(self._engine),
            *login_probes(self._engine),
            *self._outside.probes(),
            *self._shortage_probes(),
            *self.replication.probes(),
            *mqtt_probes(lambda: self._servers),
            *limit_probes(self._engine),
            *http_probes(self._http_server),
            *self.pauses.probes(),
            names_probe(lambda: self._registration),
            gauge(
                "polymq_read_only",
                "1 after the disk has failed: nothing can be published until a restart.",
                lambda: float(self.failure is not None),
            ),
            counter(
                "polymq_bugs",
                "Unexpected errors. Please report the log lines about them.",
                lambda: self._bugs_count,
            ),
        ]

    def _rosters(self) -> Rosters:
        found: dict[str, Sequence[Roster[Any]]] = {
            name: client.rosters for name, client in self._servers.items()
        }
        if self._admin is not None:
            found["admin"] = (self._admin.roster,)
        if self._monitoring is not None:
            found["metrics"] = (self._monitoring.roster,)
        if self._name_server is not None:
            found["names"] = self._name_server.rosters
        if self.replication.rosters:
            found["replication"] = self.replication.rosters
        return found

    def _shortage_probes(self) -> list[Probe]:
        return [
            *roster_probes(self._rosters),
            counter(
                "polymq_shortages",
                "Calls of the file system that failed because the process had no file "
                "descriptor or memory left. They are repeated until they succeed.",
                lambda: self._upkeep.short_count,
            ),
            counter(
                "polymq_saves",
                "How many times state, indexes and keys were saved.",
                lambda: self._upkeep.saved_count,
            ),
            counter(
                "polymq_save_failures",
                "Failed attempts to save state, indexes or keys. They are repeated.",
                lambda: self._upkeep.failures_count,
            ),
            gauge(
                "polymq_connections_max",
                "Connections that all listeners together accept, as limited by open files.",
                lambda: self._budget.total,
            ),
            counter(
                "polymq_logging_suppressed_lines",
                "Lines that were not logged, because there were too many of the same kind.",
                suppressed_lines,
            ),
        ]
