"""Connections of clients, in all protocols."""

from __future__ import annotations

from typing import Any, Final

from polymq.console.details import Action, show_actions, show_details
from polymq.console.fields import show_fields
from polymq.console.forms import Field, Form
from polymq.console.lists import Column, ListScreen, number_column, opens, show_list, text_column
from polymq.console.shell import Console, frame
from polymq.console.texts import moment, number, size

PATH = "/connections"

PROTOCOLS: Final = {
    "all": "all",
    "mqtt": "MQTT",
    "amqp": "AMQP",
    "http": "HTTP",
    "rocketmq": "RocketMQ",
}

LIST = ListScreen(
    parts=("connections",),
    key="id",
    columns=(
        Column(label="Client", text=lambda row: row["client"] or row["peer"]),
        Column(
            label="Protocol",
            text=lambda row: f"{row['protocol']}, TLS" if row["tls"] else str(row["protocol"]),
        ),
        text_column("User", "user"),
        text_column("From", "peer"),
        text_column("State", "state"),
        number_column("Channels", "channels"),
        number_column("Consumers", "consumers"),
        Column(label="Sent", text=lambda row: size(row["sent_bytes"]), align="right"),
        Column(label="Since", text=lambda row: moment(row["connected_ms"])),
    ),
    sorts={"newest": "newest", "oldest": "oldest"},
    texts={"prefix": "Names begin with", "user": "User", "address": "Address or network"},
    filters={"protocol": PROTOCOLS},
    opened=opens(PATH),
)
CLOSE_MANY = Form(
    label="Close several",
    title="Close all connections that have all of this",
    icon="link_off",
    right="operate",
    fields=lambda _row: {
        "user": Field(label="User"),
        "address": Field(label="Address or network", hint="such as 10.1.0.0/16"),
        "prefix": Field(label="Client names begin with"),
        "protocol": Field(label="Protocol", choices=PROTOCOLS, value="all"),
        "reason": Field(label="What the clients are told"),
    },
    method="POST",
    parts=lambda _values: ("connections", "close"),
    tries=True,
    question=lambda answer: (
        f"Close {number(answer['connections'])} connections? Most clients connect again."
    ),
    done=lambda answer: f"{number(answer['connections'])} connections closed",
    is_harmless=False,
)


def show_connections(console: Console) -> None:
    """The list."""
    with frame(console, "Connections", PATH):
        show_actions(console, [CLOSE_MANY])
        show_list(console, LIST)


def show_connection(console: Console, identity: str) -> None:
    """One connection."""
    close = Action(
        label="Close",
        icon="link_off",
        right="operate",
        method="DELETE",
        parts=("connections", identity),
        question=lambda row: (
            f"Close the connection of {row.get('client') or row.get('peer')}? "
            "Most clients connect again."
        ),
        leads_to=PATH,
    )
    with frame(console, "Connection", PATH):
        show_details(console, ("connections", identity), _show, actions=[close])


def _show(row: dict[str, Any]) -> None:
    show_fields(
        {
            "Client": row["client"] or "-",
            "Protocol": row["protocol"] + (", TLS" if row["tls"] else ""),
            "User": row["user"] or "-",
            "From": row["peer"],
            "Listener": row["listener"],
            "State": row["state"],
            "Waits for": ", ".join(row["waits_for"]) or "-",
            "Channels": number(row["channels"]),
            "Consumers": number(row["consumers"]),
            "Sent": size(row["sent_bytes"]),
            "Since": moment(row["connected_ms"]),
        }
    )
