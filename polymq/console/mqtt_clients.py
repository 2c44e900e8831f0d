"""MQTT clients that are connected."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

from nicegui import ui

from polymq.console.details import Action, show_details
from polymq.console.fields import show_fields, show_rows
from polymq.console.lists import Column, ListScreen, number_column, opens, show_list, text_column
from polymq.console.shell import Console, frame
from polymq.console.texts import duration, moment, number, size

PATH: Final = "/clients"
SESSIONS_PATH: Final = "/sessions"

LIST = ListScreen(
    parts=("mqtt", "clients"),
    key="client_id",
    columns=(
        text_column("Client", "client_id"),
        text_column("User", "user"),
        text_column("From", "address"),
        text_column("Version", "version"),
        number_column("Queued", "queued"),
        number_column("In flight", "inflight"),
        Column(label="Since", text=lambda row: moment(row["connected_ms"])),
    ),
    texts={"prefix": "Names begin with", "user": "User", "address": "Address or network"},
    opened=opens(PATH),
)


def show_clients(console: Console) -> None:
    """The list."""
    with frame(console, "MQTT clients", PATH):
        show_list(console, LIST)


def show_client(console: Console, client_id: str) -> None:
    """One client."""
    disconnect = Action(
        label="Disconnect",
        icon="link_off",
        right="operate",
        method="DELETE",
        parts=("mqtt", "clients", client_id),
        question=lambda _row: f"Disconnect {client_id}? Most clients connect again.",
        leads_to=PATH,
    )
    with frame(console, f"MQTT client {client_id}", PATH):
        ui.button(
            "Session",
            icon="sensors",
            on_click=lambda: ui.navigate.to(f"{SESSIONS_PATH}/{quote(client_id, safe='')}"),
        )
        show_details(console, ("mqtt", "clients", client_id), _show, actions=[disconnect])


def _show(row: dict[str, Any]) -> None:
    least = "" if row["queued_bytes_complete"] else "at least "
    show_fields(
        {
            "User": row["user"] or "-",
            "From": row["address"],
            "Listener": row["listener"],
            "MQTT version": row["version"],
            "Keep alive": duration(row["keep_alive_seconds"]),
            "Since": moment(row["connected_ms"]),
            "Queued": f"{number(row['queued'])} messages, {least}{size(row['queued_bytes'])}",
            "In flight": number(row["inflight"]),
        }
    )
    show_rows(
        "Subscriptions",
        ("Filter", "QoS", "Queued"),
        [(one["filter"], one["qos"], number(one["queued"])) for one in row["subscription_list"]],
    )
