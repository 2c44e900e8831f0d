"""RocketMQ's words for what the engine says. The only file that knows both vocabularies.

Theory of a pull. The engine's offsets of a queue reach from `min` (retention moves it) to `max`
(one past what is flushed). Where the asked offset lies decides the answer:

    offset < min         21 OFFSET_MOVED, next = min        what was there is gone
    min <= offset < max   0 SUCCESS with records
    offset == max        19 NOT_FOUND, next = max           nothing new; may be held
    offset > max         21 OFFSET_MOVED, next = max        the reader knows what we do not have

All four carry min, max, next and a broker id, because Java clients need them on every one. 20
RETRY_IMMEDIATELY says that a filter on tags passed over everything up to next; it also covers the
moment in which retention overtook a read that had begun.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from polymq.broker.port import (
    REST,
    BrokerPort,
    Reason,
    Refused,
    TopicInfo,
    decode_name,
    display_name,
    encode_name,
    parse_display_name,
)
from polymq.core_log.kernels.batch import RECORD_STORE_MS_AT
from polymq.gateways.rocketmq.foreign_messages import as_rocketmq
from polymq.remoting.bodies import BrokerData, QueueData, TopicList, TopicRoute, encode_body
from polymq.remoting.broker_fields import CommitFields, GroupOffsetFields, SendAnswer
from polymq.remoting.codes import (
    PERMISSION_READ,
    PERMISSION_WRITE,
    PULL_SUSPEND,
    RequestCode,
    ResponseCode,
)
from polymq.remoting.headers import (
    Fields,
    OffsetAnswer,
    PullAnswer,
    PullFields,
    QueueFields,
    RouteAnswer,
    TopicFields,
    write_fields,
)

MASTER_ID: Final = 0
AUTO_TOPIC: Final = "TBW102"
"""Producers ask for its route when a topic is not there yet: what they find there, the topic that
their first message makes will have."""
AUTO_QUEUES: Final = 8
TAG_EXPRESSION: Final = "TAG"
ALL_TAGS: Final = "*"
RETRY_PREFIX: Final = "%RETRY%"
DEAD_LETTER_PREFIX: Final = "%DLQ%"
IDS_MAX: Final = 4_096
"""Message ids of one answer: half of what the header of a frame has room for."""
NO_OFFSET: Final = "Not found, maybe this group consumer boot first"
GROUP_BYTES_MAX: Final = 255
_GROUP: Final = re.compile(r"[%|a-zA-Z0-9_-]+")
_STORE_MS: Final = struct.Struct(">q")
TOPIC_PERMISSION: Final = PERMISSION_READ | PERMISSION_WRITE

CODES: Final = {
    Reason.NOT_FOUND: ResponseCode.TOPIC_NOT_EXIST,
    Reason.DIFFERENT: ResponseCode.INVALID_PARAMETER,
    Reason.LOCKED: ResponseCode.NO_PERMISSION,
    Reason.IN_USE: ResponseCode.SYSTEM_ERROR,
    Reason.NOT_EMPTY: ResponseCode.SYSTEM_ERROR,
    Reason.FORBIDDEN: ResponseCode.NO_PERMISSION,
    Reason.NOT_AUTHENTICATED: ResponseCode.NO_PERMISSION,
    Reason.BAD_NAME: ResponseCode.INVALID_PARAMETER,
    Reason.BAD_ARGUMENT: ResponseCode.INVALID_PARAMETER,
    Reason.TOO_LARGE: ResponseCode.INVALID_PARAMETER,
    Reason.LIMIT: ResponseCode.SYSTEM_BUSY,
    Reason.BANNED: ResponseCode.NO_PERMISSION,
    Reason.RATE: ResponseCode.SYSTEM_BUSY,
    Reason.UNDECIDED: ResponseCode.SYSTEM_BUSY,
    Reason.READ_ONLY: ResponseCode.SERVICE_NOT_AVAILABLE,
    Reason.STORAGE_FULL: ResponseCode.SYSTEM_BUSY,
}
"""Why the engine refuses, as RocketMQ says it. Its clients try another broker on 2, 14, 16, 17."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What this broker is called in routes."""

    cluster: str
    broker_name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What goes back: a code, `extFields`, a body."""

    code: int
    fields: dict[str, str]
    body: bytes = b""
    remark: str | None = None
    has_records: bool = False


def find_topic(
    port: BrokerPort, topic: str, user_topic: str | None, *, to_read: bool = True
) -> TopicInfo | None:
    """The topic of a request: its display name if the client sent that, else its stored name.

    Args:
        to_read: otherwise it is enough to publish something in it.

    Raises:
        Refused: FORBIDDEN, the client may not; whether the topic exists is not said then.
    """
    name = None if user_topic is None else parse_display_name(user_topic)
    if name is None:
        try:
            name = decode_name(topic)
        except ValueError:  # a hashed name, or one that was not encoded: look through all
            infos = port.topics.infos()
            return next((info for info in infos if encode_name(info.name) == topic), None)
    if to_read:
        port.principal.check_read((name, REST))
    else:
        port.principal.check_known(name)
    return port.topics.info(name)


def refused(error: Refused) -> Answer:
    """The engine's refusal."""
    return failed(CODES[error.reason], error.text)


def success(fields: Fields | None = None, *, body: bytes = b"") -> Answer:
    """An answer that all is well."""
    written = {} if fields is None else write_fields(fields)
    return Answer(code=ResponseCode.SUCCESS, fields=written, body=body)


def failed(code: ResponseCode, remark: str) -> Answer:
    """An error answer."""
    return Answer(code=code, fields={}, remark=remark)


def unsupported(code: int) -> Answer:
    """What RocketMQ's brokers answer to a code that they do not know, word for word."""
    return failed(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f" request type {code} not supported")


def no_such_topic(topic: str) -> Answer:
    """The topic does not exist (any more)."""
    return failed(ResponseCode.TOPIC_NOT_EXIST, f"No topic route info for the topic: {topic}")


def no_such_queue(info: TopicInfo, queue_id: int) -> Answer:
    """The topic has fewer queues."""
    count = len(info.max_offsets)
    return failed(
        ResponseCode.INVALID_PARAMETER,
        f"queueId[{queue_id}] is illegal, topic {encode_name(info.name)} has {count}",
    )


def topic_list(port: BrokerPort) -> Answer:
    """Answer to GET_ALL_TOPICS."""
    names = [info.name for info in port.topics.infos()]
    body = TopicList(
        topic_list=[encode_name(name) for name in names],
        pmq_topic_list=[display_name(name) if _is_unicode(name) else None for name in names],
    )
    return Answer(code=ResponseCode.SUCCESS, fields={}, body=encode_body(body))


def _is_unicode(name: str) -> bool:
    """Whether it can travel in JSON: AMQP names may be any bytes."""
    return not any("\ud800" <= character <= "\udfff" for character in name)


def route(port: BrokerPort, fields: TopicFields, identity: Identity, address: str) -> Answer:
    """Answer to GET_ROUTE: this broker, at the address that it is known by; for who may read or
    publish anything in the topic. Raises Refused: FORBIDDEN."""
    if fields.topic == AUTO_TOPIC:
        count, incarnation = AUTO_QUEUES, None
    else:
        info = find_topic(port, fields.topic, fields.user_topic, to_read=False)
        if info is not None:
            count, incarnation = len(info.max_offsets), info.incarnation
        elif fields.topic.startswith(RETRY_PREFIX):
            # Consumers ask for it before the heartbeat that makes it.
            count, incarnation = 1, None
        else:
            return no_such_topic(fields.topic)
    body = TopicRoute(
        broker_datas=[
            BrokerData(
                cluster=identity.cluster,
                broker_name=identity.broker_name,
                broker_addrs={str(MASTER_ID): address},
            )
        ],
        queue_datas=[
            QueueData(
                broker_name=identity.broker_name,
                read_queue_nums=count,
                write_queue_nums=count,
                perm=TOPIC_PERMISSION,
            )
        ],
    )
    return Answer(
        code=ResponseCode.SUCCESS,
        fields=write_fields(RouteAnswer(incarnation=incarnation)),
        body=encode_body(body),
    )


def offset(port: BrokerPort, code: int, fields: QueueFields) -> Answer:
    """Answer to GET_MIN_OFFSET and GET_MAX_OFFSET."""
    info = find_topic(port, fields.topic, fields.user_topic)
    if info is None:
        return no_such_topic(fields.topic)
    if not 0 <= fields.queue_id < len(info.max_offsets):
        return no_such_queue(info, fields.queue_id)
    offsets = info.max_offsets if code == RequestCode.GET_MAX_OFFSET else info.min_offsets
    answer = OffsetAnswer(offset=offsets[fields.queue_id], incarnation=info.incarnation)
    return Answer(code=ResponseCode.SUCCESS, fields=write_fields(answer))


def pull_code(info: TopicInfo, queue_id: int, offset: int) -> ResponseCode:
    """What the place of an offset says about a pull (the table at the head of this file)."""
    if offset == info.max_offsets[queue_id]:
        return ResponseCode.PULL_NOT_FOUND
    if info.min_offsets[queue_id] <= offset < info.max_offsets[queue_id]:
        return ResponseCode.SUCCESS
    return ResponseCode.PULL_OFFSET_MOVED


def pull_answer(
    info: TopicInfo,
    fields: PullFields,
    code: ResponseCode,
    *,
    records: bytes = b"",
    next_offset: int | None = None,
) -> Answer:
    """An answer to a pull with its four numbers; `next_offset` defaults to the nearest legal."""
    low, high = info.min_offsets[fields.queue_id], info.max_offsets[fields.queue_id]
    if next_offset is None:
        next_offset = min(max(fields.queue_offset, low), high)
    answer = PullAnswer(
        broker_id=MASTER_ID,
        next_offset=next_offset,
        min_offset=low,
        max_offset=high,
        incarnation=info.incarnation,
    )
    return Answer(code=code, fields=write_fields(answer), body=records, has_records=True)


def tags_of(expression_type: str | None, expression: str | None) -> frozenset[str] | None:
    """The tags that a subscription asks for; None for all messages.

    Raises:
        Refused: BAD_ARGUMENT, the expression is of another kind than tags.
    """
    if expression_type not in (None, "", TAG_EXPRESSION):
        raise Refused(
            Reason.BAD_ARGUMENT,
            f"this broker filters by tags only, not by {expression_type}: subscribe with 'A || B'",
        )
    if expression is None or expression.strip() in ("", ALL_TAGS):
        return None
    tags = frozenset(tag.strip() for tag in expression.split("||")) - {""}
    return tags or None


def may_wait(fields: PullFields) -> bool:
    """Whether the client lets us wait for records."""
    return bool(fields.system_flag & PULL_SUSPEND) and fields.suspend_ms > 0


# --- producing --------------------------------------------------------------------------------


def message_id(host: bytes, position: int) -> str:
    """RocketMQ's id of a stored message: in hex the host as records have it, and its place."""
    return (host + position.to_bytes(8)).hex().upper()


def send_answer(
    port: BrokerPort,
    queue_id: int,
    offset: int,
    positions: Sequence[int],
    transaction_id: str | None = None,
) -> Answer:
    """Answer to a send that was stored; of a long batch with the ids of its first messages.

    Args:
        transaction_id: the id that the producer gave the message.
    """
    host = port.queries.store_host
    ids = ",".join([message_id(host, position) for position in positions[:IDS_MAX]])
    return success(
        SendAnswer(
            msg_id=ids, queue_id=queue_id, queue_offset=offset, transaction_id=transaction_id
        )
    )


# --- groups -----------------------------------------------------------------------------------


def check_group(name: str) -> None:
    """Raises Refused: BAD_NAME, RocketMQ's clients could not have made it."""
    if len(name) > GROUP_BYTES_MAX or _GROUP.fullmatch(name) is None:
        raise Refused(
            Reason.BAD_NAME,
            f"{name!r} is not the name of a group: 1 to {GROUP_BYTES_MAX} of % | a-z A-Z 0-9 _ -",
        )


def group_offset(port: BrokerPort, fields: GroupOffsetFields) -> Answer:
    """Answer to QUERY_CONSUMER_OFFSET.

    A group that has committed nothing begins at 0 where the queue still does, as in RocketMQ;
    otherwise the client decides (its `consumeFromWhere`).
    """
    info = find_topic(port, fields.topic, None)
    if info is None or not 0 <= fields.queue_id < len(info.min_offsets):
        return failed(
            ResponseCode.QUERY_NOT_FOUND, "Not found, maybe this group consumer boot first"
        )
    found = port.groups.offset(fields.consumer_group, info.name, fields.queue_id)
    if found is None:
        zero = fields.set_zero_if_not_found is not False
        if not zero or info.min_offsets[fields.queue_id] > 0:
            return failed(ResponseCode.QUERY_NOT_FOUND, NO_OFFSET)
        found = 0
    return success(OffsetAnswer(offset=found))


def commit(port: BrokerPort, fields: CommitFields) -> Answer:
    """Answer to UPDATE_CONSUMER_OFFSET."""
    if port.groups.info(fields.consumer_group) is None:
        return failed(
            ResponseCode.GROUP_NOT_EXIST,
            f"there is no consumer group {fields.consumer_group!r}: send a heartbeat first",
        )
    info = need_topic(port, fields.topic)
    port.groups.commit(fields.consumer_group, info.name, fields.queue_id, fields.commit_offset)
    return success()


def commit_with_pull(port: BrokerPort, fields: PullFields) -> None:
    """Take the offset that came with a pull. What is wrong with it, the pull will be told."""
    try:
        info = find_topic(port, fields.topic, fields.user_topic)
        if info is not None:
            port.groups.commit(fields.group, info.name, fields.queue_id, fields.commit_offset)
    except Refused:
        pass


# --- looking ----------------------------------------------------------------------------------


def user_name(topic: str) -> str:
    """The user's name of a stored one. Raises Refused: BAD_NAME."""
    try:
        return decode_name(topic)
    except ValueError:
        raise Refused(Reason.BAD_NAME, f"{topic!r} is not the name of a topic here") from None


def need_topic(port: BrokerPort, topic: str, user_topic: str | None = None) -> TopicInfo:
    """The topic of a request. Raises Refused: NOT_FOUND, FORBIDDEN."""
    info = find_topic(port, topic, user_topic)
    if info is None:
        raise Refused(Reason.NOT_FOUND, f"No topic route info for the topic: {topic}")
    return info


def found_offset(offset: int | None) -> Answer:
    """Answer to SEARCH_OFFSET."""
    if offset is None:
        return failed(ResponseCode.SYSTEM_ERROR, "the disk could not be read")
    return success(OffsetAnswer(offset=offset))


def stored_time(record: bytes) -> Answer:
    """Answer to GET_EARLIEST_TIME: -1 for an empty queue."""
    at = RECORD_STORE_MS_AT
    stored = _STORE_MS.unpack_from(record, at)[0] if record else -1
    return Answer(code=ResponseCode.SUCCESS, fields={"timestamp": str(stored)})


def queried(records: bytes | None) -> Answer:
    """Answer to QUERY_MESSAGE."""
    if records is None:
        return failed(ResponseCode.SYSTEM_ERROR, "the disk could not be read")
    fields = {"indexLastUpdateTimestamp": "0", "indexLastUpdatePhyoffset": "0"}
    if not records:
        remark = "cannot find message, maybe time range not correct"
        return Answer(code=ResponseCode.QUERY_NOT_FOUND, fields=fields, remark=remark)
    body = as_rocketmq(records)
    return Answer(code=ResponseCode.SUCCESS, fields=fields, body=body, has_records=True)


def viewed(record: bytes, offset: int) -> Answer:
    """Answer to VIEW_MESSAGE."""
    if not record:
        return failed(ResponseCode.SYSTEM_ERROR, f"cannot find message by the offset, {offset}")
    body = as_rocketmq(record)
    return Answer(code=ResponseCode.SUCCESS, fields={}, body=body, has_records=True)
