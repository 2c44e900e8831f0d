"""Several MQTT listeners in one server, each with settings of its own."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest

from interop_tests.conftest import StartServer
from interop_tests.listener_clients import (
    SECONDS,
    addresses,
    connect_code,
    connected,
    refusal,
    start_with,
)
from interop_tests.mqtt_raw_client import RawClient
from interop_tests.mqtt_wire import connect, publish
from interop_tests.people import Admin


def metrics(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=SECONDS) as answer:
        text: str = answer.read().decode()
    return text


def test_listeners_have_versions_limits_and_metrics_of_their_own(
    start_server: StartServer,
) -> None:
    """The port of `[mqtt]` keeps what it has, one listener takes MQTT 5 only, and one is for
    WebSocket; a message crosses all of them."""
    server = start_with(
        start_server,
        {
            "name": "five",
            "protocol_versions": ["5"],
        },
        {"name": "web", "type": "websocket", "websocket_path": "/bus"},
        {"name": "few", "connections_max": 1},
    )
    where = addresses(server)
    assert list(where) == ["five", "web", "few"]
    for hello in (connect("c"), connect("c", name="MQIsdp", level=3)):
        with RawClient(where["five"]) as old:
            old.socket.sendall(hello)
            assert old.socket.recv(4) == b"\x20\x02\x00\x01"
    with (
        connected(server.mqtt_port, "plain") as plain,
        connected(where["five"], "five", version=paho.MQTTv5) as five,
        connected(where["web"], "web", transport="websockets", url_path="/bus") as web,
    ):
        for each in (plain, five, web):
            each.subscribe("a/#")
        web.publish("a/b", b"hello")
        assert [each.message() for each in (plain, five, web)] == [("a/b", b"hello")] * 3
        text = metrics(server.admin_port)
        for line in (
            'polymq_mqtt_listener_connections{listener="mqtt-five"} 1.0',
            'polymq_mqtt_listener_connects_refused_total{listener="mqtt-five"} 2.0',
            'polymq_mqtt_listener_received_total{listener="mqtt-web"} 1.0',
            'polymq_mqtt_listener_sent_total{listener="mqtt"} 1.0',
            'polymq_connections{protocol="mqtt-five"} 1.0',
        ):
            assert line in text
    with connected(where["few"], "first"), RawClient(where["few"]) as second:
        assert second.socket.recv(1) == b""
    (ready,) = [event for event in server.log_events() if event.get("event") == "ready"]
    assert ready["mqtt_listeners"] == where


def test_operators_see_where_they_are(start_server: StartServer, tmp_path: Path) -> None:
    """In the list of listeners, beside the ports of the sections."""
    path = tmp_path / "mqtt.sock"
    server = start_with(
        start_server,
        {"name": "web", "type": "websocket", "host": "127.0.0.1"},
        {"name": "local", "type": "unix", "path": str(path)},
    )
    items = Admin(server).good("GET", "/api/v1/listeners")["items"]
    found = {one["name"]: one for one in items}
    assert {"mqtt", "amqp", "http", "rocketmq"} < set(found)
    assert (found["mqtt"]["port"], found["mqtt"]["path"]) == (server.mqtt_port, None)
    assert found["mqtt-web"] == {
        "name": "mqtt-web",
        "protocol": "mqtt",
        "transport": "websocket",
        "tls": False,
        "host": "127.0.0.1",
        "port": addresses(server)["web"],
        "path": None,
    }
    assert found["mqtt-local"] == {
        "name": "mqtt-local",
        "protocol": "mqtt",
        "transport": "unix",
        "tls": False,
        "host": "",
        "port": None,
        "path": str(path),
    }


def test_a_packet_that_is_too_large_for_its_listener(start_server: StartServer) -> None:
    server = start_with(start_server, {"name": "small", "packet_bytes_max": 1000})
    for port, is_closed in ((addresses(server)["small"], True), (server.mqtt_port, False)):
        with RawClient(port) as client:
            client.socket.sendall(connect("c"))
            assert client.socket.recv(4)[3] == 0
            client.socket.sendall(publish("t", bytes(2000), qos=1, packet_id=1))
            try:
                answer = client.socket.recv(4)
            except ConnectionResetError:
                answer = b""
            assert (not answer) is is_closed


def test_more_connections_in_a_second_than_a_listener_accepts(start_server: StartServer) -> None:
    server = start_with(start_server, {"name": "slow", "connection_rate_max": 3})
    answers = []
    with ExitStack() as opened:
        clients = [opened.enter_context(RawClient(addresses(server)["slow"])) for _ in range(20)]
        for number, client in enumerate(clients):
            try:
                client.socket.sendall(connect(f"c{number}"))
                answers.append(client.socket.recv(4))
            except OSError:
                answers.append(b"")
    assert 3 <= sum(map(bool, answers)) <= 8
    assert 'polymq_connections_refused_total{protocol="mqtt-slow"}' in metrics(server.admin_port)
    assert any("connection_rate_max" in line for line in server.log_lines())


def test_authentication_is_required_where_a_listener_says_so(start_server: StartServer) -> None:
    """Not even a named client comes in while there are no users, because nobody could check it.
    Then role:anonymous is let in at the other port only."""
    server = start_with(start_server, {"name": "strict", "allow_anonymous": False})
    strict = addresses(server)["strict"]
    assert connect_code(server.mqtt_port) == "Success"
    assert connect_code(strict, user="ann", password="x") == "Bad user name or password"
    admin = Admin(server)
    admin.add("ann", "admin", password="secret-9351")
    admin.allow("role:anonymous", "subscribe", "t")
    assert connect_code(server.mqtt_port) == "Success"
    assert connect_code(strict) == "Not authorized"
    assert connect_code(strict, user="ann", password="secret-9351") == "Success"


@pytest.mark.slow
def test_a_unix_socket_for_paho_and_mosquitto(start_server: StartServer, tmp_path: Path) -> None:
    """Mode and group are set, the log names the path, a killed server's socket is replaced, and a
    stopped server leaves none."""
    path = tmp_path / "mqtt.sock"
    group = str(os.getgid())
    listener = {
        "name": "local", "type": "unix", "path": str(path), "mode": "0600", "group": group
    }  # fmt: skip
    server = start_with(start_server, listener)
    assert addresses(server) == {"local": str(path)}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with connected(str(path), "local", transport="unix") as client:
        client.subscribe("t")
        if shutil.which("mosquitto_pub"):
            command = ["mosquitto_pub", "--unix", str(path), "-t", "t", "-m", "hello", "-q", "1"]
            subprocess.run(command, check=True, timeout=SECONDS)
        else:
            client.publish("t", b"hello")
        assert client.message() == ("t", b"hello")
    with socket.socket(socket.AF_UNIX) as wrong:
        wrong.connect(str(path))
        wrong.sendall(b"\xff\xff")
        wrong.settimeout(SECONDS)
        assert wrong.recv(1) == b""
    assert any(f"closing {path} " in line for line in server.log_lines())
    server.kill()
    assert path.exists()
    server.start()
    assert connect_code(str(path), transport="unix") == "Success"
    assert server.terminate() == 0
    assert not path.exists()


@pytest.mark.slow
def test_a_unix_socket_that_cannot_be_made(start_server: StartServer, tmp_path: Path) -> None:
    """What is there and is not a dead server's socket is left alone, and nothing is written."""
    file, living = tmp_path / "file", tmp_path / "living"
    file.write_text("text")
    unix = {"name": "local", "type": "unix"}
    line = refusal(start_server, {**unix, "path": str(file)})
    assert f"mqtt listener local: {file} exists and is no socket" in line
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(living))
        other.listen()
        line = refusal(start_server, {**unix, "path": str(living)})
    assert f"a program listens on the socket {living}: stop it" in line
    assert "there is no group nobody-7" in refusal(
        start_server, {**unix, "path": str(tmp_path / "s"), "group": "nobody-7"}
    )
    assert file.read_text() == "text"
    assert not list(tmp_path.glob("server-*/data"))


@pytest.mark.parametrize(
    ("listeners", "text"),
    [
        ([{"name": "a", "prot": 1}], "there is no setting mqtt.listeners[0].prot (did you mean"),
        (["a"], "mqtt.listeners[0] is a table"),
        ([{"name": "a"}, {"name": "a"}], "mqtt.listeners: 2 listeners have the name a"),
        ([{"name": "a", "tls": True}], "mqtt listener a: there is no certificate"),
    ],
)
def test_wrong_settings_are_one_line(listeners: list[Any], text: str) -> None:
    """Without a server that starts: the command ends before it writes anything."""
    value = f"mqtt.listeners={json.dumps(listeners)}"
    done = subprocess.run(
        [sys.executable, "-m", "polymq", "serve", "--set", value,
         "--set", "mqtt.port=0", "--set", "server.data_directory=/nonexistent/x"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert text in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_two_listeners_with_one_port(start_server: StartServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
    line = refusal(start_server, {"name": "a", "port": port}, {"name": "b", "port": port})
    assert f"mqtt listener b: port {port} is that of mqtt listener a" in line


def test_tenants_do_not_see_each_other(start_server: StartServer) -> None:
    """Publishes, filters, wills and retained messages of a listener with a mount point are below
    it; the same client id at two of them is two sessions; no filter leads out."""
    server = start_with(
        start_server,
        {"name": "a", "mount_point": "plant/a/"},
        {"name": "b", "mount_point": "plant/b/"},
    )
    where = addresses(server)
    with (
        connected(server.mqtt_port, "all") as everything,
        connected(where["a"], "same") as a,
        connected(where["b"], "same", version=paho.MQTTv5) as b,
    ):
        everything.subscribe("plant/#")
        a.subscribe("#", "../#", "$SYS/broker/version")
        assert a.message()[0] == "$SYS/broker/version"  # which is everybody's
        b.subscribe("#")
        everything.publish("plant/a", b"the parent of all that it may see")
        everything.publish("plant/b/x", b"for b")
        assert b.message() == ("x", b"for b")
        b.publish("plant/a/x", b"of b", retain=True)
        a.publish("x/y", b"of a")
        assert a.message() == ("x/y", b"of a")
        assert b.message() == ("plant/a/x", b"of b")
        assert [everything.message()[0] for _ in range(4)] == [
            "plant/a", "plant/b/x", "plant/b/plant/a/x", "plant/a/x/y"
        ]  # fmt: skip
        with connected(where["b"], "late") as late:
            late.subscribe("plant/a/x")
            assert late.message() == ("plant/a/x", b"of b")
        with RawClient(where["a"]) as lost:
            lost.socket.sendall(connect("lost", will=("gone", b"will", 1, False)))
            assert lost.socket.recv(4)[3] == 0
        assert a.message() == ("gone", b"will")
        assert everything.message() == ("plant/a/gone", b"will")
        assert a.messages.empty()
    assert connect_code(server.mqtt_port) == "Success"
    with RawClient(server.mqtt_port) as stranger:  # who tries to take a session of a tenant
        stranger.socket.sendall(connect("plant/a/same"))
        assert stranger.socket.recv(4)[3] == 2


def test_permissions_are_for_the_whole_topic(start_server: StartServer) -> None:
    server = start_with(start_server, {"name": "a", "mount_point": "plant/"})
    admin = Admin(server)
    admin.add("ann", password="secret-9351")
    admin.allow("ann", "publish,subscribe,create", "plant.t")
    port = addresses(server)["a"]
    with connected(port, "c", user="ann", password="secret-9351") as client:
        client.subscribe("t")
        client.publish("t", b"1")
        assert client.message() == ("t", b"1")
    with connected(server.mqtt_port, "d", user="ann", password="secret-9351") as client:
        client.paho.subscribe("t")
        assert client.granted.get(timeout=SECONDS)[0].is_failure
