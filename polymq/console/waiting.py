"""What waits in a queue, page by page. Looking at it takes nothing away."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

from nicegui import ui

from polymq.console.messages import BODY_BYTES, show_message
from polymq.console.shell import REFRESH_SECONDS, Console, every, frame, shown_errors

PATH: Final = "/waiting"
ROWS: Final = 50


def show_waiting(console: Console, name: str) -> None:
    """The messages of a queue that are ready, in the order in which consumers get them."""
    with frame(console, f"Messages in queue {name}", "/queues"):
        with ui.row().classes("w-full items-center"):
            ui.button(
                "Queue",
                icon="inbox",
                on_click=lambda: ui.navigate.to(f"/queues/{quote(name, safe='')}"),
            )
            ui.space()
            with ui.row().classes("no-wrap"):
                first = ui.button("First page", icon="first_page").props("flat dense")
                following = ui.button("Next page", icon="chevron_right").props("flat dense")
        box = ui.column().classes("w-full gap-1")
        at: dict[str, Any] = {"after": None}

        async def refresh() -> None:
            query = {"limit": ROWS, "body_bytes": BODY_BYTES, "after": at["after"]}
            page = await console.ask("GET", "queues", name, "messages", query=query)
            first.set_enabled(at["after"] is not None)
            following.set_enabled(page["next"] is not None)
            if page == at.get("page"):
                return
            at["page"] = page
            box.clear()
            with box:
                if not page["items"]:
                    ui.label("nothing waits")
                for row in page["items"]:
                    show_message(console, row["message"], is_redelivered=row["redelivered"])

        async def turn(after: str | None) -> None:
            at["after"] = after
            with shown_errors():
                await refresh()

        first.on_click(lambda: turn(None))
        following.on_click(lambda: turn(at["page"]["next"]))
        every(REFRESH_SECONDS, refresh)
