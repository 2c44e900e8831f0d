"""Dialogs with fields, described as data: what they ask for, and the request that becomes of it.

What would change much is tried first where the API can (`dry_run`), and the question says what
would happen. A refusal is a message on the screen, and the dialog stays with what was typed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from nicegui import ui

from polymq.console.fields import show_text
from polymq.console.shell import Console, confirmed, shown_errors

Row = dict[str, Any]
Values = dict[str, Any]

NUMBER_MAX: Final = 2**53
"""The largest number that browsers hold exactly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A field of a dialog.

    Attributes:
        label: what it is called.
        kind: `list` is a text with commas, `many` any of the choices.
        choices: values with what they are called; there is nothing else to be chosen.
        value: what stands in it at first.
        hint: what an empty field means, or how it is written.
        is_needed: whether it must not be empty.
        is_rare: it is behind "More".
    """

    label: str
    kind: Literal["text", "password", "number", "switch", "list", "many"] = "text"
    choices: Mapping[str, str] | None = None
    value: Any = None
    hint: str = ""
    is_needed: bool = False
    is_rare: bool = False


def _given(values: Values, _row: Row) -> Mapping[str, Any]:
    return values


def _silent(_answer: Row) -> str:
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """Something that can be asked for with a dialog.

    Attributes:
        label: of the button that opens it.
        verb: of the button that does it; empty: the label.
        title: of the dialog.
        note: said below the title.
        right: what who is logged in has to have; others do not see the button.
        fields: by their names, for the object as it was last shown.
        parts: of the path of the API.
        body: of the request; raises ValueError with what is wrong, for the person at the console.
            Fields that are empty are not among the values.
        tries: the API is first asked what would happen.
        question: asked then, about the answer to that, or about nothing; empty: nothing is asked.
        typed: what has to be typed for it, of the object; empty: nothing.
        done: what is said about the answer.
        stays: what of the answer stays on the screen until it is closed, such as a secret that is
            not shown again.
        leads_to: the screen that is shown then; empty: this one.
        is_harmless: the button is not red.
        suits: whether the object is such now; the button is hidden otherwise.
    """

    label: str
    verb: str = ""
    title: str
    note: str = ""
    icon: str
    right: str
    fields: Callable[[Row], Mapping[str, Field]]
    method: str
    parts: Callable[[Values], Sequence[str]]
    body: Callable[[Values, Row], Mapping[str, Any]] = _given
    tries: bool = False
    question: Callable[[Row], str] = _silent
    typed: Callable[[Row], str] = _silent
    done: Callable[[Row], str] = _silent
    stays: Callable[[Row], Mapping[str, str]] | None = None
    leads_to: Callable[[Values], str] = _silent
    is_harmless: bool = True
    suits: Callable[[Row], bool] | None = None


def open_form(console: Console, form: Form, row: Row) -> None:
    """Show the dialog.

    Args:
        row: the object as it was last shown.
    """
    wanted, verb = form.fields(row), form.verb or form.label
    with ui.dialog(value=True) as dialog, ui.card().style("min-width: min(26em, 100%)"):
        ui.label(form.title).classes("text-h6").style("overflow-wrap: anywhere")
        if form.note:
            ui.label(form.note).classes("text-caption")
        shown = {name: _show_field(one) for name, one in wanted.items() if not one.is_rare}
        if len(shown) < len(wanted):
            with ui.expansion("More").classes("w-full"):
                rare = {name: one for name, one in wanted.items() if one.is_rare}
                shown |= {name: _show_field(one) for name, one in rare.items()}

        async def send() -> None:
            try:
                values = values_of(wanted, {name: one.value for name, one in shown.items()})
                body = dict(form.body(values, row))
            except ValueError as error:
                ui.notify(str(error), type="warning")
                return
            if not button.enabled:
                return  # the second of two quick clicks
            button.disable()
            if await _sent(console, form, row, values, body):
                dialog.close()
            button.enable()

        with ui.row().classes("w-full justify-end"):
            ui.button("Cancel", on_click=dialog.close).props("flat")
            button = ui.button(verb, on_click=send)
            if not form.is_harmless:
                button.props("color=negative")
        # What was typed, such as a password, is gone with it, unless it still waits for an answer.
        dialog.on("hide", lambda: dialog.delete() if button.enabled else None)


def values_of(fields: Mapping[str, Field], typed: Mapping[str, Any]) -> Values:
    """What was typed, as the API takes it, without fields that are empty. Raises ValueError."""
    values: Values = {}
    for name, one in fields.items():
        found = typed[name]
        if isinstance(found, str) and one.kind != "password":
            found = found.strip()
        if one.kind == "list":
            found = [part.strip() for part in (found or "").split(",") if part.strip()]
        elif one.kind == "number" and found is not None:
            found = int(found)
        if found is None or found in ("", []):
            if one.is_needed:
                raise ValueError(f"{one.label} is missing")
            continue
        values[name] = found
    return values


def _show_field(one: Field) -> Any:
    if one.kind == "switch":
        return ui.switch(one.label, value=bool(one.value))
    if one.choices is not None:
        shown: Any = ui.select(
            dict(one.choices), value=one.value, label=one.label, multiple=one.kind == "many"
        )
    elif one.kind == "number":
        shown = ui.number(one.label, value=one.value, min=0, max=NUMBER_MAX, format="%d")
    else:
        shown = ui.input(
            one.label,
            value=str(one.value or ""),
            password=one.kind == "password",
            password_toggle_button=one.kind == "password",
        ).props('autocomplete="new-password"' if one.kind == "password" else 'autocomplete="off"')
    shown.classes("w-full").props("dense")
    if one.hint:
        shown.props["hint"] = one.hint
        shown.classes("q-mb-sm")
    return shown


async def _sent(
    console: Console, form: Form, row: Row, values: Values, body: Mapping[str, Any]
) -> bool:
    """Ask, do it, and say so. Returns whether it was done."""
    parts = form.parts(values)
    with shown_errors() as outcome:
        found = row
        if form.tries:
            found = await console.ask(form.method, *parts, body={**body, "dry_run": True})
        question = form.question(found)
        if question and not await confirmed(
            question, form.verb or form.label, typed=form.typed(row)
        ):
            return False
        answer = await console.ask(form.method, *parts, body=body)
        answer = answer if isinstance(answer, dict) else {}
        text = form.done(answer)
        if text:
            ui.notify(text, type="positive")
        if form.stays is not None:
            _keep(form.title, form.stays(answer))
        path = form.leads_to(values)
        if path:
            ui.navigate.to(path)
    return not outcome


def _keep(title: str, lines: Mapping[str, str]) -> None:
    """Show lines until somebody closes them."""
    with ui.context.client.layout, ui.dialog(value=True).props("persistent") as dialog, ui.card():
        ui.label(title).classes("text-h6")
        for name, text in lines.items():
            ui.label(name).classes("text-weight-medium")
            show_text(text)
        with ui.row().classes("w-full justify-end"):
            ui.button("Close", on_click=dialog.delete)
