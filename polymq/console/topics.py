"""Topics, and one of them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from urllib.parse import quote

from nicegui import ui

from polymq.console.api import ApiError
from polymq.console.details import Action, show_details
from polymq.console.fields import show_fields, show_rows
from polymq.console.lists import Column, ListScreen, opens, show_list, text_column
from polymq.console.shell import Console, frame
from polymq.console.texts import number
from polymq.console.topic_dialogs import change_settings, create_topic

PATH = "/topics"
CONNECT_PATH = "/connect"


def _own(row: dict[str, Any]) -> str:
    return ", ".join(f"{name}={row['settings'][name]}" for name in row["own_settings"]) or "-"


LIST = ListScreen(
    parts=("topics",),
    key="name",
    columns=(
        text_column("Name", "name"),
        Column(label="Messages", text=lambda row: number(row["message_count"]), align="right"),
        Column(label="Trend", trend=lambda row: sum(one["end_offset"] for one in row["queues"])),
        Column(label="Queues", text=lambda row: number(len(row["queues"])), align="right"),
        Column(label="Durability", text=lambda row: str(row["settings"].get("durability", "-"))),
        Column(label="Own settings", text=_own),
    ),
    sorts={"messages": "messages", "queues": "queues", "name": "name"},
    opened=opens(PATH),
)


def show_topics(console: Console) -> None:
    """The list."""
    with frame(console, "Topics", PATH):
        if console.may("admin"):
            ui.button("New topic", icon="add", on_click=lambda: create_topic(console))
        show_list(console, LIST)


async def show_topic(console: Console, name: str) -> None:
    """One topic. Its administrators need no right to others."""
    rights = await _rights(console, name)
    delete = Action(
        label="Delete",
        icon="delete",
        right="admin",
        method="DELETE",
        parts=("topics", name),
        question=lambda row: (
            f"Delete topic {name} with {number(row.get('message_count', 0))} messages?"
        ),
        typed=name,
        leads_to=PATH,
    )
    with frame(console, f"Topic {name}", PATH):
        with ui.row():
            for label, icon, path in (
                ("Messages", "search", "/messages"),
                ("Connect", "power", CONNECT_PATH),
            ):
                ui.button(
                    label,
                    icon=icon,
                    on_click=lambda path=path: ui.navigate.to(f"{path}/{quote(name, safe='')}"),
                )
            if "admin" in rights:
                ui.button(
                    "Change settings", icon="tune", on_click=lambda: change_settings(console, name)
                )
        show_details(console, ("topics", name), _show, actions=[delete], rights=rights)


async def _rights(console: Console, name: str) -> Collection[str]:
    """What who is logged in may do with a topic. What is wrong then is shown with the topic."""
    try:
        found = await console.ask("GET", "caller", query={"topic": name})
    except ApiError:
        return ()
    rights: list[str] = found.get("topic_rights") or found["rights"]
    return rights


def _show(row: dict[str, Any]) -> None:
    show_fields({"Messages": number(row["message_count"])})
    show_rows(
        "Queues",
        ("Queue", "First offset", "End offset", "Messages"),
        [
            (
                one["queue"],
                number(one["first_offset"]),
                number(one["end_offset"]),
                number(one["end_offset"] - one["first_offset"]),
            )
            for one in row["queues"]
        ],
    )
    own = row["own_settings"]
    show_rows(
        "Settings",
        ("Setting", "Value", "From"),
        [
            (key, value, "this topic" if key in own else "the broker's default")
            for key, value in row["settings"].items()
        ],
    )
