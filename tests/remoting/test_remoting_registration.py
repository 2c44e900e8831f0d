"""The registration of a broker: both forms, and what may be wrong with them."""

from __future__ import annotations

import json
import struct
import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymq.remoting import registration as module
from polymq.remoting.errors import BadFields
from polymq.remoting.headers import read_fields, write_fields
from polymq.remoting.name_fields import RegisterFields
from polymq.remoting.registration import (
    SLICE_TOPICS,
    DataVersion,
    Registration,
    TopicConfig,
    TopicTable,
    body_checksum,
    decode_data_version,
    decode_registration,
    encode_registration,
    pack_registration,
)
from polymq.remoting.steps import Pause

EXAMPLE = Registration(
    topics=TopicTable(
        data_version=DataVersion(counter=3, state_version=1, timestamp=99),
        topic_config_table={
            "t": TopicConfig(topic_name="t", read_queue_nums=8, write_queue_nums=4, perm=6),
            "%RETRY%g": TopicConfig(
                topic_name="%RETRY%g", read_queue_nums=1, write_queue_nums=1, perm=6,
                attributes={"message.type": "FIFO"},
            ),
        },
    ),
    filter_server_list=["10.0.0.1:1"],
)  # fmt: skip


def sized(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def packed(registration: Registration, *, mappings: bool = True) -> bytes:
    """The compressed form, as RocketMQ's brokers write it."""
    table = registration.topics.topic_config_table
    parts = [sized(msgspec.json.encode(registration.topics.data_version))]
    parts.append(struct.pack(">i", len(table)))
    for config in table.values():
        row = (
            f"{config.topic_name} {config.read_queue_nums} {config.write_queue_nums} "
            f"{config.perm} {config.topic_filter_type}"
        )
        if config.attributes is not None:
            row += " " + json.dumps(config.attributes)
        parts.append(sized(row.encode()))
    parts.append(sized(json.dumps(registration.filter_server_list).encode()))
    if mappings:
        parts.append(struct.pack(">i", 1) + sized(b'{"topic":"t","totalQueues":8}'))
    return zlib.compress(b"".join(parts))


def test_json_there_and_back() -> None:
    body, crc = encode_registration(EXAMPLE)
    assert decode_registration(body) == EXAMPLE
    assert crc == zlib.crc32(body) & 0x7FFFFFFF
    wire = json.loads(body)
    assert set(wire) == {"topicConfigSerializeWrapper", "filterServerList"}
    assert wire["topicConfigSerializeWrapper"]["dataVersion"] == {
        "counter": 3, "stateVersion": 1, "timestamp": 99
    }  # fmt: skip


@pytest.mark.parametrize("mappings", [True, False])
def test_the_compressed_form_says_the_same(mappings: bool) -> None:
    """Before version 5 it ends behind the filter servers."""
    assert decode_registration(packed(EXAMPLE, mappings=mappings)) == EXAMPLE


def test_a_packed_table_says_the_same_and_is_written_in_slices() -> None:
    """Name servers of RocketMQ read this form, too."""
    names = [f"topic-{number}" for number in range(3 * SLICE_TOPICS + 1)]
    topics = [
        TopicConfig(topic_name=name, read_queue_nums=4, write_queue_nums=2, perm=6)
        for name in names
    ]
    topics.append(TopicConfig(topic_name="last", attributes={"message.type": "FIFO"}))
    packing = pack_registration(DataVersion(counter=5, state_version=7), topics)
    pauses = 0
    try:
        while True:
            assert next(packing) == Pause(seconds=0)
            pauses += 1
    except StopIteration as done:
        body, crc, count = done.value
    assert (pauses, count) == (6, len(topics)), "to write three slices, and to deflate them"
    assert crc == body_checksum(body)
    assert len(body) < 20 * count
    read = decode_registration(body)
    assert read.topics.data_version == DataVersion(counter=5, state_version=7)
    assert list(read.topics.topic_config_table.values()) == topics
    assert read.filter_server_list == []


def test_a_body_of_rocketmq_5_is_read() -> None:
    """It has keys that we pass over, and nulls where older ones have nothing."""
    body = json.dumps(
        {
            "filterServerList": [],
            "topicConfigSerializeWrapper": {
                "dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 5},
                "topicConfigTable": {
                    "t": {
                        "topicName": "t", "readQueueNums": 8, "writeQueueNums": 8, "perm": 6,
                        "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False,
                        "attributes": {},
                    }
                },
                "topicQueueMappingInfoMap": {}, "topicQueueMappingDetailMap": {},
                "mappingDataVersion": {"counter": 0, "stateVersion": 0, "timestamp": 5},
            },
        }
    ).encode()  # fmt: skip
    assert decode_registration(body).topics.topic_config_table["t"].read_queue_nums == 8


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"{}",
        b'{"topicConfigSerializeWrapper": null}',
        b'{"topicConfigSerializeWrapper": {"topicConfigTable": {"t": {"perm": "x"}}}}',
        b"no zlib",
        packed(EXAMPLE)[:-9],
        zlib.compress(b"\x00\x00\x00\xff{}"),
        zlib.compress(b"\xff\xff\xff\xff{}"),
        zlib.compress(sized(b"{}") + b"\x7f\xff\xff\xff"),
        zlib.compress(sized(b"{}") + struct.pack(">i", 1) + sized(b"t 8 8 6")),
        zlib.compress(sized(b"{}") + struct.pack(">i", 1) + sized(b"t 8 x 6 SINGLE_TAG")),
        zlib.compress(sized(b"\xff")),
    ],
)
def test_what_is_damaged_is_refused(body: bytes) -> None:
    with pytest.raises(BadFields, match=r"registration"):
        decode_registration(body)


def test_a_body_that_unpacks_to_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame of 16 MiB could become 16 GiB."""
    monkeypatch.setattr(module, "BODY_BYTES_MAX", 1000)
    with pytest.raises(BadFields, match="more than 1000 bytes"):
        decode_registration(zlib.compress(bytes(100_000)))


@given(st.binary(max_size=200))
def test_no_bytes_do_more_than_be_refused(data: bytes) -> None:
    for body in (data, zlib.compress(data), b"{" + data):
        try:
            decode_registration(body)
        except BadFields:
            pass


def test_a_checksum_has_no_sign() -> None:
    assert all(0 <= body_checksum(bytes([value])) < 2**31 for value in range(256))


def test_a_data_version_that_is_none_is_refused() -> None:
    assert decode_data_version(b'{"counter": 1}') == DataVersion(counter=1)
    for wrong in (b"", b"[]", b'{"counter": 9223372036854775808}'):
        with pytest.raises(BadFields):
            decode_data_version(wrong)


def test_the_header_travels_under_javas_names() -> None:
    header = RegisterFields(
        cluster_name="c", broker_name="b", broker_addr="h:1", ha_server_addr="h:2", body_crc32=7
    )
    written = write_fields(header)
    assert written == {
        "clusterName": "c", "brokerName": "b", "brokerAddr": "h:1", "brokerId": "0",
        "haServerAddr": "h:2", "compressed": "false", "bodyCrc32": "7", "pmqComplete": "false",
    }  # fmt: skip
    assert read_fields(RegisterFields, {**written, "ns": "ignored"}) == header
