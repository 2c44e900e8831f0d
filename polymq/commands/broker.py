"""`polymq broker`: the broker as a whole, its listeners and limits, and its role in its group."""

from __future__ import annotations

import time
from typing import Any, Final

import click

from polymq.admin.client import AdminClient, api_path
from polymq.commands.access import admin_client, admin_client_of, credentials, operator_options
from polymq.commands.options import settings_from
from polymq.commands.tables import (
    fetch_items,
    json_option,
    print_list,
    show_fields,
    show_json,
    shown_time,
)
from polymq.errors import ExitCode, Failure
from polymq.terminal import echo

PROMOTION_SECONDS_MAX: Final = 120.0
"""A promotion opens the store anew; after a cut, with all indexes."""
LOOK_SECONDS: Final = 0.2

_LISTENER_COLUMNS: Final = {
    "NAME": lambda row: row["name"],
    "PROTOCOL": lambda row: row["protocol"],
    "TLS": lambda row: row["tls"],
    "HOST": lambda row: row["host"],
    "PORT": lambda row: str(row["port"]),
}
_LIMIT_COLUMNS: Final = {
    "NAME": lambda row: row["name"],
    "AT MOST": lambda row: _whole(row["value"]),
    "USED": lambda row: _whole(row["used"]),
    "SETTING": lambda row: row["setting"],
}
_NAME_SERVER_COLUMNS: Final = {
    "ADDRESS": lambda row: row["address"],
    "REGISTERED": lambda row: row["registered"],
    "FAILED": lambda row: row["failed"],
    "FAILURE": lambda row: row["failure"] or None,
}


def _whole(value: float | None) -> float | None:
    """A whole number without a fraction, as most limits are."""
    return int(value) if value is not None and float(value).is_integer() else value


@click.group()
def broker() -> None:
    """Show the broker with its limits, or change its role."""


@broker.command("show")
@operator_options
@json_option
def broker_show(as_json: bool, **options: Any) -> None:
    """Show the version, the state and the totals of the broker."""
    row = admin_client(options).ask("GET", api_path("broker"))
    if as_json:
        show_json(row)
        return
    connections = row["connections"].items()
    counted = ("topics", "exchanges", "queues", "subscriptions", "sessions", "retained", "users")
    show_fields(
        {
            "name": f"{row['name']} ({row['role']}, epoch {row['epoch']})",
            "version": row["version"],
            "status": row["status"],
            "running since": shown_time(row["started_ms"]),
            "connections": ", ".join(f"{name} {count:,}" for name, count in connections) or None,
            **{name: f"{row[name]:,}" for name in counted},
            "messages stored": f"{row['messages_stored']:,}",
            "failed logins": f"{row['login_failures']:,}",
        }
    )


@broker.command("listeners")
@operator_options
@json_option
def broker_listeners(as_json: bool, **options: Any) -> None:
    """List the listeners for clients, with their ports."""
    answer = fetch_items(admin_client(options), ("listeners",), {}, 0)
    print_list(answer, _LISTENER_COLUMNS, as_json=as_json, nothing="No listener is open.")


@broker.command("limits")
@operator_options
@click.option("--prefix", help="Only limits whose names begin with this text.")
@json_option
def broker_limits(prefix: str | None, as_json: bool, **options: Any) -> None:
    """List the limits in force, and how much of them is used.

    Example: polymq broker limits --prefix mqtt.
    """
    answer = fetch_items(admin_client(options), ("limits",), {"prefix": prefix}, 0)
    print_list(answer, _LIMIT_COLUMNS, as_json=as_json, nothing="There is no such limit.")


@broker.command("name-servers")
@operator_options
@json_option
def broker_name_servers(as_json: bool, **options: Any) -> None:
    """List the name servers of this broker."""
    answer = fetch_items(admin_client(options), ("name-servers",), {}, 0)
    nothing = "This broker registers with no name server."
    print_list(answer, _NAME_SERVER_COLUMNS, as_json=as_json, nothing=nothing)


@broker.command()
@operator_options
def status(**options: Any) -> None:
    """Show which broker follows which, as one JSON document."""
    show_json(admin_client(options).ask("GET", api_path("replication")))


@broker.command()
@operator_options
@click.option("--force", is_flag=True, help="Give up what the master lacks.")
def follow(force: bool, **options: Any) -> None:
    """Let this slave follow a master that lacks some messages.

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
