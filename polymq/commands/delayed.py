"""`polymq delayed`: messages that are delivered later."""

from __future__ import annotations

from typing import Any, Final

import click

from polymq.admin.client import api_path
from polymq.commands.access import admin_client, operator_options
from polymq.commands.tables import fetch_items, json_option, page_options, print_list, shown_time
from polymq.terminal import confirm, echo

_COLUMNS: Final = {
    "ID": lambda row: str(row["id"]),
    "TOPIC": lambda row: row["topic"],
    "TAG": lambda row: row["tag"],
    "DUE": lambda row: shown_time(row["due_ms"]),
    "BYTES": lambda row: row["body_bytes"],
}


@click.group()
def delayed() -> None:
    """Show and cancel messages that are delivered later."""


@delayed.command("list")
@operator_options
@click.option("--topic", help="Only messages for this topic.")
@page_options
@json_option
def delayed_list(
    topic: str | None, limit: int, after: str | None, as_json: bool, **options: Any
) -> None:
    """List messages that are delivered later.

    They come in the order in which they were published.
    """
    query = {"topic": topic, "after": after, "body_bytes": 0}
    answer = fetch_items(admin_client(options), ("delayed",), query, limit)
    print_list(answer, _COLUMNS, as_json=as_json, nothing="No such message waits.")


@delayed.command("cancel")
@operator_options
@click.argument("id")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def delayed_cancel(id: str, yes: bool, **options: Any) -> None:
    """Cancel the message ID, which `polymq delayed list` shows. It is never delivered."""
    if not yes:
        confirm(f"Cancel the delayed message {id}?")
    admin_client(options).request("DELETE", api_path("delayed", id))
    echo(f"The delayed message {id} is cancelled.")
