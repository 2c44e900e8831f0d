"""All state survives, whatever way the server ended and whatever of its caches is left.

One test builds state in every protocol, ends the server, takes away `state.db`, the index files,
both or nothing, and looks at everything again. The log alone has to be enough.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import shutil
import subprocess
import sys
from base64 import b64decode
from typing import Any

import pika
import pika.exceptions
import pytest

from interop_tests.conftest import Server, StartServer
from interop_tests.ledger.ports import lasting_ports
from interop_tests.mqtt_raw_client import RawClient
from interop_tests.mqtt_wire import puback, pubcomp, publish, pubrec, pubrel, unsuback, unsubscribe

WAIT_SECONDS_MAX = 60.0
LAZY_SECONDS = 0.5
"""Acks gather for a moment before they are written. What is acked within it may come again after a
kill; this test is about what may not."""
SAVE_SECONDS = 0.3
"""Between two savings of the caches: most of the state is in them, the last only in the log."""
NOT_FOUND = 404
PRECONDITION_FAILED = 406
EVENT = {"ce-specversion": "1.0", "ce-source": "/tests", "Content-Type": "text/plain"}


def ask(
    server: Server, method: str, path: str, value: object = None, **headers: str
) -> tuple[int, Any]:
    """One HTTP request: bytes as they are, everything else as JSON."""
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=WAIT_SECONDS_MAX)
    body = value if isinstance(value, bytes) else None
    fields = dict(headers)
    if value is not None and body is None:
        body = json.dumps(value).encode()
        fields["Content-Type"] = "application/json"
    try:
        connection.request(method, path, body, fields)
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text else None
    finally:
        connection.close()


def polymq(server: Server, *arguments: str) -> bytes:
    """What a command prints."""
    command = [sys.executable, "-m", "polymq", *arguments]
    found = subprocess.run(
        [*command, "--data-directory", str(server.data_directory)],
        stdout=subprocess.PIPE,
        check=True,
        timeout=WAIT_SECONDS_MAX,
    )
    return found.stdout


def read_topic(server: Server, topic: str) -> list[tuple[int, bytes]]:
    """(offset, body) of all messages of a topic, by offset."""
    lines = polymq(server, "message", "read", topic, "--format", "json").splitlines()
    messages = [json.loads(line) for line in lines]
    return [(message["offset"], b64decode(message["body_base64"])) for message in messages]


def topics(server: Server) -> list[dict[str, Any]]:
    """All topics with the bounds of their queues, as the admin listener tells them."""
    connection = http.client.HTTPConnection(
        "127.0.0.1", server.admin_port, timeout=WAIT_SECONDS_MAX
    )
    try:
        connection.request("GET", "/api/v1/topics?limit=500")
        found: list[dict[str, Any]] = json.loads(connection.getresponse().read())["items"]
    finally:
        connection.close()
    return sorted(found, key=lambda topic: str(topic["name"]))


def publish_mqtt(server: Server, *packets: bytes) -> None:
    """Publish with QoS 1 (packet ids 1, 2, ...) and wait for the acks."""
    with RawClient.connected(server.mqtt_port, "publisher") as client:
        client.send(*packets)
        client.expect(*(puback(k) for k in range(1, len(packets) + 1)))
        client.disconnect()


def settle(server: Server) -> None:
    """Let what is written lazily be written."""
    assert not server.ended_within(LAZY_SECONDS)


# --- MQTT -----------------------------------------------------------------------------------


class MqttState:
    """A session with messages in every stage, one with a half-done inbound QoS 2, retained ones."""

    def build(self, server: Server) -> None:
        port = server.mqtt_port
        publish_mqtt(
            server,
            publish("r/a", b"old", qos=1, packet_id=1, retain=True),
            publish("r/a", b"new", qos=1, packet_id=2, retain=True),
            publish("r/b", b"removed", qos=1, packet_id=3, retain=True),
            publish("r/b", b"", qos=1, packet_id=4, retain=True),
            publish("r/c", b"kept", qos=1, packet_id=5, retain=True),
        )
        client = RawClient.connected(port, "session", clean=False)
        client.subscribe(("in/#", 1), ("two/#", 2), ("dropped/#", 1))
        client.send(unsubscribe(2, "dropped/#"))
        client.expect(unsuback(2))
        publish_mqtt(
            server, *(publish(f"in/{k}", b"%d" % k, qos=1, packet_id=k) for k in range(1, 4))
        )
        self.in_flight = [client.receive_publish() for _ in range(3)]
        client.send(puback(self.in_flight[0].packet_id))
        with RawClient.connected(port, "sender", clean=False) as sender:
            sender.send(publish("two/1", b"two", qos=2, packet_id=1))
            sender.expect(pubrec(1))
            sender.send(pubrel(1))
            sender.expect(pubcomp(1))
            self.two = client.receive_publish()
            client.send(pubrec(self.two.packet_id))
            client.expect(pubrel(self.two.packet_id))
            client.vanish()
            sender.send(publish("once/k", b"once", qos=2, packet_id=9))
            sender.expect(pubrec(9))
            sender.vanish()
        publish_mqtt(
            server,
            publish("in/4", b"4", qos=1, packet_id=1),
            publish("dropped/1", b"nobody", qos=1, packet_id=2),
        )

    def check(self, server: Server) -> None:
        port = server.mqtt_port
        client = RawClient.connected(port, "session", clean=False, present=True)
        for sent in self.in_flight[1:]:
            found = client.receive_publish()
            assert (found.body, found.packet_id, found.duplicate) == (
                sent.body,
                sent.packet_id,
                True,
            )
            client.send(puback(found.packet_id))
        client.expect(pubrel(self.two.packet_id))
        client.send(pubcomp(self.two.packet_id))
        waited = client.receive_publish()
        assert (waited.body, waited.duplicate) == (b"4", False)
        client.send(puback(waited.packet_id))
        client.expect_nothing_before_ping()
        client.disconnect()
        with RawClient.connected(port, "sender", clean=False, present=True) as sender:
            sender.send(publish("once/k", b"once", qos=2, packet_id=9, duplicate=True))
            sender.expect(pubrec(9))
            sender.send(pubrel(9))
            sender.expect(pubcomp(9))
        assert read_topic(server, "once") == [(0, b"once")]
        with RawClient.connected(port, "late") as late:
            late.subscribe(("r/#", 1))
            retained = [late.receive_publish() for _ in range(2)]
            late.expect_nothing_before_ping()
        assert all(found.retain for found in retained)
        assert sorted((f.topic, f.body) for f in retained) == [("r/a", b"new"), ("r/c", b"kept")]


# --- AMQP -----------------------------------------------------------------------------------


class AmqpState:
    """Exchanges, bindings, and a queue with messages in every stage; and what has to be gone."""

    def build(self, server: Server, stack: contextlib.ExitStack) -> None:
        channel = _channel(server, stack)
        channel.confirm_delivery()
        channel.exchange_declare("direct", "direct", durable=True)
        channel.exchange_declare("fan", "fanout", durable=True)
        channel.exchange_declare("removed", "topic", durable=True)
        channel.exchange_declare("transient", "topic", durable=False)
        for name in ("work", "removed", "purged"):
            channel.queue_declare(name, durable=True)
        channel.queue_declare("transient", durable=False)
        channel.queue_declare("exclusive", exclusive=True)
        for exchange, key in (("direct", "k1"), ("direct", "k2"), ("fan", "")):
            channel.queue_bind("work", exchange, key)
        channel.queue_unbind("work", "direct", "k2")
        for number in range(1, 6):
            channel.basic_publish("direct", "k1", b"%d" % number)
        channel.basic_publish("", "purged", b"purged")
        channel.queue_purge("purged")
        channel.queue_delete("removed")
        channel.exchange_delete("removed")
        got = [channel.basic_get("work") for _ in range(3)]
        assert [body for _, _, body in got] == [b"1", b"2", b"3"]
        assert not any(method.redelivered for method, _, _ in got)
        channel.basic_ack(got[0][0].delivery_tag)

    def build_last(self, server: Server, stack: contextlib.ExitStack) -> None:
        """What is acked at the very end stands only in the log."""
        channel = _channel(server, stack)
        channel.confirm_delivery()
        channel.queue_declare("last", durable=True)
        channel.queue_bind("last", "fan")
        channel.basic_publish("", "last", b"last")

    def check(self, server: Server, stack: contextlib.ExitStack) -> None:
        channel = _channel(server, stack)
        got = [channel.basic_get("work", auto_ack=True) for _ in range(4)]
        found = [(body, method.redelivered) for method, _, body in got]
        assert found == [(b"2", True), (b"3", True), (b"4", False), (b"5", False)]
        channel.confirm_delivery()
        channel.basic_publish("direct", "k1", b"by key", mandatory=True)
        channel.basic_publish("fan", "any", b"by fan", mandatory=True)
        with pytest.raises(pika.exceptions.UnroutableError):
            channel.basic_publish("direct", "k2", b"unbound", mandatory=True)
        bodies = [channel.basic_get("work", auto_ack=True)[2] for _ in range(2)]
        assert bodies == [b"by key", b"by fan"]
        bodies = [channel.basic_get("last", auto_ack=True)[2] for _ in range(2)]
        assert bodies == [b"last", b"by fan"]
        assert channel.queue_declare("purged", passive=True).method.message_count == 0
        for kind, name in (
            ("queue", "removed"),
            ("queue", "transient"),
            ("queue", "exclusive"),
            ("exchange", "removed"),
            ("exchange", "transient"),
        ):
            with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
                getattr(_channel(server, stack), f"{kind}_declare")(name, passive=True)
            assert closed.value.reply_code == NOT_FOUND, (kind, name)
        with pytest.raises(pika.exceptions.ChannelClosedByBroker) as closed:
            _channel(server, stack).exchange_declare("fan", "direct", durable=True)
        assert closed.value.reply_code == PRECONDITION_FAILED


def _channel(server: Server, stack: contextlib.ExitStack) -> Any:
    parameters = pika.ConnectionParameters("127.0.0.1", server.amqp_port, connection_attempts=1)
    connection = pika.BlockingConnection(parameters)
    stack.callback(_close, connection)
    return connection.channel()


def _close(connection: Any) -> None:
    """Close; one whose server was killed finds that out now."""
    with contextlib.suppress(pika.exceptions.AMQPError):
        connection.close()


# --- HTTP -----------------------------------------------------------------------------------


class HttpState:
    """Subscriptions with settings, and events in every stage."""

    PATH = "/topics/h/subscriptions/kept"

    def build(self, server: Server) -> None:
        wanted = {"topic": "h", "config": {"lockSeconds": 3600}}
        assert ask(server, "PUT", "/subscriptions/kept", wanted)[0] == 201
        assert ask(server, "PUT", "/subscriptions/removed", {"topic": "h"})[0] == 201
        for number in range(1, 5):
            fields = {**EVENT, "ce-id": str(number), "ce-type": "k"}
            assert ask(server, "POST", "/topics/h", b"%d" % number, **fields)[0] == 204
        status, answer = ask(server, "POST", f"{self.PATH}:receive?maxEvents=2&maxWaitTime=10")
        assert (status, [one["event"]["id"] for one in answer["value"]]) == (200, ["1", "2"])
        token = answer["value"][0]["brokerProperties"]["lockToken"]
        status, outcome = ask(server, "POST", f"{self.PATH}:acknowledge", {"lockTokens": [token]})
        assert (status, outcome["succeededLockTokens"]) == (200, [token])
        assert ask(server, "DELETE", "/subscriptions/removed")[0] == 204
        self.shown = ask(server, "GET", "/subscriptions")

    def check(self, server: Server) -> None:
        assert ask(server, "GET", "/subscriptions") == self.shown
        assert [one["id"] for one in self.shown[1]] == ["kept"]
        received: list[dict[str, Any]] = []
        while len(received) < 3:
            _, answer = ask(server, "POST", f"{self.PATH}:receive?maxEvents=9&maxWaitTime=10")
            assert answer["value"], received
            received += answer["value"]
        found = [(e["event"]["id"], e["brokerProperties"]["deliveryCount"] > 1) for e in received]
        assert found == [("2", True), ("3", False), ("4", False)]


# --- the test -------------------------------------------------------------------------------


def forget(server: Server, caches: str) -> None:
    """Remove what the log can replace."""
    if "state" in caches:
        found = list(server.data_directory.glob("state.db*"))
        assert found, "there is no state.db to remove"
        for path in found:
            path.unlink()
    if "indexes" in caches:
        store = server.data_directory / "store"
        directories = [store / "consumequeue", store / "packedqueue"]
        found = [path for directory in directories for path in directory.iterdir()]
        assert found, "there are no indexes to remove"
        for directory in directories:
            shutil.rmtree(directory)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "caches"),
    [
        ("stop", "nothing"),
        ("stop", "state and indexes"),
        ("kill", "nothing"),
        ("kill", "state"),
        ("kill", "indexes"),
        ("kill", "state and indexes"),
    ],
)
def test_everything_is_there_again(start_server: StartServer, end: str, caches: str) -> None:
    """Built, ended, some caches removed, started: the same state in every protocol."""
    options = {"storage.save_seconds": SAVE_SECONDS, "server.drain_seconds": 0.5}
    server = start_server(**options, **lasting_ports())
    mqtt, amqp, http_state = MqttState(), AmqpState(), HttpState()
    with contextlib.ExitStack() as stack:
        polymq(server, "topic", "create", "wide", "--queues", "3")
        mqtt.build(server)
        settle(server)
        amqp.build(server, stack)
        http_state.build(server)
        settle(server)
        amqp.build_last(server, stack)
        before = topics(server)
        if end == "kill":
            server.kill()
        else:
            assert server.terminate() == 0
    forget(server, caches)
    server.start()
    assert topics(server) == before
    with contextlib.ExitStack() as stack:
        mqtt.check(server)
        amqp.check(server, stack)
        http_state.check(server)
    publish_mqtt(server, publish("in/5", b"5", qos=1, packet_id=1))
    assert read_topic(server, "in") == [(k, b"%d" % (k + 1)) for k in range(5)]


@pytest.mark.slow
def test_state_survives_many_restarts(start_server: StartServer) -> None:
    """Ended in turn by a stop and by a kill, with something new each time: a fold of a fold is the
    same fold."""
    server = start_server(**lasting_ports())
    session = RawClient.connected(server.mqtt_port, "session", clean=False)
    session.subscribe(("in/#", 1))
    session.disconnect()
    for number in range(1, 5):
        publish_mqtt(server, publish("in/k", b"%d" % number, qos=1, packet_id=1))
        if number % 2:
            server.kill()
        server.restart()
        if number == 2:
            session = RawClient.connected(server.mqtt_port, "session", clean=False, present=True)
            found = [session.receive_publish() for _ in range(2)]
            assert [one.body for one in found] == [b"1", b"2"]
            session.send(*(puback(one.packet_id) for one in found))
            settle(server)
            session.disconnect()
    assert read_topic(server, "in") == [(k, b"%d" % (k + 1)) for k in range(4)]
    session = RawClient.connected(server.mqtt_port, "session", clean=False, present=True)
    assert [session.receive_publish().body for _ in range(2)] == [b"3", b"4"]
    session.expect_nothing_before_ping()
    session.disconnect()
