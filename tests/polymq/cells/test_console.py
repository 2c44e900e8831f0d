"""Each cell of the column "console" of the table of operations: somebody does it at a console, and
its operation is what arrives at the server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nicegui", reason="needs the extra `console`")

from nicegui import Client, ui

from docs.site.operations import REACHED, is_reason
from interop_tests.people import PASSWORD
from polymq.console.app import SCREENS
from tests.polymq.cells.console_user import Person, person_at
from tests.polymq.cells.world import World, made_world

Doing = Sequence[str | tuple[str, object]]
"""What is done in a dialog: buttons that are pressed, and fields with what is put into them."""


class Tour:
    """Goes through cells, and keeps which.

    Attributes:
        done: operations with the button that sent them; a screen that shows something has none.
    """

    def __init__(self, world: World, person: Person) -> None:
        self.world = world
        self.person = person
        self.done: set[tuple[str, str]] = set()

    async def open(self, path: str, *operations: str, sees: str = "") -> None:
        """A screen, which asks for these."""
        self.world.recorder.forget()
        await self.person.open(path)
        await self.person.sees(sees)
        for operation in operations:
            await self._arrives(operation, "")

    async def press(
        self,
        operation: str,
        button: str,
        doing: Doing = (),
        *,
        row: str = "",
        leads_to: str = "",
        is_so: Callable[[], Any] = lambda: True,
    ) -> None:
        """A button of the screen, or of a row of its list, and then what its dialogs want.

        Args:
            leads_to: the screen that is shown then.
            is_so: what holds then.
        """
        self.world.recorder.forget()
        if row:
            await self.person.act(row, button)
        else:
            await self.person.press(button)
        if doing:
            await self.person.until(self.person.dialog, f"the dialog of {button!r}")
        for one in doing:
            if isinstance(one, str):
                await self.person.press(one)
            else:
                await self.person.fill(*one)
        await self._arrives(operation, button)
        await self.person.until(is_so, f"what {button!r} does")
        history = self.person.user.back_history
        await self.person.until(lambda: history[-1].endswith(leads_to), leads_to)

    async def _arrives(self, operation: str, button: str) -> None:
        seen = self.world.recorder
        await self.person.until(lambda: operation in seen.seen, f"{operation} by {button!r}")
        self.done.add((operation, button))


async def of_topics(tour: Tour) -> None:
    """Topics and their messages."""
    get = tour.world.get
    await tour.open("/topics", "GET /topics", sees="things")
    create: Doing = [("Name of the topic", "new"), "Create"]
    await tour.press(
        "PUT /topics/{name}",
        "New topic",
        create,
        leads_to="/topics/new",
        is_so=lambda: get("topics", "new"),
    )
    await tour.open("/topics/new", "GET /topics/{name}", sees="retention_seconds")
    await tour.press(
        "PATCH /topics/{name}",
        "Change settings",
        [("retention_seconds", "70"), "Save"],
        is_so=lambda: get("topics", "new")["settings"]["retention_seconds"] == 70,
    )
    await tour.press(
        "DELETE /topics/{name}",
        "Delete",
        [("Type new to go on", "new"), "Delete"],
        leads_to="/topics",
        is_so=lambda: get("topics", "new") is None,
    )
    await tour.open("/messages/things", "GET /topics/{name}/messages", sees="hello")
    await tour.press("GET /messages/{position}/way", "Way")
    await tour.open("/messages/things")
    count = get("topics", "things")["message_count"]
    await tour.press(
        "POST /topics/{name}/messages",
        "Publish",
        [],
        is_so=lambda: get("topics", "things")["message_count"] > count,
    )


async def of_queues(tour: Tour) -> None:
    """Queues, their bindings, and what waits in them."""

    def queue(name: str) -> Any:
        return tour.world.get("queues", name)

    def bound() -> list[str]:
        return [one["exchange"] for one in queue("orders")["bindings"]]

    await tour.open("/queues", "GET /queues", sees="orders")
    await tour.press(
        "PUT /queues/{name}",
        "New queue",
        [("Name of the queue", "made"), ("Messages at most", 7), "Create"],
        leads_to="/queues/made",
        is_so=lambda: queue("made") and queue("made")["arguments"] == {"x-max-length": 7},
    )
    await tour.open("/queues/orders", "GET /queues/{name}", sees="2 messages, ")
    await tour.press(
        "POST /queues/{name}/bind",
        "Bind",
        [("Exchange", "things"), ("Routing key", "a.b"), "Bind"],
        is_so=lambda: "things" in bound(),
    )
    await tour.person.sees("a.b")
    await tour.press(
        "POST /queues/{name}/unbind",
        "Unbind",
        [("Binding", '["things", "a.b"]'), "Unbind"],
        is_so=lambda: "things" not in bound(),
    )
    await tour.press(
        "POST /queues/{name}/pause", "Pause", is_so=lambda: queue("orders")["paused_ms"]
    )
    await tour.press(
        "POST /queues/{name}/resume", "Resume", is_so=lambda: not queue("orders")["paused_ms"]
    )
    await tour.open("/waiting/orders", "GET /queues/{name}/messages", sees="from amqp")
    await tour.open("/queues/orders", sees="2 messages, ")
    await tour.press(
        "POST /queues/{name}/move",
        "Move",
        [("To the queue", "other"), ("At most", 1), "Move", "Move"],
        is_so=lambda: (queue("orders")["ready"], queue("other")["ready"]) == (1, 1),
    )
    await tour.open("/queues/other", sees="1 messages, ")
    await tour.press(
        "POST /queues/{name}/purge", "Purge", ["Purge"], is_so=lambda: not queue("other")["ready"]
    )
    await tour.open("/queues/made", sees="0 messages, ")
    await tour.press(
        "DELETE /queues/{name}",
        "Delete",
        ["Delete"],
        leads_to="/queues",
        is_so=lambda: queue("made") is None,
    )


async def of_connections(tour: Tour) -> None:
    """Connections, MQTT clients, their sessions, and traces."""
    world = tour.world

    def gone(*parts: str) -> Callable[[], bool]:
        return lambda: world.get(*parts) is None

    for name in ("device", "bulk-1", "kick"):
        world.client(name)
    device = world.get("connections")["items"][0]["id"]
    await tour.open("/connect", "GET /listeners", sees="mqtt at port")
    await tour.open("/traces", sees="No trace runs")
    await tour.person.fill("Which", "device")
    await tour.person.fill("Seconds", 1)
    await tour.press("POST /mqtt/traces", "Begin")
    await tour.person.sees("The trace has ended")
    await tour.open("/traces", sees="No trace runs")
    await tour.person.fill("Trace by", "messages")
    await tour.person.fill("Which", "things")
    await tour.person.fill("Seconds", 1)
    await tour.press("POST /messages/traces", "Begin")
    await tour.person.sees("The trace has ended")
    world.begin_trace()
    await tour.open("/traces", "GET /mqtt/traces", sees="device")
    (number,) = world.names("mqtt", "traces", key="number")
    await tour.press(
        "DELETE /mqtt/traces/{number}",
        "End",
        ["End"],
        row=number,
        is_so=lambda: not world.names("mqtt", "traces", key="number"),
    )
    await tour.open("/clients", "GET /mqtt/clients", sees="kick")
    await tour.open("/clients/kick", "GET /mqtt/clients/{client_id}", sees="3.1.1")
    await tour.press(
        "DELETE /mqtt/clients/{client_id}",
        "Disconnect",
        ["Disconnect"],
        leads_to="/clients",
        is_so=gone("mqtt", "clients", "kick"),
    )
    await tour.open("/connections", "GET /connections", sees="bulk-1")
    await tour.press(
        "POST /connections/close",
        "Close several",
        [("Client names begin with", "bulk"), "Close several", "Close several"],
        is_so=gone("mqtt", "clients", "bulk-1"),
    )
    await tour.open(f"/connections/{device}", "GET /connections/{id}", sees="device")
    await tour.press(
        "DELETE /connections/{id}",
        "Close",
        ["Close"],
        leads_to="/connections",
        is_so=gone("connections", device),
    )
    await tour.open("/sessions", "GET /mqtt/sessions", sees="kept")
    await tour.open("/sessions/kept", "GET /mqtt/sessions/{client_id}", sees="others/#")
    await tour.press(
        "DELETE /mqtt/sessions/{client_id}",
        "Delete",
        ["Delete"],
        leads_to="/sessions",
        is_so=gone("mqtt", "sessions", "kept"),
    )
    shown = ("GET /mqtt/retained/{topic}", "GET /messages/{position}")
    await tour.open("/retained/things%2Fretained", *shown, sees="retained · 1 B")
    await tour.open("/retained", "GET /mqtt/retained", sees="things/retained")
    await tour.press(
        "POST /mqtt/retained/clear",
        "Clear",
        [("Topics that match", "things/#"), "Clear", "Clear"],
        is_so=lambda: world.names("mqtt", "retained", key="topic") == [],
    )


async def of_readers(tour: Tour) -> None:
    """Readers, dead letters, delayed messages and webhooks."""
    world = tour.world

    def reader() -> Any:
        return world.get("consumers", "queue:dead")

    def webhook() -> str:
        return str(world.get("webhooks", "hook")["state"])

    await tour.open("/dead-letters", "GET /dead-letters", sees="queue:dead")
    await tour.open("/dead-letters/queue%3Adead", "GET /dead-letters/{location}", sees="rejected")
    redrive = "POST /dead-letters/{location}/redrive"
    await tour.press(redrive, "Try what a redrive would do")
    await tour.press(
        redrive, "Redrive", ["Redrive"], is_so=lambda: world.get("queues", "work")["ready"] == 2
    )
    await tour.open("/consumers", "GET /consumers", sees="queue:dead")
    await tour.open("/consumers/queue%3Aorders", "GET /consumers/{id}", sees="Position")
    orders = ("consumers", "queue:orders")
    await tour.press(
        "POST /consumers/{id}/pause", "Pause", is_so=lambda: world.get(*orders)["pauses"]
    )
    await tour.press(
        "POST /consumers/{id}/resume", "Resume", is_so=lambda: not world.get(*orders)["pauses"]
    )
    waiting = world.get(*orders)["waiting"]
    end = world.get(*orders)["queues"][0]["end"]
    assert waiting > 0
    await tour.press(
        "POST /consumers/{id}/reset",
        "Reset",
        [("Go on at", "offset"), ("Offset", end), "Reset", "Reset"],
        is_so=lambda: world.get(*orders)["waiting"] == 0,
    )
    await tour.open("/consumers/queue%3Awork", sees="Position")
    await tour.press(
        "POST /consumers/{id}/reset",
        "Skip all that waits",
        ["Skip all that waits"],
        is_so=lambda: world.get("consumers", "queue:work")["waiting"] == 0,
    )
    await tour.open("/delayed", "GET /delayed", sees="later")
    await tour.press(
        "DELETE /delayed/{id}",
        "Discard",
        ["Discard"],
        row="0",
        is_so=lambda: world.names("delayed", key="id") == ["1"],
    )
    await tour.open("/webhooks", "GET /webhooks", sees="hook")
    await tour.open("/webhooks/hook", "GET /webhooks/{name}", sees="Sink")
    await tour.press("POST /webhooks/{name}/try", "Try now")
    await tour.press("POST /webhooks/{name}/pause", "Pause", is_so=lambda: webhook() == "paused")
    await tour.press("POST /webhooks/{name}/resume", "Resume", is_so=lambda: webhook() != "paused")


async def of_the_broker(tour: Tour) -> None:
    """The broker as a whole: its role, its limits, its logs, its configuration and backups."""
    await tour.open("/overview", "GET /broker", sees="Messages stored")
    await tour.open("/disk", "GET /store", "GET /store/holders", sees="Limit of the log")
    await tour.open("/limits", "GET /limits", sees="users_max")
    await tour.open("/log", "GET /audit", sees="topic created")
    (toggle,) = tour.person.elements(ui.toggle)
    with tour.person.user:
        toggle.set_value("other lines")
    await tour._arrives("GET /log", "")
    await tour.open("/backups", "GET /backups", sees="Completed since the start")
    await tour.open("/replication", "GET /replication", "GET /name-servers", sees="master")
    for verb, button in (("promote", "Promote"), ("follow", "Follow")):
        typed = (f"Type {verb} to go on", verb)
        await tour.press(f"POST /replication/{verb}", button, [button, typed, button])
        await tour.person.press("Cancel")  # it was refused, and the dialog stays
    await tour.person.sees("this broker is a master already")
    await tour.open("/configuration", sees="Definitions")
    await tour.press("POST /reload", "Reload")
    await tour.person.sees("The configuration has not changed.")
    await tour.press("GET /definitions", "Export")
    answers = tour.person.user.download.http_responses
    await tour.person.until(lambda: answers, "the file")
    document = json.loads(answers[-1].content)
    assert document["format"] == "polymq-definitions"
    document["topics"].append({"name": "imported"})
    await upload(tour.person, json.dumps(document).encode())
    await tour.press("POST /definitions", "Try what an import would do")
    await tour.person.sees("1 created")
    assert tour.world.get("topics", "imported") is None, "it was a try"
    await tour.press(
        "POST /definitions",
        "Import",
        ["Import"],
        is_so=lambda: tour.world.get("topics", "imported"),
    )


async def upload(person: Person, content: bytes) -> None:
    """Choose a file."""
    from nicegui.elements.upload_files import SmallFileUpload

    (found,) = person.elements(ui.upload)
    file = SmallFileUpload("definitions.json", "application/json", content)
    await found.handle_uploads([file])


async def of_users(tour: Tour) -> None:
    """Users, rules and bans."""
    world = tour.world

    def user() -> Any:
        return world.get("users", "ann")

    await tour.open("/bans", "GET /bans")
    await tour.press(
        "POST /bans",
        "Ban",
        [("Which", "bad one"), "Ban"],
        is_so=lambda: world.names("bans", key="value") == ["bad one"],
    )
    await tour.press(
        "DELETE /bans/{kind}/{value}",
        "Remove",
        ["Remove"],
        row="client_id bad one",
        is_so=lambda: not world.names("bans", key="value"),
    )
    await tour.open("/permissions", "GET /permissions")
    fields = [("Subject", "ann"), ("Actions", ["publish"]), ("Topics", "things")]
    rules = ("permissions",)
    await of_a_new_user(tour)
    await tour.open("/permissions", "GET /permissions")
    await tour.press(
        "POST /permissions",
        "New rule",
        [*fields, "Add"],
        is_so=lambda: world.names(*rules, key="subject") == ["ann"],
    )
    await tour.person.fill("User", "ann")
    await tour.person.fill("Topic or filter", "things")
    await tour.press("GET /permissions/check", "Ask")
    await tour.person.sees("Yes: allow ann publish things")
    await tour.press(
        "DELETE /permissions",
        "Remove",
        ["Remove"],
        row=json.dumps(["ann", "allow", "publish", "things"]),
        is_so=lambda: world.names(*rules, key="subject") == [],
    )
    await tour.press("DELETE /service-answers", "Forget answers of services")
    await tour.open("/users/ann", sees="enabled")
    await tour.press(
        "DELETE /users/{name}",
        "Delete",
        [("Type ann to go on", "ann"), "Delete"],
        leads_to="/users",
        is_so=lambda: user() is None,
    )


async def of_a_new_user(tour: Tour) -> None:
    """Somebody who logs in makes one, and changes all of it."""
    world = tour.world

    def user() -> Any:
        return world.get("users", "ann")

    await tour.open("/users", "GET /users")
    await tour.open("/login")
    await tour.person.until(lambda: len(Client.instances) == 1, "the end of the other screens")
    world.admin.add("root", "admin")
    await tour.person.fill("User", "root")
    await tour.person.fill("Password", PASSWORD)
    await tour.press("GET /caller", "Log in", leads_to="/")
    await tour.open("/users", sees="root")
    fields: Doing = [("Name of the user", "ann"), ("Password of the user", "x"), "Create"]
    await tour.press("PUT /users/{name}", "New user", fields, leads_to="/users/ann", is_so=user)
    await tour.open("/users/ann", "GET /users/{name}", sees="enabled")
    change = "PATCH /users/{name}"
    await tour.press(change, "Password", [("New password", "y"), "Save"])
    await tour.person.sees("The password is changed.")
    await tour.press(
        change,
        "Roles",
        [("Roles", "reader, device"), "Save"],
        is_so=lambda: user()["roles"] == ["device", "reader"],
    )
    await tour.press(
        change,
        "Quotas",
        [("connections", "7"), "Save"],
        is_so=lambda: user()["quotas"]["connections"] == 7,
    )
    await tour.press(change, "Disable", ["Disable"], is_so=lambda: user()["disabled"])
    await tour.press(change, "Enable", is_so=lambda: not user()["disabled"])
    keys = "/users/{name}/access-keys"
    await tour.press(f"POST {keys}", "New access key", ["Create"])
    await tour.person.sees("which is not shown again")
    await tour.person.press("Close")
    key = user()["access_keys"][0]["access_key"]
    await tour.person.sees(key)
    await tour.press(
        f"DELETE {keys}/{{key}}",
        "Remove access key",
        [("Access key", key), "Remove"],
        is_so=lambda: user()["access_keys"] == [],
    )


GROUPS = (of_topics, of_queues, of_connections, of_readers, of_the_broker, of_users)


def cells() -> set[tuple[str, str]]:
    """Operations with the buttons that their cells have; a screen that shows something has none."""
    found: set[tuple[str, str]] = set()
    for operation, reached in REACHED.items():
        if not is_reason(reached.console):
            _, _, buttons = reached.console.partition(": ")
            found.update((operation, one) for one in buttons.split(", "))
    return found


def test_every_screen_and_button(tmp_path: Path) -> None:
    """Through a recorder before the admin listener, as somebody at the console would do it."""

    async def go_through(world: World) -> set[tuple[str, str]]:
        async with person_at(f"http://127.0.0.1:{world.recorder.port}") as person:
            tour = Tour(world, person)
            for group in GROUPS:
                await group(tour)
            return tour.done

    with made_world(tmp_path) as world:
        done = asyncio.run(go_through(world))
    assert cells() - done == set()
    assert done - cells() == set()


HARMLESS = {"Messages", "Connect", "Session", "Queue", "First page", "Next page", "Ask", "Copy"}
"""Buttons that lead to a screen or ask something, and the way of a message."""
OF_OBJECTS = {
    "/topics": "things",
    "/messages": "things",
    "/waiting": "orders",
    "/queues": "orders",
    "/consumers": "queue%3Aorders",
    "/clients": "device",
    "/sessions": "kept",
    "/retained": "things%2Fretained",
    "/dead-letters": "queue%3Adead",
    "/webhooks": "hook",
    "/users": "eve",
    "/connect": "things",
}
"""What there is to show on the screens about one object."""


def test_a_reader_finds_no_button_that_changes_something(tmp_path: Path) -> None:
    """On any screen, of the objects that are there, while an administrator finds many."""

    async def look(world: World, user: str) -> set[str]:
        found: set[str] = set()
        async with person_at(f"http://127.0.0.1:{world.recorder.port}") as person:
            await person.open("/login")
            await person.fill("User", user)
            await person.fill("Password", PASSWORD)
            await person.press("Log in")
            await person.sees("Version")
            for path in SCREENS:
                screen = path.removesuffix("/{name:path}")
                if screen != path and screen not in OF_OBJECTS:
                    continue  # a connection, whose name nobody knows before
                await person.open(path.replace("{name:path}", OF_OBJECTS.get(screen, "")))
                found.update(person.buttons())
                for table in person.elements(ui.table):
                    if "body-cell-act" in table.slots:
                        found.add(table.slots["body-cell-act"].template)
        return found - HARMLESS

    with made_world(tmp_path) as world:
        world.client("device")
        for name, role in (("root", "admin"), ("eve", "reader")):
            world.admin.add(name, role)
        assert asyncio.run(look(world, "eve")) == set()
        assert len(asyncio.run(look(world, "root"))) > 25
