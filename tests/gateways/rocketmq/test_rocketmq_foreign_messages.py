"""Messages of AMQP and MQTT 5 in RocketMQ's words: what an unusual message becomes. The usual ones
are in the table of `tests/gateways/test_property_table.py`, and meet a whole server in
`interop_tests/test_rocketmq_with_others.py`."""

from __future__ import annotations

import base64
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymq.gateways.rocketmq.foreign_messages import as_rocketmq
from polymq.gateways.rocketmq.retries import order_of
from polymq.remoting.broker_fields import SendBackFields
from polymq.remoting.errors import RemoteProtocolError
from polymq.remoting.messages import PROPERTIES_BYTES_MAX
from polymq.remoting.records import (
    encode_record,
    iterate_records,
    message_of,
    parse_properties,
    split_body,
)
from tests.harness.mqtt5 import pack, stored


def packed(headers: dict[str, str]) -> str:
    """Content properties with headers of long strings."""
    table = b"".join(
        struct.pack(">B", len(name)) + name.encode() + b"S" + struct.pack(">I", len(raw)) + raw
        for name, value in headers.items()
        for raw in [value.encode()]
    )
    return base64.b64encode(struct.pack(">HI", 0x2000, len(table)) + table).decode()


def record(body: bytes, properties: dict[str, str]) -> bytes:
    """One record."""
    return encode_record(
        topic="t", body=body, properties=properties, queue_offset=0, position=0, born_ms=1
    )  # fmt: skip


def address_of(records: bytes) -> list[dict[str, str]]:
    """The properties of what comes out, which has to be whole records with sound bodies."""
    return [parse_properties(one.properties) for one in iterate_records(as_rocketmq(records))]


def test_only_what_came_over_amqp_is_written_anew() -> None:
    """Also where another message's body looks like it."""
    plain = record(b"PMQ_AMQP\x01abc\x02", {"n": "1"})
    amqp = record(b"x", {"PMQ_AMQP": packed({"n": "2"})})
    assert as_rocketmq(plain) == plain
    assert [address["n"] for address in address_of(plain + amqp + plain)] == ["1", "2", "1"]


def test_separators_are_escaped() -> None:
    address = address_of(record(b"", {"PMQ_AMQP": packed({"a": "1\x012\x023", "b": "4"})}))
    assert (address[0]["a"], address[0]["b"]) == ("1%012%023", "4")


def test_what_is_there_stays_and_no_header_becomes_an_order() -> None:
    headers = {"n": "theirs", "DELAY": "18", "KEYS": "k", "PMQ_S": "1", "TAGS": "t"}
    given = {"PMQ_AMQP": packed(headers), "n": "ours"}
    assert address_of(record(b"", given)) == [given]


def test_what_does_not_fit_is_left_out() -> None:
    headers = {"long": "x" * 15_000, "short": "y"}
    (address,) = address_of(record(b"", {"PMQ_AMQP": packed(headers)}))
    assert "long" not in address
    assert address["short"] == "y"
    assert len(address["PMQ_AMQP"]) < PROPERTIES_BYTES_MAX


def test_damaged_properties_are_handed_on() -> None:
    given = {"PMQ_AMQP": "no base64!"}
    assert address_of(record(b"b", given)) == [given]


def long_record(body: bytes) -> bytes:
    """A record with AMQP properties in front of its body, and others behind it."""
    amqp = b"all of them"
    constant = {"PMQ_P": "0000", "PMQ_LONG": "1"}
    size = sum(len(name) + len(value) + 2 for name, value in constant.items())
    constant["PMQ_P"] = f"{size:04x}"
    front = struct.pack(">I", len(amqp)) + amqp
    return record(front + body, {**constant, "PMQ_AMQP": packed({"n": "2"})})


def test_only_who_asks_gets_amqps_properties_in_front_of_the_body() -> None:
    """All others the body alone, with a sound checksum, and what of the headers fits."""
    records = record(b"x", {"PMQ_AMQP": packed({"n": "1"})}) + long_record(b"y" * 1000)
    for whole in (True, False):
        first, second = iterate_records(as_rocketmq(records, whole=whole))
        assert first.body == b"x"
        shown = parse_properties(second.properties)
        assert (shown["n"], shown["PMQ_LONG"]) == ("2", "1" if whole else "0")
        assert split_body(second) == ((b"all of them", b"y" * 1000) if whole else None)
        assert message_of(second)[1] == b"y" * 1000
        assert len(second.body) == (1015 if whole else 1000)
    whole_amqp = base64.b64encode(b"all of them").decode()
    (record_in_log,) = iterate_records(long_record(b""))
    assert message_of(record_in_log)[0]["PMQ_AMQP"] == whole_amqp


def test_a_body_too_short_for_its_properties_is_damaged() -> None:
    (damaged,) = iterate_records(record(b"\x00\x00\x00\x05abcd", {"PMQ_LONG": "1"}))
    with pytest.raises(RemoteProtocolError, match="beyond its body"):
        split_body(damaged)


# --- MQTT 5 -----------------------------------------------------------------------------------


def test_only_what_came_over_mqtt_5_is_written_anew() -> None:
    """Whatever stands beside it in one pull; equal properties become equal ones."""
    plain = record(b"PMQ_MQTT5\x01abc\x02", {"n": "1"})
    block = {"PMQ_MQTT5": stored(pack(UserProperty=[("n", "2"), ("n", "3")]))}
    mqtt = record(b"x", block)
    amqp = record(b"x", {"PMQ_AMQP": packed({"n": "4"})})
    assert as_rocketmq(plain) == plain
    found = address_of(plain + mqtt + amqp + mqtt)
    assert [properties["n"] for properties in found] == ["1", "2", "4", "2"]
    assert found[1]["PMQ_MQTT5"] == block["PMQ_MQTT5"]


def test_no_user_property_is_taken_for_another() -> None:
    """Neither for one that RocketMQ acts on or that the broker has, nor for one of MQTT 5."""
    pairs = [("TTL", "1"), ("KEYS", "k"), ("DELAY", "3"), ("PMQ_S", "1"), ("", "x"), ("n", "1")]
    (found,) = address_of(record(b"", {"PMQ_MQTT5": stored(pack(UserProperty=pairs))}))
    del found["PMQ_MQTT5"]
    assert found == {"n": "1"}


@given(st.binary(max_size=200) | st.text(max_size=40))
def test_any_block_is_survived(raw: bytes | str) -> None:
    value = (
        stored(raw) if isinstance(raw, bytes) else "".join(raw.split("\x01")).replace("\x02", "")
    )
    properties = {"PMQ_MQTT5": value.encode("utf-8", "replace").decode()}
    (found,) = address_of(record(b"b", properties))
    assert found["PMQ_MQTT5"] == properties["PMQ_MQTT5"]


# --- given back -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "given_back",
    [{"PMQ_MQTT5": stored(pack(UserProperty=[("n", "2")]))}, {"PMQ_AMQP": packed({"n": "2"})}],
)
@pytest.mark.parametrize("level", [0, -1])
def test_what_is_given_back_has_the_properties_that_it_came_with(
    given_back: dict[str, str], level: int
) -> None:
    """In a retry and as a dead letter; a consumer sees the same as the first time."""
    (sent,) = iterate_records(record(b"x", given_back | {"PMQ_S": "1.2"}))
    order = order_of(sent, SendBackFields(offset=0, group="g", delay_level=level))
    again = parse_properties(order.messages[0].extra)
    assert given_back.items() <= again.items()
    assert "PMQ_S" not in again
    assert address_of(record(b"x", again))[0]["n"] == "2"


def test_what_leaves_no_room_is_given_back_without() -> None:
    block = {"PMQ_MQTT5": stored(pack(UserProperty=[("n", "x" * 23_200)]))}
    (sent,) = iterate_records(record(b"x", block | {"colour": "red"}))
    order = order_of(sent, SendBackFields(offset=0, group="g"))
    assert "PMQ_MQTT5" not in parse_properties(order.messages[0].extra)
    assert parse_properties(order.messages[0].extra)["colour"] == "red"
