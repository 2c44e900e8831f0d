"""Logins that an HTTP service decides, over MQTT, AMQP and HTTP: what it is asked, what its answers
do, and that nobody comes in when it fails."""

from __future__ import annotations

import http.client
import json
import socket
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

from interop_tests.authority import Authority
from interop_tests.conftest import Server
from interop_tests.listener_clients import client_tls, connect_code
from interop_tests.login_services import Reply, Service, as_json, asking, running
from interop_tests.people import (
    BAD_CREDENTIALS,
    PASSWORD,
    REFUSED_FILTER,
    SECONDS,
    Admin,
    MqttClient,
    amqp,
    basic,
    http_ask,
    http_publish,
)

UNAVAILABLE = 136
"""CONNACK 3 of MQTT 3.1.1, as MQTT 5 numbers it."""
NOT_AUTHORIZED = 135
DENY, IGNORE = as_json({"result": "deny"}), as_json({"result": "ignore"})
ACL = {"pub": ["a/#"], "sub": ["a/#"]}


def allow(**more: Any) -> Reply:
    return as_json({"result": "allow", "permissions": ACL, **more})


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Service]]:
    """A server without users that asks a service."""
    directory = tmp_path_factory.mktemp("service")
    pace = {"timeout_seconds": 1, "cache_seconds": 2, "denied_cache_seconds": 0}
    with asking(directory, "login_service", **pace) as found:
        yield found


@pytest.fixture
def service(started: tuple[Server, Service]) -> Service:
    """The service; it denies."""
    found = started[1]
    found.reply = lambda _value: DENY
    found.asked.clear()
    return found


@pytest.fixture
def server(started: tuple[Server, Service], service: Service) -> Server:
    """The server, with no stored user."""
    admin = Admin(started[0])
    for user in admin.good("GET", "/api/v1/users")["items"]:
        admin.good("DELETE", f"/api/v1/users/{user['name']}")
    assert service.asked == []
    return started[0]


def metric(server: Server, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.admin_port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line.rpartition(" ")[2] for line in lines if line.startswith(name)))


def code_of(server: Server, user: str | None, password: str = PASSWORD) -> int:
    client = MqttClient(server, user, password)
    client.close()
    return client.code


def test_mqtt(server: Server, service: Service) -> None:
    service.reply = lambda _value: allow()
    client = MqttClient(server, "mia", client_id="c7")
    assert client.code == 0
    assert service.asked == [
        {
            "user": "mia",
            "password": PASSWORD,
            "client_id": "c7",
            "protocol": "mqtt",
            "address": "127.0.0.1",
            "mount_point": "",
            "certificate": "",
        }
    ]
    assert service.headers["x-secret"] == "0123456789abcdef"
    assert service.headers["content-type"] == "application/json"
    assert client.subscribe("a/#") == 1
    assert client.subscribe("b/#") == REFUSED_FILTER
    assert client.publish("a/x", b"1")
    assert client.next() == ("a/x", b"1")
    assert not client.publish("b/x", b"2")
    client.close()
    service.reply = lambda _value: DENY
    assert code_of(server, "max") == BAD_CREDENTIALS
    assert code_of(server, None) == NOT_AUTHORIZED


def test_amqp(server: Server, service: Service) -> None:
    service.reply = lambda _value: allow()
    connection = amqp(server, "nia")
    assert service.asked[0]["protocol"] == "amqp"
    channel = connection.channel()
    channel.confirm_delivery()
    channel.basic_publish("amq.topic", "a.x", b"1")
    with pytest.raises(pika.exceptions.ChannelClosedByBroker, match="403"):
        channel.basic_publish("amq.topic", "b.x", b"2")
    connection.close()
    service.reply = lambda _value: DENY
    with pytest.raises(pika.exceptions.ProbableAuthenticationError, match="403"):
        amqp(server, "max")


def test_http_asks_once_for_many_requests(server: Server, service: Service) -> None:
    service.reply = lambda _value: allow()
    for _ in range(3):
        assert http_publish(server, "a", "x", b"1", basic("tia")) < 300
    assert http_publish(server, "b", "x", b"1", basic("tia")) == 403
    assert [value["protocol"] for value in service.asked] == ["http"]
    service.reply = lambda _value: DENY
    assert http_publish(server, "a", "x", b"1", basic("tia", "wrong")) == 401
    assert metric(server, 'polymq_login_service_lookups_total{result="hit"}') >= 3


def test_an_idle_connection_that_is_closed(server: Server, service: Service) -> None:
    """Services close connections that are idle for long; the question is asked once more."""
    service.reply = lambda _value: allow() if len(service.asked) > 1 else Reply(vanishes=True)
    assert code_of(server, "kim") == 0
    assert len(service.asked) == 2
    service.reply = lambda _value: Reply(vanishes=True)
    assert code_of(server, "kai") == UNAVAILABLE
    assert len(service.asked) == 4


def test_a_remembered_answer_ends(server: Server, service: Service) -> None:
    service.reply = lambda _value: allow()
    assert http_publish(server, "a", "x", b"1", basic("lia")) < 300
    service.reply = lambda _value: DENY
    assert http_publish(server, "a", "x", b"1", basic("lia")) < 300
    until, pause = time.monotonic() + SECONDS, threading.Event()
    while http_publish(server, "a", "x", b"1", basic("lia")) < 300:
        assert time.monotonic() < until
        pause.wait(0.1)


def test_a_login_ends_when_the_answer_says(server: Server, service: Service) -> None:
    service.reply = lambda _value: allow(expires_in=1)
    client = MqttClient(server, "pia")
    assert client.code == 0
    assert client.is_asked_to_go()
    client.close()


def test_stored_users_decide_what_is_ignored(server: Server, service: Service) -> None:
    service.reply = lambda _value: IGNORE
    Admin(server).add("ann")
    assert code_of(server, "ann") == 0
    assert code_of(server, "ann", "wrong") == BAD_CREDENTIALS
    assert code_of(server, "nobody") == BAD_CREDENTIALS


def test_operators(server: Server, service: Service) -> None:
    """Nobody administers an empty server without being somebody."""
    admin = Admin(server)
    admin.authorization = basic("root")
    assert admin.ask("GET", "/api/v1/users")[0] == 401
    service.reply = lambda _value: allow()
    assert admin.ask("GET", "/api/v1/users")[0] == 403
    service.reply = lambda _value: as_json({"result": "allow", "superuser": True})
    admin.authorization = basic("boss")
    assert admin.ask("GET", "/api/v1/users")[0] == 200
    assert service.asked[-1]["protocol"] == "admin"


@pytest.mark.parametrize(
    "reply",
    [
        Reply(status=500, body=b'{"result": "allow"}'),
        Reply(b'{"result": "allow"'),
        as_json({"result": "allow", "permissions": {"pub": ["$SYS/#"]}}),
        Reply(b" " * 100_000 + b'{"result": "allow"}'),
        Reply(b"[" * 60_000),
        Reply(status=302, headers={"Location": "/login?again"}),
        pytest.param(Reply(hangs=True), marks=pytest.mark.slow),
        Reply(b'{"result": "allow"}', headers={"Content-Encoding": "gzip"}),
        Reply(b'{"result": "deny", "result": "allow"}'),
    ],
    ids=[
        "500",
        "malformed",
        "permissions",
        "huge",
        "nested",
        "redirect",
        "hanging",
        "gzip",
        "twice",
    ],
)
def test_a_service_that_fails_lets_nobody_in(
    server: Server, service: Service, reply: Reply
) -> None:
    """And nobody is told that the password is wrong."""
    service.reply = lambda _value: reply
    assert code_of(server, "zoe") == UNAVAILABLE
    with pytest.raises(pika.exceptions.ProbableAuthenticationError, match="did not decide"):
        amqp(server, "zoe")
    status, headers, _ = http_ask(server, "POST", "/topics/a", b"", basic("zoe"))
    assert status == 429
    assert int(headers["retry-after"]) > 0
    assert len(service.asked) == 3
    assert "the login service failed" in server.log_path.read_text()


@pytest.mark.slow
def test_a_hanging_service_delays_no_others(server: Server, service: Service) -> None:
    """Clients that are in, and users whose answers are remembered, notice nothing."""
    service.reply = lambda _value: allow()
    inside = MqttClient(server, "uma")
    assert http_publish(server, "a", "x", b"1", basic("uma")) < 300
    service.reply = lambda _value: Reply(hangs=True)
    stuck = [socket.create_connection((server.host, server.mqtt_port)) for _ in range(40)]
    for number, one in enumerate(stuck):
        name = b"u%03d" % number
        body = b"\x00\x04MQTT\x04\xc2\x00\x00\x00\x00" + b"\x00\x04" + name + b"\x00\x01p"
        one.sendall(b"\x10" + bytes([len(body)]) + body)
    began = time.monotonic()
    assert inside.publish("a/x", b"2")
    assert http_publish(server, "a", "x", b"3", basic("uma")) < 300
    assert time.monotonic() - began < 0.9
    for one in stuck:
        one.settimeout(SECONDS)
        assert one.recv(4)[:4] == b"\x20\x02\x00\x03"
        one.close()
    assert metric(server, "polymq_login_service_waiting") == 0
    assert metric(server, "polymq_login_service_calling") == 0
    inside.close()


@pytest.mark.slow
def test_a_closed_port_lets_nobody_in(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/"
        options = {"login_service.url": url}
        server = Server(tmp_path, options, {}, (sys.executable, "-m", "polymq"))
        server.start()
        assert code_of(server, "zoe") == UNAVAILABLE
        assert metric(server, 'polymq_login_service_failures_total{kind="unreachable"}') == 1
        server.close(sys.stdout)


@pytest.mark.slow
def test_certificates_are_checked(tmp_path: Path) -> None:
    """Those of the service, by the authority that is named. The service is told the subject of the
    client's."""
    authority = Authority(tmp_path / "authority")
    chain, key = authority.issue("service", "/CN=localhost", "DNS:localhost")
    with running((chain, key)) as service:
        service.reply = lambda _value: allow()
        options = {
            "login_service.url": f"https://localhost:{service.port}/login",
            "tls.certificate": chain,
            "tls.key": key,
            "tls.client_ca": authority.certificate,
            **{f"{name}.tls_port": 0 for name in ("mqtt", "amqp", "http", "rocketmq")},
        }
        server = Server(tmp_path, options, {}, (sys.executable, "-m", "polymq"))
        server.start()
        assert code_of(server, "zoe") == UNAVAILABLE
        assert service.asked == []
        server.terminate()
        server.configure(**{"login_service.ca": authority.certificate})
        server.start()
        ready = json.loads((tmp_path / "ready.json").read_text(encoding="utf-8"))
        tls = client_tls(authority.certificate, authority.issue("c", "/O=Plant/CN=sensor7"))
        code = connect_code(ready["mqtts"], tls=tls, user="zoe", password=PASSWORD)
        assert code == "Success"
        parameters = pika.ConnectionParameters(
            "localhost",
            ready["amqps"],
            credentials=pika.PlainCredentials("zoe", PASSWORD),
            ssl_options=pika.SSLOptions(tls, "localhost"),
        )
        pika.BlockingConnection(parameters).close()
        connection = http.client.HTTPSConnection("localhost", ready["https"], context=tls)
        connection.request("POST", "/topics/a", b"", {"Authorization": basic("zoe")})
        assert connection.getresponse().status < 300
        connection.close()
        subjects = {value["protocol"]: value["certificate"] for value in service.asked}
        assert subjects == dict.fromkeys(("mqtt", "amqp", "http"), "CN=sensor7,O=Plant")
        server.close(sys.stdout)
