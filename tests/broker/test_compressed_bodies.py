"""Bodies that RocketMQ producers compressed, as readers of other protocols get them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from polymq.broker.messages.compressed import COMPRESSION_MASK, TURN_BYTES_MAX
from polymq.broker.messages.record_header import header_property
from polymq.broker.port import REST, Template
from tests.broker.queue_bench import consume, declare, publish
from tests.broker.test_engine_sessions import connect
from tests.harness.broker import Broker, SpyConsumer, at_qos

ZLIB = header_property(flag=0, system_flag=0x301, reconsume=0)
ZSTD = header_property(flag=0, system_flag=0x201, reconsume=0)
SIZE = 1024 * 1024
"""Of a body when it is plain; a kilobyte when it is not."""
COUNT = 20
PACKED = [zlib.compress(bytes((number,)) * SIZE) for number in range(COUNT)]


class Turns:
    """A broker that knows zlib, and how much it decompressed in each callback of the loop."""

    def __init__(self, directory: Path) -> None:
        self.bytes_each = [0]
        self.broker = Broker(directory, plain_body=self.plain_body)
        soon = self.broker.loop.call_soon

        def call_soon(callback: Callable[[], object]) -> None:
            def counted() -> None:
                self.bytes_each.append(0)
                callback()

            soon(counted)

        self.broker.loop.call_soon = call_soon  # type: ignore[method-assign]

    def plain_body(self, body: bytes, system_flag: int) -> bytes | None:
        """What the engine is handed."""
        if system_flag & COMPRESSION_MASK != 0x301:
            return None
        plain = zlib.decompress(body)
        self.bytes_each[-1] += len(plain)
        return plain

    def check(self) -> None:
        """All was decompressed once, and never too much at once."""
        assert sum(self.bytes_each) == COUNT * SIZE
        assert max(self.bytes_each) <= TURN_BYTES_MAX + SIZE
        self.bytes_each[:] = [0]


@pytest.fixture
def turns(tmp_path: Path) -> Iterator[Turns]:
    turns = Turns(tmp_path)
    yield turns
    turns.broker.stop()


@pytest.fixture
def broker(turns: Turns) -> Broker:
    return turns.broker


def plain(bodies: list[bytes]) -> list[int]:
    """Which bodies these are."""
    assert {len(body) for body in bodies} == {SIZE}
    return [body[0] for body in bodies]


def compressed(broker: Broker, *, retain: bool = False) -> Template:
    return broker.port.topics.template(
        broker.port.topics.route("orders", "x"), properties={**ZLIB, "PMQ_QOS": "1"}, retain=retain
    )


@pytest.mark.parametrize("live", [True, False])
def test_a_queue_decompresses_no_more_than_its_share_at_once(
    turns: Turns, broker: Broker, live: bool
) -> None:
    """All arrive, in order, once; others have their turn in between."""
    declare(broker, "work")
    consumer = SpyConsumer()
    if not live:
        publish(broker, "work", *PACKED, constant=ZLIB)
        broker.step()
    broker.port.queues.consume("work", consumer, exclusive=False, owner=None).ready()
    if live:
        broker.step()
        publish(broker, "work", *PACKED, constant=ZLIB)
    broker.step(0.1)
    assert plain(consumer.bodies) == list(range(COUNT))
    assert [(offset, again) for offset, _, again in consumer.got] == [
        (offset, False) for offset in range(COUNT)
    ]
    turns.check()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("qos", [0, 1])
def test_a_session_does_so_live_and_when_it_gets_all_of_it_again(
    turns: Turns, broker: Broker, qos: int, clean: bool
) -> None:
    session, link = connect(broker, "c", clean=clean)
    session.subscribe(("orders", REST), at_qos(qos))
    broker.step()
    broker.publish(compressed(broker), *PACKED)
    broker.step(0.1)
    assert plain(link.bodies) == list(range(COUNT))
    turns.check()
    if qos and not clean:
        session.disconnect()
        session, again = connect(broker, "c")
        broker.step(0.1)
        assert plain(again.bodies) == list(range(COUNT))
        assert [packet for _, _, _, packet, _, _ in again.publishes] == list(range(1, COUNT + 1))
        assert {duplicate for *_, duplicate, _ in again.publishes} == {True}
        turns.check()


def test_what_does_not_decompress_is_handed_on_as_it_was_sent(broker: Broker) -> None:
    declare(broker, "work")
    publish(broker, "work", b"packed", constant=ZSTD)
    publish(broker, "work", zlib.compress(b"one"), zlib.compress(b"two"), constant=ZLIB)
    publish(broker, "work", b"plain")
    broker.step()
    assert consume(broker, "work")[0].bodies == [b"packed", b"one", b"two", b"plain"]


def test_a_retained_body_is_plain(broker: Broker) -> None:
    broker.publish(compressed(broker, retain=True), zlib.compress(b"kept"))
    broker.step()
    session, link = connect(broker, "c")
    since = session.subscribe(("orders", REST), at_qos(1))
    broker.step()
    session.replay_retained(("orders", REST), since)
    broker.step(0.1)
    assert link.bodies == [b"kept"]
