"""Stretches of equal frames and records, which the plain kernels take at one go: nothing that
differs may pass as equal.

The oracle is the same kernel, given one thing at a time.
"""

from __future__ import annotations

import struct
from array import array
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymq.core_log.kernels.batch import COLUMNS, Batch
from polymq.gateways.amqp.kernels import codes
from polymq.gateways.amqp.spec import BasicNack, BasicReject
from tests.gateways.amqp import amqp_wire as wire
from tests.gateways.amqp.test_amqp_kernels import (
    DEFAULT,
    FORMS,
    HEAD,
    PREFIX,
    PUBLISHES,
    SETTLEMENTS,
    TAIL,
    Parsed,
    ack,
    fast,
    mutate,
    plain,
)

PROPERTIES = wire.properties(delivery_mode=2, message_id="a")


def publish(**changes: Any) -> bytes:
    """A publish of 4 bytes to exchange ex with key k, unless something else is said."""
    settings = {"properties": PROPERTIES, **changes}
    named = {
        name: settings.pop(name, default)
        for name, default in (
            ("channel", 1),
            ("exchange", "ex"),
            ("routing_key", "k"),
            ("data", b"body"),
        )
    }
    return wire.publish(*named.values(), **settings)


def changed(frames: bytes, at: int, value: int) -> bytes:
    data = bytearray(frames)
    data[at] = value
    return bytes(data)


USUAL = publish()
METHOD_SIZE = 8 + 4 + 2 + 3 + 2 + 1
ODD_PUBLISHES = {
    "another body": publish(data=b"yyyy"),
    "a longer body": publish(data=b"bodybody"),
    "no body": publish(data=b""),
    "another exchange": publish(exchange="ey"),
    "another key": publish(routing_key="l"),
    "where exchange and key meet": publish(exchange="e", routing_key="xk"),
    "another channel": publish(channel=2),
    "mandatory": publish(mandatory=True),
    "immediate": publish(immediate=True),
    "another message id": publish(properties=wire.properties(delivery_mode=2, message_id="b")),
    "transient": publish(properties=wire.properties(delivery_mode=1, message_id="a")),
    "no message id": publish(properties=wire.properties(delivery_mode=2, reply_to="a")),
    "a body in two frames": publish(body_frames=2),
    "a wrong end of the method": changed(USUAL, len(publish(data=b"")) - 24, 0xCD),
    "a wrong end of the header": changed(USUAL, len(publish(data=b"")) - 1, 0xCD),
    "a wrong end of the body": changed(USUAL, len(USUAL) - 1, 0xCD),
    "a body that says another size": changed(USUAL, len(USUAL) - 6, 3),
    "a header of another channel": changed(publish(channel=2), METHOD_SIZE + 2, 1),
    "a header where the body should be": changed(USUAL, len(USUAL) - 12, 2),
    "an ack": ack(1, 1),
    "a cut": USUAL[:-1],
}


def one_by_one(form: ModuleType, pieces: list[bytes], **limits: int) -> tuple[list[Any], int, int]:
    """Messages and settled tags of each piece by itself, up to the first that stops the kernel;
    how many bytes were taken, and why it stopped."""
    found: list[Any] = []
    at = 0
    for piece in pieces:
        parsed = Parsed(form, piece, **limits)
        found += found_in(parsed)
        at += parsed.at
        if parsed.at < len(piece):
            return found, at, parsed.stop
    return found, at, codes.NEED_DATA


def found_in(parsed: Parsed) -> list[Any]:
    tags = [
        (channel, first + index, bits)
        for channel, first, count, bits, _ in parsed.settlements
        for index in range(count)
    ]
    return [*parsed.messages(), *tags]


def in_order(found: list[Any]) -> list[Any]:
    """Messages first: `one_by_one` finds them mixed with settlements."""
    return sorted(found, key=lambda item: len(item) == 3)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ODD_PUBLISHES)
@pytest.mark.parametrize("count", [1, 40])
def test_what_differs_ends_a_stretch_of_publishes(form: ModuleType, name: str, count: int) -> None:
    """... and what stands behind it is taken as if it stood alone."""
    pieces = [USUAL] * count + [ODD_PUBLISHES[name]] + [USUAL] * count
    if name == "a cut":  # with others behind it, its last byte would be the next frame's first
        pieces = pieces[: count + 1]
    parsed = Parsed(form, b"".join(pieces), capacity=128)
    found, at, stop = one_by_one(form, pieces)
    assert found_in(parsed) == in_order(found)
    assert (parsed.at, parsed.stop) == (at, stop)
    assert [row[6] for row in rows_of(parsed)] == list(range(parsed.batch.count))
    assert parsed.runs == [
        row
        for row, message in enumerate(parsed.messages())
        if row == 0
        or (message[0], message[3]) != tuple(parsed.messages()[row - 1][i] for i in (0, 3))
    ]


def rows_of(parsed: Parsed) -> list[list[int]]:
    return [parsed.rows[at : at + COLUMNS] for at in range(0, len(parsed.rows), COLUMNS)]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("capacity", [1, 2, 39, 40])
def test_a_stretch_ends_where_the_batch_is_full(form: ModuleType, capacity: int) -> None:
    parsed = Parsed(form, USUAL * 40, capacity=capacity)
    full = codes.FULL if capacity < 40 else codes.NEED_DATA
    assert (parsed.batch.count, parsed.at) == (capacity, capacity * len(USUAL))
    assert parsed.stop == full


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "frames", [USUAL, publish(data=b""), ack(1, 1)], ids=["body", "none", "ack"]
)
@pytest.mark.parametrize("capacity", [3, 16])
def test_a_stretch_ends_where_the_bytes_end(form: ModuleType, frames: bytes, capacity: int) -> None:
    """Also where the buffer goes on with what an earlier read left there."""
    buffer = bytearray(frames * 5)
    for end in range(len(buffer) + 1):
        batch = Batch(capacity)
        runs, settlements = array("q", bytes(128)), array("q", bytes(400))
        found = form.parse(buffer, 0, end, 4096, 4096, batch, runs, settlements)
        alone = Parsed(form, bytes(buffer[:end]), capacity=capacity)
        assert found[:2] == (alone.at, alone.stop)
        assert batch.rows[: batch.count * COLUMNS].tolist() == alone.rows


@pytest.mark.parametrize("form", FORMS)
def test_a_limit_holds_within_a_stretch(form: ModuleType) -> None:
    """What is known from the publish before was measured then; what differs is measured."""
    parsed = Parsed(form, USUAL * 3 + publish(data=bytes(101)) + USUAL, body_max=100)
    assert (parsed.batch.count, parsed.stop) == (3, codes.FRAME)
    parsed = Parsed(form, USUAL * 3 + publish(data=bytes(101)) + USUAL, payload_max=100)
    assert (parsed.batch.count, parsed.stop) == (3, codes.FRAME)


ODD_ACKS = {
    "a gap": ack(1, 45),
    "the same again": ack(1, 2),
    "another channel": ack(2, 4),
    "multiple": ack(1, 4, multiple=True),
    "a nack": wire.method(1, BasicNack(delivery_tag=4)),
    "a reject": wire.method(1, BasicReject(delivery_tag=4, requeue=True)),
    "a wrong end": changed(ack(1, 4), 20, 0xCD),
    "other bits that mean nothing": changed(ack(1, 4), 19, 2),
    "a publish": USUAL,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ODD_ACKS)
def test_what_differs_ends_a_stretch_of_acks(form: ModuleType, name: str) -> None:
    pieces = [ack(1, 1), ack(1, 2), ack(1, 3), ODD_ACKS[name], *(ack(1, t) for t in range(5, 44))]
    parsed = Parsed(form, b"".join(pieces))
    found, at, stop = one_by_one(form, pieces)
    assert found_in(parsed) == in_order(found)
    assert (parsed.at, parsed.stop) == (at, stop)


@pytest.mark.parametrize("form", FORMS)
def test_tags_count_up_to_their_bound_only(form: ModuleType) -> None:
    parsed = Parsed(form, b"".join(ack(1, tag) for tag in range(2**63 - 3, 2**63 + 2)))
    assert parsed.settlements == [(1, 2**63 - 3, 3, 0, 0)]
    assert (parsed.at, parsed.stop) == (3 * len(ack(1, 1)), codes.FRAME)


REPEATED = st.lists(st.tuples(PUBLISHES | SETTLEMENTS, st.integers(1, 6)), max_size=6)
CHANGES = st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), max_size=3)


@pytest.mark.skipif(fast is None, reason="not compiled")
@given(REPEATED, CHANGES, st.integers(1, 30), st.integers(1, 4), st.integers(40, 200))
def test_both_forms_parse_repeated_frames_alike(
    stream: list[tuple[bytes, int]],
    changes: list[tuple[int, int]],
    capacity: int,
    settlement_capacity: int,
    limit: int,
) -> None:
    """Any bytes may differ in any of them."""
    data = mutate(b"".join(frames * count for frames, count in stream), changes)
    assert fast is not None
    one, two = (
        Parsed(
            form,
            data,
            capacity=capacity,
            settlement_capacity=settlement_capacity,
            payload_max=limit,
            body_max=limit // 2,
        )
        for form in (plain, fast)
    )
    assert one.everything() == two.everything()


# --- records ----------------------------------------------------------------------------------


def record(**changes: Any) -> bytes:
    settings: dict[str, Any] = {
        "topic": b"topic",
        "data": b"body",
        "prefix": PREFIX,
        "extra": wire.extra_of(PROPERTIES),
        "rest": b"PMQ_Q\x01" + b"0" * 20 + b"\x02",
        **changes,
    }
    return wire.record(**settings)


RECORD = record()
ODD_RECORDS = {
    "another body": record(data=b"yyyy"),
    "a longer body": record(data=b"a longer body"),
    "no body": record(data=b""),
    "a longer body and a shorter topic": record(data=b"body+", topic=b"topi"),
    "a longer topic": record(topic=b"topic+"),
    "a longer topic and less behind": record(
        topic=b"topic+", rest=b"PMQ_Q\x01" + b"0" * 19 + b"\x02"
    ),
    "other properties": record(
        extra=wire.extra_of(wire.properties(delivery_mode=2, message_id="b"))
    ),
    "longer properties": record(
        extra=wire.extra_of(wire.properties(delivery_mode=2, message_id="b" * 9))
    ),
    "no properties of its own": record(extra=b""),
    "another property in their place": record(extra=b"PMQ_XMQP\x01EAAC\x02"),
}


def encode(form: ModuleType, memory: bytes, first_tag: int, frame_max: int) -> bytes:
    found = form.encode_deliveries(
        memory, 0, len(memory), 3, frame_max, HEAD, first_tag, False, TAIL, len(PREFIX), DEFAULT
    )
    assert isinstance(found, bytes)
    return found


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ODD_RECORDS)
@pytest.mark.parametrize("frame_max", [4096, 11])
def test_what_differs_ends_a_stretch_of_records(
    form: ModuleType, name: str, frame_max: int
) -> None:
    """... whether bodies fit into a frame or not."""
    records = [RECORD, RECORD, ODD_RECORDS[name], RECORD, ODD_RECORDS[name], ODD_RECORDS[name]]
    alone = [encode(form, one, 7 + index, frame_max) for index, one in enumerate(records)]
    assert encode(form, b"".join(records), 7, frame_max) == b"".join(alone)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("text", [b"", b"EAA", b"EA=C", b"EA\nC", b"EAC!", b"EAAC="])
def test_damage_in_a_stretch_is_seen(form: ModuleType, text: bytes) -> None:
    """The same error as in a record that stands alone; also where no end is to be found."""
    odd = record(extra=b"PMQ_AMQP\x01" + text + b"\x02")
    sound = record(extra=b"PMQ_AMQP\x01" + b"EAAC" * (len(text) // 4) + b"\x02")
    for memory in (odd, RECORD + odd, sound + odd if text else odd, odd + RECORD):
        with pytest.raises(ValueError, match="damaged record"):
            encode(form, memory, 1, 4096)
    endless = record(extra=b"PMQ_AMQP\x01EAACA", rest=b"")
    with pytest.raises(ValueError, match="damaged record"):
        encode(form, RECORD + endless, 1, 4096)


def with_slack(one: bytes, size: int) -> bytes:
    """A record of this size that ends in bytes which nothing in it speaks of."""
    return struct.pack(">I", size) + one[4:] + bytes(size - len(one))


ALIKE_BUT_FOR_ONE_SIZE = {
    "topic": record(topic=b"topic+"),
    # Where the usual record has the sizes of topic and properties, this one has them by chance.
    "body": record(data=b"body\x05", topic=b"abcd" + RECORD[98:100]),
    "properties": record(rest=b""),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("what", ALIKE_BUT_FOR_ONE_SIZE)
def test_every_size_of_a_record_counts(form: ModuleType, what: str) -> None:
    """Records of one size within which one part has another size."""
    size = len(RECORD) + 10
    usual, odd = with_slack(RECORD, size), with_slack(ALIKE_BUT_FOR_ONE_SIZE[what], size)
    alone = [encode(form, one, 7 + index, 4096) for index, one in enumerate((usual, odd, usual))]
    assert encode(form, usual + odd + usual, 7, 4096) == b"".join(alone)


@pytest.mark.parametrize("form", FORMS)
def test_a_record_that_is_cut_ends_no_stretch_in_silence(form: ModuleType) -> None:
    for cut in (1, len(RECORD) // 2, len(RECORD) - 1):
        with pytest.raises(ValueError, match="damaged record"):
            encode(form, RECORD * 3 + RECORD[:cut], 1, 4096)


RECORDS = st.lists(
    st.tuples(st.sampled_from([RECORD, *ODD_RECORDS.values()]), st.integers(1, 4)), max_size=5
)


@pytest.mark.skipif(fast is None, reason="not compiled")
@given(RECORDS, CHANGES, st.integers(9, 40))
def test_both_forms_encode_repeated_records_alike(
    records: list[tuple[bytes, int]], changes: list[tuple[int, int]], frame_max: int
) -> None:
    """Damaged or not: the same bytes or the same error."""
    memory = mutate(b"".join(one * count for one, count in records), changes)
    found = []
    for form in (plain, fast):
        assert form is not None
        try:
            found.append(encode(form, memory, 2**50, frame_max))
        except ValueError as error:
            found.append(str(error).encode())
    assert found[0] == found[1]


def test_what_struct_is_asked_for_is_bounded() -> None:
    """A record's sizes come from the disk: impossible ones are refused before they are used."""
    damaged = changed(RECORD, 84, 0xFF)
    with pytest.raises(ValueError, match="damaged record"):
        encode(plain, damaged, 1, 4096)
    assert struct.unpack_from(">I", RECORD)[0] == len(RECORD)
