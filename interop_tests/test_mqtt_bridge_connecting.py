"""How bridges connect to other MQTT brokers: to remotes that do not answer as they should, with
passwords and TLS, as users, by several addresses, and when brokers are promoted.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest

from interop_tests.authority import Authority
from interop_tests.bridging import (
    SECONDS,
    Mosquitto,
    bridge,
    bridged,
    expect_one,
    free_port,
    is_up,
    metric,
    need_mosquitto,
    numbers,
    publish_all,
    secret,
    wait_for,
)
from interop_tests.conftest import StartServer
from interop_tests.listener_clients import connected, refusal
from interop_tests.mqtt_raw_client import RawClient
from interop_tests.mqtt_wire import connack, puback
from interop_tests.people import PASSWORD, Admin
from interop_tests.replica_kills import Pair


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
@pytest.mark.parametrize(
    ("version", "more", "topic", "body", "shown"),
    [
        pytest.param("5", "", "x/\ufffe", b"no", "topic 'x/", id="DISCONNECT"),
        pytest.param("3.1.1", "max_packet_size 2000", "x/2", b"n" * 3000, "3000 bytes", id="close"),
    ],
)
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.slow
def test_a_message_that_the_remote_does_not_survive(
    start_server: StartServer,
    tmp_path: Path,
    version: str,
    more: str,
    topic: str,
    body: bytes,
    shown: str,
    qos: int,
) -> None:
    """It is set aside, counted and logged with its topic. All others arrive, in order."""
    remote = Mosquitto(tmp_path / "mosquitto", more)
    remote.start()
    try:
        server = bridged(
            start_server,
            bridge(remote.port, {"pattern": "x/#", "qos": 2}, protocol_version=version),
        )
        with (
            connected(remote.port, "reader", version=paho.MQTTv311) as reader,
            RawClient.connected(server.mqtt_port, "writer") as writer,
        ):
            reader.subscribe("x/1")
            wait_for(lambda: is_up(server), "the bridge")
            publish_all(writer, "x/1", numbers(0, 5), qos)
            publish_all(writer, topic, [body], qos)
            publish_all(writer, "x/1", numbers(5, 40), qos)
            assert metric(server, "waiting_messages", '"up"') >= 36
            found = [reader.message()[1]]
            while found[-1] != b"39":
                found.append(reader.message()[1])
        # What was sent beside the culprit may have been taken each time, at least once with QoS 1.
        assert sorted(set(found), key=int) == numbers(0, 40)
        wait_for(lambda: metric(server, "waiting_messages", '"up"') == 0, "nothing waits")
        assert metric(server, "dropped", '"up"', "remote") == 1
        text = server.log_path.read_text()
        assert text.count("a message is set aside") == 1
        assert shown in text
    finally:
        remote.stop()


class Flapping:
    """A remote that takes three messages on every second connection, and closes each."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.taken: list[bytes] = []
        self.connections = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                accepted, _ = self._listening.accept()
                accepted.settimeout(SECONDS)
                with accepted:
                    self._serve(accepted)
                self.connections += 1

    def _serve(self, accepted: socket.socket) -> None:
        buffer = bytearray()

        def packet() -> bytes:
            while len(buffer) < 2 or len(buffer) < 2 + buffer[1]:
                data = accepted.recv(4096)
                if not data:
                    raise ConnectionResetError
                buffer.extend(data)
            found = bytes(buffer[: 2 + buffer[1]])
            del buffer[: len(found)]
            return found

        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            packet()
            accepted.sendall(connack(present=True))
            for _ in range(3 if self.connections % 2 else 0):
                found = packet()
                while found[0] >> 4 != 3:
                    found = packet()
                size = int.from_bytes(found[2:4], "big")
                accepted.sendall(puback(int.from_bytes(found[4 + size : 6 + size], "big")))
                self.taken.append(found[6 + size :])

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(SECONDS)


@pytest.mark.slow
def test_a_remote_that_comes_and_goes_gets_everything(start_server: StartServer) -> None:
    """However often it closes, with and without an acknowledgement: no message is set aside."""
    with contextlib.closing(Flapping()) as remote:
        server = bridged(start_server, bridge(remote.port, protocol_version="3.1.1"))
        with RawClient.connected(server.mqtt_port, "writer") as writer:
            publish_all(writer, "x/1", numbers(0, 15), 1)
        wait_for(lambda: len({*remote.taken}) == 15, "all messages")
        assert remote.connections >= 8
        assert metric(server, "dropped", '"up"', "remote") == 0
        assert "set aside" not in server.log_path.read_text()


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
    people.good("DELETE", "/api/v1/users/carrier")
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
