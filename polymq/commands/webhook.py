"""`polymq webhook`: commands that show webhooks, and pause, resume and hurry them."""

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
    show_table,
    shown_time,
)
from polymq.commands.watching import show_again, watch_option
from polymq.terminal import echo

Row = dict[str, Any]

_COLUMNS: Final = {
    "NAME": lambda row: row["name"],
    "STATE": lambda row: row["state"],
    "WAITING": lambda row: row["waiting"],
    "ATTEMPTS": lambda row: row["attempts"],
    "DELIVERED": lambda row: shown_time(row["delivered_ms"]),
    "SINK": lambda row: row["sink"],
}


@click.group()
def webhook() -> None:
    """Show, pause and resume webhooks.

    NAME is the name of a subscription that has a sink.
    """


@webhook.command("list")
@operator_options
@click.option("--prefix", help="Only webhooks whose names begin with this text.")
@page_options
@watch_option
@json_option
def webhook_list(
    prefix: str | None,
    limit: int,
    after: str | None,
    watch: float | None,
    as_json: bool,
    **options: Any,
) -> None:
    """List webhooks and how their deliveries go."""
    admin = admin_client(options)

    def show() -> None:
        query = {"prefix": prefix, "after": after}
        answer = fetch_items(admin, ("webhooks",), query, limit)
        print_list(answer, _COLUMNS, as_json=as_json, nothing="There is no such webhook.")

    show_again(watch, admin, show)


@webhook.command("show")
@operator_options
@click.argument("name")
@watch_option
@json_option
def webhook_show(name: str, watch: float | None, as_json: bool, **options: Any) -> None:
    """Show a webhook with its last failed requests."""
    admin = admin_client(options)

    def show() -> None:
        row = admin.ask("GET", api_path("webhooks", name))
        if as_json:
            show_json(row)
        else:
            _show(row)

    show_again(watch, admin, show)


def _show(row: Row) -> None:
    following = row["next_seconds"]
    show_fields(
        {
            "name": row["name"],
            "topic": row["topic"],
            "sink": row["sink"],
            "owner": row["owner"] or None,
            "state": row["state"] + (f" ({row['why']})" if row["why"] else ""),
            "waiting": f"{row['waiting']:,} events, and {row['held']:,} that were taken",
            "attempts": f"{row['attempts']:,}" if row["attempts"] else None,
            "next attempt": None if following is None else f"in {following:.1f} s",
            "delivered": shown_time(row["delivered_ms"]),
        }
    )
    rows = [
        [shown_time(one["at_ms"]), one["status"] or None, f"{one['seconds']:.3f} s", one["text"]]
        for one in row["failures"]
    ]
    show_table(["FAILED", "STATUS", "TOOK", "BECAUSE"], rows, "  ")


@webhook.command("pause")
@operator_options
@click.argument("name")
def webhook_pause(name: str, **options: Any) -> None:
    """Deliver nothing to webhook NAME until it is resumed. Its events are collected."""
    admin_client(options).ask("POST", api_path("webhooks", name, "pause"))
    echo(f"Webhook {name} is paused.")


@webhook.command("resume")
@operator_options
@click.argument("name")
def webhook_resume(name: str, **options: Any) -> None:
    """Deliver to webhook NAME again."""
    admin_client(options).ask("POST", api_path("webhooks", name, "resume"))
    echo(f"Webhook {name} is resumed.")


@webhook.command("try")
@operator_options
@click.argument("name")
def webhook_try(name: str, **options: Any) -> None:
    """Make the next attempt to deliver to webhook NAME now."""
    answer = admin_client(options).ask("POST", api_path("webhooks", name, "try"))
    waited = "is tried now" if answer["waited"] else "waits for no attempt"
    echo(f"Webhook {name} {waited}.")
