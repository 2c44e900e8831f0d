"""What answers each request of a client, pulls excepted: one function for each code.

A handler returns the answer, or None if it comes later (`client.answer_when`). What it raises
becomes an answer too: `Refused` by the engine's reason, `BadFields` and `BadMessage` by their text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, TypeVar

from polymq.broker.port import Reason, Refused
from polymq.gateways.rocketmq import admin, mapping
from polymq.gateways.rocketmq.mapping import RETRY_PREFIX, Answer
from polymq.gateways.rocketmq.messages import (
    PREPARED,
    ROLLED_BACK,
    BadMessage,
    message_of,
    messages_of,
    system_flag_of,
)
from polymq.gateways.rocketmq.protocol import Request
from polymq.gateways.rocketmq.retries import send_back
from polymq.gateways.rocketmq.sending import RECONSUME_MAX, Order
from polymq.gateways.rocketmq.transactions import UNIQUE_KEY, end_transaction
from polymq.remoting.broker_fields import (
    CommitFields,
    GroupFields,
    GroupOffsetFields,
    QueryFields,
    SendFields,
    UnregisterFields,
    ViewFields,
)
from polymq.remoting.codes import RequestCode, ResponseCode
from polymq.remoting.group_bodies import (
    Body,
    ClientCheck,
    ConsumerList,
    Heartbeat,
    LockAnswer,
    LockRequest,
    MessageQueue,
    encode_json,
)
from polymq.remoting.headers import Fields, QueueFields, SearchFields, TopicFields

if TYPE_CHECKING:
    from polymq.gateways.rocketmq.connection import Connection

Handler = Callable[["Connection", Request], Answer | None]
F = TypeVar("F", bound=Fields)


def fields_of(request: Request, kind: type[F]) -> F:
    """The header of a request, which is of the kind that `connection.REQUESTS` has for its code."""
    assert isinstance(request.fields, kind)
    return request.fields


def asked_of(request: Request, kind: type[Body]) -> Body:
    """The body of a request, which the gate has read (`rights.BODIES`)."""
    assert isinstance(request.asked, kind)
    return request.asked


# --- producing --------------------------------------------------------------------------------


def send(client: Connection, request: Request) -> Answer | None:
    """10, 310: one message; 320, or a flag: a batch."""
    fields = fields_of(request, SendFields)
    if fields.batch or request.code == RequestCode.SEND_BATCH_MESSAGE:
        check_batch(fields)
        messages = messages_of(request.body)
    else:
        messages = [message_of(fields.properties, request.body, fields.flag)]
    most = fields.max_reconsume_times
    sender = client.sender
    if fields.topic.startswith(mapping.RETRY_PREFIX):  # a library that gives back by sending
        sender = client.returns(fields.topic.removeprefix(mapping.RETRY_PREFIX))
    stored = sender.store(
        Order(
            topic=fields.topic,
            messages=messages,
            born_ms=fields.born_timestamp,
            queue_id=fields.queue_id,
            queue_count=fields.default_topic_queue_nums,
            system_flag=system_flag_of(fields.sys_flag),
            reconsume=max(fields.reconsume_times, 0),
            reconsume_max=RECONSUME_MAX if most is None else most,
            prepared=fields.sys_flag & ROLLED_BACK == PREPARED,
        )
    )
    client.shared.counts.received += len(messages)
    unique = messages[0].properties.get(UNIQUE_KEY) if len(messages) == 1 else None
    answer = mapping.send_answer(
        client.port, stored.queue_id, stored.offset, stored.positions, unique
    )
    client.answer_when(stored.position, stored.durability, request, answer)
    return None


def check_batch(fields: SendFields) -> None:
    """What RocketMQ's clients do not do with batches either. Raises BadMessage."""
    if fields.sys_flag & ROLLED_BACK:
        raise BadMessage("a batch cannot be part of a transaction: send its messages one by one")
    if fields.topic.startswith(mapping.RETRY_PREFIX):
        raise BadMessage("a batch cannot go to a retry topic: send its messages one by one")


# --- consuming --------------------------------------------------------------------------------


def heart_beat(client: Connection, request: Request) -> Answer:
    """34: a client says what it is. Its groups are made, and each one's topic for retries."""
    beat = asked_of(request, Heartbeat)
    for data in beat.consumer_data_set:
        if client.shared.members.is_others(data.group_name, beat.client_id, client.principal):
            raise Refused(
                Reason.FORBIDDEN,
                f"client {beat.client_id!r} of group {data.group_name!r} is another user's: give "
                "this client another instance name",
            )
        retry = RETRY_PREFIX + data.group_name
        try:
            if client.port.groups.info(data.group_name) is None:
                client.port.groups.put(data.group_name, {})
            if data.message_model != "BROADCASTING" and client.port.topics.info(retry) is None:
                client.port.topics.create(retry, 1)
        except Refused as refused:
            # Who only reads from a slave has to know who else does; the group is the master's.
            if refused.reason is not Reason.READ_ONLY:
                raise
    client.language, client.version = request.language, request.version
    client.client_name = beat.client_id
    now = client.context.now()
    if not client.shared.members.heard(beat, client, now, client.principal):
        raise Refused(Reason.LIMIT, "there are too many members of groups: try another broker")
    return mapping.success()


def check_client(client: Connection, request: Request) -> Answer:
    """46: a consumer that wants more than tags asks before it begins. Raises Refused."""
    asked = asked_of(request, ClientCheck).subscription_data
    mapping.tags_of(asked.expression_type, asked.sub_string)
    return mapping.success()


def unregister(client: Connection, request: Request) -> Answer:
    """35: a client leaves a group."""
    fields = fields_of(request, UnregisterFields)
    client.shared.members.left(
        fields.client_id, client, fields.producer_group, fields.consumer_group
    )
    return mapping.success()


def consumer_list(client: Connection, request: Request) -> Answer:
    """38: the ids of a group's members."""
    group = fields_of(request, GroupFields).consumer_group
    found = client.shared.members.consumers.get(group)
    if found is None:
        return mapping.failed(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {group}")
    return mapping.success(body=encode_json(ConsumerList(consumer_id_list=list(found.members))))


def query_offset(client: Connection, request: Request) -> Answer:
    """14: how far a group has come in a queue."""
    return mapping.group_offset(client.port, fields_of(request, GroupOffsetFields))


def commit_offset(client: Connection, request: Request) -> Answer:
    """15: a group has come so far."""
    fields = fields_of(request, CommitFields)
    return mapping.commit(client.port, fields)


def lock(client: Connection, request: Request) -> Answer:
    """41: a consumer wants to consume queues in order, alone."""
    asked = asked_of(request, LockRequest)
    got = client.shared.locks.lock(
        asked.consumer_group,
        asked.client_id,
        queues_that_exist(client, asked),
        client.context.now(),
        client.principal,
    )
    return mapping.success(body=encode_json(LockAnswer(lock_ok_mq_set=got)))


def unlock(client: Connection, request: Request) -> Answer:
    """42: it gives them back."""
    asked = asked_of(request, LockRequest)
    client.shared.locks.unlock(
        asked.consumer_group, asked.client_id, asked.mq_set, client.principal
    )
    return mapping.success()


def queues_that_exist(client: Connection, asked: LockRequest) -> list[MessageQueue]:
    """The queues that a client wants to lock, without made-up ones: they would fill the table."""
    counts: dict[str, int] = {}
    for topic in {queue.topic for queue in asked.mq_set}:
        info = mapping.find_topic(client.port, topic, None)
        counts[topic] = 0 if info is None else len(info.max_offsets)
    broker = client.shared.identity.broker_name
    return [
        queue
        for queue in asked.mq_set
        if 0 <= queue.queue_id < counts[queue.topic] and queue.broker_name == broker
    ]


# --- looking ----------------------------------------------------------------------------------


def offset(client: Connection, request: Request) -> Answer:
    """30, 31: the bounds of a queue."""
    return mapping.offset(client.port, request.code, fields_of(request, QueueFields))


def search_offset(client: Connection, request: Request) -> Answer | None:
    """29: the offset by a time."""
    fields = fields_of(request, SearchFields)
    info = mapping.need_topic(client.port, fields.topic, fields.user_topic)
    client.port.queries.by_time(
        info.name,
        fields.queue_id,
        fields.timestamp,
        lambda found: client.answer_later(request, mapping.found_offset(found)),
    )
    return None


def earliest_time(client: Connection, request: Request) -> Answer | None:
    """32: when the oldest message of a queue was stored."""
    fields = fields_of(request, QueueFields)
    info = mapping.need_topic(client.port, fields.topic)
    if not 0 <= fields.queue_id < len(info.max_offsets):
        return mapping.no_such_queue(info, fields.queue_id)
    client.port.queries.pull(
        info.name,
        fields.queue_id,
        info.min_offsets[fields.queue_id],
        count_max=1,
        bytes_max=1,
        callback=lambda records, _: client.answer_later(request, mapping.stored_time(records)),
    )
    return None


def query_message(client: Connection, request: Request) -> Answer | None:
    """12: messages by key."""
    fields = fields_of(request, QueryFields)
    info = mapping.need_topic(client.port, fields.topic)
    client.port.queries.by_key(
        info.name,
        fields.key,
        count_max=max(fields.max_num, 1),
        begin_ms=fields.begin_timestamp,
        end_ms=fields.end_timestamp,
        callback=lambda records: client.answer_later(request, mapping.queried(records)),
    )
    return None


def view_message(client: Connection, request: Request) -> Answer | None:
    """33: the message that an id names."""
    fields = fields_of(request, ViewFields)
    client.port.queries.by_position(
        fields.offset,
        lambda _, record: client.answer_later(request, mapping.viewed(record, fields.offset)),
    )
    return None


def route(client: Connection, request: Request) -> Answer:
    """105: where a topic lives."""
    fields = fields_of(request, TopicFields)
    return mapping.route(client.port, fields, client.shared.identity, client.own_address)


def topics(client: Connection, request: Request) -> Answer:
    """206: all topics."""
    return mapping.topic_list(client.port)


HANDLERS: Final[Mapping[RequestCode, Handler]] = {
    RequestCode.SEND_MESSAGE: send,
    RequestCode.SEND_MESSAGE_V2: send,
    RequestCode.SEND_BATCH_MESSAGE: send,
    RequestCode.CONSUMER_SEND_BACK: send_back,
    RequestCode.END_TRANSACTION: end_transaction,
    RequestCode.QUERY_MESSAGE: query_message,
    RequestCode.VIEW_MESSAGE: view_message,
    RequestCode.QUERY_CONSUMER_OFFSET: query_offset,
    RequestCode.UPDATE_CONSUMER_OFFSET: commit_offset,
    RequestCode.SEARCH_OFFSET: search_offset,
    RequestCode.GET_MAX_OFFSET: offset,
    RequestCode.GET_MIN_OFFSET: offset,
    RequestCode.GET_EARLIEST_TIME: earliest_time,
    RequestCode.HEART_BEAT: heart_beat,
    RequestCode.CHECK_CLIENT_CONFIG: check_client,
    RequestCode.UNREGISTER_CLIENT: unregister,
    RequestCode.GET_CONSUMER_LIST: consumer_list,
    RequestCode.LOCK_BATCH_MQ: lock,
    RequestCode.UNLOCK_BATCH_MQ: unlock,
    RequestCode.GET_ROUTE: route,
    RequestCode.GET_ALL_TOPICS: topics,
    **admin.HANDLERS,
}
