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
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from polymq.access_lines import log_access
from polymq.admin.backups import BackupHandlers
from polymq.admin.connections import ADMIN_CONNECTIONS_MAX
from polymq.admin.health import Health
from polymq.admin.monitoring import MONITORS_MAX, MonitoringServer
from polymq.admin.node import ShownNode
from polymq.admin.operator_token import new_token, remove_token, write_token
from polymq.admin.server import AdminServer
from polymq.broker import errors as broker_errors
from polymq.broker.engine import Engine
from polymq.broker.state.database import StateDb
from polymq.core_log.errors import StoreError, is_full
from polymq.core_log.store import Store
from polymq.definitions.group import DefinitionHandlers
from polymq.descriptors import (
    connection_budget,
    open_files_max,
    say_what_was_lowered,
)
from polymq.dynamic_security.requests import make_administrator
from polymq.engine_settings import changeable_of
from polymq.errors import ExitCode, Failure
from polymq.gateways.amqp.headers import AmqpHeaders
from polymq.inherited_sockets import NOTHING_INHERITED, InheritedSockets
from polymq.kernel_forms import kernel_forms
from polymq.logins.outside_logins import OutsideLogins
from polymq.logs import logger, recent_lines
from polymq.management.import_group import import_group
from polymq.metrics.exposition import Exposition
from polymq.metrics.mqtt import event_probes, is_mqtt
from polymq.metrics.registry import Probe
from polymq.metrics.rosters import Rosters
from polymq.mqtt_bridges import Bridges, BridgeStates
from polymq.mqtt_listeners import (
    is_private,
    open_listeners,
    open_websockets,
)
from polymq.name_server import NameServerThread, is_installed
from polymq.names import Registration, record_host
from polymq.net.budget import Budget
from polymq.net.connection import Context
from polymq.net.kernels.streams import clock_ms
from polymq.net.listener import CannotListen
from polymq.net.roster import Roster
from polymq.operated_gateways import gateways_of
from polymq.pauses import Departed, Pauses
from polymq.ports import Ports
from polymq.reloading.applying import Running, prepare
from polymq.reloading.reloader import Reloader
from polymq.remoting.compression import plain_body
from polymq.replicating import Replication, promoted_value
from polymq.server_metrics import Measured, make_exposition
from polymq.servers import (
    LISTENERS,
    GatewayServer,
    ManyPorts,
)
from polymq.settings import Settings
from polymq.store_opening import code_of
from polymq.sys_figures import ServerTopics, make_sys_topics
from polymq.telemetry.telemetry import Telemetry
from polymq.tls import HTTP_PROTOCOLS
from polymq.tls_files import TlsFiles, TlsWatch
from polymq.upkeep import Upkeep
from polymq.workers import HASHERS_COUNT, READERS_COUNT, Workers

if TYPE_CHECKING:
    from polymq.management.server import ManagementServer

STATE_FILE: Final = "state.db"
NAME_BYTES: Final = 16
"""Randomness in names that the server makes up: nobody guesses another client's queue."""


def random_name() -> str:
    """A name that nobody guesses."""
    return secrets.token_urlsafe(NAME_BYTES)


class Node:
    """A standalone server: store, engine and every listener, on the running loop.

    Args:
        replication_sockets: see `Replication`.
        inherited: sockets that listeners have already.
        reloader: applies another configuration; None: nothing does.
    """

    def __init__(
        self,
        settings: Settings,
        store: Store,
        budget: Budget | None = None,
        *,
        replication_sockets: Sequence[socket.socket] = (),
        inherited: InheritedSockets = NOTHING_INHERITED,
        reloader: Reloader | None = None,
    ) -> None:
        self._inherited = inherited
        self._reloader = reloader
        self._replication_sockets = replication_sockets
        self._admin: AdminServer | None = None
        self._management: ManagementServer | None = None
        self._settings = settings
        self._store = store
        self._budget = budget or connection_budget(open_files_max())
        self._stack: list[Callable[[], Any]] = []
        self._servers: dict[str, GatewayServer] = {}
        self._mqtt_listeners: dict[str, int | str] = {}  # port or path, by name
        self._tls_files = TlsFiles()
        self._tls_watch = TlsWatch(self._tls_files, settings.tls.check_files_seconds)
        self._sys_topics: ServerTopics | None = None
        self._engine: Engine
        self._upkeep: Upkeep
        self._registration: Registration | None = None
        self._name_server: NameServerThread | None = None
        self._outside = OutsideLogins(settings)
        self._telemetry: Telemetry
        self.replication: Replication
        self.unwritten: list[Callable[[], object]] = []
        """Files for which the disk had no room: they are to be written later."""
        self.pauses: Pauses
        """What stops the loop. Whoever has started the node starts it."""
        self._started_ms = clock_ms()
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
        log_access(settings, self._engine)
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
        ports["replication"] = await self.replication.start(self._engine, context, self._tls_files)
        self._tls_watch.start()
        self._stack.append(self._tls_watch.stop)
        say_what_was_lowered(self._budget, open_files_max())
        self.pauses.on_tick = self._engine.core.sample_deliveries
        self._probed.started = True
        return Ports(
            host=settings.server.host, **ports, mqtt_listeners=self._mqtt_listeners or None
        )

    @property
    def settings(self) -> Settings:
        """Those in force."""
        return self._settings

    def prepare(self, settings: Settings) -> Callable[[], None]:
        """Make ready to go on with other settings (`reloading/applying.py`). May be called in a
        thread. Raises Failure."""
        running = Running(
            engine=self._engine,
            upkeep=self._upkeep,
            servers=self._servers,
            tls_files=self._tls_files,
            tls_watch=self._tls_watch,
            outside=self._outside,
            telemetry=self._telemetry,
            sys_values=self._sys_topics and self._sys_topics.values,
        )
        apply = prepare(running, self._settings, settings)

        def go_on() -> None:
            apply()
            self._settings = settings

        return go_on

    def _make_engine(self, scheduler: Context, readers: Workers, hashers: Workers) -> Engine:
        """Fold the state. Raises StoreError."""
        settings = self._settings
        wanted = changeable_of(settings)
        return Engine(
            store=self._store,
            clock_ms=clock_ms,
            scheduler=scheduler,
            readers=readers,
            new_name=random_name,
            limits=wanted.limits,
            state_db=StateDb(settings.server.data_directory / STATE_FILE),
            hashers=hashers,
            outside=self._outside.for_engine(settings),
            header_reader=AmqpHeaders(),
            plain_body=plain_body,
            strangers=is_private(settings) or settings.server.allow_insecure,
            topic_defaults=wanted.topics,
            min_in_sync=settings.replication.min_in_sync,
            session_settings=wanted.sessions,
            connection_settings=wanted.connections,
            **self.replication.engine_options,
            disk_settings=wanted.disk,
        )

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
        was left open for that.

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
        sys_topics: ServerTopics | None = None
        if settings.mqtt.enabled or settings.mqtt.listeners:
            sys_topics = self._sys_topics = self._make_sys_topics(context, bridges.states)
        events = event_probes(sys_topics and sys_topics.events)
        reloads = [] if self._reloader is None else self._reloader.probes()
        telemetry = self._telemetry = Telemetry(settings, self._engine, self._store)
        exposition = self._make_exposition(
            [*events, *bridges.probes(), *backups.probes(), *reloads, *telemetry.probes()]
        )
        self._stack.append(exposition.stop)
        telemetry.start(exposition)
        self._stack.append(telemetry.stop)
        ports: dict[str, int | None] = {}
        tls_files = self._tls_files
        if settings.metrics.enabled:
            ports["metrics"] = await self._open_monitoring(exposition)
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
                settings,
                self._engine.port,
                context,
                tls_files,
                opened,
                sys_topics,
                self._inherited,
            )
        self._mqtt_listeners = await open_listeners(
            settings,
            self._engine.port,
            context,
            tls_files,
            opened,
            sys_topics,
            self._inherited,
        )
        self._stack.append(lambda: bridges.stop(self._settings.server.drain_seconds))
        bridges.start(self._servers.values())
        if not any(ports.values()) and not self._mqtt_listeners:
            logger("polymq").warning(
                "no client can connect: mqtt, amqp, http and rocketmq are all switched off "
                "(enabled = false)"
            )
        ports["admin"] = None
        if settings.admin.enabled:
            ports |= await self._open_admin(exposition, backups, dict(ports))
        if settings.management.enabled:
            ports["management"] = await self._open_management(ports)
        return ports

    async def _open_listener(
        self, name: str, make: Callable[[], GatewayServer], tls_files: TlsFiles
    ) -> dict[str, int | None]:
        """Open one protocol's port, its port with TLS, or both. Raises Failure, CannotListen."""
        settings = self._settings
        host, section, take = settings.server.host, settings.listeners[name], self._inherited.take
        tls = tls_files.source(settings.tls, HTTP_PROTOCOLS if name == "http" else ())
        assert tls is not None or section.plain, "check_tls was asked before"
        client = self._servers[name] = make()
        if tls is None:
            return {name: await client.start(host, section.port, None, take(name))}
        secure = f"{name}s"
        if not section.plain:
            return {secure: await client.start(host, section.tls_port, tls, take(secure))}
        ports: dict[str, int | None] = {
            name: await client.start(host, section.port, None, take(name))
        }
        if isinstance(client, ManyPorts):
            ports[secure] = await client.listen_too(host, section.tls_port, tls, take(secure))
        else:
            client = self._servers[secure] = make()
            ports[secure] = await client.start(host, section.tls_port, tls, take(secure))
        return ports

    def _make_sys_topics(self, context: Context, bridges: BridgeStates) -> ServerTopics:
        return make_sys_topics(
            self._engine,
            self._store,
            context,
            self._settings,
            servers=self._mqtt_servers,
            bridges=bridges,
            administrator=make_administrator(self._settings, self._engine, self._stack),
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
            tls = self._tls_files.source(settings.tls)
            thread = NameServerThread(settings, self._budget, tls, self._inherited)
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
            await self._registration.start()
        return beside

    async def _open_monitoring(self, exposition: Exposition) -> int:
        chosen = self._settings.metrics
        server = self._monitoring = MonitoringServer(
            port=self._engine.port,
            users=self._engine.users,
            exposition=exposition,
            health=self._probed,
            login=chosen.login,
            share=self._budget.share(MONITORS_MAX),
            accepts=self._engine.bans.accepts,
        )
        self._stack.append(server.stop)
        tls = None
        if chosen.tls:
            tls = self._tls_files.source(self._settings.tls, HTTP_PROTOCOLS)
        host = chosen.host or self._settings.server.host
        return await server.start(host, chosen.port, tls, self._inherited.take("metrics"))

    async def _open_admin(
        self,
        exposition: Exposition,
        backups: BackupHandlers,
        client_ports: Mapping[str, int | None],
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
        node = ShownNode(
            current=lambda: self._settings,
            engine=self._engine,
            store=self._store,
            budget=self._budget,
            replication=self.replication,
            backups=backups,
            status=lambda: str(self._health()["status"]),
            connections=self._connection_counts,
            registration=lambda: self._registration,
            started_ms=self._started_ms,
            reloader=self._reloader,
            gateways=gateways_of(self._servers.values),
            ports=lambda: client_ports,
            mqtt_listeners=lambda: self._mqtt_listeners,
            recent_lines=recent_lines,
        )
        admin = AdminServer(
            node=node,
            token=token,
            exposition=exposition,
            health=self._health,
            probes=self._probed,
            more=[
                import_group(self._engine),
                DefinitionHandlers(self._engine, node.gateways).group(),
            ],
            share=self._budget.share(ADMIN_CONNECTIONS_MAX),
            connections=node.gateways.connections,
        )
        self._admin = admin
        self._stack.append(self._close_admin)
        take = self._inherited.take
        ports: dict[str, int | None] = {
            "admin": await admin.start(self._settings.admin.port, take("admin"))
        }
        api = self._settings.api
        if api.enabled:
            tls = self._tls_files.source(self._settings.tls, HTTP_PROTOCOLS)
            host = api.host or self._settings.server.host
            share = self._budget.share(ADMIN_CONNECTIONS_MAX)
            ports["api"] = await admin.start_remote(host, api.port, tls, share, take("api"))
        return ports

    async def _open_management(self, ports: Mapping[str, int | None]) -> int:
        """Open the listener for RabbitMQ's tools."""
        from polymq.management.compose import open_management  # noqa: PLC0415  (few open it)

        server, port = await open_management(
            self._settings,
            self._engine,
            self._budget,
            ports=ports,
            tls=self._tls_files.source(self._settings.tls, HTTP_PROTOCOLS),
            sockets=self._inherited.take("management"),
            health=lambda: str(self._health()["status"]),
            connections=gateways_of(self._servers.values).connections,
        )
        self._management = server
        self._stack.append(server.stop)
        return port

    async def _close_admin(self) -> None:
        """Close the operator's listener; while somebody waits for a promotion, `leave` does
        that."""
        admin = self._admin
        if admin is not None and self.replication.turned is not None:
            admin.pause()
        elif admin is not None:
            self._admin = None
            await admin.stop()

    def _connection_counts(self) -> dict[str, int]:
        """Connected clients by protocol."""
        return {name: it.connection_count for name, it in self._servers.items()}

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
        measured = Measured(
            settings=self._settings,
            engine=self._engine,
            store=self._store,
            budget=self._budget,
            outside=self._outside,
            tls_files=self._tls_files,
            replication=self.replication,
            pauses=self.pauses,
            servers=self._servers,
            rosters=self._rosters,
            upkeep=lambda: self._upkeep,
            registration=lambda: self._registration,
            has_failed=lambda: self.failure is not None,
            bugs_count=lambda: self._bugs_count,
        )
        return make_exposition(measured, more)

    def _rosters(self) -> Rosters:
        found: dict[str, Sequence[Roster[Any]]] = {
            name: client.rosters for name, client in self._servers.items()
        }
        if self._admin is not None:
            names = ("admin", "api")
            found |= {name: (one,) for name, one in zip(names, self._admin.rosters, strict=False)}
        if self._monitoring is not None:
            found["metrics"] = (self._monitoring.roster,)
        if self._management is not None:
            found["management"] = (self._management.roster,)
        if self._name_server is not None:
            found["names"] = self._name_server.rosters
        if self.replication.rosters:
            found["replication"] = self.replication.rosters
        return found
