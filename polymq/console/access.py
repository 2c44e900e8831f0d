"""Users, permissions, and the question whether somebody may do something."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from nicegui import ui

from polymq.console.details import Action, show_details
from polymq.console.fields import show_fields, show_rows
from polymq.console.lists import Column, ListScreen, opens, show_list, text_column
from polymq.console.shell import Console, frame, shown_errors
from polymq.console.texts import moment, number

PATH = "/users"
RULES_PATH = "/permissions"
ACTIONS: Final = ("publish", "subscribe", "create", "monitor", "operate", "admin")

USERS = ListScreen(
    parts=("users",),
    key="name",
    columns=(
        text_column("Name", "name"),
        Column(label="Roles", text=lambda row: ", ".join(row["roles"]) or "-"),
        Column(label="State", text=lambda row: "disabled" if row["disabled"] else "enabled"),
        Column(
            label="Access keys", text=lambda row: number(len(row["access_keys"])), align="right"
        ),
    ),
    opened=opens(PATH),
)
RULES = ListScreen(
    parts=("permissions",),
    key=lambda row: " ".join(map(str, row.values())),
    columns=(
        text_column("Subject", "subject"),
        text_column("Effect", "effect"),
        text_column("Action", "action"),
        text_column("Topic", "topic"),
    ),
)


def show_users(console: Console) -> None:
    """The list."""
    with frame(console, "Users", PATH):
        show_list(console, USERS)


def show_user(console: Console, name: str) -> None:
    """One user."""
    disable = Action(
        label="Disable",
        icon="block",
        right="admin",
        method="PATCH",
        parts=("users", name),
        body={"disabled": True},
        question=lambda _row: f"Disable {name}? Its connections end.",
    )
    enable = replace(
        disable,
        label="Enable",
        icon="check",
        body={"disabled": False},
        question=lambda _row: "",
        is_harmless=True,
    )
    with frame(console, f"User {name}", PATH):
        show_details(console, ("users", name), _show_user, actions=[disable, enable])


def _show_user(row: dict[str, Any]) -> None:
    show_fields(
        {
            "Roles": ", ".join(row["roles"]) or "-",
            "State": "disabled" if row["disabled"] else "enabled",
        }
    )
    show_rows(
        "Quotas",
        ("Quota", "At most"),
        [
            (name.replace("_", " "), "no limit" if most is None else number(most))
            for name, most in row["quotas"].items()
        ],
    )
    show_rows(
        "Access keys",
        ("Access key", "Made"),
        [(one["access_key"], moment(one["created_ms"])) for one in row["access_keys"]],
    )


def show_rules(console: Console) -> None:
    """The question, and the list of all rules."""
    with frame(console, "Permissions", RULES_PATH):
        with ui.card().classes("w-full"):
            ui.label("May somebody do something?").classes("text-h6")
            with ui.row().classes("items-center"):
                user = ui.input("User").props("dense")
                action = ui.select(list(ACTIONS), value="publish", label="Action").props("dense")
                topic = ui.input("Topic or filter").props("dense")
                answer = ui.label().props("role=status")

                async def ask() -> None:
                    with shown_errors():
                        found = await console.ask(
                            "GET",
                            "permissions",
                            "check",
                            query={
                                "user": user.value,
                                "action": action.value,
                                "topic": topic.value,
                            },
                        )
                        answer.set_text(verdict_text(found))

                ui.button("Ask", on_click=ask)
                topic.on("keydown.enter", ask)
        show_list(console, RULES)


def verdict_text(found: dict[str, Any]) -> str:
    """The answer in words."""
    if found["allowed"]:
        return f"Yes: {found['rule']}"
    if found["rule"]:
        return f"No: {found['rule']}"
    return f"No: no rule allows it ({found['needs']})"
