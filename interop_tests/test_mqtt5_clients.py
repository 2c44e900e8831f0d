"""MQTT 5 with paho-mqtt and aiomqtt, and with pika on the other side. Restarts are kills."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import aiomqtt
import pika
import pytest
from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from interop_tests.conftest import Server, StartServer
from interop_tests.ledger.ports import lasting_ports

SECONDS_MAX = 20.0


def properties(kind: int, **values: Any) -> Properties:
    """Properties of a packet, by paho's names."""
    found = Properties(kind)  # type: ignore[no-untyped-call]
    for name, value in values.items():
        setattr(found, name, value)
    return found


def properties_of(message: Any) -> Any:
    """Of a message that came."""
    assert message.properties is not None
    return message.properties


class Client:
    """A client of paho's in a thread, and what came to it."""

    def __init__(self, server: Server, client_id: str, *, clean: bool = True, **more: Any) -> None:
        self.messages: SimpleQueue[mqtt.MQTTMessage] = SimpleQueue()
        self.answers: SimpleQueue[Any] = SimpleQueue()
        self.paho = mqtt.Client(
            CallbackAPIVersion.VERSION2, client_id=client_id, protocol=mqtt.MQTTv5
        )
        will = more.pop("will", None)
        if will is not None:
            self.paho.will_set(**will)
        self.paho.on_connect = lambda _c, _u, flags, *_: self.answers.put(flags.session_present)
        self.paho.on_message = lambda _c, _u, message: self.messages.put(message)
        self.paho.on_subscribe = lambda _c, _u, _m, codes, _p: self.answers.put(codes)
        self.paho.on_publish = lambda _c, _u, _m, code, _p: self.answers.put(code)
        asked = properties(PacketTypes.CONNECT, **more)
        self.paho.connect(server.host, server.mqtt_port, clean_start=clean, properties=asked)
        self.paho.loop_start()
        self.present = self.answers.get(timeout=SECONDS_MAX)

    def subscribe(self, pattern: str, options: SubscribeOptions, **more: Any) -> None:
        asked = properties(PacketTypes.SUBSCRIBE, **more)
        self.paho.subscribe(pattern, options=options, properties=asked)
        assert [code.value for code in self.answers.get(timeout=SECONDS_MAX)] == [options.QoS]

    def publish(self, topic: str, body: bytes, qos: int = 1, **more: Any) -> int:
        """Returns the reason code."""
        retain = more.pop("retain", False)
        asked = properties(PacketTypes.PUBLISH, **more)
        self.paho.publish(topic, body, qos, retain, properties=asked)
        code: int = self.answers.get(timeout=SECONDS_MAX).value
        return code

    def message(self) -> mqtt.MQTTMessage:
        return self.messages.get(timeout=SECONDS_MAX)

    def leave(self) -> None:
        self.paho.disconnect()
        self.paho.loop_stop()

    def vanish(self) -> None:
        """The network is gone, without a word."""
        self.paho.loop_stop()
        sock = self.paho.socket()
        if sock is not None:
            sock.close()


@contextlib.contextmanager
def client(server: Server, client_id: str, **more: Any) -> Iterator[Client]:
    found = Client(server, client_id, **more)
    try:
        yield found
    finally:
        found.leave()


@pytest.fixture
def server(start_server: StartServer) -> Server:
    """A server that can be started again on its ports."""
    return start_server(**lasting_ports())


ALL = {
    "PayloadFormatIndicator": 1,
    "MessageExpiryInterval": 1000,
    "ContentType": "text/plain",
    "ResponseTopic": "answers/me",
    "CorrelationData": b"\x00\x01",
    "UserProperty": [("a", "1"), ("b", "2"), ("a", "3")],
}


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_properties_survive_a_kill(server: Server, qos: int) -> None:
    """A message of QoS 1 or 2 waits for a client that is away, over a kill of the server; one of
    QoS 0 is delivered at once. Its properties are what they were."""
    options = SubscribeOptions(qos=qos, retainAsPublished=True)
    with client(server, "reader", SessionExpiryInterval=1000) as reader:
        reader.subscribe("t/#", options, SubscriptionIdentifier=7)
        if qos:
            reader.leave()
        with client(server, "writer") as writer:
            assert writer.publish("t/k", b"body", qos, retain=True, **ALL) == 0
        if qos:
            server.kill()
            server.restart()
            reader = Client(server, "reader", clean=False, SessionExpiryInterval=1000)
            assert reader.present
        message = reader.message()
        reader.leave()
    found: Any = message.properties
    assert message.payload == b"body"
    assert (message.qos, message.retain) == (qos, True)
    assert 900 < found.MessageExpiryInterval <= 1000
    assert found.SubscriptionIdentifier == [7]
    for name, value in ALL.items():
        if name != "MessageExpiryInterval":
            assert getattr(found, name) == value


@pytest.mark.slow
def test_a_will_of_a_client_that_a_kill_took_along(server: Server) -> None:
    """Its delay is over before it comes back: the will is published, with its properties; that of
    the client that came back in time is not."""
    reader = Client(server, "reader", SessionExpiryInterval=1000)
    reader.subscribe("gone/#", SubscribeOptions(qos=1))
    wills = {}
    for name in ("back", "lost"):
        asked = properties(PacketTypes.WILLMESSAGE, WillDelayInterval=1, ContentType="text/plain")
        will = {"topic": f"gone/{name}", "payload": b"will", "qos": 1, "properties": asked}
        wills[name] = Client(server, name, will=will, SessionExpiryInterval=1000)
    server.kill()
    for name in ("back", "lost"):
        wills[name].vanish()
    reader.vanish()
    server.restart()
    back = Client(server, "back", clean=False, SessionExpiryInterval=1000)
    assert back.present
    again = Client(server, "reader", clean=False, SessionExpiryInterval=1000)
    message = again.messages.get(timeout=60)
    assert (message.topic, message.payload) == ("gone/lost", b"will")
    assert properties_of(message).ContentType == "text/plain"
    assert again.messages.empty()
    again.leave()
    back.leave()


def test_a_session_ends_with_its_expiry(server: Server) -> None:
    """Also if the client changes it in DISCONNECT."""
    first = Client(server, "c", SessionExpiryInterval=1000)
    first.paho.disconnect(properties=properties(PacketTypes.DISCONNECT, SessionExpiryInterval=0))
    first.paho.loop_stop()
    with client(server, "c", clean=False) as second:
        assert not second.present


def test_refusals_have_reasons(server: Server) -> None:
    with client(server, "c") as found:
        assert found.publish("$other/x", b"", 1) == 0x87
        assert found.publish("t", b"", 1) == 0
        found.paho.subscribe("$share//t")
        assert found.answers.get(timeout=SECONDS_MAX)[0].is_failure


def test_amqp_and_mqtt_5_read_each_others_properties(server: Server) -> None:
    """What `docs/properties.md` says, with clients that are not ours on both sides."""
    connection = pika.BlockingConnection(pika.ConnectionParameters(server.host, server.amqp_port))
    channel = connection.channel()
    channel.exchange_declare("mixed", "topic", durable=True)
    channel.queue_declare("readings", durable=True)
    channel.queue_bind("readings", "mixed", "#")
    with client(server, "c") as found:
        found.subscribe("mixed/#", SubscribeOptions(qos=1, noLocal=True))
        assert found.publish("mixed/a", b"from mqtt", 1, **ALL) == 0
        channel.basic_publish(
            "mixed",
            "b",
            b"from amqp",
            pika.BasicProperties(content_type="text/csv", correlation_id="7", headers={"k": "v"}),
        )
        message = found.message()
    assert (message.topic, message.payload) == ("mixed/b", b"from amqp")
    assert properties_of(message).ContentType == "text/csv"
    assert properties_of(message).CorrelationData == b"7"
    assert ("k", "v") in properties_of(message).UserProperty
    method, got, body = channel.basic_get("readings", auto_ack=True)
    assert method is not None
    assert body == b"from mqtt"
    assert got.content_type == "text/plain"
    assert got.headers["b"] == "2"
    connection.close()


def test_aiomqtt(server: Server) -> None:
    async def scenario() -> None:
        async with aiomqtt.Client(
            server.host, server.mqtt_port, identifier="a", protocol=aiomqtt.ProtocolVersion.V5
        ) as found:
            await found.subscribe("t/#", qos=2)
            asked = properties(PacketTypes.PUBLISH, UserProperty=[("a", "b")])
            for qos in (0, 1, 2):
                await found.publish("t/k", b"%d" % qos, qos=qos, properties=asked)
            async with asyncio.timeout(SECONDS_MAX):
                for qos in (0, 1, 2):
                    message = await anext(aiter(found.messages))
                    assert (message.payload, message.qos) == (b"%d" % qos, qos)
                    assert properties_of(message).UserProperty == [("a", "b")]

    asyncio.run(scenario())
