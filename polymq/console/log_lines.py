"""The last lines of the audit log and of the server's log."""

from __future__ import annotations

from typing import Any, Final

from nicegui import ui

from polymq.console.lists import Column, ListScreen, show_list, text_column
from polymq.console.shell import Console, frame
from polymq.console.texts import moment

PATH: Final = "/log"
FILTERS: Final = {"user": "User", "text": "With the text"}


def _values(row: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in row["values"].items()) or "-"


COLUMNS: Final = (
    text_column("What", "event"),
    Column(label="When", text=lambda row: moment(row["time_ms"])),
    text_column("Level", "level"),
    Column(label="Values", text=_values),
)
AUDIT = ListScreen(parts=("audit",), key="number", columns=COLUMNS, texts=FILTERS)
LOG = ListScreen(
    parts=("log",),
    key="number",
    columns=(*COLUMNS, text_column("Logger", "logger")),
    texts=FILTERS,
    filters={
        "level": {"debug": "all", "info": "info", "warning": "warning", "error": "error"},
    },
)
LISTS: Final = {"audit log": AUDIT, "other lines": LOG}


def show_log(console: Console) -> None:
    """One of the two, with its newest lines first."""
    with frame(console, "Log", PATH):
        choice = ui.toggle(list(LISTS), value="audit log").props("no-caps")
        box = ui.column().classes("w-full")

        def show() -> None:
            box.clear()
            with box:
                show_list(console, LISTS[choice.value])

        choice.on_value_change(show)
        show()
