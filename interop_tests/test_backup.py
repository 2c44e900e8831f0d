"""Backups of a server that goes on: what was acknowledged before one began is there after a
restore, whoever is killed meanwhile."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as mqtt
import pika
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from interop_tests.conftest import Server, StartServer
from interop_tests.ledger.ports import lasting_ports
from interop_tests.people import Admin
from interop_tests.replica_kills import Pair, status, wait
from interop_tests.test_log_deletion import store_of

SECONDS_MAX = 60.0
LOOK_SECONDS = 0.02
SMALL = {"storage.segment_bytes": 1024 * 1024, "storage.save_seconds": 0.2}
BODY_BYTES = 2000
PAUSE_SECONDS = 0.003
"""Between two publishes: enough for several segments, and read again in a few seconds."""
BLOCK = b"x" * 100_000


def launch(*arguments: object) -> subprocess.Popen[bytes]:
    """Begin a command of `polymq backup`."""
    return subprocess.Popen(
        [sys.executable, "-m", "polymq", "backup", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def backup(*arguments: object, code: int = 0) -> str:
    """Run such a command; what it said."""
    process = launch(*arguments)
    output, errors = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == code, errors.decode()
    if code:
        assert errors.count(b"\n") >= 1
        assert b"Traceback" not in errors
    return (errors if code else output).decode()


def create(server: Server, target: Path, *arguments: object, code: int = 0) -> str:
    where = ("--data-directory", server.data_directory)
    return backup("create", target, *where, *arguments, code=code)


def positions(target: Path) -> list[int]:
    return [json.loads(line)["position"] for line in backup("list", "--json", target).splitlines()]


def metrics(server: Server) -> dict[str, float]:
    connection = http.client.HTTPConnection("127.0.0.1", server.admin_port, timeout=10)
    try:
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
    finally:
        connection.close()
    pairs = [line.rpartition(" ") for line in lines if line.startswith("polymq_backup")]
    return {name: float(value) for name, _, value in pairs}


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, what
        pause.wait(LOOK_SECONDS)


def active(server: Server) -> float:
    return metrics(server)["polymq_backups_active"]


@contextlib.contextmanager
def channel_of(server: Server) -> Iterator[Any]:
    parameters = pika.ConnectionParameters("127.0.0.1", server.amqp_port)
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel


def fill(server: Server, count: int, queue: str = "filled") -> None:
    """Confirmed messages of 100 kB."""
    with channel_of(server) as channel:
        channel.queue_declare(queue, durable=True)
        for _ in range(count):
            channel.basic_publish("", queue, BLOCK, pika.BasicProperties(delivery_mode=2))


def restored(
    start_server: StartServer, target: Path, directory: Path, *arguments: object, **options: object
) -> Server:
    """A server on what is restored."""
    backup("restore", target, "--data-directory", directory / "data", *arguments)
    return start_server(directory=directory, **{**SMALL, **options})


class Load:
    """Publishers with MQTT QoS 1 and AMQP confirms, each with numbered messages, until `stop`."""

    def __init__(self, server: Server) -> None:
        self.acked = {"mqtt": 0, "amqp": 0}
        self.sent = {"mqtt": 0, "amqp": 0}
        self._server = server
        self._stopping = threading.Event()
        self._errors: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=(each,)) for each in (self._mqtt, self._amqp)
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, publish: Callable[[], None]) -> None:
        try:
            publish()
        except BaseException as error:
            self._errors.append(error)
            raise

    def _mqtt(self) -> None:
        client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id="publisher")
        client.connect("127.0.0.1", self._server.mqtt_port)
        client.loop_start()
        under_way: list[mqtt.MQTTMessageInfo] = []
        while not self._stopping.wait(PAUSE_SECONDS):
            self.sent["mqtt"] += 1
            under_way.append(client.publish("load/mqtt", body(self.sent["mqtt"]), qos=1))
            if len(under_way) >= 50:
                under_way.pop(0).wait_for_publish(SECONDS_MAX)
                self.acked["mqtt"] += 1
        for info in under_way:
            info.wait_for_publish(SECONDS_MAX)
            self.acked["mqtt"] += 1
        client.disconnect()
        client.loop_stop()

    def _amqp(self) -> None:
        with channel_of(self._server) as channel:
            while not self._stopping.wait(PAUSE_SECONDS):
                self.sent["amqp"] += 1
                text = body(self.sent["amqp"])
                channel.basic_publish("", "load", text, pika.BasicProperties(delivery_mode=2))
                self.acked["amqp"] += 1

    def wait_acked(self, more: int) -> dict[str, int]:
        """Wait until so many more are acknowledged in each protocol; how many are then."""
        wanted = {name: count + more for name, count in self.acked.items()}
        wait_for(
            lambda: self._errors or all(self.acked[name] >= wanted[name] for name in wanted),
            "the load does not go on",
        )
        assert not self._errors
        return dict(self.acked)

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(SECONDS_MAX)
            assert not thread.is_alive()
        assert not self._errors


def body(number: int) -> bytes:
    return (b"%08d" % number).ljust(BODY_BYTES, b".")


def amqp_numbers(server: Server) -> list[int]:
    """What waits in the queue."""
    found: list[int] = []
    with channel_of(server) as channel:
        while True:
            _, _, text = channel.basic_get("load", auto_ack=True)
            if text is None:
                return found
            found.append(int(text[:8]))


def session(server: Server, count: int = 0) -> list[int]:
    """Connect as the client with a persistent session, and wait for so many messages."""
    found: list[int] = []
    connected = threading.Event()
    client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id="device", clean_session=False)
    client.on_message = lambda _c, _u, message: found.append(int(message.payload[:8]))
    client.on_subscribe = lambda *_: connected.set()
    client.connect("127.0.0.1", server.mqtt_port)
    client.loop_start()
    client.subscribe("load/mqtt", qos=1)
    assert connected.wait(SECONDS_MAX)
    wait_for(lambda: len(found) >= count, f"{len(found)} of {count} messages")
    client.disconnect()
    client.loop_stop()
    return found


def offsets(server: Server, topic: str) -> tuple[int, int]:
    connection = http.client.HTTPConnection("127.0.0.1", server.admin_port, timeout=10)
    connection.request("GET", f"/api/v1/topics/{topic}")
    queue = json.loads(connection.getresponse().read())["queues"][0]
    connection.close()
    return queue["first_offset"], queue["end_offset"]


@pytest.mark.slow
def test_a_loaded_server_is_backed_up_and_restored(
    start_server: StartServer, tmp_path: Path
) -> None:
    """Two backups in one directory: each has what was acknowledged before it began, in order, and
    nothing twice; the load goes on all the time. The source is killed in the end."""
    server = start_server(**SMALL)
    session(server)
    with channel_of(server) as channel:
        channel.queue_declare("load", durable=True)
    load = Load(server)
    target = tmp_path / "backup"
    before = []
    for _ in range(2):
        before.append(load.wait_acked(200))
        process = launch("create", target, "--data-directory", server.data_directory, "--rate", 1)
        wait_for(lambda: active(server), "no backup begins")
        load.wait_acked(20)
        _, errors = process.communicate(timeout=SECONDS_MAX)
        assert process.returncode == 0, errors.decode()
    load.wait_acked(100)
    found = metrics(server)
    assert found["polymq_backups_completed_total"] == 2
    assert found["polymq_backups_active"] == 0
    assert abs(found["polymq_backup_last_timestamp_seconds"] - time.time()) < SECONDS_MAX
    load.stop()
    server.kill()
    first, second = positions(target)
    assert "2 backups are sound" in backup("verify", target)
    for number, position in enumerate((first, second)):
        made = restored(
            start_server, target, tmp_path / f"restored-{number}", "--position", position
        )
        numbers = amqp_numbers(made)
        assert numbers == list(range(1, len(numbers) + 1))
        assert before[number]["amqp"] <= len(numbers) <= load.sent["amqp"]
        first_offset, end_offset = offsets(made, "load")
        assert first_offset == 0
        numbers = session(made, before[number]["mqtt"])
        assert sorted(set(numbers)) == list(range(1, max(numbers) + 1))
        assert before[number]["mqtt"] <= len(set(numbers)) <= load.sent["mqtt"]
        assert end_offset >= len(set(numbers))
        assert made.terminate() == 0


@pytest.mark.slow
def test_a_killed_command_holds_the_log_for_a_while_only(
    start_server: StartServer, tmp_path: Path
) -> None:
    options = {"topics.retention_seconds": 1, "storage.retention_check_seconds": 0.2}
    server = start_server(**SMALL, **options)
    fill(server, 30)
    target = tmp_path / "backup"
    process = launch(
        *("create", target, "--data-directory", server.data_directory),
        *("--rate", 1, "--reserve-seconds", 2),
    )
    wait_for(lambda: (target / "unfinished.json").exists(), "nothing is copied")
    process.kill()
    process.communicate()
    with channel_of(server) as channel:
        channel.queue_purge("filled")
    fill(server, 11, queue="other")
    holder = "backup"
    wait_for(lambda: (store_of(server)["held_by"] or {}).get("kind") == holder, "nobody holds it")
    wait_for(lambda: not active(server), "it holds the log for ever")
    assert metrics(server)['polymq_backup_failures_total{cause="silent"}'] == 1
    wait_for(lambda: store_of(server)["start"] > 0, "nothing is deleted")
    assert positions(target) == []
    create(server, target)
    (position,) = positions(target)
    assert "1 backup is sound" in backup("verify", target)
    made = restored(start_server, target, tmp_path / "restored")
    assert store_of(made)["start"] > 0
    assert store_of(made)["end"] > position
    assert made.terminate() == 0


@pytest.mark.slow
def test_retention_waits_for_a_backup(start_server: StartServer, tmp_path: Path) -> None:
    """What is to be copied is not deleted, what was copied is; the backup has all of it."""
    options = {"topics.retention_seconds": 1, "storage.retention_check_seconds": 0.2}
    server = start_server(**SMALL, **options)
    fill(server, 60)
    target = tmp_path / "backup"
    # It says once a second what it has copied, and takes six.
    pace = ("--rate", 1, "--reserve-seconds", 10)
    process = launch("create", target, "--data-directory", server.data_directory, *pace)
    wait_for(lambda: active(server), "no backup begins")
    with channel_of(server) as channel:
        channel.queue_purge("filled")
    fill(server, 11, queue="other")
    wait_for(lambda: store_of(server)["start"] > 0, "nothing goes")
    is_copying = process.poll() is None
    process.communicate(timeout=SECONDS_MAX)
    assert is_copying
    assert process.returncode == 0
    assert "1 backup is sound" in backup("verify", target)
    made = restored(start_server, target, tmp_path / "restored", **{"topics.retention_seconds": 0})
    with channel_of(made) as channel:
        found = channel.queue_declare("filled", durable=True, passive=True)
        assert found.method.message_count == 60
    assert made.terminate() == 0


@pytest.mark.slow
def test_a_server_killed_during_a_backup(start_server: StartServer, tmp_path: Path) -> None:
    """The command says so and ends; the next one takes a backup, also of the dead server."""
    server = start_server(**SMALL)
    fill(server, 30)
    target = tmp_path / "backup"
    process = launch(
        *("create", target, "--data-directory", server.data_directory),
        *("--rate", 1, "--reserve-seconds", 2),
    )
    wait_for(lambda: (target / "unfinished.json").exists(), "nothing is copied")
    server.kill()
    _, errors = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 69
    assert errors.count(b"\n") == 1
    assert positions(target) == []
    text = create(server, target)
    copied = re.search(r": ([\d,]+) bytes were copied", text)
    assert copied is not None
    size = sum(path.stat().st_size for path in (target / "segments").iterdir())
    assert int(copied[1].replace(",", "")) < size  # it went on
    made = restored(start_server, target, tmp_path / "restored")
    with channel_of(made) as channel:
        found = channel.queue_declare("filled", durable=True, passive=True)
        assert found.method.message_count == 30
    assert made.terminate() == 0
    server.restart()
    create(server, target)
    assert len(positions(target)) == 2


def test_a_server_started_again_during_a_backup(start_server: StartServer, tmp_path: Path) -> None:
    """It knows nothing of the backup, and says so rather than that somebody is not let in."""
    server = start_server(**SMALL)
    fill(server, 80)
    Admin(server).add("root", "admin")  # the command has the token of this start from now on
    target = tmp_path / "backup"
    process = launch(
        *("create", target, "--data-directory", server.data_directory),
        *("--rate", 1, "--reserve-seconds", 30),
    )
    wait_for(lambda: (target / "unfinished.json").exists(), "nothing is copied")
    os.kill(process.pid, signal.SIGSTOP)
    server.kill()
    server.restart()
    os.kill(process.pid, signal.SIGCONT)
    _, errors = process.communicate(timeout=SECONDS_MAX)
    assert process.returncode == 1
    assert b"any more: it was started again" in errors
    create(server, target)


@pytest.mark.slow
def test_a_killed_restore_leaves_nothing_that_starts(
    start_server: StartServer, tmp_path: Path
) -> None:
    server = start_server(**SMALL)
    fill(server, 30)
    target, directory = tmp_path / "backup", tmp_path / "restored"
    create(server, target)
    process = launch("restore", target, "--data-directory", directory / "data", "--rate", 1)
    wait_for(lambda: any((directory / "data").glob("restoring/commitlog/*")), "nothing is copied")
    process.kill()
    process.communicate()
    refused = start_server(directory=directory, ready=False, **SMALL)
    assert refused.process.wait(SECONDS_MAX) == 65
    assert any("a restore that is not complete" in line for line in refused.log_lines())
    made = restored(start_server, target, directory)
    with channel_of(made) as channel:
        found = channel.queue_declare("filled", durable=True, passive=True)
        assert found.method.message_count == 30
    assert made.terminate() == 0


@pytest.mark.slow
def test_the_commands_and_their_refusals(start_server: StartServer, tmp_path: Path) -> None:
    """A stopped server, one line for each thing that is wrong, and its exit code."""
    server = start_server(**SMALL, **lasting_ports())
    fill(server, 3)
    target, data = tmp_path / "backup", server.data_directory
    assert "inside the data directory" in create(server, data / "backup", code=2)
    other = start_server(**SMALL)
    create(server, target)
    assert "another store" in create(other, target, code=1)
    assert server.terminate() == 0
    assert ": 0 bytes were copied" in create(server, target)
    (position,) = positions(target)
    assert "is not empty" in backup("restore", target, "--data-directory", data, code=1)
    wrong = backup("restore", target, "--data-directory", tmp_path / "r", "--position", 1, code=1)
    assert str(position) in wrong
    assert "no backup directory" in backup("verify", data, code=1)
    inside = backup("restore", target, "--data-directory", target / "r", code=2)
    assert "inside the backup directory" in inside
    (segment,) = (target / "segments").iterdir()
    text = bytearray(segment.read_bytes())
    text[len(text) // 2] ^= 1
    segment.write_bytes(text)
    for command in (("verify", target), ("restore", target, "--data-directory", tmp_path / "r")):
        assert f"{segment} is damaged: record at " in backup(*command, code=65)
    assert not (tmp_path / "r").exists()
    text[len(text) // 2] ^= 1
    segment.write_bytes(text)
    broken = target / "manifests" / f"{position + 1:020}.json"
    broken.write_text("{}")
    assert f"{broken} is damaged" in backup("list", target, code=65)
    newest = ("restore", target, "--data-directory", tmp_path / "r")
    assert "Name the backup to restore by its --position" in backup(*newest, code=65)
    assert "is restored" in backup(*newest, "--position", position)
    for manifest in (target / "manifests").iterdir():
        manifest.unlink()
    assert "there is no complete backup" in backup("verify", target, code=1)
    unreadable = create(other, Path("/proc/backup"), code=73)
    assert unreadable.count("\n") == 1
    assert "no store to back up" in backup(
        "create", target, "--data-directory", tmp_path / "none", code=1
    )


def ask(server: Server, method: str, path: str, text: str, **headers: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", server.admin_port, timeout=10)
    try:
        connection.request(method, path, text, headers)
        answer = connection.getresponse()
        content = answer.read()
        return answer.status, json.loads(content) if content else None
    finally:
        connection.close()


def test_what_a_server_answers_to_a_backup(server: Server) -> None:
    """Bad requests get an answer, there are four at most, and each is given back."""
    ours = {"X-PolyMQ-Admin": "test"}
    assert ask(server, "POST", "/api/v1/backups", "{}")[0] == 403
    for text in ("[]", "{", '{"name": 1}', '{"seconds": 0}', '{"seconds": NaN}', "[" * 60_000):
        assert ask(server, "POST", "/api/v1/backups", text, **ours)[0] == 400, text[:20]
    status_code, value = ask(server, "POST", "/api/v1/backups", '{"seconds": 60}', **ours)
    assert status_code == 201
    assert value["segments"][0][0] == 0
    assert value["epochs"][0][:2] == [1, 0]
    assert (Path(value["log"]) / f"{0:020d}").exists()
    others = [ask(server, "POST", "/api/v1/backups", "{}", **ours)[1]["name"] for _ in range(3)]
    assert ask(server, "POST", "/api/v1/backups", "{}", **ours)[0] == 409
    path = f"/api/v1/backups/{value['name']}"
    for text in ('{"position": -1}', '{"position": Infinity}', '{"position": "1"}'):
        assert ask(server, "PUT", path, text, **ours)[0] == 400, text
    assert ask(server, "PUT", path, '{"position": 5}', **ours)[1]["position"] == 5
    for name in (value["name"], *others):
        assert (
            ask(server, "POST", f"/api/v1/backups/{name}/end", '{"failed": true}', **ours)[0] == 204
        )
        assert (
            ask(server, "POST", f"/api/v1/backups/{name}/end", '{"failed": true}', **ours)[0] == 404
        )
    assert ask(server, "PUT", path, "{}", **ours)[0] == 404
    assert metrics(server)['polymq_backup_failures_total{cause="reported"}'] == 4


@pytest.mark.slow
@pytest.mark.parametrize("has_more", [True, False])
def test_a_slave_and_a_master_that_went_back(tmp_path: Path, has_more: bool) -> None:
    """If it has what the restored master lacks, it stays as it is, until an operator gives that up.
    Else it follows by itself."""
    pair = Pair(tmp_path, dict(SMALL))
    with contextlib.ExitStack() as stack:
        stack.callback(pair.close)
        pair.start()
        master, slave = pair.leader, pair.follower
        fill(master, 3)
        pair.wait_equal()
        create(master, tmp_path / "backup")
        if has_more:
            fill(master, 3)
            pair.wait_equal()
        end = status(slave)["flushed"]
        master.kill()
        master.data_directory.rename(tmp_path / "lost")
        backup("restore", tmp_path / "backup", "--data-directory", master.data_directory)
        master.start()
        if has_more:
            wait(slave, lambda: "diverged" in status(slave), "sight of what the master lacks")
            assert status(slave)["flushed"] == end
            command = [sys.executable, "-m", "polymq", "broker", "follow", "--force"]
            subprocess.run(
                [*command, "--data-directory", slave.data_directory],
                check=True,
                capture_output=True,
            )
        assert status(master)["term"] == 1
        wait(slave, lambda: bool(status(slave).get("following")), "slave that follows")
        pair.wait_equal()
        assert status(slave)["term"] == 1
