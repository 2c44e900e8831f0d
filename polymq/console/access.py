"""Users, permissions, and the question whether somebody may do something."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Final

from nicegui import ui

from polymq.console.details import Action, show_actions, show_details
from polymq.console.fields import show_fields, show_rows
from polymq.console.forms import Form
from polymq.console.lists import Column, ListScreen, opens, show_list, text_column
from polymq.console.shell import Console, frame, shown_errors
from polymq.console.texts import moment, number
from polymq.console.user_forms import ACTIONS, new_rule, new_user, user_forms

PATH = "/users"
RULES_PATH = "/permissions"
RULE: Final = ("subject", "effect", "action", "topic")
"""What makes a rule different from all others."""

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


def _remove(key: str) -> Action:
    """The removal of the rule with this key: a JSON array. Without a rule, only its button."""
    rule = dict(zip(RULE, json.loads(key) if key else [""] * len(RULE), strict=True))
    return Action(
        label="Remove",
        icon="delete",
        right="admin",
        method="DELETE",
        parts=("permissions",),
        query={"actions": rule.pop("action"), **rule},
        question=lambda _row: f"Remove the rule {' '.join(json.loads(key))}?",
    )


RULES = ListScreen(
    parts=("permissions",),
    key=lambda row: json.dumps([row[name] for name in RULE]),
    columns=(
        text_column("Subject", "subject"),
        text_column("Effect", "effect"),
        text_column("Action", "action"),
        text_column("Topic", "topic"),
    ),
    action=_remove,
)
FORGET: Final = Action(
    label="Forget answers of services",
    icon="restart_alt",
    right="admin",
    method="DELETE",
    parts=("service-answers",),
    done=lambda _answer: "The services are asked again.",
    is_harmless=True,
)


def show_users(console: Console) -> None:
    """The list."""
    with frame(console, "Users", PATH):
        show_actions(console, [new_user(PATH)])
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
    delete = replace(
        disable,
        label="Delete",
        icon="delete",
        method="DELETE",
        body=None,
        question=lambda _row: f"Delete {name} with its permissions and MQTT sessions?",
        typed=name,
        leads_to=PATH,
    )
    actions: list[Action | Form] = [*user_forms(name), enable, disable, delete]
    with frame(console, f"User {name}", PATH):
        show_details(console, ("users", name), _show_user, actions=actions)


def _show_user(row: dict[str, Any]) -> None:
    show_fields(
        {
            "Name": row["name"],
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
        show_actions(console, [new_rule(), FORGET])
        show_list(console, RULES)


def verdict_text(found: dict[str, Any]) -> str:
    """The answer in words."""
    if found["allowed"]:
        return f"Yes: {found['rule']}"
    if found["rule"]:
        return f"No: {found['rule']}"
    return f"No: no rule allows it ({found['needs']})"
