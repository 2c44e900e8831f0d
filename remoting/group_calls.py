"""What a consumer group asks brokers: members, offsets, pulls, locks, to send again. Pure.

Every operation asks the master of the broker group that a queue is on, once. It raises
`CallFailed` (no answer), `RequestFailed` (an error answer), `BadFields` (an answer that makes no
sense), and what `Routes.get` raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from polymq.remoting.broker_fields import (
    CommitFields,
    GroupFields,
    GroupOffsetFields,
    SendBackFields,
)
from polymq.remoting.codes import PULL_SUBSCRIPTION, PULL_SUSPEND, RequestCode, ResponseCode
from polymq.remoting.consumer_settings import Begin, ConsumerSettings
from polymq.remoting.errors import BadFields, CallFailed, RequestFailed
from polymq.remoting.frames import Command
from polymq.remoting.group_bodies import (
    ConsumerList,
    LockAnswer,
    LockRequest,
    MessageQueue,
    encode_json,
)
from polymq.remoting.headers import (
    Fields,
    OffsetAnswer,
    PullFields,
    QueueFields,
    SearchFields,
    read_fields,
    write_fields,
)
from polymq.remoting.messages import RETRY_PREFIX
from polymq.remoting.records import Record, parse_properties
from polymq.remoting.routes import Routes, master_of
from polymq.remoting.steps import Call, Signal, Steps, ask

PULL_GOOD: Final = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)
DEAD_LETTER: Final = -1
"""Delay level of a message that shall not come again."""


@dataclass(frozen=True, slots=True)
class GroupCalls:
    """The calls of one member of a group."""

    group: str
    client_id: str
    routes: Routes
    settings: ConsumerSettings

    def members(self, topic: str) -> Steps[list[str] | None]:
        """Who is there; None where no broker of the topic says. Does not raise."""
        route = self.routes.known(topic)
        for data in route.broker_datas if route is not None else ():
            fields = GroupFields(consumer_group=self.group)
            queue = MessageQueue(topic=topic, broker_name=data.broker_name, queue_id=0)
            try:
                answer = yield from self._ask(queue, RequestCode.GET_CONSUMER_LIST, fields)
                return msgspec.json.decode(answer.body, type=ConsumerList).consumer_id_list
            except (CallFailed, RequestFailed, msgspec.DecodeError):
                continue
        return None

    # --- offsets --------------------------------------------------------------------------

    def committed(self, queue: MessageQueue) -> Steps[int | None]:
        """How far the group has come; None if it has never committed."""
        fields = GroupOffsetFields(
            consumer_group=self.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            set_zero_if_not_found=False,
        )
        good = (ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND)
        answer = yield from self._ask(queue, RequestCode.QUERY_CONSUMER_OFFSET, fields, good=good)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return read_fields(OffsetAnswer, answer.fields).offset

    def begin(self, queue: MessageQueue) -> Steps[int]:
        """Where a group begins that has never committed. Its retries are always read from their
        beginning."""
        fields = QueueFields(topic=queue.topic, queue_id=queue.queue_id)
        begin = self.settings.begin
        if begin is Begin.FIRST or queue.topic.startswith(RETRY_PREFIX):
            answer = yield from self._ask(queue, RequestCode.GET_MIN_OFFSET, fields)
        elif begin is Begin.LAST:
            answer = yield from self._ask(queue, RequestCode.GET_MAX_OFFSET, fields)
        else:
            search = SearchFields(
                topic=queue.topic, queue_id=queue.queue_id, timestamp=self.settings.begin_ms
            )
            answer = yield from self._ask(queue, RequestCode.SEARCH_OFFSET, search)
        return read_fields(OffsetAnswer, answer.fields).offset

    def commit(self, queue: MessageQueue, offset: int) -> Steps[None]:
        """The group has handled everything before this offset."""
        fields = CommitFields(
            consumer_group=self.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            commit_offset=offset,
        )
        yield from self._ask(queue, RequestCode.UPDATE_CONSUMER_OFFSET, fields)

    # --- messages -------------------------------------------------------------------------

    def pull(
        self, queue: MessageQueue, offset: int, subscription: str, version: int, until: Signal
    ) -> Steps[Command]:
        """The answer to a pull; the broker holds it while there is nothing.

        Args:
            version: of the subscription, in ms.
            until: nobody wants the answer any more when it is given, once.
        """
        settings = self.settings
        fields = PullFields(
            topic=queue.topic,
            group=self.group,
            queue_id=queue.queue_id,
            queue_offset=offset,
            count_max=settings.pull_count_max,
            bytes_max=settings.pull_bytes_max,
            system_flag=PULL_SUBSCRIPTION | (PULL_SUSPEND if settings.long_poll_seconds else 0),
            suspend_ms=int(settings.long_poll_seconds * 1000),
            subscription=subscription,
            subscription_version=version,
            expression_type="TAG",
        )
        return (
            yield from self._ask(
                queue,
                RequestCode.PULL_MESSAGE,
                fields,
                seconds=settings.pull_seconds,
                good=PULL_GOOD,
                until=until,
            )
        )

    def send_back(self, queue: MessageQueue, record: Record, level: int = 0) -> Steps[None]:
        """The broker shall send a message to the group again.

        Args:
            level: when: a delay level; 0: by how often it was sent; `DEAD_LETTER`: never.
        """
        properties = parse_properties(record.properties)
        fields = SendBackFields(
            offset=record.position,
            group=self.group,
            delay_level=level,
            origin_msg_id=properties.get("ORIGIN_MESSAGE_ID", record.offset_message_id),
            origin_topic=record.topic,
            max_reconsume_times=self.settings.retries_max,
        )
        yield from self._ask(queue, RequestCode.CONSUMER_SEND_BACK, fields)

    # --- locks ----------------------------------------------------------------------------

    def lock(self, queues: Sequence[MessageQueue]) -> Steps[set[MessageQueue]]:
        """Take or keep the locks of queues of one broker; returns those that the client has now."""
        body = self._lock_request(queues)
        answer = yield from self._ask(queues[0], RequestCode.LOCK_BATCH_MQ, Fields(), body=body)
        try:
            return set(msgspec.json.decode(answer.body, type=LockAnswer).lock_ok_mq_set)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadFields(f"answer to a lock: {error}") from error

    def unlock(self, queues: Sequence[MessageQueue]) -> Steps[None]:
        """Give the locks of queues of one broker back."""
        body = self._lock_request(queues)
        yield from self._ask(queues[0], RequestCode.UNLOCK_BATCH_MQ, Fields(), body=body)

    def _lock_request(self, queues: Sequence[MessageQueue]) -> bytes:
        return encode_json(
            LockRequest(consumer_group=self.group, client_id=self.client_id, mq_set=list(queues))
        )

    # --- attempts -------------------------------------------------------------------------

    def _ask(
        self,
        queue: MessageQueue,
        code: int,
        fields: Fields,
        *,
        body: bytes = b"",
        seconds: float | None = None,
        good: Sequence[int] = (ResponseCode.SUCCESS,),
        until: Signal | None = None,
    ) -> Steps[Command]:
        route = yield from self.routes.get(queue.topic)
        address = master_of(route, queue.broker_name)
        if address is None:
            raise CallFailed(f"broker {queue.broker_name} has no master")
        call = Call(
            address=address,
            code=code,
            fields=write_fields(fields),
            body=body,
            seconds=self.settings.call_seconds if seconds is None else seconds,
            until=until,
        )
        return (yield from ask(call, good))
