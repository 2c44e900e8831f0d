"""Large requests are handled in steps: others are served in between, the outcome is the same."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from itertools import count
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from polymq.broker.port import Reason, Refused
from polymq.gateways.http_cloudevents import bulk_json, codec
from polymq.gateways.http_cloudevents.codec import Event
from polymq.gateways.http_cloudevents.errors import BadBatch, BadEvent
from polymq.net.turns import TURN_SECONDS
from tests.gateways.http_cloudevents.event_strategies import events
from tests.gateways.http_cloudevents.http_harness import (
    BATCH,
    BINARY,
    EVENT,
    Http,
    http,
    publish_batch,
    run,
    until,
)
from tests.gateways.http_cloudevents.http_spy_port import SpyPort, SpyTemplate
from tests.gateways.http_cloudevents.http_work import decode_batch, decode_event

TYPES = 12


def slow(gateway: Http) -> None:
    """From now on each look at the clock is a whole turn later than the last."""
    ticks = count()
    gateway.server._in_turns._turns.clock = lambda: next(ticks) * TURN_SECONDS


def batch(size: int = TYPES) -> bytes:
    """Events each of which is a run of its own."""
    return json.dumps([{**EVENT, "id": str(n), "type": f"t{n}"} for n in range(size)]).encode()


def request(body: bytes) -> bytes:
    head = (
        f"POST /topics/orders HTTP/1.1\r\nHost: x\r\nContent-Type: {BATCH['Content-Type']}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


# --- the loop -----------------------------------------------------------------------------------


def test_others_publish_in_the_middle_of_a_batch() -> None:
    """The batch keeps its order, and its answer comes once all of it is stored."""

    async def scenario() -> None:
        async with http() as gateway:
            slow(gateway)
            publishing = asyncio.create_task(gateway.publish(batch(100), BATCH))
            await until(lambda: gateway.port.stored)
            assert await gateway.publish(b"x", BINARY, topic="other") == (204, None)
            assert not publishing.done()
            assert await publishing == (204, None)
            topics = [message.topic for message in gateway.port.stored]
            assert 0 < topics.index("other") < 100
            tags = [message.tag for message in gateway.port.stored if message.topic == "orders"]
            assert tags == [f"t{n}" for n in range(100)]

    run(scenario())


def test_a_client_that_leaves_gets_all_of_its_batch_stored_or_nothing() -> None:
    """All of it once something was stored; nothing before."""

    async def scenario(*, begun: bool) -> None:
        async with http() as gateway:
            slow(gateway)
            _, writer = await asyncio.open_connection("127.0.0.1", gateway.bound)
            writer.write(request(batch(100)))
            handlers = gateway.server._handlers
            assert handlers is not None
            await until(lambda: gateway.port.stored if begun else handlers._budget._requests)
            writer.transport.abort()
            await until(lambda: not handlers._budget._requests)
            if begun:
                assert len(gateway.port.stored) < 100
                await until(lambda: len(gateway.port.stored) == 100)
            else:
                slow(gateway)
                assert await gateway.publish(b"x", BINARY, topic="other") == (204, None)
                assert [message.topic for message in gateway.port.stored] == ["other"]

    run(scenario(begun=True))
    run(scenario(begun=False))


def test_a_stop_waits_until_a_batch_is_stored() -> None:
    """Though its client has left."""

    async def scenario() -> None:
        async with http() as gateway:
            slow(gateway)
            _, writer = await asyncio.open_connection("127.0.0.1", gateway.bound)
            writer.write(request(batch(100)))
            await until(lambda: gateway.port.stored)
            writer.transport.abort()
            handlers = gateway.server._handlers
            assert handlers is not None
            await until(lambda: not handlers._budget._requests)
            assert len(gateway.port.stored) < 100
            await handlers.wait_for_changes()
            assert len(gateway.port.stored) == 100

    run(scenario())


def test_a_topic_that_is_changed_in_the_middle_gets_the_rest_as_it_is_now() -> None:
    async def scenario() -> None:
        port = SpyPort()
        made: list[SpyTemplate] = []
        make = port.template

        def template(*arguments: Any, **named: Any) -> SpyTemplate:
            made.append(make(*arguments, **named))
            return made[-1]

        port.template = template  # type: ignore[method-assign]
        async with http(port) as gateway:
            slow(gateway)
            publishing = asyncio.create_task(gateway.publish(batch(), BATCH))
            await until(lambda: port.stored)
            for each in made:
                each.valid = False
            assert await publishing == (204, None)
            assert len(port.stored) == TYPES
            assert len(made) > TYPES

    run(scenario())


def test_a_refusal_in_the_middle_of_one_type_says_what_was_stored() -> None:
    """A run that goes to many queues is stored in portions."""

    async def scenario() -> None:
        port = SpyPort()
        make = port.template

        def template(*arguments: Any, **named: Any) -> SpyTemplate:
            made = make(*arguments, **named)
            made.rows_at_once = 3
            return made

        port.template = template  # type: ignore[method-assign]
        port.refusals = [None, None, Refused(Reason.STORAGE_FULL, "the disk is full")]
        async with http(port) as gateway:
            body = json.dumps([{**EVENT, "id": str(n)} for n in range(10)]).encode()
            status, problem = await gateway.publish(body, BATCH)
            assert (status, problem["stored"]) == (507, 6)
            assert port.publish_calls == [3, 3]

    run(scenario())


def test_others_publish_while_events_become_dead_letters() -> None:
    """Each is a record of its own; the answer names all of them."""

    async def scenario() -> None:
        async with http() as gateway:
            await gateway.call("PUT", "/subscriptions/s", {"topic": "orders"})
            await publish_batch(gateway, *(str(n) for n in range(100)))
            path = "/topics/orders/subscriptions/s"
            _, answer, _ = await gateway.call("POST", f"{path}:receive?maxEvents=100")
            tokens = [each["brokerProperties"]["lockToken"] for each in answer["value"]]
            assert len(tokens) == 100
            slow(gateway)
            stored = len(gateway.port.stored)
            wanted = {"lockTokens": tokens}
            rejecting = asyncio.create_task(gateway.call("POST", f"{path}:reject", wanted))
            await until(lambda: len(gateway.port.stored) > stored)
            assert await gateway.publish(b"x", BINARY, topic="other") == (204, None)
            assert not rejecting.done()
            status, outcome, _ = await rejecting
            assert (status, outcome["succeededLockTokens"]) == (200, tokens)
            topics = [message.topic for message in gateway.port.stored[stored:]]
            assert 0 < topics.index("other") < 100

    run(scenario())


@pytest.mark.parametrize("held", [True, False])
def test_locks_are_renewed_in_turns(held: bool) -> None:
    """Of those that are held, and of those that are not, each is a step."""

    async def scenario() -> None:
        async with http() as gateway:
            await gateway.call("PUT", "/subscriptions/s", {"topic": "orders"})
            await publish_batch(gateway, *(str(n) for n in range(100)))
            path = "/topics/orders/subscriptions/s"
            _, answer, _ = await gateway.call("POST", f"{path}:receive?maxEvents=100")
            tokens = [each["brokerProperties"]["lockToken"] for each in answer["value"]]
            if not held:
                tokens = [f"{token}0" for token in tokens]
            slow(gateway)
            turns = gateway.server._in_turns._turns
            waits = count()
            wait = turns.wait
            turns.wait = lambda turn: (next(waits), wait(turn))[1]  # type: ignore[method-assign]
            wanted = {"lockTokens": tokens}
            status, outcome, _ = await gateway.call("POST", f"{path}:renewLock", wanted)
            assert next(waits) > len(tokens) // 2
            failed = [each["lockToken"] for each in outcome["failedLockTokens"]]
            assert (status, outcome["succeededLockTokens"] + failed) == (200, tokens)
            assert bool(failed) != held

    run(scenario())


def test_others_publish_while_subscriptions_are_listed() -> None:
    async def scenario() -> None:
        async with http() as gateway:
            for number in range(200):
                await gateway.call("PUT", f"/subscriptions/s{number:03}", {"topic": "orders"})
            slow(gateway)
            listing = asyncio.create_task(gateway.call("GET", "/subscriptions"))
            assert await gateway.publish(b"x", BINARY) == (204, None)
            assert not listing.done()
            _, shown, _ = await listing
            assert [each["id"] for each in shown] == [f"s{number:03}" for number in range(200)]

    run(scenario())


# --- large JSON ---------------------------------------------------------------------------------

TEXTS = st.text(max_size=90) | st.text(alphabet='"\\/\n€😀a', max_size=90)
SPELLED = st.one_of(
    st.fixed_dictionaries({"data": TEXTS, "datacontenttype": st.just("text/plain")}),
    st.fixed_dictionaries(
        {
            "data": TEXTS,
            "datacontenttype": st.sampled_from(["text/x; charset=utf-16", "text/x;charset=ascii"]),
        }
    ),
    st.binary(max_size=90).map(lambda data: {"data_base64": b64encode(data).decode()}),
    st.text(alphabet="QUJD=/+ é", max_size=60).map(lambda text: {"data_base64": text}),
    st.fixed_dictionaries({"data": st.recursive(TEXTS | st.integers(), st.lists, max_leaves=5)}),
    st.just({"data": 1, "data_base64": "QQ=="}),
    st.just({"data": None, "datacontenttype": "text/plain"}),
    st.just({"data_base64": None}),
    st.just({"data_base64": 1}),
    st.just({"source": ""}),
)


def outcome(decode: Any, body: bytes) -> Event | tuple[str, str]:
    try:
        found: Event = decode(body)
        return found
    except BadEvent as error:
        return error.attribute, error.text


@given(SPELLED, st.booleans(), st.integers(16, 30))
@example({"data_base64": "QUJD" * 3 + "QQ==" * 6}, True, 16)
@example({"data": "😀" * 9, "datacontenttype": "text/plain"}, True, 19)
@example({"data_base64": "QUJDQUJDQQ==" + "QUJD" * 3}, True, 16)
@example({"data_base64": "DDDD="}, True, 16)
@example({"data_base64": "DDDD===="}, True, 16)
@example({"data_base64": "QUJD=" * 4}, True, 16)
@example({"data": "a" + "€" * 9, "datacontenttype": "text/plain"}, False, 17)
@example({"data": "a" + "😀" * 9, "datacontenttype": "text/plain"}, False, 16)
def test_a_large_event_is_the_event_that_it_would_be_in_one_piece(
    members: dict[str, Any], ascii_only: bool, piece: int
) -> None:
    """Wherever its data is cut."""
    body = json.dumps({**EVENT, **members}, ensure_ascii=ascii_only).encode("utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bulk_json, "PIECE_BYTES", piece)
        assert outcome(decode_event, body) == outcome(codec.decode_structured, body)


@given(events(), st.integers(16, 30))
def test_large_events_come_back(event: Event, piece: int) -> None:
    body = codec.encode_structured(event)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bulk_json, "PIECE_BYTES", piece)
        assert decode_event(body) == codec.decode_structured(body)


@pytest.mark.parametrize(
    "spelled",
    [
        b'"data":"\\ud83d"',
        b'"data":"\\ud83d' + "€".encode() * 30 + b'"',
        b'"data":"a","d\\u0061ta":"b"',
        b'"data":"a","data":"a"',
        b'"id":"2"',
        b'"data":"' + b"x" * 30 + b'\xff"',
        b'"data":[1,',
        b'"BAD":1',
    ],
)
def test_what_is_wrong_with_a_large_event_is_wrong_at_the_same_attribute(
    spelled: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = b'{"specversion":"1.0","id":"1","source":"/s","type":"t","datacontenttype":"text/x",'
    body = head + spelled + b"}"
    with pytest.raises(BadEvent) as small:
        codec.decode_structured(body)
    monkeypatch.setattr(bulk_json, "PIECE_BYTES", 16)
    with pytest.raises(BadEvent) as large:
        decode_event(body)
    assert small.value.attribute == large.value.attribute


def test_a_bad_large_event_of_a_batch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_json, "PIECE_BYTES", 16)
    bad = {**EVENT, "id": "x", "time": "now", "data": "y" * 100}
    nested = b'{"id":"z","data":' + b"[" * 900 + b"]" * 900 + b"}"
    body = b"[" + json.dumps(EVENT).encode() + b"," + json.dumps(bad).encode() + b"," + nested
    with pytest.raises(BadBatch) as raised:
        decode_batch(body + b"]", count_max=9)
    found = [(fault.index, fault.id, fault.attribute) for fault in raised.value.faults]
    assert found == [(1, "x", "time"), (2, "z", "specversion")]


def test_members_of_a_large_event_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """By their number, and by their size."""
    monkeypatch.setattr(bulk_json, "MEMBERS_MAX", 10)
    monkeypatch.setattr(bulk_json, "PIECE_BYTES", 16)
    many = {**EVENT, **{f"a{n}": n for n in range(10)}}
    with pytest.raises(BadEvent, match="more than 10 members"):
        decode_event(json.dumps(many).encode())
    monkeypatch.setattr(bulk_json, "SMALL_MEMBERS_BYTES_MAX", 200)
    with pytest.raises(BadEvent, match="beside its data"):
        decode_event(json.dumps({**EVENT, "a": "x" * 200}).encode())
    assert decode_event(json.dumps({**EVENT, "data": "x" * 300}).encode()).data is not None
