"""RabbitMQ's tools with the management API: rabbitmqadmin, and the clients of AMQPStorm, pyrabbit2
and Celery Flower. Those that are not installed are left out."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from interop_tests.conftest import Server, StartServer
from interop_tests.management import SETTINGS, port_of

INSTALLED = "lib/rabbitmq/lib/rabbitmq_server-*/plugins/rabbitmq_management-*/priv/www/cli"
"""Where Debian's rabbitmq-server has the script, below /usr."""
COMMAND_SECONDS = 60


def script() -> str:
    """The Python script rabbitmqadmin (version 1)."""
    named = os.environ.get("RABBITMQADMIN") or shutil.which("rabbitmqadmin")
    found = [Path(named)] if named else list(Path("/usr").glob(f"{INSTALLED}/rabbitmqadmin"))
    if not found or b"python" not in found[0].read_bytes()[:100]:
        pytest.skip("there is no script rabbitmqadmin: the variable RABBITMQADMIN names one")
    return str(found[0])


@pytest.fixture
def managed(start_server: StartServer) -> Server:
    return start_server(**SETTINGS)


Ask = Callable[..., str]


@pytest.fixture
def admin(managed: Server) -> Ask:
    """rabbitmqadmin: what it prints."""
    program = script()

    def ask(*arguments: str, code: int = 0) -> str:
        ended = subprocess.run(
            [sys.executable, program, "-P", str(port_of(managed)), *arguments],
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        assert ended.returncode == code, ended.stdout + ended.stderr
        return ended.stdout + ended.stderr

    return ask


def rows(text: str) -> list[list[str]]:
    """The rows of a table."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


@pytest.mark.slow(seconds=20)
def test_rabbitmqadmin(admin: Ask, tmp_path: Path) -> None:
    """Its commands from declaring to deleting, and a file that it exports and imports."""
    assert "3.13.7" in admin("show", "overview")
    admin("declare", "exchange", "name=shop", "type=topic")
    admin("declare", "queue", "name=orders", "durable=true", 'arguments={"x-max-length":9}')
    binding = ("source=shop", "destination=orders")
    admin("declare", "binding", *binding, "routing_key=order.#", 'arguments={"k":"v"}')
    assert rows(admin("list", "bindings")) == [
        ["", "orders", "orders"],
        ["shop", "orders", "order.#"],
    ]
    assert "NOT routed" in admin("publish", "exchange=shop", "routing_key=x", "payload=lost")
    properties = 'properties={"delivery_mode":2,"headers":{"a":1}}'
    admin("publish", "exchange=shop", "routing_key=order.new", "payload=hello", properties)
    (got,) = rows(admin("get", "queue=orders", "ackmode=ack_requeue_true"))
    assert "hello" in got
    assert rows(admin("list", "queues", "name", "messages")) == [["orders", "1"]]
    file = tmp_path / "definitions.json"
    admin("export", str(file))
    admin("purge", "queue", "name=orders")
    key = json.loads(file.read_text())["bindings"][0]["routing_key"]
    assert key == "order.#"
    listed = admin("-f", "raw_json", "list", "bindings")
    properties_key = json.loads(listed)[1]["properties_key"]
    one = (*binding, "destination_type=queue")
    admin("delete", "binding", *one, f"properties_key={properties_key}")
    admin("delete", "queue", "name=orders")
    admin("delete", "exchange", "name=shop")
    admin("import", str(file))
    assert rows(admin("list", "queues", "name")) == [["orders"]]
    assert len(rows(admin("list", "bindings"))) == 2
    assert "one virtual host" in admin("declare", "vhost", "name=dev", code=1)
    admin("declare", "user", "name=ann", "password=a-secret", "tags=administrator")
    login = ("-u", "ann", "-p", "a-secret")
    assert "Access refused" in admin("list", "users", code=1)
    assert rows(admin(*login, "list", "users", "name", "tags")) == [["ann", "administrator"]]
    admin(*login, "declare", "user", "name=bob", "password=other", "tags=monitoring")
    admin(*login, "declare", "permission", "vhost=/", "user=bob", *("configure=^$",),
          "write=.*", "read=^orders$")  # fmt: skip
    assert rows(admin(*login, "list", "permissions", "user", "write", "read")) == [
        ["ann", ".*", ".*"],
        ["bob", ".*", "^orders$"],
    ]
    assert rows(admin("-u", "bob", "-p", "other", "list", "nodes", "name")) != []
    admin(*login, "delete", "user", "name=bob")
    for what in ("connections", "channels", "consumers", "parameters", "policies", "vhosts"):
        admin(*login, "list", what)


@pytest.mark.slow
def test_amqpstorm(managed: Server) -> None:
    """Its management client, which pages through lists and reads messages."""
    api_of = pytest.importorskip("amqpstorm.management").ManagementApi
    api = api_of(f"http://127.0.0.1:{port_of(managed)}", "guest", "guest")
    api.exchange.declare("shop", exchange_type="topic", durable=True)
    api.queue.declare("orders", durable=True)
    for number in range(3):
        api.queue.declare(f"other{number}", durable=True)
    api.queue.bind("orders", "shop", "order.new")
    assert api.basic.publish("hello", "order.new", "shop") == {"routed": True}
    (message,) = api.basic.get("orders", requeue=True)
    assert message.body == "hello"
    assert [one["name"] for one in api.queue.list(page_size=2)] == [
        *("orders", "other0", "other1", "other2"),
    ]
    assert api.queue.get("orders")["messages"] == 1
    api.queue.purge("orders")
    api.queue.unbind("orders", "shop", "order.new")
    assert len(api.queue.bindings("orders")) == 1
    assert api.aliveness_test("/") == {"status": "ok"}
    assert api.healthchecks.get()["status"] == "ok"
    assert api.whoami()["name"] == "guest"
    assert api.overview()["product_name"] == "PolyMQ"
    api.queue.delete("orders")
    api.user.create("ann", "a-secret", tags="administrator")
    ann = api_of(f"http://127.0.0.1:{port_of(managed)}", "ann", "a-secret")
    ann.user.set_permission("ann", "/", ".*", ".*", ".*")
    assert ann.user.get_permission("ann", "/")["write"] == ".*"
    assert [one["name"] for one in ann.user.list()] == ["ann"]
    assert [one["name"] for one in ann.virtual_host.list()] == ["/"]


@pytest.mark.slow
def test_pyrabbit2(managed: Server) -> None:
    api_of = pytest.importorskip("pyrabbit2.api").Client
    api = api_of(f"127.0.0.1:{port_of(managed)}", "guest", "guest")
    assert api.is_alive()
    assert api.create_exchange("/", "shop", "topic")
    assert api.create_queue("/", "orders", durable=True)
    assert api.create_binding("/", "shop", "orders", "order.new")
    assert api.publish("/", "shop", "order.new", "hello")
    assert api.get_queue_depth("/", "orders") == 1
    assert api.get_messages("/", "orders")[0]["payload"] == "hello"
    assert [one["name"] for one in api.get_queues("/")] == ["orders"]
    assert api.get_vhost_names() == ["/"]
    api.purge_queue("/", "orders")
    api.delete_queue("/", "orders")
    api.delete_exchange("/", "shop")


@pytest.mark.slow
def test_celery_flower(managed: Server) -> None:
    """Its class for RabbitMQ as a broker reads the queues that workers have."""
    broker_of = pytest.importorskip("flower.utils.broker").RabbitMQ
    pyrabbit = pytest.importorskip("pyrabbit2.api")
    port = port_of(managed)
    api = pyrabbit.Client(f"127.0.0.1:{port}", "guest", "guest")
    api.create_queue("/", "celery", durable=True)
    api.publish("/", "amq.default", "celery", "task")

    async def queues() -> list[dict[str, object]]:
        url = f"http://guest:guest@127.0.0.1:{port}/api/"
        broker = broker_of("amqp://guest:guest@127.0.0.1//", url)
        found: list[dict[str, object]] = await broker.queues(["celery"])
        return found

    (celery,) = asyncio.run(queues())
    assert (celery["name"], celery["messages"], celery["consumers"]) == ("celery", 1, 0)


@pytest.mark.slow
def test_rabbitmqadmin_of_rust(managed: Server, tmp_path: Path) -> None:
    """Version 2, whose types are strict: what it lists has all fields that it wants."""
    program = os.environ.get("RABBITMQADMIN2")
    if not program:
        pytest.skip("the variable RABBITMQADMIN2 names no rabbitmqadmin of version 2")

    def ask(*arguments: str) -> str:
        ended = subprocess.run(
            [program, "--port", str(port_of(managed)), "--table-style", "dots", *arguments],
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    assert "3.13.7" in ask("show", "overview")
    ask("queues", "declare", "--name", "orders", "--type", "quorum")
    ask("exchanges", "declare", "--name", "shop", "--type", "topic")
    binding = ("--source", "shop", "--destination", "orders", "--routing-key", "order.*")
    ask("bindings", "declare", *binding, "--destination-type", "queue")
    message = ("--exchange", "shop", "--routing-key", "order.new", "--payload", "hello")
    ask("publish", "message", *message)
    assert "hello" in ask("get", "messages", "--queue", "orders")
    assert "order.*" in ask("bindings", "list")
    for what in ("queues", "exchanges", "nodes", "users", "vhosts", "permissions", "connections"):
        ask(what, "list")
    for what in ("channels", "policies", "feature_flags", "user_limits"):
        ask(what, "list")
    ask("health_check", "local_alarms")
    file = str(tmp_path / "definitions.json")
    ask("definitions", "export", "--file", file)
    ask("queues", "purge", "--name", "orders")
    ask("queues", "delete", "--name", "orders")
    ask("definitions", "import", "--file", file)
    assert "orders" in ask("queues", "list")
    ask("users", "declare", "--name", "ann", "--password", "a-secret", "--tags", "administrator")
