"""Somebody at a console, in this process: NiceGUI's simulated browser, which runs the same code as
a real one but for JavaScript."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import httpx
from nicegui import Client, ElementFilter, core, ui
from nicegui.functions.download import download
from nicegui.functions.navigate import Navigate
from nicegui.functions.notify import notify
from nicegui.testing import User
from nicegui.testing.general import nicegui_reset_globals, prepare_simulation
from nicegui.testing.user_interaction import UserInteraction

SECONDS_MAX: Final = 30.0
LOOK_SECONDS: Final = 0.02
LEAVING_SECONDS: Final = 0.3
FIELDS: Final = (ui.input, ui.number, ui.select, ui.switch, ui.textarea)


class OneTab(User):
    """A simulated browser that leaves a screen when it opens another, as a tab does."""

    async def open(self, path: str, *, clear_forward_history: bool = True) -> Client:
        left = self.client
        found = await super().open(path, clear_forward_history=clear_forward_history)
        if left is not None:  # what led here may have something to do there yet
            asyncio.get_running_loop().call_later(LEAVING_SECONDS, _leave, left)
        return found


def _leave(client: Client) -> None:
    if client.id in Client.instances:
        client.delete()


class Person:
    """What somebody sees and does. Everything waits until it can be done."""

    def __init__(self, user: User) -> None:
        self.user = user

    async def open(self, path: str) -> None:
        """Go to a screen."""
        await self.user.open(path)

    async def until(self, found: Callable[[], Any], what: str) -> Any:
        """Look again and again, as a person does."""
        loop = asyncio.get_running_loop()
        end = loop.time() + SECONDS_MAX
        while not (value := found()):
            assert loop.time() < end, f"{what} did not come; there is {self.texts()}"
            again = asyncio.Event()
            loop.call_later(LOOK_SECONDS, again.set)
            await again.wait()
        return value

    def elements(self, *kinds: type[ui.element]) -> list[Any]:
        """Those that are there, in the order in which they were made, without closed dialogs."""
        with self.user:
            found = [one for kind in kinds for one in ElementFilter(kind=kind, local_scope=False)]
        return sorted(filter(_is_open, found), key=lambda one: one.id)

    def texts(self) -> list[str]:
        """All that is written on the screen, and what was said."""
        found = [*self.user.notify.messages]
        for element in self.elements(ui.element):
            for value in (getattr(element, "text", None), element.props.get("label")):
                if isinstance(value, str):
                    found.append(value)
            for row in getattr(element, "rows", None) or ():
                found += map(str, row.values())
        return found

    async def sees(self, text: str) -> None:
        """Until a text is there."""
        await self.until(lambda: any(text in one for one in self.texts()), repr(text))

    def buttons(self) -> list[str]:
        """What can be pressed, without the frame of the screen."""
        return [one.text for one in self.elements(ui.button) if one.text]

    def dialog(self) -> ui.dialog | None:
        """The newest that is open: what is behind it cannot be pressed."""
        return next((one for one in reversed(self.elements(ui.dialog)) if one.value), None)

    async def press(self, label: str) -> None:
        """A button. One of a dialog has been noticed then: it closes, asks, or is disabled."""

        def found() -> Any:
            dialog = self.dialog()
            return [
                one
                for one in self.elements(ui.button)
                if one.text == label and one.enabled and one.visible
                if dialog is None or dialog in one.ancestors()
            ]

        button = (await self.until(found, f"a button {label!r}"))[-1]
        dialog = self.dialog()
        UserInteraction(self.user, {button}, None).click()
        if dialog is not None:
            await self.until(
                lambda: self.dialog() is not dialog or not button.enabled, f"what {label!r} does"
            )

    async def fill(self, label: str, value: object) -> None:
        """A field: the newest with this label."""

        def found() -> Any:
            return [one for one in self.elements(*FIELDS) if _label(one) == label]

        field = (await self.until(found, f"a field {label!r}"))[-1]
        with self.user:
            field.set_value(value)

    async def act(self, key: str, label: str) -> None:
        """The button of a row of a list."""

        def found() -> Any:
            return [
                one for one in self.elements(ui.table) if any(row["key"] == key for row in one.rows)
            ]

        (table,) = await self.until(found, f"a row {key!r}")
        assert f'label="{label}"' in table.slots["body-cell-act"].template
        UserInteraction(self.user, {table}, None).trigger("act", key)


def _is_open(element: ui.element) -> bool:
    return all(not isinstance(one, ui.dialog) or one.value for one in element.ancestors())


def _label(element: Any) -> str:
    return str(element.props.get("label") or getattr(element, "text", ""))


@contextmanager
def _simulation() -> Iterator[None]:
    """NiceGUI as it was before afterwards. (It would drop the modules of our pages, too.)"""
    modules = dict(sys.modules)
    with nicegui_reset_globals():
        os.environ["NICEGUI_USER_SIMULATION"] = "true"
        try:
            prepare_simulation()
            yield
        finally:
            os.environ.pop("NICEGUI_USER_SIMULATION", None)
            ui.navigate, ui.notify, ui.download = Navigate(), notify, download
    sys.modules.update(modules)


@asynccontextmanager
async def person_at(url: str) -> AsyncIterator[Person]:
    """Somebody at a console of the broker at this URL."""
    from polymq.console.api import Broker
    from polymq.console.app import make_app

    with _simulation():
        app = make_app(Broker(url), local=True, secure=False)
        transport = httpx.ASGITransport(app)
        async with (
            core.app.router.lifespan_context(core.app),
            httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client,
        ):
            yield Person(OneTab(client))
