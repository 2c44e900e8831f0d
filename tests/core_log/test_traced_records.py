"""Finding records of sampled traces: both forms of the kernel find the same."""

from __future__ import annotations

from base64 import b64encode
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymq.core_log.kernels.layout import SYSTEM_TOPIC
from polymq.remoting.records import encode_record
from tests.harness.forms import form_id, forms_of

NAME = "polymq.core_log.kernels.traced"
PARENT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0"
AMQP_HEADER = b"\x20\x00\x00\x00\x00\x48\x0btraceparentS\x00\x00\x00\x37"
USER_PROPERTY = b"\x26\x00\x0btraceparent\x00\x37"


def record(topic: str = "orders", body: bytes = b"body", **properties: str) -> bytes:
    return record_of(topic, body, properties)


def record_of(topic: str, body: bytes, properties: dict[str, str]) -> bytes:
    """A record of the form that the log has; its checksum is not looked at."""
    properties = properties | {"__CRC32#": "0" * 10}
    return encode_record(
        topic=topic, body=body, properties=properties, queue_offset=0, position=0, born_ms=0
    )


def packed(raw: bytes) -> str:
    return b64encode(raw).decode()


def traced(flag: str) -> list[bytes]:
    """A record for each place in which clients send it."""
    parent = PARENT + flag.encode()
    return [
        record(traceparent=parent.decode()),
        record(PMQ_PROTO="http", CE_id="1", traceparent=parent.decode(), KEYS="1"),
        record(PMQ_AMQP=packed(AMQP_HEADER + parent)),
        record(PMQ_MQTT5=packed(b"\x01\x01" + USER_PROPERTY + parent)),
        record(PMQ_MQTT5=packed(USER_PROPERTY + parent + b"\x26\x00\x01a\x00\x01b")),
    ]


NOT_FOUND = [
    record(),
    record(colour="traceparent"),
    record(body=b"traceparent\x01" + PARENT + b"1\x02"),
    record(traceparent="short"),
    record(traceparent=PARENT.decode().replace("-", "_") + "1"),
    record(TRACEPARENT=PARENT.decode() + "1"),
    record(PMQ_AMQP="traceparent"),
    record(PMQ_AMQP=packed(AMQP_HEADER + PARENT)),
    record(PMQ_MQTT5=packed(b"traceparent" * 9)),
    record(topic=SYSTEM_TOPIC.decode(), traceparent=PARENT.decode() + "1"),
]


@pytest.fixture(params=forms_of(NAME), ids=form_id)
def form(request: pytest.FixtureRequest) -> ModuleType:
    made: ModuleType = request.param
    return made


@pytest.mark.parametrize("flag", "0123456789abcdef")
def test_only_sampled_traces_are_found(form: ModuleType, flag: str) -> None:
    """By the lowest bit of the flags; the other bits may mean anything."""
    records = [one for pair in zip(traced(flag), NOT_FOUND, strict=False) for one in pair]
    starts = [sum(map(len, records[:index])) for index in range(len(records))]
    memory = b"".join(records)
    expected = starts[::2] if int(flag, 16) & 1 else []
    assert form.find_sampled(memory, 0, len(memory)) == expected


def test_nothing_else_is_found(form: ModuleType) -> None:
    memory = b"".join(NOT_FOUND)
    assert form.find_sampled(memory, 0, len(memory)) == []


def test_what_is_no_record_is_an_error(form: ModuleType) -> None:
    for memory, start, end in ((bytes(200), 0, 200), (record(), 0, 10), (record(), -1, 50)):
        with pytest.raises(ValueError, match="not a record"):
            form.find_sampled(memory, start, end)
    with pytest.raises(ValueError, match="not a record"):
        form.find_sampled(record(), 0, 10_000)


PIECES = st.sampled_from(
    [b"traceparent", PARENT + b"1", PARENT + b"f", PARENT + b"0", b"\x00\x37", b"\x26", b"S", b"t"]
)
RAW = st.lists(PIECES | st.binary(max_size=3), max_size=8).map(b"".join)
VALUES = RAW.map(packed) | RAW.map(lambda raw: raw.decode("latin-1"))
NAMES = st.sampled_from(["traceparent", "PMQ_AMQP", "PMQ_MQTT5", "KEYS", "traceparen"])


@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_both_forms_find_the_same(properties: dict[str, str]) -> None:
    clean = {
        name: value.replace("\x01", "").replace("\x02", "") for name, value in properties.items()
    }
    memory = record_of("orders", b"body", clean) + traced("1")[0]
    first, *others = [form.find_sampled(memory, 0, len(memory)) for form in forms_of(NAME)]
    assert all(found == first for found in others)
