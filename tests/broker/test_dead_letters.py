"""Dead letters: where they go, what is said of them, and that exactly one copy counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from polymq.broker.errors import Reason, Refused
from polymq.broker.messages.dead_letter_history import Cause, Death, History, history_of
from tests.broker.queue_bench import bind, consume, declare, exchange, look, publish, ready
from tests.harness.broker import START_MS, Broker


def two_queues(broker: Broker, **arguments: Any) -> None:
    """`work` gives up to the fanout exchange `dlx`, which feeds `dead`."""
    exchange(broker, "dlx")
    declare(broker, "dead")
    bind(broker, "dead", "dlx")
    declare(broker, "work", x_dead_letter_exchange="dlx", **arguments)


def reject_all(broker: Broker, name: str) -> None:
    consumer, registration = consume(broker, name)
    registration.cancel()
    for offset, _, _ in consumer.got:
        registration.reject(offset, 1)
    broker.step()


def test_a_rejected_message_goes_to_the_dead_letter_exchange(broker: Broker) -> None:
    """Body, properties, birth and routing key stay; the history says what happened."""
    two_queues(broker)
    publish(broker, "work", b"one", b"two", colour="red")
    broker.step(2.0)
    consumer, registration = consume(broker, "work")
    registration.reject(0, 2)
    broker.step()
    assert ready(broker, "work") == 0
    dead, _ = consume(broker, "dead")
    assert dead.bodies == [b"one", b"two"]
    message = dead.messages[0]
    assert message.topic == "dlx"
    assert message.tag == "work"
    assert message.properties["colour"] == "red"
    assert message.born_ms == consumer.messages[0].born_ms
    history = history_of(message.properties)
    (death,) = history.deaths
    assert death == Death(
        queue="work",
        cause="rejected",
        count=1,
        time_s=START_MS // 1000 + 2,
        exchange="",
        routing_key="work",
    )
    assert history.first == ("rejected", "work", "")
    assert broker.engine.named_queues.dead_letters.counts.moved["rejected"] == 2


def test_the_routing_key_can_be_replaced(broker: Broker) -> None:
    """`x-dead-letter-routing-key`, here to a queue through the default exchange."""
    declare(broker, "graveyard")
    declare(broker, "work", x_dead_letter_exchange="", x_dead_letter_routing_key="graveyard")
    publish(broker, "work", b"x")
    broker.step()
    reject_all(broker, "work")
    assert look(broker, "graveyard") == [b"x"]


def test_without_a_dead_letter_exchange_a_rejected_message_is_gone(broker: Broker) -> None:
    """As RabbitMQ has it."""
    declare(broker, "work")
    publish(broker, "work", b"x")
    broker.step()
    reject_all(broker, "work")
    assert ready(broker, "work") == 0


@pytest.mark.parametrize(
    "arguments",
    [
        {"x_dead_letter_exchange": "nobody"},
        {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "nobody"},
    ],
)
def test_a_missing_place_drops_and_counts(broker: Broker, arguments: dict[str, Any]) -> None:
    """The exchange is looked for when the message dies, not when the queue is declared."""
    declare(broker, "work", **arguments)
    publish(broker, "work", b"x", b"y")
    broker.step()
    reject_all(broker, "work")
    assert ready(broker, "work") == 0
    counts = broker.engine.named_queues.dead_letters.counts
    assert (counts.moved["rejected"], counts.dropped["rejected"]) == (0, 2)


def test_an_internal_exchange_takes_dead_letters(broker: Broker) -> None:
    """Clients may not publish to it; the broker may."""
    exchange(broker, "inside", internal=True)
    declare(broker, "dead")
    bind(broker, "dead", "inside")
    declare(broker, "work", x_dead_letter_exchange="inside")
    publish(broker, "work", b"x")
    broker.step()
    reject_all(broker, "work")
    assert look(broker, "dead") == [b"x"]


def test_the_same_death_again_counts_up_and_comes_first(broker: Broker) -> None:
    """work -> dead -> work by rejections: allowed, one entry for each queue and reason."""
    declare(broker, "a", x_dead_letter_exchange="", x_dead_letter_routing_key="b")
    declare(broker, "b", x_dead_letter_exchange="", x_dead_letter_routing_key="a")
    publish(broker, "a", b"x")
    broker.step()
    for name in ("a", "b", "a"):
        reject_all(broker, name)
    consumer, _ = consume(broker, "b")
    history = history_of(consumer.messages[0].properties)
    assert [(d.queue, d.cause, d.count) for d in history.deaths] == [
        ("a", "rejected", 2),
        ("b", "rejected", 1),
    ]
    assert history.first == ("rejected", "a", "")


def test_only_automatic_cycles_end() -> None:
    """The rule itself: a queue is closed to the message if it gave it up, and nobody has rejected
    it since."""

    def history(*deaths: tuple[str, Cause]) -> History:
        made = History()
        for queue, cause in deaths:  # the oldest first
            made = made.with_death(
                Death(queue=queue, cause=cause, count=1, time_s=0, exchange="", routing_key="")
            )
        return made

    assert list(history(("a", Cause.EXPIRED)).cycles()) == ["a"]
    assert list(history(("a", Cause.EXPIRED), ("b", Cause.MAXLEN)).cycles()) == ["b", "a"]
    assert list(history(("a", Cause.EXPIRED), ("b", Cause.REJECTED)).cycles()) == []
    assert list(history(("a", Cause.REJECTED), ("b", Cause.EXPIRED)).cycles()) == ["b"]


def test_a_dead_letter_that_is_in_several_queues(broker: Broker) -> None:
    """Each queue gives up its own; the others keep theirs."""
    exchange(broker, "all")
    exchange(broker, "dlx")
    for name in ("one", "two"):
        declare(broker, name, x_dead_letter_exchange="dlx")
        bind(broker, name, "all")
    declare(broker, "dead")
    bind(broker, "dead", "dlx")
    publish(broker, "", b"x", source="all")
    broker.step()
    reject_all(broker, "one")
    assert (ready(broker, "one"), ready(broker, "two"), ready(broker, "dead")) == (0, 1, 1)


@pytest.mark.parametrize("with_state_db", [True, False])
def test_a_crash_keeps_the_message_or_its_dead_letter(tmp_path: Path, with_state_db: bool) -> None:
    """Killed before the dead letter is written: the old message, flagged. After: the new one."""
    broker = Broker(tmp_path / "data", with_state_db=with_state_db)
    two_queues(broker)
    publish(broker, "work", b"1", b"2", b"3")
    broker.step(1.0)
    _, registration = consume(broker, "work")
    broker.step(1.0)
    registration.reject(0, 1)
    broker.loop.run()
    registration.reject(2, 1)  # appended in memory, and lost
    broker.kill()
    broker.open()
    assert ready(broker, "work") == 2
    assert look(broker, "dead") == [b"1"]
    consumer, _ = consume(broker, "work")
    assert [(body, flag) for _, body, flag in consumer.got] == [(b"2", True), (b"3", True)]
    broker.stop()


def test_settings_survive_a_restart(broker: Broker) -> None:
    """The arguments are the queue's, also for what was published before."""
    two_queues(broker)
    publish(broker, "work", b"x")
    broker.step()
    broker.restart()
    reject_all(broker, "work")
    assert look(broker, "dead") == [b"x"]


def test_a_full_disk_keeps_dead_letters_until_there_is_room(broker: Broker) -> None:
    """Refused moves are tried again; meanwhile nothing is lost and nobody else gets them."""
    two_queues(broker)
    publish(broker, "work", b"x")
    broker.step()
    consumer, registration = consume(broker, "work")
    broker.engine.core.full = True
    registration.reject(0, 1)
    broker.loop.run(0.5)
    assert ready(broker, "work") == ready(broker, "dead") == 0
    broker.engine.core.full = False
    broker.step(1.0)
    assert look(broker, "dead") == [b"x"]
    assert consumer.bodies == [b"x"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"x-message-ttl": -1}, "x-message-ttl"),
        ({"x-message-ttl": "5"}, "whole number"),
        ({"x-message-ttl": True}, "whole number"),
        ({"x-expires": 0}, "x-expires"),
        ({"x-max-length": -1}, "x-max-length"),
        ({"x-max-length-bytes": 1.5}, "x-max-length-bytes"),
        ({"x-overflow": "explode"}, "drop-head, reject-publish"),
        ({"x-dead-letter-exchange": 5}, "text"),
        ({"x-dead-letter-routing-key": "k"}, "needs x-dead-letter-exchange"),
        ({"x-delivery-limit": 300}, "0 to 254"),
        ({"x-single-active-consumer": 1}, "true or false"),
        ({"x-max-priority": 256}, "0 to 255"),
    ],
)
def test_wrong_arguments_are_refused_with_a_reason(
    broker: Broker, arguments: dict[str, object], text: str
) -> None:
    """PRECONDITION_FAILED with the argument's name; nothing is declared."""
    with pytest.raises(Refused) as refused:
        broker.port.queues.declare(
            "q", durable=True, exclusive=False, auto_delete=False, arguments=arguments, owner=None
        )
    assert refused.value.reason is Reason.BAD_ARGUMENT
    assert text in refused.value.text
    assert next(iter(arguments)) in refused.value.text
    with pytest.raises(Refused):
        broker.port.queues.info("q", owner=None)
