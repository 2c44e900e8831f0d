"""Queues that an operator has paused: they collect, hand out nothing, and go on where they were."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from polymq.broker.port import Delivery, QueueConsumer, Reason, Refused
from tests.broker.queue_bench import OWNER, consume, declare, look, publish, ready
from tests.broker.test_retention import age, broker_of_small_segments, fill
from tests.harness.broker import Broker


def pause(broker: Broker, name: str = "q") -> None:
    broker.engine.named_queues.pausing.pause(name, by="olga")
    broker.step()


def resume(broker: Broker, name: str = "q") -> None:
    broker.engine.named_queues.pausing.resume(name)
    broker.step()


def get(broker: Broker, name: str = "q") -> list[Delivery | None]:
    """What somebody gets who asks for one message."""
    got: list[Delivery | None] = []

    def take(delivery: Delivery | None, _holder: QueueConsumer, _left: int) -> None:
        got.append(delivery)

    broker.port.queues.get(name, take, owner=OWNER)
    broker.step()
    return got


@pytest.mark.parametrize("arguments", [{}, {"x_max_priority": 5}, {"x_message_ttl": 60_000}])
@pytest.mark.parametrize("durable", [True, False])
def test_nothing_is_handed_out_until_it_is_resumed(
    broker: Broker, arguments: dict[str, Any], durable: bool
) -> None:
    """Publishing goes on. What comes, what had come, and what is given back waits, in order."""
    declare(broker, "q", durable=durable, **arguments)
    consumer, registration = consume(broker, "q", credit=2)
    publish(broker, "q", b"a", b"b", b"c")
    broker.step()
    assert consumer.bodies == [b"a", b"b"]
    pause(broker)
    assert registration.paused
    consumer.left = 100
    registration.ready()
    registration.requeue(consumer.got[1][0], 1)
    publish(broker, "q", b"d")
    broker.step()
    late, _ = consume(broker, "q")
    assert (consumer.bodies, late.bodies) == ([b"a", b"b"], [])
    assert ready(broker, "q") == 3
    assert get(broker) == [None]
    registration.settle(consumer.got[0][0], 1)
    resume(broker)
    assert sorted(consumer.bodies[2:] + late.bodies) == [b"b", b"c", b"d"]
    publish(broker, "q", b"e")
    broker.step()
    assert (consumer.bodies + late.bodies).count(b"e") == 1


def test_what_comes_to_a_consumer_that_has_all_waits(broker: Broker) -> None:
    """The live way, on which a run goes straight from the log to the consumer."""
    declare(broker, "q")
    consumer, _ = consume(broker, "q")
    publish(broker, "q", b"a")
    broker.step()
    pause(broker)
    publish(broker, "q", b"b")
    broker.step()
    assert consumer.bodies == [b"a"]
    resume(broker)
    assert consumer.bodies == [b"a", b"b"]


def test_a_priority_that_is_new_is_paused_too(broker: Broker) -> None:
    """The first message of a priority makes a level of the queue."""
    declare(broker, "q", x_max_priority=5)
    consumer, _ = consume(broker, "q")
    pause(broker)
    publish(broker, "q", b"a", priority=3)
    broker.step()
    assert consumer.bodies == []
    assert get(broker) == [None]
    resume(broker)
    assert consumer.bodies == [b"a"]


def test_what_a_reader_thread_is_getting_is_not_handed_out(broker: Broker) -> None:
    """The records are on their way when the pause comes: they go back, in front of the others, and
    who asked for one gets none."""
    declare(broker, "q")
    publish(broker, "q", b"a", b"b")
    broker.step()
    group = broker.group("q")
    asked: list[Any] = []
    group.reading.read = (  # type: ignore[method-assign]
        lambda *arguments, **options: asked.append(arguments)
    )
    consumer, registration = consume(broker, "q")
    (_, first, count, _, answer) = asked.pop()
    assert (first, count) == (0, 2)
    broker.engine.named_queues.pausing.pause("q", by="olga")
    answer((), 2)
    del group.reading.read
    broker.step()
    assert consumer.bodies == []
    registration.cancel()
    resume(broker)

    group.reading.read = (  # type: ignore[method-assign]
        lambda *arguments, **options: asked.append(arguments)
    )
    got: list[object] = []
    broker.port.queues.get("q", lambda delivery, _h, _n: got.append(delivery), owner=OWNER)
    broker.engine.named_queues.pausing.pause("q", by="olga")
    asked.pop()[-1]((), 1)
    assert got == [None]
    del group.reading.read
    resume(broker)
    assert look(broker, "q") == [b"a", b"b"]


def test_messages_expire_and_overflow_meanwhile(broker: Broker) -> None:
    """A pause stops deliveries, and no other rule."""
    declare(broker, "q", x_message_ttl=1_000, x_max_length=2)
    pause(broker)
    publish(broker, "q", b"a", b"b", b"c")
    broker.step()
    assert ready(broker, "q") == 2
    broker.step(2)
    assert ready(broker, "q") == 0


def test_a_pause_is_made_once(broker: Broker) -> None:
    """Who was first is shown. Resuming what is not paused changes nothing, and neither does a queue
    that is not there."""
    declare(broker, "q")
    pausing = broker.engine.named_queues.pausing
    assert pausing.resume("q") == broker.store.log.appended
    pause(broker)
    found = broker.engine.named_queues.queues["q"]
    first = found.pause
    assert first is not None
    assert (first.by, first.since_ms) == ("olga", broker.loop.clock_ms())
    broker.step(5)
    end = broker.store.log.appended
    assert pausing.pause("q", by="eve") == end
    assert found.pause == first
    with pytest.raises(Refused) as error:
        pausing.pause("x", by="eve")
    assert error.value.reason is Reason.NOT_FOUND
    with pytest.raises(Refused, match="there is no queue 'x'"):
        pausing.resume("x")


@pytest.mark.parametrize("kind", ["stop", "kill", "log alone"])
def test_a_pause_outlives_a_restart(broker: Broker, kind: str) -> None:
    """From `state.db`, from the log behind it, and from the log alone: with its time and its maker,
    and with all its priorities. A queue that was resumed is not paused."""
    for name in ("q", "resumed", "gone"):
        declare(broker, name, x_max_priority=3)
        publish(broker, name, b"a", priority=2)
        pause(broker, name)
    resume(broker, "resumed")
    broker.port.queues.delete("gone", if_unused=False, if_empty=False, owner=OWNER)
    broker.step(1)
    before = broker.engine.named_queues.queues["q"].pause
    if kind == "stop":
        broker.stop()
    else:
        broker.kill()
    if kind == "log alone":
        for path in [*broker.directory.glob("state.db*"), broker.directory / "checkpoint"]:
            path.unlink(missing_ok=True)
    broker.open()
    named = broker.engine.named_queues
    assert named.queues["q"].pause == before
    assert named.pausing.since_ms == {"q": before.since_ms if before else 0}
    consumer, _ = consume(broker, "q")
    assert consumer.bodies == []
    assert look(broker, "resumed") == [b"a"]
    resume(broker)
    assert consumer.bodies == [b"a"]


def test_a_queue_that_is_made_again_is_not_paused(broker: Broker) -> None:
    """The pause went with the queue."""
    declare(broker, "q")
    pause(broker)
    broker.port.queues.delete("q", if_unused=False, if_empty=False, owner=OWNER)
    declare(broker, "q")
    publish(broker, "q", b"a")
    broker.step()
    assert look(broker, "q") == [b"a"]
    assert broker.engine.named_queues.pausing.since_ms == {}


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Broker]:
    """A broker with small segments."""
    yield from broker_of_small_segments(tmp_path / "small")


def test_a_pause_is_in_the_snapshot_that_replaces_the_oldest_log(small: Broker) -> None:
    """Retention deletes the segment with the op: the copy of the state has it."""
    declare(small, "q")
    pause(small)
    fill(small)
    age(small)
    fill(small, 3, "other")
    assert small.tidy() > 0
    small.kill()
    for path in small.directory.glob("state.db*"):
        path.unlink()
    small.open()
    found = small.engine.named_queues.queues["q"].pause
    assert found is not None
    assert found.by == "olga"


def test_a_row_and_an_op_of_a_version_without_pauses(broker: Broker) -> None:
    """They say nothing of a pause, and the queue has none."""
    declare(broker, "q")
    row = broker.engine.named_queues.row_queue("q")
    assert row is not None
    assert "pause" not in json.loads(json.dumps(row))
    broker.restart()
    assert broker.engine.named_queues.queues["q"].pause is None
