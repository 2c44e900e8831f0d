"""The engine of a slave: its state is its master's, what it shows is what the master has shown."""

from __future__ import annotations

from typing import Any

import pytest

from polymq.broker.pacing.sweeping import SWEPT_AT_ONCE
from polymq.broker.port import FLUSHED, REST, Position, Reason, Refused
from tests.broker.test_engine_sessions import connect
from tests.harness.broker import Broker, SpyConsumer, SpyLink, at_qos
from tests.harness.people import add_user, allow, port_of

MAGIC_BLANK = (0xCBD43194).to_bytes(4, "big")


def copy(master: Broker, slave: Broker, *, until: int | None = None) -> None:
    """Send what the master has written, without saying what is committed there."""
    standby = slave.engine.standby
    assert standby is not None
    while standby.wanted < (master.store.log.written if until is None else until):
        hot = master.store.log.tail_range(standby.wanted)
        if hot is None:
            hot = master.store.range_of_history(standby.wanted, 100_000)
        assert hot[1]
        standby.take(hot[1])
    slave.step()


def follow(master: Broker, slave: Broker) -> None:
    """The same, and what is committed."""
    copy(master, slave)
    standby = slave.engine.standby
    assert standby is not None
    points = master.engine.core.commits.points
    standby.committed(points[1], points[2])
    slave.step()


def rows(broker: Broker) -> dict[tuple[str, str], Any]:
    """All rows of the state at the log's end, as a snapshot has them."""
    saved: list[Any] = []

    class Spy:
        def save(self, position: int, epoch: int, found: Any) -> None:
            assert (position, epoch) == (broker.store.log.appended, broker.store.epoch)
            saved.extend(found)

    engine = broker.engine
    engine.core.journal.dirty |= everything(broker)
    engine._saved = -1
    engine._state_db = Spy()  # type: ignore[assignment]
    saving = engine.begin_snapshot()
    assert saving is not None
    while not saving.gather(1 << 30):
        pass
    saving()
    return {(kind, key): value for kind, key, value in saved if value is not None}


def everything(broker: Broker) -> set[tuple[str, str]]:
    """Every entity that has a row."""
    engine = broker.engine
    found = {("topic", name) for name in engine.topics.topics}
    found |= {("exchange", name) for name in engine.exchanges.exchanges}
    found |= {("queue", name) for name in engine.named_queues.queues}
    found |= {("filter", str(key)) for key in engine.sessions.state._filter_address}
    found |= {("group", str(number)) for number in engine.queue_store.groups}
    found |= {("session", str(number)) for number in engine.sessions.state.by_number}
    retained = filter(None, engine.retained.entries())
    found |= {("retained", "\x00".join(address)) for address, _ in retained}
    found |= {("document", "kind\x00key")} if engine.port.documents.of_kind("kind") else set()
    return found | {("delay", ""), ("half", ""), ("snapshot", "last")}


def pulled(broker: Broker, topic: str) -> int:
    """One past the last offset that a reader by offset sees."""
    info = broker.port.topics.info(topic)
    assert info is not None
    return info.max_offsets[0]


def do_everything(master: Broker) -> None:
    """Topics, AMQP's entities, sessions, retained and delayed messages, acks, deletions."""
    engine = master.engine
    owner = object()
    engine.port.topics.create("t", 2, {"retention_bytes": "1000000"})
    engine.port.topics.create("gone", 1)
    engine.port.exchanges.declare(
        "x", type="direct", durable=True, auto_delete=False, internal=False, arguments={}
    )
    for name, arguments in (("q", {}), ("p", {"x-max-priority": 3}), ("old", {})):
        engine.port.queues.declare(
            name, durable=True, exclusive=False, auto_delete=False, arguments=arguments, owner=owner
        )
        engine.port.exchanges.bind_queue(name, "t", "#", {}, owner=owner)
    session, link = connect(master, "device")
    session.subscribe(("t", REST), at_qos(1))
    master.step()
    for number in range(5):
        master.publish(master.template("t", "a"), b"%d" % number, b"x" * 2000)
        master.publish(master.template("gone"), b"y")
        master.step(1)
    master.publish(master.template("r", "a", retain=True), b"kept")
    consumer = SpyConsumer(credit=4)
    registration = engine.port.queues.consume("q", consumer, exclusive=False, owner=owner)
    registration.ready()
    master.step(1)
    registration.settle(0, 2)
    registration.settle(3, 1)
    session.acknowledged(1, 3)
    engine.port.topics.delete("gone")
    engine.port.queues.delete("old", if_unused=False, if_empty=False, owner=owner)
    engine.port.topics.set("t", {"retention_seconds": "60"})
    engine.port.documents.put("kind", "key", {"value": 1})
    route = engine.port.topics.route("later", None)
    template = engine.port.topics.template(route, properties={})
    from tests.harness.broker import batch_of

    engine.port.delays.publish_later(template, batch_of(b"due", b"due"), 0, 2, delay_ms=60_000)
    master.step(1)
    assert consumer.bodies
    assert link.bodies


def test_the_state_is_the_masters(master: Broker, slave: Broker) -> None:
    """After every kind of change: the same rows at the same place, also if the slave was restarted
    in between, from `state.db` or from its log."""
    do_everything(master)
    follow(master, slave)
    assert rows(slave) == rows(master)
    slave.restart()
    do_more(master)
    follow(master, slave)
    assert rows(slave) == rows(master)
    slave.kill()
    (slave.directory / "state.db").unlink(missing_ok=True)
    slave.open()
    assert rows(slave) == rows(master)


def test_a_restarted_slave_keeps_what_the_slower_of_two_sessions_needs(
    master: Broker, slave: Broker
) -> None:
    """Sessions with one subscription share a queue: it begins where the last of them is."""
    sessions = [connect(master, name)[0] for name in ("quick", "slow")]
    for session in sessions:
        session.subscribe(("t", REST), at_qos(1))
    master.step()
    master.publish(master.template("t", "a"), *(b"%d" % number for number in range(4)))
    master.step(1)
    sessions[0].acknowledged(1, 4)
    master.step(1)
    follow(master, slave)
    slave.restart()
    queue = slave.engine.sessions.state.filters[("t", REST)].queue
    assert sorted(group.cursor.floor for group in queue.groups) == [0, 4]
    assert (queue.index.first_offset, queue.index.end_offset) == (0, 4)


def do_more(master: Broker) -> None:
    for number in range(3):
        master.publish(master.template("t", "b"), b"%d" % number)
        master.publish(master.template("new"), b"%d" % number)
        master.step(1)


def test_a_promoted_slave_goes_on(master: Broker, slave: Broker) -> None:
    """Opened as a master it has every message, every cursor, and takes new ones behind them; what
    a client held comes again."""
    do_everything(master)
    follow(master, slave)
    slave.stop()
    slave.follows = ""
    slave.open()
    assert slave.store.epoch == master.store.epoch + 1
    for broker in (master, slave):
        broker.publish(broker.template("t", "a"), b"last")
        broker.step()
    assert pulled(slave, "t") == pulled(master, "t")
    consumer = SpyConsumer()
    slave.port.queues.consume("q", consumer, exclusive=False, owner=object()).ready()
    slave.step(1)
    expected = [2, *range(4, 11)]
    assert [offset for offset, _, _ in consumer.got] == expected
    assert consumer.got[0][2]  # it was delivered by the old master
    _, link = connect(slave, "device")
    assert link.bodies[-1] == b"last"


def test_a_queue_that_is_paused_stays_so_when_its_slave_is_promoted(
    master: Broker, slave: Broker
) -> None:
    """The rows are equal, and the new master hands out nothing."""
    master.port.queues.declare(
        "q", durable=True, exclusive=False, auto_delete=False, arguments={}, owner=None
    )
    master.engine.named_queues.pausing.pause("q", by="olga")
    route = master.port.exchanges.route("", "q")
    assert route is not None
    master.publish(master.port.topics.template(route, properties={}), b"a")
    master.step(1)
    follow(master, slave)
    assert rows(slave) == rows(master)
    slave.stop()
    slave.follows = ""
    slave.open()
    consumer = SpyConsumer()
    slave.port.queues.consume("q", consumer, exclusive=False, owner=object()).ready()
    slave.step(1)
    assert consumer.bodies == []
    slave.engine.named_queues.pausing.resume("q")
    slave.step(1)
    assert consumer.bodies == [b"a"]


def test_nothing_is_shown_before_the_master_says_so(master: Broker, slave: Broker) -> None:
    """What the slave has on its disk may still be lost at the master, and its offset be given to
    another message."""
    master.port.topics.create("t", 1)
    master.port.topics.create("copied", 1, {"min_in_sync": "2"})
    follow(master, slave)
    standby = slave.engine.standby
    assert standby is not None
    for topic in ("t", "copied"):
        master.publish(master.template(topic), b"1", b"2")
    master.step()
    copy(master, slave)
    end = slave.store.log.flushed
    assert end == master.store.log.flushed
    assert (pulled(slave, "t"), pulled(slave, "copied")) == (0, 0)
    standby.committed(end, 0)
    assert (pulled(slave, "t"), pulled(slave, "copied")) == (2, 0)
    standby.committed(end, end)
    assert (pulled(slave, "t"), pulled(slave, "copied")) == (2, 2)


def test_nothing_is_shown_before_the_slave_has_it_on_its_disk(
    master: Broker, slave: Broker
) -> None:
    """The master has committed it; this broker may still lose it, and its readers' offsets."""
    master.port.topics.create("t", 1)
    master.port.topics.create("copied", 1, {"min_in_sync": "2"})
    follow(master, slave)
    standby = slave.engine.standby
    assert standby is not None
    for topic in ("t", "copied"):
        master.publish(master.template(topic), b"1", b"2")
    master.step()
    hot = master.store.log.tail_range(standby.wanted)
    assert hot is not None
    standby.take(hot[1])
    standby.committed(master.store.log.flushed, master.store.log.flushed)
    slave.loop.run()  # up to the flush, whose end this broker has not heard of
    assert (pulled(slave, "t"), pulled(slave, "copied")) == (0, 0)
    slave.step()
    assert (pulled(slave, "t"), pulled(slave, "copied")) == (2, 2)


def test_a_restarted_slave_shows_what_is_remembered(master: Broker, slave: Broker) -> None:
    """Without its master it goes on to show what was committed when it stopped, and no more."""
    master.port.topics.create("t", 1)
    master.publish(master.template("t"), b"1")
    master.step()
    follow(master, slave)
    remembered = slave.store.log.flushed
    master.publish(master.template("t"), b"2")
    master.step()
    copy(master, slave)
    slave.kill()
    slave.shown = remembered
    slave.open()
    assert pulled(slave, "t") == 1
    follow(master, slave)
    assert pulled(slave, "t") == 2


def test_a_slave_refuses_users_as_it_refuses_everybody(master: Broker, slave: Broker) -> None:
    """A consumer there would take messages that the master gives to others."""
    do_everything(master)
    add_user(master, "ann")
    allow(master, "ann", "subscribe,create", "#")
    master.step()
    follow(master, slave)
    port = port_of(slave, "ann")
    owner = object()
    for act in (
        lambda: port.sessions.connect(
            "c", clean=True, expiry_seconds=0, link=SpyLink(), principal="ann"
        ),
        lambda: port.queues.declare(
            "q", durable=True, exclusive=False, auto_delete=False, arguments={}, owner=owner
        ),
        lambda: port.queues.consume("q", SpyConsumer(), exclusive=False, owner=owner),
        lambda: port.queues.get("q", lambda *_: None, owner=owner),
    ):
        with pytest.raises(Refused, match="follows the one at master:10912") as error:
            act()
        assert error.value.reason is Reason.READ_ONLY


def test_a_slave_changes_nothing_by_itself(master: Broker, slave: Broker) -> None:
    """Every change is refused with the master's name, and no timer writes."""
    do_everything(master)
    follow(master, slave)
    engine = slave.engine
    owner = object()

    def refused(act: Any) -> None:
        with pytest.raises(Refused, match="follows the one at master:10912") as error:
            act()
        assert error.value.reason is Reason.READ_ONLY

    refused(lambda: slave.publish(slave.template("t"), b"x"))
    refused(lambda: engine.port.topics.route("another", None))
    refused(lambda: engine.port.topics.create("another", 1))
    refused(lambda: engine.port.topics.set("t", {"retention_bytes": "1"}))
    refused(lambda: engine.port.queues.consume("q", SpyConsumer(), exclusive=False, owner=owner))
    refused(lambda: engine.port.queues.get("q", lambda *_: None, owner=owner))
    refused(lambda: engine.port.queues.purge("q", owner=owner))
    refused(lambda: connect(slave, "device"))
    refused(lambda: connect(slave, "another", clean=True))
    refused(lambda: engine.port.documents.put("kind", "key", None))
    refused(
        lambda: engine.port.queues.declare(
            "e", durable=False, exclusive=True, auto_delete=False, arguments={}, owner=owner
        )
    )
    slave.step(3600)
    assert slave.store.log.appended == master.store.log.appended
    assert not engine.port.committed(Position(slave.store.log.appended + 1), FLUSHED)


def test_consumers_of_a_slave_commit_in_memory(master: Broker, slave: Broker) -> None:
    """While the master is away they go on from where they were; nothing is written, and what the
    master's log says later counts."""
    master.port.topics.create("t", 1)
    master.publish(master.template("t"), b"1", b"2", b"3")
    master.port.groups.put("g", {})
    master.step(1)
    follow(master, slave)
    end = slave.store.log.appended
    slave.port.groups.commit("g", "t", 0, 2)
    slave.step(60)
    assert slave.port.groups.offset("g", "t", 0) == 2
    assert slave.store.log.appended == end
    master.port.groups.commit("g", "t", 0, 3)
    master.step(1)
    follow(master, slave)
    assert slave.port.groups.offset("g", "t", 0) == 3


def test_a_slave_ends_a_session_with_thousands_of_filters(master: Broker, slave: Broker) -> None:
    """In one record, as its master does, and sweeps its memory by itself."""
    session, _ = connect(master, "device")
    for number in range(3 * SWEPT_AT_ONCE):
        session.subscribe(("t", f"{number}"), at_qos(1))
    master.step()
    follow(master, slave)
    session.disconnect()
    ended = master.store.log.appended
    connect(master, "device", clean=True)
    master.step()
    copy(master, slave, until=ended)
    assert len(slave.engine.sessions.by_number) == 1
    follow(master, slave)
    assert rows(slave) == rows(master)
    assert not slave.engine.queue_store.groups
    assert not slave.engine.sessions.filters
    assert not slave.engine.topics.router.match(("t", "1"))
