"""Properties of MQTT 5: what is read of a block that a client library made, and the blocks that
messages of other protocols get, read by that library."""

from __future__ import annotations

import base64
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymq.broker.messages import mqtt_properties
from polymq.broker.messages.amqp_content import AMQP_PROPERTY, read_amqp_content
from polymq.broker.messages.mqtt_properties import (
    BLOCK_BYTES_MAX,
    TEXT_BYTES_MAX,
    USER_PROPERTIES_MAX,
    MqttContent,
    expiry_seconds_left,
    mqtt_block,
    read_block,
    read_mqtt_content,
    reply_address,
    text_bytes,
    write_block,
)
from tests.harness.mqtt5 import pack, stored, unpack

# What MQTT allows in text, and what a broker may be asked to carry: no control characters.
TEXT = st.text(
    st.characters(exclude_categories=["Cs", "Cc", "Cn"]).filter(str.isprintable), max_size=40
)
CONTENTS = st.builds(
    MqttContent,
    payload_format=st.none() | st.integers(0, 1),
    content_type=st.none() | TEXT,
    response_topic=st.none() | TEXT.filter(bool),
    correlation_data=st.none() | st.binary(max_size=60),
    expiry_seconds=st.none() | st.integers(0, 0xFFFF_FFFF),
    user_properties=st.lists(st.tuples(TEXT, TEXT), max_size=12),
)


def amqp(flags: int, values: bytes) -> dict[str, str]:
    """The properties of an AMQP message."""
    return {AMQP_PROPERTY: base64.b64encode(struct.pack(">H", flags) + values).decode()}


def short(text: bytes) -> bytes:
    return bytes((len(text),)) + text


def amqp_headers(**headers: str) -> dict[str, str]:
    """The same with headers of long strings; `__` stands for `-`."""
    pairs = b"".join(
        short(name.replace("__", "-").encode()) + b"S" + struct.pack(">I", len(raw)) + raw
        for name, value in headers.items()
        for raw in [value.encode()]
    )
    return amqp(0x2000, struct.pack(">I", len(pairs)) + pairs)


# --- reading ----------------------------------------------------------------------------------


@given(CONTENTS)
def test_a_block_that_is_read_and_written_gives_the_same_values_in_order(
    content: MqttContent,
) -> None:
    block = write_block(content)
    assert read_mqtt_content(stored(block)) == content
    assert write_block(read_block(block)) == block


@given(CONTENTS, st.integers(1, 65_535))
def test_a_block_of_another_library_is_read(content: MqttContent, alias: int) -> None:
    """With a Topic Alias, which belongs to a connection and is passed over."""
    values = {
        "PayloadFormatIndicator": content.payload_format,
        "ContentType": content.content_type,
        "ResponseTopic": content.response_topic,
        "CorrelationData": content.correlation_data,
        "MessageExpiryInterval": content.expiry_seconds,
        "UserProperty": content.user_properties,
        "TopicAlias": alias,
    }
    given_values = {name: value for name, value in values.items() if value is not None}
    assert read_block(pack(**given_values)) == content


@given(st.binary(max_size=200))
def test_any_bytes_are_read(raw: bytes) -> None:
    content = read_mqtt_content(stored(raw))
    assert read_block(write_block(content)).payload_format == content.payload_format


@given(st.text(max_size=40))
def test_any_text_is_read(packed: str) -> None:
    assert isinstance(read_mqtt_content(packed), MqttContent)


def test_what_was_found_before_the_damage_counts() -> None:
    whole = pack(ContentType="a/b", UserProperty=[("n", "1"), ("n", "2")])
    content = read_block(whole[:-1])
    assert (content.content_type, content.user_properties) == ("a/b", [("n", "1")])
    assert read_block(b"\x01\x01\x7f" + whole) == MqttContent(payload_format=1)
    # A Subscription Identifier is passed over, one without an end is not.
    assert read_block(b"\x0b\xff\xff\xff\x7f" + whole).content_type == "a/b"
    assert read_block(b"\x0b\xff\xff\xff\xff" + whole) == MqttContent()


def test_as_many_user_properties_as_the_limit_are_read_and_written() -> None:
    pairs = [("n", str(number)) for number in range(USER_PROPERTIES_MAX + 1)]
    block = pack(UserProperty=pairs)
    assert read_block(block).user_properties == pairs[:-1]
    assert read_block(write_block(MqttContent(user_properties=pairs))).user_properties == pairs[:-1]


# --- writing ----------------------------------------------------------------------------------


@given(
    st.dictionaries(
        st.sampled_from(["content-type", "REPLY_TO", "CORRELATION_ID", "TTL", "KEYS", "CE_id"])
        | st.text(max_size=12),
        st.text(max_size=40) | st.just("a/b"),
        max_size=8,
    ),
    st.none() | st.integers(1, 0xFFFF_FFFF),
)
def test_any_properties_become_a_block_that_a_client_reads(
    properties: dict[str, str], expiry: int | None
) -> None:
    """Well-formed, and without a character that a receiver may close its connection for."""
    read = unpack(mqtt_block(properties, expiry_seconds=expiry))
    assert read.get("MessageExpiryInterval") == expiry
    assert not any(
        ord(character) < 0x20
        for pair in read.get("UserProperty", [])
        for character in "".join(pair)
    )


@given(st.text(max_size=20).map(lambda text: text + "\udcff"))
def test_text_is_what_mqtt_allows(text: str) -> None:
    written = text_bytes(text)
    assert written.endswith(b"%FF")
    assert mqtt_properties._ESCAPES.keys().isdisjoint(map(ord, written.decode()))


def test_characters_that_are_not_allowed_are_escaped_as_in_urls() -> None:
    assert text_bytes("a\x00b\nc\ufffed\udc80\ud800e % €") == (
        "a%00b%0Ac%EF%BF%BEd%80%3Fe % €".encode()
    )


def test_what_does_not_fit_is_left_out_whole() -> None:
    """The rest comes in its order; the block is never longer than its bound."""
    half = "x" * (BLOCK_BYTES_MAX // 2)
    properties = {"first": half, "second": half, "third": "short"}
    block = mqtt_block(properties)
    assert read_block(block).user_properties == [("first", half), ("third", "short")]
    assert len(block) <= BLOCK_BYTES_MAX
    assert mqtt_block({"content-type": "x" * (TEXT_BYTES_MAX + 1)}) == b""
    full = [("n", "x" * 251)] * 128  # 257 bytes each: one more than half of what fits
    assert len(write_block(MqttContent(user_properties=full))) == 127 * 257


def test_what_rocketmq_has_names_for() -> None:
    block = mqtt_block(
        {
            "TAGS": "t",
            "WAIT": "true",
            "UNIQ_KEY": "AC11",
            "PMQ_PROTO": "rocketmq",
            "__CRC32#": "1",
            "content-type": "a/b",
            "REPLY_TO": "clients.7.v1/2",
            "CORRELATION_ID": "c-1",
            "TTL": "1500",
            "KEYS": "k1 k2",
            "colour": "red",
        },
        expiry_seconds=2,
    )
    assert unpack(block) == {
        "ContentType": "a/b",
        "ResponseTopic": "clients/7/v1.2",
        "CorrelationData": b"c-1",
        "MessageExpiryInterval": 2,
        "UserProperty": [("KEYS", "k1 k2"), ("colour", "red")],
    }


def test_what_amqp_has_names_for() -> None:
    pairs = short(b"colour") + b"S\x00\x00\x00\x03red" + short(b"n") + b"I\x00\x00\x00\x07"
    values = short(b"a/b") + short(b"gzip") + struct.pack(">I", len(pairs)) + pairs + b"\x02\x09"
    values += short(b"\xff\x01") + short(b"rpc.replies") + short(b"1500") + short(b"m-1")
    values += struct.pack(">Q", 1_790_000_000) + short(b"order") + short(b"ann") + short(b"shop")
    assert unpack(mqtt_block(amqp(0xFFF8, values))) == {
        "ContentType": "a/b",
        "ResponseTopic": "rpc.replies",
        "CorrelationData": b"\xff\x01",
        "UserProperty": [
            ("KEYS", "m-1"),
            ("colour", "red"),
            ("n", "7"),
            ("amqp.content_encoding", "gzip"),
            ("amqp.priority", "9"),
            ("amqp.timestamp", "1790000000"),
            ("amqp.type", "order"),
            ("amqp.user_id", "ann"),
            ("amqp.app_id", "shop"),
        ],
    }


def test_a_cloud_event_of_http_follows_the_binding() -> None:
    """Attributes without a prefix; the media type is the Content Type, and no user property."""
    properties = {
        "PMQ_PROTO": "http",
        "KEYS": "e-1",
        "CE_specversion": "1.0",
        "CE_id": "e-1",
        "CE_source": "/s",
        "CE_type": "t",
        "CE_datacontenttype": "application/json",
        "content-type": "application/json",
        "PMQ_CE_MODE": "structured-json",
    }
    assert unpack(mqtt_block(properties)) == {
        "PayloadFormatIndicator": 1,
        "ContentType": "application/json",
        "UserProperty": [("specversion", "1.0"), ("id", "e-1"), ("source", "/s"), ("type", "t")],
    }


@pytest.mark.parametrize("prefix", ["ce__", "cloudEvents_"])
def test_a_cloud_event_of_amqp_follows_the_binding(prefix: str) -> None:
    names = ("specversion", "id", "datacontenttype")
    headers = {prefix + name: name for name in names} | {"other": "o", "id": "no attribute"}
    assert unpack(mqtt_block(amqp_headers(**headers))) == {
        "UserProperty": [("specversion", "specversion"), ("id", "id"), ("other", "o")]
    }


def test_events_of_other_rocketmq_clients() -> None:
    """An attribute has the last word over a user property of its name."""
    properties = {"CE_id": "1", "CE_contentType": "a/b", "id": "2", "bare": "x", "KEYS": "k"}
    assert unpack(mqtt_block(properties)) == {
        "ContentType": "a/b",
        "UserProperty": [("id", "1"), ("bare", "x"), ("KEYS", "k")],
    }


@pytest.mark.parametrize(
    ("content_type", "is_text"),
    [
        ("text/plain; charset=utf-8", True),
        ('Text/CSV;header=present; Charset="UTF-8"', True),
        ("text/plain;charset=utf8", True),
        ("application/cloudevents+json", True),
        ("application/cloudevents+json; charset=UTF-8", True),
        ("application/cloudevents+json; charset=utf-16", False),
        ("application/cloudevents-batch+json", False),
        ("text/plain", False),
        ("text/plain; charset=latin-1", False),
        ("application/json", False),
        ("application/x; charset=utf-8", False),
        ("text/plain; x=charset=utf-8", False),
    ],
)
def test_only_what_says_that_it_is_utf8_is_said_to_be(content_type: str, is_text: bool) -> None:
    """A subscriber may refuse a payload that is not what its indicator says."""
    read = unpack(mqtt_block({"content-type": content_type}))
    assert read.get("PayloadFormatIndicator") == (1 if is_text else None)


@pytest.mark.parametrize(
    "reply_to", ["", "a+", "a#", "$SYS", "a|2fb", "a/b", "amq.rabbitmq.reply-to.g1h2", "a\x00b"]
)
def test_a_reply_to_that_no_topic_name_can_be_is_a_user_property(reply_to: str) -> None:
    """Of AMQP. A queue's name with `/` would be another topic."""
    (user_property,) = unpack(mqtt_block(amqp(0x0200, short(reply_to.encode()))))["UserProperty"]
    assert user_property == ("REPLY_TO", reply_to.replace("\x00", "%00"))


def test_correlation_ids_that_are_no_text() -> None:
    packed = {"CORRELATION_ID_BASE64": base64.b64encode(b"\xff\x00").decode()}
    assert unpack(mqtt_block(packed)) == {"CorrelationData": b"\xff\x00"}
    assert mqtt_block({"CORRELATION_ID_BASE64": "no base64"}) == b""
    assert unpack(mqtt_block({"CORRELATION_ID": "\udcff"})) == {"CorrelationData": b"\xff"}


def test_a_response_topic_as_others_address_it() -> None:
    """Several levels swap `/` and `.`; a single one is the name of a queue or topic."""
    assert reply_address("clients/7/v1.2") == "clients.7.v1/2"
    assert reply_address("rpc.replies") == "rpc.replies"


@pytest.mark.parametrize(
    ("properties", "waited_ms", "left"),
    [
        ({}, 0, None),
        ({"PMQ_X": "0000000005"}, 0, None),
        ({"PMQ_X": f"{60_000 + 1:08x}00"}, 0, 60),
        ({"PMQ_X": f"{60_000 + 1:08x}00"}, 10_999, 50),
        ({"PMQ_X": f"{1_500 + 1:08x}00"}, 0, 2),
        ({"PMQ_X": f"{60_000 + 1:08x}00"}, 70_000, 1),
        ({"TTL": "60000"}, 1_000, 59),
        ({"TTL": "one day"}, 0, None),
        ({"TTL": "9" * 13}, 0, 0xFFFF_FFFF),
        ({"TTL": "9" * 5_000}, 0, None),
        ({"TTL": "60000", "PMQ_DEATH": "{}"}, 0, None),
    ],
)
def test_what_is_left_of_a_time_to_live(
    properties: dict[str, str], waited_ms: int, left: int | None
) -> None:
    assert expiry_seconds_left(properties, waited_ms) == left


def test_properties_behind_amqps_message_id_are_read() -> None:
    """And those that are cut short are not."""
    content = read_amqp_content(amqp(0x0028, short(b"order") + b"\x09shop")[AMQP_PROPERTY])
    assert content.others == {"type": "order"}
