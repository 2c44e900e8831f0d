"""The frame kernels: both forms agree on every input, and cutting the stream changes nothing."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from interop_tests import mqtt_wire as wire
from polymq.core_log.kernels.batch import COLUMNS, Batch
from polymq.gateways.mqtt.kernels import codes, frames
from tests.harness.forms import form_id, forms_of

FORMS = forms_of(frames.__name__)
both_forms = pytest.mark.parametrize("kernels", FORMS, ids=form_id)

PACKET_BYTES_MAX = 1 << 20


@dataclass
class Parsed:
    """What a stream says, independent of how it was cut into calls."""

    publishes: list[tuple[bytes, bytes, int, int]] = field(default_factory=list)
    acks: list[tuple[int, int]] = field(default_factory=list)
    stop: int = codes.STOP_PARTIAL
    used: int = 0


def parse_call(
    kernels: Any,
    data: bytes,
    *,
    rows: int = 64,
    runs: int = 64,
    acks: int = 64,
    limit: int = 4096,
    five: bool = False,
) -> tuple[Any, ...]:
    batch = Batch(rows)
    batch.buffer = data
    run_array = array("q", bytes(8 * runs))
    ack_array = array("q", bytes(8 * 3 * acks))
    answer = kernels.parse(data, 0, len(data), batch, run_array, ack_array, limit, five)
    return (
        answer,
        batch.rows[: batch.count * COLUMNS].tolist(),
        run_array[: answer[2]].tolist(),
        ack_array[: 3 * answer[3]].tolist(),
    )


def follow(kernels: Any, data: bytes, cuts: list[int], *, rows: int = 64) -> Parsed:
    """Feed the stream cut at `cuts`, as a connection does: what is not used comes again."""
    parsed = Parsed()
    batch = Batch(rows)
    runs = array("q", bytes(8 * rows))
    acks = array("q", bytes(8 * 3 * 16))
    used = 0
    for end in [*sorted(cuts), len(data)]:
        while True:
            chunk = data[used:end]
            batch.buffer = chunk
            stop, at, run_count, ack_count = kernels.parse(
                chunk, 0, len(chunk), batch, runs, acks, PACKET_BYTES_MAX
            )
            for index in range(batch.count):
                row = batch.row(index)
                parsed.publishes.append(
                    (batch.topic(index), chunk[row[2] : row[2] + row[3]], row[6], row[7])
                )
            for kind, first, count in zip(*[iter(acks[: 3 * ack_count])] * 3, strict=True):
                parsed.acks += [(kind, (first - 1 + k) % 65_535 + 1) for k in range(count)]
            assert (batch.count > 0) == (run_count > 0)
            assert runs[0] == 0 or not run_count
            progress = at > 0
            used += at
            parsed.stop, parsed.used = stop, used
            if stop not in (codes.STOP_FULL, codes.STOP_ORDER):
                break
            assert progress, "a kernel that stops for room has taken something"
        if stop != codes.STOP_PARTIAL:
            break
    return parsed


identifiers = st.integers(1, 65_535) | st.sampled_from([1, 2, 65_534, 65_535])
topics = st.sampled_from([b"a", b"a/b", b"", b"sensors/room1", b"x" * 130])
publish_packets = st.one_of(
    st.builds(lambda t, b, r: wire.publish(t, b, retain=r), topics, st.binary(), st.booleans()),
    st.builds(
        lambda t, b, q, i, d: wire.publish(t, b, qos=q, packet_id=i, duplicate=d),
        topics,
        st.binary(max_size=300),
        st.sampled_from([1, 2]),
        identifiers,
        st.booleans(),
    ),
)
ack_makers = st.sampled_from([wire.puback, wire.pubrec, wire.pubrel, wire.pubcomp])
ack_packets = st.builds(lambda make, i: make(i), ack_makers, identifiers)


@st.composite
def ack_runs(draw: st.DrawFn) -> bytes:
    make, first = draw(ack_makers), draw(identifiers)
    return b"".join(make((first - 1 + k) % 65_535 + 1) for k in range(draw(st.integers(1, 6))))


valid_packets = publish_packets | ack_packets | ack_runs()
broken_packets = st.sampled_from(
    [
        b"\x36\x03\x00\x01a",  # QoS 3
        b"\x38\x03\x00\x01a",  # DUP at QoS 0
        b"\x30\x01\x00",  # no room for a topic size
        b"\x30\x03\x00\x02a",  # topic longer than the packet
        b"\x32\x04\x00\x01a\x00",  # half a packet id
        b"\x32\x05\x00\x01a\x00\x00",  # packet id 0
        b"\x40\x02\x00\x00",
        b"\x41\x02\x00\x01",
        b"\x60\x02\x00\x01",
        b"\x40\x03\x00\x01\x00",
        b"\x40\x00",
        b"\x30\x80\x80\x80\x80\x01",  # Remaining Length of five bytes
        b"\x30\xff\xff\xff\x7f",  # longer than the limit
        b"\xc0\x00",
        b"\x10\x00",
        b"\xf0\x00",
        b"\x00",
    ]
)
streams = st.builds(
    lambda packets, tail: b"".join(packets) + tail,
    st.lists(valid_packets, max_size=12),
    st.just(b"") | broken_packets | st.binary(max_size=12),
)


@pytest.mark.skipif(len(FORMS) == 1, reason="no compiled kernels on this machine")
@given(
    data=streams | st.binary(max_size=60),
    rows=st.integers(1, 8),
    runs=st.integers(1, 8),
    acks=st.integers(1, 4),
    limit=st.integers(2, 400),
)
@example(data=b"", rows=1, runs=1, acks=1, limit=2)
def test_both_forms_parse_alike(data: bytes, rows: int, runs: int, acks: int, limit: int) -> None:
    answers = [
        parse_call(form, data, rows=rows, runs=runs, acks=acks, limit=limit) for form in FORMS
    ]
    assert answers[0] == answers[1]


def read_one(kernels: Any, data: bytes, start: int, limit: int) -> tuple[int, ...]:
    """What a `PacketReader` says of the packet at `start`."""
    reader = kernels.PacketReader()
    stop = reader.read(bytearray(data), start, len(data), limit)
    if stop != codes.PACKET_READ:
        return (stop,)
    topic = reader.topic_start, reader.topic_end
    return stop, reader.first, reader.packet_id, *topic, reader.body, reader.end


@pytest.mark.skipif(len(FORMS) == 1, reason="no compiled kernels on this machine")
@given(data=streams | st.binary(max_size=60), start=st.integers(0, 3), limit=st.integers(2, 400))
def test_both_forms_read_a_packet_alike(data: bytes, start: int, limit: int) -> None:
    start = min(start, len(data))
    answers = [read_one(form, data, start, limit) for form in FORMS]
    assert answers[0] == answers[1]


@both_forms
@given(data=streams | st.binary(max_size=60), limit=st.integers(2, 400))
def test_a_packet_is_read_as_parse_reads_it(kernels: Any, data: bytes, limit: int) -> None:
    """What takes single packets and what takes many has one idea of what is legal."""
    stop, *found = read_one(kernels, data, 0, limit)
    if stop != codes.PACKET_READ:
        assert parse_call(kernels, data, limit=limit)[0] == (stop, 0, 0, 0)
        return
    first, packet_id, topic_start, topic_end, body, end = found
    answer, rows, _, acks = parse_call(kernels, data[:end], limit=limit)
    assert answer[:2] == (codes.STOP_PARTIAL, end)
    if first >> 4 == codes.TYPE_PUBLISH:
        topic = topic_start, topic_end - topic_start
        assert rows == [*topic, body, end - body, 0, 0, packet_id, first & codes.FLAGS_STORED]
    else:
        assert acks == [first >> 4, packet_id, 1]


@both_forms
def test_a_packet_outside_the_buffer_is_our_bug(kernels: Any) -> None:
    reader = kernels.PacketReader()
    for start, end in ((-1, 2), (3, 2), (0, 5)):
        with pytest.raises(ValueError, match="not inside"):
            reader.read(bytearray(wire.puback(1)), start, end, 100)


@both_forms
@given(data=streams, random_cuts=st.lists(st.integers(0, 400)))
def test_a_stream_means_the_same_however_it_is_cut(
    kernels: Any, data: bytes, random_cuts: list[int]
) -> None:
    whole = follow(kernels, data, [])
    assert follow(kernels, data, list(range(len(data)))) == whole
    assert follow(kernels, data, [cut for cut in random_cuts if cut < len(data)]) == whole
    assert follow(kernels, data, [], rows=1) == whole


@both_forms
def test_rows_hold_what_the_packets_said(kernels: Any) -> None:
    """Three topics at two qualities make runs; DUP does not break one, RETAIN does."""
    data = b"".join(
        [
            wire.publish("a", b"1", qos=1, packet_id=7),
            wire.publish("a", b"2", qos=1, packet_id=8, duplicate=True),
            wire.publish("a", b"3", qos=1, packet_id=9, retain=True),
            wire.publish("b", b""),
            wire.publish("b", b"4" * 200),
        ]
    )
    parsed = follow(kernels, data, [])
    assert parsed.publishes == [
        (b"a", b"1", 7, 2),
        (b"a", b"2", 8, 2),
        (b"a", b"3", 9, 3),
        (b"b", b"", 0, 0),
        (b"b", b"4" * 200, 0, 0),
    ]
    answer, _, runs, _ = parse_call(kernels, data)
    assert answer == (codes.STOP_PARTIAL, len(data), 3, 0)
    assert runs == [0, 2, 3]


@both_forms
def test_consecutive_acks_become_one_run_that_wraps(kernels: Any) -> None:
    data = b"".join(map(wire.puback, [65_534, 65_535, 1, 2])) + wire.pubcomp(3) + wire.puback(3)
    _, _, _, acks = parse_call(kernels, data)
    assert acks == [4, 65_534, 4, 7, 3, 1, 4, 3, 1]


@both_forms
def test_acks_gather_across_publishes(kernels: Any) -> None:
    """Acks are about the other direction, so publishes between them do not break their run."""
    data = wire.puback(1) + wire.publish("a", qos=1, packet_id=1) + wire.puback(2)
    answer, _, _, acks = parse_call(kernels, data)
    assert answer == (codes.STOP_PARTIAL, len(data), 1, 1)
    assert acks == [4, 1, 2]


@both_forms
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (wire.publish("a", qos=2, packet_id=1), wire.pubrel(1)),
        (wire.pubrel(1), wire.publish("a", qos=2, packet_id=1)),
    ],
    ids=["pubrel after publish", "publish after pubrel"],
)
def test_a_release_and_an_exactly_once_publish_are_never_in_one_batch(
    kernels: Any, first: bytes, second: bytes
) -> None:
    answer, *_ = parse_call(kernels, first + second)
    assert answer[:2] == (codes.STOP_ORDER, len(first))


@both_forms
@pytest.mark.parametrize(
    ("packet", "stop"),
    [
        (b"\x36\x03\x00\x01a", codes.MALFORMED_QOS),
        (b"\x38\x03\x00\x01a", codes.MALFORMED_DUPLICATE),
        (b"\x30\x01\x00", codes.MALFORMED_SIZE),
        (b"\x30\x03\x00\x02a", codes.MALFORMED_SIZE),
        (b"\x32\x04\x00\x01a\x00", codes.MALFORMED_SIZE),
        (b"\x34\x05\x00\x01a\x00\x00", codes.MALFORMED_IDENTIFIER),
        (b"\x40\x02\x00\x00", codes.MALFORMED_IDENTIFIER),
        (b"\x48\x02\x00\x01", codes.MALFORMED_FLAGS),
        (b"\x60\x02\x00\x01", codes.MALFORMED_FLAGS),
        (b"\x70\x03\x00\x01\x00", codes.MALFORMED_SIZE),
        (b"\x30\x80\x80\x80\x80\x01", codes.MALFORMED_LENGTH),
        (b"\x30\xff\xff\xff\x7f", codes.MALFORMED_LARGE),
        (b"\xc0\x00", codes.STOP_OTHER),
        (b"\x20\x02\x00\x00", codes.STOP_OTHER),
        (b"\xf0\x00", codes.STOP_OTHER),
        (b"\x30", codes.STOP_PARTIAL),
        (b"\x30\x83", codes.STOP_PARTIAL),
        (b"\x40\x02\x00", codes.STOP_PARTIAL),
    ],
)
def test_why_it_stopped(kernels: Any, packet: bytes, stop: int) -> None:
    """What stands before the packet is taken; the packet itself is not touched."""
    before = wire.publish("a", b"1") + wire.puback(5)
    answer, *_ = parse_call(kernels, before + packet)
    assert answer == (stop, len(before), 1, 1)


@both_forms
def test_the_limit_counts_the_header(kernels: Any) -> None:
    packet = wire.publish("a", b"x" * 200)
    assert parse_call(kernels, packet, limit=len(packet))[0][0] == codes.STOP_PARTIAL
    assert parse_call(kernels, packet, limit=len(packet) - 1)[0][:2] == (codes.MALFORMED_LARGE, 0)
    assert parse_call(kernels, packet[:3], limit=len(packet) - 1)[0][0] == codes.MALFORMED_LARGE


@both_forms
def test_a_range_outside_the_buffer_is_our_bug(kernels: Any) -> None:
    batch, ints = Batch(4), array("q", bytes(96))
    for start, end in [(-1, 2), (3, 2), (0, 5)]:
        with pytest.raises(ValueError, match="range"):
            kernels.parse(b"\xc0\x00", start, end, batch, ints, ints, 100)


# --- answers -------------------------------------------------------------------------------


@both_forms
def test_answers_follow_the_rows(kernels: Any) -> None:
    """[MQTT-4.6.0-2], [MQTT-4.6.0-3]: PUBACKs and PUBRECs in the order of their PUBLISHes."""
    batch = Batch(8)
    for packet_id, qos in [(300, 1), (0, 0), (301, 2), (5, 1)]:
        batch.add((0, 1), (0, 0), identifier=packet_id, flags=qos << 1 | 1)
    assert kernels.encode_acks(batch, 0, 4) == wire.puback(300) + wire.pubrec(301) + wire.puback(5)
    assert kernels.encode_acks(batch, 1, 2) == b""
    for first, last in [(-1, 2), (3, 2), (0, 5)]:
        with pytest.raises(ValueError, match="rows"):
            kernels.encode_acks(batch, first, last)


@pytest.mark.skipif(len(FORMS) == 1, reason="no compiled kernels on this machine")
@given(
    rows=st.lists(st.tuples(st.integers(0, 70_000), st.integers(0, 15)), max_size=16),
    first=st.integers(0, 16),
    last=st.integers(0, 16),
)
def test_both_forms_answer_alike(rows: list[tuple[int, int]], first: int, last: int) -> None:
    batch = Batch(16)
    for packet_id, flags in rows:
        batch.add((0, 0), (0, 0), identifier=packet_id, flags=flags)
    assert outcome(FORMS[0].encode_acks, batch, first, last) == outcome(
        FORMS[1].encode_acks, batch, first, last
    )


def outcome(function: Any, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except ValueError as error:
        return str(error)


@both_forms
def test_ids_wrap_past_zero(kernels: Any) -> None:
    expected = b"".join(map(wire.pubrel, [65_534, 65_535, 1, 2]))
    assert kernels.encode_ids(0x62, 65_534, 4) == expected
    assert kernels.encode_ids(0x70, 9, 0) == b""
    for arguments in [(0x62, 0, 1), (0x62, 65_536, 1), (0x62, 1, -1), (256, 1, 1)]:
        with pytest.raises(ValueError, match="packet id"):
            kernels.encode_ids(*arguments)
