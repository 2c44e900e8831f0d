"""`polymq message find` and `polymq message show`: single messages of a running server."""

from __future__ import annotations

import re
import sys
import time
from datetime import UTC, datetime
from typing import Any, Final

import click

from polymq.admin.client import StoredMessage
from polymq.commands.access import admin_client, operator_options
from polymq.commands.options import format_option
from polymq.terminal import echo, printable

UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def moment(_context: click.Context, _option: click.Parameter, text: str | None) -> int | None:
    """The time that an option's text says, in milliseconds since 1970: `2026-11-21T10:00` (UTC
    where it names no zone), or `15m`, `2h`, `3d` ago. Raises BadParameter."""
    if text is None:
        return None
    ago = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if ago:
        return max(0, int(time.time() * 1000) - int(ago[1]) * UNITS[ago[2]] * 1000)
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise click.BadParameter(
            f"{text!r} is not a time: use 2026-11-21T10:00, or 15m, 2h, 3d (ago)"
        ) from error
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return max(0, int(found.timestamp() * 1000))


def show_message(stored: StoredMessage, form: str) -> None:
    """Write one message in the form that `--format` names."""
    output = sys.stdout.buffer
    if form == "body":
        output.write(stored.body)
    elif form == "json":
        output.write(printable(stored.as_json()).encode() + b"\n")
    else:
        at = datetime.fromtimestamp(stored.store_ms / 1000, UTC)
        head = stored.topic if stored.tag is None else f"{stored.topic}/{stored.tag}"
        head = printable(head)
        line = (
            f"{head}  queue {stored.queue}  offset {stored.offset}  position {stored.position}  "
            f"{at:%Y-%m-%d %H:%M:%S}.{stored.store_ms % 1000:03d} UTC  "
            f"{len(stored.body):,} bytes"
        )
        output.write(click.style(line, dim=True).encode() if output.isatty() else line.encode())
        output.write(b"\n" + stored.printable_body().encode() + b"\n")
    output.flush()


@click.command("find")
@operator_options
@click.argument("topic")
@click.option(
    "--key",
    required=True,
    help="Id of a CloudEvent, message-id of an AMQP message, or key of a RocketMQ message.",
)
@click.option(
    "--since",
    callback=moment,
    metavar="TIME",
    help="Only messages stored at this time or later: 2h (ago), 2026-11-21T10:00 (UTC).",
)
@click.option(
    "--until",
    callback=moment,
    metavar="TIME",
    help="Only messages stored at this time or earlier.",
)
@click.option(
    "--count",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="Maximum number of messages.",
)
@format_option()
def message_find(
    topic: str,
    key: str,
    since: int | None,
    until: int | None,
    count: int,
    form: str,
    **options: Any,
) -> None:
    """Find messages of TOPIC by a key, the newest first.

    A key is the id of a CloudEvent, the message-id of an AMQP message, or one of the KEYS or
    the UNIQ_KEY of a RocketMQ message.

    Example: polymq message find orders --key order-4711 --since 2h
    """
    found = admin_client(options).find_messages(
        topic, key, since_ms=since, until_ms=until, count=count
    )
    for stored in found:
        show_message(stored, form)
    if not found and form == "text":
        echo(f"No message of {topic} has the key {key}.", err=True)


@click.command("show")
@operator_options
@click.argument("position")
@format_option()
def message_show(position: str, form: str, **options: Any) -> None:
    """Show the message at POSITION of the log.

    POSITION is a position that `polymq message read` or `find` prints, or a RocketMQ message
    id.
    """
    show_message(admin_client(options).message(position), form)
