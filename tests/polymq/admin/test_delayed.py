"""Delayed messages at the admin API: which wait, and that one that is cancelled never comes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from polymq.admin.delayed import DelayedHandlers
from polymq.broker.port import Refused
from tests.broker.queue_bench import declare, look
from tests.harness.broker import START_MS, Broker, batch_of
from tests.polymq.admin.operation_calls import call, committed


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(tmp_path / "data")
    declare(made, "q")
    yield made
    made.stop()


def ask(broker: Broker, name: str, **given: Any) -> Any:
    group = DelayedHandlers(broker.engine, committed).group()
    path = {"id": given.pop("id", "")}
    return call([group], name, path, broker=broker, **given)


def later(broker: Broker, body: bytes, seconds: int, queue: str = "q") -> None:
    route = broker.port.exchanges.route("", queue)
    assert route is not None
    template = broker.port.topics.template(route, properties={})
    broker.port.delays.publish_later(template, batch_of(body), 0, 1, delay_ms=1000 * seconds)
    broker.step()


def test_which_wait(broker: Broker) -> None:
    """In the order in which they were published, in pages."""
    assert ask(broker, "listDelayed").items == []
    for number in range(4):
        later(broker, b"%d" % number, 60 - number)
    found = ask(broker, "listDelayed", limit="3")
    assert [one.body for one in found.items] == ["0", "1", "2"]
    assert found.items[1].due_ms == START_MS + 59_000
    assert found.items[0].topic == "q"
    assert found.total == 4
    found = ask(broker, "listDelayed", after=found.next)
    assert [one.body for one in found.items] == ["3"]
    assert found.next is None
    assert ask(broker, "listDelayed", topic="x").items == []
    assert len(ask(broker, "listDelayed", topic="q").items) == 4


@pytest.mark.parametrize("crash", [False, True])
def test_a_cancelled_one_never_comes(broker: Broker, crash: bool) -> None:
    for number in range(3):
        later(broker, b"%d" % number, 60)
    ask(broker, "cancelDelayed", id="1")
    assert [one.id for one in ask(broker, "listDelayed").items] == [0, 2]
    with pytest.raises(Refused, match="no delayed message waits at offset 1"):
        ask(broker, "cancelDelayed", id="1")
    if crash:
        broker.step()
        broker.kill()
        broker.open()
    broker.step(61)
    assert look(broker, "q") == [b"0", b"2"]
    assert ask(broker, "listDelayed").items == []


@pytest.mark.parametrize(
    ("identity", "text"),
    [("x", "'x' is no id"), ("5", "no delayed message waits at offset 5"), ("-1", "is no id")],
)
def test_wrong_ids(broker: Broker, identity: str, text: str) -> None:
    later(broker, b"x", 60)
    with pytest.raises(Refused, match=text):
        ask(broker, "cancelDelayed", id=identity)


def test_not_while_messages_are_released(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was read already would come although it was cancelled."""
    later(broker, b"x", 60)
    monkeypatch.setattr(broker.engine.delays, "_at_work", True)
    with pytest.raises(Refused, match="are being released just now"):
        ask(broker, "cancelDelayed", id="0")
