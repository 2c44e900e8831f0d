"""Creating, binding and moving the messages of queues at the admin API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from polymq.admin.operations import Made
from polymq.admin.queues import QueueHandlers
from polymq.broker.port import Reason, Refused
from tests.broker.queue_bench import consume, declare, exchange, look, publish, ready
from tests.harness.broker import Broker
from tests.harness.people import add_user, allow, port_of
from tests.polymq.admin.operation_calls import call, committed


@pytest.fixture(params=[True, False], ids=["state.db", "log"])
def broker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Broker]:
    """With a cache of the state, and without."""
    made = Broker(tmp_path / "data", with_state_db=request.param)
    yield made
    made.stop()


def ask(broker: Broker, operation: str, queue: str = "q", **given: Any) -> Any:
    group = QueueHandlers(broker.engine, committed).group()
    return call([group], operation, {"name": queue}, broker=broker, **given)


def refused(broker: Broker, operation: str, queue: str = "q", **given: Any) -> Refused:
    with pytest.raises(Refused) as error:
        ask(broker, operation, queue, **given)
    return error.value


# --- creating -------------------------------------------------------------------------------------

EVERYTHING: dict[str, Any] = {
    "max_length": 10,
    "max_length_bytes": 1_000,
    "overflow": "reject-publish",
    "message_ttl_ms": 60_000,
    "expires_ms": 600_000,
    "dead_letter_exchange": "dlx",
    "dead_letter_routing_key": "dead",
    "max_priority": 5,
    "delivery_limit": 3,
    "single_active_consumer": True,
    "arguments": {"x-consumer-timeout": 5_000},
}


def test_a_queue_is_what_the_request_says(broker: Broker) -> None:
    """Each field is AMQP's argument, and survives a restart. The same request again changes
    nothing."""
    exchange(broker, "shop", "topic")
    exchange(broker, "dlx")
    bindings = [{"exchange": "shop", "routing_key": "order.*"}]
    made = ask(broker, "createQueue", **EVERYTHING, bindings=bindings)
    assert isinstance(made, Made)
    broker.restart()
    found = broker.engine.named_queues.queues["q"]
    assert found.terms.arguments == {
        "x-max-length": 10,
        "x-max-length-bytes": 1_000,
        "x-overflow": "reject-publish",
        "x-message-ttl": 60_000,
        "x-expires": 600_000,
        "x-dead-letter-exchange": "dlx",
        "x-dead-letter-routing-key": "dead",
        "x-max-priority": 5,
        "x-delivery-limit": 3,
        "x-single-active-consumer": True,
        "x-consumer-timeout": 5_000,
    }
    assert found.terms.durable
    publish(broker, "order.new", b"a", source="shop")
    broker.step()
    assert ready(broker, "q") == 1
    again = ask(broker, "createQueue", **EVERYTHING, bindings=bindings)
    assert (again.name, again.bindings) == ("q", 1)


def test_another_queue_of_the_name_stays(broker: Broker) -> None:
    """The answer names what differs."""
    declare(broker, "q", x_max_length=5)
    others: list[tuple[dict[str, Any], str]] = [
        ({"max_length": 6}, "x-max-length"),
        ({"max_length": 5, "durable": False}, "durable"),
    ]
    for given, text in others:
        error = refused(broker, "createQueue", **given)
        assert error.reason is Reason.DIFFERENT
        assert text in error.text
    assert broker.engine.named_queues.queues["q"].terms.arguments == {"x-max-length": 5}


@pytest.mark.parametrize(
    ("name", "given", "text"),
    [
        ("amq.q", {}, "reserved prefix"),
        ("a\nb", {}, "no line ends"),
        ("q", {"max_length": -1}, "max_length"),
        ("q", {"max_length": 1, "arguments": {"x-max-length": 1}}, "are the same"),
        ("q", {"arguments": {"x-max-length": "1"}}, "whole number"),
        ("q", {"dead_letter_routing_key": "k"}, "needs x-dead-letter-exchange"),
        ("q", {"bindings": [{"exchange": "x"}]}, "there is no exchange 'x'"),
        ("q", {"bindings": [{"exchange": ""}]}, "by its name only"),
        ("q", {"arguments": {"x-queue-type": "y"}}, "is not one of"),
    ],
)
def test_queues_that_cannot_be(broker: Broker, name: str, given: dict[str, Any], text: str) -> None:
    """Nothing is made."""
    assert text in refused(broker, "createQueue", name, **given).text
    assert broker.engine.named_queues.queues == {}


def test_the_rights_of_who_asks(broker: Broker) -> None:
    """An operator who may not create queues as a client may not do so here, and the queue is of who
    has made it."""
    exchange(broker, "shop", "topic")
    add_user(broker, "olga")
    add_user(broker, "ann")
    allow(broker, "ann", "create", "q")
    olga, ann = port_of(broker, "olga"), port_of(broker, "ann")
    assert refused(broker, "createQueue", port=olga).reason is Reason.FORBIDDEN
    ask(broker, "createQueue", port=ann)
    maker = broker.engine.named_queues.queues["q"].terms.maker
    assert broker.engine.exchanges.owners.principal_of(maker) == "ann"
    wanted = {"exchange": "shop", "routing_key": "#"}
    assert refused(broker, "bindQueue", port=ann, **wanted).reason is Reason.FORBIDDEN


# --- binding --------------------------------------------------------------------------------------


def test_a_binding_comes_and_goes(broker: Broker) -> None:
    """It brings messages from then on until it is removed, and is the same over a restart."""
    exchange(broker, "shop", "topic")
    declare(broker, "q")
    wanted = {"exchange": "shop", "routing_key": "order.*"}
    ask(broker, "bindQueue", **wanted)
    ask(broker, "bindQueue", **wanted)
    broker.restart()
    publish(broker, "order.new", b"a", source="shop")
    broker.step()
    assert look(broker, "q") == [b"a"]
    ask(broker, "unbindQueue", **wanted)
    broker.step(1)
    broker.restart()
    publish(broker, "order.new", b"b", source="shop")
    broker.step()
    assert look(broker, "q") == []


def test_bindings_by_headers_are_told_from_each_other(broker: Broker) -> None:
    exchange(broker, "mail", "headers")
    declare(broker, "q")
    ask(broker, "bindQueue", exchange="mail", arguments={"urgent": 1})
    error = refused(broker, "unbindQueue", exchange="mail", arguments={"urgent": 2})
    assert error.reason is Reason.NOT_FOUND
    ask(broker, "unbindQueue", exchange="mail", arguments={"urgent": 1})
    assert ask(broker, "getQueue").bindings[1:] == []


@pytest.mark.parametrize("operation", ["bindQueue", "unbindQueue"])
@pytest.mark.parametrize(
    ("queue", "given", "text"),
    [
        ("x", {"exchange": "amq.topic"}, "there is no queue 'x'"),
        ("q", {"exchange": "x"}, "there is no exchange 'x'"),
        ("q", {"exchange": ""}, "by its name only"),
        ("q", {}, "exchange"),
        ("%SUB%s", {"exchange": "amq.topic"}, "chosen when it is made"),
    ],
)
def test_bindings_that_cannot_be(
    broker: Broker, operation: str, queue: str, given: dict[str, Any], text: str
) -> None:
    declare(broker, "q")
    broker.port.queues.declare_subscription("s", ("orders", "#"))
    assert text in refused(broker, operation, queue, **given).text
    assert "no such binding" in refused(broker, "unbindQueue", exchange="amq.topic").text


# --- moving ---------------------------------------------------------------------------------------


def test_messages_move_in_order_and_say_where_they_were(broker: Broker) -> None:
    """The first `count` of those that are ready. What a consumer has stays, and a paused queue can
    be emptied. It is so over a crash."""
    for name in ("q", "to"):
        declare(broker, name)
    publish(broker, "q", *[b"%d" % number for number in range(6)], color="red")
    broker.step()
    held, registration = consume(broker, "q", credit=1)
    broker.engine.named_queues.pausing.pause("q", by="olga")
    dry = ask(broker, "moveMessages", to="to", count=2, dry_run=True)
    assert (dry.messages, dry.complete, ready(broker, "q")) == (2, False, 5)
    moved = ask(broker, "moveMessages", to="to", count=2)
    assert (moved.messages, moved.failed, moved.complete) == (2, {}, False)
    broker.step(1)
    broker.kill()
    broker.open()
    assert (ready(broker, "q"), ready(broker, "to")) == (4, 2), "what was held comes again"
    assert held.bodies == [b"0"]
    del registration
    assert ask(broker, "moveMessages", to="to").complete
    consumer, _ = consume(broker, "to")
    assert sorted(consumer.bodies) == [b"%d" % number for number in range(6)]
    assert consumer.bodies[:2] == [b"1", b"2"]
    assert {one.properties["MOVED_FROM"] for one in consumer.messages} == {"q"}
    assert {one.properties["color"] for one in consumer.messages} == {"red"}
    broker.engine.named_queues.pausing.resume("q")
    assert look(broker, "q") == []


def test_a_priority_and_a_time_to_live_stay(broker: Broker) -> None:
    """The most important goes first. The time to live begins anew."""
    declare(broker, "q", x_max_priority=5)
    declare(broker, "to", x_max_priority=5)
    publish(broker, "q", b"low", priority=1, ttl_ms=60_000)
    publish(broker, "q", b"high", priority=4, ttl_ms=60_000)
    broker.step()
    assert ask(broker, "moveMessages", to="to", count=1).messages == 1
    assert look(broker, "to") == [b"high"]
    ask(broker, "moveMessages", to="to")
    broker.step(30)
    assert ready(broker, "to") == 1
    broker.step(31)
    assert ready(broker, "to") == 0


@pytest.mark.parametrize("bound", [{"x_max_length": 1}, {"x_max_length_bytes": 800}])
def test_the_bounds_of_the_other_queue(broker: Broker, bound: dict[str, Any]) -> None:
    """One that drops its oldest does so. For one that refuses messages those stay that it has no
    room for; they were lost if they left their queue and were in none."""
    bodies = [b"a" * 300, b"b" * 300, b"c" * 300]
    declare(broker, "dropping", **bound)
    declare(broker, "refusing", **bound, x_overflow="reject-publish")
    declare(broker, "q")
    publish(broker, "q", *bodies)
    broker.step()
    moved = ask(broker, "moveMessages", to="refusing")
    assert (moved.messages, moved.failed) == (1, {"queue 'refusing' is full": 2})
    broker.step()
    assert ready(broker, "q") == 2
    assert ask(broker, "moveMessages", to="dropping").messages == 2
    broker.step()
    assert (look(broker, "refusing"), look(broker, "dropping")) == (bodies[:1], bodies[2:])


def test_what_cannot_be_moved_stays(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the reason; the others move."""
    declare(broker, "q")
    declare(broker, "to")
    publish(broker, "q", b"a", b"b", b"c")
    broker.step()
    append = broker.engine.moves.append_rows

    def append_but_one(template: Any, rows: Any, *arguments: Any) -> Any:
        if rows[0].body == b"b":
            raise Refused(Reason.TOO_LARGE, "too large")
        return append(template, rows, *arguments)

    monkeypatch.setattr(broker.engine.moves, "append_rows", append_but_one)
    moved = ask(broker, "moveMessages", to="to")
    assert (moved.messages, moved.failed) == (2, {"too large": 1})
    broker.step()
    assert (look(broker, "q"), look(broker, "to")) == ([b"b"], [b"a", b"c"])


@pytest.mark.parametrize(
    ("queue", "given", "text"),
    [
        ("x", {"to": "q"}, "there is no queue 'x'"),
        ("q", {"to": "x"}, "there is no queue 'x' to move to"),
        ("q", {"to": "q"}, "name another one"),
        ("q", {"to": "%SUB%s"}, "no moves"),
        ("q", {"to": "x", "count": 0}, "count"),
        ("q", {}, "to"),
    ],
)
def test_moves_that_cannot_be(broker: Broker, queue: str, given: dict[str, Any], text: str) -> None:
    declare(broker, "q")
    assert text in refused(broker, "moveMessages", queue, **given).text


def test_who_may_move(broker: Broker) -> None:
    """Who may read what the queue collects, and publish to the other."""
    for name in ("q", "to"):
        declare(broker, name)
    publish(broker, "q", b"a")
    broker.step()
    add_user(broker, "ann")
    allow(broker, "ann", "publish", "to")
    ann = port_of(broker, "ann")
    assert refused(broker, "moveMessages", port=ann, to="to").reason is Reason.FORBIDDEN
    allow(broker, "ann", "subscribe", "q")
    add_user(broker, "bob")
    allow(broker, "bob", "subscribe", "q")
    tried = refused(broker, "moveMessages", port=port_of(broker, "bob"), to="to", dry_run=True)
    assert tried.reason is Reason.FORBIDDEN, "a dry run says so, too"
    assert ask(broker, "moveMessages", port=ann, to="to").messages == 1
