"""`polymq store holders`: everything that keeps the log from being deleted."""

from __future__ import annotations

from typing import Any, Final

import click

from polymq.commands.access import admin_client, operator_options
from polymq.commands.consumer import shown_lag
from polymq.commands.tables import fetch_items, json_option, page_options, print_list
from polymq.commands.watching import show_again, watch_option
from polymq.terminal import size

KINDS: Final = (
    *("all", "topic", "queue", "subscription", "session", "share", "group"),
    *("delayed", "retained", "backup", "unsaved"),
)
_COLUMNS: Final = {
    "KIND": lambda row: row["kind"],
    "NAME": lambda row: row["name"],
    "POSITION": lambda row: row["position"],
    "HELD": lambda row: size(row["held_bytes"]),
    "AGE": lambda row: shown_lag(row["age_seconds"]),
}


@click.command("holders")
@operator_options
@click.option(
    "--kind",
    type=click.Choice(KINDS),
    default="all",
    show_default=True,
    help="Only holders of this kind.",
)
@click.option("--prefix", help="Only holders whose names begin with this text.")
@click.option(
    "--sort",
    type=click.Choice(["position", "id"]),
    default="position",
    show_default=True,
    help="By the position that is needed, the oldest first, or by kind and name.",
)
@page_options
@watch_option
@json_option
def store_holders(
    kind: str,
    prefix: str | None,
    sort: str,
    limit: int,
    after: str | None,
    watch: float | None,
    as_json: bool,
    **options: Any,
) -> None:
    """List everything that keeps the log from being deleted.

    POSITION is the oldest position of the log that is needed, HELD is how much of the log is behind
    it, and AGE how long ago the record there was stored. Segments are deleted from the oldest on:
    what is in the first line has to go before anything is deleted.
    """
    query = {"kind": kind, "prefix": prefix, "sort": sort, "after": after}
    admin = admin_client(options)

    def show() -> None:
        answer = fetch_items(admin, ("store", "holders"), query, limit)
        print_list(answer, _COLUMNS, as_json=as_json, nothing="Nothing keeps the log.")

    show_again(watch, admin, show)
