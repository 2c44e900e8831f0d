"""How clients connect to this broker, and a first message to see that it works."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote, urlsplit

from nicegui import ui

from polymq.console.api import ApiError
from polymq.console.fields import show_text
from polymq.console.messages import show_message
from polymq.console.shell import REFRESH_SECONDS, Console, every, frame, shown_errors
from polymq.console.snippets import LANGUAGES, PROTOCOLS, Protocol, Target, program
from polymq.console.texts import number

PATH: Final = "/connect"
TOPIC_DEFAULT: Final = "hello"
ALL_ADDRESSES: Final = ("0.0.0.0", "::", "")
MESSAGES_SHOWN: Final = 10
QUEUES_SHOWN: Final = 4
"""Of a topic: a topic for a first message has one."""
BODY_BYTES: Final = 4_096

Row = dict[str, Any]


def show_connect(console: Console, topic: str = TOPIC_DEFAULT) -> None:
    """Programs for each protocol, and messages of the topic."""
    with frame(console, "Connect", PATH):
        with ui.row().classes("w-full items-center"):
            wanted = ui.input("Topic", value=topic).props("dense")
            language = (
                ui.select(list(LANGUAGES), value=LANGUAGES[0], label="Language")
                .props("dense")
                .style("min-width: 9em")
            )
        with ui.tabs().props("dense no-caps align=left").classes("w-full") as tabs:
            for one in PROTOCOLS:
                ui.tab(one.name)
        tabs.set_value(PROTOCOLS[0].name)
        box = ui.column().classes("w-full")
        listeners: list[Row] = []

        def show() -> None:
            (protocol,) = [one for one in PROTOCOLS if one.name == tabs.value]
            box.clear()
            with box:
                _show_program(
                    console, protocol, language.value, listeners, (wanted.value or "").strip()
                )

        async def refresh() -> None:
            found = (await console.ask("GET", "listeners"))["items"]
            if found != listeners or not box.default_slot.children:
                listeners[:] = found
                show()

        def open_topic() -> None:
            name = (wanted.value or "").strip() or TOPIC_DEFAULT
            ui.navigate.to(f"{PATH}/{quote(name, safe='')}")

        tabs.on_value_change(show)
        language.on_value_change(show)
        wanted.on("keydown.enter", open_topic)
        wanted.on("blur", lambda: open_topic() if wanted.value != topic else None)
        every(REFRESH_SECONDS, refresh)
        _show_client(console, topic)


def listening(listeners: list[Row], protocol: Protocol) -> str:
    """Where the listeners of a protocol are, in a sentence."""
    found = [
        f"{one['name']} at {where(one)}"
        for one in listeners
        if one["protocol"] == protocol.listener
    ]
    if not found:
        return (
            f"No listener for {protocol.name} is open: see the section [{protocol.listener}] of "
            "the configuration."
        )
    return f"Listeners: {', '.join(found)}."


def where(listener: Row) -> str:
    """The port of a listener, or the path of its socket."""
    path = listener.get("path")  # brokers before it was there have ports only
    return f"port {listener['port']}" if path is None else str(path)


def host_for(url: str, bound: str) -> str:
    """The host that a program connects to.

    Args:
        url: of the broker, as the console knows it.
        bound: the address of the listener.
    """
    return (urlsplit(url).hostname or bound) if bound in ALL_ADDRESSES else bound


def _show_program(
    console: Console, protocol: Protocol, language: str, listeners: list[Row], topic: str
) -> None:
    ui.label(listening(listeners, protocol))
    plain = next((one for one in listeners if one["name"] == protocol.listener), None)
    if plain is None:
        if any(one["protocol"] == protocol.listener for one in listeners):
            ui.label("The listeners are for TLS only. The programs here are for one without TLS.")
        return
    login = console.login()
    user = "" if login is None else login.user
    target = Target(
        host=host_for(console.broker.url, plain["host"]),
        port=plain["port"],
        topic=topic or TOPIC_DEFAULT,
        user=user,
    )
    text = program(protocol, language, target)
    if not text:
        ui.label(protocol.others.format(language=language))
        return
    if user:
        ui.label(f"The program logs in as {user}: {protocol.key}.").classes("text-caption")
    ui.button("Copy", icon="content_copy", on_click=lambda: ui.clipboard.write(text)).props(
        "flat dense"
    )
    show_text(text)


def _show_client(console: Console, topic: str) -> None:
    """The newest messages of a topic, and a field to publish one."""
    ui.label(f"Messages of topic {topic}").classes("text-h6").props("role=heading aria-level=2")
    if console.may("operate"):
        with ui.row().classes("w-full items-center"):
            tag = ui.input("Tag", value="hello").props("dense")
            body = ui.input("Message", value="hello").props("dense").classes("col")

            async def publish() -> None:
                with shown_errors():
                    answer = await console.ask(
                        "POST",
                        "topics",
                        topic,
                        "messages",
                        body={"tag": tag.value or None, "body": body.value or ""},
                    )
                    ui.notify(f"stored at offset {number(answer['offset'])}", type="positive")

            ui.button("Publish", icon="send", on_click=publish)
            body.on("keydown.enter", publish)
    box = ui.column().classes("w-full gap-1")
    seen: dict[str, Any] = {}

    async def refresh() -> None:
        try:
            rows = await newest(console, topic)
        except ApiError as error:
            if error.status != 403:
                raise
            rows, seen["refused"] = [], error.text
        if seen.get("rows") == rows:
            return
        seen["rows"] = rows
        box.clear()
        with box:
            if not rows:
                ui.label(seen.get("refused", "no messages"))
            for row in rows:
                show_message(console, row)

    every(REFRESH_SECONDS, refresh)


async def newest(console: Console, topic: str) -> list[Row]:
    """The newest messages of a topic's first queues, the newest first; none of a topic that is not
    there. Raises ApiError."""
    rows: list[Row] = []
    try:
        found = await console.ask("GET", "topics", topic)
        for queue in range(min(QUEUES_SHOWN, len(found["queues"]))):
            query = {
                "queue": queue,
                "last": MESSAGES_SHOWN,
                "limit": MESSAGES_SHOWN,
                "body_bytes": BODY_BYTES,
            }
            page = await console.ask("GET", "topics", topic, "messages", query=query)
            rows += page["items"]
    except ApiError as error:
        if error.status == 404:
            return []
        raise
    rows.sort(key=lambda row: row["position"], reverse=True)
    return rows[:MESSAGES_SHOWN]
