"""Metrics and spans at a real collector of OpenTelemetry, and traces from client to client."""

from __future__ import annotations

import json
import queue
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pika
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from interop_tests import otlp_collector
from interop_tests.conftest import Server, StartServer
from interop_tests.otlp_collector import Collector
from interop_tests.people import polymq
from interop_tests.remoting_wire import Client, consumer

SECONDS_MAX = 20.0
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"
NOT_SAMPLED = f"00-{TRACE}-{SPAN}-00"
STATE = "vendor=1"
PRODUCER, CONSUMER = 4, 5
"""Kinds of spans."""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with otlp_collector.running() as made:
        yield made


def with_telemetry(start_server: StartServer, collector: Collector, **more: object) -> Server:
    options = {"telemetry.endpoint": collector.url, "telemetry.traces": True}
    return start_server(**options, **{f"telemetry.{name}": value for name, value in more.items()})


# --- clients ----------------------------------------------------------------------------------


@contextmanager
def amqp(server: Server) -> Iterator[Any]:
    connection = pika.BlockingConnection(pika.ConnectionParameters(server.host, server.amqp_port))
    channel = connection.channel()
    channel.confirm_delivery()
    yield channel
    connection.close()


@contextmanager
def mqtt(
    server: Server, client_id: str, topic_filter: str = ""
) -> Iterator[tuple[Any, queue.Queue[Any]]]:
    """A client of MQTT 5 with a session that stays, and what arrives at it."""
    inbox: queue.Queue[Any] = queue.Queue()
    done: queue.Queue[str] = queue.Queue()
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id, protocol=paho.MQTTv5)
    client.on_message = lambda _client, _data, message: inbox.put(message)
    client.on_connect = lambda *_: done.put("connected")
    client.on_subscribe = lambda *_: done.put("subscribed")
    stays: Any = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    stays.SessionExpiryInterval = 3600
    client.connect(server.host, server.mqtt_port, clean_start=False, properties=stays)
    client.loop_start()
    assert done.get(timeout=SECONDS_MAX) == "connected"
    if topic_filter:
        client.subscribe(topic_filter, qos=1)
        assert done.get(timeout=SECONDS_MAX) == "subscribed"
    yield client, inbox
    client.disconnect()
    client.loop_stop()


def call(server: Server, method: str, path: str, body: Any = None, **headers: str) -> Any:
    """A request to the HTTP port; the decoded answer."""
    request = urllib.request.Request(
        f"http://{server.host}:{server.http_port}{path}",
        None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode(),
        {name.replace("_", "-"): value for name, value in headers.items()},
        method=method,
    )
    with urllib.request.urlopen(request, timeout=SECONDS_MAX) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def publish_by_amqp(server: Server, parent: str) -> None:
    with amqp(server) as channel:
        channel.exchange_declare("orders", "topic", durable=True)
        headers = {"traceparent": parent, "tracestate": STATE}
        properties = pika.BasicProperties(message_id="m1", headers=headers, delivery_mode=2)
        channel.basic_publish("orders", "new", b"body", properties)


def publish_by_mqtt(server: Server, parent: str) -> None:
    properties: Any = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    properties.UserProperty = [("traceparent", parent), ("tracestate", STATE)]
    with mqtt(server, "publisher") as (client, _):
        sent = client.publish("orders/new", b"body", qos=1, properties=properties)
        sent.wait_for_publish(SECONDS_MAX)


def publish_by_http(server: Server, parent: str) -> None:
    attributes = {"ce_specversion": "1.0", "ce_id": "m1", "ce_source": "/s", "ce_type": "new"}
    traced = {"ce_traceparent": parent, "ce_tracestate": STATE}
    call(server, "POST", "/topics/orders", b"body", **attributes, **traced)


def publish_by_rocketmq(server: Server, parent: str) -> None:
    with Client(server.host, server.rocketmq_port) as client:
        traced = {"traceparent": parent, "tracestate": STATE}
        done = client.publish("orders", b"body", TAGS="new", UNIQ_KEY="m1", **traced)  # type: ignore[arg-type]
        assert done.code == 0


PUBLISHERS: dict[str, Callable[[Server, str], None]] = {
    "amqp": publish_by_amqp,
    "mqtt": publish_by_mqtt,
    "http": publish_by_http,
    "rocketmq": publish_by_rocketmq,
}


class Readers:
    """A consumer of each protocol, each of which acknowledges what it reads."""

    def __init__(self, server: Server, channel: Any, inbox: queue.Queue[Any]) -> None:
        self.server = server
        self.channel = channel
        self.inbox = inbox

    def read(self) -> dict[str, tuple[object, object]]:
        """Trace context of the next message, by the protocol that reads it."""
        return {
            "amqp": self._amqp(),
            "mqtt": self._mqtt(),
            "http": self._http(),
            "rocketmq": self._rocketmq(),
        }

    def _amqp(self) -> tuple[object, object]:
        for method, properties, _ in self.channel.consume("work", inactivity_timeout=SECONDS_MAX):
            assert method is not None, "nothing came to the queue"
            self.channel.basic_ack(method.delivery_tag)
            self.channel.cancel()
            return properties.headers["traceparent"], properties.headers["tracestate"]
        raise AssertionError("the consumer was cancelled")

    def _mqtt(self) -> tuple[object, object]:
        found = dict(self.inbox.get(timeout=SECONDS_MAX).properties.UserProperty)
        return found["traceparent"], found["tracestate"]

    def _http(self) -> tuple[object, object]:
        path = "/topics/orders/subscriptions/shop"
        (found,) = call(self.server, "POST", f"{path}:receive?maxEvents=1&maxWaitTime=20")["value"]
        tokens = {"lockTokens": [found["brokerProperties"]["lockToken"]]}
        call(self.server, "POST", f"{path}:acknowledge", tokens)
        return found["event"]["traceparent"], found["event"]["tracestate"]

    def _rocketmq(self) -> tuple[object, object]:
        with Client(self.server.host, self.server.rocketmq_port) as client:
            client.beat("reader", consumers=[consumer("readers", "orders")])
            _, (message, *_) = client.pull("orders", wait_ms=15_000)
            client.ask(15, consumerGroup="readers", topic="orders", queueId=0, commitOffset=1)
        return message.properties["traceparent"], message.properties["tracestate"]


@contextmanager
def readers(server: Server) -> Iterator[Readers]:
    with amqp(server) as channel, mqtt(server, "reader", "orders/#") as (_, inbox):
        channel.exchange_declare("orders", "topic", durable=True)
        channel.queue_declare("work", durable=True)
        channel.queue_bind("work", "orders", "#")
        call(server, "PUT", "/subscriptions/shop", {"topic": "orders"})
        yield Readers(server, channel, inbox)


# --- what is read of it -----------------------------------------------------------------------


def attributes_of(span: Any) -> dict[str, Any]:
    found = {}
    for pair in span.attributes:
        found[pair.key] = getattr(pair.value, pair.value.WhichOneof("value"))
    return found


def next_span(collector: Collector) -> Any:
    return collector.spans.get(timeout=SECONDS_MAX)


def samples_of(server: Server) -> set[str]:
    """What stands before the values of `/metrics`, without its comments."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.admin_port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return {line.rpartition(" ")[0] for line in lines if not line.startswith("#")}


def value_of(server: Server, sample: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.admin_port}/metrics") as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(f"{sample} "):
                return float(line.rpartition(" ")[2])
    raise AssertionError(f"there is no {sample}")


def until(server: Server, sample: str, least: float) -> None:
    """Ask until the metric has grown so far."""
    end = time.monotonic() + SECONDS_MAX
    while value_of(server, sample) < least:
        assert time.monotonic() < end, f"{sample} stays below {least}"


# --- traces -----------------------------------------------------------------------------------


@pytest.mark.parametrize("publisher", PUBLISHERS)
def test_a_trace_goes_from_each_protocol_to_each_and_has_spans(
    start_server: StartServer, collector: Collector, publisher: str
) -> None:
    """The publish is a span, and so is what each consumer has acknowledged."""
    server = with_telemetry(start_server, collector)
    with readers(server) as all_readers:
        PUBLISHERS[publisher](server, PARENT)
        assert all_readers.read() == dict.fromkeys(PUBLISHERS, (PARENT, STATE))
        published = next_span(collector)
        delivered = [next_span(collector) for _ in range(4)]
    for span in (published, *delivered):
        assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, SPAN)
        assert span.trace_state == STATE
        assert len(span.span_id) == 8
        assert span.flags & 1
        said = attributes_of(span)
        assert said["messaging.system"] == "polymq"
        assert said["messaging.destination.name"] == "orders"
        assert said["polymq.protocol"].startswith(publisher)
        assert said["messaging.message.body.size"] == 4
        if publisher != "mqtt":
            assert said["messaging.message.id"] == "m1"
    assert (published.kind, published.name) == (PRODUCER, "publish orders")
    assert attributes_of(published)["messaging.operation.type"] == "send"
    assert {(span.kind, span.name) for span in delivered} == {(CONSUMER, "deliver orders")}
    ends = [attributes_of(span) for span in delivered]
    groups = {found.get("messaging.consumer.group.name") for found in ends}
    assert groups == {"work", "shop", "readers", None}
    assert {found.get("messaging.client.id") for found in ends} == {"reader", None}
    for span in delivered:
        assert span.start_time_unix_nano == published.start_time_unix_nano
        assert span.end_time_unix_nano >= span.start_time_unix_nano


def test_what_is_not_sampled_has_no_spans(start_server: StartServer, collector: Collector) -> None:
    server = with_telemetry(start_server, collector)
    for publish in PUBLISHERS.values():
        publish(server, NOT_SAMPLED)
        publish(server, "no-trace")
    publish_by_http(server, PARENT)
    assert attributes_of(next_span(collector))["polymq.protocol"] == "http"
    assert collector.spans.empty()


def test_spans_beyond_the_bound_are_dropped_and_counted(
    start_server: StartServer, collector: Collector
) -> None:
    server = with_telemetry(start_server, collector, spans_per_second_max=1)
    events = [
        {
            "specversion": "1.0",
            "id": f"m{number}",
            "source": "/s",
            "type": "new",
            "traceparent": PARENT,
        }
        for number in range(50)
    ]
    batch = "application/cloudevents-batch+json"
    call(server, "POST", "/topics/orders", events, Content_Type=batch)
    next_span(collector)
    until(server, 'polymq_telemetry_spans_dropped_total{reason="rate"}', 40)


# --- metrics ----------------------------------------------------------------------------------


def test_the_collector_gets_the_metrics_of_the_server(
    start_server: StartServer, collector: Collector, tmp_path: Path
) -> None:
    """By the names and labels of `/metrics`, with the header of the operator."""
    header = tmp_path / "header"
    header.write_text("X-Tenant: 0123456789abcdef\n")
    header.chmod(0o600)
    server = with_telemetry(start_server, collector, header_file=header, interval_seconds=1)
    publish_by_http(server, PARENT)
    collector.metrics.get(timeout=SECONDS_MAX)
    found = collector.metrics.get(timeout=SECONDS_MAX)
    resource = {pair.key: pair.value.string_value for pair in found.resource.attributes}
    assert resource["service.name"] == "polymq"
    assert resource["service.instance.id"] == "broker-a"
    sent: set[str] = set()
    for metric in found.scope_metrics[0].metrics:
        kind = metric.WhichOneof("data")
        for point in getattr(metric, kind).data_points:
            labels = ",".join(
                sorted(f'{pair.key}="{pair.value.string_value}"' for pair in point.attributes)
            )
            if kind == "histogram":
                assert len(point.bucket_counts) == len(point.explicit_bounds) + 1
                assert sum(point.bucket_counts) == point.count
                sent.add(f"{metric.name}_count")
            else:
                sent.add(f"{metric.name}{{{labels}}}" if labels else metric.name)
    parts = ("_bucket", "_sum")  # of histograms
    assert sent == {one for one in samples_of(server) if not one.split("{")[0].endswith(parts)}
    assert collector.headers["x-tenant"] == "0123456789abcdef"
    assert collector.headers["content-type"] == "application/x-protobuf"


def test_a_collector_that_hangs_or_vanishes_holds_nothing(
    start_server: StartServer, collector: Collector
) -> None:
    """Clients are served, the failure is counted and logged once, and spans come later."""
    collector.hangs = True
    server = with_telemetry(start_server, collector, timeout_seconds=0.2, metrics=False)
    publish_by_http(server, PARENT)
    until(server, 'polymq_telemetry_requests_total{result="failed",signal="traces"}', 2)
    publish_by_mqtt(server, PARENT)
    collector.hangs = False
    said = [attributes_of(next_span(collector))["polymq.protocol"] for _ in range(2)]
    assert said[0] == "http"
    log = server.log_path.read_text()
    assert log.count("the collector does not take traces") == 1
    until(server, 'polymq_telemetry_requests_total{result="sent",signal="traces"}', 1)


def test_a_reload_sends_to_another_collector(
    start_server: StartServer, collector: Collector, tmp_path: Path
) -> None:
    """With another header, which nobody is shown, and at another pace, from the next request on."""
    header, file = tmp_path / "header", tmp_path / "polymq.toml"

    def configure(url: str, tenant: str, interval_seconds: int) -> None:
        header.write_text(f"X-Tenant: {tenant}\n")
        header.chmod(0o600)
        file.write_text(
            f"[telemetry]\nendpoint = '{url}'\nheader_file = '{header}'\ntraces = true\n"
            f"interval_seconds = {interval_seconds}\n"
        )

    configure(collector.url, "0123456789abcdef", 3600)
    server = start_server(environment={"POLYMQ_CONFIG": str(file)})
    publish_by_http(server, PARENT)
    next_span(collector)
    assert collector.headers["x-tenant"] == "0123456789abcdef"
    with otlp_collector.running() as other:
        configure(other.url, "fedcba9876543210", 1)
        done = polymq(server, "reload")
        assert done.returncode == 0, done.stderr
        assert "telemetry.endpoint" in done.stdout
        assert "fedcba" not in done.stdout
        publish_by_http(server, PARENT)
        next_span(other)
        assert other.headers["x-tenant"] == "fedcba9876543210"
        other.metrics.get(timeout=SECONDS_MAX)
    assert collector.spans.empty()


def test_a_server_with_a_collector_that_hangs_stops_at_once(
    start_server: StartServer, collector: Collector
) -> None:
    collector.hangs = True
    server = with_telemetry(start_server, collector, timeout_seconds=60, interval_seconds=1)
    publish_by_http(server, PARENT)
    collector.asked.get(timeout=SECONDS_MAX)
    server.process.terminate()
    assert server.process.wait(SECONDS_MAX) == 0


def test_what_a_collector_refuses_is_dropped_and_counted(
    start_server: StartServer, collector: Collector
) -> None:
    collector.status = 400
    server = with_telemetry(start_server, collector, metrics=False)
    publish_by_http(server, PARENT)
    until(server, 'polymq_telemetry_spans_dropped_total{reason="refused"}', 1)
    collector.status, collector.rejected = 200, 1
    publish_by_http(server, PARENT)
    until(server, 'polymq_telemetry_rejected_total{signal="traces"}', 1)
