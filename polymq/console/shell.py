"""What all screens share: the frame with its menu, the login, dialogs, and keys.

Keys: `/` goes to the filter of a list, `?` shows all keys, and `g` with a letter opens a screen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from nicegui import app, ui
from nicegui.events import KeyEventArguments

from polymq.console.api import ApiError, Broker, Login
from polymq.console.logins import Logins

REFRESH_SECONDS: Final = 2.0
"""How often a screen asks again while it is shown."""
WANTS_LOGIN_SECONDS: Final = 30.0
"""How long a broker that wanted a login is not asked without one."""
KEY_SECONDS_MAX: Final = 1.5
"""Between `g` and the letter."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A screen in the menu.

    Attributes:
        key: opens it after `g`.
    """

    title: str
    path: str
    icon: str
    key: str


@dataclass(slots=True)
class Console:
    """What the screens know.

    Attributes:
        is_local: only this machine can use the console.
        menu: the screens, in the order of the menu.
        wants_login_until: so long the broker is not asked again whether it needs a login: each
            time would be a failed login, and failed logins slow down this machine's next ones.
    """

    broker: Broker
    logins: Logins
    is_local: bool
    menu: list[Entry] = field(default_factory=list)
    wants_login_until: float = 0.0

    def login(self) -> Login | None:
        """Of the browser that the running code serves."""
        return self.logins.get(app.storage.browser["id"])

    async def ask(self, method: str, *parts: str, **more: Any) -> Any:
        """As `Broker.ask`, with the login of this browser. Raises ApiError: status 401 also if
        nobody is logged in."""
        with self._logged_in() as login:
            return await self.broker.ask(login, method, *parts, **more)

    async def read(self, *parts: str) -> bytes:
        """As `Broker.read`, with the login of this browser. Raises ApiError as `ask`."""
        with self._logged_in() as login:
            return await self.broker.read(login, *parts)

    async def send(self, *parts: str, content: bytes, query: Mapping[str, object]) -> Any:
        """As `Broker.send`, with the login of this browser. Raises ApiError as `ask`."""
        with self._logged_in() as login:
            return await self.broker.send(login, *parts, content=content, query=query)

    @contextmanager
    def _logged_in(self) -> Iterator[Login]:
        """The login of this browser, which ends if the broker does not take it. Raises ApiError."""
        login = self.login()
        if login is None:
            raise ApiError(401, "log in first")
        try:
            yield login
        except ApiError as error:
            if error.status == 401:
                self.logins.drop(app.storage.browser["id"])
            raise

    def may(self, right: str) -> bool:
        """Whether who is logged in has a right."""
        login = self.login()
        return login is not None and login.may(right)


async def enter(console: Console, user: str, password: str) -> None:
    """Log in. Raises ApiError.

    A broker without users lets everybody in who reaches it from its own machine, and the console
    may be there. It does not extend this to other machines.
    """
    login = Login(user, password)
    try:
        caller = await console.broker.ask(login, "GET", "caller")
    except ApiError as error:
        if error.status != 403:
            raise
        text = f"{user} may not look at the broker: the console is for users with the right monitor"
        raise ApiError(403, text) from None
    if not console.is_local and caller["name"].startswith("("):  # nobody's name
        text = "the broker has no users yet: create the first with `polymq user add` at the broker"
        raise ApiError(403, text)
    console.logins.put(
        app.storage.browser["id"], Login(user, password, frozenset(caller["rights"]))
    )


async def is_let_in(console: Console) -> bool:
    """Whether the browser is logged in; if the broker has no users, it is from now on."""
    if console.login() is not None:
        return True
    now = asyncio.get_running_loop().time()
    if now < console.wants_login_until:
        return False
    try:
        await enter(console, "", "")
    except ApiError as error:
        if error.status == 401:
            console.wants_login_until = now + WANTS_LOGIN_SECONDS
        return False
    return True


@contextmanager
def frame(console: Console, title: str, path: str) -> Iterator[None]:
    """The frame of a screen."""
    ui.page_title(f"{title} - PolyMQ")
    dark = ui.dark_mode(console.logins.dark(app.storage.browser["id"]))
    _keys(console)
    login = console.login() or Login()
    with ui.left_drawer(value=False).props(
        "show-if-above bordered breakpoint=900 width=250"
    ) as menu:
        for entry in console.menu:
            with (
                ui.item(on_click=lambda at=entry.path: ui.navigate.to(at))
                .props(f"clickable dense {'active' if entry.path == path else ''}")
                .classes("rounded")
            ):
                with ui.item_section().props("avatar"):
                    ui.icon(entry.icon)
                with ui.item_section():
                    ui.item_label(entry.title)
    browser = app.storage.browser["id"]
    with ui.header().classes("items-center q-py-xs"):
        ui.button(icon="menu", on_click=menu.toggle).props('flat color=white aria-label="Menu"')
        ui.label("PolyMQ").classes("text-h6")
        ui.label(console.broker.name).classes("gt-xs text-caption")
        ui.space()
        ui.label(login.user or "no login").classes("gt-xs")
        ui.button(icon="contrast", on_click=lambda: _toggle(console, browser, dark)).props(
            'flat color=white aria-label="Light or dark"'
        )
        if login.user:
            ui.button(icon="logout", on_click=lambda: _leave(console)).props(
                'flat color=white aria-label="Log out"'
            )
    with ui.column().classes("w-full q-pa-sm"):
        ui.label(title).classes("text-h5").props("role=heading aria-level=1")
        yield


def _toggle(console: Console, browser: str, dark: ui.dark_mode) -> None:
    dark.value = not dark.value
    console.logins.set_dark(browser, wanted=dark.value)


def _leave(console: Console) -> None:
    console.logins.drop(app.storage.browser["id"])
    ui.navigate.to("/login")


def _keys(console: Console) -> None:
    waiting = {"until": 0.0}
    loop = asyncio.get_running_loop()

    def pressed(event: KeyEventArguments) -> None:
        if not event.action.keydown or event.modifiers.ctrl or event.modifiers.alt:
            return
        name = event.key.name
        if loop.time() < waiting["until"]:
            waiting["until"] = 0.0
            for entry in console.menu:
                if entry.key == name:
                    ui.navigate.to(entry.path)
        elif name == "g":
            waiting["until"] = loop.time() + KEY_SECONDS_MAX
        elif name == "/":
            ui.run_javascript("document.querySelector('.list-filter input')?.focus()")
        elif name == "?":
            _show_keys(console)

    ui.keyboard(on_key=pressed)


def _show_keys(console: Console) -> None:
    with ui.dialog(value=True), ui.card():
        ui.label("Keys").classes("text-h6")
        lines = [("/", "filter"), ("?", "these keys")]
        for key, text in [*lines, *((f"g {one.key}", one.title) for one in console.menu)]:
            with ui.row():
                ui.label(key).classes("text-mono text-bold").style("width: 3em")
                ui.label(text)


@contextmanager
def shown_errors() -> Iterator[list[ApiError]]:
    """An error of the API becomes a message on the screen, and one of the list; a login that has
    ended leads to the login."""
    errors: list[ApiError] = []
    try:
        yield errors
    except ApiError as error:
        errors.append(error)
        if error.status == 401:
            ui.navigate.to("/login")
        else:
            ui.notify(error.text, type="negative", multi_line=True)


async def confirmed(question: str, verb: str, *, typed: str = "") -> bool:
    """Ask before something that cannot be undone.

    Args:
        typed: what has to be typed first, such as the name of what is deleted; empty: nothing.
    """
    with ui.dialog(value=True) as dialog, ui.card():
        ui.label(question)
        name = ui.input(f"Type {typed} to go on").props("dense autofocus").classes("w-full")
        name.set_visibility(bool(typed))
        with ui.row().classes("w-full justify-end"):
            ui.button("Cancel", on_click=lambda: dialog.submit(False)).props(
                "flat" if typed else "flat autofocus"
            )
            go_on = ui.button(verb, on_click=lambda: dialog.submit(True)).props("color=negative")
            if typed:
                go_on.bind_enabled_from(name, "value", backward=lambda value: value == typed)
    answer = await dialog
    if not dialog.is_deleted:  # else who was asked has left the screen
        dialog.delete()
    return bool(answer)


def every(seconds: float, refresh: Callable[[], Awaitable[None]]) -> None:
    """Refresh at once and then again and again, one at a time; an error is shown in a banner until
    the next success, and asks less often meanwhile."""
    banner = ui.label().classes("w-full bg-negative text-white q-pa-sm rounded")
    banner.set_visibility(False)
    running = {"now": False}

    async def tick() -> None:
        if running["now"]:
            return
        running["now"] = True
        try:
            await refresh()
            timer.interval = seconds
            banner.set_visibility(False)
        except ApiError as error:
            if error.status == 401:
                timer.deactivate()
                ui.navigate.to("/login")
                return
            timer.interval = 5 * seconds
            banner.set_text(error.text)
            banner.set_visibility(True)
        finally:
            running["now"] = False

    timer = ui.timer(seconds, tick, immediate=True)
