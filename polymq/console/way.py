"""A message's way: where it came from, where it is, and what happened to it."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from polymq.console.fields import show_fields, show_rows
from polymq.console.shell import Console, shown_errors
from polymq.console.texts import moment
from polymq.way_text import (
    destination_text,
    event_text,
    merged,
    origin_text,
    published_text,
    search_text,
)

Row = dict[str, Any]


async def show_way(console: Console, position: int) -> None:
    """The way of the message at a position, in a dialog, from which one gets to the messages that
    took its place, and to the one whose place it took."""
    with ui.dialog(value=True) as dialog, ui.card().classes("w-full").style("max-width: 70em"):
        box = ui.column().classes("w-full")
        answers: list[Row] = []
        shown = {"position": position}

        async def ask() -> None:
            with shown_errors():
                query = {"from_position": answers[-1]["looked_until"]} if answers else None
                parts = ("messages", str(shown["position"]), "way")
                answers.append(await console.ask("GET", *parts, query=query))
            if not answers:
                dialog.close()
                return
            box.clear()
            with box:
                _show(merged(answers), ask, go)

        async def go(other: int) -> None:
            shown["position"] = other
            answers.clear()
            await ask()

        await ask()
        ui.button("Close", on_click=dialog.close).props("flat")


def _show(way: Row, ask: Any, go: Any) -> None:
    name = way["topic"] if way["tag"] is None else f"{way['topic']}/{way['tag']}"
    ui.label(f"The way of message {way['position']}").classes("text-h6")
    fields = {"Message": name, "Published": f"{moment(way['store_ms'])}, {published_text(way)}"}
    if way["due_ms"] is not None:
        fields["Delivered at"] = moment(way["due_ms"])
    if way["retained"] is not None:
        fields["Retained"] = "yes" if way["retained"] else "not any more"
    origin = way["origin"]
    if origin is not None:
        fields["Takes the place of"] = origin_text(origin)
    show_fields(fields)
    linked = [event["to_position"] for event in way["events"] if event["to_position"] is not None]
    if origin is not None and origin["position"] is not None:
        linked.insert(0, origin["position"])
    with ui.row():
        for other in linked[:8]:
            ui.button(
                f"Way of message {other}", icon="link", on_click=lambda other=other: go(other)
            ).props("flat dense")
    show_rows(
        "Where it is",
        ("Destination", "State", ""),
        [(one["id"], one["state"], destination_text(one)) for one in way["destinations"]],
    )
    show_rows(
        "What happened",
        ("Time", "What", "Where", ""),
        [
            (moment(one["time_ms"]), one["what"], one["destination"] or "", event_text(one))
            for one in way["events"]
        ],
    )
    ui.label(search_text(way)).classes("text-caption")
    if not way["complete"]:
        ui.button("Read on", icon="more_horiz", on_click=ask).props("flat")
