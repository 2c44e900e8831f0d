"""MQTT sessions, and what waits in them."""

from __future__ import annotations

from typing import Any

from polymq.console.details import Action, show_details
from polymq.console.fields import show_fields, show_rows
from polymq.console.lists import Column, ListScreen, number_column, opens, show_list, text_column
from polymq.console.shell import Console, frame
from polymq.console.texts import duration, moment, number, size

PATH = "/sessions"


def _state(row: dict[str, Any]) -> str:
    if row["connected"]:
        return "connected"
    return "away" if row["away_ms"] is None else f"away since {moment(row['away_ms'])}"


LIST = ListScreen(
    parts=("mqtt", "sessions"),
    key="client_id",
    columns=(
        text_column("Client", "client_id"),
        text_column("User", "user"),
        Column(label="State", text=_state),
        number_column("Queued", "queued"),
        Column(label="Trend", trend=lambda row: row["queued"]),
        number_column("In flight", "inflight"),
        number_column("Subscriptions", "subscriptions"),
        number_column("Lost", "dropped"),
    ),
    sorts={
        "queued": "queued",
        "inflight": "in flight",
        "subscriptions": "subscriptions",
        "name": "client",
    },
    filters={"state": {"all": "all", "connected": "connected", "disconnected": "away"}},
    opened=opens(PATH),
)


def show_sessions(console: Console) -> None:
    """The list."""
    with frame(console, "MQTT sessions", PATH):
        show_list(console, LIST)


def show_session(console: Console, client_id: str) -> None:
    """One session."""
    actions = [
        Action(
            label="Disconnect",
            icon="link_off",
            right="operate",
            method="DELETE",
            parts=("mqtt", "clients", client_id),
            question=lambda _row: f"Disconnect {client_id}? Its session stays.",
            done=lambda _answer: "disconnected",
            suits=lambda row: bool(row["connected"]),
        ),
        Action(
            label="Delete",
            icon="delete",
            right="operate",
            method="DELETE",
            parts=("mqtt", "sessions", client_id),
            question=lambda row: (
                f"Delete the session of {client_id} with "
                f"{number(row.get('queued'))} messages that wait?"
            ),
            leads_to=PATH,
        ),
    ]
    with frame(console, f"MQTT session {client_id}", PATH):
        show_details(console, ("mqtt", "sessions", client_id), _show, actions=actions)


def _show(row: dict[str, Any]) -> None:
    least = "" if row["queued_bytes_complete"] else "at least "
    expiry = row["expiry_seconds"]
    show_fields(
        {
            "User": row["user"] or "-",
            "State": _state(row),
            "Outlives its connection": "for ever" if expiry is None else duration(expiry),
            "Ends": moment(row["ends_ms"]),
            "Queued": f"{number(row['queued'])} messages, {least}{size(row['queued_bytes'])}",
            "In flight": number(row["inflight"]),
            "Lost": number(row["dropped"]),
            "Will": "yes" if row["will"] else "no",
        }
    )
    show_rows(
        "Subscriptions",
        ("Filter", "QoS", "Queued", "Durable"),
        [
            (one["filter"], one["qos"], number(one["queued"]), "yes" if one["durable"] else "no")
            for one in row["subscription_list"]
        ],
    )
