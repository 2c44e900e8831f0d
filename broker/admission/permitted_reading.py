"""Reading by offset, and consumer groups, as one principal may: what remoting clients, pull over
HTTP, Spark and administrators ask. See `permitted.py`.

By offset one reads all tags of a topic, so each of these needs the right to all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from polymq.broker.accounts.permissions import Action, group_address
from polymq.broker.admission.permitted import Permitted
from polymq.broker.errors import Refused
from polymq.broker.port.groups import GroupInfo
from polymq.broker.port.values import REST, Position


class PermittedQueries(Permitted):
    """`port.QueryPort` for one principal."""

    __slots__ = ()

    @property
    def store_host(self) -> bytes:
        """See `QueryPort.store_host`."""
        return self._parts.queries.store_host

    def pull(self, topic: str, queue_id: int, offset: int, **settings: Any) -> None:
        """See `QueryPort.pull`. By offset one reads all tags of a topic."""
        self._principal.check_filter((topic, REST))
        self._parts.queries.pull(topic, queue_id, offset, **settings)

    def by_key(self, topic: str, key: str, **settings: Any) -> None:
        """See `QueryPort.by_key`."""
        self._principal.check_filter((topic, REST))
        self._parts.queries.by_key(topic, key, **settings)

    def by_position(self, position: int, callback: Callable[[str, bytes], None]) -> None:
        """See `QueryPort.by_position`. What may not be read is not there."""

        def found(topic: str, record: bytes) -> None:
            try:
                if topic:
                    self._principal.check_filter((topic, REST))
            except Refused:
                topic, record = "", b""
            callback(topic, record)

        self._parts.queries.by_position(position, found)

    def by_time(
        self, topic: str, queue_id: int, time_ms: int, callback: Callable[[int | None], None]
    ) -> None:
        """See `QueryPort.by_time`."""
        self._principal.check_filter((topic, REST))
        self._parts.queries.by_time(topic, queue_id, time_ms, callback)

    def when_grown(self, topic: str, queue_id: int, callback: Callable[[], None]) -> None:
        """See `QueryPort.when_grown`."""
        self._principal.check_filter((topic, REST))
        self._parts.queries.when_grown(topic, queue_id, callback)


class PermittedGroups(Permitted):
    """`port.GroupPort` for one principal."""

    __slots__ = ()

    def info(self, name: str) -> GroupInfo | None:
        """See `GroupPort.info`."""
        self._principal.check_group(name)
        return self._parts.groups.info(name)

    def infos(self) -> Sequence[GroupInfo]:
        """See `GroupPort.infos`."""
        infos = self._parts.groups.infos()
        return [one for one in infos if self._principal.may_read(group_address(one.name))]

    def put(self, name: str, settings: Mapping[str, Any]) -> Position:
        """See `GroupPort.put`: settings are an administrator's."""
        self._principal.check_group(name)
        if settings:
            self._principal.check_admin((REST,))
        elif self._parts.groups.info(name) is None:
            self._principal.check(Action.CREATE, group_address(name)[:1])
        return self._parts.groups.put(name, settings)

    def delete(self, name: str) -> Position:
        """See `GroupPort.delete`."""
        self._principal.check_admin((REST,))
        return self._parts.groups.delete(name)

    def is_paused(self, name: str, topic: str) -> bool:
        """See `GroupPort.is_paused`: a pull asks for the rights."""
        return self._parts.groups.is_paused(name, topic)

    def offset(self, name: str, topic: str, queue_id: int) -> int | None:
        """See `GroupPort.offset`."""
        self._principal.check_group(name)
        self._principal.check_filter((topic, REST))
        return self._parts.groups.offset(name, topic, queue_id)

    def offsets(self, name: str) -> Mapping[tuple[str, int], int]:
        """See `GroupPort.offsets`: those in topics that may be read."""
        principal = self._principal
        principal.check_group(name)
        offsets = self._parts.groups.offsets(name)
        return {queue: at for queue, at in offsets.items() if principal.may_read((queue[0], REST))}

    def commit(self, name: str, topic: str, queue_id: int, offset: int) -> None:
        """See `GroupPort.commit`."""
        self._principal.check_group(name)
        self._principal.check_filter((topic, REST))
        self._parts.groups.commit(name, topic, queue_id, offset)
