"""What a named queue does with its messages beyond handing them out in order.

A plain queue has no rules and pays nothing for those of others. A queue whose arguments ask for
more, or that got messages with a time to live, has one `QueueRules`, which its group asks at the
few places where they matter: a run becomes visible, something is to be delivered, a consumer gives
messages back or rejects them. How each rule works is in a file of its own.
"""

from __future__ import annotations

from broker.committed import Committed
from broker.dead_letters import DeadLetters, Undertaker
from broker.deaths import Cause
from broker.expiry import Expiry
from broker.queue_settings import QueueSettings
from broker.queues import Group


class QueueRules:
    """The rules of one named queue: `queues.Rules`.

    Attributes:
        expiry: None while no message of the queue has a time to live.
    """

    __slots__ = ("_shared", "expiry", "settings", "undertaker")

    def __init__(self, shared: DeadLetters, name: str, settings: QueueSettings) -> None:
        self._shared = shared
        self.settings = settings
        self.undertaker = Undertaker(shared, name, settings)
        self.expiry: Expiry | None = None

    def start_expiring(self, group: Group) -> None:
        """Messages of the group may expire from now on."""
        if self.expiry is None:
            self.expiry = Expiry(
                self._shared.core, group, ttl_ms=self.settings.ttl_ms, give_up=self._expired
            )
            self.expiry.look_later()

    def close(self) -> None:
        """The queue is gone."""
        if self.expiry is not None:
            self.expiry.close()

    # --- queues.Rules -----------------------------------------------------------------------

    def rejected(self, group: Group, first: int, count: int) -> None:
        """See `queues.Rules`."""
        self.undertaker.give_up(group, first, count, Cause.REJECTED)

    def requeued(self, group: Group, first: int, count: int) -> None:
        """See `queues.Rules`."""
        group.cursor.requeue(first, count)
        if self.expiry is not None:
            self.expiry.look_later()

    def arrived(self, group: Group, run: Committed, first: int) -> None:
        """See `queues.Rules`."""
        if self.expiry is None:
            group.offer(run, first)
            return
        if self.expiry.is_late(first, run.meta.ttl_code):
            group.pump()
        else:
            group.offer(run, first)
        self.expiry.look()

    def deliverable(self, group: Group) -> int:
        """See `queues.Rules`."""
        if self.expiry is not None:
            return self.expiry.deliverable()
        return group.cursor.ready_count(group.queue.visible)

    def _expired(self, group: Group, first: int, count: int) -> None:
        self.undertaker.give_up(group, first, count, Cause.EXPIRED)
