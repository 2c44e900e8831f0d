"""A message's way: where it came from, where it is, and what the log says of it, for each state."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from polymq.admin import way, way_past
from polymq.admin.message_values import Message
from polymq.admin.messages import MessageHandlers
from polymq.admin.way import WayHandlers
from polymq.admin.way_values import Destination, Event, Way
from polymq.broker.port import PUBLISHER_PROPERTY, REST, Address, Reason, Refused
from tests.broker import test_half_messages as half_messages
from tests.broker import test_session_backlogs as backlog
from tests.broker.queue_bench import bind, consume, declare, exchange, publish, ready
from tests.broker.test_session_backlogs import bounded, subscribe
from tests.harness.broker import START_MS, Broker, SpyLink, at_qos, batch_of
from tests.polymq.admin.operation_calls import call, committed


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path / "data")
    yield made
    made.stop()


def shown_filter(address: Address) -> str:
    return "/".join(address).replace(REST, "#")


def ask(broker: Broker, position: int, **query: str) -> Way:
    """The way of the message at a position."""
    operation = WayHandlers(broker.engine, shown_filter).operation()
    group = MessageHandlers(broker.engine, committed).group(operation)
    given: dict[str, Any] = dict(query)
    found = call([group], "getWay", {"position": str(position)}, broker=broker, **given)
    assert isinstance(found, Way)
    return found


def newest(broker: Broker, queue: str) -> int:
    """The position of the last message of a named queue."""
    (group, *_) = broker.engine.exchanges.queues[queue].group.all_groups()
    index = group.queue.index
    entry = index.read_hot(index.end_offset - 1, 1)
    assert entry
    return int.from_bytes(entry[:8], "big")


def sent(broker: Broker, queue: str, body: bytes = b"x", **settings: Any) -> int:
    """Publish a message to a queue; its position."""
    publish(broker, queue, body, **settings)
    broker.step()
    return newest(broker, queue)


def destination(found: Way, identity: str) -> Destination:
    (one,) = [one for one in found.destinations if one.id == identity]
    return one


def said(found: Way, identity: str | None = None) -> list[tuple[str, str]]:
    """What happened at a place, with the reasons."""
    events = [one for one in found.events if identity is None or one.destination == identity]
    return [(one.what, one.reason) for one in events]


def only(found: Way, what: str) -> Event:
    (one,) = [one for one in found.events if one.what == what]
    return one


# --- one queue ------------------------------------------------------------------------------------


def test_from_waiting_to_acknowledged(broker: Broker) -> None:
    """Each state as it is now, and the times that the log has of the former ones."""
    declare(broker, "q")
    position = sent(broker, "q")
    found = ask(broker, position)
    assert (found.topic, found.tag, found.store_ms) == ("q", None, START_MS)
    assert (found.exchange, found.routing_key) == ("", "q")
    waiting = destination(found, "queue:q")
    assert (waiting.state, waiting.redelivered, waiting.offset) == ("waiting", False, 0)
    assert (found.events, found.complete) == ([], True)

    _, registration = consume(broker, "q")
    broker.step(1.0)
    found = ask(broker, position)
    assert destination(found, "queue:q").state == "unacknowledged"
    assert said(found) == [("delivered", "")]
    registration.requeue(0, 1)
    registration.cancel()
    broker.step(1.0)
    back = destination(ask(broker, position), "queue:q")
    assert (back.state, back.redelivered) == ("waiting", True)
    broker.step(5.0)
    _, registration = consume(broker, "q")
    registration.settle(0, 1)
    broker.step(1.0)
    found = ask(broker, position)
    assert destination(found, "queue:q").state == "settled"
    assert said(found) == [("delivered", ""), ("settled", "")]
    assert 7000 <= only(found, "settled").time_ms - found.store_ms < 7500
    broker.restart()
    broker.step()
    again = ask(broker, position)
    assert (again.destinations, again.events) == (found.destinations, found.events), (
        "the log is enough"
    )


@pytest.mark.parametrize("restarts", [False, True])
def test_what_was_settled_without_an_acknowledgement(broker: Broker, restarts: bool) -> None:
    """The log says why, and nothing else of the same queue gets that reason."""
    declare(broker, "q")
    declare(broker, "short", x_max_length=1)
    declare(broker, "old", x_message_ttl=1000)
    rejected, held, acknowledged, purged = (sent(broker, "q", b"%d" % n) for n in range(4))
    dropped, _ = sent(broker, "short"), sent(broker, "short")
    expired = sent(broker, "old")
    _, registration = consume(broker, "q", credit=3)
    registration.reject(0, 1)
    registration.settle(2, 1)
    broker.port.queues.purge("q", owner=None)
    registration.settle(1, 1)
    broker.step(5.0)
    if restarts:
        broker.kill()
        broker.open()
        broker.step()
    for position, queue, reason in (
        (rejected, "q", "rejected"),
        (acknowledged, "q", ""),
        (held, "q", ""),
        (purged, "q", "purged"),
        (dropped, "short", "maxlen"),
        (expired, "old", "expired"),
    ):
        found = ask(broker, position)
        assert destination(found, f"queue:{queue}").state == "settled"
        assert said(found, f"queue:{queue}")[-1] == ("settled", reason), (position, reason)


def test_how_often_it_was_given_back(broker: Broker) -> None:
    """Of a queue that counts it."""
    declare(broker, "q", x_delivery_limit=5)
    position = sent(broker, "q")
    _, registration = consume(broker, "q")
    for times in (1, 2):
        registration.requeue(0, 1)
        broker.step(1.0)
        found = ask(broker, position)
        assert destination(found, "queue:q").returned == times
    assert [one.times for one in found.events if one.what == "returned"] == [1, 2]


def test_a_message_that_waits_says_when_it_expires(broker: Broker) -> None:
    """The lower of its own time to live and the queue's."""
    declare(broker, "q", x_message_ttl=60_000)
    for ttl_ms, expected in ((None, 60_000), (5_000, 5_000), (90_000, 60_000)):
        found = ask(broker, sent(broker, "q", ttl_ms=ttl_ms))
        assert destination(found, "queue:q").expires_ms == START_MS + expected


def test_a_priority_queue_is_one_place(broker: Broker) -> None:
    declare(broker, "q", x_max_priority=5)
    sent(broker, "q")
    position = sent(broker, "q", priority=3)
    (one,) = [one for one in ask(broker, position).destinations if one.kind == "queue"]
    assert (one.id, one.state) == ("queue:q", "waiting")


def test_a_queue_in_memory(broker: Broker) -> None:
    """It is in no record, and found by its entries."""
    exchange(broker, "all")
    declare(broker, "lasting")
    declare(broker, "volatile", durable=False)
    bind(broker, "lasting", "all")
    bind(broker, "volatile", "all")
    for _ in range(3):
        publish(broker, "key", b"x", source="all")
    broker.step()
    found = ask(broker, newest(broker, "lasting"))
    assert destination(found, "queue:volatile").offset == 2
    assert destination(found, "queue:volatile").state == "waiting"


def test_a_queue_that_is_gone_is_unknown(broker: Broker) -> None:
    declare(broker, "q")
    position = sent(broker, "q")
    broker.port.queues.delete("q", owner=None, if_unused=False, if_empty=False)
    broker.step(1.0)
    (one,) = [one for one in ask(broker, position).destinations if one.kind != "topic"]
    assert (one.kind, one.state) == ("unknown", "unknown")


# --- other places, and back -----------------------------------------------------------------------


@pytest.mark.parametrize("restarts", [False, True])
def test_a_dead_letter_and_its_original(broker: Broker, restarts: bool) -> None:
    """Both ways name each other, and both say why."""
    exchange(broker, "dlx")
    declare(broker, "dead")
    bind(broker, "dead", "dlx")
    declare(broker, "work", x_dead_letter_exchange="dlx")
    first = sent(broker, "work")
    second = sent(broker, "work")
    _, registration = consume(broker, "work")
    registration.reject(1, 1)
    registration.settle(0, 1)
    broker.step(1.0)
    if restarts:
        broker.kill()
        broker.open()
        broker.step()
    found = ask(broker, second)
    event = only(found, "dead-lettered")
    assert (event.reason, event.destination, event.to_topic) == ("rejected", "queue:work", "dlx")
    assert event.to_position == newest(broker, "dead")
    copy = ask(broker, newest(broker, "dead"))
    assert copy.origin is not None
    assert (copy.origin.what, copy.origin.reason) == ("dead-lettered", "rejected")
    assert (copy.origin.position, copy.origin.destination) == (second, "queue:work")
    assert (copy.deaths[0].queue, copy.deaths[0].reason) == ("work", "rejected")
    assert destination(copy, "queue:dead").state == "waiting"
    assert said(ask(broker, first), "queue:work")[-1] == ("settled", "")


@pytest.mark.parametrize("publisher", ["", "c", "$bridge/up"])
def test_a_delayed_message(broker: Broker, publisher: str) -> None:
    """Who published it is another property than which record it was."""
    declare(broker, "q")
    route = broker.port.exchanges.route("", "q")
    assert route is not None
    properties = {PUBLISHER_PROPERTY: publisher} if publisher else {}
    made = broker.port.topics.template(route, properties=properties)
    broker.port.delays.publish_later(made, batch_of(b"late"), 0, 1, delay_ms=5000)
    broker.step(1.0)
    group = broker.engine.delays.group
    assert group is not None
    entry = group.queue.index.read_hot(0, 1)
    assert entry
    position = int.from_bytes(entry[:8], "big")
    found = ask(broker, position)
    assert (found.topic, found.due_ms) == ("q", START_MS + 5000)
    assert destination(found, "delayed:").state == "waiting"
    broker.step(6.0)
    found = ask(broker, position)
    released = only(found, "released")
    assert released.to_position == newest(broker, "q")
    copy = ask(broker, newest(broker, "q"))
    assert copy.origin is not None
    assert (copy.origin.what, copy.origin.position) == ("released", position)
    record = broker.store.find_record(newest(broker, "q"))
    assert record is not None
    assert record.properties.get(PUBLISHER_PROPERTY, "") == publisher


def test_a_retained_message_until_it_is_replaced(broker: Broker) -> None:
    template = broker.template("t", "a", retain=True)
    positions = []
    for body in (b"1", b"2", b""):
        positions.append(broker.store.log.appended)
        broker.publish(template, body)
        broker.step()
    first, second = (ask(broker, position) for position in positions[:2])
    assert (first.retained, second.retained) == (False, False)
    assert only(first, "replaced").to_position == positions[1]
    assert said(second) == [("cleared", "")]
    broker.publish(template, b"3")
    broker.step()
    assert said(ask(broker, positions[0])) == [("replaced", "")], "the first one counts"


def test_retention_takes_a_message_of_a_topic(broker: Broker) -> None:
    broker.publish(broker.template("t"), b"1")
    broker.step()
    (row,) = call(
        [MessageHandlers(broker.engine, committed).group()],
        "listMessages",
        {"name": "t"},
        broker=broker,
    ).items
    assert isinstance(row, Message)
    assert destination(ask(broker, row.position), "topic:t").state == "kept"
    broker.engine.topics.trim([["t", row.queue, row.offset + 1]])
    broker.step(1.0)
    found = ask(broker, row.position)
    assert destination(found, "topic:t").state == "removed"
    assert said(found) == [("removed", "retention")]


# --- sessions and groups --------------------------------------------------------------------------


def test_sessions_of_mqtt(broker: Broker) -> None:
    """One is connected and has it, one is away, one came later: that never got it."""
    links = {}
    for name in ("has", "away"):
        links[name] = SpyLink()
        session = broker.port.sessions.connect(
            name, clean=False, expiry_seconds=None, link=links[name], principal=f"user of {name}"
        )
        session.subscribe(("t", "a"), at_qos(1))
        broker.step()
        if name == "away":
            session.disconnect()
    broker.publish(broker.template("t", "a"), b"x")
    broker.step(1.0)
    later = broker.port.sessions.connect(
        "later", clean=False, expiry_seconds=None, link=SpyLink(), principal=""
    )
    later.subscribe(("t", "a"), at_qos(1))
    broker.step(1.0)
    row = call(
        [MessageHandlers(broker.engine, committed).group()],
        "listMessages",
        {"name": "t"},
        broker=broker,
    ).items[0]
    found = ask(broker, row.position)
    has = destination(found, "session:has t/a")
    assert has.state == "unacknowledged"
    assert has.holder is not None
    assert (has.holder.name, has.holder.user) == ("has", "user of has")
    assert said(found, "session:has t/a") == [("delivered", "")]
    assert destination(found, "session:away t/a").state == "waiting"
    assert destination(found, "session:later t/a").state == "not routed"
    cut = ask(broker, row.position, log_bytes="0")
    assert destination(cut, "session:later t/a").state == "unknown"
    assert not cut.complete
    broker.engine.sessions.by_client["has"].acknowledged(1, 1)
    broker.step(1.0)
    found = ask(broker, row.position)
    assert destination(found, "session:has t/a").state == "settled"
    assert said(found, "session:has t/a") == [("delivered", ""), ("settled", "")]


def test_a_consumer_group_commits_and_goes_back(broker: Broker) -> None:
    broker.publish(broker.template("t"), b"x")
    broker.port.groups.put("g", {})
    broker.step()
    row = call(
        [MessageHandlers(broker.engine, committed).group()],
        "listMessages",
        {"name": "t"},
        broker=broker,
    ).items[0]
    for offset, state in ((0, "waiting"), (1, "settled"), (0, "waiting")):
        broker.port.groups.commit("g", "t", row.queue, offset)
        broker.step(1.0)
        assert destination(ask(broker, row.position), "group:g").state == state
    assert [what for what, _ in said(ask(broker, row.position), "group:g")] == [
        "settled",
        "returned",
    ]


def test_what_a_full_session_drops(tmp_path: Path) -> None:
    """Of two messages the older one had to go; the newer one waits."""
    broker = bounded(tmp_path, waiting_max=1)
    subscribe(broker, "a")
    backlog.publish(broker, range(2), "a")
    broker.step(2.0)
    rows = call(
        [MessageHandlers(broker.engine, committed).group()],
        "listMessages",
        {"name": "a"},
        broker=broker,
    ).items
    older, newer = (ask(broker, row.position) for row in rows)
    assert destination(older, "session:c a/#").state == "settled"
    assert said(older, "session:c a/#") == [("dropped", "too much waited for the session")]
    assert destination(newer, "session:c a/#").state == "waiting"
    broker.stop()


@pytest.mark.parametrize("commits", [True, False])
def test_a_half_message(broker: Broker, commits: bool) -> None:
    """Committed, it is another message, which names it; rolled back, there is none."""
    declare(broker, "q")
    half = half_messages.prepare(broker, b"x")
    broker.step(1.0)
    assert destination(ask(broker, half.record_position), "prepared:").state == "waiting"
    half_messages.end(broker, half, commit=commits)
    broker.step(1.0)
    found = ask(broker, half.record_position)
    if not commits:
        assert said(found) == [("settled", "it was not committed")]
        return
    assert said(found) == [("released", "it was committed")]
    copy = ask(broker, newest(broker, "q"))
    assert copy.origin is not None
    assert (copy.origin.what, copy.origin.position) == ("released", half.record_position)


# --- how far, and what is refused -----------------------------------------------------------------


def test_the_search_goes_on_where_it_ended(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """In pieces of any size, over the ends of segments."""
    monkeypatch.setattr(way, "PIECE_BYTES", 4096)
    declare(broker, "q")
    declare(broker, "other")
    position = sent(broker, "q")
    _, registration = consume(broker, "q")
    for _ in range(30):
        publish(broker, "other", b"x" * 100_000)
        broker.step(1.0)
    assert len(broker.store.segments()) > 1
    registration.settle(0, 1)
    broker.step(1.0)
    whole = ask(broker, position)
    assert said(whole) == [("delivered", ""), ("settled", "")]
    found, events = ask(broker, position, log_bytes="200000"), []
    for _ in range(100):
        events += found.events
        if found.complete:
            break
        following = str(found.looked_until)
        found = ask(broker, position, from_position=following, log_bytes="200000")
        assert found.looked_from == int(following)
    assert found.complete
    assert [one for one in events if one.what == "settled"] == whole.events[1:]


def test_the_answer_is_bounded(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(way_past, "EVENTS_MAX", 1)
    declare(broker, "q")
    position = sent(broker, "q")
    _, registration = consume(broker, "q")
    broker.step(1.0)
    registration.settle(0, 1)
    broker.step(1.0)
    found = ask(broker, position)
    assert (said(found), found.complete) == ([("delivered", "")], False)
    rest = ask(broker, position, from_position=str(found.looked_until))
    assert said(rest) == [("settled", "")]


def test_a_message_of_many_queues(broker: Broker) -> None:
    """Its record does not name them all."""
    exchange(broker, "all")
    for number in range(300):
        declare(broker, f"q{number}")
        bind(broker, f"q{number}", "all")
    publish(broker, "key", b"x", source="all")
    broker.step()
    found = ask(broker, newest(broker, "q299"))
    queues = {one.id for one in found.destinations if one.kind == "queue"}
    assert queues == {f"queue:q{number}" for number in range(300)}
    assert {one.state for one in found.destinations if one.kind == "queue"} == {"waiting"}
    assert ready(broker, "q7") == 1


@pytest.mark.parametrize(
    ("position", "query", "text"),
    [
        ("x", {}, "is neither a position nor a message id"),
        ("7", {}, "there is no message at position 7"),
        ("999999999", {}, "there is no message at position 999999999"),
        ("", {"from_position": "0"}, "from_position has to be from"),
        ("", {"from_position": "999999999"}, "from_position has to be from"),
    ],
)
def test_wrong_requests(broker: Broker, position: str, query: dict[str, str], text: str) -> None:
    declare(broker, "q")
    found = sent(broker, "q")
    with pytest.raises(Refused, match=text) as refused:
        ask(broker, position or found, **query)  # type: ignore[arg-type]
    assert refused.value.reason in (Reason.NOT_FOUND, Reason.BAD_ARGUMENT)


def test_records_of_the_broker_are_no_messages(broker: Broker) -> None:
    position = broker.store.log.appended
    declare(broker, "q")
    broker.step()
    with pytest.raises(Refused, match="there is no message"):
        ask(broker, position)
