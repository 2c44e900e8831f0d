"""Messages that are delivered later."""

from __future__ import annotations

import base64
from typing import Any, Final

from polymq.console.details import Action
from polymq.console.lists import Column, ListScreen, show_list, text_column
from polymq.console.shell import Console, frame
from polymq.console.texts import moment, size

PATH: Final = "/delayed"
BODY_BYTES: Final = 120


def body_text(row: dict[str, Any]) -> str:
    """The beginning of a message; `-` for who may not read it."""
    if row["body"] is not None:
        return str(row["body"])
    if row["body_base64"] is not None:
        return base64.b64decode(row["body_base64"]).decode("utf-8", "backslashreplace")
    return "-"


LIST = ListScreen(
    parts=("delayed",),
    key="id",
    columns=(
        text_column("Topic", "topic"),
        text_column("Tag", "tag"),
        Column(label="Due", text=lambda row: moment(row["due_ms"])),
        Column(label="Size", text=lambda row: size(row["body_bytes"]), align="right"),
        Column(label="Begins with", text=body_text),
    ),
    texts={"topic": "Topic"},
    query={"body_bytes": BODY_BYTES},
    action=lambda key: Action(
        label="Discard",
        icon="delete",
        right="operate",
        method="DELETE",
        parts=("delayed", key),
        question=lambda _row: "Discard this message? It is never delivered.",
    ),
)


def show_delayed(console: Console) -> None:
    """The list."""
    with frame(console, "Delayed messages", PATH):
        show_list(console, LIST)
