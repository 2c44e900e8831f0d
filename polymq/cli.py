"""The command line: what a person types. Parses options, calls one function, prints.

Rules: a command that returns nothing has done its work. Nothing here catches errors; they end in
`polymq.program`, which makes one line of each.
Heavy imports stand inside the commands, because `polymq --version` should not load a server; and
the start of a server does not load the other commands (`ELSEWHERE`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from polymq import program_version
from polymq.commands.loading import LoadingGroup
from polymq.commands.options import config_option, ready_file_option, setting_flag, settings_from
from polymq.errors import ExitCode

Command = TypeVar("Command", bound=Callable[..., Any])


CONTEXT: Final = {"help_option_names": ["-h", "--help"], "max_content_width": 96}
ELSEWHERE: Final = {
    "sink": "polymq.commands.sink",
    "export": "polymq.commands.export",
    "topic": "polymq.commands.client",
    "message": "polymq.commands.client",
    "user": "polymq.commands.users",
    "permission": "polymq.commands.users",
    "mqtt": "polymq.commands.mqtt",
    "queue": "polymq.commands.queue",
    "connection": "polymq.commands.connection",
    "consumer": "polymq.commands.consumer",
    "deadletter": "polymq.commands.deadletter",
    "webhook": "polymq.commands.webhook",
    "top": "polymq.commands.top",
    "session": "polymq.commands.mqtt",
    "retained": "polymq.commands.mqtt",
    "ban": "polymq.commands.ban",
    "trace": "polymq.commands.trace",
    "log": "polymq.commands.log",
    "audit": "polymq.commands.log",
    "store": "polymq.commands.client",
    "backup": "polymq.commands.backup",
    "broker": "polymq.commands.broker",
    "config": "polymq.commands.config",
    "console": "polymq.commands.console",
    "definitions": "polymq.commands.definitions",
    "reload": "polymq.commands.reload",
    "health": "polymq.commands.health",
    "completion": "polymq.commands.completion",
}
"""Commands that stand in other modules, which are imported when the command is used."""


@click.group(cls=LoadingGroup, elsewhere=ELSEWHERE, context_settings=CONTEXT)
@click.version_option(program_version(), prog_name="polymq", message="%(prog)s %(version)s")
def polymq() -> None:
    """A message broker with one log and many protocols.

    Start a server with `polymq serve`. Devices then speak MQTT to it, applications AMQP 0-9-1,
    webhooks CloudEvents over HTTP, and `polymq sink` writes every topic to Parquet files.
    """


@polymq.command()
@config_option
@setting_flag("--host", "server.host", "Address to listen on.")
@setting_flag(
    "--data-directory", "server.data_directory", "Directory in which messages and state are stored."
)
@setting_flag(
    "--allow-insecure",
    "server.allow_insecure",
    "Let clients of other machines do everything while there are no users.",
)
@setting_flag("--mqtt-port", "mqtt.port", "Port for MQTT.")
@setting_flag("--amqp-port", "amqp.port", "Port for AMQP.")
@setting_flag("--http-port", "http.port", "Port for CloudEvents over HTTP.")
@setting_flag("--rocketmq-port", "rocketmq.port", "Port for RocketMQ and the Parquet sink.")
@setting_flag("--names-port", "names.port", "Port for the name server.")
@setting_flag("--admin-port", "admin.port", "Port for metrics and for commands, on loopback.")
@setting_flag("--log-level", "log.level", "Lowest severity that is logged.")
@setting_flag("--log-format", "log.format", "Format of the log: auto, console or json.")
@click.option(
    "--set",
    "assignments",
    metavar="KEY=VALUE",
    multiple=True,
    help="Set any other key of the configuration, such as storage.segment_bytes=67108864. May be "
    "repeated.",
)
@ready_file_option(
    "Write the process id and the ports to this file (JSON) as soon as clients can connect."
)
@click.option("--print-config", is_flag=True, help="Print the configuration in force, and exit.")
def serve(ready_file: Path | None, print_config: bool, **options: Any) -> int:
    """Run a server until Ctrl-C or SIGTERM.

    One process serves everything: MQTT on port 1883, AMQP on 5672, CloudEvents over HTTP on 8080,
    RocketMQ (and the Parquet sink) on 10911, a name server on 9876, and metrics on 9464. With a
    certificate it also serves MQTT over TLS on 8883, AMQP on 5671, HTTP on 8443, RocketMQ on 10913
    and the name server on 9877. With mqtt.websocket it serves MQTT over WebSocket on 8083, and over
    TLS on 8084. With api.enabled it serves the admin API to other machines on 9465, and with
    metrics.enabled it serves metrics to them on 9466. With management.enabled it serves RabbitMQ's
    tools on 15672. With a port of 0, the system chooses one. By default, only this machine can
    connect.

    A message is acknowledged once it is on disk, and is still there after a crash.
    """
    load = partial(settings_from, options)
    settings = load()
    if print_config:
        from polymq.render import render_toml

        click.echo(render_toml(settings), nl=False)
        return ExitCode.OK
    from polymq.serve import run_server

    return run_server(settings, ready_file=ready_file, load=load)


@polymq.command()
@config_option
@setting_flag("--host", "server.host", "Address to listen on.")
@setting_flag("--port", "names.port", "Port to listen on.")
@setting_flag(
    "--data-directory",
    "server.data_directory",
    "Directory in which the name server's key-value configuration is stored.",
)
@setting_flag("--log-level", "log.level", "Lowest severity that is logged.")
@setting_flag("--log-format", "log.format", "Format of the log: auto, console or json.")
@ready_file_option(
    "Write the process id and the port to this file (JSON) as soon as clients can connect."
)
def namesrv(ready_file: Path | None, **options: Any) -> int:
    """Run a name server until Ctrl-C or SIGTERM.

    Brokers register their topics with it every 30 seconds, and RocketMQ clients ask it which
    brokers have a topic. `polymq serve` already runs one; this command is for clusters. Name
    servers do not know of each other: every broker is configured with the addresses of all.
    """
    from polymq.name_server_program import run_name_server

    load = partial(settings_from, options)
    return run_name_server(load(), ready_file=ready_file, load=load)


@polymq.command()
@config_option
@setting_flag("--data-directory", "server.data_directory", "Data directory to check.")
@click.option(
    "--brief", is_flag=True, help="Print only two lines: what is installed, and what to do next."
)
@click.option(
    "--bundle",
    type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
    metavar="FILE",
    help="Write a tar.gz for support to this file, which must not exist; - for standard output.",
)
@click.option(
    "--log-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Log of the server, whose end is for --bundle. Default: where the running server logs to, "
    "if that is a file.",
)
def doctor(brief: bool, bundle: Path | None, log_file: Path | None, **options: Any) -> int:
    """Check whether this machine can run a server.

    The command checks Python, the compiled kernels, Java (which only the Parquet sink needs), the
    data directory, how fast its disk syncs, and whether the ports are free. The exit code is 1 if
    something would keep a server from starting.

    With --bundle, the findings go to a file, with the settings without their secrets, versions, the
    platform and its limits, and of a running server its health, its metrics, its store report and
    the end of its log. Look through the file before you send it: the log names users, clients and
    addresses.
    """
    if bundle is not None:
        from polymq.support_bundle import write_bundle

        write_bundle(settings_from(options), bundle, log_file=log_file)
        return ExitCode.OK
    from polymq.doctor import Status, brief_lines, examine

    if brief:
        for line in brief_lines():
            click.echo(line)
        return ExitCode.OK
    colors = {Status.GOOD: "green", Status.WORSE: "yellow", Status.BAD: "red"}
    worst = Status.GOOD
    for finding in examine(settings_from(options)):
        mark = click.style(f"{finding.status.value:<5}", fg=colors[finding.status])
        click.echo(f"{mark} {finding.name:<11} {finding.text}")
        if finding.status is Status.BAD:
            worst = Status.BAD
    return ExitCode.FAILED if worst is Status.BAD else ExitCode.OK


if __name__ == "__main__":
    sys.exit("run `python -m polymq`")
