"""`polymq definitions`: out of one server and into another, over a crash, and who may do it."""

from __future__ import annotations

import http.client
import json
import stat
import threading
from pathlib import Path
from typing import Any

import pika
import pytest

from interop_tests.conftest import Server, StartServer
from interop_tests.people import PASSWORD, Admin, basic, polymq

PATH = "/api/v1/definitions"
QUEUES = 20_000
"""So many that an import takes a while."""


def populate(server: Server) -> Admin:
    """Users, and something of AMQP and HTTP, made by clients."""
    people = Admin(server)
    people.good("PUT", "/api/v1/topics/sensors", {"queues": 3, "settings": {"min_in_sync": "1"}})
    people.add("ann", "admin")
    people.allow("ann", "publish,subscribe,create", "#")
    people.good("POST", "/api/v1/bans", {"kind": "client_id", "value": "dev/1"})
    login = pika.PlainCredentials("ann", PASSWORD)
    parameters = pika.ConnectionParameters("127.0.0.1", server.amqp_port, credentials=login)
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.exchange_declare("heads", "headers", durable=True)
        channel.queue_declare("orders", durable=True, arguments={"x-max-length": 5})
        arguments = {"x-match": "any", "color": "red", "raw": b"\xff"}
        channel.queue_bind("orders", "heads", "", arguments)
    body = json.dumps({"id": "pulled", "topic": "sensors"})
    asked = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=30)
    asked.request(
        "POST",
        "/subscriptions",
        body,
        {"Content-Type": "application/json", "Authorization": basic("ann", PASSWORD)},
    )
    assert asked.getresponse().status == 201
    asked.close()
    return people


def test_a_server_gets_what_another_has(start_server: StartServer, tmp_path: Path) -> None:
    """The file is for its owner only, and equal to the byte when the other server exports. Users
    log in with their passwords there, and bindings work."""
    one, other = start_server(), start_server()
    populate(one)
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    assert polymq(one, "definitions", "export", str(first)).returncode == 0
    assert stat.S_IMODE(first.stat().st_mode) == 0o600
    assert polymq(one, "definitions", "export").stdout.encode() == first.read_bytes()
    tried = polymq(other, "definitions", "import", str(first), "--dry-run")
    assert "(nothing was changed)" in tried.stdout
    assert Admin(other).good("GET", "/api/v1/users")["total"] == 0
    done = polymq(other, "definitions", "import", str(first))
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split()[:3] for line in done.stdout.splitlines()]
    assert ["created", "users", "ann"] in lines
    polymq(other, "definitions", "export", str(second))
    assert second.read_bytes() == first.read_bytes()
    again = polymq(other, "definitions", "import", str(first), "--json")
    assert set(json.loads(again.stdout)["counts"].items()) >= {("created", 0), ("changed", 0)}
    other.restart()
    polymq(other, "definitions", "export", str(second))
    assert second.read_bytes() == first.read_bytes()
    login = pika.PlainCredentials("ann", PASSWORD)
    parameters = pika.ConnectionParameters("127.0.0.1", other.amqp_port, credentials=login)
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        properties = pika.BasicProperties(headers={"color": "red"})
        channel.confirm_delivery()
        channel.basic_publish("heads", "", b"x", properties, mandatory=True)
        assert channel.basic_get("orders", auto_ack=True)[2] == b"x"
    events = [one for one in other.log_events() if one.get("event") == "definitions imported"]
    assert len(events) == 2


def test_a_conflict_is_said_and_changes_nothing(start_server: StartServer, tmp_path: Path) -> None:
    """Until the operator says which side wins."""
    server = start_server()
    people = Admin(server)
    people.good("PUT", "/api/v1/topics/sensors", {"settings": {"retention_seconds": "7"}})
    file = tmp_path / "definitions.json"
    polymq(server, "definitions", "export", str(file))
    file.write_text(file.read_text().replace("7}", "8}"))
    refused = polymq(server, "definitions", "import", str(file))
    assert refused.returncode == 1
    assert "topics: sensors: other settings here. Say with prefer" in refused.stderr
    tried = polymq(server, "definitions", "import", str(file), "--dry-run")
    assert tried.returncode == 1
    assert "conflict" in tried.stdout
    assert polymq(server, "definitions", "import", str(file), "--prefer", "file").returncode == 0
    shown = people.good("GET", "/api/v1/topics/sensors")
    assert shown["settings"]["retention_seconds"] == 8
    file.write_text("{}")
    wrong = polymq(server, "definitions", "import", str(file))
    assert "its member format has to be" in wrong.stderr
    assert len(wrong.stderr.splitlines()) == 1


@pytest.mark.slow
def test_an_import_is_completed_after_kill_9(start_server: StartServer) -> None:
    """The server dies in the middle: the same import then completes what it had begun, and is
    equal to one that nothing interrupted."""
    server, other = start_server(), start_server()
    queues = [{"name": f"queue.{number:06}"} for number in range(QUEUES)]
    value = {"format": "polymq-definitions", "version": 1, "queues": queues}
    asking = Admin(server)
    ended: list[Any] = []

    def import_once() -> None:
        try:
            ended.append(asking.ask("POST", PATH, value)[0])
        except (OSError, http.client.HTTPException) as error:
            ended.append(error)

    thread = threading.Thread(target=import_once)
    thread.start()
    watching = Admin(server)
    while watching.good("GET", "/api/v1/queues?limit=1")["total"] < QUEUES // 10:
        assert thread.is_alive()
    server.kill()
    thread.join()
    assert isinstance(ended[0], Exception), ended
    server.start()
    there = Admin(server).good("GET", "/api/v1/queues?limit=1")["total"]
    assert 0 < there < QUEUES
    counts = Admin(server).good("POST", PATH, value)["counts"]
    assert (counts["equal"], counts["created"]) == (there, QUEUES - there)
    Admin(other).good("POST", PATH, value)
    assert Admin(server).good("GET", PATH) == Admin(other).good("GET", PATH)
