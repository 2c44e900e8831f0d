"""PUBLISH packets from records of the log: both forms of the kernels agree on every input."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interop_tests import mqtt_wire as wire
from polymq.gateways.mqtt.kernels import publishes
from tests.gateways.mqtt.mqtt_records import record, records
from tests.gateways.mqtt.test_mqtt_kernels import identifiers, outcome
from tests.harness.forms import form_id, forms_of

FORMS = forms_of(publishes.__name__)
both_forms = pytest.mark.parametrize("kernels", FORMS, ids=form_id)


@both_forms
@given(
    bodies=st.lists(st.binary(max_size=300), max_size=8),
    qos=st.integers(0, 2),
    first_id=identifiers,
    retain=st.booleans(),
    lead=st.binary(max_size=9),
)
def test_records_become_publishes(
    kernels: Any, bodies: list[bytes], qos: int, first_id: int, retain: bool, lead: bytes
) -> None:
    memory = bytearray(lead + records(bodies) + lead)
    expected = b"".join(
        wire.publish("s/t", body, qos=qos, packet_id=(first_id - 1 + k) % 65_535 + 1, retain=retain)
        for k, body in enumerate(bodies)
    )
    end = len(memory) - len(lead)
    first_byte = 0x30 | qos << 1 | retain
    answer = kernels.encode_publishes(
        memory, len(lead), end, wire.field("s/t"), first_byte, first_id
    )
    assert answer == expected


@pytest.mark.parametrize("size", [0, 1, 120, 121, 122, 125, 16_380, 16_384, 2_097_152])
@both_forms
def test_every_size_of_remaining_length(kernels: Any, size: int) -> None:
    """The length field grows by a byte at 128, 16,384 and 2,097,152."""
    memory = record(b"z" * size)
    for qos in (0, 1):
        answer = kernels.encode_publishes(
            memoryview(memory), 0, len(memory), wire.field("a"), 0x30 | qos << 1, 1
        )
        assert answer == wire.publish("a", b"z" * size, qos=qos, packet_id=1)


@pytest.mark.skipif(len(FORMS) == 1, reason="no compiled kernels on this machine")
@given(
    memory=st.binary(max_size=300)
    | st.builds(
        lambda bodies, at, byte: (
            (whole := bytearray(records(bodies))),
            whole.__setitem__(at % len(whole), byte),
            bytes(whole),
        )[2],
        st.lists(st.binary(max_size=20), min_size=1, max_size=4),
        st.integers(0, 400),
        st.integers(0, 255),
    ),
    first_byte=st.integers(-1, 260),
    first_id=st.integers(-1, 65_537),
)
def test_both_forms_deliver_and_refuse_alike(memory: bytes, first_byte: int, first_id: int) -> None:
    """Damaged records, bad ids: the same bytes or the same refusal, never a read outside."""
    answers = [
        outcome(
            form.encode_publishes, memory, 0, len(memory), wire.field("t"), first_byte, first_id
        )
        for form in FORMS
    ]
    assert answers[0] == answers[1]


@both_forms
def test_records_that_are_not_whole_are_refused(kernels: Any) -> None:
    whole = record(b"body")
    too_big = whole[:84] + (len(whole) - 90).to_bytes(4, "big") + whole[88:]
    for memory in [whole[:-1], whole + b"\x00", too_big, bytes(100)]:
        with pytest.raises(ValueError, match="whole records"):
            kernels.encode_publishes(memory, 0, len(memory), b"\x00\x01t", 0x30, 0)


# --- 5.0 -------------------------------------------------------------------------------------


def text(value: str) -> bytes:
    return wire.field(value)


PROPERTIES = {
    "format": b"\x01\x01",
    "expiry": b"\x02" + (60).to_bytes(4, "big"),
    "content type": b"\x03" + text("text/plain"),
    "response topic": b"\x08" + text("answers/to/me"),
    "correlation": b"\x09" + wire.field(b"\x00\xff"),
    "alias": b"\x23\x00\x05",
    "user": b"\x26" + text("name") + text("value"),
}


def stored(block: bytes, body: bytes = b"body", *, before: bytes = b"", at_ms: int = 0) -> bytes:
    """A record whose message came with this property block."""
    properties = (
        before + b"PMQ_MQTT5\x01" + base64.b64encode(block) + b"\x02" + b"__CRC32#\x01x\x02"
    )
    whole = bytearray(record(body, properties=properties))
    whole[40:48] = at_ms.to_bytes(8, "big")
    return bytes(whole)


def encode(
    kernels: Any,
    memory: bytes,
    *,
    first_byte: int = 0x30,
    packet_id: int = 1,
    prefix: int = 0,
    plain: bytes = b"",
    more: bytes = b"",
    now_ms: int = 0,
    size_max: int | None = None,
    again: bytes | None = None,
) -> Any:
    """Packets to the topic `t`, where none is left out; or the refusal."""
    answer = outcome(
        kernels.encode_publishes_5,
        memory,
        0,
        len(memory),
        text("t"),
        first_byte,
        packet_id,
        prefix,
        plain,
        more,
        now_ms,
        *(() if size_max is None else (size_max, again)),
    )
    if size_max is not None or isinstance(answer, str):
        return answer
    data, dropped = answer
    assert dropped == 0
    return data


def publish_5(block: bytes, body: bytes = b"body", *, qos: int = 0, packet_id: int = 0) -> bytes:
    """A PUBLISH of MQTT 5 to the topic `t`."""
    content = text("t") + (packet_id.to_bytes(2, "big") if qos else b"")
    content += wire.remaining_length(len(block)) + block + body
    return wire.packet(0x30 | qos << 1, content)


@both_forms
def test_properties_leave_as_they_came(kernels: Any) -> None:
    """In the order in which they came, and each user property [MQTT-3.3.2-17], [MQTT-3.3.2-18]."""
    names = ["user", "content type", "user", "response topic", "correlation", "format", "user"]
    block = b"".join(PROPERTIES[name] for name in names)
    assert encode(kernels, stored(block)) == publish_5(block)


@both_forms
@pytest.mark.parametrize("at", [0, 1, 2])
def test_an_alias_stays_with_the_connection_that_it_came_from(kernels: Any, at: int) -> None:
    """[MQTT-3.3.2-7]: wherever it stands in the block."""
    rest = [PROPERTIES["user"], PROPERTIES["format"]]
    block = b"".join([*rest[:at], PROPERTIES["alias"], *rest[at:]])
    assert encode(kernels, stored(block)) == publish_5(b"".join(rest))


@both_forms
@pytest.mark.parametrize(
    ("waited_ms", "left"), [(0, 60), (999, 60), (1000, 59), (59_999, 1), (99_000, 0), (-5000, 60)]
)
def test_what_is_left_of_an_expiry_interval_is_sent(
    kernels: Any, waited_ms: int, left: int
) -> None:
    """[MQTT-3.3.2-6]: less the whole seconds that the message waited here."""
    memory = stored(PROPERTIES["expiry"] + PROPERTIES["user"], at_ms=1_000_000)
    expected = b"\x02" + left.to_bytes(4, "big") + PROPERTIES["user"]
    assert encode(kernels, memory, now_ms=1_000_000 + waited_ms) == publish_5(expected)


@both_forms
def test_messages_without_properties_of_their_own_get_those_of_the_call(kernels: Any) -> None:
    """What another protocol's properties became; and behind all of them, what the receiver's
    subscription adds."""
    own, plain, more = PROPERTIES["user"], PROPERTIES["content type"], b"\x0b\x07"
    memory = record(b"1", properties=b"KEYS\x01a\x02") + stored(own, b"2") + record(b"3")
    expected = [(plain + more, b"1"), (own + more, b"2"), (plain + more, b"3")]
    assert encode(
        kernels, memory, first_byte=0x32, packet_id=65_535, plain=plain, more=more
    ) == b"".join(
        publish_5(block, body, qos=1, packet_id=packet_id)
        for (block, body), packet_id in zip(expected, [65_535, 1, 2], strict=True)
    )


@both_forms
def test_the_block_may_stand_behind_other_properties(kernels: Any) -> None:
    """Behind the constant part, and behind what marks a message of QoS 2."""
    block = PROPERTIES["user"]
    before = b"PMQ_P\x010000\x02" + b"PMQ_QOS2\x011.1\x02"
    memory = stored(block, before=before)
    assert encode(kernels, memory, prefix=11) == publish_5(block)
    assert encode(kernels, memory, prefix=len(before)) == publish_5(block)


@both_forms
def test_what_the_client_does_not_take_is_left_out(kernels: Any) -> None:
    """[MQTT-3.1.2-24]: to the byte. Its packet id is not used for another one."""
    bodies = [b"x" * size for size in (10, 200, 11, 10)]
    memory = records(bodies)

    def sent(size_max: int) -> Any:
        return encode(kernels, memory, first_byte=0x32, packet_id=65_534, size_max=size_max)

    packets = [
        publish_5(b"", body, qos=1, packet_id=packet_id)
        for body, packet_id in zip(bodies, [65_534, 65_535, 1, 2], strict=True)
    ]
    assert sent(1 << 28) == (b"".join(packets), 0)
    assert sent(len(packets[1])) == (b"".join(packets), 0)
    assert sent(len(packets[2])) == (packets[0] + packets[2] + packets[3], 1)
    assert sent(len(packets[0])) == (packets[0] + packets[3], 2)
    assert sent(1) == (b"", 4)


@both_forms
def test_the_topic_is_said_until_a_packet_is_sent(kernels: Any) -> None:
    """Where the first packets are left out, the next one has the topic; all behind it have what
    stands for it, whatever the sizes."""
    bodies = [b"x" * 200, b"y" * 300, b"1", b"z" * 200, *(b"%d" % number for number in range(50))]
    memory = records(bodies)
    for size_max, first in ((1 << 20, 0), (100, 2)):
        data, dropped = encode(kernels, memory, size_max=size_max, again=b"\0\0")
        names = [text("t"), *[b"\0\0"] * len(bodies)]
        sent = [body for body in bodies if len(body) < size_max]
        assert sent[0] == bodies[first]
        assert dropped == len(bodies) - len(sent)
        assert data == b"".join(
            wire.packet(0x30, name + b"\0" + body) for name, body in zip(names, sent, strict=False)
        )
    assert encode(kernels, memory, size_max=1, again=b"\0\0") == (b"", len(bodies))
    refused = encode(kernels, memory, size_max=1, again=b"\0\2tt")
    assert refused == "the topic field is longer where it is repeated"


@both_forms
@pytest.mark.parametrize("size", [1, 120, 127, 128, 16_383, 16_384, 24_000])
def test_every_size_of_property_length(kernels: Any, size: int) -> None:
    block = b"\x09" + wire.field(b"z" * size)
    assert encode(kernels, stored(block)) == publish_5(block)


@both_forms
@pytest.mark.parametrize(
    "damaged",
    [b"\x02\x00", b"\x23\x00", b"\x01", b"\x26\x00\x01a", b"\x03\x00", b"\x03", b"\x03\xff\xffa"],
)
def test_a_damaged_block_is_refused(kernels: Any, damaged: bytes) -> None:
    assert encode(kernels, stored(damaged)) == "a property block is damaged"


blocks = st.lists(st.sampled_from(sorted(PROPERTIES.values())), max_size=6).map(b"".join)


@pytest.mark.skipif(len(FORMS) == 1, reason="no compiled kernels on this machine")
@given(
    pieces=st.lists(
        st.builds(stored, blocks | st.binary(max_size=9), st.binary(max_size=140))
        | st.builds(record, st.binary(max_size=40)),
        max_size=4,
    ),
    damage=st.none() | st.tuples(st.integers(0, 2000), st.integers(0, 255)),
    first_byte=st.sampled_from([0x30, 0x32, 0x34, 0x33, 256, -1]),
    packet_id=st.sampled_from([0, 1, 65_535]),
    prefix=st.sampled_from([-1, 0, 3, 200]),
    plain=st.binary(max_size=200),
    now_ms=st.integers(0, 1 << 45),
    size_max=st.sampled_from([1, 20, 60, 1 << 20]),
    again=st.sampled_from([None, b"\0\0", b"\0\2tt"]),
)
def test_both_forms_encode_and_refuse_alike(
    pieces: list[bytes],
    damage: tuple[int, int] | None,
    first_byte: int,
    packet_id: int,
    prefix: int,
    plain: bytes,
    now_ms: int,
    size_max: int,
    again: bytes | None,
) -> None:
    """Whatever is in the records: the same packets, or the same refusal."""
    memory = bytearray(b"".join(pieces))
    if damage is not None and memory:
        memory[damage[0] % len(memory)] = damage[1]
    first, second = (
        encode(
            form,
            bytes(memory),
            first_byte=first_byte,
            packet_id=packet_id,
            prefix=prefix,
            plain=plain,
            more=b"\x0b\x01",
            now_ms=now_ms,
            size_max=size_max,
            again=again,
        )
        for form in FORMS
    )
    assert first == second
