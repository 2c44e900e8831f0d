"""Webhooks, and their attempts that failed."""

from __future__ import annotations

from typing import Any

from polymq.console.details import Action, show_details
from polymq.console.fields import show_fields, show_rows
from polymq.console.lists import Column, ListScreen, number_column, opens, show_list, text_column
from polymq.console.shell import Console, frame
from polymq.console.texts import duration, moment, number

PATH = "/webhooks"

LIST = ListScreen(
    parts=("webhooks",),
    key="name",
    columns=(
        text_column("Name", "name"),
        text_column("Topic", "topic"),
        text_column("Sink", "sink"),
        text_column("State", "state"),
        number_column("Waiting", "waiting"),
        Column(label="Trend", trend=lambda row: row["waiting"]),
        Column(label="Delivered", text=lambda row: moment(row["delivered_ms"])),
    ),
    opened=opens(PATH),
)


def show_webhooks(console: Console) -> None:
    """The list."""
    with frame(console, "Webhooks", PATH):
        show_list(console, LIST)


def show_webhook(console: Console, name: str) -> None:
    """One webhook."""
    actions = [
        Action(
            label=label,
            icon=icon,
            right="operate",
            method="POST",
            parts=("webhooks", name, verb),
            is_harmless=True,
        )
        for label, icon, verb in (
            ("Pause", "pause", "pause"),
            ("Resume", "play_arrow", "resume"),
            ("Try now", "bolt", "try"),
        )
    ]
    with frame(console, f"Webhook {name}", PATH):
        show_details(console, ("webhooks", name), _show, actions=actions)


def _show(row: dict[str, Any]) -> None:
    show_fields(
        {
            "Topic": row["topic"],
            "Sink": row["sink"],
            "Owner": row["owner"] or "-",
            "State": row["state"] + (f": {row['why']}" if row["why"] else ""),
            "Waiting": number(row["waiting"]),
            "On their way": number(row["held"]),
            "Failed attempts for the next event": number(row["attempts"]),
            "Next attempt in": duration(row["next_seconds"]),
            "Delivered": moment(row["delivered_ms"]),
        }
    )
    show_rows(
        "Requests that failed",
        ("When", "Status", "What went wrong", "Took", "Events"),
        [
            (
                moment(one["at_ms"]),
                one["status"] or "none",
                one["text"],
                duration(one["seconds"]),
                number(one["events"]),
            )
            for one in reversed(row["failures"])
        ],
    )
