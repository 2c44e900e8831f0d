"""Commit-log records in pull answers: all shapes that RocketMQ's clients know, and damaged ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymq.remoting.errors import RemoteProtocolError
from polymq.remoting.records import iterate_records, parse_properties
from tests.remoting.record_builder import HOST_V4, HOST_V6, build_properties, build_record


def test_the_fields_of_a_record() -> None:
    properties = build_properties(TAGS="room1.temp", KEYS="a b")
    data = build_record(
        queue_id=2,
        queue_offset=41,
        position=4096,
        body=b"\x00\xff",
        properties=properties,
        flag=7,
        system_flag=8,
        born_ms=10,
        store_ms=20,
    )
    (record,) = iterate_records(data)
    assert record.topic == "sensors"
    assert (record.queue_id, record.queue_offset, record.position) == (2, 41, 4096)
    assert (record.flag, record.system_flag) == (7, 8)
    assert (record.born_ms, record.store_ms) == (10, 20)
    assert (record.born_host, record.store_host) == (HOST_V4, HOST_V4)
    assert record.body == b"\x00\xff"
    assert parse_properties(record.properties) == {"TAGS": "room1.temp", "KEYS": "a b"}


def test_the_message_id_is_store_host_port_and_position() -> None:
    (record,) = iterate_records(build_record(position=0x1234))
    assert record.offset_message_id == "7F00000100002A9F0000000000001234"


def test_ipv6_hosts_and_long_topics() -> None:
    """System flags 0x10 and 0x20 lengthen the hosts; V2 has two bytes of topic size."""
    data = build_record(topic="t" * 200, system_flag=0x30, magic=0xDAA320AB, body=b"x")
    (record,) = iterate_records(data)
    assert record.topic == "t" * 200
    assert (record.born_host, record.store_host) == (HOST_V6, HOST_V6)
    assert len(record.offset_message_id) == 56
    (record,) = iterate_records(build_record(system_flag=0x10, body=b"y"))
    assert (record.born_host, record.store_host, record.body) == (HOST_V6, HOST_V4, b"y")


def test_records_come_in_order_and_empty_ones_are_records() -> None:
    data = b"".join(build_record(queue_offset=n, body=b"x" * n) for n in range(5))
    assert [record.queue_offset for record in iterate_records(data)] == [0, 1, 2, 3, 4]
    assert list(iterate_records(b"")) == []


def test_a_damaged_body_is_found() -> None:
    data = build_record(body=b"21.5", body_crc=1)
    with pytest.raises(RemoteProtocolError, match="damaged"):
        list(iterate_records(data))
    assert [record.body for record in iterate_records(data, verify=False)] == [b"21.5"]


@given(position=st.integers(0, 200), value=st.integers(0, 255), cut=st.integers(0, 200))
def test_any_damage_is_a_record_or_a_protocol_error(position: int, value: int, cut: int) -> None:
    """Never another exception, never an endless loop."""
    data = bytearray(build_record(properties=build_properties(TAGS="x")) * 2)
    data[position % len(data)] = value
    try:
        list(iterate_records(bytes(data), verify=False))
        list(iterate_records(bytes(data[:cut]), verify=False))
    except RemoteProtocolError:
        pass


def test_properties_as_clients_write_them() -> None:
    """The last separator may be missing; a pair without a name end is dropped; some is no UTF-8."""
    assert parse_properties(b"") == {}
    assert parse_properties(b"A\x011\x02B\x01\x02C\x01x=\x01y") == {
        "A": "1",
        "B": "",
        "C": "x=\x01y",
    }
    assert parse_properties(b"A\x011\x02junk\x02") == {"A": "1"}
    assert parse_properties(b"A\x01\xff\x02") == {"A": "\udcff"}
