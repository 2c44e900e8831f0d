"""What a broker keeps beside its log's messages, made in each protocol and looked for elsewhere.

Each class makes one thing at a master (`make`) and later counts what another broker has of it
(`check`), as an ordinary client that knows nothing of brokers changing roles. `close` lets go of
what was held meanwhile.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import paho.mqtt.client as mqtt
import pika
from paho.mqtt.enums import CallbackAPIVersion

from examples.demo.rocketmq import ONCE, options_of, polling_consumer
from examples.demo.subscribe import call, open_sink
from examples.demo.workers import HOST
from polymq.client import Begin, ConsumerSettings, Message, Record
from polymq.client.threads import open_producer

WAIT_SECONDS_MAX = 20.0
"""For what has to come. What is not there by then is lost."""

Ports = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """A row of the report: so many were promised, so many are there."""

    what: str
    promised: int
    found: int


class Part(Protocol):
    """Something that is made at one broker and looked for at another."""

    def make(self, ports: Ports) -> None:
        """Make it; returns when it is promised to be kept."""

    def check(self, ports: Ports) -> list[Checked]:
        """What is there of it."""

    def close(self) -> None:
        """Let go of what `make` held."""


class WorkQueue:
    """AMQP: a durable queue with two bindings. Of its messages some were acknowledged, some are
    with a consumer that has not answered yet, and some wait."""

    EXCHANGE, QUEUE = "shop", "billing"
    BINDINGS: Mapping[str, str] = {"paid.#": "paid.eu.last", "refund.*": "refund.last"}
    """Binding key -> a routing key that no other binding matches."""
    SENT, ACKED, HELD = 30, 5, 10

    def __init__(self) -> None:
        self._connection: Any = None

    def _connect(self, ports: Ports) -> Any:
        self._connection = pika.BlockingConnection(pika.ConnectionParameters(HOST, ports["amqp"]))
        channel = self._connection.channel()
        channel.confirm_delivery()
        return channel

    def make(self, ports: Ports) -> None:
        channel = self._connect(ports)
        channel.exchange_declare(self.EXCHANGE, "topic", durable=True)
        channel.queue_declare(self.QUEUE, durable=True)
        for key in self.BINDINGS:
            channel.queue_bind(self.QUEUE, self.EXCHANGE, key)
        for number in range(self.SENT):
            self._send(channel, f"paid.eu.{number}", str(number).encode())
        channel.basic_qos(prefetch_count=self.HELD)
        for method, _, body in channel.consume(self.QUEUE, inactivity_timeout=WAIT_SECONDS_MAX):
            if int(body) == self.ACKED - 1:
                channel.basic_ack(method.delivery_tag, multiple=True)
            if int(body) == self.ACKED + self.HELD - 1:
                break

    def _send(self, channel: Any, key: str, body: bytes) -> None:
        properties = pika.BasicProperties(delivery_mode=2)
        channel.basic_publish(self.EXCHANGE, key, body, properties, mandatory=True)

    def check(self, ports: Ports) -> list[Checked]:
        channel = self._connect(ports)
        try:
            channel.queue_declare(self.QUEUE, passive=True)
            queues = 1
        except pika.exceptions.ChannelClosedByBroker:
            return [self._row("queue", 1, 0)]
        bindings = 0
        for key in self.BINDINGS.values():
            with contextlib.suppress(pika.exceptions.UnroutableError):
                self._send(channel, key, b"-1")
                bindings += 1
        again: set[int] = set()
        new: set[int] = set()
        for method, _, body in channel.consume(self.QUEUE, inactivity_timeout=WAIT_SECONDS_MAX):
            if method is None or body == b"-1":  # nothing comes, or what we sent just now
                break
            (again if method.redelivered else new).add(int(body))
        held = set(range(self.ACKED, self.ACKED + self.HELD))
        waiting = set(range(self.ACKED + self.HELD, self.SENT))
        return [
            self._row("queue", 1, queues),
            self._row("its bindings", len(self.BINDINGS), bindings),
            self._row("its messages that waited", len(waiting), len(waiting & new)),
            self._row("its unacknowledged ones, redelivered", len(held), len(held & again)),
            self._row(
                "its acknowledged ones, gone",
                self.ACKED,
                self.ACKED - len((again | new) - held - waiting),
            ),
        ]

    @staticmethod
    def _row(what: str, promised: int, found: int) -> Checked:
        return Checked(what=f"AMQP: {what}", promised=promised, found=found)

    def close(self) -> None:
        with contextlib.suppress(pika.exceptions.AMQPError, OSError):
            if self._connection is not None:
                self._connection.close()


@dataclass(slots=True)
class Device:
    """A paho client and what it got."""

    client_id: str
    clean: bool
    inbox: queue.SimpleQueue[mqtt.MQTTMessage] = field(default_factory=queue.SimpleQueue)
    session_present: bool = False

    @contextlib.contextmanager
    def connected(self, ports: Ports) -> Any:
        """The client, connected."""
        client = mqtt.Client(
            CallbackAPIVersion.VERSION2,
            self.client_id,
            clean_session=self.clean,
            reconnect_on_failure=False,
        )
        ready = threading.Event()

        def connected(_client: object, _data: object, flags: Any, *_: object) -> None:
            self.session_present = flags.session_present
            ready.set()

        client.on_connect = connected
        client.on_message = lambda _client, _data, message: self.inbox.put(message)
        client.connect(HOST, ports["mqtt"])
        client.loop_start()
        try:
            assert ready.wait(WAIT_SECONDS_MAX), "no CONNACK came"
            yield client
        finally:
            client.disconnect()
            client.loop_stop()

    def take(self, count: int) -> list[mqtt.MQTTMessage]:
        """The next messages; fewer if they do not come."""
        found: list[mqtt.MQTTMessage] = []
        with contextlib.suppress(queue.Empty):
            while len(found) < count:
                found.append(self.inbox.get(timeout=WAIT_SECONDS_MAX))
        return found


class Session:
    """MQTT: a persistent session whose client is away while QoS 1 messages come for it; and
    retained messages."""

    QUEUED = tuple(f"plant/line{number}/temp" for number in range(20))
    RETAINED = tuple(f"plant/line{number}/state" for number in range(3))

    def make(self, ports: Ports) -> None:
        with Device("demo-meter", clean=False).connected(ports) as client:
            subscribed = threading.Event()
            client.on_subscribe = lambda *_: subscribed.set()
            client.subscribe("plant/+/temp", qos=1)
            assert subscribed.wait(WAIT_SECONDS_MAX), "no SUBACK came"
        with Device("demo-plant", clean=True).connected(ports) as client:
            for topic in [*self.QUEUED, *self.RETAINED]:
                sent = client.publish(topic, topic, qos=1, retain=topic in self.RETAINED)
                sent.wait_for_publish(WAIT_SECONDS_MAX)
                assert sent.is_published(), "no PUBACK came"

    def check(self, ports: Ports) -> list[Checked]:
        meter = Device("demo-meter", clean=False)
        with meter.connected(ports):  # and does not subscribe: the session knows
            queued = [m.topic for m in meter.take(len(self.QUEUED))]
        reader = Device("demo-reader", clean=True)
        with reader.connected(ports) as client:
            client.subscribe("plant/+/state", qos=1)
            retained = {m.topic for m in reader.take(len(self.RETAINED)) if m.retain}
        return [
            Checked(what="MQTT: session", promised=1, found=int(meter.session_present)),
            Checked(
                what="MQTT: its queued messages, in order",
                promised=len(self.QUEUED),
                found=sum(map(str.__eq__, self.QUEUED, queued)),
            ),
            Checked(
                what="MQTT: retained messages",
                promised=len(self.RETAINED),
                found=len(retained.intersection(self.RETAINED)),
            ),
        ]

    def close(self) -> None:
        """Nothing is held."""


class Group:
    """RocketMQ: a consumer group that has handled a part of each queue of a topic."""

    TOPIC, GROUP = "ledger", "demo-audit"
    QUEUES, SENT, HANDLED = 4, 40, 5
    SETTINGS = ConsumerSettings(begin=Begin.FIRST, long_poll_seconds=0, pull_count_max=HANDLED)

    def make(self, ports: Ports) -> None:
        with open_producer(self.GROUP, options_of(ports["rocketmq"]), settings=ONCE) as producer:
            for number in range(self.SENT):
                producer.send(Message(topic=self.TOPIC, body=str(number).encode()))
        assert self._first_pulls(ports, handle=True) == self._offsets(0), "a pull got nothing"

    def _offsets(self, offset: int) -> dict[int, int]:
        return dict.fromkeys(range(self.QUEUES), offset)

    def _first_pulls(self, ports: Ports, *, handle: bool) -> dict[int, int]:
        """By queue: the offset of the first message that a member of the group gets."""
        consumer, driver = polling_consumer(
            ports["rocketmq"], self.GROUP, self.TOPIC, self.SETTINGS
        )
        first: dict[int, int] = {}
        for source in sorted(driver.run(consumer.share())):
            found: list[Record] = driver.run(consumer.pull(source))
            if source.topic == self.TOPIC and found:
                first[source.queue_id] = found[0].queue_offset
            if handle:
                consumer.handled(source)
        driver.run(consumer.leave())
        driver.close()
        return first

    def check(self, ports: Ports) -> list[Checked]:
        first = self._first_pulls(ports, handle=False)
        found = sum(first.get(number) == self.HANDLED for number in range(self.QUEUES))
        return [Checked(what="RocketMQ: a group's offsets", promised=self.QUEUES, found=found)]

    def close(self) -> None:
        """Nothing is held."""


class Subscription:
    """HTTP: a subscription of which a part was received and acknowledged."""

    TOPIC, NAME = "accounts", "demo-ledger"
    SENT, RECEIVED = 8, 3

    def make(self, ports: Ports) -> None:
        port = ports["http"]
        call(port, "PUT", f"/subscriptions/{self.NAME}", {"topic": self.TOPIC})
        for number in range(self.SENT):
            call(port, "POST", f"/topics/{self.TOPIC}", number)
        tokens = [token for _, token in self._receive(port, self.RECEIVED)]
        call(port, "POST", f"{self._path()}:acknowledge", {"lockTokens": tokens})

    def _path(self) -> str:
        return f"/topics/{self.TOPIC}/subscriptions/{self.NAME}"

    def _receive(self, port: int, count: int) -> list[tuple[int, str]]:
        path = f"{self._path()}:receive?maxEvents={count}&maxWaitTime=20"
        return [
            (item["event"]["data"], item["brokerProperties"]["lockToken"])
            for item in call(port, "POST", path)["value"]
        ]

    def check(self, ports: Ports) -> list[Checked]:
        expected = set(range(self.RECEIVED, self.SENT))
        found = {number for number, _ in self._receive(ports["http"], self.SENT)}
        what = "HTTP: a subscription's events that waited"
        return [Checked(what=what, promised=len(expected), found=len(expected & found))]

    def close(self) -> None:
        """Nothing is held."""


class Webhook:
    """HTTP: an endpoint that the server calls, whoever the server is."""

    TOPIC, NAME, SENT = "invoices", "demo-hook", 5

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._sink, self._url = open_sink(lambda _event: self._calls.put(None))

    def make(self, ports: Ports) -> None:
        wanted = {"topic": self.TOPIC, "sink": self._url}
        call(ports["http"], "PUT", f"/subscriptions/{self.NAME}", wanted)
        assert self._count_calls(ports) == self.SENT, "the webhook was not called"

    def _count_calls(self, ports: Ports) -> int:
        """Publish, and see how many calls come."""
        for number in range(self.SENT):
            call(ports["http"], "POST", f"/topics/{self.TOPIC}", number)
        came = 0
        with contextlib.suppress(queue.Empty):
            while came < self.SENT:
                self._calls.get(timeout=WAIT_SECONDS_MAX)
                came += 1
        return came

    def check(self, ports: Ports) -> list[Checked]:
        what = "HTTP: a webhook, called by the new master"
        return [Checked(what=what, promised=self.SENT, found=self._count_calls(ports))]

    def close(self) -> None:
        self._sink.shutdown()
        self._sink.server_close()


PARTS: tuple[type[Part], ...] = (WorkQueue, Session, Group, Subscription, Webhook)
