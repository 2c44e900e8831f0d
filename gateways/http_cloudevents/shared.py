"""What the subscriptions of one server share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from polymq.broker.port import BrokerPort
from polymq.gateways.http_cloudevents.held import DeadLetters
from polymq.gateways.http_cloudevents.limits import Limits
from polymq.gateways.http_cloudevents.publishing import Commits
from polymq.gateways.http_cloudevents.retry_state import RetryStates
from polymq.gateways.http_cloudevents.sinks import Sinks
from polymq.gateways.http_cloudevents.starts import Starts


@dataclass(slots=True, kw_only=True)
class Shared:
    """The parts that each subscription uses.

    Attributes:
        loop: its clock is the clock of locks and deliveries.
        random: uniform in [0, 1).
        secret: gives secrets of lock tokens.
        sleep: waits seconds.
    """

    port: BrokerPort
    limits: Limits
    loop: asyncio.AbstractEventLoop
    commits: Commits
    sinks: Sinks
    broker_name: str
    random: Callable[[], float]
    secret: Callable[[], str]
    sleep: Callable[[float], Awaitable[None]]
    starts: Starts = field(init=False)
    dead_letters: DeadLetters = field(init=False)
    retry_states: RetryStates = field(init=False)

    def __post_init__(self) -> None:
        self.starts = Starts(self.loop.call_soon, count_max=self.limits.webhook_starts_max)
        self.dead_letters = DeadLetters(self.port, broker_name=self.broker_name)
        self.retry_states = RetryStates(self.port)
