"""Dead letters at the admin API: why they are there, and sending them on, each exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from polymq.admin import redriving
from polymq.admin.dead_letter_values import Cause, Target, cause_of
from polymq.admin.dead_letters import DeadLetterHandlers
from polymq.admin.messages import MessageHandlers
from polymq.broker.port import Refused
from tests.broker.queue_bench import OWNER, bind, consume, declare, exchange, look, publish, ready
from tests.harness.broker import START_MS, Broker
from tests.polymq.admin.operation_calls import call, committed

DLQ = "%DLQ%g"


@pytest.fixture(params=[True, False], ids=["state.db", "log"])
def broker(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Broker]:
    """With a cache of the state, and without."""
    made = Broker(tmp_path / "data", with_state_db=request.param)
    yield made
    made.stop()


def ask(broker: Broker, name: str, location: str = "", **given: Any) -> Any:
    group = DeadLetterHandlers(broker.engine, committed).group()
    return call([group], name, {"location": location}, broker=broker, **given)


def give_up(broker: Broker, queue: str, *bodies: bytes) -> None:
    """Messages of the exchange shop that a consumer of a queue rejects."""
    publish(broker, f"key.{queue}", *bodies, source="shop")
    broker.step()
    consumer, registration = consume(broker, queue)
    registration.cancel()
    for offset, _, _ in consumer.got:
        registration.reject(offset, 1)
    broker.step()


def shop(broker: Broker) -> None:
    """Two queues of one exchange, whose dead letters go to a third."""
    exchange(broker, "shop", "direct")
    exchange(broker, "dlx")
    declare(broker, "dead")
    bind(broker, "dead", "dlx")
    for name in ("orders", "bills"):
        declare(broker, name, x_dead_letter_exchange="dlx")
        bind(broker, name, "shop", f"key.{name}")


def dead_topic(broker: Broker, count: int, **properties: str) -> None:
    """Dead letters of a consumer group."""
    template = broker.port.topics.template(
        broker.port.topics.route(DLQ, "a"), properties={"RETRY_TOPIC": "t", **properties}
    )
    for number in range(count):
        broker.publish(template, b"%d" % number)
        broker.step(1.0)


def stored(broker: Broker, topic: str) -> list[Any]:
    """What is in a topic."""
    group = MessageHandlers(broker.engine, committed).group()
    if broker.port.topics.info(topic) is None:
        return []
    return list(call([group], "listMessages", {"name": topic}, broker=broker).items)


def test_the_list_and_the_reasons(broker: Broker) -> None:
    """Queues that a dead letter exchange leads to, and topics; and what is in one, by reason and
    source."""
    shop(broker)
    give_up(broker, "orders", b"1", b"2")
    give_up(broker, "bills", b"3")
    dead_topic(broker, 1)
    broker.port.groups.put("g", {})
    locations = {
        row.location: (row.kind, row.messages) for row in ask(broker, "listDeadLetters").items
    }
    assert locations == {"queue:dead": ("amqp", 3), f"topic:{DLQ}": ("rocketmq", 1)}
    found = ask(broker, "getDeadLetters", "queue:dead")
    assert [(one.reason, one.source, one.target, one.messages) for one in found.groups] == [
        ("rejected", "orders", "exchange shop, routing key 'key.orders'", 2),
        ("rejected", "bills", "exchange shop, routing key 'key.bills'", 1),
    ]
    assert found.groups[0].oldest_ms == START_MS
    (group,) = ask(broker, "getDeadLetters", f"topic:{DLQ}").groups
    assert (group.reason, group.source) == ("given back too often", "g")
    assert group.target == "topic t, tag a"


def test_back_to_where_they_came_from(broker: Broker) -> None:
    """Only those that pass; the others stay, in their order. The message says what happened."""
    shop(broker)
    for number in range(3):
        give_up(broker, "orders", b"o%d" % number)
        give_up(broker, "bills", b"b%d" % number)
    said = ask(broker, "redriveDeadLetters", "queue:dead", source="orders", dry_run=True)
    assert (said.messages, said.looked_at, said.complete) == (3, 6, True)
    assert ready(broker, "dead") == 6
    done = ask(broker, "redriveDeadLetters", "queue:dead", source="orders", limit=2)
    assert (done.messages, done.complete) == (2, False)
    assert ask(broker, "redriveDeadLetters", "queue:dead", source="orders").messages == 1
    broker.step()
    broker.kill()
    broker.open()
    consumer, registration = consume(broker, "orders")
    assert consumer.bodies == [b"o0", b"o1", b"o2"]
    assert consumer.messages[0].properties["REDRIVEN_FROM"] == "queue:dead"
    registration.cancel()
    assert look(broker, "dead") == [b"b0", b"b1", b"b2"]
    assert ready(broker, "bills") == 0


def test_what_a_full_queue_refuses_stays(broker: Broker) -> None:
    """It was lost otherwise: taken from its place, and in no queue."""
    shop(broker)
    declare(broker, "small", x_max_length=1, x_overflow="reject-publish")
    give_up(broker, "orders", b"1", b"2")
    done = ask(broker, "redriveDeadLetters", "queue:dead", exchange="", routing_key="small")
    assert (done.messages, done.failed) == (1, {"queue 'small' is full": 1})
    broker.step()
    assert (look(broker, "small"), look(broker, "dead")) == ([b"1"], [b"2"])


@pytest.mark.parametrize(
    "target",
    [
        {"exchange": "none", "routing_key": "a"},
        {"exchange": "", "routing_key": "none"},
        {"exchange": "shop", "routing_key": "nobody.takes.it"},
    ],
)
def test_a_dry_run_says_what_the_real_one_will(broker: Broker, target: dict[str, str]) -> None:
    """Also that the target is not there."""
    shop(broker)
    give_up(broker, "orders", b"1", b"2")
    tried = ask(broker, "redriveDeadLetters", "queue:dead", dry_run=True, **target)
    done = ask(broker, "redriveDeadLetters", "queue:dead", **target)
    assert (tried.messages, sum(tried.failed.values())) == (0, 2)
    assert (tried.messages, tried.failed) == (done.messages, done.failed)


def test_a_dry_run_makes_no_topic(broker: Broker) -> None:
    shop(broker)
    give_up(broker, "orders", b"1")
    tried = ask(broker, "redriveDeadLetters", "queue:dead", dry_run=True, topic="new")
    assert (tried.messages, tried.failed) == (1, {})
    assert broker.port.topics.info("new") is None


def test_some_of_a_priority_queue(broker: Broker) -> None:
    """A limit that one priority reaches is not forgotten because another has nothing."""
    shop(broker)
    declare(broker, "urgent", x_max_priority=3)
    bind(broker, "urgent", "dlx")
    give_up(broker, "orders", b"1", b"2")
    done = ask(broker, "redriveDeadLetters", "queue:urgent", limit=1)
    assert (done.messages, done.complete) == (1, False)
    done = ask(broker, "redriveDeadLetters", "queue:urgent", limit=1)
    assert (done.messages, done.complete) == (1, True)


def test_what_cannot_be_sent_on_stays(broker: Broker) -> None:
    """With the reason; a target that is named is another way."""
    shop(broker)
    give_up(broker, "orders", b"1")
    publish(broker, "dead", b"by hand")
    broker.port.exchanges.delete("shop", if_unused=False)
    broker.step()
    done = ask(broker, "redriveDeadLetters", "queue:dead")
    assert done.messages == 0
    assert done.failed == {
        "there is no exchange 'shop'": 1,
        "where it came from is not known: name a target": 1,
    }
    assert ready(broker, "dead") == 2
    done = ask(broker, "redriveDeadLetters", "queue:dead", exchange="", routing_key="nothing")
    assert done.failed == {"there is no such queue": 2}
    exchange(broker, "void")
    done = ask(broker, "redriveDeadLetters", "queue:dead", exchange="void", routing_key="k")
    assert done.failed == {"nobody takes what is sent to exchange void, routing key 'k'": 2}
    assert ready(broker, "dead") == 2
    done = ask(broker, "redriveDeadLetters", "queue:dead", exchange="", routing_key="bills")
    assert done.messages == 2
    broker.step()
    assert look(broker, "bills") == [b"1", b"by hand"]


def test_from_a_topic(broker: Broker) -> None:
    """They stay readable there, and are not sent on again: not by the next request, nor after a
    crash, nor after a start that finds the state saved."""
    dead_topic(broker, 4)
    assert ask(broker, "redriveDeadLetters", f"topic:{DLQ}", limit=3).messages == 3
    (row,) = ask(broker, "listDeadLetters").items
    assert row.messages == 1
    broker.step()
    broker.kill()
    broker.open()
    (row,) = ask(broker, "listDeadLetters").items
    assert row.messages == 1
    broker.restart()
    assert ask(broker, "redriveDeadLetters", f"topic:{DLQ}").messages == 1
    assert ask(broker, "redriveDeadLetters", f"topic:{DLQ}").messages == 0
    broker.step()
    found = stored(broker, "t")
    assert [one.body for one in found] == ["0", "1", "2", "3"]
    assert {one.tag for one in found} == {"a"}
    assert found[0].properties["REDRIVEN_FROM"] == f"topic:{DLQ}"
    assert len(stored(broker, DLQ)) == 4


def test_a_topic_out_of_order(broker: Broker) -> None:
    """A filter leaves holes; a restart keeps them."""
    for number in range(4):
        dead_topic(broker, 1, PMQ_DLQ_REASON="x", DLQ_ORIGIN_TOPIC=f"t{number % 2}")
    location = f"topic:{DLQ}"
    groups = ask(broker, "getDeadLetters", location).groups
    assert {one.target for one in groups} == {"topic t0, tag a", "topic t1, tag a"}
    template = broker.port.topics.template(
        broker.port.topics.route(DLQ, "a"), properties={"RETRY_TOPIC": "t"}
    )
    broker.publish(template, b"last")
    broker.step()
    assert ask(broker, "redriveDeadLetters", location, reason="given back too often").messages == 1
    broker.restart()
    assert ask(broker, "redriveDeadLetters", location, reason="x").messages == 4
    broker.step()
    assert len(stored(broker, "t")) == 1
    assert len(stored(broker, "t0")) == len(stored(broker, "t1")) == 2
    assert ask(broker, "getDeadLetters", location).groups == []


def test_consumers_of_a_dead_letter_queue_wait(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While dead letters are looked at, nobody gets them: else one would be in two places."""
    monkeypatch.setattr(redriving, "SLICE_SECONDS", 0.0)
    shop(broker)
    give_up(broker, "orders", *[b"%d" % number for number in range(20)])
    consumer, registration = consume(broker, "dead", credit=0)
    sleep = asyncio.sleep

    async def meanwhile(seconds: float) -> None:
        consumer.left = 1000
        registration.ready()
        await sleep(seconds)

    monkeypatch.setattr(asyncio, "sleep", meanwhile)
    ask(broker, "redriveDeadLetters", "queue:dead", limit=5)
    monkeypatch.undo()
    broker.step()
    got = [body for _, body, _ in consumer.got]
    assert sorted(got + look(broker, "orders"), key=int) == [b"%d" % n for n in range(20)]


def test_a_queue_that_goes_meanwhile(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not sent on goes with it."""
    monkeypatch.setattr(redriving, "SLICE_SECONDS", 0.0)
    shop(broker)
    give_up(broker, "orders", *[b"x"] * 20)
    sleep = asyncio.sleep

    async def meanwhile(seconds: float) -> None:
        if "dead" in broker.engine.named_queues.queues and ready(broker, "orders") >= 2:
            broker.port.queues.delete("dead", if_unused=False, if_empty=False, owner=OWNER)
        await sleep(seconds)

    monkeypatch.setattr(asyncio, "sleep", meanwhile)
    with pytest.raises(Refused, match="was deleted meanwhile"):
        ask(broker, "redriveDeadLetters", "queue:dead")
    monkeypatch.undo()
    broker.step()
    assert 2 <= ready(broker, "orders") < 20


@pytest.mark.parametrize(
    ("location", "given", "text"),
    [
        ("x", {}, "does not begin with queue: or topic:"),
        ("queue:x", {}, "there is no queue 'x'"),
        ("topic:x", {}, "there is no topic 'x'"),
        ("topic:%RETRY%g", {}, "its group gets these again"),
        ("queue:dead", {"exchange": "a", "topic": "b"}, "not both"),
        ("queue:dead", {"tag": "b"}, "tag for topic"),
        ("queue:dead", {"limit": 0}, "limit"),
    ],
)
def test_wrong_requests(broker: Broker, location: str, given: dict[str, Any], text: str) -> None:
    declare(broker, "dead")
    broker.port.topics.create("%RETRY%g", 1)
    with pytest.raises(Refused, match=text):
        ask(broker, "redriveDeadLetters", location, **given)


@pytest.mark.parametrize(
    ("location", "properties", "expected"),
    [
        ("%DLQ%b", {"DLQ_ORIGIN_TOPIC": "t", "PMQ_DLQ_REASON": "410"},
         Cause("410", "b", Target(topic="t", tag="x"))),
        ("%DLQ%g", {"RETRY_TOPIC": "|e9"}, Cause("given back too often", "g",
         Target(topic="\udce9", tag="x"))),
        ("%RETRY%g", {"RETRY_TOPIC": "t"}, Cause("given back", "g", Target(topic="t", tag="x"))),
        ("%DLQ%polymq_set_aside", {"REAL_TOPIC": "t", "REFUSED": "too large"},
         Cause("too large", "t", Target(topic="t", tag="x"))),
        ("", {}, Cause("unknown", "", None)),
    ],
)  # fmt: skip
def test_reasons(location: str, properties: dict[str, str], expected: Cause) -> None:
    assert cause_of(location, "x", properties) == expected
