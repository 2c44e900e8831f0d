"""Which queue a message goes to, what is tried again and where, and what travels."""

from __future__ import annotations

import itertools
import zlib
from random import Random

import pytest

from polymq.remoting.broker_fields import SendFields, long_names
from polymq.remoting.errors import LocalProtocolError, RequestFailed, Unreachable
from polymq.remoting.frames import Command
from polymq.remoting.group_bodies import MessageQueue
from polymq.remoting.headers import read_fields
from polymq.remoting.messages import Message, encode_batch, encode_properties, hash_code
from polymq.remoting.producer import Producer, ProducerSettings
from tests.remoting.scripted import SEND, SEND_BATCH, World, bad, stores


def producer(world: World) -> Producer:
    ids = itertools.count()
    return Producer(
        group="g",
        client_id="client",
        routes=world.routes,
        clock=lambda: world.now,
        clock_ms=lambda: 1000,
        choose=lambda count: 0,
        new_id=lambda: f"{next(ids):032X}",
    )


def two_brokers() -> World:
    world = World(t={"a": 2, "b": 1})
    world.answers = {(name, code): stores for name in "ab" for code in (SEND, SEND_BATCH)}
    return world


def addresses(world: World) -> list[tuple[str, str]]:
    return [(call.address.host, call.fields["e"]) for call in world.asked(SEND)]


def test_queues_take_turns() -> None:
    world = two_brokers()
    sender = producer(world)
    for _ in range(4):
        sent = world.run(sender.send(Message(topic="t", body=b"x")))
    assert addresses(world) == [("a", "0"), ("a", "1"), ("b", "0"), ("a", "0")]
    assert sent.queue == MessageQueue(topic="t", broker_name="a", queue_id=0)
    assert (sent.queue_offset, sent.message_id) == (5, f"{3:032X}")


def test_what_travels_is_what_java_brokers_read() -> None:
    world = two_brokers()
    message = Message(topic="t", body=b"x", tag="T", keys=("k1", "k2"), properties={"p": "v"})
    world.run(producer(world).send(message))
    (call,) = world.asked(SEND)
    fields = read_fields(SendFields, long_names(call.fields))
    assert (fields.producer_group, fields.topic, fields.default_topic) == ("g", "t", "TBW102")
    assert (fields.born_timestamp, fields.broker_name, fields.batch) == (1000, "a", False)
    pairs = dict(pair.split("\x01") for pair in fields.properties.split("\x02") if pair)
    assert pairs == {
        "p": "v", "TAGS": "T", "KEYS": "k1 k2", "WAIT": "true", "UNIQ_KEY": f"{0:032X}"
    }  # fmt: skip
    assert call.body == b"x"


@pytest.mark.parametrize("failure", [None, bad(1), bad(2), bad(14), bad(1500)])
def test_what_a_broker_cannot_take_goes_to_another_and_it_is_avoided(
    failure: Command | None,
) -> None:
    world = two_brokers()
    sender = producer(world)
    world.answers["a", SEND] = lambda _: failure
    for _ in range(3):
        sent = world.run(sender.send(Message(topic="t", body=b"x")))
        assert sent.queue.broker_name == "b"
    assert addresses(world) == [("a", "0"), ("b", "0"), ("b", "0"), ("b", "0")]
    world.answers["a", SEND] = stores
    world.now += sender.settings.avoid_seconds + 1
    world.run(sender.send(Message(topic="t", body=b"x")))
    assert addresses(world)[-1][0] == "a", "after a while it is tried again"


def test_when_all_fail_all_attempts_are_made_and_the_last_failure_is_told() -> None:
    world = two_brokers()
    for name in "ab":
        world.answers[name, SEND] = lambda _: None
    with pytest.raises(Unreachable, match="no answer"):
        world.run(producer(world).send(Message(topic="t", body=b"x")))
    assert [host for host, _ in addresses(world)] == ["a", "b", "a"]
    for name in "ab":
        world.answers[name, SEND] = lambda _: bad(2)
    with pytest.raises(RequestFailed) as failed:
        world.run(producer(world).send(Message(topic="t", body=b"x")))
    assert failed.value.code == 2


def test_a_refusal_that_another_broker_would_repeat_is_not_tried_again() -> None:
    world = two_brokers()
    world.answers["a", SEND] = lambda _: bad(13)
    with pytest.raises(RequestFailed):
        world.run(producer(world).send(Message(topic="t", body=b"x")))
    assert len(addresses(world)) == 1


@pytest.mark.parametrize("code", [10, 11, 12])
def test_stored_less_safely_is_stored(code: int) -> None:
    world = two_brokers()
    world.answers["a", SEND] = lambda call: Command(
        code=code, opaque=1, fields={"msgId": "00", "queueId": "0", "queueOffset": "1"}
    )
    assert world.run(producer(world).send(Message(topic="t", body=b"x"))).code == code


def test_a_key_has_one_queue_and_no_other() -> None:
    world = two_brokers()
    sender = producer(world)
    for _ in range(3):
        world.run(sender.send(Message(topic="t", body=b"x"), key="k"))
    assert len(set(addresses(world))) == 1
    for name in "ab":
        world.answers[name, SEND] = lambda _: None
    with pytest.raises(Unreachable):
        world.run(sender.send(Message(topic="t", body=b"x"), key="k"))
    assert len(addresses(world)) == 4, "elsewhere it would overtake, or be overtaken"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99_162_322),
        ("polygenelubricants", -(2**31)),
        ("\U0001f600", 1_772_899),
    ],
)
def test_hash_codes_are_javas(text: str, expected: int) -> None:
    """Values that the Java documentation's formula gives, over UTF-16 units."""
    assert hash_code(text) == expected


def test_a_batch_is_one_request_of_one_topic() -> None:
    world = two_brokers()
    sender = producer(world)
    messages = [Message(topic="t", body=bytes([number])) for number in range(3)]
    sent = world.run(sender.send_batch(messages))
    (call,) = world.asked(SEND_BATCH)
    assert call.fields["m"] == "true"
    properties = encode_properties(messages[0], f"{0:032X}")
    assert call.body[:4] == (5 * 4 + 1 + 2 + len(properties)).to_bytes(4)
    assert sent.message_id.count(",") == 2
    for wrong in ([], [Message(topic="t", body=b""), Message(topic="u", body=b"")]):
        with pytest.raises(LocalProtocolError):
            world.run(sender.send_batch(wrong))
    with pytest.raises(LocalProtocolError, match="a batch has at most"):
        encode_batch([Message(topic="t", body=bytes(3_000_000))] * 2, ["1", "2"])


def test_large_bodies_travel_compressed_as_from_java() -> None:
    world = two_brokers()
    sender = producer(world)
    sizes = (4095, 4096)
    for size in sizes:
        world.run(sender.send(Message(topic="t", body=b"x" * size)))
    world.run(sender.send_oneway(Message(topic="t", body=b"x" * 4096)))
    flags = [int(call.fields["f"]) for call in world.asked(SEND)]
    assert flags == [0, 0x301, 0x301]
    assert [len(zlib.decompress(call.body)) for call in world.asked(SEND)[1:]] == [4096] * 2


def test_what_compressing_makes_longer_stays_as_it_is_and_batches_do() -> None:
    world = two_brokers()
    sender = producer(world)
    body = Random(1).randbytes(5000)
    world.run(sender.send(Message(topic="t", body=body)))
    world.run(sender.send_batch([Message(topic="t", body=b"x" * 5000)]))
    sender.settings = ProducerSettings(compress_bytes=None)
    world.run(sender.send(Message(topic="t", body=b"x" * 5000)))
    assert {call.fields["f"] for call in world.calls} == {"0"}
    assert world.asked(SEND)[0].body == body


def test_how_much_and_how_small_is_the_user_s() -> None:
    world = two_brokers()
    sender = producer(world)
    body = bytes(range(64)) * 40
    for level in (1, 9):
        sender.settings = ProducerSettings(compress_bytes=100, compress_level=level)
        world.run(sender.send(Message(topic="t", body=body)))
    fast, small = (call.body for call in world.asked(SEND))
    assert (fast, small) == (zlib.compress(body, 1), zlib.compress(body, 9))


def test_topics_that_were_once_sent_to_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polymq.remoting.producer.TOPICS_COUNT_MAX", 3)
    world = World(**{f"t{number}": {"a": 2} for number in range(6)})
    world.answers["a", SEND] = stores
    sender = producer(world)
    for number in range(6):
        world.run(sender.send(Message(topic=f"t{number}", body=b"x")))
    assert list(sender.presence.topics()) == ["t3", "t4", "t5", "TBW102"]


def test_oneway_does_not_wait() -> None:
    world = two_brokers()
    world.answers["a", SEND] = lambda _: None
    world.run(producer(world).send_oneway(Message(topic="t", body=b"x")))
    (call,) = world.asked(SEND)
    assert call.oneway


def test_a_topic_that_is_not_there_is_made_by_its_first_message() -> None:
    world = two_brokers()
    world.topics["TBW102"] = {"a": 8}
    sender = producer(world)
    for _ in range(5):
        world.run(sender.send(Message(topic="new", body=b"x")))
    assert addresses(world) == [("a", str(number % 4)) for number in range(5)]
    del world.topics["TBW102"]
    with pytest.raises(RequestFailed) as failed:
        world.run(producer(World(t={"a": 1})).send(Message(topic="newer", body=b"x")))
    assert failed.value.code == 17


def test_a_new_topic_goes_on_when_name_servers_go_away_before_they_know_it() -> None:
    world = two_brokers()
    world.topics["TBW102"] = {"a": 8}
    sender = producer(world)
    world.run(sender.send(Message(topic="new", body=b"x")))
    world.names_are_up = False
    assert world.run(sender.send(Message(topic="new", body=b"x"))).queue.broker_name == "a"
    with pytest.raises(Unreachable):
        world.run(sender.send(Message(topic="never heard of", body=b"x")))


def test_the_broker_of_a_new_topic_learns_of_the_producer() -> None:
    """It may have to ask about a transaction before any name server knows of the topic."""
    world = two_brokers()
    world.topics["TBW102"] = {"a": 8}
    sender = producer(world)
    world.run(sender.send(Message(topic="new", body=b"x")))
    assert world.run(sender.presence.beat()) == 1


def test_a_topic_without_the_write_permission_takes_nothing() -> None:
    world = two_brokers()
    world.perm = 4
    with pytest.raises(RequestFailed, match="accepts no messages"):
        world.run(producer(world).send(Message(topic="t", body=b"x")))


def test_sending_goes_on_while_name_servers_are_away() -> None:
    world = two_brokers()
    sender = producer(world)
    world.run(sender.send(Message(topic="t", body=b"x")))
    world.names_are_up = False
    world.answers["a", SEND] = lambda _: None
    assert world.run(sender.send(Message(topic="t", body=b"x"))).queue.broker_name == "b"


def test_brokers_learn_of_the_producer() -> None:
    world = two_brokers()
    sender = producer(world)
    world.run(sender.send(Message(topic="t", body=b"x")))
    assert sender.presence.wake.count, "soon"
    assert world.run(sender.presence.beat()) == 2
    beats = [call for call in world.calls if call.code == 34]
    assert b'"producerDataSet":[{"groupName":"g"}]' in beats[0].body
    world.answers["a", 34] = lambda _: None
    assert world.run(sender.presence.beat()) == 1
    world.run(sender.presence.leave())
    assert [call.fields["producerGroup"] for call in world.calls if call.code == 35] == ["g", "g"]


@pytest.mark.parametrize(
    "message",
    [
        Message(topic="", body=b""),
        Message(topic="t" * 128, body=b""),
        Message(topic="t", body=bytes(4 * 1024 * 1024 + 1)),
        Message(topic="t", body=b"", properties={"a\x01": "b"}),
        Message(topic="t", body=b"", tag="\x02"),
        Message(topic="t", body=b"", properties={"": "b"}),
        Message(topic="t", body=b"", properties={"a": "é" * 16_384}),
    ],
)
def test_what_no_broker_would_take_is_not_sent(message: Message) -> None:
    world = two_brokers()
    with pytest.raises(LocalProtocolError):
        world.run(producer(world).send(message))
    assert world.calls == []
