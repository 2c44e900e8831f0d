"""`polymq broker`: roles of a broker in its group."""

from __future__ import annotations

import json
import time
from typing import Any, Final

import click

from polymq.cli_access import as_options, credentials, operator_credentials
from polymq.cli_options import config_option, data_flag, settings_from
from polymq.client import OperatorDoor
from polymq.errors import ExitCode, Failure
from polymq.ports import find_ports
from polymq.terminal import echo

PROMOTION_SECONDS_MAX: Final = 120.0
"""A promotion opens the store anew; after a cut, with all indexes."""
LOOK_SECONDS: Final = 0.2


@click.group()
def broker() -> None:
    """Show who is the master, or make a slave the master."""


@broker.command()
@config_option
@data_flag
@as_options
def status(**options: Any) -> int:
    """Show who follows whom, as one JSON document."""
    named = credentials(options)
    settings = settings_from(options)
    door = OperatorDoor(find_ports(settings), operator_credentials(settings, named))
    echo(json.dumps(door.ask("GET", "/replication"), ensure_ascii=False))
    return ExitCode.OK


@broker.command()
@config_option
@data_flag
@as_options
def promote(**options: Any) -> int:
    """Make this slave the master.

    Stop the old master first, and start it again as a slave of this one: while it runs it takes
    messages until it hears of the promotion. Of several slaves promote the one that has most of
    the log (`flushed` of `polymq broker status`).
    """
    named = credentials(options)
    settings = settings_from(options)

    def door() -> OperatorDoor:
        return OperatorDoor(find_ports(settings), operator_credentials(settings, named))

    door().ask("POST", "/replication/promote")
    deadline = time.monotonic() + PROMOTION_SECONDS_MAX
    while time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
        try:
            found = door().ask("GET", "/replication")
        except Failure:
            continue  # between being one and being the other
        if found["role"] == "master":
            echo(f"This broker is the master, in epoch {found['epoch']}.")
            return ExitCode.OK
    raise Failure(ExitCode.FAILED, "it is not the master yet: its log says why")
