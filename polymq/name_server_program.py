"""The name server as a program: `polymq namesrv`."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path

from polymq.descriptors import (
    connection_budget,
    open_files_max,
    raise_open_files,
    say_what_was_lowered,
)
from polymq.errors import ExitCode, Failure
from polymq.held_ports import wanted_name_ports
from polymq.inherited_sockets import inherit_sockets
from polymq.logs import configure_logs, logger
from polymq.name_server import as_failures, is_installed, serve_names, write_ready
from polymq.namesrv.limits import NameServerLimits
from polymq.net.roster import Roster
from polymq.service_manager import ServiceManager
from polymq.settings import Settings
from polymq.tls_files import TlsFiles


def run_name_server(
    settings: Settings, *, ready_file: Path | None, load: Callable[[], Settings]
) -> int:
    """Serve names until a signal; returns the exit code.

    Args:
        load: reads the configuration again, for a reload. Raises Failure.

    Raises:
        Failure: it cannot start.
    """
    configure_logs(settings.log)
    if not is_installed():
        raise Failure(ExitCode.FAILED, "a name server needs trio: pip install trio")
    import trio

    from polymq.name_server_alone import Alone

    manager, inherited = ServiceManager(os.environ), inherit_sockets(os.environ)
    addresses = wanted_name_ports(settings, alone=True)
    inherited.check({wanted.label: wanted.host for wanted in addresses})
    log, tls_files = logger("polymq.namesrv"), TlsFiles()

    def ready(port: int, secure: int | None, _roster: Roster[int]) -> None:
        write_ready(ready_file, settings.server.host, port, secure)
        more = {} if secure is None else {"names_tls": secure}
        log.info("ready", host=settings.server.host, names=port, **more)
        manager.serving = f"serving names at port {port}"
        manager.ready()

    budget = connection_budget(raise_open_files())
    share = budget.share(NameServerLimits().connections_max)
    say_what_was_lowered(budget, open_files_max())
    alone = Alone(settings, load=load, manager=manager, tls_files=tls_files)
    with as_failures(settings):
        tls = tls_files.source(settings.tls)
        tls_files.begin()
        run = functools.partial(
            serve_names, settings, ready, share, tls, inherited, until=alone.until_signal
        )
        trio.run(run)
    log.info("stopped")
    return ExitCode.OK
