"""What the connections of one RocketMQ listener share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from polymq.broker.port import BrokerPort
from polymq.gateways.rocketmq.limits import Limits
from polymq.gateways.rocketmq.locks import Locks
from polymq.gateways.rocketmq.long_polls import LongPoll, LongPolls
from polymq.gateways.rocketmq.mapping import Identity
from polymq.gateways.rocketmq.members import Members
from polymq.gateways.rocketmq.resets import Resets
from polymq.gateways.rocketmq.rights import rights_left
from polymq.net.connection import Context
from polymq.net.kernels.streams import Traffic
from polymq.net.message_counts import MessageCounts

if TYPE_CHECKING:
    from polymq.gateways.rocketmq.connection import Connection
    from polymq.gateways.rocketmq.pulling import Pulls

LONG_POLL_TICK_SECONDS = 0.1
"""How late a held pull may notice that its time is up, or that its topic is gone."""
LEASE_TICK_SECONDS = 10.0
"""How often silent members and locks whose lease ended are looked for: RocketMQ's interval."""


class Shared:
    """See above. Not for use from other threads."""

    def __init__(
        self,
        *,
        port: BrokerPort,
        context: Context,
        limits: Limits,
        identity: Identity,
    ) -> None:
        self.port = port
        self.context = context
        self.limits = limits
        self.identity = identity
        self.long_polls: LongPolls[Pulls] = LongPolls(limits.long_polls_max, port.groups.is_paused)
        self.members: Members[Connection] = Members(
            lambda channel, group: channel.tell_group_changed(group),
            count_max=limits.members_max,
            count_each_max=limits.memberships_per_client_max,
        )
        self.locks = Locks(count_max=limits.locks_max)
        self.resets = Resets(count_max=limits.resets_max)
        self.protocol_error_count = 0
        self.counts = MessageCounts()
        self.bytes = Traffic()
        self._watched: set[tuple[str, int]] = set()  # queues that the engine announces
        self._long_poll_tick: asyncio.TimerHandle | None = None
        self._lease_tick: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to look after leases."""
        self._lease_tick = self.context.call_later(LEASE_TICK_SECONDS, self._look_at_leases)

    def stop(self) -> None:
        """No more looking after anything."""
        for tick in (self._long_poll_tick, self._lease_tick):
            if tick is not None:
                tick.cancel()

    def long_poll(self, long_poll: LongPoll[Pulls]) -> bool:
        """Hold a pull; False when there are too many."""
        if not self.long_polls.add(long_poll):
            return False
        queue = long_poll.topic, long_poll.queue_id
        if queue not in self._watched:
            self._watched.add(queue)
            self.port.queries.when_grown(*queue, partial(self._grown, *queue))
        if self._long_poll_tick is None:
            self._long_poll_tick = self.context.call_later(
                LONG_POLL_TICK_SECONDS, self._look_at_long_polls
            )
        return True

    def _grown(self, topic: str, queue_id: int) -> None:
        self._watched.discard((topic, queue_id))
        self._release(topic, queue_id)

    def _release(self, topic: str, queue_id: int) -> None:
        for long_poll in self.long_polls.take_grown(topic, queue_id):
            long_poll.owner.release(long_poll.serial)

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Have a group that runs begin anew in a queue."""
        self.resets.put(group, topic, queue_id, offset)
        self._release(topic, queue_id)

    def _look_at_long_polls(self) -> None:
        self._long_poll_tick = None
        for long_poll in self.long_polls.take(self.context.now(), self._ends):
            long_poll.owner.release(long_poll.serial)
        if self.long_polls and self._long_poll_tick is None:
            self._long_poll_tick = self.context.call_later(
                LONG_POLL_TICK_SECONDS, self._look_at_long_polls
            )

    def _ends(self, topic: str) -> tuple[int, ...] | None:
        info = self.port.topics.info(topic)
        if info is None:  # one of this name that comes later has other queues
            self._watched = {queue for queue in self._watched if queue[0] != topic}
            return None
        return info.max_offsets

    def rights_changed(self, concerned: Callable[[str], bool]) -> None:
        """Who may not be in its group any more leaves it, and its queues are free for others.

        Args:
            concerned: whether the rights of a user may have changed.
        """
        has_rights = rights_left(self.port, concerned)
        self.locks.keep(lambda user, group, topic: has_rights(user, group, (topic,)))
        self.members.keep(
            lambda group, member: has_rights(
                member.owner, group, (one.topic for one in member.data.subscription_data_set)
            )
        )

    def _look_at_leases(self) -> None:
        now = self.context.now()
        self.members.expire(now)
        self.locks.expire(now)
        self.start()
