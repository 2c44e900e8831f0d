"""Messages expire at the head of their queue, in time, read or not; unused queues go."""

from __future__ import annotations

from pathlib import Path

import pytest

from polymq.broker.errors import Refused
from polymq.broker.messages.dead_letter_history import history_of
from tests.broker.queue_bench import OWNER, bind, consume, declare, exchange, look, publish, ready
from tests.harness.broker import Broker


def test_messages_leave_when_their_time_comes_though_nobody_reads(broker: Broker) -> None:
    """The queue's time to live; to the millisecond, run by run."""
    declare(broker, "q", x_message_ttl=1000)
    publish(broker, "q", b"1", b"2")
    broker.step(0.4)
    publish(broker, "q", b"3")
    broker.step(0.599)
    assert ready(broker, "q") == 3
    broker.step(0.001)
    assert ready(broker, "q") == 1
    broker.step(0.4)
    assert ready(broker, "q") == 0
    assert broker.engine.core.timers is not None
    assert len(broker.engine.core.timers) == 0


def test_the_lower_of_both_times_counts(broker: Broker) -> None:
    """A message's own expiration and the queue's time to live."""
    declare(broker, "q", x_message_ttl=1000)
    publish(broker, "q", b"short", ttl_ms=300)
    publish(broker, "q", b"long", ttl_ms=60_000)
    broker.step(0.3)
    assert ready(broker, "q") == 1
    broker.step(0.7)
    assert ready(broker, "q") == 0


@pytest.mark.parametrize("durable", [True, False])
def test_a_plain_queue_lets_messages_expire_that_ask_for_it(broker: Broker, durable: bool) -> None:
    """Only the messages with an expiration go, and a message behind them stays."""
    declare(broker, "q", durable=durable)
    publish(broker, "q", b"dies", ttl_ms=300)
    publish(broker, "q", b"stays")
    broker.step(0.3)
    assert look(broker, "q") == [b"stays"]


@pytest.mark.parametrize("qos", [0, 1])
def test_a_message_of_any_qos_expires(broker: Broker, qos: int) -> None:
    """While it waits, and where the disk takes so long that its time is over when it comes."""
    declare(broker, "q", x_message_ttl=1000)
    template = broker.template("a", "b", qos=qos)
    bind(broker, "q", "a", "b")
    broker.publish(template, b"1")
    broker.step(0.999)
    assert ready(broker, "q") == 1
    broker.step(0.001)
    assert ready(broker, "q") == 0
    consumer, _ = consume(broker, "q")
    broker.publish(template, b"2")
    broker.loop.now += 1.0
    broker.step()
    assert consumer.bodies == []


def test_a_message_expires_at_the_head_only(broker: Broker) -> None:
    """As in RabbitMQ: behind one that lives longer it is counted, and goes with its turn."""
    declare(broker, "q")
    publish(broker, "q", b"long", ttl_ms=5000)
    publish(broker, "q", b"short", ttl_ms=100)
    publish(broker, "q", b"for ever")
    broker.step(1.0)
    assert ready(broker, "q") == 3
    consumer, registration = consume(broker, "q", credit=1)
    assert consumer.bodies == [b"long"]
    broker.step(0.1)
    assert ready(broker, "q") == 1
    consumer.left = 10
    registration.ready()
    broker.step()
    assert consumer.bodies == [b"long", b"for ever"]


def test_nothing_is_delivered_after_its_time(broker: Broker) -> None:
    """Also not what a late consumer, a get or a requeue would bring."""
    declare(broker, "q", x_message_ttl=500)
    publish(broker, "q", b"1", b"2", b"3")
    broker.step()
    consumer, registration = consume(broker, "q", credit=2)
    assert consumer.bodies == [b"1", b"2"]
    broker.loop.now += 1.0  # the timer has had no chance
    consumer.left = 10
    registration.requeue(0, 2)
    registration.ready()
    broker.step()
    assert consumer.bodies == [b"1", b"2"]
    assert ready(broker, "q") == 0
    publish(broker, "q", b"4")
    registration.cancel()
    broker.step()
    broker.loop.now += 1.0
    answers: list[object] = []
    broker.port.queues.get(
        "q", lambda delivery, holder, left: answers.append(delivery), owner=OWNER
    )
    broker.step()
    assert answers == [None]


def test_what_was_requeued_without_a_consumer_expires(broker: Broker) -> None:
    """The head has changed, and with it the time to wait for."""
    declare(broker, "q", x_message_ttl=500)
    publish(broker, "q", b"1")
    broker.step()
    _, registration = consume(broker, "q")
    registration.cancel()
    broker.step(0.2)
    registration.requeue(0, 1)
    broker.step(0.299)
    assert ready(broker, "q") == 1
    broker.step(0.001)
    assert ready(broker, "q") == 0


def test_what_comes_back_may_expire_before_what_was_waited_for(broker: Broker) -> None:
    """The one timer of the queue goes forward, too."""
    declare(broker, "q")
    _, registration = consume(broker, "q", credit=1)
    publish(broker, "q", b"short", ttl_ms=1000)
    publish(broker, "q", b"long", ttl_ms=10_000)
    broker.step(0.2)
    registration.cancel()
    registration.requeue(0, 1)
    broker.step(0.7)
    assert ready(broker, "q") == 2
    broker.step(0.101)
    assert ready(broker, "q") == 1
    assert look(broker, "q") == [b"long"]


def test_zero_is_now_or_never(broker: Broker) -> None:
    """Delivered to a consumer that waits, else gone; also if the flush takes its time."""
    declare(broker, "q", x_message_ttl=0)
    publish(broker, "q", b"nobody")
    broker.step()
    assert ready(broker, "q") == 0
    consumer, _ = consume(broker, "q", credit=2)
    publish(broker, "q", b"1", b"2", b"3")
    broker.loop.now += 0.05
    broker.step()
    assert consumer.bodies == [b"1", b"2"]
    assert ready(broker, "q") == 0
    broker.port.queues.delete("q", if_unused=False, if_empty=False, owner=OWNER)
    declare(broker, "plain")
    consumer, _ = consume(broker, "plain")
    publish(broker, "plain", b"x", ttl_ms=0)
    broker.step()
    assert consumer.bodies == [b"x"]


def test_a_message_whose_flush_took_longer_than_it_lives_is_late(broker: Broker) -> None:
    """A disk that stood still: not delivered after its time."""
    declare(broker, "q", x_message_ttl=100)
    consumer, _ = consume(broker, "q")
    publish(broker, "q", b"late")
    broker.loop.now += 0.1
    broker.step()
    assert consumer.bodies == []
    publish(broker, "q", b"in time")
    broker.loop.now += 0.099
    broker.step()
    assert consumer.bodies == [b"in time"]


def test_expired_messages_are_dead_letters(broker: Broker) -> None:
    """Reason expired; the dead letter does not expire again by its own time to live."""
    exchange(broker, "dlx")
    declare(broker, "dead")
    bind(broker, "dead", "dlx")
    declare(broker, "q", x_dead_letter_exchange="dlx")
    publish(broker, "q", b"a", b"b", ttl_ms=100, priority=4)
    publish(broker, "q", b"c", ttl_ms=100)
    broker.step(0.1)
    broker.step(60.0)
    consumer, _ = consume(broker, "dead")
    assert consumer.bodies == [b"a", b"b", b"c"]
    (death,) = history_of(consumer.messages[0].properties).deaths
    assert (death.cause, death.queue) == ("expired", "q")
    assert consumer.messages[0].properties["PMQ_X"] == "0000000004"


def test_a_cycle_of_expiries_ends(broker: Broker) -> None:
    """A queue whose dead letters come back to itself: RabbitMQ drops them, and so do we."""
    declare(
        broker, "q", x_message_ttl=100, x_dead_letter_exchange="", x_dead_letter_routing_key="q"
    )
    publish(broker, "q", b"a")
    for _ in range(5):
        broker.step(0.1)
    assert ready(broker, "q") == 0
    counts = broker.engine.named_queues.dead_letters.counts
    assert (counts.moved["expired"], counts.dropped["expired"]) == (0, 1)


def test_a_retry_queue_brings_a_rejected_message_back(broker: Broker) -> None:
    """The usual retry: work rejects into wait, wait expires back into work, over and over."""
    declare(broker, "work", x_dead_letter_exchange="", x_dead_letter_routing_key="wait")
    declare(
        broker,
        "wait",
        x_message_ttl=1000,
        x_dead_letter_exchange="",
        x_dead_letter_routing_key="work",
    )
    publish(broker, "work", b"job")
    broker.step()
    for attempt in range(1, 5):
        consumer, registration = consume(broker, "work")
        (message,) = consumer.messages
        deaths = history_of(message.properties).deaths
        assert [d.count for d in deaths] == [attempt - 1] * len(deaths)
        registration.reject(message.consumer_offset, 1)
        registration.cancel()
        broker.step(0.9)
        assert (ready(broker, "work"), ready(broker, "wait")) == (0, 1)
        broker.step(0.2)
    assert look(broker, "work") == [b"job"]


@pytest.mark.parametrize("way", ["stop", "kill"])
@pytest.mark.parametrize("with_state_db", [True, False])
def test_time_goes_on_while_the_broker_is_down(
    tmp_path: Path, way: str, with_state_db: bool
) -> None:
    """Own times to live and the queue's, with index entries that were kept or made again."""
    broker = Broker(tmp_path / "data", with_state_db=with_state_db)
    declare(broker, "own")
    declare(broker, "dead")
    declare(
        broker,
        "queues",
        x_message_ttl=1000,
        x_dead_letter_exchange="",
        x_dead_letter_routing_key="dead",
    )
    publish(broker, "own", b"1", ttl_ms=1000)
    publish(broker, "own", b"2", ttl_ms=5000)
    publish(broker, "queues", b"3")
    broker.step(0.5)
    if way == "stop":
        broker.stop()
    else:
        broker.kill()
    broker.open(down_seconds=1.0)
    broker.step()
    assert (ready(broker, "own"), ready(broker, "queues"), ready(broker, "dead")) == (1, 0, 1)
    broker.step(3.5)
    assert ready(broker, "own") == 0
    broker.stop()


def test_ten_thousand_expired_messages_leave_in_turns(tmp_path: Path) -> None:
    """From the disk, in bounded portions, each with a dead letter, in order."""
    broker = Broker(tmp_path / "data", pump_count_max=500)
    declare(broker, "dead")
    declare(
        broker,
        "q",
        x_message_ttl=1000,
        x_dead_letter_exchange="",
        x_dead_letter_routing_key="dead",
    )
    sent = [b"%d" % number for number in range(10_000)]
    for at in range(0, len(sent), 1000):
        publish(broker, "q", *sent[at : at + 1000])
    broker.step()
    broker.restart()
    broker.step(2.0)
    assert ready(broker, "q") == 0
    consumer, _ = consume(broker, "dead", credit=20_000)
    for _ in range(50):
        broker.step()
    assert consumer.bodies == sent
    broker.stop()


def test_the_topic_keeps_what_expired_in_a_queue(broker: Broker) -> None:
    """Readers by offset are not the queue's."""
    declare(broker, "q", x_message_ttl=100)
    publish(broker, "q", b"a")
    broker.step(1.0)
    topic = broker.port.topics.info("q")
    assert topic is not None
    assert (topic.min_offsets, topic.max_offsets) == ((0,), (1,))


def test_a_queue_that_is_not_used_goes(broker: Broker) -> None:
    """x-expires: declaring, looking, consuming and getting are uses; publishing is none."""
    declare(broker, "q", x_expires=1000)
    broker.step(0.9)
    declare(broker, "q", x_expires=1000)
    publish(broker, "q", b"x")
    broker.step(0.9)
    assert ready(broker, "q") == 1
    broker.step(0.9)
    broker.port.queues.get("q", lambda delivery, holder, left: holder.requeue(0, 1), owner=OWNER)
    broker.step(0.9)
    _, registration = consume(broker, "q")
    broker.step(60.0)
    registration.cancel()
    broker.step(0.99)
    assert "q" in broker.engine.exchanges.queues
    broker.step(0.01)
    assert "q" not in broker.engine.exchanges.queues
    broker.restart()
    with pytest.raises(Refused):
        broker.port.queues.info("q", owner=OWNER)


def test_a_restart_renews_the_lease(broker: Broker) -> None:
    """Nobody could use the queue while the broker was down."""
    declare(broker, "q", x_expires=1000)
    broker.step(0.5)
    broker.stop()
    broker.open(down_seconds=3600.0)
    broker.step(0.9)
    assert "q" in broker.engine.exchanges.queues
    broker.step(0.1)
    assert "q" not in broker.engine.exchanges.queues
