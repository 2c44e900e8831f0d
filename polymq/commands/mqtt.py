"""`polymq mqtt client`, `polymq session` and `polymq retained`: commands that show MQTT clients and
what the server stores for them, and end or delete it."""

from __future__ import annotations

from typing import Any, Final

import click

from polymq.admin.client import api_path, stored_message
from polymq.commands.access import admin_client, operator_options
from polymq.commands.ban import DURATION, add_ban, remove_ban
from polymq.commands.find import show_message
from polymq.commands.options import format_option
from polymq.commands.running_traces import trace
from polymq.commands.tables import (
    fetch_items,
    json_option,
    page_options,
    print_list,
    show_fields,
    show_json,
    show_table,
    shown_expiry,
    shown_time,
)
from polymq.remoting.records import iterate_records
from polymq.terminal import confirm, echo

Row = dict[str, Any]

# --- clients -------------------------------------------------------------------------------------


@click.group()
def mqtt() -> None:
    """Show and disconnect MQTT clients."""


mqtt.add_command(trace)


@mqtt.group()
def client() -> None:
    """Show, disconnect and ban MQTT clients.

    CLIENT_ID is a client identifier. One that begins with a hyphen is written behind `--`.
    """


_CLIENT_COLUMNS: Final = {
    "CLIENT ID": lambda row: row["client_id"],
    "USER": lambda row: row["user"],
    "ADDRESS": lambda row: row["address"],
    "LISTENER": lambda row: row["listener"],
    "MQTT": lambda row: row["version"],
    "KEEP ALIVE": lambda row: row["keep_alive_seconds"],
    "CONNECTED SINCE": lambda row: shown_time(row["connected_ms"]),
    "SUBSCRIPTIONS": lambda row: row["subscriptions"],
    "IN FLIGHT": lambda row: row["inflight"],
    "QUEUED": lambda row: row["queued"],
}


@client.command("list")
@operator_options
@click.option("--user", help="Only clients of this user.")
@click.option("--address", help="Only clients from this address or network (10.1.0.0/16).")
@click.option("--prefix", help="Only clients whose identifiers begin with this text.")
@page_options
@json_option
def client_list(
    user: str | None,
    address: str | None,
    prefix: str | None,
    limit: int,
    after: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """List connected clients in the order of their identifiers.

    Messages in flight are sent and not acknowledged; queued messages wait behind them.
    """
    query = {"user": user, "address": address, "prefix": prefix, "after": after}
    answer = fetch_items(admin_client(options), ("mqtt", "clients"), query, limit)
    print_list(answer, _CLIENT_COLUMNS, as_json=as_json, nothing="No such client is connected.")


@client.command("show")
@operator_options
@click.argument("client_id")
@json_option
def client_show(client_id: str, as_json: bool, **options: Any) -> None:
    """Show a connected client, with its subscriptions."""
    path = api_path("mqtt", "clients", client_id)
    row = admin_client(options).ask("GET", path)
    if as_json:
        show_json(row)
        return
    show_fields(
        {
            "client id": row["client_id"],
            "user": row["user"],
            "address": row["address"],
            "listener": row["listener"],
            "MQTT version": row["version"],
            "keep alive": f"{row['keep_alive_seconds']} s",
            "connected since": shown_time(row["connected_ms"]),
            "session expiry": shown_expiry(row["expiry_seconds"]),
            **_waiting(row),
        }
    )
    _show_subscriptions(row)


@client.command("kick")
@operator_options
@click.argument("client_id")
def client_kick(client_id: str, **options: Any) -> None:
    """Disconnect a client. It may connect again.

    MQTT 5 clients are told that it is an administrative action (0x98). The client's will is
    published, and its session stays as if the connection had been lost.
    """
    path = api_path("mqtt", "clients", client_id)
    answer = admin_client(options).ask("DELETE", path)
    echo(f"Client {client_id} ({answer['address']}) is disconnected.")


@client.command("ban")
@operator_options
@click.argument("client_id")
@click.option("--reason", default="", help="Why, for the list of bans.")
@click.option("--for", "seconds", type=DURATION, help="For how long: 90s, 15m, 2h, 7d.")
def client_ban(client_id: str, reason: str, seconds: int | None, **options: Any) -> None:
    """Disconnect a client and keep it out.

    The same as `polymq ban add --client`.
    """
    add_ban(admin_client(options), "client_id", client_id, reason, seconds)


@client.command("unban")
@operator_options
@click.argument("client_id")
def client_unban(client_id: str, **options: Any) -> None:
    """Let a banned client connect again."""
    remove_ban(admin_client(options), "client_id", client_id)


# --- sessions ------------------------------------------------------------------------------------


@click.group()
def session() -> None:
    """Show and delete MQTT sessions.

    Clients of sessions need not be connected.

    CLIENT_ID is a client identifier. One that begins with a hyphen is written behind `--`.
    """


_SESSION_COLUMNS: Final = {
    "CLIENT ID": lambda row: row["client_id"],
    "USER": lambda row: row["user"],
    "CONNECTED": lambda row: row["connected"],
    "AWAY SINCE": lambda row: shown_time(row["away_ms"]),
    "EXPIRY": lambda row: shown_expiry(row["expiry_seconds"]),
    "SUBSCRIPTIONS": lambda row: row["subscriptions"],
    "IN FLIGHT": lambda row: row["inflight"],
    "QUEUED": lambda row: row["queued"],
}


@session.command("list")
@operator_options
@click.option("--user", help="Only sessions of this user.")
@click.option("--prefix", help="Only sessions whose client identifiers begin with this text.")
@click.option(
    "--state",
    type=click.Choice(["all", "connected", "disconnected"]),
    default="all",
    show_default=True,
    help="Only sessions whose clients are connected, or are not.",
)
@click.option(
    "--sort",
    type=click.Choice(["name", "queued", "inflight", "subscriptions"]),
    default="name",
    show_default=True,
    help="By client identifier, or by a number, the largest first.",
)
@page_options
@json_option
def session_list(
    user: str | None,
    prefix: str | None,
    state: str,
    sort: str,
    limit: int,
    after: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """List sessions with the numbers of their messages."""
    query = {"user": user, "prefix": prefix, "state": state, "sort": sort, "after": after}
    answer = fetch_items(admin_client(options), ("mqtt", "sessions"), query, limit)
    print_list(answer, _SESSION_COLUMNS, as_json=as_json, nothing="There is no such session.")


@session.command("show")
@operator_options
@click.argument("client_id")
@json_option
def session_show(client_id: str, as_json: bool, **options: Any) -> None:
    """Show a session and its subscriptions."""
    path = api_path("mqtt", "sessions", client_id)
    row = admin_client(options).ask("GET", path)
    if as_json:
        show_json(row)
        return
    show_fields(
        {
            "client id": row["client_id"],
            "user": row["user"],
            "connected": "yes" if row["connected"] else "no",
            "away since": shown_time(row["away_ms"]),
            "session expiry": shown_expiry(row["expiry_seconds"]),
            "ends": shown_time(row["ends_ms"]),
            **_waiting(row),
        }
    )
    _show_subscriptions(row)


@session.command("delete")
@operator_options
@click.argument("client_id")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def session_delete(client_id: str, yes: bool, **options: Any) -> None:
    """Delete a session with all that waits in it.

    A client that is connected is disconnected. It may connect again, and gets a new session.
    """
    admin, path = admin_client(options), api_path("mqtt", "sessions", client_id)
    row = admin.ask("GET", path)
    if not yes:
        queued = row["queued"] + row["inflight"]
        confirm(f"Delete the session of client {client_id} with {queued:,} messages?")
    admin.request("DELETE", path)
    echo(f"The session of client {client_id} is deleted.")


def _waiting(row: Row) -> Row:
    least = "" if row["queued_bytes_complete"] else "at least "
    return {
        "in flight": f"{row['inflight']:,} messages",
        "queued": f"{row['queued']:,} messages, {least}{row['queued_bytes']:,} bytes",
        "dropped": f"{row['dropped']:,} messages since the server started",
        "will": "yes" if row["will"] else "no",
    }


def _show_subscriptions(row: Row) -> None:
    found = row["subscription_list"]
    if not found:
        echo("subscriptions: none")
        return
    echo("subscriptions:")
    rows = [
        [
            one["filter"],
            one["qos"],
            " ".join(name for name in ("no_local", "retain_as_published") if one[name]) or None,
            one["identifier"],
            one["queued"],
            one["queued_bytes"],
        ]
        for one in found
    ]
    headings = ["FILTER", "QOS", "OPTIONS", "IDENTIFIER", "QUEUED", "BYTES"]
    show_table(headings, rows, "  ")


# --- retained messages ---------------------------------------------------------------------------


@click.group()
def retained() -> None:
    """Show and clear retained MQTT messages."""


_RETAINED_COLUMNS: Final = {
    "TOPIC": lambda row: row["topic"],
    "BYTES": lambda row: row["bytes"],
    "POSITION": lambda row: row["position"],
}


@retained.command("list")
@operator_options
@click.option("--filter", "pattern", default="#", show_default=True, help="An MQTT topic filter.")
@page_options
@json_option
def retained_list(
    pattern: str, limit: int, after: str | None, as_json: bool, **options: Any
) -> None:
    """List topics with a retained message, with its size in the log."""
    query = {"filter": pattern, "after": after}
    answer = fetch_items(admin_client(options), ("mqtt", "retained"), query, limit)
    print_list(
        answer, _RETAINED_COLUMNS, as_json=as_json, nothing="There is no such retained message."
    )


@retained.command("show")
@operator_options
@click.argument("topic")
@format_option()
def retained_show(topic: str, form: str, **options: Any) -> None:
    """Show the retained message of a topic.

    Example: polymq retained show sensors/room1/temp
    """
    path = api_path("mqtt", "retained", topic, "record")
    record = admin_client(options).request("GET", path)[1]
    show_message(stored_message(next(iterate_records(record))), form)


@retained.command("clear")
@operator_options
@click.argument("pattern", metavar="FILTER")
@click.option("--dry-run", is_flag=True, help="Only say what would be cleared.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def retained_clear(pattern: str, dry_run: bool, yes: bool, **options: Any) -> None:
    """Clear the retained messages that match FILTER.

    New subscribers do not get them any more. Clients that are subscribed are not told, and the
    messages stay in the log until retention deletes them.
    """
    admin = admin_client(options)

    def ask(dry: bool) -> Row:
        body = {"filter": pattern, "dry_run": dry}
        return admin.ask("POST", api_path("mqtt", "retained", "clear"), body)

    if dry_run or not yes:
        found = ask(dry=True)
        if dry_run:
            echo(f"{found['count']:,} messages ({found['bytes']:,} bytes) would be cleared.")
            return
        confirm(f"Clear {found['count']:,} retained messages?")
    found = ask(dry=False)
    echo(f"{found['count']:,} retained messages ({found['bytes']:,} bytes) are cleared.")
