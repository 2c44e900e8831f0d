"""Publishing to and consuming from queues through the port, over a real store."""

from __future__ import annotations

from pathlib import Path

import pytest

from polymq.broker.port import Delivery, Durability, QueueConsumer, Reason, Refused
from tests.harness.broker import Broker, SpyConsumer, batch_of

OWNER = object()


def declare(broker: Broker, name: str, *, durable: bool = True, auto_delete: bool = False) -> None:
    broker.port.queues.declare(
        name,
        durable=durable,
        exclusive=False,
        auto_delete=auto_delete,
        arguments={},
        owner=OWNER,
    )


def publish(broker: Broker, exchange: str, key: str, *bodies: bytes) -> None:
    route = broker.port.exchanges.route(exchange, key)
    assert route is not None
    template = broker.port.topics.template(route, properties={"PMQ_PROTO": "amqp"})
    broker.publish(template, *bodies)


def consume(broker: Broker, name: str, credit: int = 1000) -> tuple[SpyConsumer, QueueConsumer]:
    consumer = SpyConsumer(credit)
    registration = broker.port.queues.consume(name, consumer, exclusive=False, owner=OWNER)
    registration.ready()
    broker.step()
    return consumer, registration


def test_a_message_reaches_a_waiting_consumer_after_the_flush(broker: Broker) -> None:
    """Visible means durable: nothing before fdatasync has covered the record."""
    declare(broker, "orders")
    consumer, _ = consume(broker, "orders")
    publish(broker, "", "orders", b"one", b"two")
    broker.loop.run()
    assert consumer.bodies == []
    broker.step()
    assert consumer.got == [(0, b"one", False), (1, b"two", False)]


def test_a_queue_keeps_what_comes_before_its_consumer(broker: Broker) -> None:
    """Messages wait in the index and are read from the log, in order, credit by credit."""
    declare(broker, "orders")
    bodies = [b"%d" % n for n in range(50)]
    publish(broker, "", "orders", *bodies)
    broker.step()
    consumer, registration = consume(broker, "orders", credit=7)
    assert consumer.bodies == bodies[:7]
    consumer.left = 1000
    registration.ready()
    broker.step()
    assert consumer.bodies == bodies


def test_requeued_messages_come_again_before_new_ones(broker: Broker) -> None:
    """nack with requeue: the old place in the order, the redelivered flag set."""
    declare(broker, "q")
    consumer, registration = consume(broker, "q", credit=4)
    publish(broker, "", "q", b"a", b"b", b"c", b"d", b"e")
    broker.step()
    registration.requeue(2, 1)
    registration.requeue(0, 1)
    consumer.left = 10
    broker.step()
    assert consumer.got[4:] == [(0, b"a", True), (2, b"c", True), (4, b"e", False)]


def test_one_requeued_message_comes_before_what_arrives(broker: Broker) -> None:
    """The consumer has credit again only when the next message comes: live delivery gives way."""
    declare(broker, "q")
    consumer, registration = consume(broker, "q", credit=1)
    publish(broker, "", "q", b"a")
    broker.step()
    registration.requeue(0, 1)
    broker.step()
    consumer.left = 10
    publish(broker, "", "q", b"b")
    broker.step()
    assert consumer.got == [(0, b"a", False), (0, b"a", True), (1, b"b", False)]


def test_two_consumers_share_a_queue_in_turn(broker: Broker) -> None:
    """Messages that come one by one go to the consumers in turn."""
    declare(broker, "q")
    first, _ = consume(broker, "q")
    second, _ = consume(broker, "q")
    for n in range(6):
        publish(broker, "", "q", b"%d" % n)
        broker.step()
    assert len(first.bodies) == len(second.bodies) == 3


def test_a_share_is_no_more_than_the_credit(broker: Broker) -> None:
    """Of two consumers, one has credit for less than its half: the other gets the rest."""
    declare(broker, "q")
    bodies = [b"%d" % n for n in range(20)]
    publish(broker, "", "q", *bodies)
    broker.step()
    first, second = SpyConsumer(3), SpyConsumer()
    for consumer in (first, second):
        broker.port.queues.consume("q", consumer, exclusive=False, owner=OWNER)
    publish(broker, "", "q", b"last")
    broker.step()
    assert len(first.bodies) == 3
    assert sorted([*first.bodies, *second.bodies]) == sorted([*bodies, b"last"])


def test_topic_fanout_and_direct_bindings(broker: Broker) -> None:
    """Each exchange type reads its binding keys in its own way; a queue gets a message once."""
    engine = broker.engine
    for name, kind in (("t", "topic"), ("f", "fanout"), ("d", "direct")):
        engine.port.exchanges.declare(
            name, type=kind, durable=True, auto_delete=False, internal=False, arguments={}
        )
    declare(broker, "q")
    for exchange, key in (("t", "a.*"), ("t", "#"), ("f", ""), ("d", "x.*")):
        engine.port.exchanges.bind_queue("q", exchange, key, {}, owner=OWNER)
    consumer, _ = consume(broker, "q")
    for exchange, key in (("t", "a.b"), ("f", "any"), ("d", "x.y"), ("d", "x.*")):
        publish(broker, exchange, key, f"{exchange} {key}".encode())
    broker.step()
    assert consumer.bodies == [b"t a.b", b"f any", b"d x.*"]


def test_the_root_exchange_reaches_mqtt_topics(broker: Broker) -> None:
    """amq.topic: the key's first word is the topic, as RabbitMQ's MQTT plugin has it."""
    declare(broker, "q")
    broker.port.exchanges.bind_queue("q", "amq.topic", "sensors.#", {}, owner=OWNER)
    consumer, _ = consume(broker, "q")
    broker.publish(broker.template("sensors", "room1.temp"), b"21")
    publish(broker, "amq.topic", "sensors.room2", b"22")
    broker.step()
    assert consumer.bodies == [b"21", b"22"]


def test_publishing_nowhere_is_none_and_to_no_exchange_is_refused(broker: Broker) -> None:
    """The default exchange drops what names no queue; an unknown exchange is NOT_FOUND."""
    assert broker.port.exchanges.route("", "nobody") is None
    with pytest.raises(Refused) as refused:
        broker.port.exchanges.route("missing", "k")
    assert refused.value.reason is Reason.NOT_FOUND


@pytest.mark.parametrize("with_state_db", [True, False])
@pytest.mark.parametrize("way", ["stop", "kill"])
def test_queues_and_acks_survive(tmp_path: Path, way: str, with_state_db: bool) -> None:
    """After a stop or a kill: bindings, ready messages, settled ones, redelivered flags."""
    broker = Broker(tmp_path / "data", with_state_db=with_state_db)
    broker.port.exchanges.declare(
        "t", type="topic", durable=True, auto_delete=False, internal=False, arguments={}
    )
    declare(broker, "q")
    declare(broker, "gone", durable=False)
    broker.port.exchanges.bind_queue("q", "t", "a.#", {}, owner=OWNER)
    publish(broker, "t", "a.b", *[b"%d" % n for n in range(6)])
    broker.step()
    consumer, registration = consume(broker, "q", credit=4)
    registration.settle(0, 1)
    registration.settle(2, 1)
    broker.step(1.0)
    if way == "stop":
        broker.stop()
    else:
        broker.kill()
    broker.open()
    publish(broker, "t", "a.c", b"new")
    broker.step()
    with pytest.raises(Refused):
        broker.port.queues.info("gone", owner=OWNER)
    consumer, _ = consume(broker, "q")
    assert consumer.got == [
        (1, b"1", True),
        (3, b"3", True),
        (4, b"4", False),
        (5, b"5", False),
        (6, b"new", False),
    ]
    broker.stop()


@pytest.mark.parametrize("with_state_db", [True, False])
def test_a_queues_number_is_never_given_again(tmp_path: Path, with_state_db: bool) -> None:
    """Records name queues by number: one that had the number of another, though that is deleted,
    would have its messages after the next crash."""
    broker = Broker(tmp_path / "data", with_state_db=with_state_db)
    numbers = []
    for name in ("a", "b", "c", "d"):
        declare(broker, name)
        numbers.append(broker.engine.exchanges.queues[name].queue.number)
        publish(broker, "", name, name.encode())
        broker.step()
        if name == "c":
            broker.port.queues.delete("c", if_unused=False, if_empty=False, owner=OWNER)
            broker.step(1.0)
        broker.kill()
        broker.open()
    assert len(set(numbers)) == 4
    for name in ("a", "b", "d"):
        assert consume(broker, name)[0].bodies == [name.encode()]
    broker.stop()


def test_many_messages_survive_rolls_and_state_snapshots(tmp_path: Path) -> None:
    """Several segments, snapshots in between, a kill: nothing lost, nothing twice."""
    broker = Broker(tmp_path / "data")
    declare(broker, "q")
    sent = []
    for n in range(40):
        bodies = [b"%d/%d " % (n, k) + b"x" * 1000 for k in range(100)]
        publish(broker, "", "q", *bodies)
        sent += bodies
        broker.step(0.5)
        if n % 10 == 9:
            broker.save()
    broker.kill()
    broker.open()
    assert broker.engine.fold.count < 40
    consumer, _ = consume(broker, "q", credit=10_000)
    for _ in range(100):
        broker.step(0.1)
    assert consumer.bodies == sent
    broker.stop()


def test_exclusive_queues_go_with_their_connection(broker: Broker) -> None:
    """Another connection is locked out; the owner's end deletes the queue."""
    info, _ = broker.port.queues.declare(
        "", durable=False, exclusive=True, auto_delete=False, arguments={}, owner=OWNER
    )
    with pytest.raises(Refused) as refused:
        broker.port.queues.info(info.name, owner=object())
    assert refused.value.reason is Reason.LOCKED
    assert list(broker.port.queues.release_owner(OWNER))
    with pytest.raises(Refused) as refused:
        broker.port.queues.info(info.name, owner=OWNER)
    assert refused.value.reason is Reason.NOT_FOUND


def test_auto_delete_queues_go_with_their_last_consumer(broker: Broker) -> None:
    """Not before it had one."""
    declare(broker, "q", auto_delete=True)
    assert broker.port.queues.info("q", owner=OWNER).consumer_count == 0
    _, registration = consume(broker, "q")
    registration.cancel()
    with pytest.raises(Refused):
        broker.port.queues.info("q", owner=OWNER)


def test_get_takes_one_message_and_counts_the_rest(broker: Broker) -> None:
    """basic.get: message and remaining count; None when there is none."""
    declare(broker, "q")
    publish(broker, "", "q", b"a", b"b")
    broker.step()
    answers: list[tuple[int, int]] = []

    def answer(delivery: Delivery | None, holder: QueueConsumer, ready: int) -> None:
        answers.append((0 if delivery is None else delivery.count, ready))

    for _ in range(3):
        broker.port.queues.get("q", answer, owner=OWNER)
        broker.step()
    assert answers == [(1, 1), (1, 0), (0, 0)]


def test_purge_and_delete_count_what_was_ready(broker: Broker) -> None:
    """Unacknowledged messages are not counted and not purged."""
    declare(broker, "q")
    consumer, _ = consume(broker, "q", credit=1)
    publish(broker, "", "q", b"a", b"b", b"c")
    broker.step()
    assert broker.port.queues.purge("q", owner=OWNER)[0] == 2
    publish(broker, "", "q", b"d")
    broker.step()
    count, _ = broker.port.queues.delete("q", if_unused=False, if_empty=False, owner=OWNER)
    assert count == 1
    assert consumer.gone


def test_transient_messages_are_visible_without_a_flush_but_never_overtake(broker: Broker) -> None:
    """Class `appended` is visible at the end of the iteration, unless the queue has an earlier
    message that waits for its flush."""
    declare(broker, "q", durable=False)
    consumer, _ = consume(broker, "q")
    route = broker.port.exchanges.route("", "q")
    assert route is not None
    quick = broker.port.topics.template(route, properties={}, durability=Durability.APPENDED)
    slow = broker.port.topics.template(route, properties={})
    broker.publish(quick, b"1")
    broker.loop.run()
    assert consumer.bodies == [b"1"]
    broker.publish(slow, b"2")
    broker.publish(quick, b"3")
    broker.loop.run()
    assert consumer.bodies == [b"1"]
    broker.step()
    assert consumer.bodies == [b"1", b"2", b"3"]


def test_pull_gives_records_up_to_the_flushed_point(broker: Broker) -> None:
    """Readers by offset see nothing that could be given another offset after a crash."""
    template = broker.template("t", durability=Durability.APPENDED)
    broker.publish(template, b"a", b"b", b"c")
    broker.loop.run()
    pulled: list[tuple[int, int]] = []

    def take(records: bytes, next_offset: int) -> None:
        pulled.append((len(records), next_offset))

    broker.port.queries.pull("t", 0, 0, count_max=2, bytes_max=1 << 20, callback=take)
    assert pulled == [(0, 0)]
    broker.step(1.0)
    broker.port.queries.pull("t", 0, 0, count_max=2, bytes_max=1 << 20, callback=take)
    assert pulled[1][0] > 0
    assert pulled[1][1] == 2
    with pytest.raises(Refused):
        broker.port.queries.pull("t", 1, 0, count_max=2, bytes_max=1 << 20, callback=take)


def test_a_refused_message_takes_no_offset(broker: Broker) -> None:
    """A body over the limit is refused whole; the next message has the next offset."""
    declare(broker, "q")
    consumer, _ = consume(broker, "q")
    route = broker.port.exchanges.route("", "q")
    assert route is not None
    template = broker.port.topics.template(route, properties={})
    with pytest.raises(Refused) as refused:
        broker.port.publish(template, batch_of(b"ok", b"x" * (5 << 20)), 0, 2)
    assert refused.value.reason is Reason.TOO_LARGE
    broker.publish(template, b"next")
    broker.step()
    assert consumer.got == [(0, b"next", False)]


def test_documents_survive(broker: Broker) -> None:
    """A gateway's settings come back after a restart; None deletes."""
    broker.port.documents.put("http", "a", {"sink": "x"})
    broker.port.documents.put("http", "b", {"sink": "y"})
    broker.port.documents.put("http", "b", None)
    broker.step()
    broker.restart()
    assert broker.port.documents.of_kind("http") == {"a": {"sink": "x"}}


def test_three_hundred_queues_get_one_body(broker: Broker) -> None:
    """More targets than one record names: the rest continues, and survives a restart."""
    engine = broker.engine
    engine.port.exchanges.declare(
        "f", type="fanout", durable=True, auto_delete=False, internal=False, arguments={}
    )
    for n in range(300):
        declare(broker, f"q{n}")
        engine.port.exchanges.bind_queue(f"q{n}", "f", "", {}, owner=OWNER)
    publish(broker, "f", "", b"one", b"two")
    broker.step()
    broker.kill()
    broker.open()
    for n in (0, 254, 255, 256, 299):
        consumer, _ = consume(broker, f"q{n}")
        assert consumer.bodies == [b"one", b"two"]


def test_publishers_pause_while_the_disk_is_behind(tmp_path: Path) -> None:
    """Above the bound the socket is left unread; the flush that catches up calls back."""
    broker = Broker(tmp_path / "data", unflushed_bytes_pause=10_000)
    resumed: list[int] = []
    template = broker.template("t")
    assert not broker.port.overloaded(lambda: resumed.append(1))
    broker.publish(template, b"x" * 20_000)
    assert broker.port.overloaded(lambda: resumed.append(2))
    assert resumed == []
    broker.step()
    assert resumed == [2]
    assert not broker.port.overloaded(lambda: resumed.append(3))
    broker.stop()


def test_much_that_nobody_waits_for_is_flushed_at_once(tmp_path: Path) -> None:
    """A little waits for the lazy flush; a lot would hold up its publishers in the end."""
    broker = Broker(tmp_path / "data", lazy_flush_bytes=10_000)
    template = broker.template("t", durability=Durability.APPENDED)
    broker.step()
    broker.publish(template, b"x")
    broker.loop.run()
    pending = [broker.engine.core.flush_pending]
    broker.publish(template, b"x" * 10_000)
    broker.loop.run()
    pending.append(broker.engine.core.flush_pending)
    assert pending == [False, True]
    broker.step()
    topic = broker.port.topics.info("t")
    assert topic is not None
    assert topic.max_offsets == (2,)
    broker.stop()


def test_a_topic_that_was_made_again_is_another_one(broker: Broker) -> None:
    """Readers that keep offsets elsewhere see that they belong to messages that are gone."""
    broker.port.topics.create("t", 2)
    first = broker.port.topics.info("t")
    broker.port.topics.delete("t")
    broker.port.topics.create("t", 2)
    second = broker.port.topics.info("t")
    assert first is not None
    assert second is not None
    assert first.incarnation != second.incarnation
    broker.step()
    broker.restart()
    assert broker.port.topics.info("t") == second
