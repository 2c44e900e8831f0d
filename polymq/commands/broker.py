"""`polymq broker`: roles of a broker in its group."""

from __future__ import annotations

import time
from typing import Any, Final

import click

from polymq.admin.client import AdminClient, api_path
from polymq.commands.access import admin_client, admin_client_of, credentials, operator_options
from polymq.commands.options import settings_from
from polymq.commands.tables import show_json
from polymq.errors import ExitCode, Failure
from polymq.terminal import echo

PROMOTION_SECONDS_MAX: Final = 120.0
"""A promotion opens the store anew; after a cut, with all indexes."""
LOOK_SECONDS: Final = 0.2


@click.group()
def broker() -> None:
    """Show which broker is the master, or change a broker's role."""


@broker.command()
@operator_options
def status(**options: Any) -> None:
    """Show which broker follows which, as one JSON document."""
    show_json(admin_client(options).ask("GET", api_path("replication")))


@broker.command()
@operator_options
@click.option("--force", is_flag=True, help="Give up what the master lacks.")
def follow(force: bool, **options: Any) -> None:
    """Let this slave follow a master that lacks some of its messages.

    The command prints what would be given up. With --force, that part is cut from the log, a copy
    of it is stored (`polymq store cut list`), and the slave follows.
    """
    found = admin_client(options).ask("POST", api_path("replication", "follow"), {"force": force})
    echo(
        f"{found['messages']:,} messages and {found['changes']:,} changes of state are given up "
        f"(positions {found['position']:,} to {found['end']:,}). A copy is stored in "
        f"{found['stored_in']}."
    )


@broker.command()
@operator_options
@click.option("--force", is_flag=True, help="Promote it even if one of the reasons below applies.")
def promote(force: bool, **options: Any) -> int:
    """Make this slave the master.

    Stop the old master first, and start it again as a slave of this one. Of several slaves, promote
    the one that has most of the log (`flushed` of `polymq broker status`).

    The command refuses, and prints what would be lost, if this broker lacks something that its
    master had, if it cannot know that (it was stopped while it followed), if a master still
    answers, or if another broker of the group has more or does not answer. --force promotes it
    nevertheless.
    """
    named = credentials(options)
    settings = settings_from(options)

    def client() -> AdminClient:
        return admin_client_of(settings, named)

    client().ask("GET", api_path("replication"))  # else a server that does not run is waited for
    try:
        client().ask("POST", api_path("replication", "promote"), {"force": force})
    except Failure as failure:
        if failure.code is not ExitCode.UNREACHABLE:
            raise
        # A log that has to be recovered takes its time: look for the outcome.
    deadline = time.monotonic() + PROMOTION_SECONDS_MAX
    while time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
        try:
            found = client().ask("GET", api_path("replication"))
        except Failure:
            continue  # between being one and being the other
        if found["role"] == "master":
            echo(f"This broker is the master, in epoch {found['epoch']}.")
            return ExitCode.OK
    raise Failure(ExitCode.FAILED, "this broker is not the master yet: see its log")
