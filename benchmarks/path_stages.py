"""Which part of the way a message spends its time in: parse, route, append, write, flush, deliver,
acknowledge.

The functions where a stage begins are wrapped by a clock, in this process only. A stage's time is
its own, without the stages that it calls; what no stage has is "rest": the calls between them, and
the test loop. It is processor time, and the clock itself costs some, so the sum is above what
`benchmarks.path` measures without clocks, which is the figure to quote for the whole.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, Final

import polymq.gateways.mqtt.protocol
from polymq.broker.core import Core
from polymq.broker.queues.queue import Queue
from polymq.broker.sessions.session import MqttSession
from polymq.broker.sessions.subscription import Subscription
from polymq.broker.topics.topic import TopicTemplate
from polymq.core_log.commit_log import CommitLog
from polymq.gateways.mqtt.connection import Connection as MqttConnection
from polymq.gateways.mqtt.mapping import TopicMapping

STAGES: Final[tuple[tuple[str, Any, str], ...]] = (
    ("parse", polymq.gateways.mqtt.protocol, "parse"),
    ("route", TopicMapping, "template"),
    ("route", TopicTemplate, "refresh"),
    ("append", CommitLog, "append_run"),
    ("append", Queue, "append"),
    ("write", CommitLog, "write"),
    ("flush", Core, "flush_finished"),
    ("flush", Core, "_flush"),
    ("deliver", Subscription, "offer"),
    ("acknowledge", MqttConnection, "_answer_when"),
    ("acknowledge", MqttConnection, "_answered"),
    ("acknowledge", MqttSession, "acknowledged"),
)
"""Stage, and the function that begins it. What is called within belongs to it, too, unless it
begins another."""


class StageClock:
    """The time that each stage has taken since `clear`, in nanoseconds."""

    def __init__(self) -> None:
        self.taken: dict[str, int] = {}
        self._inner: list[int] = []  # for each stage that runs: what stages within it have taken
        for stage, owner, name in STAGES:
            setattr(owner, name, self._timed(stage, getattr(owner, name)))

    def clear(self) -> None:
        """Begin anew."""
        self.taken = dict.fromkeys((stage for stage, _, _ in STAGES), 0)

    def _timed(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        inner, clock = self._inner, time.thread_time_ns

        @functools.wraps(function)
        def timed(*arguments: Any, **named: Any) -> Any:
            inner.append(0)
            start = clock()
            try:
                return function(*arguments, **named)
            finally:
                took = clock() - start
                self.taken[stage] += took - inner.pop()
                if inner:
                    inner[-1] += took

        return timed
