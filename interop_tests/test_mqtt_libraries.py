"""What users write: paho-mqtt, aiomqtt and amqtt's client against a started server."""

from __future__ import annotations

import asyncio
import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import aiomqtt
import paho.mqtt.client as paho
import pytest
from amqtt.client import MQTTClient
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

from interop_tests.conftest import Server, StartServer

WAIT_SECONDS_MAX = 20.0

# amqtt's and its dependencies' own, none of ours
amqtt_warnings = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


class PahoClient:
    """A paho client whose callbacks fill queues."""

    def __init__(
        self,
        client_id: str,
        *,
        clean: bool = True,
        version: MQTTProtocolVersion = MQTTProtocolVersion.MQTTv311,
    ) -> None:
        options: dict[str, Any] = (
            {} if version is MQTTProtocolVersion.MQTTv5 else {"clean_session": clean}
        )
        self.client = paho.Client(
            CallbackAPIVersion.VERSION2, client_id, protocol=version, **options
        )
        self.client.reconnect_delay_set(1, 1)
        self.client.max_inflight_messages_set(500)
        self.connects: queue.Queue[tuple[str, bool]] = queue.Queue()
        self.messages: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self.granted: queue.Queue[list[int]] = queue.Queue()
        self.unsubscribed = threading.Event()
        self.client.on_connect = lambda _c, _u, flags, code, _p: self.connects.put(
            (str(code), flags.session_present)
        )
        self.client.on_message = lambda _c, _u, message: self.messages.put(message)
        self.client.on_subscribe = lambda _c, _u, _m, codes, _p: self.granted.put(
            [code.value for code in codes]
        )
        self.client.on_unsubscribe = lambda *_: self.unsubscribed.set()

    def start(self, port: int, *, keepalive: int = 60) -> tuple[str, bool]:
        self.client.connect("127.0.0.1", port, keepalive=keepalive)
        self.client.loop_start()
        return self.connects.get(timeout=WAIT_SECONDS_MAX)

    def subscribe(self, *filters: tuple[str, int]) -> list[int]:
        self.client.subscribe(list(filters))
        return self.granted.get(timeout=WAIT_SECONDS_MAX)

    def publish(self, topic: str, body: bytes, *, qos: int = 0, retain: bool = False) -> None:
        """Publish, and wait until it is acknowledged as its QoS wants."""
        self.client.publish(topic, body, qos=qos, retain=retain).wait_for_publish(WAIT_SECONDS_MAX)

    def receive(self) -> paho.MQTTMessage:
        return self.messages.get(timeout=WAIT_SECONDS_MAX)

    def stop(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


@pytest.fixture
def server(shared_server: Server) -> Server:
    """One for all; a test that stops or harms it starts its own."""
    return shared_server


@contextmanager
def paho_client(port: int, client_id: str, **options: Any) -> Iterator[PahoClient]:
    client = PahoClient(client_id, **options)
    try:
        assert client.start(port)[0] == "Success"
        yield client
    finally:
        client.stop()


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_paho_publishes_and_subscribes(server: Server, qos: int) -> None:
    with (
        paho_client(server.mqtt_port, "s") as subscriber,
        paho_client(server.mqtt_port, "p") as publisher,
    ):
        assert subscriber.subscribe(("room/+/temp", qos), ("other", 1)) == [qos, 1]
        for k in range(200):
            publisher.publish(f"room/{k % 5}/temp", b"%d" % k, qos=qos)
        for k in range(200):
            message = subscriber.receive()
            assert (message.topic, message.payload) == (f"room/{k % 5}/temp", b"%d" % k)
            assert (message.qos, message.retain) == (qos, False)
        subscriber.client.unsubscribe("room/+/temp")
        assert subscriber.unsubscribed.wait(WAIT_SECONDS_MAX)
        publisher.publish("room/1/temp", b"late", qos=1)
        publisher.publish("other", b"end", qos=1)
        assert subscriber.receive().payload == b"end"


@pytest.mark.parametrize("qos", [1, 2])
def test_paho_in_bulk(server: Server, qos: int) -> None:
    """A window of 500: every message once and in order."""
    with (
        paho_client(server.mqtt_port, "s") as subscriber,
        paho_client(server.mqtt_port, "p") as publisher,
    ):
        subscriber.subscribe(("bulk", qos))
        sent = [publisher.client.publish("bulk", b"%d" % k, qos=qos) for k in range(3000)]
        bodies = [subscriber.receive().payload for _ in range(3000)]
        assert bodies == [b"%d" % k for k in range(3000)]
        for one in sent:
            one.wait_for_publish(WAIT_SECONDS_MAX)
        assert subscriber.messages.empty()


def test_paho_speaks_mqtt_3_1(server: Server) -> None:
    with paho_client(server.mqtt_port, "old", version=MQTTProtocolVersion.MQTTv31) as client:
        assert client.subscribe(("t", 1)) == [1]
        client.publish("t", b"x", qos=1)
        assert client.receive().payload == b"x"


def test_paho_retained_and_will(server: Server) -> None:
    with paho_client(server.mqtt_port, "p") as publisher:
        publisher.publish("state/a", b"on", qos=1, retain=True)
        lost = PahoClient("lost")
        lost.client.will_set("state/lost", b"gone", qos=1, retain=True)
        lost.start(server.mqtt_port)
        connection = lost.client.socket()
        assert isinstance(connection, socket.socket)
        connection.shutdown(socket.SHUT_RDWR)
        lost.client.loop_stop()
        with paho_client(server.mqtt_port, "s") as subscriber:
            subscriber.subscribe(("state/+", 1))
            found: dict[str, bytes] = {}
            while len(found) < 2:
                message = subscriber.receive()
                found[message.topic] = bytes(message.payload)
            assert found == {"state/a": b"on", "state/lost": b"gone"}


def test_paho_finds_its_session_again_after_a_crash(start_server: StartServer) -> None:
    """The library reconnects by itself; what was published meanwhile waits for it."""
    server = start_server()
    client = PahoClient("c", clean=False)
    assert client.start(server.mqtt_port) == ("Success", False)
    client.subscribe(("t", 1))
    server.kill()
    server.restart()
    assert client.connects.get(timeout=WAIT_SECONDS_MAX) == ("Success", True)
    with paho_client(server.mqtt_port, "p") as publisher:
        publisher.publish("t", b"1", qos=1)
        assert client.receive().payload == b"1"
        client.stop()
        publisher.publish("t", b"2", qos=2)
    client = PahoClient("c", clean=False)
    assert client.start(server.mqtt_port) == ("Success", True)
    assert client.receive().payload == b"2"
    client.stop()


def test_paho_gets_all_retained_messages_though_the_server_crashes(
    start_server: StartServer,
) -> None:
    """It acknowledges none before the crash, and does not subscribe again: its session is there."""
    server = start_server()
    topics = {f"state/{k:03}" for k in range(100)}
    with paho_client(server.mqtt_port, "p") as publisher:
        for topic in topics:
            publisher.publish(topic, topic.encode(), qos=1, retain=True)
    client = PahoClient("c", clean=False)
    client.client.manual_ack_set(True)
    assert client.start(server.mqtt_port) == ("Success", False)
    client.subscribe(("state/#", 1))
    first = [client.receive() for _ in range(20)]
    assert not any(message.dup for message in first)
    server.kill()
    server.restart()
    assert client.connects.get(timeout=WAIT_SECONDS_MAX) == ("Success", True)
    found: set[str] = set()
    while found != topics:
        message = client.receive()
        assert message.retain
        assert message.payload.decode() == message.topic
        client.client.ack(message.mid, message.qos)
        found.add(message.topic)
    client.stop()


@pytest.mark.slow
def test_paho_keeps_its_connection_alive(server: Server) -> None:
    """Pings every second hold a connection that says nothing else for several keep-alives."""
    quiet = PahoClient("quiet")
    lost = threading.Event()
    quiet.client.on_disconnect = lambda *_: lost.set()
    quiet.start(server.mqtt_port, keepalive=1)
    assert not lost.wait(4.0)
    quiet.stop()


# --- aiomqtt ------------------------------------------------------------------------------------


def test_aiomqtt(server: Server) -> None:
    async def converse() -> None:
        async with (
            aiomqtt.Client("127.0.0.1", server.mqtt_port, identifier="s") as subscriber,
            aiomqtt.Client("127.0.0.1", server.mqtt_port, identifier="p") as publisher,
        ):
            await publisher.publish("kept/x", b"before", qos=1, retain=True)
            await subscriber.subscribe("kept/#", qos=2)
            await subscriber.subscribe("live/+", qos=2)
            found = []
            async for message in subscriber.messages:
                found.append((str(message.topic), message.payload, message.qos, message.retain))
                if len(found) == 4:
                    break
                if len(found) == 1:  # what is kept comes in turns of its own, not before all else
                    for qos in (0, 1, 2):
                        await publisher.publish(f"live/{qos}", b"%d" % qos, qos=qos)
            assert found == [
                ("kept/x", b"before", 1, True),
                ("live/0", b"0", 0, False),
                ("live/1", b"1", 1, False),
                ("live/2", b"2", 2, False),
            ]

    asyncio.run(asyncio.wait_for(converse(), WAIT_SECONDS_MAX))


def test_aiomqtt_wakes_up_when_the_server_goes(start_server: StartServer) -> None:
    server = start_server()

    async def converse() -> None:
        async with aiomqtt.Client("127.0.0.1", server.mqtt_port, identifier="c") as client:
            await client.subscribe("t")
            server.process.terminate()
            async for _ in client.messages:
                raise AssertionError("nothing was published")

    with pytest.raises(aiomqtt.MqttError):
        asyncio.run(asyncio.wait_for(converse(), WAIT_SECONDS_MAX))
    assert server.ended_within(WAIT_SECONDS_MAX)


# --- amqtt --------------------------------------------------------------------------------------


def amqtt_client(client_id: str) -> MQTTClient:
    return MQTTClient(client_id=client_id, config={"auto_reconnect": False, "keep_alive": 30})


@amqtt_warnings
def test_amqtt_client(server: Server) -> None:
    """An independent implementation of 3.1.1, at all three qualities."""
    url = f"mqtt://127.0.0.1:{server.mqtt_port}/"

    async def converse() -> None:
        subscriber, publisher = amqtt_client("s"), amqtt_client("p")
        await subscriber.connect(url)
        await publisher.connect(url)
        codes = await subscriber.subscribe([("sensors/+/temp", 2), ("$share//x", 1)])
        assert codes == [2, 0x80]
        for qos in (0, 1, 2):
            for k in range(30):
                await publisher.publish("sensors/a/temp", b"%d" % k, qos=qos)
        for qos in (0, 1, 2):
            for k in range(30):
                message = await subscriber.deliver_message(timeout_duration=WAIT_SECONDS_MAX)
                assert message is not None
                assert (bytes(message.data), message.qos) == (b"%d" % k, qos)
                assert message.topic == "sensors/a/temp"
        await subscriber.unsubscribe(["sensors/+/temp"])
        await publisher.disconnect()
        await subscriber.disconnect()

    asyncio.run(asyncio.wait_for(converse(), 3 * WAIT_SECONDS_MAX))


@amqtt_warnings
def test_amqtt_client_resumes_its_session(server: Server) -> None:
    url = f"mqtt://127.0.0.1:{server.mqtt_port}/"

    async def converse() -> None:
        client, publisher = amqtt_client("c"), amqtt_client("p")
        assert await client.connect(url, cleansession=False) == 0
        await client.subscribe([("t", 1)])
        await client.disconnect()
        await publisher.connect(url)
        await publisher.publish("t", b"waited", qos=1)
        await publisher.disconnect()
        client = amqtt_client("c")
        await client.connect(url, cleansession=False)
        message = await client.deliver_message(timeout_duration=WAIT_SECONDS_MAX)
        assert message is not None
        assert bytes(message.data) == b"waited"
        await client.disconnect()

    asyncio.run(asyncio.wait_for(converse(), 3 * WAIT_SECONDS_MAX))
