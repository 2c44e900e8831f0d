"""Reading by offset, topics and consumer groups as one principal may: what remoting clients, pull
over HTTP, Spark and administrators ask.

By offset one reads all tags of a topic, so each of these needs the right to all of it. The rest of
what a principal may do is in `permitted.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from polymq.broker.access.permissions import Action, group_place
from polymq.broker.access.rights import Rights
from polymq.broker.errors import Reason, Refused
from polymq.broker.port import REST, GroupInfo, Position, TopicInfo, Words

if TYPE_CHECKING:
    from polymq.broker.access.admission import Admission
    from polymq.broker.engine import Engine


class PermittedReading(Rights):
    """This part of `broker.port.BrokerPort` for one principal.

    Args:
        client_id: of an MQTT connection, for rules that name it.
    """

    __slots__ = ("_engine",)

    def __init__(
        self, *, engine: Engine, admission: Admission, principal: str, client_id: str | None
    ) -> None:
        now = engine.core.clock_ms
        super().__init__(
            admission=admission, clock_ms=now, principal=principal, client_id=client_id
        )
        self._engine = engine

    def check_admin(self, words: Words) -> None:
        """See `BrokerPort.check_admin`."""
        self._check_filter(words, Action.ADMIN)

    def check_admitted(self) -> None:
        """See `BrokerPort.check_admitted`."""
        self._check_admitted()

    def check_known(self, topic: str) -> None:
        """See `BrokerPort.check_known`."""
        if not self._may_know(topic):
            self._check_filter((topic, REST))

    # --- RocketMQ's consumer groups ---------------------------------------------------------

    @property
    def store_host(self) -> bytes:
        """See `RocketmqPort.store_host`."""
        return self._engine.store_host

    def when_grown(self, topic: str, queue_id: int, callback: Callable[[], None]) -> None:
        """See `RocketmqPort.when_grown`."""
        self._check_filter((topic, REST))
        self._engine.when_grown(topic, queue_id, callback)

    def when_rights_change(self, callback: Callable[[Callable[[str], bool]], None]) -> None:
        """See `RocketmqPort.when_rights_change`: the server's own, not a client's."""
        raise Refused(Reason.FORBIDDEN, "only the server looks after those who lose a right")

    def check_group(self, name: str) -> None:
        """See `RocketmqPort.check_group`."""
        self._check_filter(group_place(name))

    def group(self, name: str) -> GroupInfo | None:
        """See `RocketmqPort.group`."""
        self.check_group(name)
        return self._engine.group(name)

    def groups(self) -> Sequence[GroupInfo]:
        """See `RocketmqPort.groups`."""
        return [one for one in self._engine.groups() if self.may_read(group_place(one.name))]

    def put_group(self, name: str, settings: Mapping[str, Any]) -> Position:
        """See `RocketmqPort.put_group`: settings are an administrator's."""
        self.check_group(name)
        if settings:
            self.check_admin((REST,))
        elif self._engine.group(name) is None:
            self._check(Action.CREATE, group_place(name)[:1])
        return self._engine.put_group(name, settings)

    def delete_group(self, name: str) -> Position:
        """See `RocketmqPort.delete_group`."""
        self.check_admin((REST,))
        return self._engine.delete_group(name)

    def group_offset(self, name: str, topic: str, queue_id: int) -> int | None:
        """See `RocketmqPort.group_offset`."""
        self.check_group(name)
        self._check_filter((topic, REST))
        return self._engine.group_offset(name, topic, queue_id)

    def group_offsets(self, name: str) -> Mapping[tuple[str, int], int]:
        """See `RocketmqPort.group_offsets`: those in topics that may be read."""
        self.check_group(name)
        offsets = self._engine.group_offsets(name)
        return {place: at for place, at in offsets.items() if self.may_read((place[0], REST))}

    def commit_group_offset(self, name: str, topic: str, queue_id: int, offset: int) -> None:
        """See `RocketmqPort.commit_group_offset`."""
        self.check_group(name)
        self._check_filter((topic, REST))
        self._engine.commit_group_offset(name, topic, queue_id, offset)

    # --- reading by offset ------------------------------------------------------------------

    def topics(self) -> Sequence[TopicInfo]:
        """See `BrokerPort.topics`: those that may be read."""
        return [info for info in self._engine.topics() if self.may_read((info.name, REST))]

    def topic(self, name: str) -> TopicInfo | None:
        """See `BrokerPort.topic`: gateways ask it for themselves, and answer what was checked."""
        return self._engine.topic(name)

    def create_topic(
        self, name: str, queue_count: int, settings: Mapping[str, str] | None = None
    ) -> Position:
        """See `BrokerPort.create_topic`."""
        self._check(Action.CREATE, (name,))
        if settings:
            self._check(Action.ADMIN, (name,))
        return self._engine.create_topic(name, queue_count, settings)

    def set_topic(self, name: str, settings: Mapping[str, str]) -> Position:
        """See `BrokerPort.set_topic`."""
        self._check(Action.ADMIN, (name,))
        return self._engine.set_topic(name, settings)

    def delete_topic(self, name: str) -> Position:
        """See `BrokerPort.delete_topic`."""
        self._check(Action.ADMIN, (name,))
        return self._engine.delete_topic(name)

    def pull(self, topic: str, queue_id: int, offset: int, **settings: Any) -> None:
        """See `BrokerPort.pull`. By offset one reads all tags of a topic."""
        self._check_filter((topic, REST))
        self._engine.pull(topic, queue_id, offset, **settings)

    def query_by_key(self, topic: str, key: str, **settings: Any) -> None:
        """See `BrokerPort.query_by_key`."""
        self._check_filter((topic, REST))
        self._engine.query_by_key(topic, key, **settings)

    def message_by_position(self, position: int, callback: Callable[[str, bytes], None]) -> None:
        """See `BrokerPort.message_by_position`. What may not be read is not there."""

        def found(topic: str, record: bytes) -> None:
            try:
                if topic:
                    self._check_filter((topic, REST))
            except Refused:
                topic, record = "", b""
            callback(topic, record)

        self._engine.message_by_position(position, found)

    def offset_by_time(
        self, topic: str, queue_id: int, time_ms: int, callback: Callable[[int | None], None]
    ) -> None:
        """See `BrokerPort.offset_by_time`."""
        self._check_filter((topic, REST))
        self._engine.offset_by_time(topic, queue_id, time_ms, callback)
