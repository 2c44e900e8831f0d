"""What a named queue does with its messages beyond handing them out in order.

A plain queue has no rules and pays nothing for those of others. A queue whose arguments ask for
more has one `QueueRules`, which its group asks at the few places where they matter: a consumer
rejects messages. How each rule works is in a file of its own.
"""

from __future__ import annotations

from broker.dead_letters import DeadLetters, Undertaker
from broker.deaths import Cause
from broker.queue_settings import QueueSettings
from broker.queues import Group


class QueueRules:
    """The rules of one named queue: `queues.Rules`."""

    __slots__ = ("settings", "undertaker")

    def __init__(self, shared: DeadLetters, name: str, settings: QueueSettings) -> None:
        self.settings = settings
        self.undertaker = Undertaker(shared, name, settings)

    def rejected(self, group: Group, first: int, count: int) -> None:
        """See `queues.Rules`."""
        self.undertaker.give_up(group, first, count, Cause.REJECTED)
