"""The first screen: whether all is well, how busy the broker is, and what needs attention."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

from nicegui import ui

from polymq.console.fields import show_fields
from polymq.console.shell import REFRESH_SECONDS, Console, every, frame
from polymq.console.texts import duration, moment, number, size

PATH = "/overview"
SAMPLES: Final = 150
"""Of the charts: with a refresh every two seconds, five minutes."""

Row = dict[str, Any]


class Rates:
    """Rates out of figures that only grow."""

    def __init__(self) -> None:
        self.messages: deque[float] = deque(maxlen=SAMPLES)
        self.bytes: deque[float] = deque(maxlen=SAMPLES)
        self._last: Row | None = None

    def add(self, broker: Row) -> None:
        """The figures of an answer. Those of a broker that was started again begin anew."""
        last, self._last = self._last, broker
        if last is None or last["started_ms"] != broker["started_ms"]:
            return
        seconds = (broker["time_ms"] - last["time_ms"]) / 1000
        if seconds > 0:
            for name, values in (
                ("messages_stored", self.messages),
                ("log_appended_bytes", self.bytes),
            ):
                values.append(max(0.0, (broker[name] - last[name]) / seconds))


def until_full(store: Row, bytes_per_second: float) -> float | None:
    """Seconds until publishers are refused, if the log goes on to grow as it does, and nothing is
    deleted. None: it does not grow."""
    if bytes_per_second < 1:
        return None
    room: int = store["free_bytes"] - store["reserve_bytes"]
    return max(0, room) / bytes_per_second


def state_text(broker: Row, store: Row) -> str:
    """The state in one sentence."""
    if broker["status"] != "ok":
        return f"Something is wrong: {broker['status']}."
    if store["state"] != "ok":
        return f"The disk needs attention: {store['reason']}."
    if not broker["users"]:
        return (
            "All is well, but there are no users: every client on the broker's machine may do "
            "everything."
        )
    return "All is well."


def show_overview(console: Console) -> None:
    """The screen."""
    rates = Rates()
    with frame(console, "Overview", PATH):
        state = ui.label().classes("text-subtitle1").props("role=status")
        with ui.row().classes("w-full"):
            messages = _Chart("Messages stored a second", lambda value: number(value))
            written = _Chart("Bytes of the log a second", lambda value: size(value))
        box = ui.row().classes("w-full items-start")

        async def refresh() -> None:
            broker = await console.ask("GET", "broker")
            store = await console.ask("GET", "store")
            rates.add(broker)
            state.set_text(state_text(broker, store))
            messages.show(rates.messages)
            written.show(rates.bytes)
            box.clear()
            with box:
                _show_cards(broker, store, rates)

        every(REFRESH_SECONDS, refresh)


def _show_cards(broker: Row, store: Row, rates: Rates) -> None:
    connections = broker["connections"]
    listed = ", ".join(f"{name} {number(count)}" for name, count in sorted(connections.items()))
    with ui.card().classes("col"):
        show_fields(
            {
                "Connections": f"{number(sum(connections.values()))} ({listed or 'none'})",
                "Topics": number(broker["topics"]),
                "Exchanges": number(broker["exchanges"]),
                "Queues": number(broker["queues"]),
                "Subscriptions": number(broker["subscriptions"]),
                "MQTT sessions": number(broker["sessions"]),
                "Retained messages": number(broker["retained"]),
                "Users": number(broker["users"]),
            }
        )
    pace = sum(rates.bytes) / len(rates.bytes) if rates.bytes else 0.0
    left = until_full(store, pace)
    held = store["held_by"]
    with ui.card().classes("col"):
        show_fields(
            {
                "Version": broker["version"],
                "Name": f"{broker['name']} ({broker['role']}, epoch {broker['epoch']})",
                "Running since": moment(broker["started_ms"]),
                "Messages stored": number(broker["messages_stored"]),
                "Log": f"{size(store['size_bytes'])} in {number(store['segments'])} segments",
                "Disk": f"{size(store['free_bytes'])} of {size(store['disk_bytes'])} free",
                "Until the disk is full": "not at this pace" if left is None else duration(left),
                "Oldest segment is held by": "nobody"
                if held is None
                else f"{held['kind']} {held['name']}",
                "Failed logins": number(broker["login_failures"]),
            }
        )


class _Chart:
    """A line that moves on."""

    def __init__(self, title: str, text: Any) -> None:
        self._text = text
        with ui.card().classes("col").style("min-width: 18em"):
            ui.label(title).classes("text-caption")
            self._value = ui.label("-").classes("text-h6")
            self._line = ui.echart(
                {
                    "animation": False,
                    "grid": {"left": 0, "right": 0, "top": 4, "bottom": 4},
                    "xAxis": {"type": "category", "show": False, "boundaryGap": False},
                    "yAxis": {"type": "value", "show": False, "min": 0},
                    "series": [{"type": "line", "data": [], "showSymbol": False, "areaStyle": {}}],
                }
            ).style("height: 6em")

    def show(self, values: deque[float]) -> None:
        self._value.set_text(self._text(values[-1]) if values else "-")
        self._line.options["series"][0]["data"] = list(values)
        self._line.update()
