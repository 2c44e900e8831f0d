"""The console as a web application, and how it is served."""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import uvicorn
from fastapi import FastAPI
from nicegui import Client, ui
from nicegui import app as nicegui_app
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response

from polymq.console import (
    access,
    backups,
    configuration,
    connect,
    connections,
    dead_letters,
    delayed,
    log_lines,
    messages,
    mqtt_clients,
    operations,
    overview,
    queues,
    readers,
    retained,
    sessions,
    topics,
    traces,
    waiting,
    webhooks,
)
from polymq.console.api import ANSWER_SECONDS_MAX, ApiError, Broker
from polymq.console.logins import Logins
from polymq.console.shell import Console, Entry, enter, is_let_in
from polymq.host_header import names_this_machine
from polymq.settings import is_loopback

RECONNECT_SECONDS: Final = 10.0
"""How long a screen waits for a browser that is slow or has lost its connection. Then it is built
anew, and what was typed is gone."""
MENU: Final = (
    Entry("Overview", overview.PATH, "monitor_heart", "o"),
    Entry("Topics", topics.PATH, "topic", "t"),
    Entry("Queues", queues.PATH, "inbox", "q"),
    Entry("Connect", connect.PATH, "power", "h"),
    Entry("Consumers", readers.PATH, "speed", "c"),
    Entry("Connections", connections.PATH, "cable", "n"),
    Entry("MQTT clients", mqtt_clients.PATH, "devices", "i"),
    Entry("MQTT sessions", sessions.PATH, "sensors", "s"),
    Entry("Retained", retained.PATH, "push_pin", "e"),
    Entry("Delayed", delayed.PATH, "schedule", "y"),
    Entry("Traces", traces.PATH, "troubleshoot", "m"),
    Entry("Dead letters", dead_letters.PATH, "report", "x"),
    Entry("Webhooks", webhooks.PATH, "webhook", "w"),
    Entry("Users", access.PATH, "group", "u"),
    Entry("Permissions", access.RULES_PATH, "rule", "p"),
    Entry("Ban list", operations.BANS_PATH, "block", "b"),
    Entry("Disk and retention", operations.STORE_PATH, "storage", "d"),
    Entry("Replication", operations.REPLICATION_PATH, "sync_alt", "r"),
    Entry("Backups", backups.PATH, "backup", "k"),
    Entry("Configuration", configuration.PATH, "settings", "f"),
    Entry("Log", log_lines.PATH, "article", "a"),
    Entry("Limits", operations.LIMITS_PATH, "straighten", "l"),
)
Screen = Callable[..., Awaitable[None] | None]

SCREENS: Final[Mapping[str, Screen]] = {
    overview.PATH: overview.show_overview,
    topics.PATH: topics.show_topics,
    f"{topics.PATH}/{{name:path}}": topics.show_topic,
    "/messages/{name:path}": messages.show_messages,
    f"{waiting.PATH}/{{name:path}}": waiting.show_waiting,
    queues.PATH: queues.show_queues,
    f"{queues.PATH}/{{name:path}}": queues.show_queue,
    connect.PATH: connect.show_connect,
    f"{connect.PATH}/{{name:path}}": connect.show_connect,
    readers.PATH: readers.show_readers,
    f"{readers.PATH}/{{name:path}}": readers.show_reader,
    connections.PATH: connections.show_connections,
    f"{connections.PATH}/{{name:path}}": connections.show_connection,
    mqtt_clients.PATH: mqtt_clients.show_clients,
    f"{mqtt_clients.PATH}/{{name:path}}": mqtt_clients.show_client,
    sessions.PATH: sessions.show_sessions,
    f"{sessions.PATH}/{{name:path}}": sessions.show_session,
    retained.PATH: retained.show_all_retained,
    f"{retained.PATH}/{{name:path}}": retained.show_retained,
    delayed.PATH: delayed.show_delayed,
    traces.PATH: traces.show_traces,
    dead_letters.PATH: dead_letters.show_dead_letters,
    f"{dead_letters.PATH}/{{name:path}}": dead_letters.show_location,
    webhooks.PATH: webhooks.show_webhooks,
    f"{webhooks.PATH}/{{name:path}}": webhooks.show_webhook,
    access.PATH: access.show_users,
    f"{access.PATH}/{{name:path}}": access.show_user,
    access.RULES_PATH: access.show_rules,
    operations.BANS_PATH: operations.show_bans,
    operations.STORE_PATH: operations.show_store,
    operations.REPLICATION_PATH: operations.show_replication,
    backups.PATH: backups.show_backups,
    configuration.PATH: configuration.show_configuration,
    operations.LIMITS_PATH: operations.show_limits,
    log_lines.PATH: log_lines.show_log,
}
"""The screens by their paths. `{name}` is the object that a screen is about."""
DRAIN_SECONDS: Final = 2


def serve_console(
    broker: Broker, sockets: list[socket.socket], *, certificate: str = "", key: str = ""
) -> None:
    """Serve until a signal.

    Args:
        sockets: bound, of one address.
        certificate: file with the certificate of the console, for https.
        key: file with its key.
    """
    host = sockets[0].getsockname()[0]
    config = uvicorn.Config(
        make_app(broker, local=is_loopback(host), secure=bool(certificate)),
        log_level="warning",
        ws_max_size=1024 * 1024,
        timeout_graceful_shutdown=DRAIN_SECONDS,
        ssl_certfile=certificate or None,
        ssl_keyfile=key or None,
        server_header=False,
    )
    uvicorn.Server(config).run(sockets=sockets)


def make_app(broker: Broker, *, local: bool, secure: bool) -> FastAPI:
    """The application.

    Args:
        local: it listens on loopback, so requests have to name loopback as their host: no page of
            another name that leads here may use it.
        secure: it is served over https, and browsers are to send its cookie over nothing else.
    """
    ui.button.default_props("no-caps unelevated")
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    console = Console(broker, Logins(time.monotonic), local, list(MENU))
    nicegui_app.on_startup(broker.start)
    nicegui_app.on_shutdown(broker.stop)
    nicegui_app.add_exception_handler(404, _not_found)
    _add_pages(console)
    ui.run_with(
        app,
        title="PolyMQ",
        dark=None,
        language="en-GB",
        storage_secret=secrets.token_urlsafe(),
        show_welcome_message=False,
        reconnect_timeout=RECONNECT_SECONDS,
        session_middleware_kwargs={"same_site": "strict", "https_only": secure},
    )
    if local:
        app.add_middleware(BaseHTTPMiddleware, dispatch=_check_host)
    return app


async def _check_host(
    request: Request, call_next: Callable[[Request], Awaitable[Response]]
) -> Response:
    if not names_this_machine(request.headers.get("host", "")):
        return PlainTextResponse("this console is for this machine only", status_code=403)
    return await call_next(request)


async def _not_found(request: Request, _error: Exception) -> Response:
    """The answer to a path that is no screen."""
    with Client(ui.page(""), request=request) as client:
        ui.page_title("Not found - PolyMQ")
        with ui.column().classes("absolute-center items-center"):
            ui.label("There is no such screen").classes("text-h5").props(
                "role=heading aria-level=1"
            )
            ui.label("The address may be mistyped, or of another version of the console.")
            ui.button("Overview", on_click=lambda: ui.navigate.to("/"))
    return client.build_response(request, 404)


def _add_pages(console: Console) -> None:
    def page(path: str, show: Screen) -> None:
        """A screen that only those see who are logged in."""

        async def answer(*names: str) -> Response | None:
            if not await is_let_in(console):
                return RedirectResponse("/login")
            asking = show(console, *names)
            if asking is not None:
                await asking
            return None

        async def shown() -> Response | None:
            return await answer()

        async def shown_one(name: str) -> Response | None:
            return await answer(name)

        wanted = shown_one if "{name" in path else shown
        ui.page(path, response_timeout=ANSWER_SECONDS_MAX)(wanted)

    @ui.page("/")
    def first() -> Response:
        return RedirectResponse(MENU[0].path)

    @ui.page("/login")
    def login() -> None:
        _show_login(console)

    for path, show in SCREENS.items():
        page(path, show)


def _show_login(console: Console) -> None:
    ui.page_title("Log in - PolyMQ")
    with ui.column().classes("absolute-center items-stretch"), ui.card().style("min-width: 20em"):
        ui.label("PolyMQ").classes("text-h5").props("role=heading aria-level=1")
        ui.label(f"Broker {console.broker.name}").classes("text-caption")
        user = ui.input("User").props('autofocus autocomplete="username"').classes("w-full")
        password = (
            ui.input("Password", password=True, password_toggle_button=True)
            .props('autocomplete="current-password"')
            .classes("w-full")
        )
        wrong = ui.label().classes("text-negative").props("role=alert")

        async def log_in() -> None:
            try:
                await enter(console, user.value, password.value)
            except ApiError as error:
                wrong.set_text(error.text)
                return
            ui.navigate.to("/")

        password.on("keydown.enter", log_in)
        user.on("keydown.enter", log_in)
        ui.button("Log in", on_click=log_in).classes("w-full")
