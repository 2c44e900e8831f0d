"""A client whose filters overlap, whatever it subscribes to and acknowledges, and whenever: of each
message that was published while one of its subscriptions matched it gets one copy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Final, TypeVar

import pytest

from polymq.broker.port import ONE_LEVEL, REST, Address
from polymq.broker.routing.patterns import matches
from tests.broker.test_engine_sessions import connect, start_again
from tests.harness.broker import Broker, ManualLoop, at_qos

T = TypeVar("T")

FILTERS: Final[tuple[Address, ...]] = (
    ("a", REST),
    ("a", ONE_LEVEL),
    ("a", "x"),
    (ONE_LEVEL, "x"),
    (REST,),
    ("b", "y"),
)
TOPICS: Final = (("a", "x"), ("a", "y"), ("b", "x"), ("b", "y"))
STEPS: Final = {"publish": 8, "acknowledge": 6, "complete": 3, "lose": 2, "change": 4, "away": 2}
"""How often a client does each thing (`Client.do`)."""
ROUNDS_MAX: Final = 2_000
"""Of acknowledging what is left: the longest takes some hundred."""


class LateReaders:
    """Reader threads that take some time, in which connections begin and end."""

    def __init__(self, loop: ManualLoop, dice: Random) -> None:
        self.loop = loop
        self.dice = dice

    def submit(
        self, read: Callable[[], T], done: Callable[[T | None, Exception | None], None]
    ) -> None:
        result = read()
        self.loop.call_later(self.dice.choice((0.01, 0.05, 0.3)), lambda: done(result, None))


class Client:
    """It knows of each message with which QoS it has to come at least.

    Attributes:
        ways: which filters each message came by that its client still has, with what QoS.
        loose: messages that came by filters that were changed since: their QoS may be another.
    """

    def __init__(self, directory: Path, seed: int, *, way: str, window: int) -> None:
        self.dice = Random(seed)
        self.way = way
        self.broker = Broker(
            directory / "data", inflight_count_start=window, inflight_count_max=window
        )
        self.filters: dict[Address, int] = {}
        self.qos_of: dict[bytes, int] = {}
        self.topic_of: dict[bytes, Address] = {}
        self.ways: dict[bytes, dict[Address, int]] = {}
        self.loose: set[bytes] = set()
        self.got: dict[bytes, int] = {}
        self.order: dict[tuple[Address, int], int] = {}
        self.known: set[int] = set()
        self.to_ack: list[tuple[int, int]] = []
        self.to_complete: list[int] = []
        self.connected = False
        self.begin()

    def begin(self) -> None:
        self.session, self.link = connect(self.broker, "c", credit=10_000)
        self.connected = True
        self.seen = self.released = 0
        self.to_ack.clear()
        self.to_complete.clear()
        self.look()

    def look(self) -> None:
        """Take what has come."""
        self.broker.step(0.1)
        if not self.connected:
            return
        for topic, body, qos, packet, duplicate, _ in self.link.publishes[self.seen :]:
            assert self.topic_of[body] == tuple(topic.split("/"))
            assert qos <= self.qos_of[body]
            again = duplicate and (body in self.got if qos == 1 else packet in self.known)
            if not again:
                count = self.got[body] = self.got.get(body, 0) + 1
                assert count == 1, f"{body!r} of QoS {qos} came twice"
                key = self.topic_of[body], qos
                assert self.order.get(key, -1) < int(body), "out of order"
                self.order[key] = int(body)
                ways = self.ways[body]
                if ways and body not in self.loose:
                    assert qos == min(self.qos_of[body], max(ways.values())), body
            if qos == 2:
                assert (packet in self.known) == again
                self.known.add(packet)
            if qos:
                self.to_ack.append((packet, qos))
        self.seen = len(self.link.publishes)
        for packet in self.link.pubrels[self.released :]:
            self.known.discard(packet)
            self.to_complete.append(packet)
        self.released = len(self.link.pubrels)

    def do(self) -> None:
        """One thing."""
        step = self.dice.choices(list(STEPS), list(STEPS.values()))[0]
        if step == "publish" or not self.connected:
            self.publish()
            if not self.connected and self.dice.random() < 0.3:
                self.come_back()
        elif step == "acknowledge":
            self.acknowledge(self.dice.choice((0.4, 1.0)))
        elif step == "complete":
            self.complete()
        elif step == "lose":
            self.lose()
            self.begin()
        elif step == "away":
            self.lose()
            self.connected = False
        else:
            self.change()

    def publish(self) -> None:
        """Some runs, of which some become visible together."""
        for _ in range(self.dice.randint(1, 3)):
            address = self.dice.choice(TOPICS)
            session = self.broker.engine.sessions.by_client["c"]
            is_there = session.link is not None and session.attached
            qos = self.dice.choice((0, 1, 1, 2))
            first = len(self.qos_of)
            bodies = [b"%d" % n for n in range(first, first + self.dice.randint(1, 5))]
            for body in bodies:
                self.qos_of[body] = qos
                self.topic_of[body] = address
                self.ways[body] = {
                    pattern: granted
                    for pattern, granted in self.filters.items()
                    if matches(pattern, address) and (is_there or min(qos, granted))
                }
            self.broker.publish(self.broker.template(*address, qos=qos), *bodies)
            if self.dice.random() < 0.3:
                self.change()  # before it is visible
        self.look()

    def change(self) -> None:
        """SUBSCRIBE or UNSUBSCRIBE."""
        if not self.connected:
            return
        pattern = self.dice.choice(FILTERS)
        self.loose.update(body for body, ways in self.ways.items() if pattern in ways)
        if pattern in self.filters and self.dice.random() < 0.4:
            self.session.unsubscribe(pattern)
            del self.filters[pattern]
            for ways in self.ways.values():
                if pattern in ways:
                    del ways[pattern]
        else:
            qos = self.dice.choice((0, 1, 1, 2, 2))
            for ways in self.ways.values():
                if pattern in ways:
                    ways[pattern] = min(ways[pattern], qos)
            self.session.subscribe(pattern, at_qos(qos), retained=False)
            self.filters[pattern] = qos
        if self.dice.random() < 0.5:
            self.look()

    def acknowledge(self, share: float, *, look: bool = True) -> None:
        """Some of what came, in any order."""
        chosen = [one for one in self.to_ack if self.dice.random() < share]
        self.to_ack = [one for one in self.to_ack if one not in chosen]
        for packet, qos in chosen:
            if qos == 1:
                self.session.acknowledged(packet, 1)
            else:
                self.session.received(packet, 1)
        if look:
            self.look()

    def complete(self) -> None:
        """Some PUBCOMPs."""
        chosen: Sequence[int] = [n for n in self.to_complete if self.dice.random() < 0.7]
        self.to_complete = [packet for packet in self.to_complete if packet not in chosen]
        for packet in chosen:
            self.session.completed(packet, 1)
        self.look()

    def lose(self) -> None:
        """The connection ends, or the server does."""
        self.broker.step(0.1)
        self.look()
        if self.way == "reconnect":
            self.session.disconnect()
        else:
            self.broker.step(1.0)
            self.acknowledge(0.3, look=False)  # a kill takes that back
            start_again(self.broker, self.way)
            readers = LateReaders(self.broker.loop, self.dice)
            self.broker.engine.core.reading.readers = readers
        for body, ways in self.ways.items():
            if not self.qos_of[body]:
                ways.clear()
            for pattern in [pattern for pattern, qos in ways.items() if not qos]:
                del ways[pattern]

    def come_back(self) -> None:
        self.begin()

    def finish(self) -> None:
        """All that was published has come, and nothing is in flight."""
        if not self.connected:
            self.come_back()
        left, rounds = 5, 0  # what is blocked behind what has expired goes on after a while
        while left:
            rounds += 1
            assert rounds < ROUNDS_MAX, "something is sent again and again"
            left = 5 if self.to_ack or self.to_complete else left - 1
            self.acknowledge(1.0)
            self.complete()
            self.broker.step(1.0)
        # Of those with QoS 0, the one copy may have ended with another subscription or connection.
        missing = [b for b, ways in self.ways.items() if any(ways.values()) and b not in self.got]
        assert missing == []
        session = self.broker.engine.sessions.by_client["c"]
        assert (session.unacked.count, len(session.releasing)) == (0, 0)
        groups = [found.group for found in session.subscriptions.values()]
        assert sum(group.ready_count for group in groups if group is not None) == 0
        self.broker.stop()


@pytest.mark.parametrize("window", [1, 5, 100])
@pytest.mark.parametrize("way", ["reconnect", "stop", "kill"])
@pytest.mark.parametrize("seed", range(8))
def test_a_message_comes_once(tmp_path: Path, seed: int, way: str, window: int) -> None:
    """Through any number of subscriptions, connections and crashes."""
    client = Client(tmp_path, seed, way=way, window=window)
    for _ in range(100):
        client.do()
    client.finish()
