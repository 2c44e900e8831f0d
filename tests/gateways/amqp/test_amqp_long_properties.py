"""Properties that are too long for a record's, or for a client's frames."""

from __future__ import annotations

import struct
import time
import zlib
from types import ModuleType

import pytest

from polymq.broker.port import in_front
from polymq.core_log.kernels.batch import RECORD_BODY_AT, Batch, LargeBatch
from polymq.gateways.amqp import spec
from polymq.gateways.amqp.contents import Assembling, Contents
from polymq.gateways.amqp.kernels.codes import CHECKED, LONG_BYTES
from polymq.gateways.amqp.limits import Limits
from polymq.gateways.amqp.long_properties import LEFT_OUT, SHORT_BYTES, as_stored, fitting
from polymq.gateways.amqp.methods import content_frames, encode_method
from polymq.gateways.amqp.tables import decode_sized_table, encode_sized_table, split_pairs
from tests.gateways.amqp import amqp_wire as wire
from tests.gateways.amqp.test_amqp_kernels import FORMS

HEADERS = {"first": 1, **{f"n{number}": "x" * 1000 for number in range(30)}, "last": [2]}
LONG = wire.properties(content_type="text", headers=HEADERS, delivery_mode=2, message_id="m")


def properties_of_size(size: int) -> bytes:
    made = wire.properties(headers={"h": ""})
    return wire.properties(headers={"h": "x" * (size - len(made))})


def headers_in(properties: bytes) -> dict[str, object]:
    return decode_sized_table(properties, properties.index(b"text") + 4, len(properties))[0]


@pytest.mark.parametrize("form", FORMS)
def test_kernels_leave_long_ones_to_be_looked_at(form: ModuleType) -> None:
    for size, found in ((LONG_BYTES, 0), (LONG_BYTES + 1, CHECKED)):
        properties = b"in front" + properties_of_size(size)
        assert form.scan_properties(properties, 8, 8 + size) == found


def stored(batch: Batch) -> tuple[bytes, bytes, bytes]:
    """Place, body and extra bytes of the row as the log gets it."""
    made, first, last = as_stored(batch, 0, 1)
    assert (first, last, made.count) == (0, 1, 1)
    address, size, body, body_size, extra, extra_size, _, _ = made.row(0)
    parts = ((address, size), (body, body_size), (extra, extra_size))
    one, two, three = (bytes(made.buffer[at : at + length]) for at, length in parts)
    return one, two, three


def test_long_ones_stand_in_front_of_the_body() -> None:
    """And the row's own are those that fit."""
    batch = Batch(1)
    batch.buffer = b"\x00\x01q" + LONG + b"the body" + b"others"
    batch.add((0, 3), (3 + len(LONG), 8), (3, len(LONG)))
    address, body, extra = stored(batch)
    assert (address, body) == (b"\x00\x01q", in_front(LONG) + b"the body")
    assert extra == fitting(LONG, SHORT_BYTES)
    assert len(extra) <= SHORT_BYTES
    assert list(headers_in(extra)) == ["first", *(f"n{number}" for number in range(8)), "last"]


def test_others_stay_as_they_are() -> None:
    batch = Batch(2)
    batch.buffer = properties_of_size(LONG_BYTES) + b"x"
    for _ in range(2):
        batch.add((0, 0), (LONG_BYTES, 1), (0, LONG_BYTES))
    assert as_stored(batch, 0, 2) == (batch, 0, 2)


def large_batch() -> Batch:
    """A large body in two frames, as it is collected."""
    contents = Contents(Limits(), Assembling())
    method = spec.BasicPublish(routing_key="q")
    payloads = [encode_method(method), struct.pack(">HHQ", 60, 0, 20) + LONG]
    payloads += [b"0123456789", b"9876543210"]
    contents.begin(1, method, payloads[0], 0, len(payloads[0]))
    assert not contents.header(1, payloads[1], 0, len(payloads[1]))
    assert not contents.body(1, payloads[2], 0, 10)
    assert contents.body(1, payloads[3], 0, 10)
    return contents.complete(1).batch


def test_a_large_body_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is collected behind its properties, and its sum is that of both."""
    monkeypatch.setattr("polymq.gateways.amqp.contents.LARGE_BODY_BYTES", 10)
    batch = large_batch()
    assert isinstance(batch, LargeBatch)
    whole = in_front(LONG) + b"01234567899876543210"
    assert batch.body_crc == zlib.crc32(whole)
    _, _, body, _, extra, size, _, _ = batch.row(0)
    assert bytes(batch.buffer[extra : extra + size]) == LONG
    assert bytes(batch.buffer[body : body + 20]) == whole[-20:]
    made, _, _ = as_stored(batch, 0, 1)
    assert isinstance(made, LargeBatch)
    assert made.buffer is batch.buffer
    assert made.row(0)[2] == RECORD_BODY_AT
    assert stored(batch) == (b"\x00\x01q", whole, fitting(LONG, SHORT_BYTES))


@pytest.mark.parametrize("frame_max", [4096, 8192, 20_000, 31_000, 131_072])
def test_a_header_fits_into_a_frame(frame_max: int) -> None:
    """What does not fit is counted. Other properties are all there."""
    method = struct.pack(">HH", 60, 60)
    (sent, header, *_) = wire.frames(content_frames(1, method, LONG, b"body", frame_max))
    assert sent.payload == method
    assert len(header.payload) <= frame_max - 8
    properties = header.payload[12:]
    headers = headers_in(properties)
    left_out = headers.pop(LEFT_OUT, 0)
    assert left_out == len(HEADERS) - len(headers)
    assert bool(left_out) is (len(LONG) > frame_max - 20)
    assert headers.items() <= HEADERS.items()
    assert (headers["first"], headers["last"]) == (1, [2])
    assert properties.endswith(b"\x02\x01m")
    assert frame_max - 8 - len(header.payload) < 1100 or not left_out


def test_tables_of_very_many_headers_cost_little() -> None:
    """65,000 in one message: nobody waits longer than a moment."""
    properties = struct.pack(">HI", 1 << 13, 130_000) + b"\x00V" * 65_000
    began = time.process_time()
    assert len(fitting(properties, SHORT_BYTES)) == SHORT_BYTES
    assert len(fitting(properties, 100_000, marked=True)) <= 100_000
    assert time.process_time() - began < 0.5  # 0.05 on a quiet machine


def test_pairs_of_all_types_are_split() -> None:
    table = {"a": 1, "b": "text", "c": b"bytes", "d": {"e": [None]}, "f": None, "g": True}
    raw = encode_sized_table(table)[4:]
    pairs = list(split_pairs(raw))
    assert [name for name, _ in pairs] == [name.encode() for name in table]
    assert b"".join(pair for _, pair in pairs) == raw
