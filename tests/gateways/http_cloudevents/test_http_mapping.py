"""Events to records and back, the layouts that others write, wrapped messages, dead letters."""

from __future__ import annotations

import json
from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymq.broker.port import REST, Message
from polymq.core_log.kernels.batch import EXTRA_SIZE
from polymq.gateways.http_cloudevents import codec, mapping
from polymq.gateways.http_cloudevents.codec import Event, Form
from tests.gateways.http_cloudevents.event_strategies import events
from tests.gateways.http_cloudevents.http_spy_port import STORE_MS, SpyPort, SpyTemplate
from tests.gateways.http_cloudevents.http_work import at_once
from tests.harness.mqtt5 import pack
from tests.harness.mqtt5 import stored as stored_block


def stored(several: list[Event], *, sharded: bool = False) -> tuple[SpyPort, list[Message]]:
    """The messages that a broker makes of the rows of these events."""
    port = SpyPort(auto_flush=False)
    batch, runs = at_once(mapping.rows_of(several, sharded=sharded))
    for run in runs:
        template = SpyTemplate(port.route("t", run.tag), mapping.CONSTANT_PROPERTIES, run.sharding)
        port.publish(template, batch, run.first, run.last)
    return port, port.stored


def message(
    body: bytes = b"", tag: str | None = None, topic: str = "sensors", **properties: str
) -> Message:
    """A message of another protocol; `_` in a property's name stands for `-`."""
    named = {name.replace("__", "-"): value for name, value in properties.items()}
    return SpyPort(auto_flush=False).add(topic, tag, body, named)


def event_of(one: Message) -> Event:
    return mapping.event_of(one, broker_name="b1")


def simple(**attributes: str) -> Event:
    base = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}
    return Event(attributes=base | attributes, data=b"x")


# --- our own events ---------------------------------------------------------------------------


@given(st.lists(events(), min_size=1, max_size=4), st.booleans())
def test_stored_events_come_back_equal(several: list[Event], sharded: bool) -> None:
    """Through rows, records and back: the same attributes, types, form and bytes of data."""
    _, messages = stored(several, sharded=sharded)
    assert [event_of(one) for one in messages] == several
    assert [one.tag for one in messages] == [event.attributes["type"] for event in several]


@given(events())
def test_structured_events_are_spelled_again_alike(event: Event) -> None:
    _, (one,) = stored([event])
    assert codec.encode_structured(event_of(one)) == codec.encode_structured(event)


def test_properties_of_an_event() -> None:
    """The layout that RocketMQ clients see (architecture, part 7)."""
    event = codec.decode_structured(
        json.dumps(
            {
                "specversion": "1.0",
                "id": "A-1",
                "source": "/s",
                "type": "order.created",
                "time": "2026-05-03T09:30:00.123456789Z",
                "n": 7,
                "data": {"a": 1},
            }
        ).encode()
    )
    _, (one,) = stored([event])
    assert one.properties == {
        "PMQ_PROTO": "http",
        "KEYS": "A-1",
        "CE_specversion": "1.0",
        "CE_id": "A-1",
        "CE_source": "/s",
        "CE_type": "order.created",
        "CE_time": "2026-05-03T09:30:00.123456789Z",
        "CE_n": "7",
        "content-type": "application/json",
        "PMQ_CE_MODE": "structured-json",
        "PMQ_CE_TYPES": "n=integer",
    }
    assert one.body == b'{"a": 1}'


def test_binary_events_carry_no_mode() -> None:
    _, (one,) = stored([simple(datacontenttype="text/plain")])
    assert one.properties["content-type"] == one.properties["CE_datacontenttype"] == "text/plain"
    assert "PMQ_CE_MODE" not in one.properties


def test_an_id_with_a_space_is_no_key() -> None:
    """RocketMQ separates keys by spaces: such an id would become two keys."""
    _, messages = stored([simple(id="a b"), simple(id="ab")])
    assert [one.properties.get("KEYS") for one in messages] == [None, "ab"]


def test_a_batch_of_one_type_is_one_run() -> None:
    """Subjects differ, but with one queue the log has the order anyway."""
    several = [simple(id=str(n), subject=f"s{n}") for n in range(100)]
    port, _ = stored(several)
    assert port.publish_calls == [100]


def test_runs_follow_the_order_of_the_batch() -> None:
    """Equal types that are apart make two runs: the order of the batch is the order of the log."""
    several = [simple(id=str(n), type=kind) for n, kind in enumerate("aabba")]
    port, messages = stored(several)
    assert port.publish_calls == [2, 2, 1]
    assert [one.properties["CE_id"] for one in messages] == ["0", "1", "2", "3", "4"]


def test_sharding_from_partitionkey_else_subject() -> None:
    several = [
        simple(partitionkey="k", subject="x"),
        simple(subject="k"),
        simple(partitionkey="other"),
        simple(),
    ]
    _, runs = at_once(mapping.rows_of(several, sharded=True))
    keys = [run.sharding for run in runs]
    assert len(keys) == 3, "the same key from either attribute is one shard"
    assert keys[0] != keys[1]
    assert keys[2] == "", "without a key any queue will do"


def test_shards_are_bounded() -> None:
    """A million keys must not become a million templates."""
    shards = {mapping.shard_of(simple(subject=f"device-{n}")) for n in range(5_000)}
    assert len(shards) <= mapping.SHARDS
    assert len(shards) > mapping.SHARDS * 0.9, "the keys spread"


def test_rows_point_at_extra_and_body() -> None:
    batch, _ = at_once(mapping.rows_of([simple(), simple(id="22")], sharded=False))
    extra = mapping.extra_of(simple())
    assert batch.row(0)[EXTRA_SIZE] == len(extra)
    assert bytes(batch.buffer).startswith(extra + b"x")


# --- what other programs write to RocketMQ ----------------------------------------------------

CORE = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}
PREFIXED = {f"CE_{name}": value for name, value in CORE.items()}


@pytest.mark.parametrize(
    ("properties", "body", "attributes", "data"),
    [
        pytest.param(
            {**PREFIXED, "CE_datacontenttype": "text/plain", "CE_ext": "e", "KEYS": "1"},
            b"x",
            {**CORE, "datacontenttype": "text/plain", "ext": "e"},
            b"x",
            id="rocketmq-externals Java",
        ),
        pytest.param(
            {**PREFIXED, "CE_contentType": "text/plain"},
            b"x",
            {**CORE, "datacontenttype": "text/plain"},
            b"x",
            id="the specification's prose",
        ),
        pytest.param(
            {**PREFIXED, "CE_contenttype": "application/json", "myext": "e", "__foo": "no"},
            b"{}",
            {**CORE, "datacontenttype": "application/json", "myext": "e"},
            b"{}",
            id="Java SDK, bare extension",
        ),
        pytest.param(PREFIXED, b"\x00", CORE, None, id="Java SDK, no data"),
        pytest.param(
            {**PREFIXED, "CE_contenttype": "x/y"},
            b"\x00",
            {**CORE, "datacontenttype": "x/y"},
            b"\x00",
            id="a NUL byte that is data",
        ),
        pytest.param(
            {**CORE, "datacontenttype": "text/plain", "ext": "e", "UNIQ_KEY": "7F"},
            b"x",
            {**CORE, "datacontenttype": "text/plain", "ext": "e"},
            b"x",
            id="EventMesh",
        ),
        pytest.param(
            {**CORE, "KEYS": "1", "USEREXT_KEY": '{"a":"x","n":5,"b":true,"Bad":"y"}'},
            b"",
            {**CORE, "a": "x", "n": "5", "b": "true"},
            None,
            id="rocketmq-eventbridge",
        ),
        pytest.param(
            {**CORE, "USEREXT_KEY": "{broken"}, b"x", CORE, b"x", id="eventbridge, broken"
        ),
        pytest.param({**PREFIXED, "CE_time": "now"}, b"x", CORE, b"x", id="bad optional attribute"),
    ],
)
def test_foreign_layouts(
    properties: dict[str, str], body: bytes, attributes: dict[str, str], data: bytes | None
) -> None:
    event = event_of(message(body, **properties))
    assert dict(event.attributes) == attributes
    assert event.data == data


@pytest.mark.parametrize(
    "properties",
    [
        {**PREFIXED, "CE_specversion": "0.3"},
        {**PREFIXED, "CE_source": "not a uri"},
        {name: value for name, value in PREFIXED.items() if name != "CE_id"},
        {"specversion": "1.0", "source": "/s"},
        {"content__type": "application/cloudevents+json"},
        {**PREFIXED, "PMQ_PROTO": "http", "PMQ_CE_MODE": "structured-nonsense"},
        {**PREFIXED, "PMQ_PROTO": "http", "PMQ_CE_TYPES": "id=integer,x"},
        {**PREFIXED, "PMQ_PROTO": "http", "CE_n": '","evil":"', "PMQ_CE_TYPES": "n=integer"},
    ],
)
def test_what_is_no_event_after_all_is_wrapped(properties: dict[str, str]) -> None:
    """It was accepted by another protocol: a reader must get something valid, not an error."""
    event = event_of(message(b"{broken", "room1.temp", **properties))
    assert event.attributes["id"] == "b1-0000000000000000"
    codec.decode_structured(codec.encode_structured(event))


# --- wrapped messages -------------------------------------------------------------------------


def test_a_plain_mqtt_message_is_wrapped() -> None:
    """As Event Grid wraps MQTT: what an application needs to know is in the attributes."""
    event = event_of(message(b"21.5", "room1.temp", PMQ_PROTO="mqtt", PMQ_QOS="1"))
    assert dict(event.attributes) == {
        "specversion": "1.0",
        "id": "b1-0000000000000000",
        "source": "/topics/sensors",
        "type": "room1.temp",
        "subject": "sensors/room1/temp",
        "time": "2026-09-21T14:13:20.123Z",
        "datacontenttype": "application/octet-stream",
    }
    assert STORE_MS == 1_790_000_000_123
    assert codec.encode_structured(event).endswith(b'"data_base64":"MjEuNQ=="}')


def test_the_id_of_a_wrapped_message_is_stable() -> None:
    """Read twice, or by two subscriptions: the same event, so consumers can drop duplicates."""
    port = SpyPort(auto_flush=False)
    first = port.add("t", None, b"a", {})
    second = port.add("t", None, b"a", {})
    ids = [event_of(one).attributes["id"] for one in (first, second, first)]
    assert ids[0] == ids[2] != ids[1]


@pytest.mark.parametrize(
    ("topic", "tag", "kind", "subject", "source"),
    [
        ("sensors", None, mapping.DEFAULT_TYPE, "sensors", "/topics/sensors"),
        ("sensors", "", mapping.DEFAULT_TYPE, "sensors/", "/topics/sensors"),
        ("a b", "x/y", "x/y", "a b/x.y", "/topics/a%20b"),
        ("é", "x\x07y", "x%07y", "é/x%07y", "/topics/%C3%A9"),
        ("\udcff", "t", "t", "%FF/t", "/topics/%FF"),
        ("", "t", "t", "/t", "/topics/%7C%7C"),
        ("", None, mapping.DEFAULT_TYPE, "/", "/topics/%7C%7C"),
    ],
)
def test_names_of_wrapped_messages(
    topic: str, tag: str | None, kind: str, subject: str, source: str
) -> None:
    """`.` and `/` swap back, so that the subject is the MQTT topic; what no string may hold is
    percent-encoded."""
    event = event_of(message(b"x", tag, topic))
    assert event.attributes["type"] == kind
    assert event.attributes["subject"] == subject
    assert event.attributes["source"] == source
    codec.decode_structured(codec.encode_structured(event))


def short(text: str) -> bytes:
    return bytes([len(text.encode())]) + text.encode()


def amqp_properties(content_type: bytes | None = None, headers: bytes | None = None) -> str:
    """Content properties as AMQP 4.2.6.1 lays them out, with a delivery mode behind."""
    flags = 0x1000
    raw = b""
    if content_type is not None:
        flags |= 0x8000
        raw += bytes([len(content_type)]) + content_type
    if headers is not None:
        flags |= 0x4000 | 0x2000
        raw += short("gzip") + len(headers).to_bytes(4, "big") + headers
    return b64encode(flags.to_bytes(2, "big") + raw + b"\x02").decode()


def amqp_string(name: str, value: str) -> bytes:
    return short(name) + b"S" + len(value.encode()).to_bytes(4, "big") + value.encode()


@pytest.mark.parametrize(
    ("packed", "content_type"),
    [
        (amqp_properties(b"application/json"), "application/json"),
        (amqp_properties(b"x/" + b"y" * 253), "x/" + "y" * 253),
        (amqp_properties(b"a/b", b""), "a/b"),
        (amqp_properties(None), None),
        (amqp_properties(b""), None),
        (amqp_properties(b"no media type"), None),
        (amqp_properties(b"text/\xff"), None),
        (b64encode(b"\x80\x00\x50short").decode(), None),
        (b64encode(b"\x80").decode(), None),
        ("", None),
        ("not base64!", None),
    ],
)
def test_content_type_of_amqp_messages(packed: str, content_type: str | None) -> None:
    found = mapping.content_type_of({"PMQ_AMQP": packed})
    assert found == content_type


@pytest.mark.parametrize("prefix", ["ce-", "cloudEvents_", "cloudEvents:"])
def test_attributes_in_amqp_headers(prefix: str) -> None:
    """The bindings of RabbitMQ and of AMQP 1.0; every simple type as its canonical string."""
    headers = b"".join(
        (
            amqp_string(prefix + "specversion", "1.0"),
            amqp_string(prefix + "id", "7 €"),
            amqp_string("x-other", "no attribute"),
            amqp_string(prefix + "source", "/s"),
            amqp_string(prefix + "datacontenttype", "is/ignored"),
            short(prefix + "n") + b"I" + (-5).to_bytes(4, "big", signed=True),
            short(prefix + "flag") + b"t\x01",
            short("x-void") + b"V",
            short("x-float") + b"d" + bytes(8),
            short("x-table") + b"F" + (3).to_bytes(4, "big") + b"abc",
            short(prefix + "time") + b"T" + (1_790_000_000).to_bytes(8, "big"),
            short(prefix + "far") + b"T" + b"\xff" * 8,
            amqp_string(prefix + "Bad-Name", "x"),
            amqp_string(prefix + "type", "t"),
        )
    )
    packed = amqp_properties(b"text/plain", headers)
    event = event_of(message(b"hot", "key", PMQ_AMQP=packed, PMQ_PROTO="amqp"))
    assert dict(event.attributes) == {
        "specversion": "1.0",
        "id": "7 €",
        "source": "/s",
        "n": "-5",
        "flag": "true",
        "time": "2026-09-21T14:13:20Z",
        "type": "t",
        "datacontenttype": "text/plain",
    }
    assert event.data == b"hot"


@pytest.mark.parametrize(
    "headers",
    [
        amqp_string("ce-specversion", "1.0"),
        amqp_string("ce-specversion", "0.3") + amqp_string("ce-id", "1"),
        b"\x0ece-specversion?",
        amqp_string("ce-specversion", "1.0")[:-1],
        short("ce-specversion") + b"S\x00\x00\x00\x01\xff",
        (short("x") + b"V") * 300,
    ],
)
def test_amqp_headers_that_are_no_event(headers: bytes) -> None:
    event = event_of(message(b"x", "key", PMQ_AMQP=amqp_properties(None, headers)))
    assert event.attributes["type"] == "key"
    assert event.attributes["id"].startswith("b1-")


def test_trace_context_of_an_event_in_amqp_headers() -> None:
    """Libraries that trace AMQP clients add it without a prefix; that of the event comes first."""
    required = ("specversion", "1.0"), ("id", "1"), ("source", "/s"), ("type", "t")
    headers = b"".join(amqp_string(f"ce-{name}", value) for name, value in required)
    headers += amqp_string("traceparent", "of-the-hop") + amqp_string("tracestate", "a=1")
    event = event_of(message(b"x", "k", PMQ_AMQP=amqp_properties(None, headers)))
    assert event.attributes["traceparent"] == "of-the-hop"
    assert event.attributes["tracestate"] == "a=1"
    headers += amqp_string("ce-traceparent", "of-the-event")
    event = event_of(message(b"x", "k", PMQ_AMQP=amqp_properties(None, headers)))
    assert event.attributes["traceparent"] == "of-the-event"


@given(st.text(max_size=40) | st.binary(max_size=300).map(lambda raw: b64encode(raw).decode()))
def test_any_amqp_properties_are_survived(packed: str) -> None:
    event = event_of(message(b"x", "k", PMQ_AMQP=packed))
    codec.decode_structured(codec.encode_structured(event))


# --- MQTT 5 -----------------------------------------------------------------------------------

REQUIRED = [("specversion", "1.0"), ("id", "7 €"), ("source", "/s"), ("type", "t")]


def of_mqtt(*pairs: tuple[str, str], body: bytes = b"hot", **values: object) -> Event:
    """The event that a message of MQTT 5 is, published to `sensors/key`."""
    block = stored_block(pack(UserProperty=pairs, **values))
    return event_of(message(body, "key", PMQ_MQTT5=block, PMQ_PROTO="mqtt5"))


def test_an_event_in_binary_mode_over_mqtt_5() -> None:
    """Attributes are user properties without a prefix; the Content Type has the last word."""
    event = of_mqtt(
        *REQUIRED,
        ("colour", "red"),
        ("Bad-Name", "x"),
        ("data", "x"),
        ("datacontenttype", "is/ignored"),
        ContentType="text/plain",
        ResponseTopic="a/b",
    )
    assert dict(event.attributes) == {
        **dict(REQUIRED),
        "colour": "red",
        "datacontenttype": "text/plain",
    }
    assert event.data == b"hot"
    event = of_mqtt(*REQUIRED, ("datacontenttype", "text/csv"), body=b"")
    assert (event.attributes["datacontenttype"], event.data) == ("text/csv", None)


def test_an_event_in_structured_mode_over_mqtt_5() -> None:
    """By its Content Type only: a payload that looks like an event is none."""
    document = codec.encode_structured(simple(colour="red"))
    event = of_mqtt(body=document, ContentType="application/cloudevents+json; charset=utf-8")
    assert event.attributes["colour"] == "red"
    assert of_mqtt(body=document).attributes["type"] == "key"


@pytest.mark.parametrize(
    "pairs",
    [
        REQUIRED[:3],
        [("specversion", "0.3"), *REQUIRED[1:]],
        [*REQUIRED, ("colour", "red"), ("colour", "red")],
        [*REQUIRED, ("id", "8")],
        [("SpecVersion", "1.0"), *REQUIRED[1:]],
    ],
)
def test_a_message_of_mqtt_5_that_is_no_event_is_wrapped(pairs: list[tuple[str, str]]) -> None:
    """Among them one with an attribute twice: two readers would see two events."""
    event = of_mqtt(*pairs)
    assert event.attributes["source"] == "/topics/sensors"
    assert event.attributes["id"].startswith("b1-")
    assert event.attributes["type"] == "key"


def test_a_user_property_that_no_attribute_may_be_can_be_there_twice() -> None:
    assert of_mqtt(*REQUIRED, ("X", "1"), ("X", "2")).attributes["id"] == "7 €"


@given(st.text(max_size=40) | st.binary(max_size=300).map(lambda raw: b64encode(raw).decode()))
def test_any_properties_of_mqtt_5_are_survived(packed: str) -> None:
    event = event_of(message(b"x", "k", PMQ_MQTT5=packed))
    codec.decode_structured(codec.encode_structured(event))


@pytest.mark.parametrize(
    ("content_type", "body", "spelled"),
    [
        ("application/json", b'{"a": 1}', b'"data":{"a": 1}}'),
        ("application/json", b"{broken", b'"data_base64":"e2Jyb2tlbg=="}'),
        ("text/plain", b"hot", b'"data":"hot"}'),
        ("image/png", b"\x89", b'"data_base64":"iQ=="}'),
        ("nonsense", b"x", b'"datacontenttype":"application/octet-stream","data_base64":"eA=="}'),
    ],
)
def test_data_of_wrapped_messages(content_type: str, body: bytes, spelled: bytes) -> None:
    event = event_of(message(body, "t", content__type=content_type))
    assert codec.encode_structured(event).endswith(spelled)


def test_an_empty_message_is_an_event_without_data() -> None:
    event = event_of(message(b"", "t"))
    assert event.data is None
    assert "datacontenttype" not in event.attributes


def test_a_structured_event_in_another_protocol_is_that_event() -> None:
    """MQTT 5 and AMQP say so by the media type."""
    event = simple(datacontenttype="text/plain")
    body = codec.encode_structured(event)
    found = event_of(
        message(body, "t", content__type="application/cloudevents+json; charset=utf-8")
    )
    assert dict(found.attributes) == dict(event.attributes)
    assert (found.data, found.form) == (b"x", Form.TEXT)


# --- words ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("filters", "address"),
    [
        ([], ("t", REST)),
        ([{"exact": {"type": "order.created"}}], ("t", "order", "created")),
        ([{"exact": {"type": "a..b"}}], ("t", "a", "", "b")),
        ([{"exact": {"source": "/s"}}], ("t", REST)),
        ([{"exact": {"type": mapping.DEFAULT_TYPE}}], ("t", REST)),
        ([{"prefix": {"type": "com.example."}}], ("t", "com", "example", REST)),
        ([{"prefix": {"type": "com.exam"}}], ("t", "com", REST)),
        ([{"prefix": {"type": "com"}}], ("t", REST)),
        ([{"prefix": {"type": "io."}}], ("t", REST)),
        ([{"prefix": {"type": "a."}}, {"prefix": {"type": "a.b.c."}}], ("t", "a", "b", "c", REST)),
        ([{"prefix": {"type": "a."}}, {"exact": {"type": "a.b"}}], ("t", "a", "b")),
        ([{"any": [{"exact": {"type": "a"}}]}], ("t", REST)),
        ([{"not": {"exact": {"type": "a"}}}], ("t", REST)),
        ([{"suffix": {"type": ".a"}}], ("t", REST)),
    ],
)
def test_words_of_filters(
    filters: list[dict[str, dict[str, str]]], address: tuple[str, ...]
) -> None:
    assert mapping.address_of("t", filters) == address


# --- dead letters -----------------------------------------------------------------------------


def test_a_dead_letter_is_the_same_event_with_its_reasons() -> None:
    """Re-driving it must publish what was published: the event is unchanged."""
    event = codec.decode_structured(
        b'{"specversion":"1.0","id":"1","source":"/s","type":"t","n":1,"data":{"a" :1}}'
    )
    _, (one,) = stored([event])
    constant = mapping.dead_letter_constant(mapping.CONSTANT_PROPERTIES)
    letter = mapping.DeadLetter(
        reason="the sink answered 400",
        sink="https://x.example/hook",
        status=400,
        reply=b"no\x00pe\r\n\xff" + b"y" * 5_000,
        attempts=3,
    )
    extra = mapping.dead_letter_extra(one, constant, letter, broker_name="b1")
    pairs = [pair.split("\x01") for pair in extra.decode().split("\x02")[:-1]]
    properties = constant | dict(pairs)
    dead = SpyPort(auto_flush=False).add("%DLQ%s", one.tag, one.body, properties)
    assert event_of(dead) == event
    reported = mapping.dead_letter_of(dead.properties)
    reply = reported.pop("reply")
    assert reply.startswith("no pe  \ufffdyyy")
    assert len(reply) <= mapping.REPLY_BYTES_MAX
    assert reported == {
        "reason": "the sink answered 400",
        "topic": "t",
        "messageId": "b1-0000000000000000",
        "sink": "https://x.example/hook",
        "status": "400",
        "attempts": "3",
    }


def test_a_dead_letter_that_dies_again_keeps_its_origin() -> None:
    origin = {"DLQ_ORIGIN_TOPIC": "first", "DLQ_ORIGIN_MESSAGE_ID": "b1-00ff"}
    one = message(b"x", "t", topic="%DLQ%s", PMQ_DLQ_REASON="old", **origin)
    extra = mapping.dead_letter_extra(
        one, {}, mapping.DeadLetter(reason="new"), broker_name="b1"
    ).decode()
    assert "DLQ_ORIGIN_TOPIC\x01first\x02" in extra
    assert "DLQ_ORIGIN_MESSAGE_ID\x01b1-00ff\x02" in extra
    assert "PMQ_DLQ_REASON\x01new\x02" in extra
    assert "old" not in extra


def test_a_dead_letter_does_not_change_state_again() -> None:
    """A retained message, an inbound QoS 2 id and a settlement count once, in their own record."""
    one = message(b"x", "t", PMQ_RETAIN="1", PMQ_QOS2="1.2", PMQ_S="3.4", PMQ_QOS="1")
    constant = mapping.dead_letter_constant({"PMQ_RETAIN": "1", "PMQ_QOS": "1"})
    assert constant == {"PMQ_QOS": "1"}
    extra = mapping.dead_letter_extra(
        one, constant, mapping.DeadLetter(reason="r"), broker_name="b1"
    )
    for name in (b"PMQ_RETAIN", b"PMQ_QOS2", b"PMQ_S\x01", b"PMQ_QOS\x01"):
        assert name not in extra


@pytest.mark.parametrize("name", ["PMQ_AMQP", "PMQ_MQTT5"])
def test_raw_properties_of_a_dead_letter_come_first(name: str) -> None:
    """Where their gateways look for them."""
    one = message(b"x", "t", A="1", **{name: "gAA="})
    extra = mapping.dead_letter_extra(one, {}, mapping.DeadLetter(reason="r"), broker_name="b")
    assert extra.startswith(name.encode() + b"\x01gAA=\x02")
