"""Long stretches of packets and records that are alike, which the plain form takes at one go: both
forms agree, wherever a stretch ends and whatever byte in it is another."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interop_tests import mqtt_wire as wire
from polymq.core_log.kernels.batch import Batch
from polymq.gateways.mqtt.kernels import frames
from polymq.gateways.mqtt.kernels import publishes as encoders
from polymq.kernel_forms import FORM, plain_form
from tests.gateways.mqtt.mqtt_records import records
from tests.gateways.mqtt.test_mqtt_kernels import outcome, parse_call

if FORM == "pure":
    pytest.skip("no compiled kernels on this machine", allow_module_level=True)
plain = plain_form(frames.__name__)

COUNTS = st.sampled_from([1, 2, 15, 16, 17, 18, 24, 25, 26, 80, 81, 82, 150])
"""Around the sizes of the windows in which the plain form looks."""
ACKS = (wire.puback, wire.pubrec, wire.pubrel, wire.pubcomp)


@st.composite
def publishes(draw: st.DrawFn) -> bytes:
    """PUBLISH packets that differ in packet id and body only; ids may jump."""
    topic = draw(st.sampled_from(["a", "a/b", "a/c", "longer/topic"]))
    qos, size = draw(st.integers(0, 2)), draw(st.sampled_from([0, 1, 119, 130]))
    first, step = draw(st.integers(1, 65_535)), draw(st.sampled_from([1, 7]))
    return b"".join(
        wire.publish(
            topic, bytes([i % 256]) * size, qos=qos, packet_id=(first + step * i) % 65_535 + 1
        )
        for i in range(draw(COUNTS))
    )


@st.composite
def acknowledgements(draw: st.DrawFn) -> bytes:
    """Acknowledgements of one kind whose ids count up, or do not."""
    make = draw(st.sampled_from(ACKS))
    first, step = draw(st.integers(1, 65_535) | st.just(65_530)), draw(st.sampled_from([1, 1, 2]))
    return b"".join(make((first - 1 + step * i) % 65_535 + 1) for i in range(draw(COUNTS)))


@st.composite
def damaged(draw: st.DrawFn, whole: st.SearchStrategy[bytes]) -> bytes:
    """The same with one byte changed, or with its end cut off, or as it is."""
    data = bytearray(draw(whole))
    how = draw(st.integers(0, 2))
    at = draw(st.integers(0, max(len(data) - 1, 0)))
    if how == 1 and data:
        data[at] = draw(st.integers(0, 255))
    return bytes(data[:at] if how == 2 else data)


streams = st.lists(publishes() | acknowledgements(), max_size=4).map(b"".join)


@settings(max_examples=150)
@given(
    data=damaged(streams),
    rows=st.sampled_from([1, 17, 64, 700]),
    acks=st.sampled_from([1, 2, 64]),
)
def test_both_forms_parse_stretches_alike(data: bytes, rows: int, acks: int) -> None:
    """Rows, runs, acknowledgement runs, why it stopped and where."""
    answers = [
        parse_call(form, data, rows=rows, runs=64, acks=acks, limit=1 << 20)
        for form in (plain, frames)
    ]
    assert answers[0] == answers[1]


STRETCH = [wire.publish("a/b", b"body", qos=1, packet_id=i) for i in range(1, 100)]
OTHER = {
    "topic": wire.publish("a/c", b"body", qos=1, packet_id=9),
    "longer": wire.publish("a/b", b"bodies", qos=1, packet_id=9),
    "qos": wire.publish("a/b", b"body", qos=2, packet_id=9),
    "duplicate": wire.publish("a/b", b"body", qos=1, packet_id=9, duplicate=True),
    "retained": wire.publish("a/b", b"body", qos=1, packet_id=9, retain=True),
    "packet id 0": wire.publish("a/b", b"body", qos=1, packet_id=9).replace(b"\x00\x09", b"\0\0"),
    "half": STRETCH[0][:-1],
    "acknowledgement": wire.puback(9),
}


@pytest.mark.parametrize("other", OTHER.values(), ids=OTHER)
@pytest.mark.parametrize("position", [0, 1, 2, 16, 17, 18, 80, 81, 82, 99])
def test_something_else_in_a_stretch(other: bytes, position: int) -> None:
    """The stretch ends exactly there, and goes on behind it where it can."""
    data = b"".join([*STRETCH[:position], other, *STRETCH[position:]])
    answers = [parse_call(form, data, rows=200, limit=1 << 20) for form in (plain, frames)]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("first_id", [1, 65_500, 65_535])
def test_ids_go_on_behind_a_stretch(first_id: int) -> None:
    """Records of two sizes: the ids of the second stretch follow those of the first, wrapping."""
    memory = records([b"x" * 5] * 50 + [b"y" * 300] * 50 + [b"z"])
    field = wire.field("t")
    answers = [
        form.encode_publishes(memory, 0, len(memory), field, 0x32, first_id)
        for form in (plain_form(encoders.__name__), encoders)
    ]
    assert answers[0] == answers[1]


def test_all_packet_ids_of_a_stretch() -> None:
    """A run of acknowledgements covers at most 65,535 ids; then another one begins."""
    data = b"".join(wire.puback(i % 65_535 + 1) for i in range(65_535 + 20))
    for form in (plain, frames):
        answer, _, _, acks = parse_call(form, data, limit=4)
        assert acks == [4, 1, 65_535, 4, 1, 20], form
        assert answer[1] == len(data)


bodies = st.lists(
    st.builds(lambda size, count: [b"x" * size] * count, st.sampled_from([0, 5, 300]), COUNTS),
    max_size=4,
).map(lambda stretches: [body for stretch in stretches for body in stretch])


@settings(max_examples=150)
@given(
    memory=damaged(bodies.map(records)),
    first_byte=st.sampled_from([0x30, 0x32, 0x34]),
    first_id=st.sampled_from([1, 65_500, 65_535]),
)
def test_both_forms_encode_stretches_alike(memory: bytes, first_byte: int, first_id: int) -> None:
    """The same packets, or the same refusal."""
    answers = [
        outcome(
            form.encode_publishes, memory, 0, len(memory), wire.field("t"), first_byte, first_id
        )
        for form in (plain_form(encoders.__name__), encoders)
    ]
    assert answers[0] == answers[1]


@pytest.mark.parametrize("position", [1, 2, 23, 24, 25, 26, 40, 41])
def test_another_topic_anywhere_in_a_stretch(position: int) -> None:
    """Of the same size, so that only the bytes of the topic tell: it begins a run of its own."""
    topics = ["a/c" if position <= index < position + 3 else "a/b" for index in range(60)]
    data = b"".join(wire.publish(topic, b"x", qos=1, packet_id=9) for topic in topics)
    for form in (plain, frames):
        batch, runs = Batch(), array("q", bytes(64))
        acks = array("q", bytes(64))
        _, at, run_count, _ = form.parse(data, 0, len(data), batch, runs, acks, 1 << 20)
        assert (at, run_count, list(runs[:3])) == (len(data), 3, [0, position, position + 3])


@pytest.mark.parametrize("qos", [0, 1, 2, None])
def test_answers_to_a_stretch(qos: int | None) -> None:
    """With packet ids of one and of two bytes; None: of all qualities in turn."""
    ids = (1, 255, 256, 300, 0x1234, 65_535) * 4
    qualities = [index % 3 if qos is None else qos for index in range(len(ids))]
    data = b"".join(
        wire.publish("a", b"x", qos=quality, packet_id=identifier if quality else 0)
        for quality, identifier in zip(qualities, ids, strict=True)
    )
    batch, runs, acks = Batch(), array("q", bytes(8 * 64)), array("q", bytes(64))
    frames.parse(data, 0, len(data), batch, runs, acks, 1 << 20)
    answers = {form.encode_acks(batch, 0, len(ids)) for form in (plain, frames)}
    assert answers == {
        b"".join(
            (wire.puback if quality == 1 else wire.pubrec)(identifier)
            for quality, identifier in zip(qualities, ids, strict=True)
            if quality
        )
    }
