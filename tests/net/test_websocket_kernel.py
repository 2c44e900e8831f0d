"""The WebSocket kernel: what comes out of frames, and where it stops, in both forms."""

from __future__ import annotations

import time
from itertools import pairwise
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interop_tests.websocket_wire import (
    BINARY,
    CLOSE,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    close,
    frame,
    server_frame,
)
from polymq.net.kernels import websocket
from polymq.net.kernels import websocket_codes as codes
from tests.harness.forms import form_id, forms_of

FORMS = forms_of(websocket.__name__)
LIMIT = 200_000
SIZES = (0, 1, 3, 7, 8, 9, 124, 125, 126, 127, 1000, 65_535, 65_536, 65_537)
each_form = pytest.mark.parametrize("form", FORMS, ids=form_id)

Outcome = tuple[bytes, int, bytes, bytes | None]
"""What came out, why it stopped, what Close carried, and the last Ping."""


def run(form: ModuleType, reads: list[bytes], *, room: int = 0) -> Outcome:
    """What becomes of these reads.

    Args:
        room: bytes that are in the buffer before each read, and stay as they are.
    """
    frames = form.Frames(LIMIT)
    out = bytearray()
    ping: bytes | None = None
    for data in reads:
        before = bytes(range(room))
        buffer = bytearray(before + data)
        filled = frames.unwrap(buffer, room, room, room + len(data))
        assert buffer[:room] == before
        assert len(buffer) == room + len(data)
        out += buffer[room:filled]
        latest = frames.take_ping()
        ping = ping if latest is None else latest
    control = frames.control if frames.stopped == codes.CLOSED else b""
    return bytes(out), frames.stopped, control, ping


def cut(data: bytes, at: list[int]) -> list[bytes]:
    cuts = sorted({min(index, len(data)) for index in at} | {0, len(data)})
    return [data[a:b] for a, b in pairwise(cuts)]


@each_form
def test_what_frames_carry_comes_out_in_order(form: ModuleType) -> None:
    """Sizes around each form of a length, whole messages and fragments, with Pings and Pongs
    between them."""
    bodies = [bytes([size % 251]) * size for size in SIZES]
    data = b"".join(
        frame(body, mask=bytes((size % 256, 1, 2, 3))) + frame(b"", opcode=PONG)
        for body, size in zip(bodies, SIZES, strict=True)
    )
    data += frame(b"be", last=False) + frame(b"hold", opcode=PING)
    data += frame(b"gi", opcode=CONTINUATION, last=False) + frame(b"n", opcode=CONTINUATION)
    expected = b"".join(bodies) + b"begin"
    assert run(form, [data], room=5) == (expected, codes.GOING_ON, b"", b"hold")
    assert run(form, cut(data, list(range(0, len(data), 7)))) == run(form, [data])


@each_form
@pytest.mark.parametrize("size", SIZES)
def test_a_message_becomes_one_frame(form: ModuleType, size: int) -> None:
    """As the server sends it: with the shortest length, and without a mask (part 5.1)."""
    data = bytes(range(256)) * (size // 256 + 1)
    assert form.binary_frame(data[:size]) == server_frame(data[:size])


@each_form
def test_what_has_to_be_looked_at(form: ModuleType) -> None:
    """A Ping, until it is taken, and a stop, for ever. Data, and a Pong, is nothing."""
    frames = form.Frames(LIMIT)

    def read(data: bytes) -> bool:
        frames.unwrap(bytearray(data), 0, 0, len(data))
        return bool(frames.must_look)

    assert not read(frame(b"data") + frame(b"", opcode=PONG))
    ping = frame(b"", opcode=PING)
    assert not read(ping[:3])
    assert read(ping[3:] + frame(b"data"))
    assert frames.take_ping() == b""
    assert not read(frame(b"data"))
    assert read(close(1000))
    assert read(b"")


@each_form
def test_a_byte_at_a_time(form: ModuleType) -> None:
    """Also what is before and behind a Close: nothing behind it counts."""
    data = frame(b"x" * 130) + frame(b"p" * 125, opcode=PING) + frame(b"yz")
    data += close(1000, b"bye") + frame(b"too late") + frame(b"", opcode=TEXT)
    expected = (b"x" * 130 + b"yz", codes.CLOSED, b"\x03\xe8bye", b"p" * 125)
    assert run(form, [data]) == expected
    assert run(form, [bytes((byte,)) for byte in data]) == expected


@each_form
@pytest.mark.parametrize(
    ("broken", "code"),
    [
        (frame(b"x", reserved=4), codes.BROKEN_RESERVED),
        (frame(b"x", reserved=1), codes.BROKEN_RESERVED),
        (frame(b"x", opcode=3), codes.BROKEN_OPCODE),
        (frame(b"x", opcode=7), codes.BROKEN_OPCODE),
        (frame(b"x", opcode=11), codes.BROKEN_OPCODE),
        (frame(b"x", opcode=15), codes.BROKEN_OPCODE),
        (frame(b"x", opcode=TEXT), codes.BROKEN_TEXT),
        (frame(b"x", opcode=PING, last=False), codes.BROKEN_CONTROL_CUT),
        (frame(b"x" * 126, opcode=PING), codes.BROKEN_CONTROL_LONG),
        (frame(b"x" * 126, opcode=CLOSE), codes.BROKEN_CONTROL_LONG),
        (frame(b"x", opcode=CONTINUATION), codes.BROKEN_CONTINUATION),
        (frame(b"a", last=False) + frame(b"x", opcode=BINARY), codes.BROKEN_BEGINNING),
        (frame(b"x", mask=None), codes.BROKEN_UNMASKED),
        (frame(b"x", opcode=PING, mask=None), codes.BROKEN_UNMASKED),
        (frame(b"x" * 125, length_bytes=2), codes.BROKEN_LENGTH),
        (frame(b"x" * 65_535, length_bytes=8), codes.BROKEN_LENGTH),
        (b"\x82\xff" + b"\x80" + bytes(7) + b"mask", codes.BROKEN_LENGTH),
        (b"\x82\xff" + b"\xff" * 8 + b"mask", codes.BROKEN_LENGTH),
        (frame(b"x" * (LIMIT + 1)), codes.BROKEN_LARGE),
        (b"\x82\xff" + b"\x7f" + b"\xff" * 7 + b"mask", codes.BROKEN_LARGE),
    ],
)
def test_a_broken_frame_stops_it_and_what_came_before_is_there(
    form: ModuleType, broken: bytes, code: int
) -> None:
    data = frame(b"before") + broken + frame(b"behind")
    out, stopped, _, _ = run(form, [data])
    assert stopped == code
    assert out in (b"before", b"beforea")
    assert run(form, [bytes((byte,)) for byte in data[:300]])[:2] == (out, code)


@each_form
def test_the_largest_frame_that_may_come(form: ModuleType) -> None:
    data = bytes(range(256)) * (LIMIT // 256)
    assert run(form, [frame(data)]) == (data, codes.GOING_ON, b"", None)


@each_form
def test_time_grows_with_the_bytes_and_no_faster(form: ModuleType) -> None:
    """A thousand empty frames, one large one in pieces, Pings by the thousand: 16 times the bytes
    take no more than 64 times the time."""

    def seconds(data: bytes, pieces: int) -> float:
        size = len(data) // pieces
        best = 1.0
        for _ in range(5):
            begun = time.thread_time()  # what other processes take does not count
            run(form, [data[at : at + size] for at in range(0, len(data), size)])
            best = min(best, time.thread_time() - begun)
        return best

    for many in (frame() * 16, frame(b"p" * 125, opcode=PING), frame(b"x" * 100)):
        assert seconds(many * 256, 16) < 64 * seconds(many * 16, 1) + 0.001


pieces = st.one_of(
    st.builds(
        frame,
        st.binary(max_size=300),
        opcode=st.sampled_from([BINARY, BINARY, BINARY, CONTINUATION, PING, PONG]),
        last=st.sampled_from([True, True, True, False]),
        mask=st.binary(min_size=4, max_size=4),
    ),
    st.builds(
        frame,
        st.binary(max_size=140),
        opcode=st.integers(0, 15),
        last=st.booleans(),
        mask=st.none() | st.binary(min_size=4, max_size=4),
        reserved=st.sampled_from([0, 0, 0, 1, 2, 4]),
        length_bytes=st.sampled_from([None, None, 2, 8]),
    ),
    st.binary(max_size=20),
)
"""Mostly good frames, some that are not, and noise."""


@given(st.lists(pieces, max_size=12).map(b"".join), st.lists(st.integers(0, 3000), max_size=9))
def test_both_forms_and_all_cuts_agree(data: bytes, cuts: list[int]) -> None:
    """Whole, byte by byte, and cut at random: the same bytes, the same stop, the same Ping."""
    expected = run(FORMS[0], [data])
    for form in FORMS:
        assert run(form, [data], room=3) == expected
        assert run(form, cut(data, cuts), room=1) == expected
        assert run(form, [bytes((byte,)) for byte in data]) == expected


@given(st.lists(st.binary(max_size=2000), max_size=8), st.binary(min_size=4, max_size=4))
def test_what_was_masked_comes_out(bodies: list[bytes], mask: bytes) -> None:
    data = b"".join(frame(body, mask=mask) for body in bodies)
    for form in FORMS:
        assert run(form, [data]) == (b"".join(bodies), codes.GOING_ON, b"", None)


@pytest.mark.skipif(len(FORMS) == 1, reason="only the compiled form has pointers")
def test_the_compiled_form_writes_nowhere_else() -> None:
    """Indexes that are no part of the buffer are refused."""
    frames = FORMS[1].Frames(LIMIT)
    for to, start, end in ((0, 0, 11), (-1, 0, 5), (3, 2, 5), (0, 6, 5)):
        with pytest.raises(ValueError, match="no part of a buffer"):
            frames.unwrap(bytearray(10), to, start, end)
