"""Screens about one object: its values, and what can be done to it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nicegui import ui

from polymq.console.shell import REFRESH_SECONDS, Console, confirmed, every, shown_errors

Row = dict[str, Any]


def _nothing(_row: Row) -> str:
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """Something that can be done to an object.

    Attributes:
        right: what who is logged in has to have; others do not see it.
        parts: of the path of the API.
        question: asked before, about the object as it is then; empty: nothing is asked.
        typed: what has to be typed before, such as the name of the object; empty: nothing.
        done: what is said then, about the answer (an empty one if there is none).
        leads_to: the screen that is shown then; empty: this one.
        is_harmless: the button is not red.
        suits: whether it can be done to the object as it is now; the button is hidden otherwise.
    """

    label: str
    icon: str
    right: str
    method: str
    parts: Sequence[str]
    question: Callable[[Row], str] = _nothing
    typed: str = ""
    done: Callable[[Row], str] = _nothing
    body: Mapping[str, Any] | None = None
    query: Mapping[str, Any] | None = None
    leads_to: str = ""
    is_harmless: bool = False
    suits: Callable[[Row], bool] | None = None


def show_actions(
    console: Console,
    actions: Sequence[Action],
    row: Callable[[], Row],
    rights: Collection[str] | None = None,
) -> Callable[[Row], None]:
    """Buttons for what the login allows.

    Args:
        row: the object as it was last shown.
        rights: to this object; None: as to all.

    Returns:
        What shows the buttons that suit the object as it is then.
    """
    allowed = [
        action
        for action in actions
        if (console.may(action.right) if rights is None else action.right in rights)
    ]
    buttons: list[tuple[ui.button, Callable[[Row], bool]]] = []

    def choose(shown: Row) -> None:
        for button, suits in buttons:
            button.set_visibility(suits(shown))

    if not allowed:
        return choose
    with ui.row():
        for action in allowed:
            button = ui.button(
                action.label,
                icon=action.icon,
                on_click=lambda action=action: carry_out(console, action, row()),
            )
            if not action.is_harmless:
                button.props("color=negative")
            if action.suits is not None:
                button.set_visibility(False)
                buttons.append((button, action.suits))
    return choose


async def carry_out(console: Console, action: Action, row: Row) -> bool:
    """Ask, do it, and say so. Returns whether it was done."""
    with shown_errors() as outcome:
        question = action.question(row)
        if question and not await confirmed(question, action.label, typed=action.typed):
            return False
        answer = await console.ask(
            action.method, *action.parts, query=action.query, body=action.body or {}
        )
        text = action.done(answer if isinstance(answer, dict) else {})
        if text:
            ui.notify(text, type="positive")
        if action.leads_to:
            ui.navigate.to(action.leads_to)
    return not outcome


def show_details(
    console: Console,
    parts: Sequence[str],
    build: Callable[[Row], None],
    *,
    actions: Sequence[Action] = (),
    rights: Collection[str] | None = None,
    query: Mapping[str, Any] | None = None,
) -> None:
    """Show an object that refreshes itself. It is built anew when it has changed.

    Args:
        parts: of the path of the API.
        build: puts the values on the page.
        rights: see `show_actions`.
    """
    shown: dict[str, Row] = {}
    choose = show_actions(console, actions, lambda: shown.get("row", {}), rights)
    box = ui.column().classes("w-full")

    async def refresh() -> None:
        row = await console.ask("GET", *parts, query=query)
        if shown.get("row") == row:
            return
        shown["row"] = row
        choose(row)
        box.clear()
        with box:
            build(row)

    every(REFRESH_SECONDS, refresh)
