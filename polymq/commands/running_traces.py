"""`polymq mqtt trace`: the traces that run, whoever began them. A part of `mqtt.py`."""

from __future__ import annotations

from typing import Any, Final

import click

from polymq.admin.client import api_path
from polymq.commands.access import admin_client, operator_options
from polymq.commands.tables import fetch_items, json_option, print_list, shown_time
from polymq.terminal import echo

_COLUMNS: Final = {
    "NUMBER": lambda row: str(row["number"]),
    "OF": lambda row: row["client_id"] or row["topic"] or row["address"],
    "BY": lambda row: row["by"],
    "SINCE": lambda row: shown_time(row["started_ms"]),
    "CONNECTIONS": lambda row: row["connections"],
    "DROPPED": lambda row: row["dropped"],
}


@click.group()
def trace() -> None:
    """Show and end the traces that run. `polymq trace` begins one."""


@trace.command("list")
@operator_options
@json_option
def trace_list(as_json: bool, **options: Any) -> None:
    """List the traces that run."""
    answer = fetch_items(admin_client(options), ("mqtt", "traces"), {}, 0)
    print_list(answer, _COLUMNS, as_json=as_json, nothing="No trace runs.")


@trace.command("end")
@operator_options
@click.argument("number")
def trace_end(number: str, **options: Any) -> None:
    """End the trace NUMBER. Whoever reads it sees no more of it."""
    admin_client(options).request("DELETE", api_path("mqtt", "traces", number))
    echo(f"Trace {number} has ended.")
