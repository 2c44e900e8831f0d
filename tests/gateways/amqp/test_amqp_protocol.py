"""The protocol core: wire cases, every pair of its tables, and that cuts do not matter.

The cases are data (`tests/wire_cases/amqp_*.json`): bytes of a client, and what the core says of
them, in the short lines of `amqp_core_driver`. Those of `amqp_session` start behind the handshake
with channels 1 and 2 open.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymq.gateways.amqp import spec
from polymq.gateways.amqp.errors import LocalProtocolError, RemoteProtocolError, ReplyCode
from polymq.gateways.amqp.kernels import frames
from polymq.gateways.amqp.limits import Limits
from polymq.gateways.amqp.methods import method_frame
from polymq.gateways.amqp.protocol import BULK_BYTES, WAIT_FOR_BODY_BYTES_MAX
from polymq.gateways.amqp.spec import METHODS, Method
from polymq.gateways.amqp.states import (
    AGAIN,
    CHANNEL_RECEIVED,
    CHANNEL_SENT,
    DROPPED_STATES,
    LATE,
    RECEIVED,
    SENT,
    ChannelState,
    Content,
    State,
)
from tests.gateways.amqp import amqp_wire as wire
from tests.gateways.amqp.amqp_core_driver import (
    HANDSHAKE,
    LIMITS,
    Driver,
    channel_open,
    feed_in_pieces,
    opened,
)

CASES = Path(__file__).parents[2] / "wire_cases"


def cases(name: str) -> list[Any]:
    loaded = json.loads((CASES / f"{name}.json").read_text(encoding="utf-8"))
    return [pytest.param(case, id=case["name"]) for case in loaded]


def record(driver: Driver) -> tuple[list[str], list[str], list[str]]:
    """What the driver saw: methods and errors; publishes; settled tags. Each in its order, for
    what order there is between the three depends on how the bytes are cut."""
    return driver.lines, driver.publishes, driver.settled


def expected(case: dict[str, Any]) -> tuple[list[str], list[str], list[str]]:
    lines: list[str] = case["expect"]
    publishes = [line for line in lines if " publish " in line]
    settled = [line for line in lines if " ack " in line or " nack " in line]
    return [line for line in lines if line not in publishes + settled], publishes, settled


def driver_of(name: str) -> Driver:
    return opened(1, 2) if name == "amqp_session" else Driver()


ALL = [("amqp_session", case) for case in cases("amqp_session")]
ALL += [("amqp_handshake", case) for case in cases("amqp_handshake")]
PARAMETERS = [pytest.param(name, case.values[0], id=case.id) for name, case in ALL]


@pytest.mark.parametrize(("name", "case"), PARAMETERS)
def test_case_in_one_chunk(name: str, case: dict[str, Any]) -> None:
    driver = driver_of(name)
    driver.feed(bytes.fromhex(case["hex"]))
    assert record(driver) == expected(case)
    wire.sent(bytes(driver.sent).removesuffix(b"AMQP\x00\x00\x09\x01"))  # well-formed answers


@pytest.mark.parametrize(("name", "case"), PARAMETERS)
def test_case_byte_by_byte(name: str, case: dict[str, Any]) -> None:
    driver = driver_of(name)
    data = bytes.fromhex(case["hex"])
    feed_in_pieces(driver, data, range(len(data)))
    assert record(driver) == expected(case)


@given(
    st.sampled_from([case.values[0] for case in cases("amqp_session")]),
    st.lists(st.integers(1, 200), max_size=6),
)
def test_case_in_random_pieces(case: dict[str, Any], cuts: list[int]) -> None:
    driver = opened(1, 2)
    feed_in_pieces(driver, bytes.fromhex(case["hex"]), cuts)
    assert record(driver) == expected(case)


@given(
    first=st.sampled_from([case.values[0] for case in cases("amqp_session")]),
    second=st.sampled_from([case.values[0] for case in cases("amqp_session")]),
    changes=st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 255)), max_size=3),
    cuts=st.lists(st.integers(1, 400), max_size=6),
)
def test_any_bytes_are_events_or_errors(
    first: dict[str, Any],
    second: dict[str, Any],
    changes: list[tuple[int, int]],
    cuts: list[int],
) -> None:
    """Damaged sessions: nothing but events and protocol errors, and the same ones however the
    bytes are cut. Only what comes in one read with an error and behind it may count or not."""
    data = bytearray.fromhex(first["hex"] + second["hex"])
    for at, value in changes:
        data[at % len(data)] = value
    whole, pieces = opened(1, 2), opened(1, 2)
    whole.feed(bytes(data))
    feed_in_pieces(pieces, bytes(data), cuts)
    assert whole.lines == pieces.lines
    for one, other in ((whole.publishes, pieces.publishes), (whole.settled, pieces.settled)):
        short, long = sorted((one, other), key=len)
        assert long[: len(short)] == short
        if not any(line.startswith("error") for line in whole.lines):
            assert one == other


def test_the_first_of_two_errors_counts() -> None:
    """An ack where a content is expected, then a publish on a closed channel, in one read."""
    unexpected, closed = (
        bytes.fromhex(
            next(case.values[0] for case in cases("amqp_session") if name in str(case))["hex"]
        )
        for name in ("an ack within a content", "a publish on a closed channel")
    )
    for data, code in ((unexpected + closed, 505), (closed + unexpected, 504)):
        driver = opened(1, 2)
        driver.feed(data)
        assert driver.lines == [f"error {code}"]


def test_a_large_publish_that_comes_in_reads_is_put_together() -> None:
    """Beyond the bound the core takes its frames one by one instead of waiting for the end."""
    limits = replace(LIMITS, body_bytes_max=1 << 20, assembling_bytes_max=1 << 20)
    body = bytes(range(256)) * 400
    data = wire.publish(1, "e", "k", body) + wire.publish(1, "e", "k", b"next")
    driver = opened(1, limits=limits)
    half = WAIT_FOR_BODY_BYTES_MAX + 100
    driver.feed(data[:half])
    assert driver.core.channels == {1: ChannelState.BODY}
    driver.feed(data[half:])
    assert driver.publishes == [
        f"1 publish e/k {body.decode('latin-1')}".rstrip(" "),
        "1 publish e/k next",
    ]
    assert driver.core.channels == {1: ChannelState.OPEN}


# --- the tables, pair by pair ------------------------------------------------------------------


HEARTBEAT = b"\x08\x00\x00\x00\x00\x00\x00\xce"
"""Behind a publish method it says that its header does not follow at once."""


def feed_method(driver: Driver, method: Method, channel: int) -> None:
    driver.core.receive(data := method_frame(channel, method) + HEARTBEAT, 0, len(data))
    driver.core.next_event()


@pytest.mark.parametrize("kind", METHODS.values(), ids=lambda kind: kind.NAME)
@pytest.mark.parametrize("state", ChannelState)
def test_every_method_in_every_state_of_a_channel(state: ChannelState, kind: type[Method]) -> None:
    """A pair of the table goes where it says; one that is missing is dropped or an error."""
    driver = opened(1)
    if state in (ChannelState.HEADER, ChannelState.BODY):
        driver.feed(wire.method(1, spec.BasicPublish()) + HEARTBEAT)
        driver.feed(wire.header(1, 5) if state is ChannelState.BODY else b"")
    if state is ChannelState.CLOSED:
        del driver.core.channels[1]
    else:
        driver.core.channels[1] = state
    target = CHANNEL_RECEIVED.get((state, kind))
    if state is ChannelState.CLOSED:
        target = target or AGAIN.get(kind)
    dropped = state in DROPPED_STATES or (state is ChannelState.CLOSED and kind in LATE)
    if target is None and (not dropped or kind.CLASS_ID == 10):
        with pytest.raises(RemoteProtocolError) as caught:
            feed_method(driver, kind(), 1)
        assert caught.value.channel == 0
        assert caught.value.class_id == kind.CLASS_ID
        target = state
    else:
        feed_method(driver, kind(), 1)
        target = target or state
    assert driver.core.channels.get(1, ChannelState.CLOSED) is target


@pytest.mark.parametrize("kind", METHODS.values(), ids=lambda kind: kind.NAME)
@pytest.mark.parametrize("state", State)
def test_every_method_in_every_state_of_a_connection(state: State, kind: type[Method]) -> None:
    driver = opened()
    driver.core.state = state
    target = RECEIVED.get((state, kind))
    deaf = (State.DEAF, State.CLOSE_RECEIVED, State.CLOSED)
    ours = (State.STARTING, State.AUTHENTICATING, State.OPENING)
    values = {"channel_max": 1, "frame_max": 4096} if kind is spec.ConnectionTuneOk else {}
    if state is State.WAIT_HEADER:
        feed_method(driver, kind(**values), 0)
        assert driver.core.state is State.DEAF
    elif target is not None or state in deaf or state in ours or state is State.CLOSING:
        feed_method(driver, kind(**values), 0)
        assert driver.core.state is (target or state)
    else:
        with pytest.raises(RemoteProtocolError) as caught:
            feed_method(driver, kind(**values), 0)
        assert caught.value.code in (ReplyCode.COMMAND_INVALID, ReplyCode.CHANNEL_ERROR)


@pytest.mark.parametrize("kind", METHODS.values(), ids=lambda kind: kind.NAME)
def test_we_send_only_what_the_tables_allow(kind: type[Method]) -> None:
    for state in State:
        driver = opened()
        driver.core.state = state
        if (state, kind) in SENT:
            driver.core.send(kind())
            assert driver.core.state is SENT[state, kind]
        else:
            with pytest.raises(LocalProtocolError):
                driver.core.send(kind())
    for channel_state in ChannelState:
        driver = opened(1)
        driver.core.channels[1] = channel_state
        target = CHANNEL_SENT.get((channel_state, kind))
        if target is not None:
            driver.core.send(kind(), 1)
            assert driver.core.channels.get(1, ChannelState.CLOSED) is target
        else:
            with pytest.raises(LocalProtocolError):
                driver.core.send(kind(), 1)


def test_the_table_of_contents_is_walked_completely() -> None:
    """HEADER, BODY and back: the pairs of the table that are no methods."""
    publish = wire.method(1, spec.BasicPublish()) + HEARTBEAT
    steps: list[tuple[type[Method] | Content, bytes, ChannelState]] = [
        (spec.BasicPublish, publish, ChannelState.HEADER),
        (Content.HEADER, wire.header(1, 2), ChannelState.BODY),
        (Content.BODY, wire.body(1, b"a"), ChannelState.BODY),
        (Content.LAST_BODY, wire.body(1, b"b"), ChannelState.OPEN),
        (spec.BasicPublish, publish, ChannelState.HEADER),
        (Content.HEADER_OF_NOTHING, wire.header(1, 0), ChannelState.OPEN),
        (Content.TRAFFIC, wire.publish(1, "", "", b"c"), ChannelState.OPEN),
    ]
    driver = opened(1)
    state = ChannelState.OPEN
    for seen, data, target in steps:
        assert CHANNEL_RECEIVED[state, seen] is target
        driver.feed(data)
        assert driver.core.channels[1] is target
        state = target
    assert {seen for seen, _, _ in steps} >= set(Content)


# --- one thing each ----------------------------------------------------------------------------


def test_a_handshake_frame_is_bounded_before_it_is_buffered() -> None:
    """The error comes with the seventh byte, not with the last of a frame that never ends."""
    driver = Driver()
    driver.feed(HANDSHAKE[:8])
    driver.feed(b"\x01\x00\x00\x00\x00\x20\x01"[:6])
    assert driver.lines == []
    driver.feed(b"\x01")
    assert driver.lines == ["error 501"]
    assert driver.core.state is State.DEAF
    driver.feed(bytes(100_000))
    assert driver.rest == b""


def test_frames_may_fill_the_negotiated_size() -> None:
    """frame_max counts the eight bytes around a payload; clients that forget them are let in."""
    limits = replace(LIMITS, body_bytes_max=1 << 20, assembling_bytes_max=1 << 20)
    for size, fine in ((131_064, True), (131_072, True), (131_073, False)):
        driver = opened(1, limits=limits)
        driver.feed(wire.publish(1, "e", "k", bytes(size)))
        assert (driver.lines == []) is fine
        assert len(driver.publishes) == fine


def test_the_client_is_told_the_code_and_the_offender() -> None:
    driver = opened(1)
    driver.feed(wire.method(1, spec.BasicQosOk()))
    (sent,) = wire.sent(bytes(driver.sent))
    assert isinstance(sent.method, spec.ConnectionClose)
    assert (sent.method.reply_code, sent.method.class_id, sent.method.method_id) == (503, 60, 11)
    assert sent.method.reply_text.startswith("COMMAND_INVALID - basic.qos-ok")


def test_reply_texts_are_cut_between_characters() -> None:
    error = RemoteProtocolError(ReplyCode.NOT_FOUND, "\u00e9" * 300)
    raw = error.reply_text.encode()
    assert 254 <= len(raw) <= 255
    assert error.reply_text.startswith("NOT_FOUND - \u00e9")


def test_channels_come_and_go() -> None:
    """Two thousand times open and close: nothing is left, and the number is free at once."""
    driver = opened(limits=Limits())
    churn = channel_open(5) + wire.method(5, spec.ChannelClose())
    driver.feed(churn * 2000)
    assert len(driver.lines) == 4000
    assert driver.core.channels == {}
    assert len(wire.sent(bytes(driver.sent))) == 4000


def test_a_channel_that_the_server_closed_can_be_opened_again() -> None:
    driver = opened(1)
    error = RemoteProtocolError(ReplyCode.NOT_FOUND, "no exchange", channel=1)
    driver.sent += driver.core.close(error)
    driver.feed(
        wire.publish(1, "e", "k", b"dropped")
        + wire.method(1, spec.BasicAck(delivery_tag=1))
        + wire.method(1, spec.ChannelCloseOk())
        + channel_open(1)
        + wire.publish(1, "e", "k", b"taken")
    )
    assert driver.lines == ["1 channel.open"]
    assert driver.publishes == ["1 publish e/k taken"]
    assert driver.settled == []


def test_a_part_of_a_large_read_is_one_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a turn does not get to is parsed again in the next one. A message that is longer than
    the part is found all the same."""
    parse, ends = frames.parse, []

    def noted(source: Any, start: int, end: int, *rest: Any) -> tuple[int, int, int, int]:
        ends.append(end - start)
        return parse(source, start, end, *rest)

    small = [wire.publish(1 + number % 2, "", "q", b"%d" % number) for number in range(6_000)]
    longer = wire.publish(1, "", "q", bytes(BULK_BYTES + 1_000), body_frames=2)
    ack = wire.method(1, spec.BasicAck(delivery_tag=1))
    data = b"".join(small) + longer + ack + small[0]
    assert len(data) > 3 * BULK_BYTES
    driver = opened(1, 2, limits=Limits())
    monkeypatch.setattr(frames, "parse", noted)
    driver.feed(data)
    assert driver.rest == b""
    assert len(driver.publishes) == 6_002
    assert driver.publishes[:2] == ["1 publish /q 0", "2 publish /q 1"]
    assert driver.settled == ["1 ack 1"]
    assert max(ends[: len(b"".join(small)) // BULK_BYTES]) == BULK_BYTES
    assert max(ends) <= 2 * BULK_BYTES
