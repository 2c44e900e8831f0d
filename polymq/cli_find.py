"""`polymq message find` and `polymq message show`: single messages of a running server."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import click

from polymq.admin_client import AdminClient, StoredMessage
from polymq.cli_access import as_options
from polymq.cli_options import config_option, data_flag
from polymq.errors import ExitCode
from polymq.terminal import echo

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


def add_commands(
    group: click.Group,
    client_of: Callable[[dict[str, Any]], AdminClient],
    show: Callable[[StoredMessage, str], None],
) -> None:
    """Put the commands into the group `message`.

    Args:
        client_of: the client for a command's options.
        show: writes one message.
    """
    format_flag = click.option(
        "--format",
        "form",
        type=click.Choice(["text", "json", "body"]),
        default="text",
        show_default=True,
        help="As in `polymq message read`.",
    )

    @group.command("find")
    @config_option
    @data_flag
    @as_options
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
    @format_flag
    def message_find(
        topic: str,
        key: str,
        since: int | None,
        until: int | None,
        count: int,
        form: str,
        **options: Any,
    ) -> int:
        """Find messages of TOPIC by a key, the newest first.

        A key is the id of a CloudEvent, the message-id of an AMQP message, or one of the KEYS or
        the UNIQ_KEY of a RocketMQ message.

        Example: polymq message find orders --key order-4711 --since 2h
        """
        found = client_of(options).find_messages(
            topic, key, since_ms=since, until_ms=until, count=count
        )
        for stored in found:
            show(stored, form)
        if not found and form == "text":
            echo(f"No message of {topic} has the key {key}.", err=True)
        return ExitCode.OK

    @group.command("show")
    @config_option
    @data_flag
    @as_options
    @click.argument("position")
    @format_flag
    def message_show(position: str, form: str, **options: Any) -> int:
        """Show the message at POSITION of the log.

        POSITION is a position that `polymq message read` or `find` prints, or a RocketMQ message
        id.
        """
        show(client_of(options).message(position), form)
        return ExitCode.OK
