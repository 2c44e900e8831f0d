"""AMQP's words and the engine's: names, properties, and messages of other protocols."""

from __future__ import annotations

from typing import Any

import pika
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymq.broker.port import Reason, Refused, RunMeta
from polymq.core_log.kernels.batch import EXTRA_VERBATIM, Batch
from polymq.gateways.amqp import mapping, spec
from polymq.gateways.amqp.errors import Malformed, ReplyCode
from tests.gateways.amqp import amqp_wire as wire
from tests.gateways.amqp.amqp_harness import Bench, Peer

TEXT = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), max_size=40)
PROPERTIES = st.dictionaries(
    st.sampled_from(
        [
            "content-type",
            "KEYS",
            "REPLY_TO",
            "CORRELATION_ID",
            "TTL",
            "PMQ_QOS",
            "CE_type",
            "UNIQ_KEY",
        ]
    )
    | TEXT,
    TEXT | st.just("1500") | st.just("x" * 300),
    max_size=8,
)


def read_by_pika(raw: bytes) -> pika.BasicProperties:
    return pika.BasicProperties().decode(raw)


@given(PROPERTIES)
def test_properties_of_others_become_amqps(properties: dict[str, str]) -> None:
    """What fits has its property, what does not is a header, what is the broker's own is gone;
    pika reads all of it."""
    read = read_by_pika(mapping.translate_properties(properties))
    headers = read.headers or {}
    for name, value in properties.items():
        short = len(value.encode()) <= 255
        match name:
            case "content-type" if short:
                assert read.content_type == value
            case "KEYS" if short:
                assert read.message_id == value
            case "REPLY_TO" if short:
                assert read.reply_to == value
            case "CORRELATION_ID" if short:
                assert read.correlation_id == value
            case "TTL" if value.isascii() and value.isdigit() and short:
                assert read.expiration == value
            case _ if name == "PMQ_QOS" or name in mapping._NO_HEADERS:
                assert name not in headers
            case "CE_type":
                assert headers["ce-type"] == value
            case _ if name.startswith(("__", "PMQ_", "CE_")) or not name:
                pass
            case _:
                assert headers[name] == value
    assert read.delivery_mode == 2


@given(
    content_type=st.none() | TEXT,
    headers=st.none() | st.dictionaries(TEXT, TEXT, max_size=3),
    mode=st.none() | st.just(2),
    expiration=st.none() | st.just("60"),
    message_id=st.none() | TEXT,
    timestamp=st.none() | st.just(5),
    user_id=st.none() | TEXT,
)
def test_one_property_is_read_where_it_stands(
    content_type: str | None,
    headers: dict[str, str] | None,
    mode: int | None,
    expiration: str | None,
    message_id: str | None,
    timestamp: int | None,
    user_id: str | None,
) -> None:
    raw = wire.properties(
        content_type=content_type,
        headers=headers,
        delivery_mode=mode,
        expiration=expiration,
        message_id=message_id,
        timestamp=timestamp,
        user_id=user_id,
    )
    for flag, value in (
        (mapping.CONTENT_TYPE, content_type),
        (mapping.EXPIRATION, expiration),
        (mapping.MESSAGE_ID, message_id),
        (mapping.USER_ID, user_id),
        (mapping.REPLY_TO, None),
    ):
        expected = None if value is None else value.encode()
        assert mapping.read_property(raw, flag) == expected


def test_every_reason_has_a_code() -> None:
    for reason in Reason:
        error = mapping.refusal(Refused(reason, "text"), spec.BasicPublish, 3)
        assert error.channel in (0, 3)
        assert (error.channel == 0) is (error.code is ReplyCode.RESOURCE_ERROR)


def test_names_that_do_not_fit_a_short_string_are_hashed() -> None:
    """Topics of MQTT may be longer than AMQP's names; they stay distinct."""
    one, other = (mapping.short_bytes("x" * 300 + end) for end in "ab")
    assert one != other
    assert one[0] == len(one) - 1 == 66
    assert one[1:3] == b"|h"
    assert mapping.short_bytes("x" * 255) == b"\xff" + b"x" * 255


def test_an_exchange_that_is_no_utf8_is_malformed_and_a_key_is_not() -> None:
    assert mapping.exchange_and_key_of(b"\x02ex\x02\xff\xfe") == ("ex", "\udcff\udcfe")
    with pytest.raises(Malformed):
        mapping.exchange_and_key_of(b"\x01\xff\x00")


@pytest.mark.parametrize(
    ("topic", "tag", "properties", "names"),
    [
        ("sensors", "room1.temp", {}, ("sensors", "room1.temp")),
        ("sensors", None, {}, ("sensors", "")),
        ("sensors", "", {}, ("sensors", "")),
        ("q", None, {"PMQ_EXCHANGE": ""}, ("", "q")),
        ("a", "b.c", {"PMQ_EXCHANGE": "amq.topic"}, ("amq.topic", "a.b.c")),
        ("a", None, {"PMQ_EXCHANGE": "amq.topic"}, ("amq.topic", "a")),
        ("v1.2", "x", {"PMQ_EXCHANGE": "amq.topic"}, ("amq.topic", "v1/2.x")),
    ],
)
def test_names_of_a_message(
    topic: str, tag: str | None, properties: dict[str, str], names: tuple[str, str]
) -> None:
    assert mapping.names_of(RunMeta(topic, tag, properties, 0)) == names


# --- over the engine -----------------------------------------------------------------------------


def queue_of(bench: Bench, exchange: str, key: str = "#") -> Peer:
    peer = bench.peer(1)
    peer.ask(spec.QueueDeclare(queue="q"))
    if exchange != "amq.topic":
        peer.ask(spec.ExchangeDeclare(exchange=exchange, type="topic", durable=True))
    peer.ask(spec.QueueBind(queue="q", exchange=exchange, routing_key=key))
    peer.ask(spec.BasicConsume(queue="q", consumer_tag="c", no_ack=True))
    bench.step()
    peer.received()
    return peer


def put(
    bench: Bench,
    topic: str,
    tag: str | None,
    rows: list[tuple[bytes, bytes]],
    properties: dict[str, str],
    **settings: Any,
) -> None:
    """Publish (extra, body) rows as another gateway does."""
    batch = Batch(len(rows))
    data = b""
    for extra, body in rows:
        batch.add((0, 0), (len(data) + len(extra), len(body)), (len(data), len(extra)))
        data += extra + body
    batch.buffer = data
    template = bench.port.topics.template(
        bench.port.topics.route(topic, tag), properties=properties, **settings
    )
    bench.port.publish(template, batch, 0, len(rows))
    bench.step()


@pytest.mark.parametrize("bound", ["sensors", "amq.topic"])
def test_a_message_of_mqtt(bench: Bench, bound: str) -> None:
    """Exchange and key are topic and tag, whichever binding it came by."""
    peer = queue_of(bench, bound, "#" if bound == "sensors" else "sensors.*.temp")
    put(bench, "sensors", "room1.temp", [(b"", b"21")], {"PMQ_PROTO": "mqtt", "PMQ_QOS": "1"})
    (got,) = peer.received()
    assert isinstance(got.method, spec.BasicDeliver)
    assert (got.method.exchange, got.method.routing_key) == ("sensors", "room1.temp")
    read = read_by_pika(got.properties)
    assert (got.body, read.delivery_mode, read.headers) == (b"21", 2, None)


def test_messages_of_http_have_properties_of_their_own(bench: Bench) -> None:
    """Attributes that each message carries become its headers; they are read one by one."""
    peer = queue_of(bench, "orders")
    rows = [
        (
            b"KEYS\x01id%d\x02CE_id\x01id%d\x02CE_source\x01/shop\x02content-type\x01a/json\x02"
            % (n, n),
            b"{%d}" % n,
        )
        for n in range(3)
    ]
    put(
        bench,
        "orders",
        "created",
        rows,
        {"PMQ_PROTO": "http"},
        extra_kind=EXTRA_VERBATIM,
    )
    received = peer.received()
    assert [got.delivery.delivery_tag for got in received] == [1, 2, 3]
    for n, got in enumerate(received):
        read = read_by_pika(got.properties)
        assert got.body == b"{%d}" % n
        assert read.content_type == "a/json"
        assert read.message_id == f"id{n}"
        assert read.headers == {"ce-id": f"id{n}", "ce-source": "/shop"}


def test_a_dead_letter_of_http_keeps_amqps_properties(bench: Bench) -> None:
    """A message that AMQP sent and that another gateway moved comes back with what it had."""
    peer = queue_of(bench, "dead")
    raw = wire.properties(content_type="x/y", headers={"n": 5})
    extra = wire.extra_of(raw) + b"PMQ_DLQ_REASON\x01gone\x02"
    put(bench, "dead", None, [(extra, b"x")], {"PMQ_PROTO": "http"}, extra_kind=EXTRA_VERBATIM)
    (got,) = peer.received()
    assert (got.properties, got.body) == (raw, b"x")


def test_messages_of_several_kinds_in_one_delivery(bench: Bench) -> None:
    """A backlog is one delivery of runs from everywhere: tags count on across them."""
    peer = queue_of(bench, "mix")
    peer.transport.full = True
    sender = bench.peer(1)
    sender.send(wire.publish(1, "mix", "k", b"amqp 1"), wire.publish(1, "mix", "k", b"amqp 2"))
    put(bench, "mix", "k", [(b"", b"mqtt")], {"PMQ_PROTO": "mqtt"})
    put(
        bench,
        "mix",
        "k",
        [(b"KEYS\x01i\x02", b"http 1"), (b"KEYS\x01j\x02", b"http 2")],
        {"PMQ_PROTO": "http"},
        extra_kind=EXTRA_VERBATIM,
    )
    sender.send(wire.publish(1, "mix", "k", b"amqp 3"))
    bench.step(0.3)
    peer.transport.full = False
    peer.client.drained()
    bench.step()
    received = peer.received()
    assert [got.body for got in received] == [
        b"amqp 1",
        b"amqp 2",
        b"mqtt",
        b"http 1",
        b"http 2",
        b"amqp 3",
    ]
    assert [got.delivery.delivery_tag for got in received] == [1, 2, 3, 4, 5, 6]
    assert [read_by_pika(got.properties).message_id for got in received[3:5]] == ["i", "j"]
