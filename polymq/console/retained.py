"""Retained messages: which topics have one, what is in it, and clearing them."""

from __future__ import annotations

from typing import Any, Final

from nicegui import ui

from polymq.console.api import ApiError
from polymq.console.details import Action, show_actions
from polymq.console.fields import show_fields
from polymq.console.forms import Field, Form
from polymq.console.lists import Column, ListScreen, number_column, opens, show_list, text_column
from polymq.console.messages import BODY_BYTES, show_message
from polymq.console.shell import REFRESH_SECONDS, Console, every, frame
from polymq.console.texts import number, size

PATH: Final = "/retained"

LIST = ListScreen(
    parts=("mqtt", "retained"),
    key="topic",
    columns=(
        text_column("Topic", "topic"),
        Column(label="Size", text=lambda row: size(row["bytes"]), align="right"),
        number_column("Position", "position"),
    ),
    texts={"filter": "Topic filter"},
    opened=opens(PATH),
)
CLEAR = Form(
    label="Clear",
    title="Clear retained messages",
    icon="delete",
    right="operate",
    fields=lambda _row: {
        "filter": Field(label="Topics that match", is_needed=True, hint="# is all topics")
    },
    method="POST",
    parts=lambda _values: ("mqtt", "retained", "clear"),
    tries=True,
    question=lambda answer: (
        f"Clear {number(answer['count'])} retained messages? New subscribers get them no more."
    ),
    done=lambda answer: f"{number(answer['count'])} retained messages are cleared",
    is_harmless=False,
)


def show_all_retained(console: Console) -> None:
    """The list."""
    with frame(console, "Retained messages", PATH):
        show_actions(console, [CLEAR])
        show_list(console, LIST)


def show_retained(console: Console, topic: str) -> None:
    """That of one topic."""
    clear = Action(
        label="Clear",
        icon="delete",
        right="operate",
        method="POST",
        parts=("mqtt", "retained", "clear"),
        body={"filter": topic},
        question=lambda _row: f"Clear the retained message of {topic}?",
        leads_to=PATH,
    )
    with frame(console, f"Retained message of {topic}", PATH):
        show_actions(console, [clear])
        box = ui.column().classes("w-full")
        seen: dict[str, Any] = {}

        async def refresh() -> None:
            row = await console.ask("GET", "mqtt", "retained", topic)
            if row == seen.get("row"):
                return
            message, refusal = await _message(console, row["position"])
            seen["row"] = row
            box.clear()
            with box:
                show_fields({"Size": size(row["bytes"]), "Position": number(row["position"])})
                if message is None:
                    ui.label(refusal)
                else:
                    show_message(console, message)

        every(REFRESH_SECONDS, refresh)


async def _message(console: Console, position: int) -> tuple[dict[str, Any] | None, str]:
    """The message at a position, or why it is not shown to who is logged in."""
    query = {"body_bytes": BODY_BYTES}
    try:
        found: dict[str, Any] = await console.ask("GET", "messages", str(position), query=query)
    except ApiError as error:
        if error.status != 403:
            raise
        return None, error.text
    return found, ""
