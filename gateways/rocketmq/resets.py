"""Setting a group back or forward in a topic, as an administrator does (222).

Theory. A consumer that runs knows its offsets better than the broker: it goes on where it is, and
says so every few seconds. So the broker commits the new offsets, and answers the group's next pull
of each queue with "offset moved" and the new one; RocketMQ's clients then forget what they have of
the queue, and begin there. Pulls that wait are answered at once, so that the next one comes soon.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from polymq.broker.port import REST, BoundedCache, Refused, TopicInfo, encode_name
from polymq.gateways.rocketmq import mapping
from polymq.gateways.rocketmq.mapping import Answer
from polymq.gateways.rocketmq.protocol import Request
from polymq.remoting.broker_fields import ResetFields
from polymq.remoting.codes import ResponseCode
from polymq.remoting.errors import BadFields
from polymq.remoting.group_bodies import encode_json

if TYPE_CHECKING:
    from polymq.gateways.rocketmq.connection import Connection

NEWEST: Final = -1
"""Instead of a time: the end of each queue."""
ALL_QUEUES: Final = -1


class Resets:
    """The queues that groups are to begin anew in, until they next pull.

    Args:
        count_max: how many there may be; of more, the oldest are forgotten: their groups, if they
            run, go on where they are.
    """

    def __init__(self, *, count_max: int) -> None:
        self._offsets: BoundedCache[tuple[str, str, int], int] = BoundedCache(count_max)

    def put(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """The group's next pull of this queue is told to begin there."""
        self._offsets.pop((group, topic, queue_id), None)
        self._offsets.add((group, topic, queue_id), offset)

    def take(self, group: str, topic: str, queue_id: int) -> int | None:
        """Where the group has to begin in this queue; None for wherever it wants."""
        if not self._offsets:
            return None
        return self._offsets.pop((group, topic, queue_id), None)


def reset_offsets(client: Connection, request: Request) -> Answer | None:
    """222: a group goes on at a time, or at an offset. Raises Refused, BadFields."""
    fields = request.fields
    assert isinstance(fields, ResetFields)
    client.port.principal.check_admin((REST,))
    if client.port.groups.info(fields.group) is None:
        return mapping.failed(
            ResponseCode.GROUP_NOT_EXIST, f"there is no consumer group {fields.group!r}"
        )
    info = mapping.need_topic(client.port, fields.topic)
    queues = list(range(len(info.max_offsets)))
    if fields.queue_id != ALL_QUEUES:
        if fields.queue_id not in queues:
            return mapping.no_such_queue(info, fields.queue_id)
        queues = [fields.queue_id]
    _Reset(client, request, fields, info, queues).begin()
    return None


class _Reset:
    """One request, while the offsets of its time are looked for."""

    def __init__(
        self,
        client: Connection,
        request: Request,
        fields: ResetFields,
        info: TopicInfo,
        queues: list[int],
    ) -> None:
        self._client = client
        self._port = client.port  # later it may be another user's
        self._request = request
        self._fields = fields
        self._info = info
        self._missing = set(queues)
        self._offsets: dict[int, int] = {}
        self._unreadable = False

    def begin(self) -> None:
        """Find where the group goes on in each queue."""
        fields, info = self._fields, self._info
        for queue_id in sorted(self._missing):
            low, high = info.min_offsets[queue_id], info.max_offsets[queue_id]
            if fields.offset is not None and fields.offset >= 0:
                if not low <= fields.offset <= high:
                    raise BadFields(f"queue {queue_id} has the offsets {low} to {high}")
                self._found(queue_id, fields.offset)
            elif fields.timestamp == NEWEST:
                self._found(queue_id, high)
            else:
                self._port.queries.by_time(
                    info.name,
                    queue_id,
                    max(fields.timestamp, 0),
                    partial(self._found, queue_id),
                )

    def _found(self, queue_id: int, offset: int | None) -> None:
        self._missing.discard(queue_id)
        if offset is None:
            self._unreadable = True
        else:
            self._offsets[queue_id] = offset
        if self._missing:
            return
        if self._unreadable:
            answer = mapping.failed(ResponseCode.SYSTEM_ERROR, "the disk could not be read")
        else:
            try:
                answer = self._reset()
            except Refused as refused:  # such as a topic that was deleted meanwhile
                answer = mapping.refused(refused)
        self._client.answer_later(self._request, answer)

    def _allowed(self, queue_id: int, offset: int) -> int:
        """Without force a group only goes back. Raises Refused."""
        group, name = self._fields.group, self._info.name
        now = self._port.groups.offset(group, name, queue_id)
        return offset if self._fields.is_force or now is None else min(offset, now)

    def _reset(self) -> Answer:
        client, group, name = self._client, self._fields.group, self._info.name
        runs = group in client.shared.members.consumers
        for queue_id, found in self._offsets.items():
            offset = self._offsets[queue_id] = self._allowed(queue_id, found)
            self._port.groups.commit(group, name, queue_id, offset)
            if runs:
                client.shared.reset(group, name, queue_id, offset)
        broker = client.shared.identity.broker_name
        topic = encode_name(name)
        table = b",".join(  # with objects as keys, as Java's tools want it: see `admin`
            encode_json({"brokerName": broker, "queueId": queue_id, "topic": topic})
            + b":%d" % offset
            for queue_id, offset in sorted(self._offsets.items())
        )
        return mapping.success(body=b'{"offsetTable":{%b}}' % table)
