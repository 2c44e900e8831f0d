"""Queues and subscriptions."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from nicegui import ui

from polymq.console import waiting
from polymq.console.details import Action, show_actions, show_details
from polymq.console.fields import show_fields, show_rows
from polymq.console.forms import Form
from polymq.console.lists import (
    Column,
    ListScreen,
    number_column,
    opens,
    show_list,
    text_column,
)
from polymq.console.queue_forms import new_queue, queue_forms
from polymq.console.shell import Console, frame
from polymq.console.texts import moment, number, size

PATH = "/queues"


def _options(row: dict[str, Any]) -> str:
    names = [name for name in ("durable", "exclusive", "auto_delete") if row[name]]
    return ", ".join(name.replace("_", "-") for name in names) or "-"


def _paused(row: dict[str, Any]) -> str:
    if row["paused_ms"] is None:
        return "-"
    return f"since {moment(row['paused_ms'])} by {row['paused_by']}"


LIST = ListScreen(
    parts=("queues",),
    key="name",
    columns=(
        text_column("Name", "name"),
        text_column("Kind", "kind"),
        text_column("User", "user"),
        Column(label="Options", text=_options),
        number_column("Ready", "ready"),
        Column(label="Trend", trend=lambda row: row["ready"]),
        number_column("Unacknowledged", "unacknowledged"),
        number_column("Consumers", "consumers"),
        Column(label="Paused", text=lambda row: moment(row["paused_ms"])),
    ),
    sorts={
        "ready": "ready",
        "unacknowledged": "unacknowledged",
        "consumers": "consumers",
        "name": "name",
    },
    filters={"kind": {"all": "all", "queue": "AMQP queues", "subscription": "subscriptions"}},
    opened=opens(PATH),
)


def show_queues(console: Console) -> None:
    """The list."""
    with frame(console, "Queues", PATH):
        show_actions(console, [new_queue(PATH)])
        show_list(console, LIST)


def show_queue(console: Console, name: str) -> None:
    """One queue."""
    with frame(console, f"Queue {name}", PATH):
        ui.button(
            "Messages",
            icon="search",
            on_click=lambda: ui.navigate.to(f"{waiting.PATH}/{quote(name, safe='')}"),
        )
        pause, resume, *red = _actions(name)
        actions: list[Action | Form] = [pause, resume, *queue_forms(name), *red]
        show_details(console, ("queues", name), _show, actions=actions)


def _actions(name: str) -> list[Action]:
    return [
        *(
            Action(
                label=label,
                icon=icon,
                right="operate",
                method="POST",
                parts=("queues", name, verb),
                is_harmless=True,
            )
            for label, icon, verb in (
                ("Pause", "pause", "pause"),
                ("Resume", "play_arrow", "resume"),
            )
        ),
        Action(
            label="Purge",
            icon="cleaning_services",
            right="operate",
            method="POST",
            parts=("queues", name, "purge"),
            question=lambda row: f"Remove {number(row.get('ready'))} messages from queue {name}?",
            done=lambda answer: f"{number(answer['messages'])} messages removed",
        ),
        Action(
            label="Delete",
            icon="delete",
            right="operate",
            method="DELETE",
            parts=("queues", name),
            question=lambda row: (
                f"Delete queue {name} with {number(_count(row))} messages and its bindings?"
            ),
            leads_to=PATH,
        ),
    ]


def _count(row: dict[str, Any]) -> int:
    count: int = row.get("ready", 0) + row.get("unacknowledged", 0)
    return count


def _show(row: dict[str, Any]) -> None:
    least = "" if row["ready_bytes_complete"] else "at least "
    arguments = ", ".join(f"{key}={value}" for key, value in sorted(row["arguments"].items()))
    show_fields(
        {
            "Kind": row["kind"],
            "User": row["user"] or "-",
            "Options": _options(row),
            "Arguments": arguments or "-",
            "Ready": f"{number(row['ready'])} messages, {least}{size(row['ready_bytes'])}",
            "Oldest": moment(row["oldest_ms"]),
            "Unacknowledged": number(row["unacknowledged"]),
            "Consumers": number(row["consumers"]),
            "Paused": _paused(row),
        }
    )
    show_rows(
        "Bindings",
        ("Exchange", "Routing key", "Arguments"),
        [
            (one["exchange"] or "(default)", one["routing_key"], one["arguments"])
            for one in row["bindings"]
        ],
    )
