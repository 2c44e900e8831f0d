"""Bridges of the server to other MQTT brokers: to mosquitto, to a second server of ours, and to
remotes that do not answer as they should.

What has to hold: nothing that was acknowledged here is lost on the way, whoever is killed; QoS 2
arrives once; nothing goes in circles; and a remote that is away, or says nothing, stops nothing.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import queue
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from interop_tests.authority import Authority
from interop_tests.conftest import Server, StartServer
from interop_tests.listener_clients import connected, refusal
from interop_tests.mqtt_raw_client import RawClient
from interop_tests.mqtt_wire import puback, pubcomp, publish, pubrec, pubrel, subscribe
from interop_tests.people import PASSWORD, Admin
from interop_tests.replica_kills import Pair

MOSQUITTO = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
SECONDS = 20.0
COUNT = 1_500
"""Messages of the tests with kills: several windows."""

need_mosquitto = pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        threading.Event().wait(0.02)


class Mosquitto:
    """A mosquitto on a port that stays the same. It keeps sessions over an orderly restart."""

    def __init__(self, directory: Path, more: str = "") -> None:
        directory.mkdir()
        self.port = free_port()
        self._log = directory / "mosquitto.log"
        self._config = directory / "mosquitto.conf"
        anonymous = "" if "allow_anonymous" in more else "allow_anonymous true\n"
        self._config.write_text(
            f"listener {self.port} 127.0.0.1\n{anonymous}max_queued_messages 0\n"
            f"user {getpass.getuser()}\n"
            f"persistence true\npersistence_location {directory}/\n{more}"
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert MOSQUITTO is not None
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [MOSQUITTO, "-v", "-c", str(self._config)], stdout=log, stderr=log
            )
        wait_for(self._is_open, "mosquitto")

    def _is_open(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()[-2000:]
        with socket.socket() as trying:
            return trying.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self, *, kill: bool = False) -> None:
        if self._process is not None:
            if kill:
                self._process.kill()
            else:
                self._process.terminate()
            self._process.wait(SECONDS)
            self._process = None


@pytest.fixture
def mosquitto(tmp_path: Path) -> Iterator[Mosquitto]:
    made = Mosquitto(tmp_path / "mosquitto")
    made.start()
    yield made
    made.stop()


def bridge(port: int, *topics: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A bridge in the settings."""
    fields = {"name": "up", "host": "127.0.0.1", "port": port, "retry_seconds_max": 1, **more}
    return {**fields, "topics": topics or [{"pattern": "x/#"}]}


def bridged(start_server: StartServer, *bridges: dict[str, Any], **more: Any) -> Server:
    """A server with these bridges."""
    return start_server(**{"mqtt.bridges": json.dumps(bridges)}, **more)


def metric(server: Server, name: str, *labels: str, of: str = "bridge") -> float:
    """A value of /metrics; 0 if there is none."""
    url = f"http://127.0.0.1:{server.admin_port}/metrics"
    with urllib.request.urlopen(url, timeout=SECONDS) as answer:
        text = answer.read().decode()
    wanted = "".join(f".*{re.escape(label)}" for label in labels)
    values = f"{{{wanted}.*}}" if labels else ""
    line = rf"^polymq_mqtt_{of}_{name}(?:_total)?{values} (\S+)$"
    found = re.search(line, text, re.MULTILINE)
    return 0.0 if found is None else float(found[1])


def is_up(server: Server, name: str = "up") -> bool:
    return metric(server, "connected", f'"{name}"') == 1


def publish_all(client: RawClient, topic: str, bodies: list[bytes], qos: int) -> None:
    """Publish and wait until every message is acknowledged. Mosquitto takes 20 of QoS 2 at once."""
    for first in range(0, len(bodies), 20):
        some = bodies[first : first + 20]
        ids = range(first + 1, first + 1 + len(some))
        pairs = zip(ids, some, strict=True)
        client.send(*(publish(topic, body, qos=qos, packet_id=k) for k, body in pairs))
        if qos == 1:
            client.expect(*map(puback, ids))
        if qos == 2:
            client.expect(*map(pubrec, ids))
            client.send(*map(pubrel, ids))
            client.expect(*map(pubcomp, ids))


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % k for k in range(first, last)]


def expect_one(client: RawClient, topic: str, body: bytes, qos: int, *, retain: bool) -> None:
    (found,) = client.acknowledge(1)
    assert (found.topic, found.body, found.qos, found.retain) == (topic, body, qos, retain)


RULES = (
    {"pattern": "t/#", "direction": "out", "qos": 2, "remote_prefix": "site/"},
    {"pattern": "#", "direction": "in", "qos": 2, "local_prefix": "from/", "remote_prefix": "c/"},
    {"pattern": "b/+", "direction": "both", "qos": 1},
    {"pattern": "", "direction": "out", "qos": 0, "local_prefix": "one", "remote_prefix": "other"},
)


@pytest.mark.parametrize("version", ["5", "3.1.1"])
@pytest.mark.parametrize("remote", [pytest.param("mosquitto", marks=need_mosquitto), "polymq"])
@pytest.mark.slow
def test_topics_are_carried(
    start_server: StartServer, tmp_path: Path, remote: str, version: str
) -> None:
    """Out, in and both ways, by their prefixes, with QoS and RETAIN, and nothing comes back."""
    with contextlib.ExitStack() as stack:
        if remote == "mosquitto":
            there = Mosquitto(tmp_path / "mosquitto")
            there.start()
            stack.callback(there.stop)
            port = there.port
        else:
            port = start_server().mqtt_port
        # Retained before there is a bridge: both sides get what the other has.
        with RawClient.connected(port, "early") as early:
            early.send(publish("c/kept", b"there", qos=1, packet_id=1, retain=True))
            early.expect(puback(1))
        server = bridged(start_server, bridge(port, *RULES, protocol_version=version))
        wait_for(lambda: is_up(server), "the bridge")
        with RawClient.connected(server.mqtt_port, "watcher") as watcher:
            watcher.subscribe(("$SYS/broker/connection/+/state", 0))
            expect_one(watcher, "$SYS/broker/connection/up/state", b"1", 0, retain=True)
        here_sub = stack.enter_context(RawClient.connected(server.mqtt_port, "here"))
        there_sub = stack.enter_context(RawClient.connected(port, "there"))
        here = stack.enter_context(RawClient.connected(server.mqtt_port, "from here"))
        away = stack.enter_context(RawClient.connected(port, "from there"))
        wait_for(lambda: metric(server, "publishes", "received") == 1, "the retained message")
        there_sub.subscribe(("#", 2))
        expect_one(there_sub, "c/kept", b"there", 1, retain=True)
        here_sub.subscribe(("#", 2))
        expect_one(here_sub, "from/kept", b"there", 1, retain=True)
        for qos in range(3):
            publish_all(here, "t/x", [b"out"], qos)
            expect_one(here_sub, "t/x", b"out", qos, retain=False)
            expect_one(there_sub, "site/t/x", b"out", qos, retain=False)
            publish_all(away, "c/y/z", [b"in"], qos)
            expect_one(there_sub, "c/y/z", b"in", qos, retain=False)
            expect_one(here_sub, "from/y/z", b"in", qos, retain=False)
        for client in (here, away):  # the lower QoS counts, and there is no echo
            publish_all(client, "b/1", [b"both"], 2)
            own, other = (here_sub, there_sub) if client is here else (there_sub, here_sub)
            expect_one(own, "b/1", b"both", 2, retain=False)
            expect_one(other, "b/1", b"both", 1, retain=False)
        publish_all(here, "one", [b"renamed"], 1)
        expect_one(here_sub, "one", b"renamed", 1, retain=False)
        expect_one(there_sub, "other", b"renamed", 0, retain=False)
        publish_all(here, "elsewhere", [b"not carried"], 1)
        expect_one(here_sub, "elsewhere", b"not carried", 1, retain=False)
        here.send(publish("t/kept", b"here", qos=1, packet_id=9, retain=True))
        here.expect(puback(9))
        expect_one(here_sub, "t/kept", b"here", 1, retain=False)
        expect_one(there_sub, "site/t/kept", b"here", 1, retain=False)
        with RawClient.connected(port, "late") as late:
            late.send(subscribe(1, ("site/t/kept", 1)))
            late.receive()
            expect_one(late, "site/t/kept", b"here", 1, retain=True)
        # In order: if anything had come back, it would be before these.
        publish_all(here, "t/end", [b"end"], 1)
        publish_all(away, "c/end", [b"end"], 1)
        expect_one(here_sub, "t/end", b"end", 1, retain=False)
        ends = sorted(found.topic for found in there_sub.acknowledge(2))
        assert ends == ["c/end", "site/t/end"]
        expect_one(here_sub, "from/end", b"end", 1, retain=False)
        here_sub.expect_nothing_before_ping()
        there_sub.expect_nothing_before_ping()


def keep(found: queue.Queue[Any], _client: object, _data: object, message: object) -> None:
    found.put(message)


@need_mosquitto
@pytest.mark.slow
def test_properties_are_carried(start_server: StartServer, mosquitto: Mosquitto) -> None:
    """The properties of MQTT 5 go both ways; the expiry is what is left of it."""
    both = {"pattern": "p/#", "direction": "both", "qos": 1}
    server = bridged(start_server, bridge(mosquitto.port, both))
    wait_for(lambda: is_up(server), "the bridge")
    ports = [server.mqtt_port, mosquitto.port]
    for source, target in (ports, ports[::-1]):
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        properties.ContentType = "text/plain"
        properties.ResponseTopic = "answers/1"
        properties.CorrelationData = b"\x00\x01"
        properties.PayloadFormatIndicator = 1
        properties.MessageExpiryInterval = 500
        properties.UserProperty = [("a", "1"), ("b", "2"), ("a", "3")]
        with (
            connected(target, "reader", version=paho.MQTTv5) as reader,
            connected(source, "writer", version=paho.MQTTv5) as writer,
        ):
            found: queue.Queue[Any] = queue.Queue()
            reader.paho.on_message = partial(keep, found)
            reader.subscribe("p/#")
            writer.publish("p/1", b"text", properties=properties)
            got = found.get(timeout=SECONDS).properties
        assert (got.ContentType, got.ResponseTopic) == ("text/plain", "answers/1")
        assert (got.CorrelationData, got.PayloadFormatIndicator) == (b"\x00\x01", 1)
        assert 490 <= got.MessageExpiryInterval <= 500
        own = [pair for pair in got.UserProperty if pair[0] != "polymq-via"]
        assert own == [("a", "1"), ("b", "2"), ("a", "3")]


@need_mosquitto
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.slow
def test_what_waits_survives_kills(
    start_server: StartServer, mosquitto: Mosquitto, qos: int
) -> None:
    """The remote is away, messages are acknowledged, the server is killed and started again: all of
    them reach the remote when it is back, in order."""
    server = bridged(start_server, bridge(mosquitto.port, {"pattern": "q/#", "qos": qos}))
    wait_for(lambda: is_up(server), "the bridge")
    with RawClient.connected(mosquitto.port, "reader", clean=False) as reader:
        reader.subscribe(("q/#", 2))
    mosquitto.stop()
    with RawClient.connected(server.mqtt_port, "writer") as writer:
        publish_all(writer, "q/1", numbers(0, COUNT), qos)
    server.kill()
    server.start()
    assert metric(server, "waiting_messages", '"up"') == COUNT
    mosquitto.start()
    with RawClient.connected(mosquitto.port, "reader", clean=False, present=True) as reader:
        assert [found.body for found in reader.acknowledge(COUNT)] == numbers(0, COUNT)
        reader.expect_nothing_before_ping()


@need_mosquitto
@pytest.mark.parametrize("killed", ["server", "remote"])
@pytest.mark.parametrize("version", ["5", "3.1.1"])
@pytest.mark.slow
def test_once_out_over_a_kill(
    start_server: StartServer, mosquitto: Mosquitto, version: str, killed: str
) -> None:
    """One side goes in the middle of a stream of QoS 2: each message reaches the remote once, in
    order. (The remote is stopped in order, so that it knows its sessions again.)"""
    topic = {"pattern": "q/#", "qos": 2}
    options = bridge(mosquitto.port, topic, protocol_version=version)
    server = bridged(start_server, options)
    wait_for(lambda: is_up(server), "the bridge")
    with RawClient.connected(mosquitto.port, "reader", clean=False) as reader:
        reader.subscribe(("q/#", 2))
    with RawClient.connected(server.mqtt_port, "writer") as writer:
        publish_all(writer, "q/1", numbers(0, COUNT), 2)
    # Some are through, some are on their way.
    wait_for(lambda: metric(server, "publishes", "sent") > COUNT // 8, "the first messages")
    if killed == "server":
        server.kill()
        server.start()
    else:
        mosquitto.stop()
        mosquitto.start()
    with RawClient.connected(mosquitto.port, "reader", clean=False, present=True) as reader:
        assert [found.body for found in reader.acknowledge(COUNT)] == numbers(0, COUNT)
        reader.expect_nothing_before_ping()


@need_mosquitto
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("version", ["5", "3.1.1"])
@pytest.mark.slow
def test_what_comes_in_survives_a_kill(
    start_server: StartServer, mosquitto: Mosquitto, version: str, qos: int
) -> None:
    """The server is killed while messages come in: the remote keeps what was not acknowledged. QoS
    2 arrives once, QoS 1 at least once, and both in order."""
    topic = {"pattern": "q/#", "direction": "in", "qos": 2}
    server = bridged(start_server, bridge(mosquitto.port, topic, protocol_version=version))
    wait_for(lambda: is_up(server), "the bridge")
    with RawClient.connected(server.mqtt_port, "reader", clean=False) as reader:
        reader.subscribe(("q/#", 2))
    with RawClient.connected(mosquitto.port, "writer") as writer:
        publish_all(writer, "q/1", numbers(0, COUNT), qos)
    wait_for(lambda: metric(server, "publishes", "received") > COUNT // 10, "the first messages")
    server.kill()
    with RawClient.connected(mosquitto.port, "writer") as writer:
        publish_all(writer, "q/1", numbers(COUNT, COUNT + 10), qos)
    server.start()
    with RawClient.connected(server.mqtt_port, "reader", clean=False, present=True) as reader:
        bodies: list[bytes] = []
        if qos == 2:
            bodies = [found.body for found in reader.acknowledge(COUNT + 10)]
        while bodies[-1:] != [b"%d" % (COUNT + 9)]:
            bodies += [found.body for found in reader.acknowledge(1)]
        reader.expect_nothing_before_ping()
    if qos == 1:
        bodies = list(dict.fromkeys(bodies))
    assert bodies == numbers(0, COUNT + 10)


@pytest.mark.slow
def test_two_bridges_against_each_other(start_server: StartServer) -> None:
    """Each of two servers has a bridge to the other for the same topics: a message arrives once on
    the other side, and comes to rest."""
    both = {"pattern": "l/#", "direction": "both", "qos": 1}
    first = start_server()
    second = bridged(start_server, bridge(first.mqtt_port, both))
    first.configure(**{"mqtt.bridges": json.dumps([bridge(second.mqtt_port, both)])})
    assert first.terminate() == 0
    first.start()
    for server in (first, second):
        wait_for(lambda server=server: is_up(server), "the bridge")  # type: ignore[misc]
    with (
        RawClient.connected(first.mqtt_port, "reader") as reader,
        RawClient.connected(first.mqtt_port, "writer") as writer,
        RawClient.connected(second.mqtt_port, "other reader") as other,
    ):
        reader.subscribe(("l/#", 1))
        other.subscribe(("l/#", 1))
        publish_all(writer, "l/1", numbers(0, 10), 1)
        # There are two ways to the other side, and so two copies. Both come back, and are dropped.
        assert sorted(found.body for found in other.acknowledge(20)) == sorted(2 * numbers(0, 10))
        wait_for(lambda: metric(first, "dropped", "loop") == 10, "what comes by the own bridge")
        wait_for(lambda: metric(first, "looped", of="publishes") == 10, "what comes by the other")
        assert [found.body for found in reader.acknowledge(10)] == numbers(0, 10)
        for client in (reader, other):
            client.expect_nothing_before_ping()
    assert [metric(server, "publishes", "sent") for server in (first, second)] == [10, 10]


class Remote:
    """A port whose connections are treated in some wrong way."""

    def __init__(self, answer: bytes | None) -> None:
        self._answer = answer
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.connects: list[bytes] = []
        self._taken: list[socket.socket] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                accepted, _ = self._listening.accept()
            except OSError:
                return
            self._taken.append(accepted)
            if self._answer is None:
                self.connects.append(b"")
                continue  # it says nothing, for ever
            self.connects.append(accepted.recv(4096))
            accepted.sendall(self._answer)
            accepted.close()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for each in self._taken:
            each.close()
        self._thread.join(SECONDS)


@pytest.mark.parametrize(
    ("answer", "reason", "expected"),
    [
        pytest.param(None, "no_answer", "did not answer CONNECT", id="says nothing"),
        pytest.param(b"", "closed", "closed the connection", id="closes"),
        pytest.param(b"\x20\x03\x00\x87\x00", "refused", "not authorized", id="refuses"),
        pytest.param(b"\x20\x02\x00\x05", "refused", "not authorized", id="refuses as 3.1.1"),
        pytest.param(b"HTTP/1.1 400 Bad\r\n\r\n", "protocol", "CONNACK", id="is no broker"),
        pytest.param("nobody", "unreachable", "refused", id="is not there"),
    ],
)
@pytest.mark.slow
def test_remotes_that_do_not_answer(
    start_server: StartServer, answer: bytes | str | None, reason: str, expected: str
) -> None:
    """The server starts, serves and stops as always, and says why it is not connected. It goes on
    trying, and never shows the password."""
    with contextlib.ExitStack() as stack:
        port = free_port()
        if not isinstance(answer, str):
            remote = Remote(answer)
            stack.callback(remote.close)
            port = remote.port
        more = {"user": "u", "password": "very secret", "connect_seconds": 1}
        server = bridged(start_server, bridge(port, protocol_version="5", **more))
        with RawClient.connected(server.mqtt_port, "writer") as writer:
            publish_all(writer, "x/1", [b"waits"], 1)
        wait_for(lambda: metric(server, "failures", '"up"', reason) >= 2, reason)
        assert metric(server, "waiting_messages", '"up"') == 1
        assert not is_up(server)
        began = time.monotonic()
        assert server.terminate() == 0
        assert time.monotonic() - began < 5
    text = server.log_path.read_text()
    assert expected in text
    assert "very secret" not in text


@need_mosquitto
@pytest.mark.slow
def test_a_password_and_tls(start_server: StartServer, tmp_path: Path) -> None:
    """A remote with TLS that asks for a certificate: the bridge shows its own, and checks the
    remote's against its authority and the name."""
    authority = Authority(tmp_path / "authority")
    stranger = Authority(tmp_path / "stranger")
    certificate, key = authority.issue("server", "/CN=localhost", "DNS:localhost")
    own, own_key = authority.issue("bridge", "/CN=bridge")
    key.chmod(0o644)
    remote = Mosquitto(
        tmp_path / "mosquitto",
        f"cafile {authority.certificate}\ncertfile {certificate}\nkeyfile {key}\n"
        "require_certificate true\nuse_identity_as_username true\n",
    )
    remote.start()
    try:
        tls = {
            "host": "localhost",
            "tls": True,
            "tls_ca": str(authority.certificate),
            "tls_certificate": str(own),
            "tls_key": str(own_key),
        }
        wrong = {
            "authority": {"tls_ca": str(stranger.certificate)},
            "name": {"host": "127.0.0.1"},
            "none": {"tls_certificate": "", "tls_key": ""},
        }
        server = bridged(
            start_server,
            bridge(remote.port, **tls),
            *(
                bridge(remote.port, **{**tls, **more}, name=name, connect_seconds=2)
                for name, more in wrong.items()
            ),
            bridge(
                remote.port,
                **{**tls, "host": "127.0.0.1", "tls_ca": "", "tls_insecure": True},
                name="insecure",
            ),
        )
        for name in ("up", "insecure"):
            wait_for(lambda name=name: is_up(server, name), name)  # type: ignore[misc]
        for name in ("authority", "name"):
            wait_for(
                lambda name=name: metric(server, "failures", f'"{name}"', "tls") > 0,  # type: ignore[misc]
                name,
            )
        wait_for(lambda: "bridge none: not connected" in server.log_path.read_text(), "none")
        assert not any(is_up(server, name) for name in wrong)
    finally:
        remote.stop()


@pytest.mark.slow
def test_users_on_both_sides(start_server: StartServer, tmp_path: Path) -> None:
    """The bridge logs in with a password from a file, and a wrong one is said. Here it acts as a
    user: what that may not publish is dropped and counted, and the rest goes on."""
    remote = start_server()
    people = Admin(remote)
    people.add("bridge", "admin")
    topics = (
        {"pattern": "out/#", "direction": "out"},
        {"pattern": "in/#", "direction": "in"},
        {"pattern": "closed/#", "direction": "in"},
    )
    login = {"user": "bridge", "local_user": "carrier"}
    options = bridge(
        remote.mqtt_port, *topics, **login, password_file=secret(tmp_path, "wrong one")
    )
    server = bridged(start_server, options)
    here = Admin(server)
    here.add("carrier")
    here.allow("carrier", "subscribe", "out.#")
    here.allow("carrier", "publish,create", "in.#")
    here.allow("role:anonymous", "publish,create,subscribe", "#")
    wait_for(lambda: metric(server, "failures", '"up"', "refused") > 0, "the refusal")
    assert "wrong one" not in server.log_path.read_text()
    assert server.terminate() == 0
    options["password_file"] = secret(tmp_path, PASSWORD)
    server.configure(**{"mqtt.bridges": json.dumps([options])})
    server.start()
    wait_for(lambda: is_up(server), "the bridge")
    with (
        RawClient.connected(server.mqtt_port, "reader") as reader,
        RawClient.connected(server.mqtt_port, "writer") as writer,
        connected(
            remote.mqtt_port, "there", user="bridge", password=PASSWORD, version=paho.MQTTv5
        ) as there,
    ):
        reader.subscribe(("#", 1))
        there.subscribe("out/#")
        publish_all(writer, "out/1", [b"goes"], 1)
        assert there.message() == ("out/1", b"goes")
        expect_one(reader, "out/1", b"goes", 1, retain=False)
        there.publish("closed/1", b"may not")
        there.publish("in/1", b"comes")
        expect_one(reader, "in/1", b"comes", 1, retain=False)
    assert metric(server, "dropped", "local") == 1


@pytest.mark.slow
def test_a_bridge_that_is_switched_off_or_removed(start_server: StartServer) -> None:
    """Switched off, it does not connect, and messages go on waiting. Removed, its session ends at
    the next start, so that nothing is stored for it for ever."""
    with contextlib.closing(Remote(b"")) as remote:
        options = bridge(remote.port, enabled=False)
        server = bridged(start_server, options)
        for count in (1, 2):
            with RawClient.connected(server.mqtt_port, "writer") as writer:
                publish_all(writer, "x/1", [b"waits"], 1)
            assert metric(server, "waiting_messages", '"up"') == count
            assert server.terminate() == 0
            server.start()
        assert remote.connects == []
        assert server.terminate() == 0
        server.configure(**{"mqtt.bridges": "[]"})
        server.start()
        assert "the session of a bridge has ended" in server.log_path.read_text()
        assert server.terminate() == 0
        server.configure(**{"mqtt.bridges": json.dumps([options])})
        server.start()
        assert metric(server, "connected", '"up"') == 0
        assert metric(server, "waiting_messages", '"up"') == 0


@pytest.mark.slow
def test_a_local_user_of_a_server_that_has_no_users_yet(start_server: StartServer) -> None:
    """What waits is there after a restart. Once there are users it is sent when the local user may
    read it, and not before."""
    remote = start_server()
    with RawClient.connected(remote.mqtt_port, "reader", clean=False) as reader:
        reader.subscribe(("x/#", 1))
    assert remote.terminate() == 0
    server = bridged(start_server, bridge(remote.mqtt_port, local_user="carrier"))
    with RawClient.connected(server.mqtt_port, "writer") as writer:
        publish_all(writer, "x/1", [b"waits"], 1)
    assert server.terminate() == 0
    server.start()
    assert "the session of a bridge has ended" not in server.log_path.read_text()
    people = Admin(server)
    people.add("somebody")
    remote.start()
    wait_for(lambda: metric(server, "failures", '"up"', "local") > 0, "a failure")
    assert metric(server, "connected", '"up"') == 0
    assert metric(server, "waiting_messages", '"up"') == 1
    people.add("carrier")
    people.allow("carrier", "subscribe", "x.#")
    with RawClient.connected(remote.mqtt_port, "reader", clean=False, present=True) as reader:
        expect_one(reader, "x/1", b"waits", 1, retain=False)
    wait_for(lambda: is_up(server), "the bridge")
    people.good("DELETE", "/users/carrier")
    wait_for(lambda: not is_up(server), "the end of the right")


@pytest.mark.slow
def test_a_bridge_that_is_switched_off_waits_for_its_right(start_server: StartServer) -> None:
    """It is said that no messages wait, and they do once they may."""
    server = start_server()
    people = Admin(server)
    people.add("carrier")
    people.allow("role:anonymous", "publish,create", "x.#")
    assert server.terminate() == 0
    options = bridge(1, enabled=False, local_user="carrier")
    server.configure(**{"mqtt.bridges": json.dumps([options])})
    server.start()
    wait_for(lambda: metric(server, "failures", '"up"', "local") > 0, "a failure")
    assert "its session cannot be made" in server.log_path.read_text()
    people.allow("carrier", "subscribe", "x.#")
    with RawClient.connected(server.mqtt_port, "writer") as writer:

        def waits() -> bool:
            publish_all(writer, "x/1", [b"waits"], 1)
            return metric(server, "waiting_messages", '"up"') > 0

        wait_for(waits, "the right")
    assert metric(server, "failures", '"up"', "unreachable") == 0


@pytest.mark.slow
def test_another_address_of_the_remote_broker(start_server: StartServer) -> None:
    """It is used while the first cannot be reached. When its connection ends, the first is tried
    again before it."""
    first, second = start_server(), start_server()
    for remote in (first, second):
        with RawClient.connected(remote.mqtt_port, "reader", clean=False) as reader:
            reader.subscribe(("x/#", 1))
    assert first.terminate() == 0
    server = bridged(
        start_server, bridge(first.mqtt_port, fallbacks=[f"127.0.0.1:{second.mqtt_port}"])
    )
    wait_for(lambda: is_up(server), "the second address")
    assert f"It tries 127.0.0.1:{second.mqtt_port} now" in server.log_path.read_text()
    with RawClient.connected(server.mqtt_port, "writer") as writer:
        publish_all(writer, "x/1", [b"to the second"], 1)
        with RawClient.connected(second.mqtt_port, "reader", clean=False, present=True) as reader:
            expect_one(reader, "x/1", b"to the second", 1, retain=False)
        first.start()
        assert second.terminate() == 0
        to_first = f"connected to 127.0.0.1:{first.mqtt_port} "
        wait_for(lambda: to_first in server.log_path.read_text(), "the first address")
        publish_all(writer, "x/1", [b"to the first"], 1)
        with RawClient.connected(first.mqtt_port, "reader", clean=False, present=True) as reader:
            expect_one(reader, "x/1", b"to the first", 1, retain=False)


@pytest.mark.slow
def test_a_bridge_of_two_brokers(start_server: StartServer, tmp_path: Path) -> None:
    """The leader alone is connected. When it is lost, the promoted follower sends what waited."""
    remote = start_server()
    with RawClient.connected(remote.mqtt_port, "reader", clean=False) as reader:
        reader.subscribe(("q/#", 2))
    options = bridge(remote.mqtt_port, {"pattern": "q/#", "qos": 2})
    with contextlib.closing(Pair(tmp_path, {"mqtt.bridges": json.dumps([options])})) as pair:
        pair.start()
        wait_for(lambda: is_up(pair.leader), "the bridge")
        assert remote.terminate() == 0
        with RawClient.connected(pair.leader.mqtt_port, "writer") as writer:
            publish_all(writer, "q/1", numbers(0, 100), 2)
        assert metric(pair.follower, "connected", '"up"') == 0
        assert metric(pair.follower, "failures", '"up"') == 0
        pair.kill("master")
        remote.start()
        with RawClient.connected(remote.mqtt_port, "reader", clean=False, present=True) as reader:
            assert [found.body for found in reader.acknowledge(100)] == numbers(0, 100)
            reader.expect_nothing_before_ping()


def secret(directory: Path, text: str) -> str:
    path = directory / "password"
    path.write_text(text + "\n")
    path.chmod(0o600)
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"topics": []}, "carries nothing"),
        ({"topics": [{"pattern": "a/#/b"}]}, "# in a topic filter is the last level"),
        ({"topics": [{"pattern": "a"}, {"pattern": "a"}]}, "two topics have the local filter 'a'"),
        ({"topics": [{"pattern": "$SYS/#"}]}, "begin with $"),
        ({"topics": [{"pattern": ""}]}, "an empty pattern needs both prefixes"),
        ({"tls_ca": "/x"}, "tls_ca needs tls = true"),
        ({"tls": True, "tls_ca": "/nowhere.pem"}, "/nowhere.pem cannot be read"),
        ({"tls": True, "tls_ca": __file__}, "not what it should be in PEM form"),
        ({"user": "u", "password_file": "/nowhere"}, "/nowhere cannot be read"),
        ({"password": "very secret"}, "a password needs a user"),
        ({"user": "u", "password": 5}, "password: input should be a valid string"),
        ({"hots": "x"}, "there is no setting mqtt.bridges[0].hots (did you mean"),
        ({"name": "Up"}, "mqtt.bridges[0].name"),
    ],
)
def test_wrong_settings(start_server: StartServer, fields: dict[str, Any], expected: str) -> None:
    """One line says what is wrong, and there is nothing of a secret in it."""
    options = json.dumps([{**bridge(1883), **fields}])
    line = refusal(start_server, **{"mqtt.bridges": options})
    assert expected in line
    assert "very secret" not in line
