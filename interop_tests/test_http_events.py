"""CloudEvents over HTTP from outside: the cloudevents SDK and the standard library's clients
publish and receive; other protocols see the same messages; a crash loses nothing acknowledged."""

from __future__ import annotations

import http.client
import json
import queue
import threading
from base64 import b64decode
from collections.abc import Iterator
from typing import Any

import paho.mqtt.client as paho
import pika
import pytest
from cloudevents.core.bindings import http as ce
from cloudevents.core.bindings import rabbitmq
from cloudevents.core.v1.event import CloudEvent
from paho.mqtt.enums import CallbackAPIVersion

from interop_tests.conftest import Server, StartServer

WAIT_SECONDS_MAX = 20.0
EVENT = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "order.created"}
BATCH = {"Content-Type": "application/cloudevents-batch+json"}


def call(
    server: Server, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    """One request with the standard library's client: status and decoded body."""
    data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    try:
        connection.request(method, path, data, headers or {})
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text else None
    finally:
        connection.close()


def subscribe(server: Server, topic: str = "orders", name: str = "s", **body: Any) -> None:
    status, answer = call(server, "PUT", f"/subscriptions/{name}", {"topic": topic, **body})
    assert status in (200, 201), answer


def receive(
    server: Server, count: int, topic: str = "orders", name: str = "s", *, settle: bool = True
) -> list[dict[str, Any]]:
    """Exactly so many events, however many polls it takes."""
    path = f"/topics/{topic}/subscriptions/{name}"
    got: list[dict[str, Any]] = []
    while len(got) < count:
        status, answer = call(server, "POST", f"{path}:receive?maxEvents=1000&maxWaitTime=20")
        assert status == 200, answer
        assert answer["value"], f"only {len(got)} of {count} events came"
        got += answer["value"]
    assert len(got) == count
    if settle:
        tokens = [one["brokerProperties"]["lockToken"] for one in got]
        status, answer = call(server, "POST", f"{path}:acknowledge", {"lockTokens": tokens})
        assert (status, answer["failedLockTokens"]) == (200, [])
    return got


@pytest.fixture
def server(shared_server: Server) -> Iterator[Server]:
    """One for all; a test that stops it starts its own. A subscription begins with what comes after
    it was made."""
    yield shared_server
    assert call(shared_server, "DELETE", "/subscriptions/s")[0] in (204, 404)


# --- the SDK as producer and as consumer ------------------------------------------------------

SDK_EVENTS = [
    CloudEvent({**EVENT, "id": "json", "datacontenttype": "application/json"}, {"a": [1, "é"]}),
    CloudEvent({**EVENT, "id": "text", "datacontenttype": "text/plain"}, "21.5 °C"),
    CloudEvent({**EVENT, "id": "none", "subject": "100% of €"}),
    CloudEvent({**EVENT, "id": "bytes", "datacontenttype": "image/png"}, b"\x89PNG\x00\xff"),
]


@pytest.mark.parametrize("mode", ["binary", "structured"])
def test_events_of_the_sdk_come_back_equal(server: Server, mode: str) -> None:
    """Published by the SDK in each mode, received as JSON, read by the SDK: the same events."""
    subscribe(server)
    write = ce.to_binary_event if mode == "binary" else ce.to_structured_event
    for event in SDK_EVENTS:
        message = write(event)
        status, answer = call(server, "POST", "/topics/orders", message.body, dict(message.headers))
        assert (status, answer) == (204, None)
    got = receive(server, len(SDK_EVENTS))
    for sent, found in zip(SDK_EVENTS, got, strict=True):
        body = json.dumps(found["event"]).encode()
        headers = {"content-type": "application/cloudevents+json"}
        found_event = ce.from_structured_event(ce.HTTPMessage(headers=headers, body=body))
        assert found_event.get_attributes() == sent.get_attributes()
        assert found_event.get_data() == sent.get_data()


def test_data_comes_back_byte_for_byte(server: Server) -> None:
    """Digits, escapes, white space, doubled members: what JSON libraries change stays."""
    subscribe(server)
    data = b'{"n": 1.10, "n":1e400,\t"s":"\\u00e9\\/", "deep":[[[]]]}'
    document = b'{"specversion":"1.0","id":"1","source":"/s","type":"t","data":' + data + b"}"
    headers = {"Content-Type": "application/cloudevents+json"}
    assert call(server, "POST", "/topics/orders", document, headers)[0] == 204
    connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    connection.request("POST", "/topics/orders/subscriptions/s:receive?maxWaitTime=20")
    assert data in connection.getresponse().read()
    connection.close()


def test_a_batch_keeps_its_order_through_pages(server: Server) -> None:
    subscribe(server)
    events = [{**EVENT, "id": str(n), "data": n} for n in range(2_500)]
    assert call(server, "POST", "/topics/orders", events, BATCH) == (204, None)
    got = receive(server, 2_500)
    assert [one["event"]["data"] for one in got] == list(range(2_500))


def test_a_bad_batch_is_refused_whole(server: Server) -> None:
    subscribe(server)
    events = [EVENT, {**EVENT, "time": "yesterday"}]
    status, problem = call(server, "POST", "/topics/orders", events, BATCH)
    assert (status, problem["errors"][0]["index"]) == (400, 1)
    assert call(server, "POST", "/topics/orders", [{**EVENT, "id": "good"}], BATCH)[0] == 204
    assert [one["event"]["id"] for one in receive(server, 1)] == ["good"]


# --- other protocols --------------------------------------------------------------------------


def test_an_mqtt_message_is_received_as_an_event(server: Server) -> None:
    subscribe(server, "sensors")
    client = paho.Client(CallbackAPIVersion.VERSION2, "device")
    client.connect("127.0.0.1", server.mqtt_port)
    client.loop_start()
    client.publish("sensors/room1/temp", b"21.5", qos=1).wait_for_publish(WAIT_SECONDS_MAX)
    (got,) = receive(server, 1, "sensors")
    client.disconnect()
    client.loop_stop()
    event = got["event"]
    assert event["type"] == "room1.temp"
    assert event["subject"] == "sensors/room1/temp"
    assert event["source"] == "/topics/sensors"
    assert b64decode(event["data_base64"]) == b"21.5"


def test_an_event_is_an_mqtt_message(server: Server) -> None:
    """Of type room1.temp on topic sensors: MQTT topic sensors/room1/temp, the data its payload."""
    messages: queue.Queue[paho.MQTTMessage] = queue.Queue()
    subscribed = threading.Event()
    client = paho.Client(CallbackAPIVersion.VERSION2, "screen")
    client.on_message = lambda _c, _u, message: messages.put(message)
    client.on_subscribe = lambda *_: subscribed.set()
    client.connect("127.0.0.1", server.mqtt_port)
    client.loop_start()
    client.subscribe("sensors/+/temp", qos=1)
    assert subscribed.wait(WAIT_SECONDS_MAX)
    events = [{**EVENT, "type": "room1.temp", "data": {"c": 21.5}}]
    assert call(server, "POST", "/topics/sensors", events, BATCH)[0] == 204
    message = messages.get(timeout=WAIT_SECONDS_MAX)
    client.disconnect()
    client.loop_stop()
    assert (message.topic, json.loads(message.payload)) == ("sensors/room1/temp", {"c": 21.5})


def test_amqp_and_events_meet(server: Server) -> None:
    """Exchange and routing key are topic and type, in both directions; the media type is kept."""
    subscribe(server)
    connection = pika.BlockingConnection(pika.ConnectionParameters(port=server.amqp_port))
    channel = connection.channel()
    channel.exchange_declare("orders", "topic", durable=True)
    channel.queue_declare("q", durable=True)
    channel.queue_bind("q", "orders", "order.*")
    channel.confirm_delivery()
    properties = pika.BasicProperties(content_type="application/json", delivery_mode=2)
    channel.basic_publish("orders", "order.paid", b'{"amount": 1.10}', properties)
    (got,) = receive(server, 1)
    assert got["event"]["type"] == "order.paid"
    assert got["event"]["datacontenttype"] == "application/json"
    assert got["event"]["data"] == {"amount": 1.10}
    call(server, "POST", "/topics/orders", [{**EVENT, "data": "x"}], BATCH)
    bodies = []
    for method, _, body in channel.consume("q", inactivity_timeout=WAIT_SECONDS_MAX):
        assert method is not None, "nothing came"
        bodies.append((method.routing_key, body))
        if len(bodies) == 2:
            break
    channel.cancel()
    channel.queue_delete("q")
    connection.close()
    assert bodies == [("order.paid", b'{"amount": 1.10}'), ("order.created", b'"x"')]


def test_events_of_the_sdk_over_amqp(server: Server) -> None:
    """RabbitMQ's binding in the SDK writes `ce-` headers: received over HTTP they are the events,
    and an event posted over HTTP has them in AMQP."""
    subscribe(server)
    connection = pika.BlockingConnection(pika.ConnectionParameters(port=server.amqp_port))
    channel = connection.channel()
    channel.exchange_declare("orders", "topic", durable=True)
    channel.queue_declare("q", durable=True)
    channel.queue_bind("q", "orders", "#")
    channel.confirm_delivery()
    sent = SDK_EVENTS[0]
    message = rabbitmq.to_binary_event(sent)
    properties = pika.BasicProperties(
        content_type=message.content_type, headers=dict(message.headers), delivery_mode=2
    )
    channel.basic_publish("orders", "order.created", message.body, properties)
    (got,) = receive(server, 1)
    assert got["event"] == {
        **EVENT,
        "id": "json",
        "datacontenttype": "application/json",
        "time": got["event"]["time"],
        "data": {"a": [1, "é"]},
    }
    call(server, "POST", "/topics/orders", [{**EVENT, "id": "x", "data": {"b": 2}}], BATCH)
    found = []
    for method, props, body in channel.consume("q", inactivity_timeout=WAIT_SECONDS_MAX):
        assert method is not None, "nothing came"
        found.append(
            rabbitmq.from_binary_event(
                rabbitmq.RabbitMQMessage(
                    headers=props.headers, content_type=props.content_type, body=body
                )
            )
        )
        if len(found) == 2:
            break
    channel.cancel()
    channel.queue_delete("q")
    connection.close()
    assert [(event.get_id(), event.get_data()) for event in found] == [
        ("json", {"a": [1, "é"]}),
        ("x", {"b": 2}),
    ]


# --- crashes and stops ------------------------------------------------------------------------


def test_what_was_acknowledged_survives_a_crash(start_server: StartServer) -> None:
    """SIGKILL after the last 204: every event, the subscription and its place are there."""
    server = start_server()
    subscribe(server, filters=[{"prefix": {"type": "order."}}])
    for n in range(50):
        events = [{**EVENT, "id": f"{n}-{k}"} for k in range(4)]
        assert call(server, "POST", "/topics/orders", events, BATCH)[0] == 204
    server.kill()
    server.restart()
    got = [one["event"]["id"] for one in receive(server, 200)]
    assert got == [f"{n}-{k}" for n in range(50) for k in range(4)]


def test_locked_events_come_again_after_a_crash(start_server: StartServer) -> None:
    """Received, not acknowledged: delivered again with a higher count; the old token is void."""
    server = start_server()
    subscribe(server)
    call(server, "POST", "/topics/orders", [{**EVENT, "id": n} for n in "ab"], BATCH)
    first = receive(server, 2, settle=False)
    server.kill()
    server.restart()
    again = receive(server, 2, settle=False)
    assert [one["event"]["id"] for one in again] == ["a", "b"]
    tokens = [first[0]["brokerProperties"]["lockToken"]]
    path = "/topics/orders/subscriptions/s:acknowledge"
    assert call(server, "POST", path, {"lockTokens": tokens})[1]["failedLockTokens"]


def test_acknowledged_events_stay_away_after_a_stop(start_server: StartServer) -> None:
    """SIGTERM saves what was settled; what was only locked comes again."""
    server = start_server()
    subscribe(server)
    call(server, "POST", "/topics/orders", [{**EVENT, "id": n} for n in "abc"], BATCH)
    first = receive(server, 3, settle=False)
    token = first[0]["brokerProperties"]["lockToken"]
    call(server, "POST", "/topics/orders/subscriptions/s:acknowledge", {"lockTokens": [token]})
    server.restart()
    got = receive(server, 2)
    assert [one["event"]["id"] for one in got] == ["b", "c"]
    assert got[0]["brokerProperties"]["deliveryCount"] == 2


@pytest.mark.slow
def test_delivery_counts_go_on_after_a_stop(start_server: StartServer) -> None:
    """Whether an event was locked or back in its place when SIGTERM came."""
    server = start_server()
    subscribe(server)
    path = "/topics/orders/subscriptions/s"
    call(server, "POST", "/topics/orders", [{**EVENT, "id": n} for n in "abc"], BATCH)
    for _ in range(3):
        got = receive(server, 3, settle=False)
        tokens = [one["brokerProperties"]["lockToken"] for one in got]
        call(server, "POST", f"{path}:release", {"lockTokens": tokens})
    for most in (4, 5):
        server.restart()
        got = receive(server, 3, settle=False)
        assert [one["event"]["id"] for one in got] == ["a", "b", "c"]
        assert [one["brokerProperties"]["deliveryCount"] for one in got] == [most] * 3


def test_a_long_poll_ends_with_the_server(start_server: StartServer) -> None:
    """SIGTERM: the waiting consumer gets an empty answer, not a cut connection."""
    server = start_server()
    subscribe(server)
    poll = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=60)
    poll.request("GET", "/healthz")
    poll.getresponse().read()
    poll.request("POST", "/topics/orders/subscriptions/s:receive?maxWaitTime=100")
    # A request on another connection is answered after the poll was taken up: one loop, in turn.
    assert call(server, "GET", "/healthz") == (200, {"status": "ok"})
    assert server.terminate() == 0
    answer = poll.getresponse()
    assert (answer.status, json.loads(answer.read())) == (200, {"value": []})
    poll.close()
