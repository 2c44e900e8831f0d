"""A subscriber of the demo: one process, one protocol. But for RocketMQ the library is not ours.

`python -m examples.demo.subscribe PROTOCOL PORT NAME [--corrupt PUBLISHER]` subscribes durably
under NAME and tells each message that it gets as a line of JSON: its tag, the SHA-256 of its body,
and the attributes that it came with. It ends when its standard input is closed.

PROTOCOL is mqtt, amqp, webhook (the server calls us), poll (we ask the server) or rocketmq.
`--corrupt` spoils a byte of one publisher's messages after they came, to show that the demo would
notice. `declare` makes the durable subscription and reads nothing.
"""

from __future__ import annotations

import argparse
import http.client
import http.server
import json
import threading
from collections.abc import Callable
from typing import Any

import paho.mqtt.client as mqtt
import pika
from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.bindings.http import HTTPMessage, from_http
from cloudevents.core.formats.json import JSONFormat
from paho.mqtt.enums import CallbackAPIVersion

from examples.demo.messages import TOPIC, tag_of_path
from examples.demo.rocketmq import subscribe_rocketmq
from examples.demo.workers import HOST, Receiver, say, until_input_closes

READY_SECONDS_MAX = 30.0
POLL_SECONDS = 5
PREFETCH = 200


# --- MQTT -------------------------------------------------------------------------------------


def subscribe_mqtt(port: int, name: str, receiver: Receiver | None) -> None:
    """paho: a persistent session with a QoS 1 subscription to everything below the topic."""
    client = mqtt.Client(
        CallbackAPIVersion.VERSION2,
        client_id=name,
        clean_session=False,
        reconnect_on_failure=False,
    )
    subscribed = threading.Event()
    client.on_connect = lambda client, *_: client.subscribe(f"{TOPIC}/#", qos=1)
    client.on_subscribe = lambda *_: subscribed.set()

    def received(_client: object, _data: object, message: mqtt.MQTTMessage) -> None:
        if receiver is not None:
            receiver.received(
                tag_of_path(message.topic), bytes(message.payload), topic=message.topic
            )

    client.on_message = received
    client.connect(HOST, port)
    client.loop_start()
    assert subscribed.wait(READY_SECONDS_MAX), "no SUBACK came"
    if receiver is not None:
        say(event="ready")
        until_input_closes()
    client.disconnect()
    client.loop_stop()


# --- AMQP -------------------------------------------------------------------------------------


def subscribe_amqp(port: int, name: str, receiver: Receiver | None) -> None:
    """pika: a durable queue bound to the exchange, consumed with acknowledgements."""
    connection = pika.BlockingConnection(pika.ConnectionParameters(HOST, port))
    channel = connection.channel()
    channel.exchange_declare(TOPIC, "topic", durable=True)
    channel.queue_declare(name, durable=True)
    channel.queue_bind(name, TOPIC, "#")
    channel.basic_qos(prefetch_count=PREFETCH)

    def received(channel: Any, method: Any, properties: pika.BasicProperties, body: bytes) -> None:
        assert receiver is not None
        receiver.received(
            method.routing_key,
            body,
            exchange=method.exchange,
            content_type=properties.content_type,
            message_id=properties.message_id,
            **{name: (properties.headers or {}).get(name) for name in ("kind", "ce-kind")},
        )
        channel.basic_ack(method.delivery_tag)

    if receiver is None:
        connection.close()
        return
    channel.basic_consume(name, received)

    def stop() -> None:
        until_input_closes()
        connection.add_callback_threadsafe(channel.stop_consuming)

    threading.Thread(target=stop, daemon=True).start()
    say(event="ready")
    channel.start_consuming()
    connection.close()


# --- CloudEvents over HTTP ----------------------------------------------------------------------


def call(port: int, method: str, path: str, value: object = None) -> Any:
    """One JSON request to the server; returns the JSON answer."""
    connection = http.client.HTTPConnection(HOST, port, timeout=READY_SECONDS_MAX + POLL_SECONDS)
    body = None if value is None else json.dumps(value)
    connection.request(method, path, body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    if answer.status >= 300:
        raise RuntimeError(f"HTTP {answer.status}: {content.decode(errors='replace')}")
    return json.loads(content) if content else None


def event_received(event: BaseCloudEvent, receiver: Receiver) -> None:
    """Tell about an event that the SDK has parsed."""
    data = event.get_data()
    # The SDK gives text for bytes that happen to be UTF-8, and nothing for none at all.
    body = data.encode() if isinstance(data, str) else data or b""
    assert isinstance(body, bytes)
    receiver.received(
        event.get_type(),
        body,
        id=event.get_id(),
        source=event.get_source(),
        content_type=event.get_datacontenttype(),
        kind=event.get_extension("kind"),
    )


def open_sink(
    received: Callable[[BaseCloudEvent], None],
) -> tuple[http.server.ThreadingHTTPServer, str]:
    """A webhook's endpoint in a thread of its own, and its URL. Consent is asked for by OPTIONS,
    then each event comes as a POST."""

    class Sink(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_OPTIONS(self) -> None:
            self.send_response(200)
            self.send_header("WebHook-Allowed-Origin", self.headers["WebHook-Request-Origin"])
            self.send_header("WebHook-Allowed-Rate", "*")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            message = HTTPMessage(headers=dict(self.headers.items()), body=body)
            received(from_http(message, JSONFormat()))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Not on stderr."""

    sink = http.server.ThreadingHTTPServer((HOST, 0), Sink)
    sink.daemon_threads = True
    threading.Thread(target=sink.serve_forever, daemon=True).start()
    return sink, f"http://{HOST}:{sink.server_port}/events"


def subscribe_webhook(port: int, name: str, receiver: Receiver | None) -> None:
    """The server calls us."""
    assert receiver is not None
    sink, url = open_sink(lambda event: event_received(event, receiver))
    call(port, "PUT", f"/subscriptions/{name}", {"topic": TOPIC, "sink": url})
    say(event="ready")
    until_input_closes()
    call(port, "DELETE", f"/subscriptions/{name}")
    sink.shutdown()


def subscribe_poll(port: int, name: str, receiver: Receiver | None) -> None:
    """We ask the server: receive, then acknowledge."""
    call(port, "PUT", f"/subscriptions/{name}", {"topic": TOPIC})
    if receiver is None:
        return
    say(event="ready")
    closed = threading.Event()

    def stop() -> None:
        until_input_closes()
        closed.set()

    threading.Thread(target=stop, daemon=True).start()
    here = f"/topics/{TOPIC}/subscriptions/{name}"
    while not closed.is_set():
        got = call(port, "POST", f"{here}:receive?maxEvents=100&maxWaitTime={POLL_SECONDS}")[
            "value"
        ]
        for item in got:
            text = json.dumps(item["event"]).encode()
            headers = {"content-type": JSONFormat().get_content_type()}
            event_received(from_http(HTTPMessage(headers, text), JSONFormat()), receiver)
        if got:
            tokens = [item["brokerProperties"]["lockToken"] for item in got]
            call(port, "POST", f"{here}:acknowledge", {"lockTokens": tokens})


SUBSCRIBERS: dict[str, Callable[[int, str, Receiver | None], None]] = {
    "mqtt": subscribe_mqtt,
    "amqp": subscribe_amqp,
    "webhook": subscribe_webhook,
    "poll": subscribe_poll,
    "rocketmq": subscribe_rocketmq,
}


def declare(protocol: str, port: int, name: str) -> None:
    """Make the durable subscription, and leave it alone."""
    SUBSCRIBERS[protocol](port, name, None)


def main() -> None:
    """Subscribe and tell what comes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("protocol", choices=SUBSCRIBERS)
    parser.add_argument("port", type=int)
    parser.add_argument("name")
    parser.add_argument("--corrupt")
    options = parser.parse_args()
    SUBSCRIBERS[options.protocol](options.port, options.name, Receiver(options.corrupt))


if __name__ == "__main__":
    main()
