"""What cannot be moved to where it belongs is set aside, and stops nobody behind it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from polymq.broker.delays.held import Held
from polymq.broker.delays.wheel import Taken
from polymq.broker.errors import PASSING, Reason, Refused
from polymq.broker.messages.dead_letter_history import DEATHS_MAX, Death, History, history_of
from polymq.broker.moves.set_aside import ASIDE_TOPIC
from polymq.core_log.kernels.batch import EXTRA_BASE64, Batch
from tests.broker.queue_bench import bind, consume, declare, exchange, look, ready
from tests.harness.broker import Broker, batch_of, bodies_of

HEADERS = bytes(24_428)
"""They fit as base64 into a record's properties, and leave room for few queues."""


def later(broker: Broker, queue: str, seconds: float, *bodies: bytes, **properties: str) -> None:
    route = broker.port.exchanges.route("", queue)
    assert route is not None
    made = broker.port.topics.template(route, properties={"PMQ_PROTO": "amqp", **properties})
    batch = batch_of(*bodies)
    broker.port.delays.publish_later(made, batch, 0, len(bodies), delay_ms=round(1000 * seconds))


def later_with_headers(broker: Broker, exchange_name: str, *bodies: bytes, large: int) -> None:
    """One run of messages, of which the one at `large` has the largest headers that fit."""
    batch = Batch()
    batch.buffer = HEADERS + b"".join(bodies)
    at = len(HEADERS)
    for number, body in enumerate(bodies):
        batch.add((0, 1), (at, len(body)), (0, len(HEADERS) if number == large else 8))
        at += len(body)
    route = broker.port.exchanges.route(exchange_name, "")
    assert route is not None
    made = broker.port.topics.template(
        route,
        properties={"PMQ_PROTO": "amqp"},
        extra_kind=EXTRA_BASE64,
        extra_name="PMQ_AMQP",
    )
    broker.port.delays.publish_later(made, batch, 0, len(bodies), delay_ms=5000)


def aside(broker: Broker) -> list[Any]:
    """The messages in the topic of those that were set aside, read as anybody reads a topic."""
    if broker.port.topics.info(ASIDE_TOPIC) is None:
        return []
    found: list[Any] = []
    broker.port.queries.pull(
        ASIDE_TOPIC,
        0,
        0,
        count_max=100,
        bytes_max=1 << 20,
        callback=lambda records, _: found.extend(
            broker.engine.core.metas.runs(records, 0, len(records))
        ),
    )
    return found


def bodies_aside(broker: Broker) -> list[bytes]:
    return [body for run in aside(broker) for body in bodies_of(run)]


@pytest.mark.parametrize("way", ["stop", "kill"])
def test_a_message_that_outgrew_its_topic_stops_no_other(tmp_path: Path, way: str) -> None:
    """Its headers and 255 queues, which were bound after it was taken, fit into no record. It is
    set aside; the others of its run, and those of other topics, come; a restart changes nothing."""
    broker = Broker(tmp_path / "data")
    exchange(broker, "x")
    declare(broker, "other")
    later_with_headers(broker, "x", b"one", b"poison", b"three", large=1)
    for number in range(255):
        declare(broker, f"q{number}")
        bind(broker, f"q{number}", "x")
    later(broker, "other", 6, b"behind it")
    broker.step()
    if way == "kill":
        broker.kill()
        broker.open()
    broker.step(7)
    assert look(broker, "q0") == look(broker, "q254") == [b"one", b"three"]
    assert look(broker, "other") == [b"behind it"]
    for _ in range(2):
        assert bodies_aside(broker) == [b"poison"]
        (run,) = aside(broker)
        assert run.meta.properties["REAL_TOPIC"] == "x"
        assert "32767" in run.meta.properties["REFUSED"]
        assert broker.engine.delays.waiting_count == 0
        broker.restart()
        broker.step(7)
    assert broker.engine.set_aside.set_aside_count == 1
    broker.stop()


def test_it_is_set_aside_although_hundreds_read_along(broker: Broker) -> None:
    """What nobody's queue has room for is stored for the topic's own queue."""
    exchange(broker, "x")
    later_with_headers(broker, "x", b"poison", large=0)
    for number in range(255):
        declare(broker, f"q{number}")
        bind(broker, f"q{number}", "x")
    declare(broker, "all")
    for number in range(255):
        broker.port.exchanges.bind_queue(f"q{number}", "amq.topic", "#", {}, owner=None)
    broker.step(6)
    assert bodies_aside(broker) == [b"poison"]
    assert look(broker, "q7") == []
    (run,) = aside(broker)
    assert run.meta.properties["REAL_TOPIC"] == "x"


def test_it_is_set_aside_when_there_are_as_many_topics_as_may_be(tmp_path: Path) -> None:
    """The topic for it is the broker's own."""
    broker = Broker(tmp_path / "data", auto_topics_max=3)
    exchange(broker, "x")
    later_with_headers(broker, "x", b"poison", large=0)
    for number in range(255):
        declare(broker, f"q{number}")
        bind(broker, f"q{number}", "x")
    for name in ("a", "b"):
        broker.template(name)
    broker.step(6)
    assert bodies_aside(broker) == [b"poison"]
    broker.stop()


@pytest.mark.parametrize("reason", list(Reason))
def test_each_reason_is_tried_again_or_set_aside(tmp_path: Path, reason: Reason) -> None:
    """Its topic refuses one message for each reason there is. What passes is tried again, what
    does not is set aside; either way the message is there after a restart, once, and others came
    meanwhile."""
    broker = Broker(tmp_path / "data")
    declare(broker, "q")
    declare(broker, "other")
    later(broker, "q", 5, b"refused", kind="bad")
    later(broker, "q", 6, b"next")
    later(broker, "other", 6, b"other")
    publish = broker.engine.topics.publish

    def refuse(template: Any, *args: Any, **more: Any) -> Any:
        if template.meta.topic == "q" and "kind" in template.meta.properties:
            raise Refused(reason, "not this one")
        return publish(template, *args, **more)

    broker.engine.topics.publish = refuse  # type: ignore[method-assign]
    broker.step(10)
    passing = reason in PASSING
    assert bodies_aside(broker) == ([] if passing else [b"refused"])
    assert look(broker, "q") == ([] if passing else [b"next"])
    whole_broker = passing and reason is not Reason.LIMIT
    assert look(broker, "other") == ([] if whole_broker else [b"other"])
    assert broker.engine.delays.held_count == (2 if reason is Reason.LIMIT else 0)
    broker.restart()
    broker.step(1)
    assert bodies_aside(broker) == ([] if passing else [b"refused"])
    assert look(broker, "q") == ([b"refused", b"next"] if passing else [])
    assert look(broker, "other") == ([b"other"] if whole_broker else [])
    assert broker.engine.delays.held_count == broker.engine.delays.waiting_count == 0
    broker.stop()


def test_a_topic_that_waits_for_replicas_holds_up_no_other(tmp_path: Path) -> None:
    """Its messages are held in the order of their times, piece by piece; they come when it takes
    some again, and what becomes due meanwhile does not overtake them."""
    broker = Broker(tmp_path / "data", pump_count_max=3)
    declare(broker, "slow")
    declare(broker, "quick")
    for number in range(10):
        later(broker, "slow", 5 + number / 100, b"s%d" % number)
        later(broker, "quick", 5 + number / 100, b"q%d" % number)
    later(broker, "slow", 8, b"s10")
    publish = broker.engine.topics.publish
    asked = 0
    behind = True

    def sometimes(template: Any, *args: Any, **more: Any) -> Any:
        nonlocal asked
        if behind and template.meta.topic == "slow":
            asked += 1
            raise Refused(Reason.LIMIT, "replicas are behind")
        return publish(template, *args, **more)

    broker.engine.topics.publish = sometimes  # type: ignore[method-assign]
    broker.step(7)
    assert look(broker, "quick") == [b"q%d" % number for number in range(10)]
    assert look(broker, "slow") == []
    assert broker.engine.delays.held_count == 10
    assert asked < 20  # one attempt now and then, not one for each message
    broker.step(2)
    assert broker.engine.delays.held_count == 11
    behind = False
    broker.step(1)
    assert look(broker, "slow") == [b"s%d" % number for number in range(11)]
    assert broker.engine.delays.held_count == 0
    broker.stop()


def test_what_a_refused_run_has_stored_is_not_stored_again(tmp_path: Path) -> None:
    """A run for a queue that is nearly full is stored in two parts. The log refuses the second:
    only that is tried again."""
    broker = Broker(tmp_path / "data")
    exchange(broker, "x")
    declare(broker, "bounded", x_max_length=2, x_overflow="reject-publish")
    bind(broker, "bounded", "x")
    declare(broker, "all")
    bind(broker, "all", "x")
    route = broker.port.exchanges.route("x", "")
    assert route is not None
    made = broker.port.topics.template(route, properties={"PMQ_PROTO": "amqp"})
    bodies = [b"%d" % number for number in range(4)]
    broker.port.delays.publish_later(made, batch_of(*bodies), 0, 4, delay_ms=5000)
    broker.step(4)
    append = broker.engine.topics.append
    calls = 0

    def second_fails(*args: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise Refused(Reason.STORAGE_FULL, "no space left")
        return append(*args, **named)

    broker.engine.topics.append = second_fails  # type: ignore[method-assign]
    broker.step(5)
    assert calls == 3
    assert look(broker, "all") == bodies
    assert look(broker, "bounded") == bodies[:2]
    broker.stop()


def test_a_copy_without_room_for_its_settlement_holds_up_no_other(tmp_path: Path) -> None:
    """The oldest delayed message fills its record. It is copied forward all the same, so that the
    window behind it does not grow, and comes in time, once."""
    broker = Broker(tmp_path / "data", delay_watch_ms=1000, delay_window_max=50)
    exchange(broker, "x")
    declare(broker, "q")
    bind(broker, "q", "x")
    declare(broker, "other")
    route = broker.port.exchanges.route("x", "")
    assert route is not None
    size = 24_560
    while True:  # the largest that is taken
        batch = Batch()
        batch.buffer = bytes(size)
        batch.add((0, 1), (0, 1), (0, size))
        made = broker.port.topics.template(
            route, properties={"PMQ_PROTO": "amqp"}, extra_kind=EXTRA_BASE64, extra_name="PMQ_AMQP"
        )
        try:
            broker.port.delays.publish_later(made, batch, 0, 1, delay_ms=1_000_000)
        except Refused:
            size -= 1
        else:
            break
    for number in range(200):
        later(broker, "other", 0.5, b"%d" % number)
        broker.step(0.5)
    group = broker.engine.delays._timed.group
    assert group is not None
    assert group.queue.index.end_offset - group.cursor.floor < 100
    assert broker.engine.delays.waiting_count == 1
    broker.restart()
    broker.step(1_000_000)
    assert look(broker, "q") == [bytes(1)]
    assert bodies_aside(broker) == []
    broker.stop()


def piece(*offsets: int) -> Taken:
    entries = [
        offset.to_bytes(8, "big") + (100).to_bytes(4, "big") + bytes(8) for offset in offsets
    ]
    return Taken(b"".join(entries), list(offsets))


def test_held_messages_keep_their_order_and_topics_take_turns() -> None:
    """What is put back comes first of its topic, after other topics had their turn."""
    held = Held()
    held.add(b"a", piece(1, 2))
    held.add(b"b", piece(3))
    held.add(b"a", piece(4))
    assert held.count == 4
    where, taken = held.take(count_max=10, bytes_max=250) or (b"", piece())
    assert (where, taken.offsets, held.count) == (b"a", [1, 2], 2)
    held.put_back(where, taken)
    assert held.take(count_max=10, bytes_max=1000) == (b"b", piece(3))
    assert b"b" in held
    held.done(b"b")
    assert b"b" not in held
    assert held.take(count_max=2, bytes_max=1000) == (b"a", piece(1, 2))
    held.done(b"a")
    assert held.take(count_max=2, bytes_max=1000) == (b"a", piece(4))
    held.done(b"a")
    assert held.take(count_max=2, bytes_max=1000) is None
    assert held.count == 0


# --- dead letters ----------------------------------------------------------------------------


def queues_behind(broker: Broker, source: str, count: int) -> None:
    """A fanout exchange, and queues that it feeds: a record names them all."""
    exchange(broker, source)
    for number in range(count):
        declare(broker, f"{source}{number}")
        bind(broker, f"{source}{number}", source)


def give_up(broker: Broker, queue: str) -> None:
    """Reject all that is ready."""
    consumer, registration = consume(broker, queue)
    registration.cancel()
    for offset, _, _ in consumer.got:
        registration.reject(offset, 1)
    broker.step()


def publish_rows(broker: Broker, queue: str, *sizes: int) -> None:
    """One run of messages with so many bytes of headers each; their bodies are their numbers."""
    batch = Batch()
    batch.buffer = bytes(max(sizes)) + b"0123456789"
    for number, size in enumerate(sizes):
        batch.add((0, 1), (max(sizes) + number, 1), (0, size))
    route = broker.port.exchanges.route("", queue)
    assert route is not None
    made = broker.port.topics.template(
        route, properties={}, extra_kind=EXTRA_BASE64, extra_name="PMQ_AMQP"
    )
    broker.port.publish(made, batch, 0, len(sizes))
    broker.step()


def test_a_dead_letter_without_room_keeps_the_latest_of_its_history(broker: Broker) -> None:
    """It has died in thirty queues. What fits of that comes along, the latest deaths; the first
    death and the counts stay true."""
    queues_behind(broker, "dlx", 20)
    history = History()
    for number in range(30):
        history = history.with_death(
            Death(
                queue=f"earlier{number}",
                cause="rejected",
                count=1,
                time_s=1,
                exchange="somewhere" * 5,
                routing_key="k" * 60,
            )
        )
    declare(broker, "work", x_dead_letter_exchange="dlx")
    route = broker.port.exchanges.route("", "work")
    assert route is not None
    properties = {"PMQ_DEATH": history.encode(), "padding": "x" * (32_600 - len(history.encode()))}
    broker.publish(broker.port.topics.template(route, properties=properties), b"x")
    broker.step()
    give_up(broker, "work")
    dead, _ = consume(broker, "dlx19")
    assert dead.bodies == [b"x"]
    stored = history_of(dead.messages[0].properties)
    assert stored.deaths[0].queue == "work"
    assert [death.queue for death in stored.deaths[1:]] == [
        f"earlier{29 - number}" for number in range(len(stored.deaths) - 1)
    ]
    assert 3 <= len(stored.deaths) < 31
    assert stored.first == ("rejected", "earlier0", "somewhere" * 5)
    assert stored.cut_deaths == 1


def test_a_dead_letter_that_fits_nowhere_is_set_aside_and_those_around_it_come(
    tmp_path: Path,
) -> None:
    """Of one run, the second fits without its history only, the third not at all."""
    broker = Broker(tmp_path / "data")
    queues_behind(broker, "dlx", 250)
    declare(broker, "work", x_dead_letter_exchange="dlx")
    publish_rows(broker, "work", 8, 24_450, 8)
    give_up(broker, "work")
    broker.step(1)
    for _ in range(2):
        assert bodies_aside(broker) == [b"1"]
        (run,) = aside(broker)
        assert run.meta.properties["REAL_TOPIC"] == "work"
        assert "32767" in run.meta.properties["REFUSED"]
        assert ready(broker, "work") == 0
        assert ready(broker, "dlx249") == 2
        broker.restart()
        broker.step(1)
    dead, _ = consume(broker, "dlx249")
    assert dead.bodies == [b"0", b"2"]
    counts = broker.engine.named_queues.dead_letters.counts
    assert sum(counts.dropped.values()) == 0
    broker.stop()


def test_setting_a_dead_letter_aside_waits_for_room_on_the_disk(broker: Broker) -> None:
    """It is neither lost nor delivered meanwhile."""
    queues_behind(broker, "dlx", 250)
    declare(broker, "work", x_dead_letter_exchange="dlx")
    publish_rows(broker, "work", 24_450)
    put = broker.engine.set_aside.put
    calls = 0

    def full_at_first(*args: Any, **named: Any) -> None:
        nonlocal calls
        calls += 1
        if calls < 3:
            raise Refused(Reason.STORAGE_FULL, "no space left")
        put(*args, **named)

    broker.engine.set_aside.put = full_at_first  # type: ignore[method-assign]
    give_up(broker, "work")
    assert (ready(broker, "work"), bodies_aside(broker)) == (0, [])
    broker.step(1)
    assert (ready(broker, "work"), bodies_aside(broker), calls) == (0, [b"0"], 3)


def test_a_message_whose_history_was_cut_does_not_go_round_for_ever() -> None:
    """The entries that would show the cycle are gone; the number of deaths is not. A rejection
    begins anew."""

    def death(cause: str) -> Death:
        return Death(queue="q", cause=cause, count=1, time_s=0, exchange="", routing_key="")

    history = History().with_death(death("expired")).cut(1)
    assert history_of({"PMQ_DEATH": history.encode()}) == history
    for _ in range(DEATHS_MAX - 1):
        history = history.with_death(death("expired"))
        assert not history.is_endless
    assert not history.with_death(death("rejected")).is_endless
    assert history.with_death(death("expired")).is_endless
