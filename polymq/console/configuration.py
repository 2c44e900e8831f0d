"""Reading the configuration again, and definitions: their export, and an import that can be tried
first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from nicegui import events, ui

from polymq.console.api import DOCUMENT_BYTES_MAX
from polymq.console.fields import show_rows
from polymq.console.shell import Console, confirmed, frame, shown_errors
from polymq.console.texts import number, size

PATH: Final = "/configuration"
FILE_NAME: Final = "definitions.json"
ROWS_MAX: Final = 200
"""Of an import that are shown: `polymq definitions import` shows all."""
SIDES: Final = {"": "stop", "file": "take the file", "server": "keep the server's"}

Row = dict[str, Any]


def show_configuration(console: Console) -> None:
    """The screen."""
    with frame(console, "Configuration", PATH):
        if not console.may("admin"):
            ui.label("This needs the right admin.")
            return
        _show_reload(console)
        _heading("Definitions")
        ui.label(
            "Users, permissions, bans, topics, exchanges, queues and subscriptions, as one "
            "document. It has secrets: hashes of passwords, access keys, and the URLs of webhooks."
        )
        ui.button("Export", icon="download", on_click=lambda: _export(console))
        _Import(console).show()


def _heading(text: str) -> None:
    ui.label(text).classes("text-h6 q-mt-md").props("role=heading aria-level=2")


def _show_reload(console: Console) -> None:
    box = ui.column().classes("w-full")

    async def reload() -> None:
        with shown_errors() as errors:
            found = await console.ask("POST", "reload", body={})
        if errors:
            return
        box.clear()
        with box:
            if not found["applied"] and not found["restart"]:
                ui.label("The configuration has not changed.")
                return
            show_rows(
                "In force now",
                ("Setting", "Before", "Now", "Applies to"),
                _settings(found["applied"], "applies_to"),
            )
            show_rows(
                "Not in force",
                ("Setting", "In use", "In the file", "Needs a restart of"),
                _settings(found["restart"], "used_by"),
            )

    with box:
        ui.label("The settings in the configuration file of the broker.")
    ui.button("Reload", icon="refresh", on_click=reload)


def _settings(found: Sequence[Row], last: str) -> Sequence[Sequence[str]]:
    return [(one["name"], one["old"], one["new"], one[last]) for one in found]


async def _export(console: Console) -> None:
    with shown_errors():
        ui.download.content(await console.read("definitions"), FILE_NAME, "application/json")


class _Import:
    """A document that is imported: the file, what is tried, and what became of it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._content = b""

    def show(self) -> None:
        _heading("Import")
        ui.label("Nothing is deleted, and what is equal stays as it is.")
        ui.upload(
            label="Document",
            auto_upload=True,
            max_files=1,
            max_file_size=DOCUMENT_BYTES_MAX,
            on_upload=self._uploaded,
            on_rejected=_rejected,
        ).props("accept=.json flat bordered").classes("w-full").style("max-width: 26em")
        self._prefer = (
            ui.select(SIDES, value="", label="Where a definition differs")
            .props("dense")
            .style("min-width: 14em")
        )
        with ui.row():
            self._buttons = [
                ui.button("Try what an import would do", icon="rule", on_click=self._try),
                ui.button("Import", icon="upload", on_click=self._import).props("color=negative"),
            ]
        for button in self._buttons:
            button.set_enabled(False)
        self._box = ui.column().classes("w-full")

    async def _uploaded(self, event: events.UploadEventArguments) -> None:
        if event.file.size() > DOCUMENT_BYTES_MAX:  # the browser did not look
            _rejected()
            return
        self._content = await event.file.read()
        for button in self._buttons:
            button.set_enabled(True)

    async def _try(self) -> None:
        await self._send(dry_run=True)

    async def _import(self) -> None:
        if await confirmed(f"Import the document of {size(len(self._content))}?", "Import"):
            await self._send(dry_run=False)

    async def _send(self, *, dry_run: bool) -> None:
        query = {"dry_run": dry_run, "prefer": self._prefer.value or None}
        with shown_errors() as errors:
            found = await self._console.send("definitions", content=self._content, query=query)
        if errors:
            return
        self._box.clear()
        with self._box:
            ui.label(outcome_text(found)).props("role=status")
            headings = ("Outcome", "Section", "Name", "Difference")
            show_rows("What differs", headings, shown_rows(found))


def _rejected() -> None:
    ui.notify(f"a document has at most {size(DOCUMENT_BYTES_MAX)}", type="negative")


def outcome_text(answer: Row) -> str:
    """What became of an import, in words."""
    counted = [f"{number(count)} {name}" for name, count in answer["counts"].items() if count]
    would = " Nothing was changed: this was a try." if answer["dry_run"] else ""
    return f"{', '.join(counted) or 'No definitions'}.{would}"


def shown_rows(answer: Row) -> Sequence[Sequence[str]]:
    """The definitions that were not there already, at most ROWS_MAX."""
    rows = [
        (one["outcome"], one["section"], one["name"], one["difference"] or "-")
        for one in answer["definitions"]
        if one["outcome"] != "equal"
    ]
    return rows[:ROWS_MAX]
