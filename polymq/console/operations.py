"""The log and its disk, replication and name servers, limits, and the ban list."""

from __future__ import annotations

from typing import Any

from polymq.console.details import Action, show_details
from polymq.console.fields import show_fields, show_rows
from polymq.console.lists import Column, ListScreen, show_list, text_column
from polymq.console.shell import Console, frame
from polymq.console.texts import duration, moment, number, size

STORE_PATH = "/disk"
REPLICATION_PATH = "/replication"
LIMITS_PATH = "/limits"
BANS_PATH = "/bans"

NAME_SERVERS = ListScreen(
    parts=("name-servers",),
    key="address",
    columns=(
        text_column("Name server", "address"),
        Column(label="Registered", text=lambda row: "yes" if row["registered"] else "no"),
        text_column("Last failure", "failure"),
    ),
)
LIMITS = ListScreen(
    parts=("limits",),
    key="name",
    columns=(
        text_column("Limit", "name"),
        text_column("What it limits", "about"),
        Column(label="At most", text=lambda row: number(row["value"]), align="right"),
        Column(label="Used", text=lambda row: number(row["used"]), align="right"),
        text_column("Setting", "setting"),
    ),
)
BANS = ListScreen(
    parts=("bans",),
    key=lambda row: f"{row['kind']} {row['value']}",
    columns=(
        text_column("Who", "value"),
        text_column("Kind", "kind"),
        text_column("Reason", "reason"),
        Column(label="Since", text=lambda row: moment(row["since_ms"])),
        Column(
            label="Until",
            text=lambda row: "for ever" if row["until_ms"] is None else moment(row["until_ms"]),
        ),
        text_column("By", "by"),
    ),
    action=lambda key: Action(
        label="Remove",
        icon="delete",
        right="operate",
        method="DELETE",
        parts=("bans", key.partition(" ")[0], key.partition(" ")[2]),
        question=lambda _row: f"Remove the ban of {key}? Who was banned can connect again.",
    ),
    filters={
        "kind": {"all": "all", "client_id": "clients", "user": "users", "address": "addresses"}
    },
)


HOLDERS = ListScreen(
    parts=("store", "holders"),
    key="id",
    columns=(
        text_column("Needed by", "name"),
        text_column("Kind", "kind"),
        Column(label="From position", text=lambda row: number(row["position"]), align="right"),
        Column(label="Of the log", text=lambda row: size(row["held_bytes"]), align="right"),
        Column(label="Age", text=lambda row: duration(row["age_seconds"]), align="right"),
    ),
    sorts={"position": "position, the oldest first", "id": "kind and name"},
    filters={
        "kind": {
            "all": "all",
            "topic": "topics",
            "queue": "AMQP queues",
            "subscription": "subscriptions",
            "session": "MQTT sessions",
            "share": "shared subscriptions",
            "group": "other cursors",
            "delayed": "delayed and half messages",
            "retained": "retained messages",
            "backup": "backups",
            "unsaved": "what is not saved yet",
        }
    },
)


def show_store(console: Console) -> None:
    """The log and its disk: who holds what."""
    with frame(console, "Disk and retention", STORE_PATH):
        show_details(console, ("store",), _show_store)
        show_list(console, HOLDERS)


def _show_store(row: dict[str, Any]) -> None:
    held = row["held_by"]
    most = row["log_bytes_max"]
    show_fields(
        {
            "State": row["state"],
            "Reason": row["reason"] or "-",
            "Free": f"{size(row['free_bytes'])} of {size(row['disk_bytes'])}",
            "Publishers are refused below": size(row["reserve_bytes"]),
            "Messages go early below": size(row["early_bytes"]),
            "Log": f"{size(row['size_bytes'])} in {number(row['segments'])} segments of "
            f"{size(row['segment_bytes'])}",
            "Limit of the log": size(most) if most else "none",
            "Positions": f"{number(row['start'])} to {number(row['end'])}",
            "Oldest segment is held by": "nobody"
            if held is None
            else f"{held['kind']} {held['name']}, from position {number(row['held_position'])}",
        }
    )
    show_rows(
        "Since the start",
        ("What", "How much"),
        [
            ("Deleted from the log", size(row["deleted_bytes"])),
            ("Messages that retention removed", number(row["trimmed_messages"])),
            ("Of these, because space ran out", number(row["trimmed_early_messages"])),
            ("Messages that queues and sessions lost", number(row["dropped_messages"])),
            ("Retained messages copied forward", number(row["copied_messages"])),
        ],
    )


def show_replication(console: Console) -> None:
    """The broker's part in its group, and its name servers."""
    with frame(console, "Replication", REPLICATION_PATH):
        show_details(console, ("replication",), _show_replication)
        show_list(console, NAME_SERVERS)


def _show_replication(row: dict[str, Any]) -> None:
    fields = {
        "Role": row["role"],
        "Name": row["name"],
        "Epoch": row["epoch"],
        "Term": row["term"],
        "On its disk up to": number(row["flushed"]),
    }
    if "master" in row:
        fields |= {
            "Master": row["master"],
            "Follows": "yes" if row.get("following") else "no",
            "Lag": f"{size(row.get('lag_bytes'))}, {duration(row.get('lag_seconds'))}",
            "Heard of it": moment(row.get("heard_ms")),
        }
    if "reason" in row:
        fields["Reason"] = row["reason"]
    show_fields(fields)
    show_rows(
        "Slaves",
        ("Name", "Address", "On its disk up to", "Lag"),
        [
            (
                name,
                one["address"],
                number(one["flushed"]),
                f"{size(one['lag_bytes'])}, {duration(one['lag_seconds'])}",
            )
            for name, one in (row.get("replicas") or {}).items()
        ],
    )


def show_limits(console: Console) -> None:
    """What is bounded, and how much of it is used."""
    with frame(console, "Limits", LIMITS_PATH):
        show_list(console, LIMITS)


def show_bans(console: Console) -> None:
    """Who is kept out."""
    with frame(console, "Ban list", BANS_PATH):
        show_list(console, BANS)
