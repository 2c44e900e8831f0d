"""`polymq health`: one question and one word, for health checks of containers."""

from __future__ import annotations

from typing import Any

import click

from polymq.admin.client import server_health
from polymq.commands.options import config_option, data_flag, settings_from
from polymq.errors import ExitCode, Failure
from polymq.ports import find_ports
from polymq.terminal import echo


@click.command()
@config_option
@data_flag
def health(**options: Any) -> None:
    """Say whether the running server is healthy.

    The command prints `ok`. If something is wrong with the server, it says what, and the exit code
    is 1; it is 69 if no server answers. It needs no user and no password.
    """
    status = server_health(find_ports(settings_from(options)))
    if status != "ok":
        raise Failure(ExitCode.FAILED, status)
    echo(status)
