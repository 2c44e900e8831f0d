"""Messages of a topic: by offset, time or key, as they come, in several views; and publishing."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any, Final

from nicegui import ui

from polymq.console.fields import show_text
from polymq.console.shell import REFRESH_SECONDS, Console, every, frame, shown_errors
from polymq.console.texts import milliseconds, moment, number, size
from polymq.console.way import show_way

ROWS: Final = 50
TAIL_ROWS: Final = 20
BODY_BYTES: Final = 4096
HEX_COLUMNS: Final = 16

Row = dict[str, Any]


def body_of(row: Row) -> bytes:
    """The bytes that are shown of a message."""
    if row["body"] is not None:
        text: str = row["body"]
        return text.encode()
    return base64.b64decode(row["body_base64"] or "")


def as_text(row: Row) -> str:
    """The body as text."""
    return body_of(row).decode("utf-8", "backslashreplace")


def as_json(row: Row) -> str:
    """The body indented, if it is JSON; else as text."""
    try:
        return json.dumps(json.loads(body_of(row)), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return as_text(row)


def as_hex(row: Row) -> str:
    """The body in hexadecimal, with the characters beside it."""
    body = body_of(row)
    lines = []
    for at in range(0, len(body), HEX_COLUMNS):
        part = body[at : at + HEX_COLUMNS]
        shown = "".join(chr(one) if 0x20 <= one < 0x7F else "." for one in part)
        lines.append(f"{at:06x}  {part.hex(' '):<{3 * HEX_COLUMNS}} {shown}")
    return "\n".join(lines)


def as_event(row: Row) -> str:
    """The message as a CloudEvent: its attributes, and the data as text."""
    attributes = {
        name.removeprefix("CE_"): value
        for name, value in row["properties"].items()
        if name.startswith("CE_")
    }
    if not attributes:
        attributes = {"type": row["tag"] or "", "source": row["topic"], "id": row["id"]}
    return json.dumps({**attributes, "data": as_text(row)}, indent=2, ensure_ascii=False)


VIEWS: Final[dict[str, Callable[[Row], str]]] = {
    "JSON": as_json,
    "text": as_text,
    "hex": as_hex,
    "CloudEvent": as_event,
}


def show_messages(console: Console, name: str) -> None:
    """The messages of a topic."""
    with frame(console, f"Messages of topic {name}", "/topics"):
        with ui.row().classes("w-full items-center"):
            queue = ui.number("Queue", value=0, min=0, format="%d").props("dense")
            offset = ui.input("From offset").props("dense")
            since = ui.input("Since (UTC)", placeholder="2026-01-31 08:00").props("dense")
            tag = ui.input("Tag").props("dense")
            key = ui.input("Key").props("dense")
            tail = ui.switch("Follow")
        box = ui.column().classes("w-full gap-1")
        seen: dict[str, Any] = {}

        def query() -> Row:
            asked: Row = {
                "queue": int(queue.value or 0),
                "tag": tag.value or None,
                "key": key.value or None,
                "since_ms": milliseconds(since.value or ""),
                "body_bytes": BODY_BYTES,
                "limit": ROWS,
            }
            if asked["key"] is not None:
                del asked["queue"]
            elif tail.value:
                asked |= {"last": TAIL_ROWS, "limit": TAIL_ROWS, "since_ms": None}
            elif offset.value:
                asked["offset"] = offset.value
            return asked

        async def refresh() -> None:
            try:
                asked = query()
            except ValueError:
                ui.notify("a time is written as 2026-01-31 08:00", type="warning")
                since.set_value("")
                return
            if asked == seen.get("asked") and not tail.value:
                return
            seen["asked"] = asked
            page = await console.ask("GET", "topics", name, "messages", query=asked)
            if page["items"] == seen.get("items"):
                return
            seen["items"] = page["items"]
            box.clear()
            with box:
                if not page["items"]:
                    ui.label("no messages")
                for row in page["items"]:
                    show_message(console, row)

        if console.may("operate"):
            _show_publish(console, name, lambda: seen.pop("asked", None))
        every(REFRESH_SECONDS, refresh)


def show_message(console: Console, row: Row, *, is_redelivered: bool = False) -> None:
    """A message: a line that opens, and its way."""
    head = f"{number(row['offset'])} · {moment(row['store_ms'])} · {row['tag'] or '(no tag)'}"
    if is_redelivered:
        head += " · redelivered"
    with (
        ui.expansion(f"{head} · {size(row['body_bytes'])}", caption=as_text(row)[:120])
        .classes("w-full")
        .props("dense")
    ):
        with ui.tabs().props("dense no-caps align=left") as tabs:
            for view in VIEWS:
                ui.tab(view)
            ui.tab("properties")
        with ui.tab_panels(tabs, value="JSON").classes("w-full"):
            for view, text in VIEWS.items():
                with ui.tab_panel(view):
                    show_text(text(row))
            with ui.tab_panel("properties"):
                shown = {
                    "key": row["key"],
                    "id": row["id"],
                    "position": row["position"],
                    "protocol": row["protocol"],
                    "sender": row["sender"],
                    "born": moment(row["born_ms"]),
                    **row["properties"],
                }
                show_text(json.dumps(shown, indent=2, ensure_ascii=False))
        ui.button("Way", icon="route", on_click=lambda: show_way(console, row["position"])).props(
            "flat dense"
        )
        if not row["body_complete"]:
            ui.label(f"the first {size(len(body_of(row)))} are shown").classes("text-caption")


def _show_publish(console: Console, name: str, published: Callable[[], object]) -> None:
    with ui.expansion("Publish a message", icon="send").classes("w-full"):
        tag = ui.input("Tag (routing key, levels with dots)").classes("w-full")
        kind = ui.input("Content type", value="application/json").classes("w-full")
        key = ui.input("Key").classes("w-full")
        body = ui.textarea("Body").classes("w-full")

        async def publish() -> None:
            with shown_errors():
                answer = await console.ask(
                    "POST",
                    "topics",
                    name,
                    "messages",
                    body={
                        "tag": tag.value or None,
                        "content_type": kind.value or None,
                        "key": key.value or None,
                        "body": body.value or "",
                    },
                )
                ui.notify(f"stored at offset {number(answer['offset'])}", type="positive")
                published()

        ui.button("Publish", on_click=publish)
