"""The frame kernels: what they take and where they stop, and that both forms agree on every input.

The oracle is `amqp_wire`, which writes and reads frames one by one.
"""

from __future__ import annotations

import struct
from array import array
from types import ModuleType
from typing import Any

import pika.data
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from polymq.core_log.kernels.batch import COLUMNS, Batch
from polymq.gateways.amqp.kernels import codes, frames, plain_properties
from polymq.gateways.amqp.spec import (
    BasicAck,
    BasicNack,
    BasicQos,
    BasicReject,
    ChannelClose,
    QueueDeclare,
)
from polymq.kernel_forms import plain_form
from tests.gateways.amqp import amqp_wire as wire
from tests.harness.forms import compiled_form

plain, fast = plain_form(frames.__name__), compiled_form(frames.__name__)
FORMS = [
    pytest.param(plain, id="pure"),
    pytest.param(
        fast, id="compiled", marks=pytest.mark.skipif(fast is None, reason="not compiled")
    ),
]
PAYLOAD_MAX = 131_072
BODY_MAX = 1 << 20


class Parsed:
    """The outcome of one `parse`, copied out of the arrays."""

    def __init__(
        self,
        form: ModuleType,
        data: bytes,
        start: int = 0,
        *,
        payload_max: int = PAYLOAD_MAX,
        body_max: int = BODY_MAX,
        capacity: int = 64,
        settlement_capacity: int = 32,
    ) -> None:
        batch = Batch(capacity)
        runs = array("q", bytes(8 * capacity))
        settlements = array("q", bytes(8 * codes.SETTLEMENT_COLUMNS * settlement_capacity))
        self.at, self.stop, run_count, settlement_count = form.parse(
            bytearray(data), start, len(data), payload_max, body_max, batch, runs, settlements
        )
        self.batch = batch
        self.rows = batch.rows[: batch.count * COLUMNS].tolist()
        self.runs = runs[:run_count].tolist()
        flat = settlements[: settlement_count * codes.SETTLEMENT_COLUMNS].tolist()
        step = codes.SETTLEMENT_COLUMNS
        self.settlements = [tuple(flat[at : at + step]) for at in range(0, len(flat), step)]

    def messages(self) -> list[tuple[bytes, bytes, bytes, int]]:
        """(topic bytes, body, extra, flags) of each row."""
        found = []
        for index in range(self.batch.count):
            topic, topic_size, body, body_size, extra, extra_size, _, flags = self.batch.row(index)
            data = bytes(self.batch.buffer)
            found.append(
                (
                    data[topic : topic + topic_size],
                    data[body : body + body_size],
                    data[extra : extra + extra_size],
                    flags,
                )
            )
        return found

    def everything(self) -> tuple[Any, ...]:
        return (self.at, self.stop, self.rows, self.runs, self.settlements)


def ack(channel: int, tag: int, *, multiple: bool = False) -> bytes:
    return wire.method(channel, BasicAck(delivery_tag=tag, multiple=multiple))


@pytest.mark.parametrize("form", FORMS)
def test_publishes_become_rows_and_runs(form: ModuleType) -> None:
    """Equal places with equal flags are one run; delivery mode and mandatory open a new one."""
    persistent = wire.properties(delivery_mode=2)
    data = (
        wire.publish(1, "ex", "key", b"one")
        + wire.publish(1, "ex", "key", b"")
        + wire.publish(1, "ex", "key", b"three", properties=persistent)
        + wire.publish(1, "ex", "key", b"four", properties=persistent, mandatory=True)
        + wire.publish(2, "ex", "key", b"five")
        + wire.publish(2, "", "key", b"six", properties=wire.properties(user_id="guest"))
    )
    parsed = Parsed(form, data)
    address = b"\x02ex\x03key"
    none = b"\x00\x00"
    assert parsed.messages() == [
        (address, b"one", none, 1 << 8),
        (address, b"", none, 1 << 8),
        (address, b"three", persistent, 1 << 8 | codes.PERSISTENT),
        (address, b"four", persistent, 1 << 8 | codes.PERSISTENT | codes.MANDATORY),
        (address, b"five", none, 2 << 8),
        (b"\x00\x03key", b"six", wire.properties(user_id="guest"), 2 << 8 | codes.CHECKED),
    ]
    assert parsed.runs == [0, 2, 3, 4, 5]
    assert (parsed.at, parsed.stop) == (len(data), codes.NEED_DATA)


@pytest.mark.parametrize("form", FORMS)
def test_settlements_that_follow_each_other_are_one(form: ModuleType) -> None:
    """Acks between publishes join too, because publishes and acks do not wait for each other."""
    data = (
        ack(1, 5)
        + wire.publish(1, "", "q", b"x")
        + ack(1, 6)
        + ack(1, 7)
        + ack(1, 9)
        + ack(2, 10)
        + ack(2, 20, multiple=True)
        + ack(2, 21, multiple=True)
        + wire.method(2, BasicReject(delivery_tag=22, requeue=True))
        + wire.method(2, BasicNack(delivery_tag=23, requeue=True))
        + wire.method(2, BasicNack(delivery_tag=30, multiple=True))
    )
    parsed = Parsed(form, data)
    again = codes.NEGATIVE | codes.REQUEUE
    assert parsed.settlements == [
        (1, 5, 3, 0, 0),
        (1, 9, 1, 0, 1),
        (2, 10, 1, 0, 1),
        (2, 20, 1, codes.MULTIPLE, 1),
        (2, 21, 1, codes.MULTIPLE, 1),
        (2, 22, 2, again, 1),
        (2, 30, 1, codes.NEGATIVE | codes.MULTIPLE, 1),
    ]
    assert parsed.at == len(data)


GOOD = wire.publish(1, "e", "k", b"body")
STOPS = {
    "another method": (wire.method(1, BasicQos(prefetch_count=1)), codes.FRAME),
    "a heartbeat": (b"\x08\x00\x00\x00\x00\x00\x00\xce", codes.FRAME),
    "a header alone": (wire.header(1, 4), codes.FRAME),
    "a body alone": (wire.body(1, b"data"), codes.FRAME),
    "a body in two frames": (wire.publish(1, "e", "k", b"body", body_frames=2), codes.FRAME),
    "a header where the body should be": (
        GOOD[:-12] + b"\x02" + GOOD[-11:],
        codes.FRAME,
    ),
    "another channel within": (
        wire.publish(1, "e", "k", b"body").replace(b"\x03\x00\x01", b"\x03\x00\x02"),
        codes.FRAME,
    ),
    "publish on channel 0": (wire.publish(0, "e", "k", b""), codes.FRAME),
    "immediate": (wire.publish(1, "e", "k", b"", immediate=True), codes.FRAME),
    "weight": (
        GOOD[: len(GOOD) - 12 - 22] + b"\x02\x00\x01\x00\x00\x00\x0e\x00\x3c\x00\x01"
        b"\x00\x00\x00\x00\x00\x00\x00\x04\x00\x00\xce" + GOOD[-12:],
        codes.FRAME,
    ),
    "continued property flags": (
        wire.publish(1, "e", "k", b"", properties=b"\x00\x01\x00\x00"),
        codes.FRAME,
    ),
    "a body over the limit": (wire.publish(1, "e", "k", bytes(200)), codes.FRAME),
    "a frame over the limit": (b"\x01\x00\x01\xff\xff\xff\xff", codes.OVERSIZE),
    "letters": (b"GET / HTTP/1.1\r\n", codes.BAD_TYPE),
    "a wrong end": (wire.method(1, BasicQos())[:-1] + b"\xcd", codes.BAD_END),
    "a tag of 64 bits": (ack(1, 2**63), codes.FRAME),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", STOPS)
def test_what_is_odd_stops_the_kernel_at_its_frame(form: ModuleType, name: str) -> None:
    """The good publish before it is taken; the odd frame is left to the core."""
    odd, why = STOPS[name]
    parsed = Parsed(form, GOOD + odd + GOOD, payload_max=4096, body_max=100)
    assert (parsed.at, parsed.stop, len(parsed.messages())) == (len(GOOD), why, 1)


@pytest.mark.parametrize("form", FORMS)
def test_a_publish_is_taken_whole_or_not_at_all(form: ModuleType) -> None:
    """At every cut the kernel asks for more and stays at the start of the publish."""
    for cut in range(len(GOOD)):
        parsed = Parsed(form, GOOD + GOOD[:cut])
        assert (parsed.at, parsed.stop, len(parsed.messages())) == (len(GOOD), codes.NEED_DATA, 1)


@pytest.mark.parametrize("form", FORMS)
def test_full_arrays_stop_the_kernel_between_frames(form: ModuleType) -> None:
    data = GOOD * 3 + ack(1, 1) + ack(1, 3)
    parsed = Parsed(form, data, capacity=2)
    assert (parsed.at, parsed.stop, parsed.batch.count) == (2 * len(GOOD), codes.FULL, 2)
    parsed = Parsed(form, data, settlement_capacity=1)
    assert (parsed.at, parsed.stop) == (len(data) - len(ack(1, 3)), codes.FULL)


# --- both forms agree ------------------------------------------------------------------------

NAMES = st.text(st.characters(max_codepoint=0x2FF), max_size=12)
PLAIN = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.binary(max_size=8) | NAMES


def nested(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        values,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
        max_leaves=6,
    )


PIKA_VALUES = nested(PLAIN)  # pika writes no floats
VALUES = nested(PLAIN | st.floats(allow_nan=False))
PROPERTIES = st.builds(
    wire.properties,
    content_type=st.none() | st.just("text/plain"),
    headers=st.none() | st.dictionaries(NAMES, VALUES, max_size=3),
    delivery_mode=st.none() | st.integers(0, 3),
    correlation_id=st.none() | NAMES,
    reply_to=st.none() | NAMES,
    expiration=st.none() | st.just("1000"),
    message_id=st.none() | NAMES,
    timestamp=st.none() | st.integers(0, 2**64 - 1),
    user_id=st.none() | st.just("guest"),
)
CHANNELS = st.integers(0, 3)
PUBLISHES = st.builds(
    wire.publish,
    CHANNELS,
    st.sampled_from(["", "ex", "exchange"]),
    st.sampled_from(["", "a", "a.b"]),
    st.binary(max_size=40),
    properties=PROPERTIES,
    mandatory=st.booleans(),
    immediate=st.sampled_from([False, False, False, True]),
    body_frames=st.sampled_from([1, 1, 1, 2]),
)
TAGS = st.integers(0, 12) | st.integers(2**63 - 2, 2**64 - 1)
SETTLEMENTS = (
    st.builds(ack, CHANNELS, TAGS, multiple=st.booleans())
    | st.builds(
        lambda channel, tag, requeue: wire.method(
            channel, BasicReject(delivery_tag=tag, requeue=requeue)
        ),
        CHANNELS,
        TAGS,
        st.booleans(),
    )
    | st.builds(
        lambda channel, tag, bits: wire.frame(1, channel, struct.pack(">HHQB", 60, 120, tag, bits)),
        CHANNELS,
        TAGS,
        st.integers(0, 255),
    )
)
OTHERS = st.sampled_from(
    [
        b"\x08\x00\x00\x00\x00\x00\x00\xce",
        wire.method(1, QueueDeclare(queue="q", arguments={"x": [1, {"y": None}]})),
        wire.method(1, ChannelClose()),
        wire.body(1, b"stray"),
        wire.header(2, 0),
    ]
)
STREAMS = st.lists(PUBLISHES | SETTLEMENTS | PUBLISHES | OTHERS, max_size=12)


def mutate(data: bytes, changes: list[tuple[int, int]]) -> bytes:
    changed = bytearray(data)
    for at, value in changes:
        if changed:
            changed[at % len(changed)] = value
    return bytes(changed)


CHANGES = st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 255)), max_size=3)


@pytest.mark.skipif(fast is None, reason="not compiled")
@given(STREAMS, CHANGES, st.integers(0, 300), st.integers(20, 200), st.integers(1, 8))
def test_both_forms_parse_alike(
    stream: list[bytes], changes: list[tuple[int, int]], start: int, limit: int, capacity: int
) -> None:
    """Any bytes, any limits: the same rows, the same runs, the same stop."""
    data = mutate(b"".join(stream), changes)
    options = {"payload_max": limit, "body_max": limit // 2, "capacity": capacity}
    at = min(start % 3, len(data))
    for _ in range(len(stream) + 2):
        assert fast is not None
        one = Parsed(plain, data, at, settlement_capacity=3, **options)
        two = Parsed(fast, data, at, settlement_capacity=3, **options)
        assert one.everything() == two.everything()
        at = one.at
        if one.stop == codes.NEED_DATA:
            return
        if one.stop == codes.FRAME:
            at += 8 + int.from_bytes(data[at + 3 : at + 7], "big")
        elif one.stop != codes.FULL:
            return


@pytest.mark.parametrize("form", FORMS)
@given(stream=STREAMS, cuts=st.lists(st.integers(0, 4000), max_size=12), bytewise=st.booleans())
@example(stream=[GOOD, ack(1, 1), GOOD], cuts=[], bytewise=True)
def test_cuts_do_not_matter(
    form: ModuleType, stream: list[bytes], cuts: list[int], bytewise: bool
) -> None:
    """One chunk, byte by byte, or random pieces: the same messages and settled tags in the end."""
    data = b"".join(stream)
    addresses = range(len(data)) if bytewise else sorted(cut % (len(data) + 1) for cut in cuts)
    assert take_all(form, data, [*addresses, len(data)]) == take_all(form, data, [len(data)])


def take_all(form: ModuleType, data: bytes, ends: list[int]) -> list[Any]:
    """What a connection would see that reads up to each of `ends` in turn.

    Publishes that the kernel leaves to the core come out as their frames, so the two ways agree
    only if a publish is never taken in one way here and in the other way there.
    """
    seen: list[Any] = []
    at = 0
    for end in ends:
        while True:
            parsed = Parsed(form, data[:end], at)
            seen += parsed.messages()
            for channel, first, count, bits, _ in parsed.settlements:
                seen += [(channel, first + index, bits) for index in range(count)]
            at = parsed.at
            if parsed.stop != codes.FRAME:
                break
            size = 8 + int.from_bytes(data[at + 3 : at + 7], "big")
            seen.append(data[at : at + size])
            at += size
    settled = [item for item in seen if isinstance(item, tuple) and len(item) == 3]
    return [item for item in seen if item not in settled] + settled


@pytest.mark.skipif(fast is None, reason="not compiled")
@given(PROPERTIES, CHANGES, st.integers(0, 6))
def test_both_forms_scan_properties_alike(
    raw: bytes, changes: list[tuple[int, int]], cut: int
) -> None:
    data = mutate(raw, changes)
    data = data[: len(data) - cut]
    assert fast is not None
    assert plain.scan_properties(data, 0, len(data)) == fast.scan_properties(data, 0, len(data))


@pytest.mark.parametrize("form", FORMS)
@given(raw=PROPERTIES)
def test_well_formed_properties_pass(form: ModuleType, raw: bytes) -> None:
    """... and each cut of them does not: every byte is accounted for."""
    assert form.scan_properties(raw, 0, len(raw)) >= 0
    for cut in range(len(raw)):
        assert form.scan_properties(raw, 0, cut) == -1
    assert form.scan_properties(raw + b"\x00", 0, len(raw) + 1) == -1


@pytest.mark.parametrize("form", FORMS)
@given(headers=st.dictionaries(NAMES, PIKA_VALUES, max_size=4))
@example(headers={"CC": None})
def test_tables_that_pika_writes_pass(form: ModuleType, headers: dict[str, Any]) -> None:
    """As they are, but for the headers that the gateway acts on."""
    expected = codes.CHECKED if headers.keys() & {"CC", "BCC"} else 0
    pieces: list[bytes] = []
    pika.data.encode_table(pieces, headers)
    raw = b"\x20\x00" + b"".join(pieces)
    assert form.scan_properties(raw, 0, len(raw)) == expected


@pytest.mark.parametrize("form", FORMS)
def test_a_table_bomb_is_refused(form: ModuleType) -> None:
    """5000 tables inside each other: no recursion, no crash, refused at the depth limit."""
    table = b""
    for _ in range(5000):
        table = b"\x01kF" + struct.pack(">I", len(table)) + table
    raw = b"\x20\x00" + struct.pack(">I", len(table)) + table
    assert form.scan_properties(raw, 0, len(raw)) == -1
    table = b""
    for _ in range(plain_properties.TABLE_DEPTH_MAX - 1):
        table = b"\x01kF" + struct.pack(">I", len(table)) + table
    raw = b"\x20\x00" + struct.pack(">I", len(table)) + table
    assert form.scan_properties(raw, 0, len(raw)) == 0


# --- deliveries ------------------------------------------------------------------------------


def both_forms() -> list[ModuleType]:
    assert fast is not None
    return [plain, fast]


RECORDS = st.lists(
    st.tuples(st.binary(max_size=30), st.none() | PROPERTIES, st.binary(max_size=4)), max_size=5
)
PREFIX = b"PMQ_P\x010018\x02TAGS\x01key\x02"
HEAD = struct.pack(">HH", 60, 60) + b"\x01c"
TAIL = b"\x02ex\x03key"
DEFAULT = wire.properties(delivery_mode=2)


def encode(form: ModuleType, memory: bytes, *, start: int = 0, frame_max: int = 4096) -> bytes:
    result = form.encode_deliveries(
        memory, start, len(memory), 7, frame_max, HEAD, 2**40, True, TAIL, len(PREFIX), DEFAULT
    )
    assert isinstance(result, bytes)
    return result


@pytest.mark.parametrize("form", FORMS)
@given(records=RECORDS, frame_max=st.integers(9, 60))
def test_records_become_deliveries(
    form: ModuleType, records: list[tuple[bytes, bytes | None, bytes]], frame_max: int
) -> None:
    """Body and properties come back byte by byte, bodies cut at frame_max, tags counting up."""
    memory = b"".join(
        wire.record(
            topic=b"t" + name.hex().encode(),
            data=data,
            prefix=PREFIX,
            extra=b"" if raw is None else wire.extra_of(raw),
        )
        for data, raw, name in records
    )
    sent = wire.sent(encode(form, memory, frame_max=frame_max))
    assert [(one.body, one.properties) for one in sent] == [
        (data, DEFAULT if raw is None else raw) for data, raw, _ in records
    ]
    for index, one in enumerate(sent):
        assert all(size <= frame_max - 8 for size in one.body_sizes)
        assert one.channel == 7
        assert vars_of(one.method) == {
            "consumer_tag": "c",
            "delivery_tag": 2**40 + index,
            "redelivered": True,
            "exchange": "ex",
            "routing_key": "key",
        }


def vars_of(method: Any) -> dict[str, Any]:
    return {name: getattr(method, name) for name, _ in method.FIELDS}


@pytest.mark.skipif(fast is None, reason="not compiled")
@given(RECORDS, CHANGES, st.integers(0, 100), st.integers(9, 60))
def test_both_forms_encode_alike(
    records: list[tuple[bytes, bytes | None, bytes]],
    changes: list[tuple[int, int]],
    start: int,
    frame_max: int,
) -> None:
    """Damaged records too: the same bytes or the same error."""
    memory = mutate(
        b"".join(
            wire.record(
                data=data, prefix=PREFIX, extra=wire.extra_of(raw or b"\x00\x00"), rest=rest
            )
            for data, raw, rest in records
        ),
        changes,
    )
    start = min(start if start < 3 else 0, len(memory))
    results = []
    for form in both_forms():
        try:
            results.append(encode(form, memory, start=start, frame_max=frame_max))
        except ValueError as error:
            results.append(str(error).encode())
    assert results[0] == results[1]


BASE64 = st.text("AZaz09+/=\x7f ", max_size=12)


@pytest.mark.skipif(fast is None, reason="not compiled")
@given(BASE64)
def test_both_forms_read_base64_alike(text: str) -> None:
    memory = wire.record(data=b"x", prefix=PREFIX, extra=b"PMQ_AMQP\x01" + text.encode() + b"\x02")
    results = []
    for form in both_forms():
        try:
            results.append(encode(form, memory))
        except ValueError as error:
            results.append(str(error).encode())
    assert results[0] == results[1]
