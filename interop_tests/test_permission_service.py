"""Permissions of MQTT clients that an HTTP service decides topic by topic: what it is asked, what
its answers do and for how long, and that nothing is allowed when it fails."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from interop_tests import mqtt5_wire, mqtt_wire
from interop_tests.conftest import Server, StartServer
from interop_tests.listener_clients import addresses
from interop_tests.login_services import Reply, Service, as_json, asking, running
from interop_tests.mqtt5_wire import Kind, P, R
from interop_tests.people import (
    NOT_AUTHORIZED,
    PASSWORD,
    REFUSED_FILTER,
    SECONDS,
    Admin,
    MqttClient,
    basic,
    http_publish,
)

ALLOW, DENY = as_json({"result": "allow"}), as_json({"result": "deny"})
IGNORE = as_json({"result": "ignore"})
UNAVAILABLE = 136
"""CONNACK 3 of MQTT 3.1.1, as MQTT 5 numbers it."""
TRY_LATER = 0x83


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Service]]:
    """A server that asks a service."""
    directory = tmp_path_factory.mktemp("permissions")
    pace = {"timeout_seconds": 3, "cache_seconds": 60, "denied_cache_seconds": 0}
    with asking(directory, "permission_service", **pace) as found:
        yield found


@pytest.fixture
def service(started: tuple[Server, Service]) -> Service:
    """The service; it denies."""
    found = started[1]
    found.reply = lambda _value: DENY
    return found


@pytest.fixture
def server(started: tuple[Server, Service], service: Service) -> Server:
    """The server, with one user and no rules, and no answer that is remembered."""
    admin = Admin(started[0])
    for user in admin.good("GET", "/api/v1/users")["items"]:
        admin.good("DELETE", f"/api/v1/users/{user['name']}")
    admin.add("mia")
    admin.good("DELETE", "/api/v1/service-answers")
    service.asked.clear()
    return started[0]


def metric(server: Server, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.admin_port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line.rpartition(" ")[2] for line in lines if line.startswith(name)))


def allowing(*topics: str) -> Callable[[Any], Reply]:
    return lambda value: ALLOW if value["topic"] in topics else DENY


def topics(service: Service) -> list[tuple[str, str]]:
    return [(value["action"], value["topic"]) for value in service.asked]


class Wire:
    """A client that sends what it likes."""

    def __init__(
        self, server: Server, level: int = 4, client_id: str = "wire", will: str | None = None
    ) -> None:
        self.level = level
        self.socket = socket.create_connection((server.host, server.mqtt_port), SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.data = b""
        if level == 5:
            self.send(mqtt5_wire.connect(client_id, user="mia", password=PASSWORD.encode()))
            assert mqtt5_wire.decode(self.next()).reason == R.SUCCESS
        else:
            self.send(
                mqtt_wire.connect(
                    client_id,
                    user="mia",
                    password=PASSWORD.encode(),
                    will=None if will is None else (will, b"gone", 1, False),
                )
            )
            if will is None:
                assert self.next() == mqtt_wire.connack()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def next(self) -> bytes:
        """The next packet; empty if the connection has ended."""
        while True:
            size, at, shift = 0, 1, 0
            while at < len(self.data):
                size |= (self.data[at] & 127) << shift
                shift += 7
                at += 1
                if self.data[at - 1] < 128:
                    if len(self.data) >= at + size:
                        found, self.data = self.data[: at + size], self.data[at + size :]
                        return found
                    break
            try:
                more = self.socket.recv(65_536)
            except ConnectionResetError:
                return b""
            if not more:
                return b""
            self.data += more

    def close(self) -> None:
        self.socket.close()


@pytest.fixture
def wire(server: Server) -> Iterator[Wire]:
    made = Wire(server)
    yield made
    made.close()


@pytest.fixture
def wire_5(server: Server) -> Iterator[Wire]:
    made = Wire(server, 5)
    yield made
    made.close()


def puback(data: bytes) -> int:
    found = mqtt5_wire.decode(data)
    assert found.kind is Kind.PUBACK
    return found.reason


def test_what_is_asked(server: Server, service: Service) -> None:
    service.reply = lambda _value: ALLOW
    client = MqttClient(server, "mia", client_id="c7")
    assert client.code == 0
    assert service.asked == []
    assert client.publish("b/x", b"1")
    assert service.asked == [
        {
            "user": "mia",
            "client_id": "c7",
            "address": "127.0.0.1",
            "mount_point": "",
            "action": "publish",
            "topic": "b/x",
        }
    ]
    assert service.headers["x-secret"] == "0123456789abcdef"
    assert client.subscribe("a/+/#") == 1
    assert topics(service)[-1] == ("subscribe", "a/+/#")
    assert client.publish("a/x.y/z", b"2")
    assert client.publish("a/x.y/z", b"3")
    assert client.next() == ("a/x.y/z", b"2")
    assert client.next() == ("a/x.y/z", b"3")
    assert topics(service)[2:] == [("publish", "a/x.y/z")]
    assert client.publish("a/kept", b"4", retain=True)
    assert client.next() == ("a/kept", b"4")
    assert client.publish("a/kept", b"", retain=True)
    assert topics(service)[3:] == [("publish", "a/kept")]
    client.close()


def test_rules_come_first(server: Server, service: Service) -> None:
    admin = Admin(server)
    admin.allow("mia", "publish,create,subscribe", "mine.#")
    admin.deny("mia", "publish,subscribe", "closed.#")
    service.reply = lambda _value: ALLOW
    client = MqttClient(server, "mia")
    assert client.subscribe("mine/#") == 1
    assert client.publish("mine/x", b"1")
    assert client.subscribe("closed/x") == REFUSED_FILTER
    assert client.subscribe("$SYS/#") == REFUSED_FILTER
    assert service.asked == []
    assert client.subscribe("#") == REFUSED_FILTER, "it would include what is denied"
    assert service.asked == []
    assert not client.publish("closed/x", b"2")
    assert service.asked == []
    client.close()


@pytest.mark.parametrize("reply", [DENY, IGNORE], ids=["deny", "ignore"])
def test_what_is_denied(server: Server, service: Service, reply: Reply) -> None:
    service.reply = lambda _value: reply
    client = MqttClient(server, "mia")
    assert client.subscribe("a") == REFUSED_FILTER
    assert not client.publish("a", b"1")
    client.close()


def test_reasons_of_mqtt_5(server: Server, service: Service, wire_5: Wire) -> None:
    wire_5.send(mqtt5_wire.publish("a/x", b"1", qos=1, packet_id=1))
    assert puback(wire_5.next()) == R.NOT_AUTHORIZED
    wire_5.send(mqtt5_wire.subscribe(2, ("a/x", 1)))
    assert list(mqtt5_wire.decode(wire_5.next()).reasons) == [R.NOT_AUTHORIZED]
    service.reply = lambda _value: Reply(status=500)
    wire_5.send(mqtt5_wire.publish("a/x", b"1", qos=1, packet_id=3))
    assert puback(wire_5.next()) == TRY_LATER
    wire_5.send(mqtt5_wire.subscribe(4, ("a/x", 1)))
    assert list(mqtt5_wire.decode(wire_5.next()).reasons) == [TRY_LATER]
    refused = metric(server, "polymq_mqtt_publishes_refused_total")
    wire_5.send(mqtt5_wire.publish("a/x", b"2") + mqtt_wire.PINGREQ)
    assert wire_5.next() == mqtt_wire.PINGRESP
    assert metric(server, "polymq_mqtt_publishes_refused_total") == refused + 1
    service.reply = lambda _value: ALLOW
    wire_5.send(mqtt5_wire.publish("a/x", b"1", qos=1, packet_id=5))
    assert puback(wire_5.next()) < TRY_LATER
    assert "the permission service failed" in server.log_path.read_text()


@pytest.mark.parametrize(
    "reply",
    [
        Reply(status=500, body=b'{"result": "allow"}'),
        Reply(b'{"result": "allow"'),
        Reply(b'{"result": "Allow"}'),
        as_json({"result": "allow", "topics": ["a"]}),
        Reply(b" " * 100_000 + b'{"result": "allow"}'),
        Reply(status=302, headers={"Location": "/login?again"}),
        pytest.param(Reply(hangs=True), marks=pytest.mark.slow),
    ],
    ids=["500", "malformed", "other", "field", "huge", "redirect", "hanging"],
)
def test_a_service_that_fails_allows_nothing(
    server: Server, service: Service, reply: Reply
) -> None:
    service.reply = lambda _value: reply
    client = MqttClient(server, "mia")
    assert client.subscribe("a") == REFUSED_FILTER
    assert not client.publish("a", b"1")
    client.close()
    assert MqttClient(server, "mia", will="a").code == UNAVAILABLE
    assert len(service.asked) == 3


def test_a_publisher_waits_and_keeps_its_order(server: Server, service: Service) -> None:
    """All that comes behind a publish that waits is handled behind it, and nothing twice."""
    admin = Admin(server)
    admin.allow("mia", "publish,create,subscribe", "free.#")
    service.reply = lambda _value: ALLOW
    reader = MqttClient(server, "mia", client_id="reader")
    assert reader.subscribe("#") == 1
    gate = threading.Event()

    def slowly(_value: Any) -> Reply:
        gate.wait(2.5)
        return ALLOW

    service.reply = slowly
    service.asked.clear()
    writer, other = Wire(server, client_id="writer"), Wire(server, client_id="other")
    sent = [("free/1", b"0"), ("a/1", b"1"), ("free/1", b"2"), ("a/1", b"3"), ("b/1", b"4")]
    packets = [
        mqtt_wire.publish(topic, body, qos=1 + number % 2, packet_id=number)
        for number, (topic, body) in enumerate(sent, 1)
    ]
    writer.send(b"".join(packets) + mqtt_wire.PINGREQ)
    assert reader.next() == sent[0]
    other.send(mqtt_wire.publish("free/2", b"x", qos=1, packet_id=1) + mqtt_wire.PINGREQ)
    found = {other.next(), other.next()}  # the acknowledgement waits for the disk
    assert found == {mqtt_wire.puback(1), mqtt_wire.PINGRESP}, "who does not ask does not wait"
    assert reader.next() == ("free/2", b"x")
    gate.set()
    assert [reader.next() for _ in sent[1:]] == sent[1:]
    answers = [writer.next() for _ in range(6)]
    acknowledgements = {1: mqtt_wire.pubrec, 0: mqtt_wire.puback}
    assert sorted(answers) == sorted(
        [acknowledgements[number % 2](number) for number in range(1, 6)] + [mqtt_wire.PINGRESP]
    )
    assert sorted(topics(service)) == [("publish", "a/1"), ("publish", "b/1")]
    for client in (writer, other, reader):
        client.close()


def test_bulk_is_asked_once(server: Server, service: Service, wire: Wire) -> None:
    """Thousands of messages in a read, to topics that take turns: one question for each topic."""
    service.reply = lambda _value: ALLOW
    count = 3_000
    wire.send(
        b"".join(
            mqtt_wire.publish(f"a/{number % 3}", b"x" * 50, qos=1, packet_id=number)
            for number in range(1, count + 1)
        )
    )
    for number in range(1, count + 1):
        assert wire.next() == mqtt_wire.puback(number)
    assert sorted(topics(service)) == [("publish", f"a/{number}") for number in range(3)]


def test_many_topics_are_asked_together(server: Server, service: Service, wire: Wire) -> None:
    """A client that publishes to many topics has several questions at a time, and not too many."""
    lock, most, now = threading.Lock(), [0], [0]

    def counted(_value: Any) -> Reply:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        threading.Event().wait(0.02)
        with lock:
            now[0] -= 1
        return ALLOW

    service.reply = counted
    wire.send(
        b"".join(
            mqtt_wire.publish(f"t/{number}", b"", qos=1, packet_id=number)
            for number in range(1, 41)
        )
    )
    for number in range(1, 41):
        assert wire.next() == mqtt_wire.puback(number)
    assert len(service.asked) == 40
    assert 2 <= most[0] <= 8


def test_many_filters(server: Server, service: Service, wire: Wire) -> None:
    """SUBACK comes when all are answered; what comes behind SUBSCRIBE waits for it."""
    service.reply = lambda value: DENY if value["topic"].endswith("7") else ALLOW
    filters = [(f"f/{number}", 1) for number in range(300)]
    wire.send(mqtt_wire.subscribe(9, *filters) + mqtt_wire.PINGREQ)
    codes = [128 if pattern.endswith("7") else 1 for pattern, _ in filters]
    first, second = wire.next(), wire.next()
    assert {first, second} == {mqtt_wire.suback(9, *codes), mqtt_wire.PINGRESP}
    assert len(service.asked) == 300


def test_who_goes_while_it_waits(server: Server, service: Service) -> None:
    gate = threading.Event()

    def slowly(_value: Any) -> Reply:
        gate.wait(2.5)
        return ALLOW

    service.reply = slowly
    wire = Wire(server)
    wire.send(mqtt_wire.subscribe(1, *((f"g/{number}", 0) for number in range(100))))
    until = time.monotonic() + SECONDS
    while metric(server, "polymq_permission_service_calling") < 1:
        assert time.monotonic() < until
    Admin(server).good("DELETE", "/api/v1/users/mia")
    assert wire.next() == b""
    gate.set()
    while metric(server, "polymq_permission_service_calling"):
        assert time.monotonic() < until
    assert metric(server, "polymq_permission_service_waiting") == 0
    assert len(service.asked) <= 8, "what nobody waits for is not asked"
    wire.close()


def test_shared_rewritten_and_exclusive_filters(server: Server, service: Service) -> None:
    service.reply = allowing("a/#")
    client = MqttClient(server, "mia")
    assert client.subscribe("$share/g/a/#") == 1
    assert client.subscribe("$exclusive/a/#") == 1
    assert client.subscribe("$share/g/b/#") == REFUSED_FILTER
    assert topics(service) == [("subscribe", "a/#"), ("subscribe", "b/#")]
    client.close()


def test_delayed_publishes(server: Server, service: Service) -> None:
    """It is asked now, about the topic that it is published to later."""
    service.reply = allowing("a/x", "a/#")
    client = MqttClient(server, "mia")
    assert client.subscribe("a/#") == 1
    assert client.publish("$delayed/1/a/x", b"1")
    assert client.next() == ("a/x", b"1")
    assert not client.publish("$delayed/1/b/x", b"2")
    assert topics(service) == [("subscribe", "a/#"), ("publish", "a/x"), ("publish", "b/x")]
    client.close()


def test_topic_aliases(server: Server, service: Service, wire_5: Wire) -> None:
    service.reply = allowing("a/x")
    alias = [(P.ALIAS, 1)]
    wire_5.send(
        mqtt5_wire.publish("a/x", b"1", qos=1, packet_id=1, props=alias)
        + mqtt5_wire.publish("", b"2", qos=1, packet_id=2, props=alias)
        + mqtt5_wire.publish("b/x", b"3", qos=1, packet_id=3, props=alias)
        + mqtt5_wire.publish("", b"4", qos=1, packet_id=4, props=alias)
    )
    codes = [puback(wire_5.next()) for _ in range(4)]
    assert codes[2:] == [R.NOT_AUTHORIZED] * 2
    assert all(code < 0x80 for code in codes[:2])
    assert set(topics(service)) == {("publish", "a/x"), ("publish", "b/x")}


def test_wills(server: Server, service: Service) -> None:
    service.reply = allowing("a/#", "a/will")
    reader = MqttClient(server, "mia", client_id="reader")
    assert reader.subscribe("a/#") == 1
    assert MqttClient(server, "mia", will="b/will").code == NOT_AUTHORIZED
    dying = Wire(server, client_id="dying", will="a/will")
    assert dying.next() == mqtt_wire.connack()
    assert topics(service)[1:] == [("publish", "b/will"), ("publish", "a/will")]
    service.reply = lambda _value: DENY
    Admin(server).good("DELETE", "/api/v1/service-answers")
    dying.close()
    assert reader.next() == ("a/will", b"gone"), "its right is the will's, until it is published"
    reader.close()


def test_a_user_that_is_deleted_while_its_will_is_asked_about(
    server: Server, service: Service
) -> None:
    gate = threading.Event()

    def slowly(_value: Any) -> Reply:
        gate.wait(2.5)
        return ALLOW

    service.reply = slowly
    wire = Wire(server, will="a/will")
    until = time.monotonic() + SECONDS
    while not service.asked:
        assert time.monotonic() < until
    Admin(server).good("DELETE", "/api/v1/users/mia")
    gate.set()
    assert wire.next() == b""
    wire.close()


def test_a_session_that_comes_back(server: Server, service: Service) -> None:
    """Its subscriptions are asked about before anything is sent; a service that fails costs
    nothing of it."""
    service.reply = allowing("a/#", "b/#", "a/x", "b/x")
    first = MqttClient(server, "mia", client_id="back", clean=False)
    assert first.subscribe("a/#") == 1
    assert first.subscribe("b/#") == 1
    first.close()
    writer = MqttClient(server, "mia", client_id="writer")
    assert writer.publish("a/x", b"1")
    assert writer.publish("b/x", b"2")
    admin = Admin(server)
    service.reply = lambda _value: Reply(status=500)
    admin.good("DELETE", "/api/v1/service-answers")
    failed = MqttClient(server, "mia", client_id="back", clean=False)
    assert failed.is_asked_to_go()
    assert failed.messages.empty()
    failed.close()
    service.reply = allowing("a/#")
    again = MqttClient(server, "mia", client_id="back", clean=False)
    assert again.next() == ("a/x", b"1")
    service.reply = allowing("a/x", "b/x", "a/y")
    assert writer.publish("b/x", b"3")
    assert writer.publish("a/y", b"4")
    assert again.next() == ("a/y", b"4"), "what is subscribed to stays while it is connected"
    again.close()
    writer.close()


def test_answers_that_are_dropped(server: Server, service: Service, wire: Wire) -> None:
    service.reply = lambda _value: ALLOW
    wire.send(mqtt_wire.publish("a", b"1", qos=1, packet_id=1))
    assert wire.next() == mqtt_wire.puback(1)
    service.reply = lambda _value: DENY
    wire.send(mqtt_wire.publish("a", b"2", qos=1, packet_id=2))
    assert wire.next() == mqtt_wire.puback(2)
    Admin(server).good("DELETE", "/api/v1/service-answers")
    wire.send(mqtt_wire.publish("a", b"3", qos=1, packet_id=3))
    assert wire.next() == b""


def test_other_protocols_are_not_asked_about(server: Server, service: Service) -> None:
    service.reply = lambda _value: ALLOW
    assert http_publish(server, "a", "x", b"1", basic("mia")) == 403
    assert service.asked == []


def test_anonymous_clients(server: Server, service: Service) -> None:
    Admin(server).allow("role:anonymous", "subscribe", "news.#")
    service.reply = allowing("a")
    client = MqttClient(server, client_id="nobody")
    assert client.code == 0
    assert client.subscribe("a") == 1
    assert (service.asked[0]["user"], service.asked[0]["client_id"]) == ("", "nobody")
    client.close()


def test_answers_end(start_server: StartServer) -> None:
    """What was allowed is asked again, and nobody lets clients in without users."""
    with running() as service:
        service.reply = lambda _value: ALLOW
        server = start_server(
            **{
                "permission_service.url": service.url,
                "permission_service.cache_seconds": 0.5,
                "permission_service.denied_cache_seconds": 0,
            }
        )
        assert MqttClient(server, "mia").code == 134
        Admin(server).add("mia")
        wire = Wire(server)
        wire.send(mqtt_wire.publish("a", b"1", qos=1, packet_id=1))
        assert wire.next() == mqtt_wire.puback(1)
        service.reply = lambda _value: DENY
        until = time.monotonic() + 0.8
        packet_id = 1
        while True:
            packet_id += 1
            wire.send(mqtt_wire.publish("a", b"2", qos=1, packet_id=packet_id))
            if wire.next() != mqtt_wire.puback(packet_id):
                break
            assert time.monotonic() < until
        assert topics(service) == [("publish", "a")] * 2
        wire.close()


def test_mount_points_rewriting_and_automatic_subscriptions(start_server: StartServer) -> None:
    """The broker's topic is named: behind the mount point, and where rules lead."""
    with running() as service:
        rule = {"action": "all", "source": "old/#", "destination": "new/$1"}
        server = start_server(
            **{
                "mqtt.listeners": json.dumps([{"name": "a", "mount_point": "plant/"}]),
                "mqtt.rewrite": json.dumps([rule]),
                "mqtt.auto_subscribe": json.dumps(
                    [{"filter": "own/%c", "qos": 1}, {"filter": "other/%c"}]
                ),
                "permission_service.url": service.url,
                "permission_service.cache_seconds": 0,
            }
        )
        Admin(server).add("mia")
        service.reply = lambda value: DENY if "other" in value["topic"] else ALLOW
        client = MqttClient(server, "mia", client_id="c1", port=addresses(server)["a"])
        assert client.code == 0
        assert sorted(topics(service)) == [
            ("subscribe", "plant/other/c1"),
            ("subscribe", "plant/own/c1"),
        ]
        assert service.asked[0]["mount_point"] == "plant/"
        assert client.publish("own/c1", b"1")
        assert client.next() == ("own/c1", b"1")
        assert client.publish("old/a", b"2")
        assert topics(service)[2:] == [("publish", "plant/own/c1"), ("publish", "plant/new/a")]
        assert client.publish("old/a", b"3")
        assert topics(service)[4:] == [("publish", "plant/new/a")], "nothing is remembered"
        assert client.subscribe("#") == 1
        assert topics(service)[-1] == ("subscribe", "plant/+/#")
        client.close()
