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
import resource
import signal
import sys
from pathlib import Path
from typing import Final

import uvloop

from core_log.errors import StoreError
from polymq.compose import Node, open_store
from polymq.errors import ExitCode, Failure
from polymq.logs import configure_logs, logger
from polymq.ports import FILE_NAME, write_ports
from polymq.settings import Settings

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def run_server(settings: Settings, *, ready_file: Path | None) -> int:
    """Serve until a signal; returns the exit code. Raises Failure."""
    configure_logs(settings.log)
    raise_open_files()
    store = open_store(settings)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(Node(settings, store), settings, ready_file))
    finally:
        try:
            store.close()
        except StoreError as error:
            text = f"the log was not closed in order: {error}"
            raise Failure(ExitCode.DISK_FAILED, text) from error


def raise_open_files() -> int:
    """Allow as many open files as the system lets us: every client is one. Returns the number.

    The usual soft limit of 1024 is there for programs that use select(), which we do not.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:
            logger("polymq").warning("open files stay limited", limit=soft, error=str(error))
            return soft
    return hard


async def _serve(node: Node, settings: Settings, ready_file: Path | None) -> int:
    log = logger("polymq")
    stop = asyncio.Event()
    _listen_to_signals(stop)
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
            data=str(settings.server.data_directory),
            durability=settings.topics.durability,
        )
        await stop.wait()
        log.info("stopping", drain_seconds=settings.server.drain_seconds)
        for file in files:
            file.unlink(missing_ok=True)
    finally:
        await node.stop()
    if node.failure is not None:
        raise Failure(ExitCode.DISK_FAILED, f"the log failed while it ran: {node.failure}")
    log.info("stopped")
    return ExitCode.OK


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
