"""Half messages: prepared, committed, rolled back, asked for, and all of it over a restart."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from polymq.broker.port import Durability, HalfMessage, Position, Prepared, Reason, Refused, Route
from polymq.broker.transactions.half_messages import Decider
from tests.harness.broker import START_MS, Broker, SpyConsumer, batch_of

OWNER = object()


def declare(broker: Broker, name: str = "q") -> None:
    broker.port.queues.declare(
        name, durable=True, exclusive=False, auto_delete=False, arguments={}, owner=OWNER
    )


def consume(broker: Broker, name: str = "q") -> SpyConsumer:
    consumer = SpyConsumer(1000)
    broker.port.queues.consume(name, consumer, exclusive=False, owner=OWNER).ready()
    broker.step()
    return consumer


def prepare(broker: Broker, body: bytes, *, producer: str = "P", **more: Any) -> Prepared:
    route = broker.port.exchanges.route("", "q")
    assert route is not None
    made = broker.port.topics.template(
        route, properties={"PMQ_PROTO": "rocketmq", "PGROUP": producer}
    )
    return broker.port.half_messages.prepare(made, batch_of(body), 0, **more)


def end(
    broker: Broker,
    half: Prepared,
    *,
    commit: bool,
    producer: str = "P",
    record_position: int = -1,
    decider: Decider | None = None,
) -> int | Reason:
    """What the decision is answered with."""
    answers: list[int | Refused] = []
    broker.port.half_messages.end(
        half.offset,
        half.record_position if record_position < 0 else record_position,
        producer=producer,
        commit=commit,
        callback=answers.append,
        decider=decider,
    )
    (answer,) = answers
    return answer.reason if isinstance(answer, Refused) else answer


@dataclass
class Named:
    """Somebody who decides, and may publish."""

    owner: str

    def may_end(self, owner: str) -> bool:
        return owner == self.owner

    def check_commit(self, route: Route) -> None:
        assert route.topic == "q"


class Asked:
    """The listener that asks producers."""

    def __init__(self, broker: Broker) -> None:
        self.halves: list[HalfMessage] = []
        broker.port.half_messages.when_unresolved(lambda half: self.halves.append(half))

    def take(self) -> list[tuple[bytes, int]]:
        """(body, how often) of what was asked for since the last call."""
        taken, self.halves = self.halves, []
        return [(half.body, half.check_count) for half in taken]


def test_a_message_is_seen_when_it_is_committed(broker: Broker) -> None:
    """Prepared and durable, but seen by nobody; what is rolled back never is."""
    declare(broker)
    consumer = consume(broker)
    first, second = prepare(broker, b"kept"), prepare(broker, b"dropped")
    broker.step(1)
    assert broker.store.log.flushed >= second.position
    assert consumer.bodies == []
    position = end(broker, first, commit=True)
    assert isinstance(position, int)
    assert isinstance(end(broker, second, commit=False), int)
    broker.step(1)
    assert consumer.bodies == [b"kept"]
    assert broker.store.log.flushed >= position


@pytest.mark.parametrize("first", [True, False])
def test_the_first_decision_counts(broker: Broker, first: bool) -> None:
    """Committed twice is published once; a later decision of the other kind is refused and changes
    nothing, also after a restart."""
    declare(broker)
    half = prepare(broker, b"x")
    assert isinstance(end(broker, half, commit=first), int)
    for restart in (False, True):
        if restart:
            broker.step(1)
            broker.restart()
        assert isinstance(end(broker, half, commit=first), int)
        assert end(broker, half, commit=not first) is Reason.DIFFERENT
    broker.step(1)
    assert consume(broker).bodies == ([b"x"] if first else [])


def test_who_may_decide(broker: Broker) -> None:
    """Another offset, another place, another producer: refused, and the message waits on."""
    declare(broker)
    half = prepare(broker, b"x")
    assert end(broker, half._replace(offset=7), commit=True) is Reason.NOT_FOUND
    assert (
        end(broker, half, commit=True, record_position=half.record_position + 1) is Reason.NOT_FOUND
    )
    assert end(broker, half, commit=True, producer="Q") is Reason.FORBIDDEN
    consumer = consume(broker)
    assert consumer.bodies == []
    assert isinstance(end(broker, half, commit=True), int)
    broker.step()
    assert consumer.bodies == [b"x"]


def test_a_silent_producer_is_asked(broker: Broker) -> None:
    """After six seconds, then every thirty; not any more when it has answered."""
    declare(broker)
    asked = Asked(broker)
    half = prepare(broker, b"x")
    prepare(broker, b"patient", check_after_ms=20_000)
    broker.step(5.9)
    assert asked.take() == []
    broker.step(0.2)
    (found,) = asked.halves
    assert (found.offset, found.record_position, found.topic, found.tag) == (
        half.offset,
        half.record_position,
        "q",
        None,
    )
    assert found.properties["PGROUP"] == "P"
    assert found.born_ms == START_MS
    assert asked.take() == [(b"x", 1)]
    broker.step(14)
    assert asked.take() == [(b"patient", 1)]
    broker.step(16.1)
    assert asked.take() == [(b"x", 2)]
    end(broker, half, commit=True)
    broker.step(100)
    assert {body for body, _ in asked.take()} == {b"patient"}


def test_who_never_answers_loses_the_message(tmp_path: Path) -> None:
    """After so many times it is in a topic of its own, with the name of the one it was meant for;
    a commit that comes then is told that it is too late."""
    broker = Broker(tmp_path / "data", half_checks_max=3)
    declare(broker)
    asked = Asked(broker)
    half = prepare(broker, b"x")
    broker.step(200)
    assert asked.take() == [(b"x", 1), (b"x", 2), (b"x", 3)]
    assert broker.engine.half_messages.expired_count == 1
    assert end(broker, half, commit=True) is Reason.DIFFERENT
    assert isinstance(end(broker, half, commit=False), int)
    broker.step()
    assert consume(broker).bodies == []
    records: list[bytes] = []
    broker.port.queries.pull(
        "TRANS_CHECK_MAX_TIME_TOPIC",
        0,
        0,
        count_max=9,
        bytes_max=9999,
        callback=lambda found, _: records.append(found),
    )
    assert b"REAL_TOPIC\x01q\x02" in records[0]
    broker.stop()


@pytest.mark.parametrize("with_state_db", [True, False])
@pytest.mark.parametrize("way", ["stop", "kill"])
def test_half_messages_survive_a_restart(tmp_path: Path, way: str, with_state_db: bool) -> None:
    """One committed, one rolled back, one asked for twice, one new: the last two wait on, and what
    is overdue is asked for at once, with its count."""
    broker = Broker(tmp_path / "data", with_state_db=with_state_db)
    declare(broker)
    asked = Asked(broker)
    waiting = prepare(broker, b"waiting")
    end(broker, prepare(broker, b"committed"), commit=True)
    end(broker, prepare(broker, b"rolled back"), commit=False)
    broker.step(40)
    assert asked.take() == [(b"waiting", 1), (b"waiting", 2)]
    new = prepare(broker, b"new")
    broker.step(1)
    if way == "stop":
        broker.stop()
    else:
        broker.kill()
    broker.open(down_seconds=3)
    asked = Asked(broker)
    broker.step(1)
    assert asked.take() == [(b"waiting", 3)]
    broker.step(2)
    assert asked.take() == [(b"new", 1)]
    for half in (waiting, new):
        assert isinstance(end(broker, half, commit=True), int)
    broker.step()
    assert sorted(consume(broker).bodies) == [b"committed", b"new", b"waiting"]
    broker.step(100)
    assert asked.take() == []
    broker.stop()


def test_a_commit_that_is_cut_off_counts_once(tmp_path: Path) -> None:
    """The log ends within the record of the commit: the half is there still, and can be committed;
    where the record is whole, it cannot be committed again."""
    broker = Broker(tmp_path / "data")
    declare(broker)
    half = prepare(broker, b"x")
    broker.step()
    broker.save()
    start = broker.store.log.appended
    assert isinstance(end(broker, half, commit=True), int)
    broker.loop.run()
    end_ = broker.store.log.appended
    broker.kill()
    file = Path("commitlog") / f"{0:020d}"
    whole = (broker.directory / file).read_bytes()
    for cut in (start + 1, start + 60, end_ - 1, end_):
        torn = tmp_path / f"torn-{cut}"
        shutil.copytree(broker.directory, torn)
        (torn / file).write_bytes(whole[:cut] + bytes(len(whole) - cut))
        (torn / "checkpoint").unlink()
        again = Broker(torn)
        consumer = consume(again)
        assert consumer.bodies == ([b"x"] if cut == end_ else []), cut
        assert isinstance(end(again, half, commit=True), int)
        again.step()
        assert consumer.bodies == [b"x"], cut
        again.stop()


def test_a_deleted_topic_takes_its_half_messages_along(broker: Broker) -> None:
    """The commit says so; who was not heard of is not asked for."""
    declare(broker)
    asked = Asked(broker)
    half, silent = prepare(broker, b"x"), prepare(broker, b"y")
    broker.port.topics.delete("q")
    assert end(broker, half, commit=True) is Reason.NOT_FOUND
    broker.step(100)
    assert asked.take() == []
    assert broker.engine.half_messages.dropped_count == 2
    assert end(broker, silent, commit=True) is Reason.DIFFERENT


def test_half_messages_are_bounded(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "data", half_max=2)
    declare(broker)
    for body in (b"a", b"b"):
        prepare(broker, body)
    with pytest.raises(Refused) as refused:
        prepare(broker, b"c")
    assert refused.value.reason is Reason.LIMIT
    broker.stop()


def test_decisions_from_the_disk_come_in_any_order(broker: Broker) -> None:
    """Three decisions for one message while a reader thread gets it: the first counts, the same
    again is well, and the other one is too late."""
    declare(broker)
    half = prepare(broker, b"x")
    broker.step()
    waiting: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    reading = broker.engine.core.reading
    read = reading.read

    def slow(*args: Any, **named: Any) -> None:
        waiting.append((args, named))

    reading.read = slow  # type: ignore[method-assign]
    answers: list[int | Refused] = []
    for commit in (True, False, True):
        broker.port.half_messages.end(
            half.offset, half.record_position, producer="P", commit=commit, callback=answers.append
        )
    assert (len(waiting), answers) == (1, [])
    reading.read = read  # type: ignore[method-assign]
    args, named = waiting[0]
    read(*args, **named)
    assert [isinstance(answer, Refused) for answer in answers] == [False, True, False]
    broker.step()
    assert consume(broker).bodies == [b"x"]
    assert isinstance(answers[0], int)
    assert answers[0]


def test_a_rollback_is_as_durable_as_its_answer(tmp_path: Path) -> None:
    """Killed as soon as the position is flushed: the message stays rolled back."""
    broker = Broker(tmp_path / "data")
    declare(broker)
    half = prepare(broker, b"x")
    position = end(broker, half, commit=False)
    assert isinstance(position, int)
    answered: list[int] = []
    broker.port.when_committed(Position(position), Durability.FLUSHED, answered.append, 1)
    broker.step()
    assert answered == [1]
    broker.kill()
    broker.open()
    assert end(broker, half, commit=True) is Reason.DIFFERENT
    broker.step()
    assert consume(broker).bodies == []
    broker.stop()


def test_a_half_message_belongs_to_the_user_who_prepared_it(broker: Broker) -> None:
    """Over a restart, and although others can say its offset, its place and its group. Who it is
    has to be known wherever it is asked for, and is no part of what is published."""
    declare(broker)
    half, other = prepare(broker, b"x", owner="ann"), prepare(broker, b"y")
    asked = Asked(broker)
    broker.restart()
    asked = Asked(broker)
    broker.step(7)
    assert [(one.body, one.owner) for one in asked.halves] == [(b"x", "ann"), (b"y", "")]
    assert end(broker, half, commit=True, decider=Named("mal")) is Reason.FORBIDDEN
    assert end(broker, other, commit=True, decider=Named("mal")) is Reason.FORBIDDEN
    assert isinstance(end(broker, half, commit=True, decider=Named("ann")), int)
    assert isinstance(end(broker, other, commit=True), int)
    broker.step()
    assert consume(broker).bodies == [b"x", b"y"]
    records: list[bytes] = []
    broker.port.queries.pull(
        "q", 0, 0, count_max=9, bytes_max=9999, callback=lambda found, _: records.append(found)
    )
    assert b"PMQ_BY" not in records[0]


def test_as_many_ends_are_remembered_as_there_is_room_for(tmp_path: Path) -> None:
    """An older one is told only what is sure: that it is too late for a rollback."""
    broker = Broker(tmp_path / "data", half_ends_cached_max=2)
    declare(broker)
    halves = [prepare(broker, b"x") for _ in range(3)]
    for half in halves:
        end(broker, half, commit=False)
    broker.step(1)
    broker.restart()
    assert end(broker, halves[0], commit=False) is Reason.DIFFERENT
    for half in halves[1:]:
        assert isinstance(end(broker, half, commit=False), int)
        assert end(broker, half, commit=True) is Reason.DIFFERENT
    broker.step()
    assert consume(broker).bodies == []
    broker.stop()


def test_who_answers_while_it_is_read_is_not_asked(broker: Broker) -> None:
    """The record comes from a reader thread, and the decision before it."""
    declare(broker)
    asked = Asked(broker)
    half = prepare(broker, b"x")
    waiting: list[Any] = []
    reading = broker.engine.core.reading
    read = reading.read_entries
    reading.read_entries = lambda *args: waiting.append(args)  # type: ignore[method-assign]
    broker.step(7)
    reading.read_entries = read  # type: ignore[method-assign]
    assert isinstance(end(broker, half, commit=True), int)
    read(*waiting[0])
    assert asked.take() == []
