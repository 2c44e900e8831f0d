"""The connection core: client and server joined in memory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymq.remoting.codes import SerializeType
from polymq.remoting.connection import (
    AnswerReceived,
    Connection,
    Event,
    LateAnswer,
    RequestReceived,
)
from polymq.remoting.errors import LocalProtocolError, RemoteProtocolError
from polymq.remoting.frames import Command, encode_frame


def deliver(receiver: Connection, data: bytes) -> list[Event]:
    """All of `data` at once; none of it may be left."""
    events, used = receiver.receive(data, 0, len(data))
    assert used == len(data)
    return events


def ask(code: int = 11, opaque: int = 5, flag: int = 0) -> bytes:
    return encode_frame(Command(code=code, opaque=opaque, flag=flag))


def test_a_question_and_its_answer() -> None:
    client, server = Connection(), Connection()
    opaque, data = client.request(105, {"topic": "t"}, b"body")
    (asked,) = deliver(server, data)
    assert isinstance(asked, RequestReceived)
    assert (asked.command.code, asked.command.fields, asked.command.body) == (
        105,
        {"topic": "t"},
        b"body",
    )
    head = server.answer(asked.serial, 17, {"a": "b"}, remark="no", body_size=2)
    (answered,) = deliver(client, head + b"xy")
    assert isinstance(answered, AnswerReceived)
    assert answered.opaque == opaque
    assert (answered.command.code, answered.command.remark) == (17, "no")
    assert (answered.command.fields, answered.command.body) == ({"a": "b"}, b"xy")
    assert server.open_count == 0


def test_answers_may_overtake_each_other() -> None:
    """A held pull waits while later questions are answered."""
    client, server = Connection(), Connection()
    first, data_1 = client.request(11, {})
    second, data_2 = client.request(30, {})
    asked_1, asked_2 = deliver(server, data_1 + data_2)
    assert isinstance(asked_1, RequestReceived)
    assert isinstance(asked_2, RequestReceived)
    late = server.answer(asked_2.serial, 0)
    early = server.answer(asked_1.serial, 19)
    answers = deliver(client, late + early)
    assert [event.opaque for event in answers if isinstance(event, AnswerReceived)] == [
        second,
        first,
    ]


@pytest.mark.parametrize("kind", list(SerializeType))
def test_an_answer_has_its_question_s_serialize_type(kind: SerializeType) -> None:
    server = Connection()
    (asked,) = deliver(server, encode_frame(Command(code=1, opaque=2, serialize_type=kind)))
    assert isinstance(asked, RequestReceived)
    assert server.answer(asked.serial, 0)[4] == kind


def test_the_two_directions_count_for_themselves() -> None:
    """A broker asks its client with the same opaque that the client just used."""
    client, server = Connection(), Connection()
    ours, data = client.request(34, {})
    deliver(server, data)
    theirs, data = server.request(40, {})
    assert ours == theirs
    (asked,) = deliver(client, data)
    assert isinstance(asked, RequestReceived)
    answer = client.answer(asked.serial, 0)
    assert [type(event) for event in deliver(server, answer)] == [AnswerReceived]


def test_a_oneway_request_is_never_answered() -> None:
    client, server = Connection(), Connection()
    _, data = client.request(15, {}, oneway=True)
    (asked,) = deliver(server, data)
    assert isinstance(asked, RequestReceived)
    assert asked.command.is_oneway
    assert server.open_count == 0
    with pytest.raises(LocalProtocolError):
        server.answer(asked.serial, 0)


def test_a_question_is_answered_once() -> None:
    server = Connection()
    (asked,) = deliver(server, ask())
    assert isinstance(asked, RequestReceived)
    server.answer(asked.serial, 0)
    with pytest.raises(LocalProtocolError):
        server.answer(asked.serial, 0)


def test_an_answer_that_does_not_fit_leaves_the_question_open() -> None:
    server = Connection()
    (asked,) = deliver(server, ask())
    assert isinstance(asked, RequestReceived)
    with pytest.raises(LocalProtocolError):
        server.answer(asked.serial, 0, body_size=2**24)
    server.answer(asked.serial, 1, remark="too large")


def test_a_client_that_uses_an_opaque_twice_gets_two_answers() -> None:
    server = Connection()
    events = deliver(server, ask(opaque=5) + ask(opaque=5))
    serials = [event.serial for event in events if isinstance(event, RequestReceived)]
    assert len(set(serials)) == 2
    for serial in serials:
        server.answer(serial, 0)


def test_an_answer_after_its_question_was_given_up_is_late() -> None:
    client = Connection()
    opaque, _ = client.request(11, {})
    client.forget(opaque)
    assert deliver(client, ask(opaque=opaque, flag=1)) == [LateAnswer(opaque=opaque)]


def test_a_connection_that_broke_the_protocol_stays_broken() -> None:
    server = Connection()
    (asked,) = deliver(server, ask())
    assert isinstance(asked, RequestReceived)
    with pytest.raises(RemoteProtocolError):
        server.receive(b"GET / HTTP/1.1", 0, 14)
    with pytest.raises(RemoteProtocolError):
        server.receive(ask(), 0, len(ask()))
    with pytest.raises(LocalProtocolError):
        server.answer(asked.serial, 0)


def test_too_many_open_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that asks and never reads, and a caller of ours that never waits."""
    monkeypatch.setattr("polymq.remoting.connection.REQUESTS_OPEN_MAX", 2)
    monkeypatch.setattr("polymq.remoting.connection.CALLS_OPEN_MAX", 2)
    connection = Connection()
    deliver(connection, ask() * 2)
    with pytest.raises(RemoteProtocolError, match="wait"):
        deliver(connection, ask())
    connection = Connection()
    connection.request(1, {})
    connection.request(1, {})
    with pytest.raises(LocalProtocolError, match="wait"):
        connection.request(1, {})


@given(cuts=st.lists(st.integers(0, 400), max_size=20))
def test_the_events_do_not_depend_on_how_the_bytes_were_cut(cuts: list[int]) -> None:
    """One chunk, single bytes, any cuts: what is left over is presented again with what follows."""
    data = b"".join(ask(opaque=n, flag=2) for n in range(3)) + ask(opaque=9, flag=1)
    whole = deliver(Connection(), data)
    for cut_positions in (sorted({min(cut, len(data)) for cut in cuts}), range(len(data))):
        connection = Connection()
        events: list[Event] = []
        rest = b""
        for start, end in zip([0, *cut_positions], [*cut_positions, len(data)], strict=True):
            rest += data[start:end]
            got, used = connection.receive(rest, 0, len(rest))
            rest = rest[used:]
            events += got
        assert rest == b""
        assert events == whole
