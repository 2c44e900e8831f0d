"""`polymq queue`: commands that show queues, and purge or delete them."""

from __future__ import annotations

from typing import Any, Final

import click

from polymq.admin.client import api_path
from polymq.commands.access import admin_client, operator_options
from polymq.commands.queue_changes import queue_bind, queue_create, queue_unbind
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
from polymq.terminal import confirm, echo

Row = dict[str, Any]


@click.group()
def queue() -> None:
    """Create, show, pause, move, purge and delete queues.

    Queues are those of AMQP, and the subscriptions that applications pull over HTTP, whose queues
    are called %SUB% and their name. Looking at a queue takes nothing from it.

    NAME is the name of a queue. One that begins with a hyphen is written behind `--`.
    """


def _options(row: Row) -> str | None:
    names = [name for name in ("durable", "exclusive", "auto_delete") if row[name]]
    return " ".join(names) or None


def _paused(row: Row) -> str | None:
    if row["paused_ms"] is None:
        return None
    return f"since {shown_time(row['paused_ms'])} by {row['paused_by']}"


queue.add_command(queue_create)
queue.add_command(queue_bind)
queue.add_command(queue_unbind)

_COLUMNS: Final = {
    "NAME": lambda row: row["name"],
    "KIND": lambda row: row["kind"],
    "USER": lambda row: row["user"] or None,
    "OPTIONS": _options,
    "READY": lambda row: row["ready"],
    "UNACKNOWLEDGED": lambda row: row["unacknowledged"],
    "CONSUMERS": lambda row: row["consumers"],
    "PAUSED": lambda row: shown_time(row["paused_ms"]),
}


@queue.command("list")
@operator_options
@click.option("--user", help="Only queues that this user declared.")
@click.option("--prefix", help="Only queues whose names begin with this text.")
@click.option(
    "--kind",
    type=click.Choice(["all", "queue", "subscription"]),
    default="all",
    show_default=True,
    help="Only queues of AMQP, or only subscriptions over HTTP.",
)
@click.option(
    "--sort",
    type=click.Choice(["name", "ready", "unacknowledged", "consumers"]),
    default="name",
    show_default=True,
    help="By name, or by a number, the largest first.",
)
@click.option("--paused", is_flag=True, help="Only queues that are paused.")
@page_options
@json_option
def queue_list(
    user: str | None,
    prefix: str | None,
    kind: str,
    paused: bool,
    sort: str,
    limit: int,
    after: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """List queues with the number of their messages and consumers.

    Messages that are ready wait for a consumer. Unacknowledged ones were delivered, and are neither
    acknowledged nor given back.
    """
    query = {"user": user, "prefix": prefix, "kind": kind, "sort": sort, "after": after}
    if paused:
        query["paused"] = "true"
    answer = fetch_items(admin_client(options), ("queues",), query, limit)
    nothing = "There are no queues yet: clients declare them, or `polymq queue create NAME` does."
    if user or prefix or paused or after or kind != "all":
        nothing = "There is no such queue."
    print_list(answer, _COLUMNS, as_json=as_json, nothing=nothing)


@queue.command("show")
@operator_options
@click.argument("name")
@json_option
def queue_show(name: str, as_json: bool, **options: Any) -> None:
    """Show a queue, what waits in it, and its bindings."""
    row = admin_client(options).ask("GET", api_path("queues", name))
    if as_json:
        show_json(row)
        return
    least = "" if row["ready_bytes_complete"] else "at least "
    arguments = " ".join(f"{key}={value}" for key, value in sorted(row["arguments"].items()))
    show_fields(
        {
            "name": row["name"],
            "kind": row["kind"],
            "user": row["user"] or None,
            "options": _options(row),
            "arguments": arguments or None,
            "ready": f"{row['ready']:,} messages, {least}{row['ready_bytes']:,} bytes",
            "oldest": shown_time(row["oldest_ms"]),
            "unacknowledged": f"{row['unacknowledged']:,} messages",
            "consumers": f"{row['consumers']:,}",
            "paused": _paused(row),
        }
    )
    echo("bindings:" if row["bindings"] else "bindings: none")
    rows = [
        [one["exchange"] or "(default)", one["routing_key"], one["arguments"]]
        for one in row["bindings"]
    ]
    show_table(["EXCHANGE", "ROUTING KEY", "ARGUMENTS"], rows, "  ")


@queue.command("purge")
@operator_options
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def queue_purge(name: str, yes: bool, **options: Any) -> None:
    """Remove all messages that are ready in queue NAME.

    Messages that consumers have and did not acknowledge stay. Other queues keep their copies.
    """
    admin = admin_client(options)
    row = admin.ask("GET", api_path("queues", name))
    if not yes:
        confirm(f"Remove {row['ready']:,} messages from queue {name}?")
    answer = admin.ask("POST", api_path("queues", name, "purge"))
    echo(f"{answer['messages']:,} messages removed from queue {name}.")


@queue.command("move")
@operator_options
@click.argument("name")
@click.argument("to")
@click.option(
    "--count",
    type=click.IntRange(1, 100_000),
    default=1_000,
    show_default=True,
    help="At most so many, from the head on.",
)
@click.option("--dry-run", is_flag=True, help="Only say how many messages it would concern.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
def queue_move(
    name: str, to: str, count: int, dry_run: bool, yes: bool, as_json: bool, **options: Any
) -> None:
    """Move the messages that are ready in queue NAME to queue TO.

    Messages that consumers have and did not acknowledge stay.
    """
    admin, path = admin_client(options), api_path("queues", name, "move")
    body: Row = {"to": to, "count": count}
    found = admin.ask("POST", path, body | {"dry_run": True})
    if not dry_run:
        if not yes:
            confirm(f"Move {found['messages']:,} messages from queue {name} to queue {to}?")
        found = admin.ask("POST", path, body)
    if as_json:
        show_json(found)
        return
    verb = "would be moved" if dry_run else "moved"
    echo(f"{found['messages']:,} messages {verb} from queue {name} to queue {to}.")
    for reason, number in found["failed"].items():
        echo(f"{number:,} messages stay: {reason}")
    if not found["complete"]:
        echo(f"Queue {name} has more messages.")


@queue.command("pause")
@operator_options
@click.argument("name")
def queue_pause(name: str, **options: Any) -> None:
    """Hand out nothing of queue NAME until it is resumed.

    Publishing goes on. Consumers stay connected, and keep the messages that they have.
    """
    admin_client(options).ask("POST", api_path("queues", name, "pause"))
    echo(f"Queue {name} is paused.")


@queue.command("resume")
@operator_options
@click.argument("name")
def queue_resume(name: str, **options: Any) -> None:
    """Hand out the messages of queue NAME again."""
    admin_client(options).ask("POST", api_path("queues", name, "resume"))
    echo(f"Queue {name} is resumed.")


@queue.command("delete")
@operator_options
@click.argument("name")
@click.option("--if-unused", is_flag=True, help="Only if it has no consumers.")
@click.option("--if-empty", is_flag=True, help="Only if no messages are ready in it.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def queue_delete(name: str, if_unused: bool, if_empty: bool, yes: bool, **options: Any) -> None:
    """Delete queue NAME with its messages and bindings. Its consumers are cancelled."""
    admin = admin_client(options)
    row = admin.ask("GET", api_path("queues", name))
    if not yes:
        count = row["ready"] + row["unacknowledged"]
        confirm(f"Delete queue {name} with {count:,} messages and {row['consumers']:,} consumers?")
    query = {"if_unused": "true"} if if_unused else {}
    query |= {"if_empty": "true"} if if_empty else {}
    admin.ask("DELETE", api_path("queues", name, query=query))
    echo(f"Queue {name} is deleted.")
