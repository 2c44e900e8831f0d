"""When the engine writes, flushes and gathers acks: at most one timer for each, however much
happens."""

from __future__ import annotations

from broker.port import Durability
from tests.harness.broker import Broker


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
