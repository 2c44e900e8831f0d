"""`polymq top`: what a running server is doing, again and again."""

from __future__ import annotations

import time
from typing import Any, Final

import click

from polymq.admin.client import AdminClient, api_path
from polymq.commands.access import admin_client, operator_options
from polymq.commands.consumer import shown_lag
from polymq.commands.tables import json_option, show_json, show_table
from polymq.commands.watching import SECONDS_MIN, show_again
from polymq.terminal import echo

Row = dict[str, Any]

ROWS_DEFAULT: Final = 8
SECONDS_DEFAULT: Final = 2.0
PROTOCOLS: Final = ("mqtt", "amqp", "http", "rocketmq")


class Look:
    """What one look finds, and what has changed since the one before."""

    def __init__(self, admin: AdminClient, rows: int) -> None:
        self._admin = admin
        self._rows = rows
        self._before: tuple[float, dict[str, int]] | None = None

    def value(self) -> Row:
        """Everything, as JSON. Raises Failure."""
        admin, rows = self._admin, self._rows
        topics = admin.ask("GET", api_path("topics", query={"sort": "messages", "limit": 500}))
        ends = {
            one["name"]: sum(queue["end_offset"] for queue in one["queues"])
            for one in topics["items"]
        }
        rates = self._rates(ends)
        busiest = sorted(rates, key=lambda name: -rates[name])[:rows]
        counts = {
            name: admin.ask("GET", api_path("connections", query={"protocol": name, "limit": 1}))[
                "total"
            ]
            for name in PROTOCOLS
        }
        queues = admin.ask("GET", api_path("queues", query={"sort": "ready", "limit": rows}))
        readers = admin.ask("GET", api_path("consumers", query={"sort": "waiting", "limit": rows}))
        return {
            "connections": counts,
            "messages_per_second": round(sum(rates.values()), 1),
            "topics": [{"name": name, "per_second": round(rates[name], 1)} for name in busiest],
            "queues": queues["items"],
            "readers": readers["items"],
        }

    def _rates(self, ends: dict[str, int]) -> dict[str, float]:
        """Messages a second of each topic since the look before; nothing in the first."""
        now, before = time.monotonic(), self._before
        self._before = now, ends
        if before is None:
            return {}
        seconds = max(now - before[0], 0.001)
        return {
            name: max(0, end - before[1].get(name, end)) / seconds for name, end in ends.items()
        }


def _show(value: Row) -> None:
    counts = ", ".join(f"{name} {count:,}" for name, count in value["connections"].items())
    echo(f"connections: {counts}")
    echo(f"messages:    {value['messages_per_second']:,.1f} a second")
    _block("TOPIC", ["PER SECOND"], [[one["name"], one["per_second"]] for one in value["topics"]])
    _block(
        "QUEUE",
        ["READY", "UNACKNOWLEDGED", "CONSUMERS"],
        [
            [one["name"], one["ready"], one["unacknowledged"], one["consumers"]]
            for one in value["queues"]
        ],
    )
    _block(
        "READER",
        ["WAITING", "UNACKNOWLEDGED", "BEHIND"],
        [
            [one["id"], one["waiting"], one["unacknowledged"], shown_lag(one["lag_seconds"])]
            for one in value["readers"]
        ],
    )


def _block(name: str, headings: list[str], rows: list[list[object]]) -> None:
    if rows:
        echo("")
    show_table([name, *headings], rows)


@click.command()
@operator_options
@click.option("--once", is_flag=True, help="Look once, and end.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=SECONDS_MIN),
    default=SECONDS_DEFAULT,
    show_default=True,
    help="Between two looks.",
)
@click.option(
    "--rows",
    type=click.IntRange(min=1, max=100),
    default=ROWS_DEFAULT,
    show_default=True,
    help="Topics, queues and readers that are shown.",
)
@json_option
def top(once: bool, seconds: float, rows: int, as_json: bool, **options: Any) -> None:
    """Show what a running server is doing, until Ctrl-C.

    Connections by protocol, the topics that most is published to, the fullest queues, and the
    slowest readers. Rates are those since the look before, of the 500 topics with the most
    messages. A server that is restarted is waited for.
    """
    admin = admin_client(options)
    look = Look(admin, rows)
    look.value()
    time.sleep(SECONDS_MIN)  # a rate takes two looks

    def show() -> None:
        value = look.value()
        if as_json:
            show_json(value)
        else:
            _show(value)

    show_again(None if once else seconds, admin, show)
