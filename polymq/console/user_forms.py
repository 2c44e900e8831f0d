"""Dialogs about users: a new one, its password, roles, quotas and access keys; and new rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from polymq.console.forms import Field, Form, Row, Values

ACTIONS: Final = ("publish", "subscribe", "create", "monitor", "operate", "admin")
ROLES_HINT: Final = "separated by commas, such as reader, operator or admin"
NO_LIMIT: Final = "none"
DEFAULT: Final = "default"
QUOTA_HINT: Final = f"a number, {NO_LIMIT} or {DEFAULT}"
RULE_FIELDS: Final = {
    "effect": Field(label="Effect", choices={"allow": "allow", "deny": "deny"}, value="allow"),
    "subject": Field(
        label="Subject", is_needed=True, hint="a user, or role: and the name of a role"
    ),
    "actions": Field(
        label="Actions", kind="many", choices={one: one for one in ACTIONS}, is_needed=True
    ),
    "topic": Field(label="Topics", is_needed=True, hint="a pattern, such as sensors.#"),
}


def new_user(path: str) -> Form:
    """A new user.

    Args:
        path: of the screens of users.
    """
    return Form(
        label="New user",
        verb="Create",
        title="New user",
        icon="person_add",
        right="admin",
        fields=lambda _row: {
            "name": Field(label="Name of the user", is_needed=True),
            "password": Field(label="Password of the user", kind="password", is_needed=True),
            "roles": Field(label="Roles", kind="list", hint=ROLES_HINT),
        },
        method="PUT",
        parts=lambda values: ("users", values["name"]),
        body=lambda values, _row: {key: values[key] for key in values if key != "name"},
        leads_to=lambda values: f"{path}/{quote(values['name'], safe='')}",
    )


def new_rule() -> Form:
    """Rules for several actions."""
    return Form(
        label="New rule",
        verb="Add",
        title="Allow or deny",
        icon="add",
        right="admin",
        fields=lambda _row: RULE_FIELDS,
        method="POST",
        parts=lambda _values: ("permissions",),
        done=lambda _answer: "The rule is in force.",
    )


def user_forms(name: str) -> list[Form]:
    """What is changed of one user with a dialog."""

    def changed(
        label: str,
        icon: str,
        fields: Any,
        body: Any,
        done: str = "The change is stored.",
        note: str = "",
    ) -> Form:
        return Form(
            label=label,
            verb="Save",
            title=f"{label} of {name}",
            note=note,
            icon=icon,
            right="admin",
            fields=fields,
            method="PATCH",
            parts=lambda _values: ("users", name),
            body=body,
            done=lambda _answer: done,
        )

    return [
        changed(
            "Password",
            "password",
            lambda _row: {"password": Field(label="New password", kind="password", is_needed=True)},
            lambda values, _row: values,
            "The password is changed. Connections with the old one end.",
        ),
        changed("Roles", "badge", _role_fields, roles_changed),
        changed(
            "Quotas",
            "speed",
            _quota_fields,
            quotas_changed,
            note=f"A quota is {QUOTA_HINT}.",
        ),
        Form(
            label="New access key",
            verb="Create",
            title=f"Access key of {name}",
            icon="key",
            right="admin",
            fields=lambda _row: {},
            method="POST",
            parts=lambda _values: ("users", name, "access-keys"),
            note="Its secret key is shown once.",
            stays=lambda answer: {
                "Access key": answer["access_key"],
                "Secret key, which is not shown again": answer["secret_key"],
            },
        ),
        Form(
            label="Remove access key",
            verb="Remove",
            title=f"Remove an access key of {name}",
            icon="key_off",
            right="admin",
            fields=_key_fields,
            method="DELETE",
            parts=lambda values: ("users", name, "access-keys", values["key"]),
            body=lambda _values, _row: {},
            done=lambda _answer: "The access key is removed.",
            is_harmless=False,
        ),
    ]


def _key_fields(row: Row) -> Mapping[str, Field]:
    keys = [one["access_key"] for one in row.get("access_keys", ())]
    return {
        "key": Field(
            label="Access key",
            choices={key: key for key in keys},
            is_needed=True,
            hint="Connections that sign with it end.",
        )
    }


def _role_fields(row: Row) -> Mapping[str, Field]:
    roles = ", ".join(row.get("roles", ()))
    return {"roles": Field(label="Roles", kind="list", value=roles, hint=ROLES_HINT)}


def roles_changed(values: Values, row: Row) -> Mapping[str, Any]:
    """The roles that a user gets and loses."""
    before, after = set(row.get("roles", ())), set(values.get("roles", ()))
    return {"add_roles": sorted(after - before), "remove_roles": sorted(before - after)}


def _shown_quota(most: int | None) -> str:
    return NO_LIMIT if most is None else str(most)


def _quota_fields(row: Row) -> Mapping[str, Field]:
    return {
        name: Field(label=name.replace("_", " "), value=_shown_quota(most))
        for name, most in row.get("quotas", {}).items()
    }


def quotas_changed(values: Values, row: Row) -> Mapping[str, Any]:
    """The quotas that are different. Raises ValueError."""
    changes: dict[str, Any] = {}
    for name, most in row.get("quotas", {}).items():
        text = values.get(name, DEFAULT)
        if text == _shown_quota(most):
            continue
        if text not in (NO_LIMIT, DEFAULT) and not text.isdecimal():
            raise ValueError(f"{name.replace('_', ' ')}: write {QUOTA_HINT}")
        changes[name] = int(text) if text.isdecimal() else None if text == NO_LIMIT else text
    return {"quotas": changes}
