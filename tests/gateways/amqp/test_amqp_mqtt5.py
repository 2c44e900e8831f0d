"""Messages of MQTT 5 as AMQP clients get them: through the engine and the wire."""

from __future__ import annotations

from typing import Any

import pika
from hypothesis import given
from hypothesis import strategies as st

from polymq.broker.messages.mqtt_properties import write_block
from polymq.broker.port import MqttContent, RunMeta, read_mqtt_content, ttl_property
from polymq.core_log.kernels.batch import EXTRA_BASE64, Batch
from polymq.gateways.amqp import mapping, spec
from polymq.gateways.amqp.headers import AmqpHeaders
from tests.gateways.amqp.amqp_harness import Bench, Peer
from tests.harness.mqtt5 import stored


def publish(bench: Bench, topic: str, tag: str | None, *contents: MqttContent, **more: str) -> None:
    """Publish as the MQTT gateway does, one run whatever the properties are; bodies are numbers."""
    batch = Batch()
    batch.buffer = bytearray()
    for index, content in enumerate(contents):
        block = write_block(content)
        at = len(batch.buffer)
        batch.buffer += block + b"%d" % index
        batch.add((0, 0), (at + len(block), 1), (at, len(block)))
    template = bench.port.topics.template(
        bench.port.topics.route(topic, tag),
        properties={"PMQ_PROTO": "mqtt5", "PMQ_QOS": "1", **more},
        extra_kind=EXTRA_BASE64,
        extra_name="PMQ_MQTT5",
    )
    bench.port.publish(template, batch, 0, len(contents))
    bench.step()


def got(bench: Bench, peer: Peer, queue: str) -> list[tuple[bytes, pika.BasicProperties]]:
    """Everything that is ready in a queue, as pika reads it."""
    found: list[tuple[bytes, pika.BasicProperties]] = []
    while True:
        peer.ask(spec.BasicGet(queue=queue, no_ack=True))
        bench.step()
        (answer,) = peer.received()
        if isinstance(answer.method, spec.BasicGetEmpty):
            return found
        found.append((answer.body, pika.BasicProperties().decode(answer.properties)))


def with_queue(bench: Bench, **arguments: Any) -> Peer:
    """A client, and the queue `q` that gets what MQTT clients publish to `a/#`."""
    peer = bench.peer(1)
    named = {name.replace("_", "-"): value for name, value in arguments.items()}
    peer.ask(spec.QueueDeclare(queue="q", arguments=named))
    peer.ask(spec.QueueBind(queue="q", exchange="amq.topic", routing_key="a.#"))
    bench.step()
    peer.methods()
    return peer


WHOLE = MqttContent(
    payload_format=1,
    content_type="text/csv",
    response_topic="clients/7",
    correlation_data=b"c-1",
    expiry_seconds=60,
    user_properties=[("colour", "red"), ("n", "1"), ("colour", "blue"), ("colour", "")],
)


def test_each_message_of_a_run_has_its_own_properties(bench: Bench) -> None:
    """Also where one has none, and where a consumer gets them, not `basic.get`."""
    peer = with_queue(bench)
    publish(bench, "a", "b", WHOLE, MqttContent(), MqttContent(correlation_data=b"\xff"))
    peer.ask(spec.BasicConsume(queue="q", consumer_tag="c", no_ack=False))
    bench.step()
    delivered = [sent for sent in peer.received() if isinstance(sent.method, spec.BasicDeliver)]
    assert [sent.body for sent in delivered] == [b"0", b"1", b"2"]
    first, second, third = [pika.BasicProperties().decode(sent.properties) for sent in delivered]
    assert (first.content_type, first.reply_to, first.correlation_id, first.expiration) == (
        "text/csv",
        "clients.7",
        "c-1",
        "60000",
    )
    assert first.headers == {
        "colour": ["red", "blue", ""],
        "n": "1",
        "mqtt-payload-format": 1,
    }
    assert second == pika.BasicProperties(delivery_mode=2)
    assert third.headers == {"CORRELATION_ID": b"\xff"}


def test_a_dead_letter_of_mqtt_5_does_not_expire_any_more(bench: Bench) -> None:
    """Its expiration is in its history, as with messages of AMQP."""
    peer = with_queue(bench, x_dead_letter_exchange="", x_dead_letter_routing_key="dead")
    peer.ask(spec.QueueDeclare(queue="dead"))
    publish(bench, "a", "b", WHOLE, PMQ_X=ttl_property(60_000, 0))
    bench.step(61.0)
    peer.methods()
    ((_, properties),) = got(bench, peer, "dead")
    assert properties.expiration is None
    assert properties.headers["x-first-death-reason"] == "expired"
    assert properties.headers["x-death"][0]["original-expiration"] == "60000"
    assert properties.headers["colour"] == ["red", "blue", ""]
    assert (properties.reply_to, properties.correlation_id) == ("clients.7", "c-1")


def test_headers_exchanges_compare_user_properties(bench: Bench) -> None:
    """Each message of a run by its own; so does the broker when it moves one."""
    bench.broker.engine.topics.header_reader = AmqpHeaders()
    peer = bench.peer(1)
    peer.ask(spec.ExchangeDeclare(exchange="h", type="headers"))
    peer.ask(spec.QueueDeclare(queue="q"))
    peer.ask(spec.QueueBind(queue="q", exchange="h", arguments={"colour": "red"}))
    bench.step()
    peer.methods()
    red, blue = (MqttContent(user_properties=[("colour", name)]) for name in ("red", "blue"))
    publish(bench, "h", None, red, blue, MqttContent(), red)
    assert [body for body, _ in got(bench, peer, "q")] == [b"0", b"3"]


def test_only_messages_of_mqtt_without_properties_are_alike() -> None:
    """Those go through a kernel, which looks at none."""
    alike = [
        mapping.is_uniform(RunMeta("t", None, {"PMQ_PROTO": origin}, 0))
        for origin in ("mqtt", "mqtt5")
    ]
    assert alike == [True, False]


TEXT = st.text(max_size=12) | st.sampled_from(["TTL", "KEYS", "content-type", "x" * 256, "PMQ_S"])


@given(
    st.lists(st.tuples(TEXT, TEXT), max_size=8),
    st.none() | st.binary(max_size=300),
    st.none() | st.text(max_size=300),
)
def test_any_properties_become_amqps(
    pairs: list[tuple[str, str]], correlation: bytes | None, topic: str | None
) -> None:
    """Of names that may be headers every value is there, in order; no other property is touched by
    what a user property is called."""
    content = MqttContent(user_properties=pairs, correlation_data=correlation, response_topic=topic)
    packed = stored(write_block(content))
    read = pika.BasicProperties().decode(mapping.translate_properties({"PMQ_MQTT5": packed}))
    headers = dict(read.headers or {})
    if correlation is not None and len(correlation) > 255:
        assert headers.pop("CORRELATION_ID") == correlation
    assert (read.expiration, read.message_id, read.content_type) == (None, None, None)
    if topic is None:
        assert read.reply_to is None
    else:
        headers.pop("REPLY_TO", None)
    headers.pop("CORRELATION_ID", None)
    written = read_mqtt_content(packed).user_properties
    for name, value in headers.items():
        values = [text for known, text in written if known == name]
        assert values == (value if isinstance(value, list) else [value])
    assert {name for name, _ in written if 0 < len(name.encode()) <= 255} >= set(headers)
