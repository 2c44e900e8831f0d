"""Backups: those that are being taken, and the newest."""

from __future__ import annotations

from typing import Any, Final

from nicegui import ui

from polymq.console.details import show_details
from polymq.console.fields import show_fields, show_rows
from polymq.console.shell import Console, frame
from polymq.console.texts import moment, number

PATH: Final = "/backups"


def show_backups(console: Console) -> None:
    """The screen."""
    with frame(console, "Backups", PATH):
        ui.label("A backup is taken at the broker's machine, with polymq backup create.")
        show_details(console, ("backups",), _show)


def _show(row: dict[str, Any]) -> None:
    newest = row["newest_position"]
    show_fields(
        {
            "Newest": moment(row["newest_ms"]),
            "As of position": "-" if newest is None else number(newest),
            "Completed since the start": number(row["completed"]),
            "Failed since the start": number(row["failed"]),
        }
    )
    show_rows(
        "Running",
        ("Reservation", "Copied up to position"),
        [(one["name"], number(one["position"])) for one in row["running"]],
    )
