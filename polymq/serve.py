"""`polymq serve`: the process around a server. Signals, the ready file, the exit code.

Theory of stopping: the first SIGTERM or Ctrl-C asks, and every listener takes leave of its clients
in its protocol's own way, within `drain_seconds`; then the store is closed, so that the next start
has nothing to recover. A second Ctrl-C ends at once, which costs no message that was acked: the
next start recovers.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import uvloop

from polymq.compose import Node
from polymq.core_log.cutting import cut_log
from polymq.core_log.errors import StorageFull, StoreError, is_full, is_short
from polymq.core_log.files import RealFiles
from polymq.core_log.store import Store
from polymq.descriptors import raise_open_files
from polymq.errors import ExitCode, Failure
from polymq.held_ports import reserve_ports, socket_hosts
from polymq.inherited_sockets import InheritedSockets, inherit_sockets
from polymq.logs import configure_logs, logger
from polymq.open_store import open_store
from polymq.pauses import collect_role, loading
from polymq.ports import FILE_NAME, Ports, write_ports
from polymq.promotion import check_promotion
from polymq.reloading.reloader import Reloader
from polymq.replicating import Turn, listening_sockets, look_for_a_higher_term
from polymq.replication_memory import STORE_DIRECTORY
from polymq.replication_settings import check_settings
from polymq.service_manager import ServiceManager
from polymq.settings import Settings

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
OPTIONAL_PORTS: Final = (
    "mqtt_ws",
    "mqtts",
    "mqtt_wss",
    "mqtt_listeners",
    "amqps",
    "https",
    "rocketmqs",
    "names_tls",
    "api",
    "metrics",
    "management",
)
"""Those that are named where they are open: for WebSocket, for TLS, and further ones."""
OWN_PORTS: Final = (
    *("mqtt", "amqp", "http", "rocketmq"),
    *("admin", "names", "api", "metrics", "management"),
)
"""Those of sections that have one port by this name."""
WRITE_AGAIN_SECONDS: Final = 2.0
"""How long a file that found no room waits."""


def run_server(
    settings: Settings, *, ready_file: Path | None, load: Callable[[], Settings] | None = None
) -> int:
    """Serve until a signal; returns the exit code.

    Args:
        load: reads the configuration again, for a reload (raises Failure); None: it stays as it is.

    Raises:
        Failure: the server cannot start, or its disk failed.
    """
    configure_logs(settings.log)
    raise_open_files()
    manager = ServiceManager(os.environ)
    around = Around(
        manager=manager,
        inherited=inherit_sockets(os.environ),
        reloader=Reloader(load or (lambda: settings), settings, manager),
        ready_file=ready_file,
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(settings, around))


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What a process has beside its server, from its start to its end."""

    manager: ServiceManager
    inherited: InheritedSockets
    reloader: Reloader
    ready_file: Path | None


async def _serve(settings: Settings, around: Around) -> int:
    """Serve until a signal, in one role or, after a promotion, in another."""
    stop = asyncio.Event()
    _listen_to_signals(stop, partial(hang_up, around.reloader))
    around.manager.call_with(asyncio.get_running_loop().call_later)
    _feed_watchdog(around.manager)
    check_settings(settings)
    around.inherited.check(socket_hosts(settings))
    sockets = await listening_sockets(settings)
    try:
        await check_promotion(settings)
        await look_for_a_higher_term(settings)
        # First: who cannot listen writes nothing.
        held = reserve_ports(settings, around.inherited.labels)
        with held, loading():
            store = open_store(settings)
            held = held.pop_all()
        while True:
            node = Node(
                settings,
                store,
                replication_sockets=sockets,
                inherited=around.inherited,
                reloader=around.reloader,
            )
            try:
                with held:
                    ports, turn = await _run_and_close(
                        node, store, around, stop, listening=held.close
                    )
                settings = node.settings
                if stop.is_set():
                    await node.leave(Failure(ExitCode.FAILED, "the broker was stopped"))
                    logger("polymq").info("stopped")
                    return ExitCode.OK
                assert ports is not None
                assert turn is not None
                settings = with_ports(settings, ports)
                if turn.cut is not None:
                    _cut(settings, turn.cut)
                changed = settings.replication.model_copy(update={"role": turn.role})
                settings = settings.model_copy(update={"replication": changed})
                with loading():
                    store = open_store(settings)
            except Failure as failure:
                await node.leave(failure)
                raise
            await node.leave(store)
            try:
                held = reserve_ports(settings, around.inherited.labels)
            except Failure:
                _close(store, is_reported=True)
                raise
            del node
            collect_role()
    finally:
        for bound in sockets:
            bound.close()


async def _run_and_close(
    node: Node,
    store: Store,
    around: Around,
    stop: asyncio.Event,
    *,
    listening: Callable[[], None],
) -> tuple[Ports | None, Turn | None]:
    """`_run`, and close the log. Raises Failure."""
    try:
        found = await _run(node, around, stop, listening=listening)
    except BaseException:
        _close(store, is_reported=True)
        raise
    _close(store, is_reported=False)
    return found


def _close(store: Store, *, is_reported: bool) -> None:
    """Close the store, as the last step.

    Args:
        is_reported: the server ends by an error, which is reported; what follows from it is not.

    Raises:
        Failure: the disk failed.
    """
    try:
        store.close()
    except StoreError as error:
        text = f"the log was not closed in order: {error}"
        if not is_reported and not isinstance(error, StorageFull):
            raise Failure(ExitCode.DISK_FAILED, text) from error
        logger("polymq").warning(text + ". Nothing is lost: the next start recovers it")


async def _run(
    node: Node,
    around: Around,
    stop: asyncio.Event,
    *,
    listening: Callable[[], None],
) -> tuple[Ports | None, Turn | None]:
    """One role, from its start to its end.

    Args:
        listening: called when all ports are bound.

    Returns:
        The ports, and the next role; None if it was stopped.
    """
    log, settings, manager = logger("polymq"), node.settings, around.manager
    stopped = asyncio.ensure_future(stop.wait())
    try:
        with loading():
            ports = await _start(node, stopped)
        if ports is None:
            return None, None
        listening()
        files = [settings.server.data_directory / FILE_NAME]
        if around.ready_file is not None:
            files.append(around.ready_file)
        writing = asyncio.ensure_future(_write_ports(files, ports, node.unwritten))
        node.pauses.start()
        node.pauses.measure(asyncio.get_running_loop())
        log.info(
            "ready",
            host=ports.host,
            mqtt=ports.mqtt,
            amqp=ports.amqp,
            http=ports.http,
            rocketmq=ports.rocketmq,
            admin=ports.admin,
            names=ports.names,
            replication=ports.replication,
            **{name: port for name in OPTIONAL_PORTS if (port := getattr(ports, name)) is not None},
            data=str(settings.server.data_directory),
            durability=settings.topics.durability,
            role=node.replication.role,
        )
        around.reloader.server = node
        manager.serving = _status(node, ports)
        manager.ready()
        ended = node.replication.ended
        either: list[asyncio.Future[Any]] = [stopped, ended, writing]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if writing.done():
            writing.result()
            await asyncio.wait(either[:2], return_when=asyncio.FIRST_COMPLETED)
        writing.cancel()
        if stop.is_set():
            manager.stopping()
            log.info("stopping", drain_seconds=node.settings.server.drain_seconds)
        elif ended.exception() is None:
            manager.status("changing the role")
        for file in files:
            file.unlink(missing_ok=True)
    finally:
        stopped.cancel()
        around.reloader.server = None
        await node.stop()
    if node.failure is not None:
        raise Failure(ExitCode.DISK_FAILED, f"the log failed while it ran: {node.failure}")
    turn = ended.result() if ended.done() else None  # raises why it cannot go on
    return ports, None if stop.is_set() else turn


async def _start(node: Node, stopped: asyncio.Future[Any]) -> Ports | None:
    """Start; None if the server is to stop before it is ready. Raises Failure."""
    starting = asyncio.ensure_future(node.start())
    await asyncio.wait([starting, stopped], return_when=asyncio.FIRST_COMPLETED)
    if not starting.done():
        starting.cancel()
        await asyncio.wait([starting])
    if starting.cancelled():
        logger("polymq").info("stopped before it was ready")
        return None
    return starting.result()


async def _write_ports(
    files: Iterable[Path], ports: Ports, unwritten: Iterable[Callable[[], object]]
) -> None:
    """Write what tells others where the server is. On a full disk it serves all the same, so that
    consumers can make room, and the files follow.

    Args:
        unwritten: what else waits for room.

    Raises:
        Failure: a file cannot be written, whatever room there is.
    """
    waiting: list[Callable[[], object]] = [*unwritten]
    waiting += [partial(write_ports, file, ports) for file in files]
    is_reported = False
    while True:
        for write in list(waiting):
            try:
                write()
                waiting.remove(write)
            except OSError as error:
                text = f"cannot write {error.filename}: {error.strerror}"
                if not is_full(error) and not is_short(error):
                    raise Failure(ExitCode.CANNOT_CREATE, text) from error
                if not is_reported:
                    logger("polymq").warning(text + ". The server goes on, and tries again")
                is_reported = True
        if not waiting:
            return
        await asyncio.sleep(WRITE_AGAIN_SECONDS)


def _cut(settings: Settings, position: int) -> None:
    """Let the log of the closed store end there. Raises Failure."""
    try:
        cut_log(RealFiles(), str(settings.server.data_directory / STORE_DIRECTORY), position)
    except StoreError as error:
        raise Failure(ExitCode.DATA_DAMAGED, str(error)) from error


def with_ports(settings: Settings, ports: Ports) -> Settings:
    """The settings with the ports that were bound: another role of the process has the same."""
    bound = {
        name: getattr(settings, name).model_copy(update={"port": port})
        for name in OWN_PORTS
        if (port := getattr(ports, name)) is not None
    }
    if ports.mqtt_ws is not None:
        mqtt = bound.get("mqtt", settings.mqtt)
        bound["mqtt"] = mqtt.model_copy(update={"websocket_port": ports.mqtt_ws})
    if ports.mqtt_listeners is not None:
        mqtt = bound.get("mqtt", settings.mqtt)
        listeners = [
            listener.model_copy(update={"port": port})
            if isinstance(port := ports.mqtt_listeners.get(listener.name), int)
            else listener
            for listener in settings.mqtt.listeners
        ]
        bound["mqtt"] = mqtt.model_copy(update={"listeners": listeners})
    return settings.model_copy(update=bound)


def hang_up(reloader: Reloader) -> None:
    """What a SIGHUP does. It never ends the server."""
    if reloader.server is None:
        ignore_hangup()
    else:
        reloader.hangup()


def _feed_watchdog(manager: ServiceManager) -> None:
    """Tell the service manager, as long as the loop runs, that it does."""
    if manager.watchdog_seconds:
        manager.beat()
        loop = asyncio.get_running_loop()
        loop.call_later(manager.watchdog_seconds, _feed_watchdog, manager)


def _status(node: Node, ports: Ports) -> str:
    """What the server does, for people."""
    names = ("mqtt", "mqtts", "amqp", "amqps", "http", "https", "rocketmq", "rocketmqs")
    opened = [f"{name} {port}" for name in names if (port := getattr(ports, name)) is not None]
    return f"{node.replication.role}: {', '.join(opened)}"


def _listen_to_signals(stop: asyncio.Event, hangup: Callable[[], None]) -> None:
    loop = asyncio.get_running_loop()

    def asked(number: signal.Signals) -> None:
        if stop.is_set() and number is signal.SIGINT:
            print("polymq: stopped at once", file=sys.stderr, flush=True)
            os._exit(ExitCode.INTERRUPTED)
        if number is signal.SIGINT and not stop.is_set():
            print("polymq: stopping; Ctrl-C again to stop at once", file=sys.stderr, flush=True)
        stop.set()

    for number in SIGNALS:
        loop.add_signal_handler(number, asked, number)
    loop.add_signal_handler(signal.SIGHUP, hangup)


def ignore_hangup() -> None:
    """There is nothing to reload: the server starts, changes its role or stops."""
    logger("polymq").warning(
        "SIGHUP is ignored while the server starts or stops: send it again when the server is ready"
    )
