"""Traces: packets of MQTT clients as they come and go, and deliveries of messages.

A trace belongs to the browser tab that began it, and ends with it. Its lines are bounded in number
and in length. What comes faster than a person reads is left out, and said.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from typing import Any, Final

from nicegui import background_tasks, ui

from polymq.console.api import ApiError, Login
from polymq.console.details import Action
from polymq.console.lists import Column, ListScreen, number_column, show_list, text_column
from polymq.console.shell import Console, frame
from polymq.console.texts import moment, number
from polymq.packet_texts import event_text, packet_text

PATH: Final = "/traces"
LINES_MAX: Final = 500
"""That are kept and shown of a trace."""
LINE_CHARACTERS_MAX: Final = 400
"""Of a line that is shown. The command `polymq trace` shows all of it."""
LINES_AT_ONCE: Final = 100
"""That a browser gets at a time: more than anybody reads until the next."""
SHOWN_SECONDS: Final = 0.5
"""How often new lines are shown."""
MESSAGES: Final = "messages"
KINDS: Final = {
    "client_id": "client identifier",
    "topic": "topic filter",
    "address": "address",
    MESSAGES: "deliveries, by topic filter",
}

LIST = ListScreen(
    parts=("mqtt", "traces"),
    key="number",
    columns=(
        text_column("Trace", "number"),
        text_column("Shows", "kind"),
        Column(
            label="Of", text=lambda row: row["client_id"] or row["topic"] or row["address"] or "all"
        ),
        text_column("By", "by"),
        Column(label="Since", text=lambda row: moment(row["started_ms"])),
        number_column("Connections", "connections"),
        number_column("Lines dropped", "dropped"),
    ),
    texts={},
    action=lambda key: Action(
        label="End",
        icon="stop",
        right="operate",
        method="DELETE",
        parts=("mqtt", "traces", key),
        question=lambda _row: f"End trace {key}? Whoever reads it sees no more of it.",
    ),
)


class Tail:
    """The lines of a trace that wait to be shown.

    Attributes:
        count: lines that came.
        left_out: lines that are shown to nobody.
    """

    def __init__(self) -> None:
        self._waiting: deque[str] = deque(maxlen=LINES_AT_ONCE)
        self.count = 0
        self.left_out = 0

    def add(self, line: bytes) -> None:
        """A line of the API."""
        value: dict[str, Any] = json.loads(line)
        if "dropped" in value:
            self.left_out += value["dropped"]
            return
        self.count += 1
        self.left_out += len(self._waiting) == LINES_AT_ONCE
        shown = event_text(value) if "event" in value else packet_text(value)
        text = shown.replace("\n", " ")
        if len(text) > LINE_CHARACTERS_MAX:
            text = text[:LINE_CHARACTERS_MAX] + "..."
        self._waiting.append(text)

    def take(self) -> list[str]:
        """What has come since it was last asked for."""
        lines = list(self._waiting)
        self._waiting.clear()
        return lines


class _Trace:
    """The trace of a tab while it runs, and what is left of it then."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.tail = Tail()
        self.error = ""
        self._task: asyncio.Task[None] | None = None

    @property
    def runs(self) -> bool:
        return self._task is not None and not self._task.done()

    def begin(self, login: Login, kind: str, asked: dict[str, Any]) -> None:
        self.end()
        self.tail, self.error = Tail(), ""
        self._task = background_tasks.create(self._read(login, kind, asked, self.tail))

    def end(self) -> None:
        """The broker notices that nobody reads any more. Safe to call again."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _read(self, login: Login, kind: str, asked: dict[str, Any], tail: Tail) -> None:
        of = "messages" if kind == MESSAGES else "mqtt"
        lines = self._console.broker.lines(
            login, of, "traces", body=asked, seconds=asked["seconds"]
        )
        try:
            async for line in lines:
                tail.add(line)
        except ApiError as error:
            self.error = error.text
        finally:
            await lines.aclose()

    def text(self) -> str:
        """Its state in a sentence."""
        if self.error:
            return self.error
        if self._task is None and not self.tail.count:
            return "No trace runs in this tab."
        state = "The trace runs" if self.runs else "The trace has ended"
        text = f"{state}: {number(self.tail.count)} lines"
        if self.tail.left_out:
            text += f", {number(self.tail.left_out)} left out because they came too fast"
        return f"{text}."


def asked_for(
    kind: str, value: str, seconds: float | None, payload: float | None, sample: float | None
) -> dict[str, Any]:
    """What the API is asked for."""
    for_seconds = {"seconds": int(seconds or 60)}
    if kind == MESSAGES:
        return {"topic": value, "sample": int(sample or 1), **for_seconds}
    return {kind: value, "payload": int(payload or 0), **for_seconds}


def show_traces(console: Console) -> None:
    """The traces that run, and one of this tab."""
    with frame(console, "Traces", PATH):
        if console.may("operate"):
            _show_own(console)
        ui.label("Traces that run").classes("text-h6").props("role=heading aria-level=2")
        show_list(console, LIST)


def _show_own(console: Console) -> None:
    trace = _Trace(console)
    with ui.card().classes("w-full"):
        with ui.row().classes("w-full items-center"):
            kind = (
                ui.select(dict(KINDS), value="client_id", label="Trace by")
                .props("dense")
                .style("min-width: 11em")
            )
            value = ui.input("Which").props("dense")
            seconds = ui.number("Seconds", value=60, min=1, max=86_400, format="%d").props("dense")
            payload = ui.number("Payload bytes", value=0, min=0, max=4_096, format="%d").props(
                "dense"
            )
            payload.style("min-width: 8em")
            sample = ui.number("One message in", value=1, min=1, max=1_000_000, format="%d")
            sample.props("dense").style("min-width: 8em")
            payload.bind_visibility_from(kind, "value", lambda chosen: chosen != MESSAGES)
            sample.bind_visibility_from(kind, "value", lambda chosen: chosen == MESSAGES)

            def begin() -> None:
                login = console.login()
                if login is None:
                    ui.navigate.to("/login")
                    return
                if not (value.value or "").strip():
                    ui.notify(f"name the {KINDS[kind.value]} to trace", type="warning")
                    return
                log.clear()
                asked = asked_for(
                    kind.value, value.value.strip(), seconds.value, payload.value, sample.value
                )
                trace.begin(login, kind.value, asked)
                show()

            def end() -> None:
                trace.end()
                show()

            begun = ui.button("Begin", icon="play_arrow", on_click=begin)
            ended = ui.button("End", icon="stop", on_click=end)
        state = ui.label().props("role=status")
        log = (
            ui.log(max_lines=LINES_MAX)
            .classes("w-full text-mono")
            .style("height: 24em")
            .props('aria-label="Packets"')
        )

    def show() -> None:
        for line in trace.tail.take():
            log.push(line)
        state.set_text(trace.text())
        begun.set_visibility(not trace.runs)
        ended.set_visibility(trace.runs)

    show()
    ui.timer(SHOWN_SECONDS, show)
    ui.context.client.on_delete(trace.end)
