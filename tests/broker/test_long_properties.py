"""AMQP properties in front of bodies: who gets them, and who gets the body alone."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymq.broker.messages.long_properties import split_body
from polymq.broker.messages.records import constant_properties
from polymq.broker.port import LONG_CONSTANT, REST, Message, in_front, without_long
from polymq.broker.topics.header_routing import TABLES_BYTES_MAX
from polymq.broker.topics.topic import TopicTemplate
from polymq.core_log.atomic import row_of
from polymq.core_log.files import RealFiles
from polymq.core_log.kernels.batch import EXTRA_VERBATIM
from polymq.core_log.record import RecordTemplate, decode_record
from polymq.core_log.settings import StoreSettings
from polymq.core_log.store import Store
from polymq.gateways.amqp.headers import AmqpHeaders
from tests.broker.queue_bench import OWNER, bind, consume, declare, exchange, publish
from tests.broker.test_engine_sessions import connect
from tests.gateways.amqp import amqp_wire as wire
from tests.harness.broker import Broker, at_qos

AMQP = b"what came over AMQP, " * 2000
"""Longer than a record's properties may be."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path)
    yield broker
    broker.stop()


def in_log(*bodies: bytes) -> list[bytes]:
    return [in_front(AMQP) + body for body in bodies]


def publish_long(broker: Broker, queue: str, *bodies: bytes, **others: Any) -> None:
    publish(broker, queue, *in_log(*bodies), constant=LONG_CONSTANT, **others)


def amqp_of(message: Message) -> bytes:
    return base64.b64decode(message.properties["PMQ_AMQP"])


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize("reads_long", [True, False])
def test_only_who_asks_gets_them(broker: Broker, live: bool, reads_long: bool) -> None:
    """In order among messages without, when they come and when they have waited."""
    declare(broker, "q")
    reader, _ = consume(broker, "q", reads_long=reads_long) if live else (None, None)
    publish(broker, "q", b"before")
    publish_long(broker, "q", b"one", b"two")
    publish(broker, "q", b"behind")
    broker.step()
    if reader is None:
        reader, _ = consume(broker, "q", reads_long=reads_long)
    wanted = in_log(b"one", b"two") if reads_long else [b"one", b"two"]
    assert reader.bodies == [b"before", *wanted, b"behind"]
    assert [message.body for message in reader.messages] == [b"before", b"one", b"two", b"behind"]
    if reads_long:
        assert [amqp_of(message) for message in reader.messages[1:3]] == [AMQP, AMQP]
    long = [message.properties.get("PMQ_LONG") for message in reader.messages]
    assert long == [None, *2 * ["1" if reads_long else "0"], None]


def test_a_get_and_a_consumer_of_priorities_get_them(broker: Broker) -> None:
    declare(broker, "q", x_max_priority=3)
    for priority in (1, 3):
        publish_long(broker, "q", b"%d" % priority, priority=priority)
    broker.step()
    got: list[Any] = []
    broker.port.queues.get("q", lambda delivery, *_: got.append(delivery), owner=OWNER)
    broker.step()
    (message,) = got[0].messages()
    assert (message.body, amqp_of(message)) == (b"3", AMQP)
    reader, _ = consume(broker, "q", reads_long=True)
    assert reader.bodies == in_log(b"1")


@pytest.mark.parametrize("clean", [True, False])
def test_sessions_get_the_body_alone(broker: Broker, clean: bool) -> None:
    """Live, and again after they were away."""
    session, link = connect(broker, "c", clean=clean)
    session.subscribe(("q", REST), at_qos(1))
    broker.step()
    template = broker.port.topics.template(
        broker.port.topics.route("q", "x"), properties=LONG_CONSTANT
    )
    broker.publish(template, *in_log(b"one", b"two"))
    broker.step()
    assert link.bodies == [b"one", b"two"]
    if not clean:
        session.disconnect()
        _, again = connect(broker, "c")
        broker.step()
        assert again.bodies == [b"one", b"two"]


def test_dead_letters_and_delayed_messages_keep_them(broker: Broker) -> None:
    """Also over a restart, and from a dead letter to the next."""
    for name, next_name in (("a", "b"), ("b", "c")):
        declare(
            broker, name, x_dead_letter_exchange="", x_dead_letter_routing_key=next_name,
            x_message_ttl=10,
        )  # fmt: skip
    declare(broker, "c")
    route = broker.port.exchanges.route("", "a")
    assert route is not None
    template = broker.port.topics.template(route, properties=LONG_CONSTANT)
    broker.port.delays.publish_later(template, row_of(in_log(b"x")[0], b""), 0, 1, delay_ms=50)
    broker.step()
    broker.restart()
    broker.step(0.1)
    broker.step(0.1)
    broker.step(0.1)
    reader, _ = consume(broker, "c", reads_long=True)
    (message,) = reader.messages
    assert (message.body, amqp_of(message)) == (b"x", AMQP)
    assert len(message.properties["PMQ_DEATH"]) > 10


def test_a_headers_exchange_looks_at_all_of_them(broker: Broker) -> None:
    """Also of a message that was delayed. What is remembered of them has a bound."""
    broker.engine.topics.header_reader = AmqpHeaders()
    exchange(broker, "x", "headers")
    declare(broker, "q")
    broker.port.exchanges.bind_queue("q", "x", "", {"last": "yes"}, owner=OWNER)
    bind(broker, "q", "amq.topic", "elsewhere")
    route = broker.port.exchanges.route("x", "k")
    assert route is not None
    template = broker.port.topics.template(route, properties=LONG_CONSTANT)
    assert isinstance(template, TopicTemplate)
    for last in ("yes", "no"):
        for number in range(30):
            headers = {"n": number, "blank": "x" * 100_000, "last": last}
            body = in_front(wire.properties(headers=headers)) + b"%d" % number
            broker.port.publish(template, row_of(body, b""), 0, 1)
    assert template.branches is not None
    assert 0 < template.branches.bytes <= TABLES_BYTES_MAX
    assert sum(map(len, template.branches.tables)) <= TABLES_BYTES_MAX
    body = in_front(wire.properties(headers={"last": "yes"})) + b"late"
    broker.port.delays.publish_later(template, row_of(body, b""), 0, 1, delay_ms=10)
    broker.step()
    broker.step(0.1)
    assert consume(broker, "q")[0].bodies == [*[b"%d" % number for number in range(30)], b"late"]


def test_a_client_can_not_say_that_a_message_has_them(broker: Broker) -> None:
    """What stands behind the constant part is the client's."""
    declare(broker, "q")
    route = broker.port.exchanges.route("", "q")
    assert route is not None
    template = broker.port.topics.template(route, properties={"a": "b"}, extra_kind=EXTRA_VERBATIM)
    broker.port.publish(template, row_of(b"\x00\x00\x00\x01x", b"PMQ_LONG\x011\x02"), 0, 1)
    broker.step()
    assert consume(broker, "q")[0].bodies == [b"\x00\x00\x00\x01x"]


# --- one record ------------------------------------------------------------------------------


def record_of(directory: Path, long: str, body: bytes) -> bytes:
    """A record of an engine's, as it stands in the log."""
    settings = StoreSettings(segment_bytes=1 << 22, segments_zeroed=False)
    store = Store.open(str(directory), files=RealFiles(), clock_ms=lambda: 5, settings=settings)
    constant = constant_properties("tag", {"a": "b", "PMQ_LONG": long, "c": "d"})
    template = RecordTemplate(b"t", 0, constant, extra_kind=EXTRA_VERBATIM)
    span = store.log.append_record(
        template, body, extra=b"E\x01e\x02", targets=[(1, 0)], born_ms=1, store_ms=2
    )
    record = bytes(span.memory[span.start : span.end])
    store.close()
    return record


@pytest.mark.parametrize("size", [0, 1, 70_000])
def test_a_short_record_is_as_if_it_had_been_written_so(tmp_path: Path, size: int) -> None:
    """But for the checksum of the whole, which is of the bytes in the log."""
    body = bytes(range(256)) * (size // 256 + 1)
    body = body[:size]
    long = record_of(tmp_path / "long", "1", in_front(AMQP) + body)
    short = bytes(without_long(long))
    wanted = record_of(tmp_path / "short", "0", body)
    assert short.partition(b"__CRC32#")[0] == wanted.partition(b"__CRC32#")[0]
    crc = struct.unpack_from(">I", short, 8)[0]
    assert crc == zlib.crc32(body) & 0x7FFF_FFFF
    assert decode_record(short, verify=False).body == body
    assert without_long(wanted) is wanted
    assert bytes(without_long(memoryview(long))) == short


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_what_is_put_together_comes_apart(amqp: bytes, body: bytes) -> None:
    assert split_body(in_front(amqp) + body) == (amqp, body)
