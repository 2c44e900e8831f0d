"""`polymq message way`: where a message came from, where it is, and what happened to it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import click

from polymq.admin.client import AdminClient, api_path
from polymq.commands.access import admin_client, operator_options
from polymq.commands.tables import json_option, show_fields, show_json, show_table, shown_time
from polymq.terminal import echo
from polymq.way_text import (
    destination_text,
    event_text,
    merged,
    origin_text,
    published_text,
    search_text,
)

Row = dict[str, Any]

MIB: Final = 1024 * 1024
AT_ONCE_BYTES: Final = 64 * MIB
"""Of the log that one request reads."""


@click.command("way")
@operator_options
@click.argument("position", metavar="POSITION|ID")
@click.option(
    "--from",
    "from_position",
    type=click.IntRange(min=0),
    metavar="POSITION",
    help="Read the log from here on, where an earlier command ended. Default: the message.",
)
@click.option(
    "--log-mib",
    type=click.IntRange(min=0, max=1024 * 1024),
    default=1024,
    show_default=True,
    help="Read at most so many MiB of the log.",
)
@json_option
def message_way(
    position: str, from_position: int | None, log_mib: int, as_json: bool, **options: Any
) -> None:
    """Show where a message came from, where it is, and what happened.

    POSITION is a position that `polymq message list`, `read` or `find` prints; ID is a RocketMQ
    message id. What the message contains is not shown.

    What happened is read from the log behind the message. Where another message took its place,
    such as a dead letter, its position is shown, and that way can be asked for as well.

    Example: polymq message way 40213
    """
    found = fetch_way(admin_client(options), position, from_position, log_mib * MIB)
    if as_json:
        show_json(found)
        return
    show_way(found)
    if not found["complete"]:
        echo(f"Go on with --from {found['looked_until']}.", err=True)


def fetch_way(client: AdminClient, position: str, from_position: int | None, log_bytes: int) -> Row:
    """The way of a message, from as many requests as it takes. Raises Failure."""
    answers: list[Row] = []
    while True:
        query = {"from_position": from_position, "log_bytes": min(AT_ONCE_BYTES, log_bytes)}
        answer = client.ask("GET", api_path("messages", position, "way", query=query))
        answers.append(answer)
        read = answer["looked_until"] - answer["looked_from"]
        log_bytes -= read
        from_position = answer["looked_until"]
        if answer["complete"] or log_bytes <= 0 or read <= 0:
            return merged(answers)


def show_way(way: Row) -> None:
    """Print a way: what the message is, where it is, and what happened, in the order of time."""
    name = way["topic"] if way["tag"] is None else f"{way['topic']}/{way['tag']}"
    retained = {None: None, True: "yes", False: "not any more"}
    show_fields(
        {
            "Message": f"{name}, position {way['position']}",
            "Published": published_text(way),
            "Key": way["key"],
            "Takes the place of": None if way["origin"] is None else origin_text(way["origin"]),
            "Delivered at": shown_time(way["due_ms"]),
            "Retained": retained[way["retained"]],
        }
    )
    for death in way["deaths"]:
        echo(f"  given up by {death['queue']}: {death['reason']}, {death['count']} times")
    show_table(
        ("DESTINATION", "STATE", "OFFSET", "EXPIRES", ""),
        [
            (
                one["id"],
                one["state"],
                one["offset"],
                shown_time(one["expires_ms"]),
                destination_text(one),
            )
            for one in way["destinations"]
        ],
    )
    left = way["destinations_total"] - len(way["destinations"])
    if left:
        echo(f"There are {left:,} more destinations.")
    published = (_time(way["store_ms"]), "published", f"topic:{way['topic']}", "")
    events = [
        (_time(one["time_ms"]), one["what"], one["destination"], event_text(one))
        for one in way["events"]
    ]
    show_table(("TIME (UTC)", "WHAT", "WHERE", ""), [published, *events])
    echo(search_text(way))


def _time(ms: int) -> str:
    at = datetime.fromtimestamp(ms / 1000, UTC)
    return f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d}"
