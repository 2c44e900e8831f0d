"""What MQTT clients do while the paced clients are measured."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Sequence
from typing import Final

from benchmarks.fairness_stage import (
    LARGE_BYTES,
    LARGE_COUNT,
    SECONDS_MAX,
    Measured,
    Stage,
    read_until,
)
from benchmarks.fairness_wire import (
    RECEIVE_BYTES,
    expect,
    mqtt_connect,
    mqtt_packet,
    mqtt_publish,
    mqtt_subscribe,
    mqtt_unsubscribe,
)
from benchmarks.machine import HOST

FANOUT_SUBSCRIBERS: Final = 5_000
SESSIONS: Final = 10_000


def flood(stage: Stage) -> Measured:
    """Fifty publishers of QoS 1 with a window of 100, four subscribers."""

    def run() -> None:
        load = stage.generate(
            *("mqttgen", "mqtt", "-q", "1", "-P", "50", "-S", "4", "-w", "100", "-W", "5000")
        )
        stage.wait(load)

    return run


def new_topics(stage: Stage) -> Measured:
    """50,000 messages to as many new first-level topics, as quickly as the socket takes them."""
    return lambda: _publish_each(
        stage, [f"fairness-new-{number}/x" for number in range(stage.sized(50_000))]
    )


def new_tags(stage: Stage) -> Measured:
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


def once(stage: Stage) -> Measured:
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


def acks(stage: Stage) -> Measured:
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
            until = time.monotonic() + SECONDS_MAX
            while done < count:
                if time.monotonic() > until:
                    raise TimeoutError(f"{count - done} messages were not delivered")
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


def subscriptions(stage: Stage) -> Measured:
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


def fanout(stage: Stage) -> Measured:
    """Five messages, each to 5,000 subscribers."""
    return _to_all(stage, rounds=5, count=1)


def fanout_run(stage: Stage) -> Measured:
    """200 messages in one piece to 5,000 subscribers."""
    return _to_all(stage, rounds=1, count=200)


def _to_all(stage: Stage, *, rounds: int, count: int) -> Measured:
    subscribers = [
        stage.mqtt(f"fairness-sub-{number}") for number in range(stage.sized(FANOUT_SUBSCRIBERS))
    ]
    for each in subscribers:
        each.sendall(mqtt_subscribe(["fairness-all"]))
    for each in subscribers:
        expect(each, 5)
    publisher = stage.mqtt("fairness-load")
    messages = mqtt_publish("fairness-all", b"x" * 20) * count

    def measured() -> None:
        for _ in range(rounds):
            publisher.sendall(messages)
            read_until(subscribers, [len(messages)] * len(subscribers))

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


def large(stage: Stage) -> Measured:
    """Twenty bodies of 16 MiB."""
    opened = stage.mqtt("fairness-load")
    message = mqtt_publish("fairness-large", b"x" * LARGE_BYTES, packet_id=1)

    def measured() -> None:
        for _ in range(stage.sized(LARGE_COUNT)):
            opened.sendall(message)
            expect(opened, 4)

    return measured
