"""`polymq ban`: who may not connect."""

from __future__ import annotations

from typing import Any, Final

import click

from polymq.admin.client import AdminClient, api_path
from polymq.commands.access import admin_client, operator_options
from polymq.commands.tables import (
    Duration,
    fetch_items,
    json_option,
    print_list,
    shown_time,
)
from polymq.errors import ExitCode, Failure
from polymq.terminal import confirm, echo, printable

DURATION: Final = Duration()
SHOWN: Final = {"client_id": "client", "user": "user", "address": "address"}


@click.group()
def ban() -> None:
    """Keep out clients, users and addresses.

    A banned address or network is closed when it connects, at every listener for clients. A banned
    user cannot log in by any protocol. A banned client identifier cannot connect by MQTT: an MQTT 5
    client is answered 0x8A, an older one with return code 5. Bans are durable and replicated.
    """


def _target(command: Any) -> Any:
    """`--client`, `--user` and `--address`, of which one is given."""
    for name, text in (
        ("address", "An address or a network, such as 10.1.0.0/16."),
        ("user", "The name of a user."),
        ("client", "An MQTT client identifier."),
    ):
        command = click.option(f"--{name}", metavar=name.upper(), help=text)(command)
    return command


def _named(client: str | None, user: str | None, address: str | None) -> tuple[str, str]:
    given = [
        (kind, value)
        for kind, value in (("client_id", client), ("user", user), ("address", address))
        if value is not None
    ]
    if len(given) != 1:
        raise Failure(ExitCode.USAGE, "use one of --client, --user and --address")
    return given[0]


_COLUMNS: Final = {
    "KIND": lambda row: SHOWN[row["kind"]],
    "VALUE": lambda row: row["value"],
    "UNTIL": lambda row: shown_time(row["until_ms"]) or "for ever",
    "SINCE": lambda row: shown_time(row["since_ms"]),
    "BY": lambda row: row["by"],
    "REASON": lambda row: row["reason"] or None,
}


@ban.command("list")
@operator_options
@json_option
def ban_list(as_json: bool, **options: Any) -> None:
    """List all bans that are in force."""
    answer = fetch_items(admin_client(options), ("bans",), {}, 0)
    print_list(answer, _COLUMNS, as_json=as_json, nothing="Nobody is banned.")


@ban.command("add")
@operator_options
@_target
@click.option("--reason", default="", help="Why, for the list of bans.")
@click.option("--for", "seconds", type=DURATION, help="For how long: 90s, 15m, 2h, 7d.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def ban_add(
    client: str | None,
    user: str | None,
    address: str | None,
    reason: str,
    seconds: int | None,
    yes: bool,
    **options: Any,
) -> None:
    """Ban a client identifier, a user or an address.

    Its connections end.

    Without --for, the ban has no end. A ban that exists is replaced. A network of all addresses is
    banned only after a confirmation.

    Example: polymq ban add --address 203.0.113.0/24 --for 2h --reason "password guesses"
    """
    kind, value = _named(client, user, address)
    if kind == "address" and value.endswith("/0") and not yes:
        confirm(f"Ban all addresses of {value}?")
    add_ban(admin_client(options), kind, value, reason, seconds)


@ban.command("remove")
@operator_options
@_target
def ban_remove(client: str | None, user: str | None, address: str | None, **options: Any) -> None:
    """Remove a ban. A network is named as `polymq ban list` shows it."""
    kind, value = _named(client, user, address)
    remove_ban(admin_client(options), kind, value)


def add_ban(admin: AdminClient, kind: str, value: str, reason: str, seconds: int | None) -> None:
    """Add a ban, and print what became of it. Raises Failure."""
    for text in (value, reason):
        text.encode()  # an argument that is not UTF-8 ends the command
    body = {"kind": kind, "value": value, "reason": reason, "seconds": seconds}
    found = admin.ask("POST", api_path("bans"), body)
    until = shown_time(found["until_ms"])
    end = "until it is removed" if until is None else f"until {until}"
    echo(f"{SHOWN[kind].capitalize()} {printable(found['value'])} is banned {end}.")
    if found["ended"]:
        echo(f"Connections that were ended: {found['ended']:,}.")


def remove_ban(admin: AdminClient, kind: str, value: str) -> None:
    """Remove a ban, and say so. Raises Failure."""
    value.encode()  # an argument that is not UTF-8 ends the command
    admin.request("DELETE", api_path("bans", kind, value))
    echo(f"{SHOWN[kind].capitalize()} {printable(value)} is not banned any more.")
