"""Dialogs about topics: a new one, and other settings for one."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

from nicegui import ui

from polymq.console.api import ApiError
from polymq.console.shell import Console, shown_errors

DEFAULT: Final = "default"
"""What the API takes for a setting that is to be the broker's."""
QUEUES_MAX: Final = 1_024


def create_topic(console: Console) -> None:
    """Ask for the name of a new topic, make it, and show it."""
    with ui.dialog(value=True) as dialog, ui.card():
        ui.label("New topic").classes("text-h6")
        name = ui.input("Name of the topic").props("autofocus").classes("w-full")
        queues = ui.number("Number of queues", value=1, min=1, max=QUEUES_MAX, format="%d").classes(
            "w-full"
        )
        ui.label("More queues let more members of a consumer group read in parallel.").classes(
            "text-caption"
        )

        async def create() -> None:
            wanted = (name.value or "").strip()
            if not wanted:
                ui.notify("a topic needs a name", type="warning")
                return
            with shown_errors() as errors:
                if await _exists(console, wanted):
                    ui.notify(f"there is a topic {wanted} already", type="warning")
                    return
                await console.ask("PUT", "topics", wanted, body={"queues": int(queues.value or 1)})
            if not errors:
                dialog.close()
                ui.navigate.to(f"/topics/{quote(wanted, safe='')}")

        name.on("keydown.enter", create)
        _buttons(dialog, "Create", create)


async def _exists(console: Console, name: str) -> bool:
    try:
        await console.ask("GET", "topics", name)
    except ApiError as error:
        if error.status == 404:
            return False
        raise
    return True


async def change_settings(console: Console, name: str) -> None:
    """Show the settings of a topic in fields, and store those that were changed."""
    with shown_errors() as errors:
        row = await console.ask("GET", "topics", name)
    if errors:
        return
    before = {key: str(value) for key, value in row["settings"].items()}
    with ui.dialog(value=True) as dialog, ui.card():
        ui.label(f"Settings of topic {name}").classes("text-h6")
        fields = {key: ui.input(key).classes("w-full") for key in before}
        for key, field in fields.items():
            field.set_value(before[key] if key in row["own_settings"] else "")
            field.props(f'stack-label placeholder="{before[key]}, the broker\'s default"')
        ui.label("An empty field is the broker's default.").classes("text-caption")

        async def save() -> None:
            typed = {key: field.value or "" for key, field in fields.items()}
            changed = changes(row, typed)
            with shown_errors() as errors:
                if changed:
                    await console.ask("PATCH", "topics", name, body={"settings": changed})
                    ui.notify("The settings are stored.", type="positive")
            if not errors:
                dialog.close()

        _buttons(dialog, "Save", save)


def changes(row: dict[str, Any], typed: dict[str, str]) -> dict[str, str]:
    """The settings that were changed, as the API takes them.

    Args:
        row: the topic before.
        typed: what stands in the fields; empty: the broker's default.
    """
    own = set(row["own_settings"])
    before = {key: str(value) if key in own else "" for key, value in row["settings"].items()}
    return {
        key: text.strip() or DEFAULT
        for key, text in typed.items()
        if text.strip() != before.get(key, "")
    }


def _buttons(dialog: ui.dialog, verb: str, carry_out: Any) -> None:
    with ui.row().classes("w-full justify-end"):
        ui.button("Cancel", on_click=dialog.close).props("flat")
        ui.button(verb, on_click=carry_out)
