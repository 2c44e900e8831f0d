"""`polymq deadletter`: commands that show undeliverable messages, and send them on."""

from __future__ import annotations

from typing import Any, Final

import click

from polymq.admin.client import AdminClient, api_path
from polymq.commands.access import admin_client, operator_options
from polymq.commands.tables import (
    fetch_items,
    json_option,
    page_options,
    print_list,
    show_json,
    show_table,
    shown_time,
)
from polymq.errors import ExitCode, Failure
from polymq.terminal import confirm, echo

Row = dict[str, Any]

LIMIT_MAX: Final = 10_000
"""Of one request; the command asks as often as it takes."""

_COLUMNS: Final = {
    "LOCATION": lambda row: row["location"],
    "KIND": lambda row: row["kind"],
    "MESSAGES": lambda row: row["messages"],
}


@click.group()
def deadletter() -> None:
    """Show dead letters of all protocols, and send them on.

    LOCATION is where they are, as `polymq deadletter list` shows it: queue:NAME or topic:NAME. Any
    queue may be named.
    """


@deadletter.command("list")
@operator_options
@click.option("--prefix", help="Only places that begin with this text.")
@page_options
@json_option
def deadletter_list(
    prefix: str | None, limit: int, after: str | None, as_json: bool, **options: Any
) -> None:
    """List the queues and topics that have dead letters.

    amqp: a queue that a dead letter exchange leads to. rocketmq, retry: what a consumer group gave
    up, and what it gets again by itself. http: what a subscription gave up. set_aside: what the
    server had to move, and fits nowhere.
    """
    query = {"prefix": prefix, "after": after}
    answer = fetch_items(admin_client(options), ("dead-letters",), query, limit)
    print_list(
        answer, _COLUMNS, as_json=as_json, nothing="There are no queues or topics for dead letters."
    )


@deadletter.command("show")
@operator_options
@click.argument("location")
@json_option
def deadletter_show(location: str, as_json: bool, **options: Any) -> None:
    """Show the dead letters at LOCATION by reason and source."""
    row = admin_client(options).ask("GET", api_path("dead-letters", location))
    if as_json:
        show_json(row)
        return
    rows = [
        [
            one["reason"],
            one["source"] or None,
            one["messages"],
            shown_time(one["oldest_ms"]),
            one["target"],
        ]
        for one in row["groups"]
    ]
    show_table(["REASON", "SOURCE", "MESSAGES", "OLDEST", "CAME FROM"], rows)
    if not rows:
        echo(f"There are no dead letters at {location}.", err=True)
    if row["looked_at"] < row["messages"]:
        echo(f"These are the first {row['looked_at']:,} of {row['messages']:,}.", err=True)


@deadletter.command("redrive")
@operator_options
@click.argument("location")
@click.option("--reason", help="Only those with this reason, as `show` has it.")
@click.option("--source", help="Only those of this source, as `show` has it.")
@click.option("--limit", type=click.IntRange(min=1), help="At most so many.")
@click.option("--exchange", help="Send them to this exchange; empty: the default exchange.")
@click.option("--routing-key", default="", help="With --exchange.")
@click.option("--topic", help="Send them to this topic.")
@click.option("--tag", help="With --topic.")
@click.option("--dry-run", is_flag=True, help="Only say how many it would concern.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
def deadletter_redrive(
    location: str,
    reason: str | None,
    source: str | None,
    limit: int | None,
    exchange: str | None,
    routing_key: str,
    topic: str | None,
    tag: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Send the dead letters at LOCATION on.

    Each goes where it was published first, or all go to a target. Each leaves its location and is
    stored at the target in one step, also if the server crashes. The exit code is 1 if some have to
    stay where they are.
    """
    if exchange is None and topic is None and (routing_key or tag is not None):
        raise Failure(ExitCode.USAGE, "--routing-key is for --exchange, and --tag for --topic")
    body: Row = {
        "reason": reason,
        "source": source,
        "exchange": exchange,
        "routing_key": routing_key,
        "topic": topic,
        "tag": tag,
    }
    admin = admin_client(options)
    path = api_path("dead-letters", location, "redrive")
    most = LIMIT_MAX if limit is None else min(limit, LIMIT_MAX)
    found = admin.ask("POST", path, body | {"dry_run": True, "limit": most})
    if not dry_run:
        if not yes:
            least = "" if found["complete"] or limit == found["messages"] else "at least "
            confirm(f"Send on {least}{found['messages']:,} messages from {location}?")
        found = _redrive(admin, path, body, limit)
    code = ExitCode.FAILED if found["failed"] else ExitCode.OK
    if as_json:
        show_json(found)
        return code
    verb = "would be sent on" if dry_run else "were sent on"
    echo(f"{found['messages']:,} messages of {location} {verb}.")
    for text, count in sorted(found["failed"].items()):
        echo(f"{count:,} stay where they are: {text}.", err=True)
    if not found["complete"] and found["messages"] != limit:
        echo("There are more dead letters, and not all were looked at.", err=True)
    return code


def _redrive(admin: AdminClient, path: str, body: Row, limit: int | None) -> Row:
    """As many requests as it takes; the sum of their answers. Raises Failure."""
    total: Row = {"messages": 0, "failed": {}, "complete": False}
    while True:
        left = LIMIT_MAX if limit is None else min(limit - total["messages"], LIMIT_MAX)
        answer = admin.ask("POST", path, body | {"limit": left})
        total["messages"] += answer["messages"]
        total["failed"] = answer["failed"]  # they are looked at again each time
        total["complete"] = answer["complete"]
        is_enough = limit is not None and total["messages"] >= limit
        if answer["complete"] or is_enough or not answer["messages"]:
            return total
