"""What the frame kernels make of packets of MQTT 5: properties, reason codes, and every way in
which they can be wrong. Both forms agree on every input."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interop_tests import mqtt_wire as wire
from polymq.core_log.kernels.batch import COLUMNS, EXTRA_SIZE, EXTRA_START, FLAGS, Batch
from polymq.gateways.mqtt.kernels import codes, frames
from tests.gateways.mqtt.test_mqtt_kernels import parse_call
from tests.gateways.mqtt.test_mqtt_publish_kernels import PROPERTIES, text
from tests.harness.forms import form_id, forms_of

FORMS = forms_of(frames.__name__)
both_forms = pytest.mark.parametrize("kernels", FORMS, ids=form_id)
only_compared = pytest.mark.skipif(len(FORMS) == 1, reason="no compiled kernels on this machine")


def publish(
    block: bytes,
    *,
    topic: str = "a/b",
    body: bytes = b"body",
    qos: int = 0,
    packet_id: int = 0,
) -> bytes:
    """A PUBLISH of MQTT 5."""
    content = text(topic) + (packet_id.to_bytes(2, "big") if qos else b"")
    content += wire.remaining_length(len(block)) + block + body
    return wire.packet(0x30 | qos << 1, content)


def ack(first_byte: int, packet_id: int, *more: int) -> bytes:
    """An acknowledgement with a reason code, and what may follow."""
    return wire.packet(first_byte, packet_id.to_bytes(2, "big") + bytes(more))


def stop_of(kernels: Any, packet: bytes) -> int:
    answer, rows, _, acks = parse_call(kernels, packet, five=True)
    assert answer[0] == codes.STOP_PARTIAL or (answer[1:], rows, acks) == ((0, 0, 0), [], [])
    stop: int = answer[0]
    return stop


@both_forms
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_row_says_where_the_properties_are(kernels: Any, qos: int) -> None:
    block = PROPERTIES["content type"] + PROPERTIES["user"]
    data = publish(block, qos=qos, packet_id=9 * (qos > 0)) + publish(b"", qos=qos, packet_id=7)
    answer, rows, runs, _ = parse_call(kernels, data, five=True)
    assert answer == (codes.STOP_PARTIAL, len(data), 2, 0)
    assert runs == [0, 1], "with properties and without are two kinds of messages"
    start, size = rows[EXTRA_START], rows[EXTRA_SIZE]
    assert data[start : start + size] == block
    assert data[rows[2] : rows[2] + rows[3]] == b"body"
    assert rows[FLAGS] == qos << 1 | codes.FLAG_PROPERTIES
    assert rows[COLUMNS + EXTRA_START : COLUMNS + EXTRA_SIZE + 1] == [0, 0]
    assert rows[COLUMNS + FLAGS] == qos << 1


@both_forms
def test_messages_with_different_properties_are_one_run(kernels: Any) -> None:
    """The unit of work is the batch: what differs from message to message does not break it."""
    data = b"".join(publish(b"\x26" + text("n") + text(str(n))) for n in range(50))
    answer, *_ = parse_call(kernels, data, five=True)
    assert answer == (codes.STOP_PARTIAL, len(data), 1, 0)


@both_forms
def test_an_expiry_interval_and_an_alias_are_in_the_flags(kernels: Any) -> None:
    """Those of all messages of a run are the same."""
    packets = [
        publish(PROPERTIES["alias"]),
        publish(PROPERTIES["alias"]),
        publish(b"\x23\xff\xff"),
        publish(b"\x02\xff\xff\xff\xff"),
        publish(b"\x02\x00\x00\x00\x00"),
    ]
    data = b"".join(packets)
    _, rows, runs, _ = parse_call(kernels, data, five=True)
    expires = codes.FLAG_EXPIRES | codes.FLAG_PROPERTIES
    assert runs == [0, 2, 3, 4]
    assert rows[FLAGS::COLUMNS] == [
        5 << codes.ALIAS_SHIFT,
        5 << codes.ALIAS_SHIFT,
        0xFFFF << codes.ALIAS_SHIFT,
        expires | 0xFFFF_FFFF << codes.EXPIRY_SHIFT,
        expires,
    ]


BROKEN = {
    "unknown": (b"\x04\x00", codes.MALFORMED_PROPERTY),
    "of another packet": (b"\x11\x00\x00\x00\x01", codes.MALFORMED_PROPERTY),
    "of two bytes": (b"\x81\x01", codes.MALFORMED_PROPERTY),
    "subscription identifier": (b"\x0b\x01", codes.MALFORMED_SUBSCRIPTION),
    "format 2": (b"\x01\x02", codes.MALFORMED_FORMAT),
    "alias 0": (b"\x23\x00\x00", codes.MALFORMED_ALIAS),
    "half a number": (b"\x02\x00\x00\x00", codes.MALFORMED_SIZE),
    "half a size": (b"\x03\x00", codes.MALFORMED_SIZE),
    "half a text": (b"\x03\x00\x02a", codes.MALFORMED_SIZE),
    "half a user property": (b"\x26\x00\x01a", codes.MALFORMED_SIZE),
    "U+0000": (b"\x03" + text("a\0b"), codes.MALFORMED_TEXT),
    "no UTF-8": (b"\x03" + wire.field(b"\xff"), codes.MALFORMED_TEXT),
    "a surrogate": (b"\x26" + text("a") + wire.field(b"\xed\xa0\x80"), codes.MALFORMED_TEXT),
    "too long a form": (b"\x08" + wire.field(b"\xc0\xaf"), codes.MALFORMED_TEXT),
    "beyond Unicode": (b"\x08" + wire.field(b"\xf4\x90\x80\x80"), codes.MALFORMED_TEXT),
    "a wildcard": (b"\x08" + text("a/+"), codes.MALFORMED_RESPONSE),
    "another wildcard": (b"\x08" + text("#"), codes.MALFORMED_RESPONSE),
    "nowhere to answer to": (b"\x08" + text(""), codes.MALFORMED_RESPONSE),
    **{
        f"{name} twice": (PROPERTIES[name] * 2, codes.MALFORMED_TWICE)
        for name in PROPERTIES
        if name != "user"
    },
}


@both_forms
@pytest.mark.parametrize(("block", "stop"), BROKEN.values(), ids=BROKEN)
def test_broken_properties(kernels: Any, block: bytes, stop: int) -> None:
    """Nothing of the packet is taken; what stands before it is. MQTT 3.1.1 has no properties: there
    the same bytes are a body."""
    assert stop_of(kernels, publish(block)) == stop
    assert stop_of(kernels, publish(PROPERTIES["user"] + block)) == stop
    before = publish(b"") + wire.puback(5)
    answer, *_ = parse_call(kernels, before + publish(block), five=True)
    assert answer == (stop, len(before), 1, 1)
    assert parse_call(kernels, publish(block))[0][0] == codes.STOP_PARTIAL


@both_forms
def test_numbers_take_no_more_bytes_than_they_need(kernels: Any) -> None:
    """[MQTT-1.5.5-1]: of a packet and of its properties. 3.1.1 does not say so."""
    long_form = codes.MALFORMED_LONG_FORM
    short = wire.packet(0x30, text("a") + b"\0")
    assert stop_of(kernels, short) == codes.STOP_PARTIAL
    assert stop_of(kernels, b"\x30\x84\x00" + short[2:]) == long_form
    assert stop_of(kernels, wire.packet(0x30, text("a") + b"\x80\x00")) == long_form
    assert stop_of(kernels, ack(0x40, 1, 0, 0x80, 0x00)) == long_form
    assert stop_of(kernels, b"\x40\x82\x00\x00\x01") == long_form
    assert parse_call(kernels, b"\x40\x82\x00\x00\x01")[0][0] == codes.STOP_PARTIAL


@both_forms
@pytest.mark.parametrize(
    "length", [b"", b"\x05", b"\x80", b"\x80\x80\x80\x80\x01", b"\xff\xff\xff\x7f"]
)
def test_a_property_length_that_does_not_fit(kernels: Any, length: bytes) -> None:
    packet = wire.packet(0x30, text("a") + length)
    assert stop_of(kernels, packet) == codes.MALFORMED_SIZE


@both_forms
@pytest.mark.parametrize(
    "character", ["a", "\x7f", "\u0080", "\u07ff", "\u0800", "\ud7ff", "\ue000"]
)
@pytest.mark.parametrize("more", ["", "\uffff", "\U00010000", "\U0010ffff"])
def test_all_of_unicode_is_text(kernels: Any, character: str, more: str) -> None:
    block = b"\x26" + text(character + more) + text(more + character)
    assert stop_of(kernels, publish(block)) == codes.STOP_PARTIAL


@both_forms
def test_acknowledgements_with_a_reason_code(kernels: Any) -> None:
    """A PUBREC with an error is of a kind of its own: no PUBREL follows it [MQTT-4.3.3-4]. The
    code stands behind the kind, and another code begins another run."""
    packets = [
        ack(0x40, 1, 0x10),
        ack(0x40, 2, 0x80),
        ack(0x50, 1, 0x00),
        ack(0x50, 2, 0x87),
        ack(0x50, 3, 0x97),
        ack(0x50, 4),
        ack(0x62, 4, 0x92),
        ack(0x70, 4, 0x00),
    ]
    answer, _, _, acks = parse_call(kernels, b"".join(packets), five=True)
    assert answer[0] == codes.STOP_PARTIAL
    error = codes.TYPE_PUBREC_ERROR
    runs = [acks[at : at + 3] for at in range(0, len(acks), 3)]
    assert runs == [
        [4 | 0x1000, 1, 1],
        [4 | 0x8000, 2, 1],
        [5, 1, 1],
        [error | 0x8700, 2, 1],
        [error | 0x9700, 3, 1],
        [5, 4, 1],
        [6 | 0x9200, 4, 1],
        [7, 4, 1],
    ]


@both_forms
@pytest.mark.parametrize("first_byte", [0x40, 0x50, 0x62, 0x70])
def test_acknowledgements_with_properties(kernels: Any, first_byte: int) -> None:
    user = PROPERTIES["user"]
    reason = b"\x1f" + text("why")
    for block in (b"", user, reason, reason + user * 3, user + reason):
        packet = ack(first_byte, 7, 0, len(block), *block)
        answer, _, _, acks = parse_call(kernels, packet, five=True)
        assert answer[0] == codes.STOP_PARTIAL
        assert acks == [first_byte >> 4, 7, 1]
    for block, stop in (
        (reason * 2, codes.MALFORMED_TWICE),
        (b"\x01\x01", codes.MALFORMED_PROPERTY),
        (b"\x1f\x00\x02a", codes.MALFORMED_SIZE),
        (b"\x1f\x00", codes.MALFORMED_SIZE),
        (b"\x1f" + text("\0"), codes.MALFORMED_TEXT),
    ):
        assert stop_of(kernels, ack(first_byte, 7, 0, len(block), *block)) == stop
    assert stop_of(kernels, ack(first_byte, 7, 0, 1)) == codes.MALFORMED_SIZE
    assert stop_of(kernels, ack(first_byte, 7, 0, 0, 0)) == codes.MALFORMED_SIZE
    assert stop_of(kernels, ack(first_byte, 0, 0)) == codes.MALFORMED_IDENTIFIER
    assert parse_call(kernels, ack(first_byte, 7, 0))[0][0] == codes.MALFORMED_SIZE


@both_forms
def test_each_acknowledgement_has_its_reason_codes(kernels: Any) -> None:
    """5.0 parts 3.4.2.1, 3.5.2.1, 3.6.2.1, 3.7.2.1: and no others."""
    answers = {0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99}
    for first_byte, legal in (
        (0x40, answers),
        (0x50, answers),
        (0x62, {0, 0x92}),
        (0x70, {0, 0x92}),
    ):
        taken = {
            reason
            for reason in range(256)
            if stop_of(kernels, ack(first_byte, 1, reason)) == codes.STOP_PARTIAL
        }
        assert taken == legal
        assert stop_of(kernels, ack(first_byte, 1, 0x01)) == codes.MALFORMED_REASON


@both_forms
def test_a_refused_row_is_answered_with_its_reason_code(kernels: Any) -> None:
    batch = Batch(4)
    refused = 0x87 - codes.REFUSED_BASE << codes.REFUSED_SHIFT
    batch.add((0, 1), (0, 0), identifier=1, flags=2)
    batch.add((0, 1), (0, 0), identifier=2, flags=2 | refused)
    batch.add((0, 1), (0, 0), identifier=3, flags=4 | refused)
    batch.add((0, 1), (0, 0), identifier=0, flags=refused)
    expected = wire.puback(1) + ack(0x40, 2, 0x87) + ack(0x50, 3, 0x87)
    assert kernels.encode_acks(batch, 0, 4) == expected


@both_forms
def test_a_reader_says_the_same(kernels: Any) -> None:
    block = PROPERTIES["alias"] + PROPERTIES["user"]
    packet = bytearray(publish(block, qos=1, packet_id=3))
    reader = kernels.PacketReader()
    assert reader.read(packet, 0, len(packet), 4096, True) == codes.PACKET_READ
    assert packet[reader.properties : reader.body] == block
    assert packet[reader.body : reader.end] == b"body"
    assert reader.flags == 2 | codes.FLAG_PROPERTIES | 5 << codes.ALIAS_SHIFT
    assert reader.read(bytearray(ack(0x40, 9, 0x97)), 0, 5, 4096, True) == codes.PACKET_READ
    assert (reader.first, reader.packet_id, reader.flags) == (0x40, 9, 0x97)


pieces = st.sampled_from(sorted(PROPERTIES.values())) | st.sampled_from(
    [block for block, _ in BROKEN.values()]
)
packets = st.one_of(
    st.builds(
        lambda blocks, qos, packet_id: publish(b"".join(blocks), qos=qos, packet_id=packet_id),
        st.lists(pieces, max_size=4),
        st.integers(0, 2),
        st.integers(1, 3),
    ),
    st.builds(
        lambda first, packet_id, more: ack(first, packet_id, *more),
        st.sampled_from([0x40, 0x50, 0x62, 0x70]),
        st.integers(0, 3),
        st.binary(max_size=6) | st.builds(lambda b: bytes((0, len(b))) + b, pieces),
    ),
)


@only_compared
@given(
    data=st.lists(packets, max_size=6).map(b"".join),
    damage=st.none() | st.tuples(st.integers(0, 500), st.integers(0, 255)),
    rows=st.integers(1, 6),
    acks=st.integers(1, 3),
)
def test_both_forms_parse_alike(
    data: bytes, damage: tuple[int, int] | None, rows: int, acks: int
) -> None:
    changed = bytearray(data)
    if damage is not None and changed:
        changed[damage[0] % len(changed)] = damage[1]
    data = bytes(changed)
    answers = [parse_call(form, data, rows=rows, acks=acks, five=True) for form in FORMS]
    assert answers[0] == answers[1]
    readers = [form.PacketReader() for form in FORMS]
    stops = [reader.read(bytearray(data), 0, len(data), 4096, True) for reader in readers]
    assert stops[0] == stops[1]
    if stops[0] == codes.PACKET_READ:
        first, second = (
            (
                *(one.first, one.flags, one.packet_id, one.topic_start, one.topic_end),
                *(one.properties, one.body, one.end),
            )
            for one in readers
        )
        assert first == second


@only_compared
@given(raw=st.binary(max_size=12))
def test_both_forms_have_one_idea_of_text(raw: bytes) -> None:
    packet = publish(b"\x03" + wire.field(raw))
    assert stop_of(FORMS[0], packet) == stop_of(FORMS[1], packet)
