"""`polymq message list` and `peek`: messages of a topic, and what waits in a queue."""

from __future__ import annotations

from base64 import b64decode
from datetime import UTC, datetime
from typing import Any, Final

import click

from polymq.commands.access import admin_client, operator_options
from polymq.commands.find import moment
from polymq.commands.tables import PAGE_COUNT, fetch_items, json_option, show_json
from polymq.terminal import echo, printable

Row = dict[str, Any]

BODY_BYTES_DEFAULT: Final = 4_096

_limit = click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=PAGE_COUNT,
    show_default=True,
    help="Maximum number of messages. 0: all.",
)
_body_bytes = click.option(
    "--body-bytes",
    type=click.IntRange(min=0, max=1024 * 1024),
    default=BODY_BYTES_DEFAULT,
    show_default=True,
    help="How much of each body is shown.",
)


def _show(message: Row, more: str = "") -> None:
    head = message["topic"] + ("" if message["tag"] is None else f"/{message['tag']}")
    at = datetime.fromtimestamp(message["store_ms"] / 1000, UTC)
    line = (
        f"{head}  queue {message['queue']}  offset {message['offset']}  "
        f"position {message['position']}  {at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d} UTC  "
        f"{message['body_bytes']:,} bytes{more}"
    )
    click.secho(printable(line), dim=True)
    body = message["body"]
    if body is None:
        body = b64decode(message["body_base64"]).decode("utf-8", "backslashreplace")
    cut = "" if message["body_complete"] else " ..."
    echo(printable(body, allowed="\n\t") + cut)


@click.command("list")
@operator_options
@click.argument("topic")
@click.option(
    "--queue",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Number of the queue of the topic.",
)
@click.option("--offset", type=click.IntRange(min=0), help="Begin at this offset of the queue.")
@click.option("--last", type=click.IntRange(min=0), help="Begin so many messages before the end.")
@click.option(
    "--since",
    callback=moment,
    metavar="TIME",
    help="Only messages stored at this time or later: 2h (ago), 2026-11-21T10:00 (UTC).",
)
@click.option(
    "--until", callback=moment, metavar="TIME", help="Only messages stored at this time or earlier."
)
@click.option("--tag", help="Only messages with this tag.")
@click.option("--key", help="Only messages with this key, of all queues, the newest first.")
@_limit
@_body_bytes
@json_option
def message_list(
    topic: str,
    queue: int,
    offset: int | None,
    last: int | None,
    since: int | None,
    until: int | None,
    tag: str | None,
    key: str | None,
    limit: int,
    body_bytes: int,
    as_json: bool,
    **options: Any,
) -> None:
    """List messages of TOPIC in the order of their offsets.

    Reading removes nothing and does not affect subscribers.
    """
    query = {
        "queue": queue,
        "offset": offset,
        "last": last,
        "since_ms": since,
        "until_ms": until,
        "tag": tag,
        "key": key,
        "body_bytes": body_bytes,
    }
    path = ("topics", topic, "messages")
    rows = fetch_items(admin_client(options), path, query, limit)["items"]
    if as_json:
        show_json(rows)
        return
    for row in rows:
        _show(row)
    if not rows:
        echo(f"There are no such messages in {topic}.", err=True)


@click.command("peek")
@operator_options
@click.argument("queue")
@_limit
@_body_bytes
@json_option
def message_peek(queue: str, limit: int, body_bytes: int, as_json: bool, **options: Any) -> None:
    """Show what waits in QUEUE, and leave it there.

    The messages come in the order in which consumers get them. Those that a consumer has are not
    among them.
    """
    path = ("queues", queue, "messages")
    rows = fetch_items(admin_client(options), path, {"body_bytes": body_bytes}, limit)["items"]
    if as_json:
        show_json(rows)
        return
    for row in rows:
        _show(row["message"], "  redelivered" if row["redelivered"] else "")
    if not rows:
        echo(f"Nothing waits in {queue}.", err=True)
