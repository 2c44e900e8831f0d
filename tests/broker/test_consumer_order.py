"""Who gets messages: one consumer alone, or some before others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from polymq.broker.errors import Reason, Refused
from tests.broker.queue_bench import OWNER, MessagesConsumer, consume, declare, publish, ready
from tests.harness.broker import Broker


def test_one_consumer_is_served_alone_until_it_leaves(broker: Broker) -> None:
    """x-single-active-consumer: the next in order of subscription takes over, and gets what the
    first gave back, in order."""
    declare(broker, "q", x_single_active_consumer=True)
    first, first_registration = consume(broker, "q", credit=2)
    second, second_registration = consume(broker, "q")
    third, _ = consume(broker, "q")
    publish(broker, "q", b"1", b"2", b"3")
    broker.step()
    assert (first.bodies, second.bodies, third.bodies) == ([b"1", b"2"], [], [])
    first_registration.cancel()
    first_registration.requeue(0, 2)
    broker.step()
    assert second.bodies == [b"1", b"2", b"3"]
    second_registration.settle(0, 3)
    second_registration.cancel()
    publish(broker, "q", b"4")
    broker.step()
    assert third.bodies == [b"4"]


def test_a_takeover_needs_no_new_message(broker: Broker) -> None:
    """What waits goes to the next at once."""
    declare(broker, "q", x_single_active_consumer=True)
    _, registration = consume(broker, "q", credit=0)
    second, _ = consume(broker, "q")
    publish(broker, "q", b"1")
    broker.step()
    assert second.bodies == []
    registration.cancel()
    broker.step()
    assert second.bodies == [b"1"]


def test_what_the_former_still_holds_comes_first(broker: Broker) -> None:
    """It was cancelled, and keeps messages: some are settled, the others come back to the next."""
    declare(broker, "q", x_single_active_consumer=True)
    first, first_registration = consume(broker, "q", credit=3)
    second, _ = consume(broker, "q")
    publish(broker, "q", b"1", b"2", b"3", b"4")
    broker.step()
    assert first.bodies == [b"1", b"2", b"3"]
    first_registration.cancel()
    broker.step()
    first_registration.settle(1, 1)
    broker.step()
    first_registration.requeue(0, 1)
    publish(broker, "q", b"5")
    broker.step()
    assert second.bodies == []
    first_registration.requeue(2, 1)
    broker.step()
    assert second.bodies == [b"1", b"3", b"4", b"5"]


def test_the_last_acknowledgement_of_the_former_lets_the_next_begin(broker: Broker) -> None:
    declare(broker, "q", x_single_active_consumer=True)
    _, first_registration = consume(broker, "q", credit=1)
    second, _ = consume(broker, "q")
    publish(broker, "q", b"1", b"2")
    broker.step()
    first_registration.cancel()
    broker.step()
    assert second.bodies == []
    first_registration.settle(0, 1)
    broker.step()
    assert second.bodies == [b"2"]


class LateReaders:
    """Reader threads that answer when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def submit(
        self, read: Callable[[], bytes], done: Callable[[bytes | None, Exception | None], None]
    ) -> None:
        self.waiting.append(lambda: done(read(), None))


def test_what_comes_while_history_is_read_does_not_overtake_it(broker: Broker) -> None:
    """A consumer begins with a message that is on the disk only; the next one is in memory before
    a reader thread has brought the first."""
    readers = LateReaders()
    broker.engine.core.reading.readers = readers
    declare(broker, "q")
    publish(broker, "q", b"1")
    broker.step()
    broker.store.log.read_hot = lambda *_: None  # type: ignore[method-assign]
    consumer, _ = consume(broker, "q")
    assert len(readers.waiting) == 1
    publish(broker, "q", b"2")
    broker.step()
    assert consumer.bodies == []
    while readers.waiting:
        readers.waiting.pop()()
    assert consumer.got == [(0, b"1", False), (1, b"2", False)]


def test_get_and_exclusive_consumers_are_refused(broker: Broker) -> None:
    """RabbitMQ's codes: 405 and 403."""
    declare(broker, "q", x_single_active_consumer=True)
    with pytest.raises(Refused) as refused:
        broker.port.queues.get("q", lambda *_: None, owner=OWNER)
    assert refused.value.reason is Reason.LOCKED
    with pytest.raises(Refused) as refused:
        broker.port.queues.consume("q", MessagesConsumer(), exclusive=True, owner=OWNER)
    assert refused.value.reason is Reason.FORBIDDEN


def test_equal_consumers_take_turns_past_one_that_has_no_credit(broker: Broker) -> None:
    """Two of three of one priority have credit: each gets every other message."""
    declare(broker, "q")
    consume(broker, "q", priority=-1)
    busy, _ = consume(broker, "q", credit=0)
    second, _ = consume(broker, "q")
    third, _ = consume(broker, "q")
    for body in (b"1", b"2", b"3", b"4"):
        publish(broker, "q", body)
        broker.step()
    assert (busy.bodies, second.bodies, third.bodies) == ([], [b"1", b"3"], [b"2", b"4"])


def test_consumers_with_a_higher_priority_come_first(broker: Broker) -> None:
    """As long as they have credit; equal ones in turn, whatever the order of subscription."""
    declare(broker, "q")
    low, _ = consume(broker, "q", priority=-1)
    plain, _ = consume(broker, "q", credit=1)
    high = [consume(broker, "q", credit=2, priority=10)[0] for _ in range(2)]
    for number in range(6):
        publish(broker, "q", b"%d" % number)
        broker.step()
    assert sorted(high[0].bodies + high[1].bodies) == [b"0", b"1", b"2", b"3"]
    assert len(high[0].bodies) == 2
    assert plain.bodies == [b"4"]
    assert low.bodies == [b"5"]


def test_priority_does_not_replace_a_single_active_consumer(broker: Broker) -> None:
    """It decides who is next."""
    declare(broker, "q", x_single_active_consumer=True)
    first, registration = consume(broker, "q")
    second, _ = consume(broker, "q")
    third, _ = consume(broker, "q", priority=5)
    publish(broker, "q", b"1")
    broker.step()
    registration.settle(0, 1)
    registration.cancel()
    publish(broker, "q", b"2")
    broker.step()
    assert (first.bodies, second.bodies, third.bodies) == ([b"1"], [], [b"2"])
    assert ready(broker, "q") == 0
