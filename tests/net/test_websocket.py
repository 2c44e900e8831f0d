"""One WebSocket as a pure core: what comes out, what is sent, and how it ends."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interop_tests.websocket_wire import (
    BINARY,
    CLOSE,
    PING,
    PONG,
    TEXT,
    accepted,
    close,
    frame,
    request,
    server_frame,
    take_frame,
)
from polymq.net.websocket import SENT_FRAME_BYTES_MAX, End, WebSocket
from polymq.net.websocket_handshake import Offer

OFFER = Offer(
    what="MQTT",
    paths=frozenset({"/mqtt"}),
    subprotocols=frozenset({"mqtt"}),
    frame_bytes_max=10_000,
)


class Client:
    """The other side of a core."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.core = WebSocket(OFFER)
        if is_open:
            assert self.send(request()) == b""
            assert self.core.wrap(b"") == accepted()

    def ended(self) -> End | None:
        return self.core.end

    def send(self, data: bytes, *, room: int = 3) -> bytes:
        """What comes out for these bytes, which are read in one go."""
        buffer = bytearray(b"r" * room + data)
        filled = self.core.receive(buffer, room, len(buffer))
        assert buffer[:room] == b"r" * room
        return bytes(buffer[room:filled])


def frames_of(data: bytes) -> list[tuple[int, bytes]]:
    found = []
    while data:
        taken = take_frame(data)
        assert taken is not None, data
        found.append(taken[:2])
        data = data[taken[2] :]
    return found


def test_the_handshake_may_come_in_pieces_with_frames_behind_it() -> None:
    """No byte of the frames is lost, and none comes out before."""
    whole = request() + frame(b"first") + frame(b"second")
    for size in (1, 2, 3, 50, len(request()), len(request()) + 1, len(whole)):
        client = Client(is_open=False)
        out = b"".join(client.send(whole[at : at + size]) for at in range(0, len(whole), size))
        assert out == b"firstsecond"
        assert client.core.has_answer
        assert client.core.wrap(b"") == accepted()
        assert client.core.wrap(b"") == b"", "and once"
        assert client.ended() is None


def test_a_refused_handshake_is_answered_and_is_the_end() -> None:
    client = Client(is_open=False)
    assert client.send(request(path="/elsewhere") + frame(b"x")) == b""
    assert client.send(frame(b"y")) == b""
    end = client.ended()
    assert end is not None
    assert end.is_failure
    assert "404" in end.text
    assert not client.core.goodbye()
    answer = client.core.wrap(b"")
    assert answer.startswith(b"HTTP/1.1 404 Not Found\r\n")
    assert answer.endswith(b"/mqtt.\n"), "and no Close behind it"


def test_a_request_without_an_end_is_refused_when_it_is_too_long() -> None:
    client = Client(is_open=False)
    for _ in range(9):
        client.send(b"GET /mqtt?" + b"x" * 1000)
    assert client.core.wrap(b"").startswith(b"HTTP/1.1 431 ")
    assert client.ended() is not None


def test_a_close_within_the_handshake_sends_nothing() -> None:
    client = Client(is_open=False)
    client.send(b"GET /mq")
    assert not client.core.goodbye()
    assert client.core.wrap(b"") == b""


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65_535, 65_536, SENT_FRAME_BYTES_MAX])
def test_what_leaves_together_is_one_frame(size: int) -> None:
    data = b"d" * size
    assert Client().core.wrap(data) == (server_frame(data) if size else b"")


def test_what_is_too_much_for_a_frame_leaves_in_several() -> None:
    """Clients have limits of their own. All of it is one write."""
    data = bytes(range(256)) * (SENT_FRAME_BYTES_MAX // 256) * 2 + b"end"
    sent = frames_of(Client().core.wrap(data))
    assert [len(body) for _, body in sent] == [SENT_FRAME_BYTES_MAX, SENT_FRAME_BYTES_MAX, 3]
    assert b"".join(body for _, body in sent) == data


def test_the_last_ping_of_a_read_is_answered() -> None:
    """With what it carries, in front of what was written; Pongs are not looked at."""
    client = Client()
    data = frame(b"a", opcode=PING) + frame(b"data") + frame(b"b" * 125, opcode=PING)
    assert client.send(data + frame(b"unasked", opcode=PONG)) == b"data"
    assert client.core.has_answer
    assert frames_of(client.core.wrap(b"out")) == [(PONG, b"b" * 125), (BINARY, b"out")]
    assert client.core.wrap(b"") == b""
    client.send(frame(b"", opcode=PING))
    assert client.core.wrap(b"") == server_frame(opcode=PONG)


def test_a_ping_in_front_of_a_close_is_answered_first() -> None:
    client = Client()
    client.send(frame(b"p", opcode=PING) + close(1000))
    assert not client.core.goodbye()
    assert frames_of(client.core.wrap(b"last")) == [
        (PONG, b"p"),
        (BINARY, b"last"),
        (CLOSE, b"\x03\xe8"),
    ]


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (b"", 1000),
        (b"\x03\xe8", 1000),
        (b"\x03\xe9going", 1001),
        (b"\x0b\xb8", 3000),
        (b"\x13\x87mine", 4999),
        (b"\x03", 1002),
        (b"\x03\xec", 1002),  # 1004 has no meaning
        (b"\x03\xed", 1002),  # 1005 and 1006 are never sent
        (b"\x03\xee", 1002),
        (b"\x03\xf7", 1002),  # 1015, either
        (b"\x00\x00", 1002),
        (b"\x13\x88", 1002),
        (b"\x03\xe8\xff", 1007),
    ],
)
def test_a_close_is_answered(data: bytes, answer: int) -> None:
    """With its code, or with what is wrong with it; what came before it comes out."""
    client = Client()
    sent = client.send(frame(b"before") + frame(data, opcode=CLOSE) + frame(b"behind"))
    assert sent == b"before"
    end = client.ended()
    assert end is not None
    assert end.is_failure is (answer in (1002, 1007))
    assert client.send(frame(b"later")) == b""
    assert not client.core.goodbye(), "nothing more is waited for"
    (opcode, body), *more = frames_of(client.core.wrap(b""))
    assert (opcode, int.from_bytes(body[:2], "big"), more) == (CLOSE, answer, [])
    assert bool(body[2:]) is end.is_failure


@pytest.mark.parametrize(
    ("broken", "code"),
    [
        (frame(b"x", opcode=TEXT), 1003),
        (frame(b"x", mask=None), 1002),
        (frame(b"x", reserved=4), 1002),
        (frame(b"x" * 10_001), 1009),
    ],
)
def test_a_broken_frame_is_told_with_its_code(broken: bytes, code: int) -> None:
    client = Client()
    assert client.send(frame(b"ok") + broken + frame(b"behind")) == b"ok"
    end = client.ended()
    assert end is not None
    assert end.is_failure
    assert not client.core.goodbye()
    ((opcode, body),) = frames_of(client.core.wrap(b""))
    assert (opcode, int.from_bytes(body[:2], "big")) == (CLOSE, code)
    assert body[2:].decode() == end.text


def test_our_close_is_the_last_that_is_sent_and_the_clients_is_waited_for() -> None:
    client = Client()
    assert client.core.goodbye(1001)
    assert frames_of(client.core.wrap(b"last")) == [(BINARY, b"last"), (CLOSE, b"\x03\xe9")]
    assert client.send(frame(b"crossing") + frame(b"p", opcode=PING)) == b""
    assert client.ended() is None
    assert not client.core.has_answer, "nothing is sent behind a Close"
    client.send(close(1001))
    assert client.ended() is not None
    assert not client.core.goodbye()
    assert client.core.wrap(b"") == b""


@given(st.lists(st.integers(0, 900), max_size=12))
def test_where_the_reads_are_cut_makes_no_difference(cuts: list[int]) -> None:
    data = request() + frame(b"a" * 200) + frame(b"ping", opcode=PING) + frame(b"b", last=False)
    data += frame(b"c", opcode=0) + close(1000, b"bye")
    at = sorted({0, len(data), *(index for index in cuts if index < len(data))})
    client = Client(is_open=False)
    out = b"".join(client.send(data[a:b]) for a, b in pairwise(at))
    assert out == b"a" * 200 + b"bc"
    assert not client.core.goodbye()
    assert client.core.wrap(b"") == accepted() + server_frame(b"ping", opcode=PONG) + server_frame(
        b"\x03\xe8", opcode=CLOSE
    )
