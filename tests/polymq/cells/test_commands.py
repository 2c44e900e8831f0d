"""Each cell of the column "command" of the table of operations: the command is run, and its
operation is what arrives at the server."""

from __future__ import annotations

import io
import json
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from docs.site.operations import REACHED, is_reason
from polymq import program
from tests.polymq.cells.world import World, made_world

PASSWORD = "pass-4-ann-9351\n"
RABBITMQ = {"vhosts": [{"name": "/"}], "queues": [{"name": "rabbits", "vhost": "/"}]}
RABBITMQ["queues"][0] |= {"durable": True, "auto_delete": False, "arguments": {}}  # type: ignore[dict-item]


def _true() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Step:
    """A command, and what it does.

    Attributes:
        operation: that has to arrive.
        command: the words behind `polymq` that the cell has.
        rest: arguments and options.
        says: what has to be printed.
        is_so: what holds then, for a command that changes something.
        text: its standard input.
        code: its exit code.
    """

    operation: str
    command: str
    rest: str = ""
    says: str = ""
    is_so: Callable[[], Any] = field(default=_true)
    text: str = ""
    code: int = 0


def of_topics_and_messages(world: World) -> Iterator[Step]:
    """Topics, records and messages."""
    get = world.get
    yield Step("GET /topics", "topic list", says="things")
    yield Step("GET /topics/{name}", "topic show", "things", "things")
    yield Step("PUT /topics/{name}", "topic create", "new", is_so=lambda: get("topics", "new"))
    yield Step(
        "PATCH /topics/{name}",
        "topic set",
        "new retention_seconds=70",
        is_so=lambda: get("topics", "new")["settings"]["retention_seconds"] == 70,
    )
    yield Step(
        "DELETE /topics/{name}",
        "topic delete",
        "new --yes",
        is_so=lambda: get("topics", "new") is None,
    )
    yield Step("GET /topics/{name}/records", "message find", "things --key k", "hello")
    yield Step("GET /topics/{name}/messages", "message list", "things", "hello")
    position = get("topics", "things", "messages")["items"][0]["position"]
    yield Step("GET /records/{position}", "message show", f"{position}", "hello")
    yield Step("GET /messages/{position}/way", "message way", f"{position}", "things")
    yield Step("GET /queues/{name}/messages", "message peek", "orders", "from amqp")


def of_queues(world: World) -> Iterator[Step]:
    """Queues and their bindings."""

    def queue(name: str) -> Any:
        return world.get("queues", name)

    def bound() -> list[str]:
        return [one["exchange"] for one in queue("orders")["bindings"]]

    yield Step("GET /queues", "queue list", says="orders")
    yield Step("GET /queues/{name}", "queue show", "orders", "orders")
    yield Step("PUT /queues/{name}", "queue create", "made", is_so=lambda: queue("made"))
    binding = "orders things --routing-key a.b"
    yield Step("POST /queues/{name}/bind", "queue bind", binding, is_so=lambda: "things" in bound())
    yield Step(
        "POST /queues/{name}/unbind",
        "queue unbind",
        binding,
        is_so=lambda: "things" not in bound(),
    )
    yield Step(
        "POST /queues/{name}/pause",
        "queue pause",
        "orders",
        is_so=lambda: queue("orders")["paused_ms"],
    )
    yield Step(
        "POST /queues/{name}/resume",
        "queue resume",
        "orders",
        is_so=lambda: queue("orders")["paused_ms"] is None,
    )
    yield Step(
        "POST /queues/{name}/move",
        "queue move",
        "orders other --count 1 --yes",
        is_so=lambda: (queue("orders")["ready"], queue("other")["ready"]) == (1, 1),
    )
    yield Step(
        "POST /queues/{name}/purge",
        "queue purge",
        "other --yes",
        is_so=lambda: queue("other")["ready"] == 0,
    )
    yield Step(
        "DELETE /queues/{name}", "queue delete", "made --yes", is_so=lambda: queue("made") is None
    )


def of_connections(world: World) -> Iterator[Step]:
    """Connections, MQTT clients, sessions and traces."""

    def gone(*parts: str) -> Callable[[], bool]:
        return lambda: world.get(*parts) is None

    for name in ("device", "bulk-1", "kick"):
        world.client(name)
    device = world.get("connections")["items"][0]["id"]
    yield Step("GET /listeners", "broker listeners", says="amqp")
    yield Step("GET /connections", "connection list", says="device")
    yield Step("GET /connections/{id}", "connection show", device, "device")
    yield Step("GET /mqtt/clients", "mqtt client list", says="device")
    yield Step("GET /mqtt/clients/{client_id}", "mqtt client show", "device", "device")
    yield Step("POST /mqtt/traces", "trace", "--client device --seconds 1 --json")
    yield Step("POST /messages/traces", "trace", "--messages --seconds 1 --json")
    world.begin_trace()
    (number,) = world.names("mqtt", "traces", key="number")
    yield Step("GET /mqtt/traces", "mqtt trace list", says="device")
    yield Step(
        "DELETE /mqtt/traces/{number}",
        "mqtt trace end",
        number,
        is_so=lambda: not world.names("mqtt", "traces", key="number"),
    )
    yield Step(
        "DELETE /mqtt/clients/{client_id}",
        "mqtt client kick",
        "kick",
        is_so=gone("mqtt", "clients", "kick"),
    )
    yield Step(
        "POST /connections/close",
        "connection close",
        "--prefix bulk --yes",
        is_so=gone("mqtt", "clients", "bulk-1"),
    )
    yield Step(
        "DELETE /connections/{id}",
        "connection close",
        f"{device} --yes",
        is_so=gone("connections", device),
    )
    yield Step("GET /mqtt/sessions", "session list", says="kept")
    yield Step("GET /mqtt/sessions/{client_id}", "session show", "kept", "others/#")
    yield Step(
        "DELETE /mqtt/sessions/{client_id}",
        "session delete",
        "kept --yes",
        is_so=gone("mqtt", "sessions", "kept"),
    )
    yield Step("GET /mqtt/retained", "retained list", says="things/retained")
    yield Step("GET /mqtt/retained/{topic}/record", "retained show", "things/retained", "x")
    yield Step(
        "POST /mqtt/retained/clear",
        "retained clear",
        "things/retained --yes",
        is_so=gone("mqtt", "retained", "things/retained"),
    )


def of_readers(world: World) -> Iterator[Step]:
    """Readers, dead letters, delayed messages and webhooks."""

    def reader() -> Any:
        return world.get("consumers", "queue:dead")

    def webhook() -> str:
        return str(world.get("webhooks", "hook")["state"])

    yield Step("GET /consumers", "consumer list", says="queue:dead")
    yield Step("GET /consumers/{id}", "consumer show", "queue:dead", "queue")
    yield Step(
        "POST /consumers/{id}/pause",
        "consumer pause",
        "queue:dead",
        is_so=lambda: reader()["pauses"],
    )
    yield Step(
        "POST /consumers/{id}/resume",
        "consumer resume",
        "queue:dead",
        is_so=lambda: reader()["pauses"] == [],
    )
    yield Step("GET /dead-letters", "deadletter list", says="queue:dead")
    yield Step("GET /dead-letters/{location}", "deadletter show", "queue:dead", "rejected")
    yield Step(
        "POST /dead-letters/{location}/redrive",
        "deadletter redrive",
        "queue:dead --limit 1 --yes",
        is_so=lambda: world.get("queues", "work")["ready"] == 1,
    )
    yield Step(
        "POST /consumers/{id}/reset",
        "consumer reset",
        "queue:dead --newest --yes",
        is_so=lambda: reader()["waiting"] == 0,
    )
    yield Step("GET /delayed", "delayed list", says="things")
    yield Step(
        "DELETE /delayed/{id}",
        "delayed cancel",
        "0 --yes",
        is_so=lambda: world.names("delayed", key="id") == ["1"],
    )
    yield Step("GET /webhooks", "webhook list", says="hook")
    yield Step("GET /webhooks/{name}", "webhook show", "hook", "things")
    yield Step("POST /webhooks/{name}/try", "webhook try", "hook", "hook")
    yield Step(
        "POST /webhooks/{name}/pause", "webhook pause", "hook", is_so=lambda: webhook() == "paused"
    )
    yield Step(
        "POST /webhooks/{name}/resume",
        "webhook resume",
        "hook",
        is_so=lambda: webhook() != "paused",
    )


def of_the_broker(world: World) -> Iterator[Step]:
    """The broker as a whole: what it is, its role, its limits, its logs, and its backups."""
    directory = world.server.data_directory.parent
    yield Step("GET /caller", "user whoami", says="admin")
    yield Step("GET /broker", "broker show", says="master")
    yield Step("GET /store", "store", says="segment")
    yield Step("GET /store/holders", "store holders", says="topic")
    yield Step("GET /limits", "broker limits", says="users_max")
    yield Step("GET /name-servers", "broker name-servers", says="registers with no name server")
    yield Step("GET /replication", "broker status", says="master")
    refusal = "this broker is a master already"
    yield Step("POST /replication/promote", "broker promote", says=refusal, code=1)
    yield Step("POST /replication/follow", "broker follow", says="polymq:", code=1)
    yield Step("GET /audit", "audit", says="topic created")
    yield Step("GET /log", "log", says="ready")
    yield Step("POST /reload", "reload", says="No setting has changed")
    yield Step("POST /backups", "backup create", f"{directory}/backup", "is complete")
    yield Step("POST /backups/{backup}/end", "backup create", f"{directory}/backup", "is complete")
    yield Step("GET /backups", "backup status", says="completed: 2")


def of_users(world: World) -> Iterator[Step]:
    """Users, rules, bans and definitions. The first user comes last."""

    def user() -> Any:
        return world.get("users", "ann")

    def rules() -> list[str]:
        return [str(row["effect"]) for row in world.get("permissions")["items"]]

    directory = world.server.data_directory.parent
    rabbits = directory / "rabbits.json"
    rabbits.write_text(json.dumps(RABBITMQ))
    yield Step(
        "POST /rabbitmq-definitions",
        "config import rabbitmq-definitions",
        f"{rabbits}",
        is_so=lambda: world.get("queues", "rabbits"),
    )
    document = directory / "definitions.json"
    yield Step("GET /definitions", "definitions export", f"{document}", is_so=document.exists)
    yield Step("POST /definitions", "definitions import", f"{document}", "equal")
    yield Step(
        "POST /bans",
        "ban add",
        "--client bad --yes",
        is_so=lambda: world.names("bans", key="value") == ["bad"],
    )
    yield Step("GET /bans", "ban list", says="bad")
    yield Step(
        "DELETE /bans/{kind}/{value}",
        "ban remove",
        "--client bad",
        is_so=lambda: not world.names("bans", key="value"),
    )
    yield Step("PUT /users/{name}", "user add", "ann", text=PASSWORD, is_so=user)
    yield Step("GET /users", "user list", says="ann")
    yield Step("GET /users/{name}", "user show", "ann", "connections")
    change = "PATCH /users/{name}"
    yield Step(change, "user password", "ann", text=f"other-{PASSWORD}", says="ann")
    roles = "ann --add reader"
    yield Step(change, "user role", roles, is_so=lambda: user()["roles"] == ["reader"])
    yield Step(
        change,
        "user quota",
        "ann connections=7",
        is_so=lambda: user()["quotas"]["connections"] == 7,
    )
    yield Step(change, "user disable", "ann", is_so=lambda: user()["disabled"])
    yield Step(change, "user enable", "ann", is_so=lambda: not user()["disabled"])
    keys = "/users/{name}/access-keys"
    yield Step(
        f"POST {keys}", "user access-key add", "ann", is_so=lambda: len(user()["access_keys"]) == 1
    )
    key = user()["access_keys"][0]["access_key"]
    yield Step(
        f"DELETE {keys}/{{key}}",
        "user access-key remove",
        f"ann {key}",
        is_so=lambda: user()["access_keys"] == [],
    )
    rule = "ann publish things"
    yield Step("POST /permissions", "permission allow", rule, is_so=lambda: rules() == ["allow"])
    yield Step(
        "POST /permissions",
        "permission deny",
        "ann publish others",
        is_so=lambda: sorted(rules()) == ["allow", "deny"],
    )
    yield Step("GET /permissions", "permission list", says="things")
    yield Step("GET /permissions/check", "permission check", rule, "allowed")
    yield Step("DELETE /permissions", "permission remove", rule, is_so=lambda: rules() == ["deny"])
    yield Step("DELETE /service-answers", "permission forget", says="forgotten")
    yield Step("DELETE /users/{name}", "user delete", "ann --yes", is_so=lambda: user() is None)


GROUPS = (
    of_topics_and_messages,
    of_queues,
    of_connections,
    of_readers,
    of_the_broker,
    of_users,
)


def run(monkeypatch: pytest.MonkeyPatch, directory: Path, step: Step) -> tuple[int, str]:
    """Exit code, and what was printed on either stream."""
    said = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    command = [*step.command.split(), *shlex.split(step.rest), "--data-directory", str(directory)]
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(step.text.encode())))
        patch.setattr(sys, "stdout", said)
        patch.setattr(sys, "stderr", said)
        code = program.run(command)
    said.seek(0)
    return code, said.read()


def test_every_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through a recorder before the admin listener, as a user would run it."""
    done = set()
    with made_world(tmp_path) as world:
        for group in GROUPS:
            for step in group(world):
                world.recorder.forget()
                code, said = run(monkeypatch, world.server.data_directory, step)
                assert code == step.code, (step, said)
                assert step.says in said, (step, said)
                assert step.operation in world.recorder.seen, (step, world.recorder.seen)
                assert step.is_so(), (step, said)
                done.add((step.operation, step.command))
    cells = {
        (operation, command)
        for operation, reached in REACHED.items()
        if not is_reason(reached.command)
        for command in reached.command.split(", ")
    }
    assert done == cells
