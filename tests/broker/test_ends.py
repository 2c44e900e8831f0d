"""An exchange or a queue with thousands of bindings ends in one record and in little time; what it
leaves in memory is swept away in steps."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from polymq.broker.exchanges.exchanges import UNBOUND_AT_ONCE
from polymq.broker.pacing.sweeping import SWEPT_AT_ONCE, Sweeper
from polymq.broker.port import Reason, Refused
from polymq.broker.state.journal import Op
from polymq.broker.topics.routes import TopicRoute
from tests.broker.queue_bench import OWNER, bind, declare, exchange, publish, ready
from tests.broker.test_commit_steps import one_iteration
from tests.broker.test_engine_sessions import connect
from tests.harness.broker import Broker, at_qos

COUNT = 3 * SWEPT_AT_ONCE


def auto_delete(broker: Broker, name: str, *, durable: bool = True) -> None:
    broker.port.exchanges.declare(
        name, type="topic", durable=durable, auto_delete=True, internal=False, arguments={}
    )


def delete_queue(broker: Broker, name: str) -> None:
    broker.port.queues.delete(name, if_unused=False, if_empty=False, owner=OWNER)


@pytest.fixture
def ops(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> list[Op]:
    """The ops that are written from now on, without the place of an end in the log."""
    written: list[Op] = []
    write = broker.engine.core.journal.write

    def noting(op: Op) -> Any:
        written.append({name: value for name, value in op.items() if name != "at"})
        return write(op)

    monkeypatch.setattr(broker.engine.core.journal, "write", noting)
    return written


def is_sweeping(broker: Broker) -> bool:
    return not broker.engine.core.sweeper.is_done


def left(broker: Broker) -> int:
    """Bindings that stand at queues, those that are over included."""
    return sum(len(found.bindings.chosen()) for found in broker.engine.exchanges.queues.values())


def bound(broker: Broker, *names: str) -> list[tuple[str, str]]:
    """Exchange and key of all bindings that these queues have."""
    exchanges = broker.engine.exchanges
    return [
        key[:2]
        for name in names
        for key, _ in exchanges.bindings_of(exchanges.queues[name])
        if key[0]
    ]


def test_an_exchange_with_thousands_of_queues_ends_in_one_record(
    broker: Broker, ops: list[Op]
) -> None:
    """At once for everybody, and in steps in memory."""
    exchange(broker, "x")
    names = [f"q{number}" for number in range(COUNT)]
    for name in names:
        declare(broker, name)
        bind(broker, name, "x")
    broker.step()
    ops.clear()
    broker.port.exchanges.delete("x", if_unused=False)
    assert ops == [{"op": "exchange-", "name": "x"}]
    assert left(broker) >= COUNT - SWEPT_AT_ONCE
    assert bound(broker, *names) == []
    assert [broker.engine.exchanges.collected(name) for name in names] == [[(n,)] for n in names]
    broker.publish(broker.template("x"), b"of another protocol")
    one_iteration(broker)
    assert left(broker) > 0
    broker.step()
    assert left(broker) == 0
    assert {ready(broker, name) for name in names} == {0}


@pytest.mark.parametrize("flushed", [True, False])
@pytest.mark.parametrize("durable", [True, False])
def test_after_a_crash_an_exchange_has_all_its_bindings_or_is_gone_with_them(
    broker: Broker, flushed: bool, durable: bool
) -> None:
    """Also one that would not survive a restart, if it was declared anew."""
    make = partial(
        broker.port.exchanges.declare,
        "x",
        type="topic",
        auto_delete=False,
        internal=False,
        arguments={},
    )
    make(durable=durable)
    exchange(broker, "y")
    names = [f"q{number}" for number in range(40)]
    for name in names:
        declare(broker, name)
        bind(broker, name, "x", name)
    broker.port.exchanges.bind_exchange("x", "y", "", {})
    broker.port.exchanges.bind_exchange("y", "x", "", {})
    broker.step()
    broker.port.exchanges.delete("x", if_unused=False)
    if flushed:
        make(durable=True)
        broker.step()
    broker.kill()
    broker.open()
    graph = broker.engine.exchanges.graph
    there = durable and not flushed
    assert bound(broker, *names) == ([("x", name) for name in names] if there else [])
    assert (len(graph.links("y")), len(graph.links("x"))) == ((1, 1) if there else (0, 0))
    assert (broker.port.exchanges.info("x") is not None) is (there or flushed)


def test_what_comes_again_before_the_old_is_swept_is_there_to_stay(broker: Broker) -> None:
    """An exchange, a binding of the same queue and key, and a queue of the same name."""
    exchange(broker, "x", "topic")
    exchange(broker, "y", "topic")
    declare(broker, "q")
    keys = [f"*.{number}.#" for number in range(COUNT)]
    for key in keys:
        bind(broker, "q", "x", key)
        bind(broker, "q", "y", key)
    broker.step()
    broker.port.exchanges.delete("x", if_unused=False)
    exchange(broker, "x", "topic")
    bind(broker, "q", "x", keys[-1])
    bind(broker, "q", "x", keys[-2])
    broker.port.exchanges.unbind_queue("q", "x", keys[-2], {}, owner=OWNER)
    broker.port.exchanges.unbind_queue("q", "x", keys[-3], {}, owner=OWNER)
    assert bound(broker, "q").count(("x", keys[-1])) == 1
    assert len(bound(broker, "q")) == COUNT + 1
    delete_queue(broker, "q")
    declare(broker, "q")
    bind(broker, "q", "y", keys[-1])
    assert bound(broker, "q") == [("y", keys[-1])]
    publish(broker, f"a.{COUNT - 1}.b", b"1", source="y")
    publish(broker, f"a.{COUNT - 2}.b", b"2", source="y")
    publish(broker, f"a.{COUNT - 1}.b", b"3", source="x")
    broker.step()
    assert ready(broker, "q") == 1
    publish(broker, f"a.{COUNT - 1}.b", b"4", source="y")
    broker.step()
    assert ready(broker, "q") == 2
    broker.kill()
    broker.open()
    assert bound(broker, "q") == [("y", keys[-1])]


def test_bindings_that_are_made_again_are_not_swept(broker: Broker) -> None:
    """Whether the step that they would have been swept in comes before or behind them."""
    exchange(broker, "x", "topic")
    declare(broker, "q")
    keys = [f"{number}" for number in range(COUNT)]
    for key in keys:
        bind(broker, "q", "x", key)
    broker.step()
    broker.port.exchanges.delete("x", if_unused=False)
    exchange(broker, "x", "topic")
    for key in keys:
        bind(broker, "q", "x", key)
    broker.step()
    assert left(broker) == COUNT
    assert sorted(bound(broker, "q")) == sorted(("x", key) for key in keys)
    broker.restart()
    assert sorted(bound(broker, "q")) == sorted(("x", key) for key in keys)


def test_bindings_that_are_over_do_not_count_for_the_limit(broker: Broker) -> None:
    count = broker.engine.core.limits.bindings_per_queue_max
    exchange(broker, "x", "topic")
    declare(broker, "q", durable=False)
    for number in range(count):
        bind(broker, "q", "x", f"{number}")
    with pytest.raises(Refused) as raised:
        bind(broker, "q", "x", "one more")
    assert raised.value.reason is Reason.LIMIT
    broker.port.exchanges.delete("x", if_unused=False)
    exchange(broker, "x", "topic")
    assert left(broker) > 0
    bind(broker, "q", "x", "one more")
    broker.step()
    assert bound(broker, "q") == [("x", "one more")]


@pytest.mark.parametrize("key", ["{}", "*.{}.#", "#.{}.x"])
def test_a_queue_with_thousands_of_bindings_is_swept_out_of_the_patterns(
    broker: Broker, ops: list[Op], key: str
) -> None:
    """At once nothing is routed to it. In steps nothing of it is left. Others keep theirs."""
    exchange(broker, "x", "topic")
    declare(broker, "q")
    declare(broker, "other")
    for number in range(COUNT):
        bind(broker, "q", "x", key.format(number))
    bind(broker, "other", "x", key.format(0))
    broker.step()
    where = {"{}": "0", "*.{}.#": "a.0", "#.{}.x": "a.0.x"}[key]
    route = broker.port.exchanges.route("x", where)
    assert isinstance(route, TopicRoute)
    assert len(route.queues) == 2
    ops.clear()
    delete_queue(broker, "q")
    assert ops == [{"op": "queue-", "name": "q"}]
    assert is_sweeping(broker)
    broker.engine.topics.router.refresh(route)
    assert [queue.name for queue in route.queues] == ["other"]
    new = broker.port.exchanges.route("x", where.replace("0", str(COUNT - 1)))
    assert isinstance(new, TopicRoute)
    assert not new.queues
    broker.step()
    router = broker.engine.topics.router
    assert not is_sweeping(broker)
    assert broker.engine.exchanges.graph.bound_count("x") == 1
    assert router.complex_levels == (4 if key.startswith("#") else 0)
    broker.port.exchanges.unbind_queue("other", "x", key.format(0), {}, owner=OWNER)
    assert router.complex_levels == 0
    assert not router._of_exchanges


def test_auto_delete_exchanges_end_in_the_record_of_what_they_were_for(
    broker: Broker, ops: list[Op]
) -> None:
    """Those that lead to nothing else: not `used`, which another queue is bound to."""
    for name in ("a", "b", "c", "used"):
        auto_delete(broker, name)
    declare(broker, "q")
    declare(broker, "other")
    bind(broker, "q", "a", "1")
    bind(broker, "q", "a", "2")
    bind(broker, "q", "used", "1")
    bind(broker, "other", "used", "1")
    broker.port.exchanges.bind_exchange("a", "b", "", {})
    broker.port.exchanges.bind_exchange("b", "c", "", {})
    broker.port.exchanges.bind_exchange("a", "used", "", {})
    broker.step()
    ops.clear()
    delete_queue(broker, "q")
    assert ops == [{"op": "queue-", "name": "q", "x": ["a", "b", "c"]}]
    broker.step()
    for start in (broker.kill, broker.restart):
        start()
        if start == broker.kill:
            broker.open()
        there = [name for name in ("a", "b", "c", "used") if broker.port.exchanges.info(name)]
        assert there == ["used"]
        assert bound(broker, "other") == [("used", "1")]
        assert not broker.engine.exchanges.graph.links("used")


def test_an_exchange_that_lasts_ends_with_a_queue_that_does_not(broker: Broker) -> None:
    """The log says so, though it knows no such queue."""
    auto_delete(broker, "x")
    declare(broker, "q", durable=False)
    broker.port.queues.delete("q", if_unused=False, if_empty=False, owner=OWNER)
    broker.port.queues.declare(
        "q", durable=False, exclusive=False, auto_delete=False, arguments={}, owner=OWNER
    )
    bind(broker, "q", "x")
    broker.step()
    delete_queue(broker, "q")
    broker.step()
    broker.kill()
    broker.open()
    assert broker.port.exchanges.info("x") is None


def test_a_binding_that_lasts_ends_with_an_exchange_that_does_not(broker: Broker) -> None:
    """The log has the binding, so it says that the exchange ended, though it knows no such
    exchange. A topic of that name, which is an exchange by itself, begins without bindings, also
    after a crash."""
    broker.port.exchanges.declare(
        "x", type="topic", durable=False, auto_delete=False, internal=False, arguments={}
    )
    declare(broker, "q")
    bind(broker, "q", "x")
    broker.port.exchanges.delete("x", if_unused=False)
    broker.publish(broker.template("x", ""), b"1")
    broker.step()
    broker.kill()
    broker.open()
    assert broker.port.exchanges.info("x") is not None
    assert bound(broker, "q") == []


def test_very_many_auto_delete_exchanges_end_in_several_records(
    broker: Broker, ops: list[Op], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is bound again in between stays."""
    monkeypatch.setattr("polymq.broker.exchanges.ends.ENDING_TOO_MAX", 4)
    declare(broker, "q")
    declare(broker, "other")
    for number in range(12):
        auto_delete(broker, f"x{number}")
        bind(broker, "q", f"x{number}")
    broker.step()
    ops.clear()
    delete_queue(broker, "q")
    bind(broker, "other", "x11")
    broker.step()
    ended = [op for op in ops if op["op"] != "bind+"]
    assert [len(op.get("x", ())) for op in ended] == [4, 3, 2]
    broker.kill()
    broker.open()
    there = [number for number in range(12) if broker.port.exchanges.info(f"x{number}")]
    assert there == [11]


def test_logs_of_earlier_versions_say_it_one_by_one(broker: Broker) -> None:
    """An op for each binding and each link, then that of the exchange."""
    exchange(broker, "x", "topic")
    auto_delete(broker, "y")
    declare(broker, "q")
    for number in range(UNBOUND_AT_ONCE + 1):
        bind(broker, "q", "x", f"{number}")
    broker.port.exchanges.bind_exchange("x", "y", "k", {})
    journal = broker.engine.core.journal
    for number in range(UNBOUND_AT_ONCE + 1):
        journal.write({"op": "bind-", "queue": "q", "key": ["x", f"{number}", "{}"]})
    journal.write({"op": "link-", "from": "y", "key": ["x", "k", "{}"]})
    journal.write({"op": "exchange-", "name": "x"})
    journal.write({"op": "exchange-", "name": "y"})
    broker.step()
    for _ in range(2):
        assert bound(broker, "q") == []
        assert broker.port.exchanges.info("x") is None
        assert broker.port.exchanges.info("y") is None
        broker.kill()
        broker.open()


def test_nothing_is_saved_while_something_is_swept(broker: Broker) -> None:
    """The row of a queue is marked when it loses the binding."""
    exchange(broker, "x")
    names = [f"q{number}" for number in range(COUNT)]
    for name in names:
        declare(broker, name)
        bind(broker, name, "x")
    broker.step()
    broker.save()
    broker.port.exchanges.delete("x", if_unused=False)
    saving = broker.engine.begin_snapshot()
    assert saving is not None
    assert not saving.gather(1 << 30)
    while is_sweeping(broker):
        one_iteration(broker)
    assert saving.gather(1 << 30)
    assert set(saving.entities) >= {("queue", name) for name in names}


def test_what_other_protocols_subscribe_to_outlives_the_exchange(broker: Broker) -> None:
    """Its patterns are none of the exchange's."""
    exchange(broker, "x", "topic")
    declare(broker, "q")
    bind(broker, "q", "x", "#")
    bind(broker, "q", "amq.topic", "x.a")
    session, link = connect(broker, "c", clean=True)
    session.subscribe(("x", "a"), at_qos(1))
    broker.step()
    broker.port.exchanges.delete("x", if_unused=False)
    broker.publish(broker.template("x", "a"), b"1")
    broker.publish(broker.template("x", "b"), b"2")
    broker.step()
    assert link.bodies == [b"1"]
    assert ready(broker, "q") == 1


def test_the_sweeper_takes_turns_with_the_loop() -> None:
    """A step of bounded size in each iteration, the work in the order of its coming."""
    soon: list[Any] = []
    done: list[str] = []
    sweeper = Sweeper(soon.append)

    def work(name: str, count: int) -> Any:
        for _ in range(count):
            done.append(name)
            yield

    sweeper.add(work("a", SWEPT_AT_ONCE + 1))
    sweeper.add(work("b", 1))
    assert len(done) == SWEPT_AT_ONCE
    assert len(soon) == 1
    soon.pop()()
    assert done[-2:] == ["a", "b"]
    assert sweeper.is_done
    assert not soon
    sweeper.add(work("c", 2 * SWEPT_AT_ONCE))
    sweeper.finish()
    assert len(done) == 3 * SWEPT_AT_ONCE + 2


def test_work_that_fails_does_not_hold_up_what_comes_behind_it() -> None:
    soon: list[Any] = []
    sweeper = Sweeper(soon.append)
    done: list[int] = []

    def failing() -> Any:
        for _ in range(SWEPT_AT_ONCE):
            yield
        raise ValueError("a bug")

    def work(number: int) -> Any:
        done.append(number)
        yield

    sweeper.add(failing())
    sweeper.add(work(1))
    with pytest.raises(ValueError, match="a bug"):
        soon.pop()()
    sweeper.add(work(2))
    soon.pop()()
    assert done == [1, 2]
    assert sweeper.is_done
    assert not soon
