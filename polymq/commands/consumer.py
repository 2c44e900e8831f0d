"""`polymq consumer`: commands that show how far readers are, and let one go on elsewhere."""

from __future__ import annotations

from typing import Any, Final

import click

from polymq.admin.client import api_path
from polymq.commands.access import admin_client, operator_options
from polymq.commands.find import moment
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
from polymq.errors import ExitCode, Failure
from polymq.terminal import confirm, echo

Row = dict[str, Any]


@click.group()
def consumer() -> None:
    """Show, pause and move the readers of messages.

    A reader is an AMQP queue with its consumers, a subscription over HTTP, a persistent session or
    a shared subscription of MQTT, or a consumer group of RocketMQ. Its ID is its kind, a colon and
    its name, such as queue:orders or group:billing.
    """


def shown_lag(seconds: float | None) -> str | None:
    """How far behind a reader is."""
    if seconds is None:
        return None
    if seconds < 120:
        return f"{seconds:.1f} s"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    raise AssertionError(seconds)


_COLUMNS: Final = {
    "ID": lambda row: row["id"],
    "USER": lambda row: row["user"] or None,
    "CONSUMERS": lambda row: row["consumers"],
    "WAITING": lambda row: row["waiting"],
    "UNACKNOWLEDGED": lambda row: row["unacknowledged"],
    "BEHIND": lambda row: shown_lag(row["lag_seconds"]),
    "PAUSED": lambda row: shown_time(min((one["since_ms"] for one in row["pauses"]), default=None)),
}


@consumer.command("list")
@operator_options
@click.option(
    "--kind",
    type=click.Choice(["all", "queue", "subscription", "session", "share", "group"]),
    default="all",
    show_default=True,
    help="Only readers of this kind.",
)
@click.option("--user", help="Only readers of this user.")
@click.option("--prefix", help="Only readers whose names begin with this text.")
@click.option(
    "--sort",
    type=click.Choice(["id", "waiting"]),
    default="id",
    show_default=True,
    help="By id, or by the messages that wait, the most first.",
)
@page_options
@watch_option
@json_option
def consumer_list(
    kind: str,
    user: str | None,
    prefix: str | None,
    sort: str,
    limit: int,
    after: str | None,
    watch: float | None,
    as_json: bool,
    **options: Any,
) -> None:
    """List readers with what waits for them.

    BEHIND is how long ago the oldest message was stored that the reader has not got.
    """
    query = {"kind": kind, "user": user, "prefix": prefix, "sort": sort, "after": after}
    admin = admin_client(options)

    def show() -> None:
        answer = fetch_items(admin, ("consumers",), query, limit)
        print_list(answer, _COLUMNS, as_json=as_json, nothing="There is no such reader.")

    show_again(watch, admin, show)


@consumer.command("show")
@operator_options
@click.argument("id")
@watch_option
@json_option
def consumer_show(id: str, watch: float | None, as_json: bool, **options: Any) -> None:
    """Show the reader ID: its position in each queue, and its consumers."""
    admin = admin_client(options)

    def show() -> None:
        row = admin.ask("GET", api_path("consumers", id))
        if as_json:
            show_json(row)
        else:
            _show(row)

    show_again(watch, admin, show)


def _paused(pause: Row) -> str:
    topic = f"{pause['topic']} " if pause["topic"] else ""
    return f"{topic}since {shown_time(pause['since_ms'])} by {pause['by']}"


def _show(row: Row) -> None:
    show_fields(
        {
            "id": row["id"],
            "user": row["user"] or None,
            "waiting": f"{row['waiting']:,} messages",
            "unacknowledged": f"{row['unacknowledged']:,} messages",
            "oldest": shown_time(row["oldest_ms"]),
            "behind": shown_lag(row["lag_seconds"]),
            "consumers": f"{row['consumers']:,}",
            "paused": "; ".join(map(_paused, row["pauses"])) or None,
        }
    )
    heading = ["TOPIC", "QUEUE", "POSITION", "END", "WAITING", "UNACKNOWLEDGED", "OLDEST"]
    show_table(
        heading,
        [
            [
                one["topic"] or None,
                one["queue"],
                one["position"],
                one["end"],
                one["waiting"],
                one["unacknowledged"],
                shown_time(one["oldest_ms"]),
            ]
            for one in row["queues"]
        ],
        "  ",
    )
    show_table(
        ["CONSUMER", "CONNECTION", "USER", "PREFETCH", "UNACKNOWLEDGED", "READS"],
        [
            [
                one["name"],
                one["connection"] or None,
                one["user"] or None,
                one["prefetch"],
                one["unacknowledged"],
                ", ".join(one["reads"]) or None,
            ]
            for one in row["consumer_list"]
        ],
        "  ",
    )


@consumer.command("pause")
@operator_options
@click.argument("id")
@click.option("--topic", help="The topic, of a consumer group that reads several.")
@json_option
def consumer_pause(id: str, topic: str | None, as_json: bool, **options: Any) -> None:
    """Let the reader ID have nothing more until it is resumed.

    A queue and a subscription are paused as by `polymq queue pause`, and a consumer group of
    RocketMQ in one topic. Consumers stay connected, and keep the messages that they have.
    """
    _change("pause", id, topic, as_json, options)


@consumer.command("resume")
@operator_options
@click.argument("id")
@click.option("--topic", help="The topic, of a consumer group that reads several.")
@json_option
def consumer_resume(id: str, topic: str | None, as_json: bool, **options: Any) -> None:
    """Let the reader ID have its messages again."""
    _change("resume", id, topic, as_json, options)


def _change(verb: str, id: str, topic: str | None, as_json: bool, options: Row) -> None:
    answer = admin_client(options).ask("POST", api_path("consumers", id, verb), {"topic": topic})
    if as_json:
        show_json(answer)
    else:
        echo(f"{id} is {verb}d{f' in {topic}' if topic else ''}.")


@consumer.command("reset")
@operator_options
@click.argument("id")
@click.option("--oldest", is_flag=True, help="Go on at the first message that is there.")
@click.option("--newest", is_flag=True, help="Go on at the end: skip all that waits.")
@click.option(
    "--time",
    callback=moment,
    metavar="TIME",
    help="Go on at the first message stored then: 2h (ago), 2026-11-21T10:00 (UTC).",
)
@click.option("--offset", type=click.IntRange(min=0), help="Go on at this offset of one queue.")
@click.option("--topic", help="The topic, of a consumer group that reads several.")
@click.option("--queue", type=click.IntRange(min=0), help="Only this queue of the topic.")
@click.option("--dry-run", is_flag=True, help="Only say how many messages it would concern.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
def consumer_reset(
    id: str,
    oldest: bool,
    newest: bool,
    time: int | None,
    offset: int | None,
    topic: str | None,
    queue: int | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Let the reader ID go on elsewhere.

    A consumer group of RocketMQ goes back or forward. An AMQP queue and a subscription only go
    forward: what waits before the place is removed.
    """
    body: Row = {"topic": topic, "queue": queue}
    chosen = {"oldest": oldest, "newest": newest, "time": time, "offset": offset}
    targets = [name for name, value in chosen.items() if value not in (None, False)]
    if len(targets) != 1:
        raise Failure(ExitCode.USAGE, "use one of --oldest, --newest, --time and --offset")
    body |= {"to": targets[0], "time_ms": time, "offset": offset}
    admin, path = admin_client(options), api_path("consumers", id, "reset")
    found = admin.ask("POST", path, body | {"dry_run": True})
    if not dry_run:
        if not yes:
            confirm(f"Move {id}: {found['skipped']:,} messages skipped, {found['again']:,} again?")
        found = admin.ask("POST", path, body)
    if as_json:
        show_json(found)
        return
    headings = ["TOPIC", "QUEUE", "BEFORE", "AFTER", "SKIPPED", "AGAIN"]
    rows = [
        [one["topic"] or None, *(one[name.lower()] for name in headings[1:])]
        for one in found["queues"]
    ]
    show_table(headings, rows)
    verb = "would be" if dry_run else "are"
    echo(f"{found['skipped']:,} messages {verb} skipped, {found['again']:,} {verb} read again.")
