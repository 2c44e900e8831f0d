"""Messages at the admin API: reading a topic in pages, looking into a queue, and publishing one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from polymq.admin import message_values, messages
from polymq.admin.message_values import Message, shown_body
from polymq.admin.messages import MessageHandlers
from polymq.broker.port import Reason, Refused
from tests.broker.queue_bench import bind, consume, declare, exchange, look, publish, ready
from tests.harness.broker import START_MS, Broker
from tests.polymq.admin.operation_calls import call, committed


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path / "data")
    yield made
    made.stop()


def ask(broker: Broker, name: str, where: str, **given: Any) -> Any:
    group = MessageHandlers(broker.engine, committed).group()
    path = {"position": where} if name == "getMessage" else {"name": where}
    port = given.pop("port", None)
    return call([group], name, path, broker=broker, port=port, **given)


def stored(broker: Broker, *tags: str) -> None:
    """Messages in the topic t, a second apart."""
    for number, tag in enumerate(tags):
        broker.publish(broker.template("t", tag), b"%d" % number)
        broker.step(1.0)


def bodies(items: list[Message]) -> list[str | None]:
    return [item.body for item in items]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, "01234"),
        ({"offset": "3"}, "34"),
        ({"last": "2"}, "34"),
        ({"last": "9"}, "01234"),
        ({"since_ms": str(START_MS + 2000)}, "234"),
        ({"since_ms": str(START_MS + 1), "until_ms": str(START_MS + 3000)}, "123"),
        ({"tag": "a"}, "024"),
        ({"tag": "a", "since_ms": str(START_MS + 500)}, "24"),
        ({"tag": "x"}, ""),
        ({"offset": "99"}, ""),
    ],
)
def test_a_topic_by_offset_time_and_tag(
    broker: Broker, query: dict[str, str], expected: str
) -> None:
    """The same in pages of every size."""
    stored(broker, "a", "b", "a", "b", "a")
    assert bodies(ask(broker, "listMessages", "t", **query).items) == list(expected)
    for limit in (1, 2, 3):
        seen: list[str | None] = []
        after: dict[str, str] = {}
        while True:
            page = ask(broker, "listMessages", "t", limit=str(limit), **query, **after)
            assert len(page.items) <= limit
            seen += bodies(page.items)
            if page.next is None:
                break
            after = {"after": page.next}
        assert seen == list(expected)


def test_the_envelope(broker: Broker) -> None:
    stored(broker, "a.b")
    (message,) = ask(broker, "listMessages", "t").items
    assert (message.topic, message.tag, message.offset) == ("t", "a.b", 0)
    assert message.store_ms == START_MS
    assert message.protocol == "mqtt"
    assert message.properties == {"PMQ_PROTO": "mqtt", "PMQ_QOS": "1"}
    assert (message.body_bytes, message.body_complete) == (1, True)
    assert ask(broker, "getMessage", str(message.position)) == message
    with pytest.raises(Refused, match="there is no message at position 1"):
        ask(broker, "getMessage", "1")


def test_publishing_and_finding_by_key(broker: Broker) -> None:
    """What was published is on its way to all subscribers, and found by its key."""
    declare(broker, "q")
    exchange(broker, "shop", "topic")
    bind(broker, "q", "shop", "order.*")
    placed = ask(
        broker,
        "publishMessage",
        "shop",
        tag="order.new",
        body="hé",
        key="o-7",
        content_type="text/plain",
        properties={"source": "console"},
    )
    broker.step()
    assert look(broker, "q") == ["hé".encode()]
    (message,) = ask(broker, "listMessages", "shop", key="o-7").items
    assert message.position == placed.position
    assert message.key == "o-7"
    assert message.properties["content-type"] == "text/plain"
    assert message.properties["source"] == "console"
    ask(broker, "publishMessage", "shop", body_base64="AP8=")
    broker.step()
    (message,) = ask(broker, "listMessages", "shop", last="1").items
    assert (message.body, message.body_base64, message.tag) == (None, "AP8=", None)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"body": "x", "body_base64": "eA=="}, "not both"),
        ({"body_base64": "?"}, "is not base64"),
        ({"properties": {"PMQ_Q": "1"}}, "must not be called 'PMQ_Q'"),
        ({"properties": {"__CRC32#": "1"}}, "must not be called"),
        ({"properties": {"TAGS": "1"}}, "must not be called"),
        ({"properties": {"a": "\x02PMQ_S\x011.1"}}, "U\\+0001 or U\\+0002"),
        ({"key": "a\x01b"}, "U\\+0001 or U\\+0002"),
    ],
)
def test_what_is_not_published(broker: Broker, given: dict[str, Any], text: str) -> None:
    """Nobody makes a record that says something of the broker's own."""
    with pytest.raises(Refused, match=text) as refused:
        ask(broker, "publishMessage", "t", **given)
    assert refused.value.reason is Reason.BAD_ARGUMENT
    assert broker.port.topics.info("t") is None


@pytest.mark.parametrize("arguments", [{}, {"x_max_priority": 3}])
def test_looking_into_a_queue(broker: Broker, arguments: dict[str, Any]) -> None:
    """In the order in which consumers get it, in pages of every size; nothing is taken."""
    declare(broker, "q", **arguments)
    for number in range(4):
        publish(broker, "q", b"%d" % number, priority=3 if number == 3 and arguments else 0)
        broker.step(1.0)
    registration = consume(broker, "q", credit=2)[1]
    registration.cancel()
    for offset in range(1 if arguments else 2):
        registration.requeue(offset, 1)
    expected = ["0", "1", "2"] if arguments else ["0", "1", "2", "3"]
    if arguments:
        expected = [one.decode() for one in _peeked(broker)]
    for limit in (1, 2, 500):
        seen: list[str | None] = []
        after: dict[str, str] = {}
        while True:
            page = ask(broker, "peekQueue", "q", limit=str(limit), **after)
            seen += [item.message.body for item in page.items]
            if page.next is None:
                break
            after = {"after": page.next}
        assert seen == expected
    first = ask(broker, "peekQueue", "q", limit="1").items[0]
    assert first.redelivered
    assert first.message.topic == "q"
    before = ready(broker, "q")
    assert before == len(expected)
    assert ready(broker, "q") == before, "nothing was taken"


def _peeked(broker: Broker) -> list[bytes]:
    """What a consumer gets, which gives it all back."""
    consumer, registration = consume(broker, "q")
    registration.cancel()
    for offset, _, _ in consumer.got:
        registration.requeue(offset, 1)
    return consumer.bodies


@pytest.mark.parametrize(
    ("name", "where", "query", "text"),
    [
        ("listMessages", "x", {}, "there is no topic 'x'"),
        ("listMessages", "t", {"queue": "7"}, "there is no queue 7 of 't'"),
        ("listMessages", "t", {"after": "x"}, "after has to be"),
        ("listMessages", "t", {"key": "a b"}, "a key must not"),
        ("peekQueue", "x", {}, "there is no queue 'x'"),
        ("peekQueue", "q", {"after": "1"}, "after has to be"),
        ("getMessage", "x", {}, "is neither a position nor a message id"),
    ],
)
def test_wrong_requests(
    broker: Broker, name: str, where: str, query: dict[str, str], text: str
) -> None:
    stored(broker, "a")
    declare(broker, "q")
    with pytest.raises(Refused, match=text):
        ask(broker, name, where, **query)


@pytest.mark.parametrize(
    ("body", "most", "expected"),
    [
        (b"abc", 3, ("abc", None, True)),
        (b"abc", 2, ("ab", None, False)),
        ("aé".encode(), 2, ("a", None, False)),
        ("a\U0001f600".encode(), 4, ("a", None, False)),
        (b"a\xff", 9, (None, "Yf8=", True)),
        (b"\xe9", 1, (None, "6Q==", True)),
        (b"\xffabcdef", 2, (None, "/2E=", False)),
        (b"", 0, ("", None, True)),
        (b"x", 0, ("", None, False)),
    ],
)
def test_bodies_are_cut_between_characters(
    body: bytes, most: int, expected: tuple[str | None, str | None, bool]
) -> None:
    assert shown_body(body, most) == expected


def test_pages_are_bounded_in_bytes(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many messages were asked for."""
    monkeypatch.setattr(messages, "ANSWER_BYTES_MAX", 250)
    declare(broker, "q")
    publish(broker, "q", *[b"x" * 100] * 10)
    broker.step()
    page = ask(broker, "listMessages", "q")
    assert len(page.items) == 3
    assert page.next == "3"
    assert len(ask(broker, "listMessages", "q", body_bytes="10").items) == 10
    monkeypatch.setattr(messages, "PULL_BYTES", 250)
    assert len(ask(broker, "peekQueue", "q").items) < 10
    assert message_values.BODY_BYTES_DEFAULT <= 4096


def test_a_rare_tag_does_not_hold_a_request_up(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page may be empty, and says where to go on."""
    monkeypatch.setattr(messages, "PULLS_MAX", 1)
    monkeypatch.setattr(messages, "PULL_BYTES", 1)
    stored(broker, *["a"] * 3)
    page = ask(broker, "listMessages", "t", tag="x")
    assert page.items == []
