"""What clients do to a server while the paced ones are measured: floods, and single requests that
are large.

Each case has a part that prepares, which is not measured, and a part that is. Sizes are those at
which a broker that handles a read or an event as a whole stops for a second.
"""

from __future__ import annotations

import contextlib
import select
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from benchmarks.errors import BenchmarkFailed
from benchmarks.fairness_wire import (
    RECEIVE_BYTES,
    AmqpSpeaker,
    amqp_publish,
    expect,
    mqtt_connect,
    mqtt_packet,
    mqtt_publish,
    mqtt_subscribe,
    mqtt_unsubscribe,
    rocketmq_send,
)
from benchmarks.generators import BUILT
from benchmarks.machine import HOST, pinned
from benchmarks.scenarios import Protocol
from gateways.amqp import spec
from gateways.amqp.methods import method_frame
from gateways.amqp.tables import encode_sized_table

SECONDS_MAX: Final = 180.0
FANOUT_QUEUES: Final = 10_000
FANOUT_SUBSCRIBERS: Final = 5_000
SESSIONS: Final = 10_000
BACKLOG: Final = 1_000_000
LARGE_BYTES: Final = 4_000_000
"""Nearly the largest message that the store takes."""


class Stage:
    """A server that is under load.

    Args:
        ports: of the server, by protocol.
        scale: what the sizes are divided by.
    """

    def __init__(self, ports: Mapping[Protocol, int], *, scale: int, seconds: float) -> None:
        self.ports = ports
        self.scale = scale
        self.seconds = seconds
        self._stack = contextlib.ExitStack()

    def close(self) -> None:
        """Close what the case has opened."""
        self._stack.close()

    def sized(self, count: int) -> int:
        """A number of the case, at this scale."""
        return max(1, count // self.scale)

    def connect(self, protocol: Protocol) -> socket.socket:
        """A socket that is closed at the end of the case."""
        opened = socket.create_connection((HOST, self.ports[protocol]), timeout=SECONDS_MAX)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._stack.enter_context(opened)

    def mqtt(self, client_id: str, *, clean: bool = True) -> socket.socket:
        """A connected MQTT client."""
        opened = self.connect("mqtt")
        mqtt_connect(opened, client_id, clean=clean)
        return opened

    def amqp(self) -> AmqpSpeaker:
        """An AMQP client with a channel."""
        return AmqpSpeaker(self.connect("amqp"))

    def generate(self, name: str, protocol: Protocol, *options: str) -> subprocess.Popen[bytes]:
        """Start a generator."""
        command = [*pinned("generator"), "nice", "-n", "5", str(BUILT / name)]
        started = subprocess.Popen(
            [*command, "-p", str(self.ports[protocol]), "-s", str(self.seconds), *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._stack.callback(started.wait)
        self._stack.callback(started.terminate)
        return started


Measured = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the report.

    Attributes:
        protocol: what the load speaks; `all` where it speaks nothing. Servers that do not speak it
            are not measured.
        prepare: makes what the case needs, and returns the part that is measured.
        settings: of our server.
    """

    name: str
    title: str
    protocol: Protocol | Literal["all"]
    prepare: Callable[[Stage], Measured]
    settings: Mapping[str, str] = field(default_factory=dict)


# --- reads that hold much --------------------------------------------------------------------


def quiet(stage: Stage) -> Measured:
    """Nothing."""
    return lambda: time.sleep(stage.seconds)


def mqtt_flood(stage: Stage) -> Measured:
    """Fifty publishers of QoS 1 with a window of 100, four subscribers."""

    def run() -> None:
        load = stage.generate(
            *("mqttgen", "mqtt", "-q", "1", "-P", "50", "-S", "4", "-w", "100", "-W", "5000")
        )
        load.wait(SECONDS_MAX)

    return run


def amqp_flood(stage: Stage) -> Measured:
    """Fifty publishers with confirms, persistent, and four consumers."""

    def run() -> None:
        load = stage.generate(
            *("amqpgen", "amqp", "-P", "50", "-S", "4", "-f", "-D", "-w", "100", "-W", "5000")
        )
        load.wait(SECONDS_MAX)

    return run


def read_until(sockets: Sequence[socket.socket], sizes: Sequence[int]) -> None:
    """Until each socket has got so many bytes."""
    left = {opened.fileno(): (opened, size) for opened, size in zip(sockets, sizes, strict=True)}
    poller = select.epoll()
    for descriptor in left:
        poller.register(descriptor, select.EPOLLIN)
    until = time.monotonic() + SECONDS_MAX
    while left:
        events = poller.poll(1.0)
        if not events and time.monotonic() > until:
            raise BenchmarkFailed(f"{len(left)} clients wait for messages in vain")
        for descriptor, _ in events:
            opened, size = left[descriptor]
            size -= len(opened.recv(RECEIVE_BYTES))
            if size > 0:
                left[descriptor] = opened, size
            else:
                poller.unregister(descriptor)
                del left[descriptor]
    poller.close()


def amqp_catch_up(stage: Stage) -> Measured:
    """A million messages wait in a queue, and one consumer gets them."""
    count = stage.sized(BACKLOG)
    speaker = stage.amqp()
    speaker.declare("fairness-backlog", durable=True)
    speaker.confirm()
    run = amqp_publish("", "fairness-backlog", b"x" * 100, persistent=True) * 1000
    for number in range(count // 1000):
        speaker.socket.sendall(run)
        speaker.confirmed(1000 * number)
    speaker.confirmed(count)
    reader = stage.amqp()

    def measured() -> None:
        consume = spec.BasicConsume(queue="fairness-backlog", consumer_tag="c", no_ack=True)
        reader.call(consume)
        reader.receive(count * (71 + 100 + len("fairness-backlog")))

    return measured


def single_acks(stage: Stage) -> Measured:
    """60,000 messages are acknowledged one by one, the last first."""
    count = stage.sized(60_000)
    speaker = stage.amqp()
    speaker.declare("fairness-acks")
    run = amqp_publish("", "fairness-acks", b"")
    speaker.socket.sendall(run * count)
    speaker.declare("fairness-acks")
    reader = stage.amqp()
    consume = spec.BasicConsume(queue="fairness-acks", consumer_tag="c")
    reader.call(consume)
    reader.receive(count * 60)
    acks = b"".join(method_frame(1, spec.BasicAck(delivery_tag=tag)) for tag in range(count, 0, -1))

    def measured() -> None:
        reader.socket.sendall(acks)
        reader.declare("fairness-acks")

    return measured


def to_many_queues(stage: Stage) -> Measured:
    """Ten times 1,000 publishes to 1,000 queues in one piece."""
    names = [f"fairness-one-{number}" for number in range(stage.sized(1000))]
    speaker = stage.amqp()
    speaker.declare(*names, durable=True)
    speaker.confirm()
    publishes = b"".join(amqp_publish("", name, b"x" * 20, persistent=True) for name in names)

    def measured() -> None:
        for round_number in range(10):
            speaker.socket.sendall(publishes)
            speaker.confirmed(len(names) * (round_number + 1))

    return measured


def declare_queues(stage: Stage) -> Measured:
    """20,000 durable queues are declared in one piece, and deleted again."""
    names = [f"fairness-declared-{number}" for number in range(stage.sized(20_000))]
    speaker = stage.amqp()
    deletes = [spec.QueueDelete(queue=name) for name in names]

    def measured() -> None:
        speaker.declare(*names, durable=True)
        speaker.call(*deletes)

    return measured


def mqtt_new_topics(stage: Stage) -> Measured:
    """50,000 messages to as many new first-level topics, as quickly as the socket takes them."""
    return lambda: _publish_each(
        stage, [f"fairness-new-{number}/x" for number in range(stage.sized(50_000))]
    )


def mqtt_new_tags(stage: Stage) -> Measured:
    """50,000 messages to as many new topics below one first level."""
    return lambda: _publish_each(
        stage, [f"fairness-tags/{number}" for number in range(stage.sized(50_000))]
    )


def _publish_each(stage: Stage, topics: Sequence[str], *, retain: bool = False) -> None:
    opened = stage.mqtt("fairness-load")
    for first in range(0, len(topics), 10_000):
        part = topics[first : first + 10_000]
        data = [
            mqtt_publish(topic, b"x" * 20, packet_id=number + 1, retain=retain)
            for number, topic in enumerate(part)
        ]
        opened.sendall(b"".join(data))
        expect(opened, 4 * len(part))


def mqtt_once(stage: Stage) -> Measured:
    """30,000 messages of QoS 2 in one piece, and their PUBREL."""
    count = stage.sized(30_000)
    opened = stage.mqtt("fairness-load")
    publishes = b"".join(
        mqtt_packet(0x34, b"\x00\x0dfairness-once" + number.to_bytes(2, "big") + b"x")
        for number in range(1, count + 1)
    )
    releases = b"".join(b"\x62\x02" + number.to_bytes(2, "big") for number in range(1, count + 1))

    def measured() -> None:
        opened.sendall(publishes)
        expect(opened, 4 * count)
        opened.sendall(releases)
        expect(opened, 4 * count)

    return measured


def mqtt_acks(stage: Stage) -> Measured:
    """As many QoS 1 messages as a client may leave unacknowledged, acknowledged in reverse."""
    count = 8_000
    reader = stage.mqtt("fairness-reader", clean=False)
    reader.sendall(mqtt_subscribe(["fairness-acked/#"], 1))
    expect(reader, 5)
    publisher = stage.mqtt("fairness-load")
    publishes = b"".join(
        mqtt_publish("fairness-acked/x", b"", packet_id=number + 1) for number in range(count)
    )
    size = 2 + 2 + len("fairness-acked/x") + 2

    def measured() -> None:
        for _ in range(8):
            publisher.sendall(publishes)
            done = 0
            while done < count:
                got = bytearray()
                reader.settimeout(0.3)
                with contextlib.suppress(TimeoutError):
                    while True:
                        got += reader.recv(RECEIVE_BYTES)
                ids = [bytes(got[at + size - 2 : at + size]) for at in range(0, len(got), size)]
                done += len(ids)
                reader.sendall(b"".join(b"\x40\x02" + each for each in reversed(ids)))
            expect(publisher, 4 * count)

    return measured


def mqtt_subscriptions(stage: Stage) -> Measured:
    """A durable session subscribes to 10,000 filters, a thousand in a packet, and unsubscribes."""
    filters = [f"fairness-filter/{number}/+" for number in range(stage.sized(10_000))]
    opened = stage.mqtt("fairness-subscriber", clean=False)
    step = min(1000, len(filters))
    parts = [filters[first : first + step] for first in range(0, len(filters), step)]

    def measured() -> None:
        opened.sendall(b"".join(mqtt_subscribe(part, 1) for part in parts))
        expect(opened, len(parts) * (5 + step if step > 125 else 4 + step))
        opened.sendall(b"".join(mqtt_unsubscribe(part) for part in parts))
        expect(opened, len(parts) * 4)

    return measured


def http_batches(stage: Stage) -> Measured:
    """Ten batches of 4,000 events, each of a type of its own."""
    events = ",".join(
        f'{{"specversion":"1.0","id":"{number}","source":"/bench","type":"t{number}","data":1}}'
        for number in range(stage.sized(4_000))
    )
    body = f"[{events}]".encode()
    head = (
        f"POST /topics/fairness-batch HTTP/1.1\r\nHost: {HOST}\r\n"
        "Content-Type: application/cloudevents-batch+json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    opened = stage.connect("http")

    def measured() -> None:
        for _ in range(10):
            opened.sendall(head.encode() + body)
            if not opened.recv(RECEIVE_BYTES).startswith(b"HTTP/1.1 204"):
                raise BenchmarkFailed("the server did not take a batch of events")

    return measured


def rocketmq_sends(stage: Stage) -> Measured:
    """20,000 messages in one piece."""
    count = stage.sized(20_000)
    opened = stage.connect("rocketmq")
    sends = b"".join(rocketmq_send("fairness-sends", b"x" * 20, number) for number in range(count))

    def measured() -> None:
        writer = threading.Thread(target=opened.sendall, args=(sends,))
        writer.start()
        got = 0
        rest = b""
        while got < count:
            data = opened.recv(RECEIVE_BYTES)
            if not data:
                raise BenchmarkFailed("the server closed a connection of the load")
            rest += data
            at = 0
            while len(rest) - at >= (size := 4 + int.from_bytes(rest[at : at + 4], "big")) > 4:
                at += size
                got += 1
            rest = rest[at:]
        writer.join()

    return measured


# --- single events that are large --------------------------------------------------------------


def _fanout(stage: Stage, name: str, count: int) -> tuple[AmqpSpeaker, list[str]]:
    names = [f"{name}-{number}" for number in range(count)]
    speaker = stage.amqp()
    speaker.call(spec.ExchangeDeclare(exchange=name, type="fanout", durable=True))
    for first in range(0, count, 1000):
        part = names[first : first + 1000]
        speaker.declare(*part, durable=True)
        speaker.call(*(spec.QueueBind(queue=each, exchange=name) for each in part))
    return speaker, names


def fanout_publish(stage: Stage) -> Measured:
    """A fanout exchange with 10,000 queues gets 100 publishes in one piece."""
    speaker, _ = _fanout(stage, "fairness-fanout", stage.sized(FANOUT_QUEUES))
    speaker.confirm()
    publishes = amqp_publish("fairness-fanout", "", b"x" * 20, persistent=True) * 100

    def measured() -> None:
        speaker.socket.sendall(publishes)
        speaker.confirmed(100)

    return measured


def exchange_delete(stage: Stage) -> Measured:
    """An exchange with 10,000 bindings is deleted."""
    speaker, _ = _fanout(stage, "fairness-gone", stage.sized(FANOUT_QUEUES))
    return lambda: speaker.call(spec.ExchangeDelete(exchange="fairness-gone"))


def queue_delete(stage: Stage) -> Measured:
    """A queue with 10,000 wildcard bindings is deleted."""
    count = stage.sized(10_000)
    speaker = stage.amqp()
    speaker.call(spec.ExchangeDeclare(exchange="fairness-topics", type="topic", durable=True))
    speaker.declare("fairness-wild", durable=True)
    for first in range(0, count, 1000):
        speaker.call(
            *(
                spec.QueueBind(
                    queue="fairness-wild", exchange="fairness-topics", routing_key=f"a.*.{number}.#"
                )
                for number in range(first, min(first + 1000, count))
            )
        )
    return lambda: speaker.call(spec.QueueDelete(queue="fairness-wild"))


def mqtt_fanout(stage: Stage) -> Measured:
    """Five messages, each to 5,000 subscribers."""
    subscribers = [
        stage.mqtt(f"fairness-sub-{number}") for number in range(stage.sized(FANOUT_SUBSCRIBERS))
    ]
    for each in subscribers:
        each.sendall(mqtt_subscribe(["fairness-all"]))
    for each in subscribers:
        expect(each, 5)
    publisher = stage.mqtt("fairness-load")
    message = mqtt_publish("fairness-all", b"x" * 20)

    def measured() -> None:
        for _ in range(5):
            publisher.sendall(message)
            read_until(subscribers, [len(message)] * len(subscribers))

    return measured


def mqtt_fanout_run(stage: Stage) -> Measured:
    """200 messages in one piece to 5,000 subscribers."""
    subscribers = [
        stage.mqtt(f"fairness-sub-{number}") for number in range(stage.sized(FANOUT_SUBSCRIBERS))
    ]
    for each in subscribers:
        each.sendall(mqtt_subscribe(["fairness-all"]))
    for each in subscribers:
        expect(each, 5)
    publisher = stage.mqtt("fairness-load")
    message = mqtt_publish("fairness-all", b"x" * 20)

    def measured() -> None:
        publisher.sendall(message * 200)
        read_until(subscribers, [len(message) * 200] * len(subscribers))

    return measured


def offline_sessions(stage: Stage) -> Measured:
    """20 messages to 10,000 sessions that are away, each with `#`."""
    for number in range(stage.sized(SESSIONS)):
        opened = socket.create_connection((HOST, stage.ports["mqtt"]), timeout=SECONDS_MAX)
        with opened:
            mqtt_connect(opened, f"fairness-away-{number}", clean=False)
            opened.sendall(mqtt_subscribe(["fairness-away/#"], 1))
            expect(opened, 5)
    publisher = stage.mqtt("fairness-load")

    def measured() -> None:
        for number in range(20):
            publisher.sendall(mqtt_publish(f"fairness-away/{number}", b"x", packet_id=number + 1))
            expect(publisher, 4)

    return measured


def retained(stage: Stage) -> Measured:
    """100,000 retained messages, and a subscription to all of them."""
    count = stage.sized(100_000)
    topics = [f"fairness-kept/{number}" for number in range(count)]
    _publish_each(stage, topics, retain=True)
    reader = stage.mqtt("fairness-reader")

    def measured() -> None:
        reader.sendall(mqtt_subscribe(["fairness-kept/#"]))
        read_until([reader], [count * 38])

    return measured


def many_retained(stage: Stage) -> Measured:
    """A subscription of 1,000 filters over 100,000 retained messages."""
    count = stage.sized(100_000)
    _publish_each(stage, [f"fairness-kept/{number}" for number in range(count)], retain=True)
    reader = stage.mqtt("fairness-reader")

    def measured() -> None:
        filters = [f"fairness-kept/+/+/{number}" for number in range(1000)]
        reader.sendall(mqtt_subscribe(filters))
        expect(reader, 1005)

    return measured


def large_headers(stage: Stage) -> Measured:
    """100 publishes to a headers exchange with 1,000 bindings, each with a table of 100 KB."""
    speaker = stage.amqp()
    speaker.call(spec.ExchangeDeclare(exchange="fairness-headers", type="headers"))
    speaker.declare("fairness-headed")
    speaker.call(
        *(
            spec.QueueBind(
                queue="fairness-headed",
                exchange="fairness-headers",
                arguments={"x-match": "any", f"h{number}": number},
            )
            for number in range(stage.sized(1000))
        )
    )
    speaker.confirm()

    def publish(number: int) -> bytes:
        table = {f"k{index}": index + number for index in range(2_000)}
        return amqp_publish("fairness-headers", "", b"", headers=encode_sized_table(table))

    publishes = b"".join(publish(number) for number in range(100))

    def measured() -> None:
        speaker.socket.sendall(publishes)
        speaker.confirmed(100)

    return measured


def retention(stage: Stage) -> Measured:
    """A flood to topics that keep 16 MiB, in a log of small files."""
    return mqtt_flood(stage)


def checkpoints(stage: Stage) -> Measured:
    """A message to each of 20,000 queues again and again, while indexes are saved every second."""
    names = [f"fairness-saved-{number}" for number in range(stage.sized(20_000))]
    speaker = stage.amqp()
    for first in range(0, len(names), 1000):
        speaker.declare(*names[first : first + 1000], durable=True)
    speaker.confirm()
    publishes = [amqp_publish("", name, b"x" * 20, persistent=True) for name in names]

    def measured() -> None:
        count = 0
        for _ in range(3):
            for first in range(0, len(publishes), 500):
                part = publishes[first : first + 500]
                speaker.socket.sendall(b"".join(part))
                count += len(part)
                speaker.confirmed(count)

    return measured


def mqtt_large(stage: Stage) -> Measured:
    """Fifty bodies of 4 MiB."""
    return lambda: _send_large(stage)


def _send_large(stage: Stage) -> None:
    opened = stage.mqtt("fairness-load")
    for number in range(stage.sized(50)):
        opened.sendall(mqtt_publish("fairness-large", b"x" * LARGE_BYTES, packet_id=number + 1))
        expect(opened, 4)


def amqp_large(stage: Stage) -> Measured:
    """Fifty bodies of 4 MiB."""
    speaker = stage.amqp()
    speaker.declare("fairness-large", durable=True)
    speaker.confirm()
    message = amqp_publish("", "fairness-large", b"x" * LARGE_BYTES, persistent=True)

    def measured() -> None:
        for number in range(stage.sized(50)):
            speaker.socket.sendall(message)
            speaker.confirmed(number + 1)

    return measured


CASES: Final = (
    Case("quiet", "no load", "all", quiet),
    Case("mqtt-flood", "50 publishers of QoS 1, window 100", "mqtt", mqtt_flood),
    Case("amqp-flood", "50 publishers with confirms, window 100", "amqp", amqp_flood),
    Case("amqp-catch-up", "one consumer gets a backlog of 1,000,000", "amqp", amqp_catch_up),
    Case("amqp-acks", "60,000 single acks, the last first", "amqp", single_acks),
    Case("amqp-queues", "10 x 1,000 publishes to 1,000 queues", "amqp", to_many_queues),
    Case("amqp-declare", "20,000 durable queues declared and deleted", "amqp", declare_queues),
    Case("mqtt-topics", "50,000 publishes to new first levels", "mqtt", mqtt_new_topics),
    Case("mqtt-tags", "50,000 publishes to new topics", "mqtt", mqtt_new_tags),
    Case("mqtt-once", "30,000 of QoS 2 in one piece", "mqtt", mqtt_once),
    Case("mqtt-acks", "8 x 8,000 PUBACK in reverse", "mqtt", mqtt_acks),
    Case("mqtt-filters", "10,000 filters, 1,000 in a packet", "mqtt", mqtt_subscriptions),
    Case("http-batches", "10 batches of 4,000 events of 4,000 types", "http", http_batches),
    Case("rocketmq-sends", "20,000 sends in one piece", "rocketmq", rocketmq_sends),
    Case("amqp-fanout", "100 publishes to 10,000 queues", "amqp", fanout_publish),
    Case("amqp-exchange", "delete an exchange with 10,000 bindings", "amqp", exchange_delete),
    Case("amqp-wildcards", "delete a queue with 10,000 bindings", "amqp", queue_delete),
    Case("amqp-headers", "100 publishes with 2,000 headers each", "amqp", large_headers),
    Case("mqtt-fanout", "5 x one message to 5,000 subscribers", "mqtt", mqtt_fanout),
    Case("mqtt-fanout-run", "200 messages to 5,000 subscribers", "mqtt", mqtt_fanout_run),
    Case("mqtt-away", "20 messages to 10,000 sessions that are away", "mqtt", offline_sessions),
    Case("mqtt-retained", "100,000 retained messages are subscribed to", "mqtt", retained),
    Case("mqtt-kept-filters", "1,000 filters over them", "mqtt", many_retained),
    Case("mqtt-large", "50 bodies of 4 MB", "mqtt", mqtt_large),
    Case("amqp-large", "50 bodies of 4 MB", "amqp", amqp_large),
    Case(
        "retention",
        "a flood to topics that keep 16 MiB",
        "mqtt",
        retention,
        {
            "storage.segment_bytes": "16777216",
            "topics.retention_bytes": "16777216",
            "storage.retention_check_seconds": "1",
        },
    ),
    Case(
        "checkpoints",
        "60,000 messages to 20,000 queues, saved every second",
        "amqp",
        checkpoints,
        {"storage.save_seconds": "1"},
    ),
)
