"""`polymq serve`: the process around a server. Signals, the ready file, the exit code.

Theory of stopping: the first SIGTERM or Ctrl-C asks, and every door takes leave of its clients in
its protocol's own way, within `drain_seconds`; then the store is closed, so that the next start
has nothing to recover. A second Ctrl-C ends at once, which costs no message that was acked: the
next start recovers.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
from pathlib import Path
from typing import Any, Final

import uvloop

from core_log.cutting import cut_log
from core_log.errors import StoreError
from core_log.files import RealFiles
from polymq.compose import Node, open_store
from polymq.descriptors import raise_open_files
from polymq.errors import ExitCode, Failure
from polymq.logs import configure_logs, logger
from polymq.ports import FILE_NAME, Ports, write_ports
from polymq.replicating import STORE_DIRECTORY, Turn, check_settings, look_for_a_higher_term
from polymq.settings import Settings

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
TLS_PORTS: Final = ("mqtts", "amqps", "https", "rocketmqs", "names_tls")


def run_server(settings: Settings, *, ready_file: Path | None) -> int:
    """Serve until a signal; returns the exit code. Raises Failure."""
    configure_logs(settings.log)
    raise_open_files()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(settings, ready_file))


async def _serve(settings: Settings, ready_file: Path | None) -> int:
    """Serve until a signal, in one role or, after a promotion, in another."""
    stop = asyncio.Event()
    _listen_to_signals(stop)
    check_settings(settings)
    while True:
        await look_for_a_higher_term(settings)
        store = open_store(settings)
        try:
            node = Node(settings, store)
            ports, turn = await _run(node, settings, ready_file, stop)
        finally:
            try:
                store.close()
            except StoreError as error:
                text = f"the log was not closed in order: {error}"
                raise Failure(ExitCode.DISK_FAILED, text) from error
        if stop.is_set():
            logger("polymq").info("stopped")
            return ExitCode.OK
        assert turn is not None
        settings = with_ports(settings, ports)
        if turn.cut is not None:
            _cut(settings, turn.cut)
        changed = settings.replication.model_copy(update={"role": turn.role})
        settings = settings.model_copy(update={"replication": changed})


async def _run(
    node: Node, settings: Settings, ready_file: Path | None, stop: asyncio.Event
) -> tuple[Ports, Turn | None]:
    """One role, from its start to its end.

    Returns:
        The ports, and the next role; None if it was stopped.
    """
    log = logger("polymq")
    stopped = asyncio.ensure_future(stop.wait())
    try:
        ports = await node.start()
        files = [settings.server.data_directory / FILE_NAME]
        if ready_file is not None:
            files.append(ready_file)
        try:
            for file in files:
                write_ports(file, ports)
        except OSError as error:
            text = f"cannot write {error.filename}: {error.strerror}"
            raise Failure(ExitCode.CANNOT_CREATE, text) from error
        # What lives until the end needs no look by the garbage collector, ever again.
        gc.collect()
        gc.freeze()
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
            **{name: port for name in TLS_PORTS if (port := getattr(ports, name)) is not None},
            data=str(settings.server.data_directory),
            durability=settings.topics.durability,
            role=node.replication.role,
        )
        ended = node.replication.ended
        either: list[asyncio.Future[Any]] = [stopped, ended]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            log.info("stopping", drain_seconds=settings.server.drain_seconds)
        for file in files:
            file.unlink(missing_ok=True)
    finally:
        stopped.cancel()
        await node.stop()
    if node.failure is not None:
        raise Failure(ExitCode.DISK_FAILED, f"the log failed while it ran: {node.failure}")
    return ports, None if stop.is_set() or not ended.done() else ended.result()


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
        for name in ("mqtt", "amqp", "http", "rocketmq", "admin", "names")
        if (port := getattr(ports, name)) is not None
    }
    return settings.model_copy(update=bound)


def _listen_to_signals(stop: asyncio.Event) -> None:
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
