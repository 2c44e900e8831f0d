"""Who is connected: consumer groups and producer groups, from heartbeats. No clock inside.

A client says every 30 seconds what it is (RocketMQ's heartbeat). It belongs to the groups that it
named until it says that it leaves, its connection ends, or it has been silent for `SILENT_SECONDS`.

Rules:

* A client is its connection and its client id: the same id over another connection takes its place,
  if it is the same user's. Another user's is refused.
* A member whose user loses a right that its heartbeat needs is dropped at once (`keep`).
* The members of a group share its queues by their ids: each computes by itself which ones are its
  own. So all of them are told when one comes, goes, or subscribes to something else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from polymq.remoting.group_bodies import ConsumerData, Heartbeat, SubscriptionData

SILENT_SECONDS: Final = 120.0
"""RocketMQ's bound: four heartbeats that did not come."""
BROADCASTING: Final = "BROADCASTING"

Channel = TypeVar("Channel")


@dataclass(slots=True, kw_only=True)
class Member(Generic[Channel]):
    """One client in one consumer group.

    Attributes:
        owner: the user who brought it.
    """

    client_id: str
    channel: Channel
    owner: str
    data: ConsumerData
    heard: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Producer:
    """One client in one producer group."""

    client_id: str
    owner: str
    heard: float


@dataclass(slots=True)
class Consumers(Generic[Channel]):
    """One consumer group: its members by client id, and what it subscribes to by topic."""

    members: dict[str, Member[Channel]] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)

    @property
    def broadcasting(self) -> bool:
        """Whether each member reads everything."""
        return any(m.data.message_model == BROADCASTING for m in self.members.values())


class Members(Generic[Channel]):
    """All groups of one listener.

    Args:
        notify: tells one member that its group changed: called with its channel and the group.
        count_max: how many memberships there may be.
        count_each_max: of one connection.
    """

    def __init__(
        self,
        notify: Callable[[Channel, str], None],
        *,
        count_max: int,
        count_each_max: int | None = None,
    ) -> None:
        self._notify = notify
        self._count_max = count_max
        self._count_each_max = count_max if count_each_max is None else count_each_max
        self._count = 0
        self._counts: dict[Channel, int] = {}
        self.consumers: dict[str, Consumers[Channel]] = {}
        self.producers: dict[str, dict[Channel, Producer]] = {}
        """By group the clients that can be asked about transactions."""

    def is_others(self, group: str, client_id: str, owner: str) -> bool:
        """Whether a client id is in a consumer group, and another user's."""
        known = self.consumers.get(group)
        member = None if known is None else known.members.get(client_id)
        return member is not None and member.owner != owner

    def count_of(self, channel: Channel) -> int:
        """How many memberships a connection has, as producer or consumer."""
        return self._counts.get(channel, 0)

    def heard(self, beat: Heartbeat, channel: Channel, now: float, owner: str = "") -> bool:
        """A heartbeat came, of a client that no other user has (`is_others`).

        Args:
            owner: the user who sent it.

        Returns:
            False when there are too many members to take all of it.
        """
        taken = True
        for producer in beat.producer_data_set:
            known = self.producers.get(producer.group_name, {})
            if channel in known or self._take_room(channel):
                known[channel] = Producer(client_id=beat.client_id, owner=owner, heard=now)
                self.producers[producer.group_name] = known
            else:
                taken = False
        for data in beat.consumer_data_set:
            taken = self._consumer_heard(beat.client_id, data, channel, now, owner) and taken
        return taken

    def _take_room(self, channel: Channel) -> bool:
        of_channel = self._counts.get(channel, 0)
        if self._count >= self._count_max or of_channel >= self._count_each_max:
            return False
        self._count += 1
        self._counts[channel] = of_channel + 1
        return True

    def _give_room(self, channel: Channel) -> None:
        self._count -= 1
        left = self._counts[channel] - 1
        if left:
            self._counts[channel] = left
        else:
            del self._counts[channel]

    def _consumer_heard(
        self, client_id: str, data: ConsumerData, channel: Channel, now: float, owner: str
    ) -> bool:
        group = self.consumers.get(data.group_name)
        member = None if group is None else group.members.get(client_id)
        changed = member is None or member.channel != channel
        if changed and not self._take_room(channel):
            return False
        if member is not None and changed:
            self._give_room(member.channel)
        if group is None:
            group = self.consumers[data.group_name] = Consumers()
        group.members[client_id] = Member(
            client_id=client_id, channel=channel, owner=owner, data=data, heard=now
        )
        if self._subscribe(group, data) or changed:
            self._tell(data.group_name, group)
        return True

    @staticmethod
    def _subscribe(group: Consumers[Channel], data: ConsumerData) -> bool:
        """Take what a member subscribes to; whether that is something else than before. The
        newest version counts, for members are updated one by one."""
        changed = False
        for new in data.subscription_data_set:
            old = group.subscriptions.get(new.topic)
            if old is None or new.sub_version > old.sub_version:
                changed = changed or old is None or old.sub_string != new.sub_string
                group.subscriptions[new.topic] = new
        if len(group.members) == 1:
            wanted = {item.topic for item in data.subscription_data_set}
            for topic in set(group.subscriptions) - wanted:
                changed = True
                del group.subscriptions[topic]
        return changed

    def left(
        self, client_id: str, channel: Channel, producer: str | None, consumer: str | None
    ) -> None:
        """A client says that it leaves these groups."""
        if producer and self.producers.get(producer, {}).pop(channel, None) is not None:
            self._give_room(channel)
            self._forget_empty(producer)
        group = self.consumers.get(consumer) if consumer else None
        if consumer and group is not None:
            member = group.members.get(client_id)
            if member is not None and member.channel == channel:
                self._drop(consumer, group, [member])

    def lost(self, channel: Channel) -> None:
        """A connection ended: whoever spoke over it is gone."""
        for name in [name for name, known in self.producers.items() if channel in known]:
            del self.producers[name][channel]
            self._give_room(channel)
            self._forget_empty(name)
        for name, group in list(self.consumers.items()):
            self._drop(name, group, [m for m in group.members.values() if m.channel == channel])

    def expire(self, now: float) -> None:
        """Drop who has been silent for too long."""
        for name, known in list(self.producers.items()):
            silent = [c for c, one in known.items() if now - one.heard > SILENT_SECONDS]
            for channel in silent:
                del known[channel]
                self._give_room(channel)
            self._forget_empty(name)
        for name, group in list(self.consumers.items()):
            members = group.members.values()
            self._drop(name, group, [m for m in members if now - m.heard > SILENT_SECONDS])

    def keep(self, may_stay: Callable[[str, Member[Channel]], bool]) -> None:
        """Rights changed: drop the members of consumer groups that may not stay, by the group's
        name and the member."""
        for name, group in list(self.consumers.items()):
            members = group.members.values()
            self._drop(name, group, [m for m in members if not may_stay(name, m)])

    def _forget_empty(self, producer: str) -> None:
        if not self.producers[producer]:
            del self.producers[producer]

    def _drop(self, name: str, group: Consumers[Channel], gone: Iterable[Member[Channel]]) -> None:
        gone = list(gone)
        for member in gone:
            del group.members[member.client_id]
            self._give_room(member.channel)
        if not group.members:
            self.consumers.pop(name, None)
        elif gone:
            self._tell(name, group)

    def _tell(self, name: str, group: Consumers[Channel]) -> None:
        for member in list(group.members.values()):
            self._notify(member.channel, name)
