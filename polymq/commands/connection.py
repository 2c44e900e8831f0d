"""`polymq connection`: commands that show the connections of clients, and close them."""

from __future__ import annotations

from typing import Any, Final

import click

from polymq.admin.client import api_path
from polymq.commands.access import admin_client, operator_options
from polymq.commands.tables import (
    fetch_items,
    json_option,
    page_options,
    print_list,
    show_fields,
    show_json,
    shown_time,
)
from polymq.commands.watching import show_again, watch_option
from polymq.errors import ExitCode, Failure
from polymq.terminal import confirm, echo

Row = dict[str, Any]

_PROTOCOLS: Final = click.Choice(["all", "mqtt", "amqp", "http", "rocketmq"])


@click.group()
def connection() -> None:
    """Show and close connections of clients, of all protocols.

    ID is the id of a connection, as `polymq connection list` shows it.
    """


_COLUMNS: Final = {
    "ID": lambda row: row["id"],
    "PROTOCOL": lambda row: row["protocol"] + (" TLS" if row["tls"] else ""),
    "ADDRESS": lambda row: row["peer"],
    "USER": lambda row: row["user"] or None,
    "CLIENT": lambda row: row["client"] or None,
    "STATE": lambda row: row["state"],
    "CHANNELS": lambda row: row["channels"],
    "CONSUMERS": lambda row: row["consumers"],
    "SENT BYTES": lambda row: row["sent_bytes"],
    "SINCE": lambda row: shown_time(row["connected_ms"]),
}


@connection.command("list")
@operator_options
@click.option(
    "--protocol", type=_PROTOCOLS, default="all", show_default=True, help="Only this protocol."
)
@click.option("--user", help="Only connections of this user.")
@click.option("--address", help="Only from this address or network, such as 10.1.0.0/16.")
@click.option(
    "--prefix", help="Only clients whose client identifier or name begins with this text."
)
@click.option(
    "--sort",
    type=click.Choice(["oldest", "newest"]),
    default="oldest",
    show_default=True,
    help="Which come first.",
)
@page_options
@watch_option
@json_option
def connection_list(
    protocol: str,
    user: str | None,
    address: str | None,
    prefix: str | None,
    sort: str,
    limit: int,
    after: str | None,
    watch: float | None,
    as_json: bool,
    **options: Any,
) -> None:
    """List the connections of clients.

    A connection that is blocked is not read at the moment, for example because the disk does not
    keep up with it.
    """
    query = {
        "protocol": protocol,
        "user": user,
        "address": address,
        "prefix": prefix,
        "sort": sort,
        "after": after,
    }
    admin = admin_client(options)

    def show() -> None:
        answer = fetch_items(admin, ("connections",), query, limit)
        print_list(answer, _COLUMNS, as_json=as_json, nothing="There is no such connection.")

    show_again(watch, admin, show)


@connection.command("show")
@operator_options
@click.argument("id")
@watch_option
@json_option
def connection_show(id: str, watch: float | None, as_json: bool, **options: Any) -> None:
    """Show the connection ID."""
    admin = admin_client(options)

    def show() -> None:
        row = admin.ask("GET", api_path("connections", id))
        if as_json:
            show_json(row)
            return
        show_fields(
            {
                "id": row["id"],
                "protocol": row["protocol"],
                "TLS": "yes" if row["tls"] else "no",
                "listener": row["listener"],
                "address": row["peer"],
                "user": row["user"] or None,
                "client": row["client"] or None,
                "since": shown_time(row["connected_ms"]),
                "state": row["state"],
                "waits for": ", ".join(row["waits_for"]) or None,
                "channels": row["channels"],
                "consumers": row["consumers"],
                "sent": None if row["sent_bytes"] is None else f"{row['sent_bytes']:,} bytes",
            }
        )

    show_again(watch, admin, show)


@connection.command("close")
@operator_options
@click.argument("id", required=False)
@click.option("--user", help="Close the connections of this user.")
@click.option("--address", help="Close those from this address or network.")
@click.option("--prefix", help="Close those of clients whose name begins with this text.")
@click.option("--protocol", type=_PROTOCOLS, default="all", help="Only those of this protocol.")
@click.option("--reason", help="What the clients are told, where their protocol has a way.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def connection_close(
    id: str | None,
    user: str | None,
    address: str | None,
    prefix: str | None,
    protocol: str,
    reason: str | None,
    yes: bool,
    **options: Any,
) -> None:
    """Close the connection ID, or several.

    Several are those of a user, an address or a kind of client.
    The clients may connect again. `polymq ban add` keeps them out.
    """
    admin = admin_client(options)
    chosen = {"user": user, "address": address, "prefix": prefix}
    body: Row = {name: value for name, value in chosen.items() if value is not None}
    if (id is None) == (not body):
        raise Failure(ExitCode.USAGE, "name an ID, or one of --user, --address and --prefix")
    if id is not None:
        admin.request("DELETE", api_path("connections", id, query={"reason": reason}))
        echo(f"Connection {id} is closed.")
        return
    body |= {"protocol": protocol} | ({} if reason is None else {"reason": reason})
    path = api_path("connections", "close")
    if not yes:
        count = admin.ask("POST", path, body | {"dry_run": True})["connections"]
        confirm(f"Close {count:,} connections?")
    echo(f"{admin.ask('POST', path, body)['connections']:,} connections closed.")
