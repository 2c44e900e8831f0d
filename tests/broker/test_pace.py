"""When the engine writes, flushes and gathers acks: at most one timer for each, however much
happens."""

from __future__ import annotations

from typing import Any

from polymq.broker.port import REST, Durability, Position, RecordRun
from polymq.core_log.kernels.batch import RECORD_STORE_MS_AT
from tests.harness.broker import Broker, SpyLink, at_qos


def test_what_nobody_waits_for_is_flushed_a_little_later_by_one_timer(broker: Broker) -> None:
    """QoS 0 from many loop iterations: no flush of its own for each, and no timer either."""
    template = broker.template("a", qos=0, durability=Durability.APPENDED)
    broker.step(1.0)
    counts = []
    for n in range(10):
        broker.publish(template, b"%d" % n)
        broker.loop.run()
        counts.append(broker.loop.timer_count)
        assert not broker.engine.core.flush_pending
    assert set(counts) == {counts[0]}
    flushed = broker.store.log.flushed
    broker.loop.run(broker.limits.lazy_flush_seconds)
    assert broker.engine.core.flush_pending
    broker.flush()
    assert broker.store.log.flushed == broker.store.log.appended > flushed
    broker.publish(template, b"again")
    broker.loop.run(broker.limits.lazy_flush_seconds)
    assert broker.engine.core.flush_pending
    broker.flush()


def test_what_the_page_cache_acks_would_survive_a_kill(broker: Broker) -> None:
    """Durability `page_cache`: when answers leave and consumers get the message, the file has
    it. What is only in this process would die with it."""
    template = broker.template("a", durability=Durability.APPENDED)
    broker.step(1.0)
    log = broker.directory / "commitlog"
    answered: list[bool] = []
    seen: list[bool] = []

    def is_written() -> bool:
        return any(b"only once" in path.read_bytes() for path in log.iterdir())

    class Watching(SpyLink):
        def send_publishes(self, run: RecordRun, **options: Any) -> None:
            seen.append(is_written())

    session = broker.port.sessions.connect(
        "c", clean=True, expiry_seconds=0, link=Watching(), principal=""
    )
    session.resume()
    session.subscribe(("a",), at_qos(0))
    position = broker.publish(template, b"only once")
    broker.port.when_committed(
        Position(position), Durability.APPENDED, lambda: answered.append(is_written())
    )
    assert (answered, seen, is_written()) == ([], [], False)
    broker.loop.run()
    assert (answered, seen) == ([True], [True])
    assert not broker.engine.core.flush_pending, "nobody waited for the disk"


class TimesLink(SpyLink):
    """Keeps the store time of what it is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[int] = []

    def send_publishes(self, run: RecordRun, **options: Any) -> None:
        at = run.start + RECORD_STORE_MS_AT
        self.times.append(int.from_bytes(bytes(run.memory[at : at + 8]), "big"))


def test_the_time_of_a_message_is_that_of_its_iteration(broker: Broker) -> None:
    """The clock is read once for all that one loop iteration stores, and again in the next one:
    what a queue with a time to live drops, and a search by time finds, goes by it."""
    link = TimesLink()
    session = broker.port.sessions.connect(
        "c", clean=True, expiry_seconds=0, link=link, principal=""
    )
    session.resume()
    session.subscribe((REST,), at_qos(0))
    first, second = broker.template("a"), broker.template("b")
    broker.step(1.0)
    expected = []
    for _ in range(3):
        now = broker.loop.clock_ms()
        for template in (first, second):  # one message of each: the plain path, which is not joined
            broker.publish(template, b"x")
            expected.append(now)
        broker.step()
        broker.step(60.0)
    assert link.times == expected
