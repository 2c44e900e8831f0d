"""`polymq log` and `polymq audit`: the last lines that the running server has logged."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from polymq.admin.client import AdminClient
from polymq.commands.access import admin_client, operator_options
from polymq.commands.tables import fetch_items, show_json, show_table, shown_time
from polymq.terminal import echo, leave_quietly, printable

Command = TypeVar("Command", bound=Callable[..., Any])
Row = dict[str, Any]

LINES_DEFAULT: Final = 100
FOLLOW_SECONDS: Final = 1.0
"""Between two looks for new lines."""


def line_options(command: Command) -> Command:
    """What both commands have."""
    for option in (
        click.option(
            "--json",
            "as_json",
            is_flag=True,
            help="Print one JSON document; with --follow, one JSON object per line.",
        ),
        click.option("--follow", "-f", is_flag=True, help="Go on with new lines, until Ctrl-C."),
        click.option(
            "--limit",
            type=click.IntRange(min=0),
            default=LINES_DEFAULT,
            show_default=True,
            help="Maximum number of lines to begin with. 0: all that the server has kept.",
        ),
        click.option("--text", help="Only lines that have this text, in upper or lower case."),
        click.option("--user", help="Only lines about this user, or about what it did."),
        operator_options,
    ):
        command = option(command)
    return command


@click.command()
@line_options
def audit(**options: Any) -> None:
    """Show the last lines of the audit log.

    The newest line is the last. There are logins, refusals, and what operators have changed. The
    server keeps the last 2,000 lines since its start. Older ones are where its stderr goes.

    Example: polymq audit --user ann --limit 20
    """
    _show("audit", {}, options)


@click.command()
@line_options
@click.option(
    "--level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="debug",
    show_default=True,
    help="Lowest severity.",
)
def log(level: str, **options: Any) -> None:
    """Show the last lines that the server has logged.

    The newest line is the last. Those of the audit log are shown by `polymq audit`. The server
    keeps the last 2,000 lines since its start. Older ones, and the stacks of errors, are where its
    stderr goes.

    Example: polymq log --level warning --follow
    """
    _show("log", {"level": level}, options)


def _show(path: str, query: Row, options: Row) -> None:
    query |= {"user": options.pop("user"), "text": options.pop("text")}
    limit, follow = options.pop("limit"), options.pop("follow")
    as_json = options.pop("as_json")
    admin = admin_client(options)
    answer = fetch_items(admin, (path,), query, limit)
    try:
        if follow:
            _follow(admin, path, query, answer["items"], as_json=as_json)
        elif as_json:
            show_json(answer)
        else:
            _show_table(answer)
    except BrokenPipeError:
        leave_quietly()  # whoever reads our output has enough (`| head`)


def _show_table(answer: Row) -> None:
    items = answer["items"]
    if not items:
        echo("There is no such line.", err=True)
    show_table(
        ["TIME", "LEVEL", "EVENT", "VALUES"],
        [
            [shown_time(row["time_ms"]), row["level"], row["event"], _values(row)]
            for row in reversed(items)
        ],
    )
    if answer["next"] is not None:
        echo(
            f"These are {len(items):,} of {answer['total']:,} lines: use --limit 0 for all.",
            err=True,
        )


def _follow(admin: AdminClient, path: str, query: Row, begin: list[Row], *, as_json: bool) -> None:
    """Print lines as they come, until the server is gone."""
    rows, last = begin, 0
    while True:
        for row in reversed(rows):
            last = row["number"]
            if as_json:
                echo(json.dumps(row, ensure_ascii=False))
            else:
                parts = [shown_time(row["time_ms"]), row["level"], row["event"], _values(row)]
                echo(printable("  ".join(part for part in parts if part)))
        time.sleep(FOLLOW_SECONDS)
        rows = fetch_items(admin, (path,), {**query, "since": last}, 0)["items"]


def _values(row: Row) -> str:
    return " ".join(f"{name}={value}" for name, value in row["values"].items())
