"""Atomic batches: publishes and settlements that happen together, also over a kill."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from polymq.broker.port import Publishing, Reason, Refused
from tests.harness.broker import Broker, SpyConsumer, batch_of

OWNER = object()


def declare(broker: Broker, name: str, *, durable: bool = True) -> None:
    broker.port.queues.declare(
        name, durable=durable, exclusive=False, auto_delete=False, arguments={}, owner=OWNER
    )


def consume(broker: Broker, name: str, credit: int = 1000) -> tuple[SpyConsumer, Any]:
    consumer = SpyConsumer(credit)
    registration = broker.port.queues.consume(name, consumer, exclusive=False, owner=OWNER)
    registration.ready()
    broker.step()
    return consumer, registration


def part(broker: Broker, queue: str, *bodies: bytes) -> Publishing:
    route = broker.port.exchanges.route("", queue)
    assert route is not None
    template = broker.port.topics.template(route, properties={"PMQ_PROTO": "amqp"})
    return Publishing(template=template, batch=batch_of(*bodies), first=0, last=len(bodies))


def publish(broker: Broker, queue: str, *bodies: bytes) -> None:
    publishing = part(broker, queue, *bodies)
    broker.publish(publishing.template, *bodies)


def test_a_batch_reaches_all_its_queues_after_the_flush(broker: Broker) -> None:
    """Messages to several queues become visible together, in order, and not before the disk has
    them; two runs to one queue keep their order and their offsets."""
    declare(broker, "a")
    declare(broker, "b")
    first, _ = consume(broker, "a")
    second, _ = consume(broker, "b")
    position = broker.port.transactions.commit(
        [part(broker, "a", b"1", b"2"), part(broker, "b", b"3"), part(broker, "a", b"4")], []
    )
    broker.loop.run()
    assert first.bodies == second.bodies == []
    broker.step()
    assert position <= broker.store.log.flushed
    assert first.got == [(0, b"1", False), (1, b"2", False), (2, b"4", False)]
    assert second.got == [(0, b"3", False)]


def test_queues_in_memory_take_part(broker: Broker) -> None:
    """A transient queue gets what is published, and its settlements need no record."""
    declare(broker, "memory", durable=False)
    consumer, registration = consume(broker, "memory")
    publish(broker, "memory", b"old")
    broker.step()
    broker.port.transactions.commit([part(broker, "memory", b"new")], [(registration, 0, 1)])
    broker.step()
    assert consumer.bodies == [b"old", b"new"]
    assert registration.group.cursor.floor == 1


@pytest.mark.parametrize("with_state_db", [True, False])
def test_publishes_and_settlements_survive_a_kill_together(
    tmp_path: Path, with_state_db: bool
) -> None:
    """Moving a message from one queue to another: after a kill it is in the second only, and what
    was acknowledged before in the usual way is acknowledged, too."""
    broker = Broker(tmp_path / "data", with_state_db=with_state_db)
    for name in ("from", "to"):
        declare(broker, name)
    publish(broker, "from", b"a", b"b", b"c")
    broker.step()
    _, registration = consume(broker, "from")
    registration.settle(2, 1)  # noted, not written yet: the batch says it as well
    broker.port.transactions.commit([part(broker, "to", b"b again")], [(registration, 1, 1)])
    broker.step()
    broker.kill()
    broker.open()
    left, _ = consume(broker, "from")
    moved, _ = consume(broker, "to")
    assert left.got == [(0, b"a", True)]
    assert moved.bodies == [b"b again"]
    broker.stop()


def test_a_torn_batch_is_gone_wholly(tmp_path: Path) -> None:
    """The log ends within the batch, wherever: neither its messages nor its settlements count, and
    the offsets are given again."""
    broker = Broker(tmp_path / "data")
    declare(broker, "from")
    declare(broker, "to")
    publish(broker, "from", b"a", b"b")
    broker.step()
    _, registration = consume(broker, "from")
    broker.step(1.0)
    start = broker.store.log.appended
    broker.port.transactions.commit(
        [part(broker, "to", b"1", b"2"), part(broker, "from", b"3")], [(registration, 0, 2)]
    )
    end = broker.store.log.appended
    broker.loop.run()
    broker.kill()
    whole = (broker.directory / "commitlog" / f"{0:020d}").read_bytes()
    for cut in range(start + 1, end, 97):
        torn = broker.directory.with_name(f"torn-{cut}")
        copy = Broker.__new__(Broker)
        copy.__dict__.update(broker.__dict__)
        shutil.copytree(broker.directory, torn)
        (torn / "commitlog" / f"{0:020d}").write_bytes(whole[:cut] + bytes(len(whole) - cut))
        copy.directory = torn
        copy.open()
        got_from, _ = consume(copy, "from")
        got_to, _ = consume(copy, "to")
        assert got_from.got == [(0, b"a", True), (1, b"b", True)], cut
        assert got_to.got == [], cut
        publish(copy, "to", b"next")
        copy.step()
        assert got_to.got == [(0, b"next", False)], cut
        copy.stop()


def test_a_refused_batch_changes_nothing(broker: Broker) -> None:
    """A batch that is larger than a segment: no message, no settlement, no offset; and what was
    settled before and not written is not forgotten."""
    declare(broker, "q")
    publish(broker, "q", b"a", b"b", b"c")
    broker.step()
    consumer, registration = consume(broker, "q")
    registration.settle(0, 1)
    large = [part(broker, "q", b"x" * 100_000) for _ in range(12)]
    with pytest.raises(Refused) as refused:
        broker.port.transactions.commit(large, [(registration, 1, 1)])
    assert refused.value.reason is Reason.TOO_LARGE
    assert registration.group.cursor.outstanding_count == 2
    publish(broker, "q", b"d")
    broker.step(1.0)
    assert consumer.got[3:] == [(3, b"d", False)]
    broker.kill()
    broker.open()
    again, _ = consume(broker, "q")
    assert [body for _, body, _ in again.got] == [b"b", b"c", b"d"]


def test_messages_times_queues_of_a_batch_have_a_limit(tmp_path: Path) -> None:
    """Above it nothing is stored or settled. A single message goes to all of its queues."""
    broker = Broker(tmp_path / "data", batch_targets_max=12)
    for name in ("a", "b", "c"):
        declare(broker, name)
        broker.port.exchanges.bind_queue(name, "amq.fanout", "", {}, owner=OWNER)
    publish(broker, "a", b"old")
    broker.step()
    consumer, registration = consume(broker, "a")
    route = broker.port.exchanges.route("amq.fanout", "")
    assert route is not None
    template = broker.port.topics.template(route, properties={"PMQ_PROTO": "amqp"})

    def fanned(count: int) -> Publishing:
        return Publishing(template=template, batch=batch_of(*[b"x"] * count), first=0, last=count)

    before = broker.store.log.appended
    for publishes in ([fanned(4)], [fanned(2), fanned(1), fanned(1)]):
        with pytest.raises(Refused) as raised:
            broker.port.transactions.commit(publishes, [(registration, 0, 1)])
        assert raised.value.reason is Reason.LIMIT
        assert "4 messages of the transaction need 16 entries in queues" in str(raised.value)
    assert broker.store.log.appended == before
    broker.step(1)
    assert registration.group.cursor.outstanding_count == 1
    broker.port.transactions.commit([fanned(2), fanned(1)], [(registration, 0, 1)])
    broker.step()
    assert consumer.bodies == [b"old", b"x", b"x", b"x"]
    broker.engine.core.limits = replace(broker.engine.core.limits, batch_targets_max=2)
    broker.port.transactions.commit([fanned(1)], [])
    broker.step()
    assert len(consumer.bodies) == 5
