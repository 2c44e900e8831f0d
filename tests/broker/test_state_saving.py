"""What is saved in slices is the state of one moment: the same as a fold of the log up to there."""

from __future__ import annotations

import gc
import shutil
from pathlib import Path

import pytest

from tests.harness.broker import Broker, SpyConsumer, SpyLink, at_qos


def declare(broker: Broker, name: str) -> None:
    broker.port.queues.declare(
        name, durable=True, exclusive=False, auto_delete=False, arguments={}, owner=None
    )


def everything(broker: Broker) -> dict[tuple[str, str], object]:
    """All rows of the state, as a snapshot would have them."""
    engine = broker.engine
    keys = [("queue", name) for name in engine.exchanges.queues]
    keys += [("group", str(number)) for number in engine.queue_store.groups]
    keys += [("topic", name) for name in engine.topics.topics]
    keys += [("session", str(number)) for number in engine.sessions.state.by_number]
    return {(kind, key): engine.fold.row(kind, key) for kind, key in keys}


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_slices_save_the_state_of_one_moment(tmp_path: Path, size: int) -> None:
    """Queues are declared, deleted, read and settled, and a session gets messages, between any two
    slices. What was saved, with the rest of the log, is what the log alone gives."""
    broker = Broker(tmp_path / "data")
    for number in range(10):
        declare(broker, f"q{number}")
    link = SpyLink()
    session = broker.port.sessions.connect(
        "c", clean=False, expiry_seconds=None, link=link, principal=""
    )
    session.resume()
    session.subscribe(("t",), at_qos(1))
    consumer = SpyConsumer(credit=100_000)
    holder = broker.port.queues.consume("q1", consumer, exclusive=False, owner=None)
    template = broker.template("t")
    own = broker.port.topics.template(
        broker.port.topics.route("q1", None), properties={"PMQ_PROTO": "amqp"}
    )
    broker.step()
    saving = broker.engine.begin_snapshot()
    assert saving is not None
    slices = 0
    while not saving.gather(size):
        slices += 1
        if slices < 12:
            declare(broker, f"new{slices}")
            broker.port.queues.delete(f"q{slices + 1}", if_unused=True, if_empty=False, owner=0)
        broker.publish(template, b"x")
        broker.publish(own, b"y")
        broker.step(0.1)
        holder.ready()
        holder.settle(consumer.got[-1][0], 1)  # not in the log when the next slice is made
    assert slices > 5 or size == 1000
    assert saving.position == broker.store.log.appended
    broker.engine.core.commits.urgent = saving.position
    broker.engine.core.appended()
    broker.step()
    saving()
    for name in ("with", "without"):
        shutil.copytree(broker.directory, tmp_path / name)
    broker.store.close()
    for path in (tmp_path / "without").glob("state.db*"):
        path.unlink()
    cached, folded = Broker(tmp_path / "with"), Broker(tmp_path / "without")
    assert cached.engine.fold.count == 0
    assert folded.engine.fold.count > 10
    assert everything(cached) == everything(folded)
    cached.store.close()
    folded.store.close()


def test_what_waits_to_be_saved_is_nothing_for_the_garbage_collector(broker: Broker) -> None:
    """Rows that wait until all are made are no objects that it has to look at: with many of them it
    would look at all objects of the process, in the middle of a slice."""
    count = 500
    for number in range(count):
        declare(broker, f"q{number}")
    broker.step()
    saving = broker.engine.begin_snapshot()
    assert saving is not None
    gc.collect()
    before = len(gc.get_objects())
    while not saving.gather(100):
        pass
    gc.collect()
    assert len(list(saving.entities)) >= count
    assert len(gc.get_objects()) - before < count / 10


def test_a_state_db_of_another_log_leaves_nothing_behind(tmp_path: Path) -> None:
    """An operator put back an older log, or mixed up two data directories: what only the foreign
    state.db knows is not there after the first start, nor after those that follow."""
    foreign = Broker(tmp_path / "foreign")
    declare(foreign, "ghost")
    foreign.step()
    foreign.stop()
    broker = Broker(tmp_path / "data")
    for number in range(3):
        declare(broker, f"own{number}")
    broker.step()
    broker.stop()
    shutil.copy(tmp_path / "foreign/state.db", tmp_path / "data/state.db")
    for _ in range(2):
        broker.open()
        found = {name for kind, name in everything(broker) if kind == "queue"}
        assert found == {"own0", "own1", "own2"}
        declare(broker, "own0")
        broker.stop()
