"""Consumers: who reads what, how far they are, and how far behind."""

from __future__ import annotations

from typing import Any

from polymq.console.details import Action, show_details
from polymq.console.fields import show_fields, show_rows
from polymq.console.forms import Form
from polymq.console.lists import Column, ListScreen, number_column, opens, show_list, text_column
from polymq.console.reader_forms import reader_forms
from polymq.console.shell import Console, frame
from polymq.console.texts import duration, moment, number

PATH = "/consumers"

LIST = ListScreen(
    parts=("consumers",),
    key="id",
    columns=(
        text_column("Name", "name"),
        text_column("Kind", "kind"),
        text_column("User", "user"),
        number_column("Waiting", "waiting"),
        Column(label="Trend", trend=lambda row: row["waiting"]),
        Column(label="Lag", text=lambda row: duration(row["lag_seconds"]), align="right"),
        number_column("Unacknowledged", "unacknowledged"),
        number_column("Consumers", "consumers"),
    ),
    sorts={"waiting": "waiting", "id": "kind and name"},
    filters={
        "kind": {
            "all": "all",
            "queue": "AMQP queues",
            "subscription": "subscriptions",
            "session": "MQTT sessions",
            "share": "shared subscriptions",
            "group": "consumer groups",
        }
    },
    opened=opens(PATH),
)


def show_readers(console: Console) -> None:
    """The list."""
    with frame(console, "Consumers", PATH):
        show_list(console, LIST)


def show_reader(console: Console, identity: str) -> None:
    """One reader."""
    kind = identity.partition(":")[0]
    actions: list[Action | Form] = []
    if kind in ("queue", "subscription", "group"):
        actions = [*reader_forms(identity), _skip(identity)]
    with frame(console, f"Consumer {identity}", PATH):
        show_details(console, ("consumers", identity), _show, actions=actions)


def _skip(identity: str) -> Action:
    return Action(
        label="Skip all that waits",
        icon="fast_forward",
        right="operate",
        method="POST",
        parts=("consumers", identity, "reset"),
        body={"to": "newest"},
        question=lambda row: (
            f"Skip {number(row.get('waiting'))} messages? {identity} does not get them any more."
        ),
        done=lambda answer: f"{number(answer.get('skipped'))} messages were skipped",
    )


def _paused(row: dict[str, Any]) -> str:
    pauses = [
        f"{one['topic']} since {moment(one['since_ms'])} by {one['by']}".strip()
        for one in row["pauses"]
    ]
    return ", ".join(pauses) or "-"


def _show(row: dict[str, Any]) -> None:
    show_fields(
        {
            "Kind": row["kind"],
            "User": row["user"] or "-",
            "Waiting": number(row["waiting"]),
            "Oldest": moment(row["oldest_ms"]),
            "Lag": duration(row["lag_seconds"]),
            "Unacknowledged": number(row["unacknowledged"]),
            "Paused": _paused(row),
        }
    )
    show_rows(
        "Position",
        ("Topic", "Queue", "Position", "End", "Waiting", "Unacknowledged", "Oldest"),
        [
            (
                one["topic"] or "-",
                one["queue"],
                number(one["position"]),
                number(one["end"]),
                number(one["waiting"]),
                number(one["unacknowledged"]),
                moment(one["oldest_ms"]),
            )
            for one in row["queues"]
        ],
    )
    show_rows(
        "Who reads",
        ("Name", "User", "Prefetch", "Unacknowledged", "Reads"),
        [
            (
                one["name"],
                one["user"] or "-",
                number(one["prefetch"]),
                number(one["unacknowledged"]),
                ", ".join(one["reads"]) or "-",
            )
            for one in row["consumer_list"]
        ],
    )
