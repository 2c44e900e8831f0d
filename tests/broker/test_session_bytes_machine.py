"""A session with bounds of messages and of bytes, whatever comes and whatever its client takes: it
has exactly the messages that its policy says, also over restarts."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Final

import pytest

from polymq.broker.sessions.session import MqttSession
from polymq.broker.sessions.settings import DROP_NEWEST, DROP_OLDEST, Overflow, SessionSettings
from tests.broker.test_engine_sessions import connect, start_again
from tests.broker.test_session_backlogs import subscribe
from tests.broker.test_session_bytes import body, check_counts, stored_size
from tests.broker.test_uncounted import slow
from tests.harness.broker import Broker

TOPICS: Final = ("a", "c", "d")
SIZES: Final = (10, 100, 100, 400, 3000)
COUNT_MAX: Final = 12
FULL_SECONDS: Final = 0.06
"""How long a session is at most taken for full that is not any more."""


class Device:
    """Client `c`, which is away but for moments, and a model of what waits for it."""

    def __init__(self, directory: Path, overflow: Overflow, seed: int) -> None:
        self.dice = Random(seed)
        self.overflow = overflow
        self.broker = Broker(directory / "data", pump_count_max=self.dice.choice((4, 4096)))
        subscribe(self.broker, *TOPICS)
        self.sizes = {size: stored_size(self.broker, size) for size in set(SIZES)}
        self.bytes_max = 8 * self.sizes[100]
        self.broker.session_settings = SessionSettings(
            waiting_max=COUNT_MAX, waiting_bytes_max=self.bytes_max, overflow=overflow
        )
        self.broker.restart()
        self.number = 0
        self.waiting: dict[int, tuple[str, int]] = {}  # topic and stored size, in the log's order
        self.stopped: set[str] = set()

    def do(self) -> None:
        """One thing."""
        step = self.dice.choices(("publish", "take", "restart"), (12, 3, 1))[0]
        if step == "publish":
            topic, qos = self.dice.choice(TOPICS), self.dice.choice((0, 1, 1, 2))
            self.publish(topic, qos, self.dice.randint(1, 6))
        elif step == "take":
            self.take(self.dice.randint(1, 9))
        else:
            self.broker.step(2.0)  # what gathers is written
            # Entries that a stop has stored are counted later than the first message needs it.
            stops = self.overflow == DROP_OLDEST and self.dice.random() < 0.3
            start_again(self.broker, "stop" if stops else "kill")

    def publish(self, topic: str, qos: int, count: int) -> None:
        """A run, of which messages of QoS 0 do not wait."""
        run = []
        for _ in range(count):
            run.append((self.number, self.dice.choice(SIZES)))
            self.number += 1
        bodies = [body(number, size) for number, size in run]
        self.broker.publish(self.broker.template(topic, "b", qos=qos), *bodies)
        for _ in range(4):
            self.broker.step(FULL_SECONDS)
        if qos:
            stored = {number: (topic, self.sizes[size]) for number, size in run}
            if self.overflow == DROP_OLDEST:
                self.take_all_and_drop(stored)
            else:
                self.take_what_fits(topic, stored)
        check_counts(self.broker)

    def take_all_and_drop(self, stored: dict[int, tuple[str, int]]) -> None:
        self.waiting.update(stored)
        while len(self.waiting) > COUNT_MAX or self.used() > self.bytes_max:
            del self.waiting[min(self.waiting)]

    def take_what_fits(self, topic: str, stored: dict[int, tuple[str, int]]) -> None:
        for number, (_, size) in stored.items():
            drained = not any(other == topic for other, _ in self.waiting.values())
            if topic in self.stopped and not drained:
                continue
            if len(self.waiting) < COUNT_MAX and self.used() + size <= self.bytes_max:
                self.stopped.discard(topic)
                self.waiting[number] = (topic, size)
            else:
                self.stopped.add(topic)

    def used(self) -> int:
        return sum(size for _, size in self.waiting.values())

    def take(self, count: int) -> None:
        """The client comes, takes and acknowledges some, and goes."""
        session, link = slow(self.broker, count)
        self.broker.step(0.1)
        assert len(link.bodies) == min(count, len(self.waiting))
        for taken in link.bodies:
            del self.waiting[int(taken)]
        for first, _, _, length in list(self.session().unacked.runs()):
            session.acknowledged(first, length, True)
        session.disconnect()
        self.broker.step(0.1)
        check_counts(self.broker)

    def session(self) -> MqttSession:
        return self.broker.engine.sessions.by_client["c"]

    def finish(self) -> None:
        """All that should wait does, and nothing else."""
        _, link = connect(self.broker, "c", credit=1000)
        for _ in range(5):
            self.broker.step(0.1)
        assert sorted(map(int, link.bodies)) == sorted(self.waiting)
        self.broker.stop()


@pytest.mark.parametrize("overflow", [DROP_OLDEST, DROP_NEWEST])
@pytest.mark.parametrize("seed", range(12))
def test_what_waits_is_what_the_policy_says(tmp_path: Path, overflow: Overflow, seed: int) -> None:
    """Through any number of messages, connections and crashes."""
    device = Device(tmp_path, overflow, seed)
    for _ in range(60):
        device.do()
    device.finish()
