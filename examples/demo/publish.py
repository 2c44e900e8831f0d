"""A publisher of the demo: one process, one protocol. But for RocketMQ the library is not ours.

`python -m examples.demo.publish PROTOCOL PORT SEED COUNT` sends COUNT messages, each after the
acknowledgement of the one before. COUNT 0 sends without end, several at a time where the library
can, until the server is gone. One line of JSON on stdout for each acknowledgement.
"""

from __future__ import annotations

import http.client
import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator

import paho.mqtt.client as mqtt
import pika
from cloudevents.core.bindings.http import to_binary, to_structured
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from paho.mqtt.enums import CallbackAPIVersion

from examples.demo.messages import CONTENT_TYPE, TOPIC, Item, plan, stream_item
from examples.demo.rocketmq import publish_rocketmq
from examples.demo.workers import HOST, say, say_acked
from polymq.remoting.errors import Unreachable

WINDOW = 100
"""Messages that the MQTT client has under way at once in the endless plan."""
ACK_SECONDS_MAX = 30.0
GONE = (
    OSError,
    http.client.HTTPException,
    pika.exceptions.AMQPError,
    Unreachable,
)
"""What the libraries raise when the server dies."""


def publish_mqtt(port: int, items: Iterator[Item], window: int) -> None:
    """paho: QoS 1, so the acknowledgement is PUBACK."""
    client = mqtt.Client(
        CallbackAPIVersion.VERSION2, client_id="demo-publisher", reconnect_on_failure=False
    )
    client.max_inflight_messages_set(window)
    room = threading.Semaphore(window)
    gone = threading.Event()
    under_way: dict[int, tuple[Item, float]] = {}
    early: set[int] = set()  # acknowledged before we noted that they were sent
    lock = threading.Lock()

    def acked(_client: object, _data: object, mid: int, *_: object) -> None:
        with lock:
            known = under_way.pop(mid, None)
            if known is None:
                early.add(mid)
        if known is not None:
            say_acked(known[0].tag, known[1])
            room.release()

    def disconnected(*_: object) -> None:
        gone.set()
        room.release()

    client.on_publish = acked
    client.on_disconnect = disconnected
    client.connect(HOST, port)
    client.loop_start()
    for item in items:
        assert room.acquire(timeout=ACK_SECONDS_MAX), "no PUBACK came"
        if gone.is_set():
            raise ConnectionError("the server is gone")
        body, sent = item.body(), time.monotonic()
        # paho holds a lock of its own in `publish` and in callbacks: never call it with ours.
        mid = client.publish(f"{TOPIC}/{item.tag.replace('.', '/')}", body, qos=1).mid
        with lock:
            acked_already = mid in early
            early.discard(mid)
            if not acked_already:
                under_way[mid] = item, sent
        if acked_already:
            say_acked(item.tag, sent)
            room.release()
    for _ in range(window):
        assert room.acquire(timeout=ACK_SECONDS_MAX), "no PUBACK came"
    client.disconnect()
    client.loop_stop()


def publish_amqp(port: int, items: Iterator[Item], _window: int) -> None:
    """pika's blocking connection with publisher confirms: basic_publish returns on the confirm."""
    connection = pika.BlockingConnection(pika.ConnectionParameters(HOST, port))
    channel = connection.channel()
    channel.exchange_declare(TOPIC, "topic", durable=True)
    channel.confirm_delivery()
    for item in items:
        body = item.body()
        sent = time.monotonic()
        channel.basic_publish(
            TOPIC,
            item.tag,
            body,
            pika.BasicProperties(
                content_type=CONTENT_TYPE,
                message_id=item.identity,
                delivery_mode=2,
                headers={"kind": item.kind, "number": item.number},
            ),
        )
        say_acked(item.tag, sent)
    connection.close()


def publish_http(port: int, items: Iterator[Item], _window: int) -> None:
    """The CloudEvents SDK makes the request, binary and structured mode in turn; 2xx is the ack."""
    connection = http.client.HTTPConnection(HOST, port, timeout=ACK_SECONDS_MAX)
    for item in items:
        event = CloudEvent(
            {
                "id": item.identity,
                "source": "/demo",
                "type": item.tag,
                "datacontenttype": CONTENT_TYPE,
                "kind": item.event_kind,
            },
            item.body(),
        )
        encode = to_structured if item.number % 2 else to_binary
        message = encode(event, JSONFormat())
        sent = time.monotonic()
        connection.request("POST", f"/topics/{TOPIC}", message.body, message.headers)
        answer = connection.getresponse()
        content = answer.read()
        if answer.status >= 300:
            raise RuntimeError(f"HTTP {answer.status}: {content.decode(errors='replace')}")
        say_acked(item.tag, sent)
    connection.close()


PUBLISHERS: dict[str, Callable[[int, Iterator[Item], int], None]] = {
    "mqtt": publish_mqtt,
    "amqp": publish_amqp,
    "http": publish_http,
    "rocketmq": publish_rocketmq,
}


def main(protocol: str, port: int, seed: int, count: int) -> None:
    """Send the plan, or the endless one until the server is gone."""
    publisher = PUBLISHERS[protocol]
    if count:
        publisher(port, iter(plan(protocol, count, seed)), 1)
        return
    sent = 0

    def endless() -> Iterator[Item]:
        nonlocal sent
        for sent in itertools.count(1):
            yield stream_item(protocol, sent - 1, seed)

    try:
        publisher(port, endless(), WINDOW)
    except GONE:
        say(event="gone", sent=sent)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
