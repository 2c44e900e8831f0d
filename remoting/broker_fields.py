"""The typed headers of what producers and consumers ask of a broker, beyond pulling.

They work as those of `headers.py`. Names on the wire are camel case, but for the short form of a
send request (310, 320), whose fields are letters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from polymq.remoting.headers import Fields, Int, Long

_LONG_NAMES: Final = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "k": "unitMode",
    "l": "maxReconsumeTimes",
    "m": "batch",
    "n": "brokerName",
}

SHORT_FIELDS: Final = frozenset(_LONG_NAMES)
"""Names of the fields of 310 SEND_MESSAGE_V2 and 320 SEND_BATCH_MESSAGE."""
_SHORT_NAMES: Final = {long: short for short, long in _LONG_NAMES.items()}


def long_names(fields: Mapping[str, str]) -> dict[str, str]:
    """The fields of 310 SEND_MESSAGE_V2 and 320 SEND_BATCH_MESSAGE under the names of 10."""
    return {_LONG_NAMES.get(name, name): value for name, value in fields.items()}


def short_names(fields: Mapping[str, str]) -> dict[str, str]:
    """The fields of 10 SEND_MESSAGE under the names of 310 and 320."""
    return {_SHORT_NAMES.get(name, name): value for name, value in fields.items()}


class SendFields(Fields, frozen=True, kw_only=True, rename="camel"):
    """10 SEND_MESSAGE; 310 and 320 under shorter names (`long_names`).

    Attributes:
        queue_id: negative: the broker chooses.
        properties: `name 0x01 value 0x02`, repeated.
        max_reconsume_times: of the group, for what is sent to its retry topic.
    """

    producer_group: str = ""
    topic: str
    default_topic: str = ""
    default_topic_queue_nums: Int = 4
    queue_id: Int
    sys_flag: Int = 0
    born_timestamp: Long = 0
    flag: Int = 0
    properties: str = ""
    reconsume_times: Int = 0
    unit_mode: bool = False
    max_reconsume_times: Int | None = None
    batch: bool = False
    broker_name: str | None = None


class SendAnswer(Fields, frozen=True, kw_only=True, rename="camel"):
    """What a send is answered with, if it was stored.

    Attributes:
        msg_id: the ids of the places in the log, joined by commas: producers of transactions
            decode the position out of it.
    """

    msg_id: str
    queue_id: Int
    queue_offset: Long
    transaction_id: str | None = None
    region: str = msgspec.field(default="DefaultRegion", name="MSG_REGION")
    trace_on: str = msgspec.field(default="true", name="TRACE_ON")


class EndTransactionFields(Fields, frozen=True, kw_only=True, rename="camel"):
    """37 END_TRANSACTION: `commit_or_rollback` is 8, 12, or 0 for not yet known."""

    producer_group: str
    tran_state_table_offset: Long
    commit_log_offset: Long
    commit_or_rollback: Int
    from_transaction_check: bool = False
    msg_id: str | None = None
    transaction_id: str | None = None


class GroupFields(Fields, frozen=True, kw_only=True, rename="camel"):
    """38 GET_CONSUMER_LIST, and 40 NOTIFY_CONSUMERS_CHANGED to the members."""

    consumer_group: str


class ProducerGroupFields(Fields, frozen=True, kw_only=True, rename="camel"):
    """204 GET_PRODUCER_CONNECTIONS."""

    producer_group: str


class UnregisterFields(Fields, frozen=True, kw_only=True, rename="camel"):
    """35 UNREGISTER_CLIENT."""

    client_id: str = msgspec.field(name="clientID")
    producer_group: str | None = None
    consumer_group: str | None = None


class GroupOffsetFields(Fields, frozen=True, kw_only=True, rename="camel"):
    """14 QUERY_CONSUMER_OFFSET.

    Attributes:
        set_zero_if_not_found: false: a group without an offset is told so, whatever there is.
    """

    consumer_group: str
    topic: str
    queue_id: Int
    set_zero_if_not_found: bool | None = None


class CommitFields(Fields, frozen=True, kw_only=True, rename="camel"):
    """15 UPDATE_CONSUMER_OFFSET."""

    consumer_group: str
    topic: str
    queue_id: Int
    commit_offset: Long


class SendBackFields(Fields, frozen=True, kw_only=True, rename="camel"):
    """36 CONSUMER_SEND_MSG_BACK.

    Attributes:
        offset: the byte position of the message.
        delay_level: 0: by how often it was consumed; negative: dead letter at once.
    """

    offset: Long
    group: str
    delay_level: Int = 0
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool = False
    max_reconsume_times: Int | None = None


class QueryFields(Fields, frozen=True, kw_only=True, rename="camel"):
    """12 QUERY_MESSAGE."""

    topic: str
    key: str
    max_num: Int
    begin_timestamp: Long
    end_timestamp: Long
    unique_key: str | None = msgspec.field(default=None, name="_UNIQUE_KEY_QUERY")


class ViewFields(Fields, frozen=True, kw_only=True, rename="camel"):
    """33 VIEW_MESSAGE_BY_ID: by the byte position that the id names."""

    offset: Long
    topic: str | None = None


class CreateTopicFields(Fields, frozen=True, kw_only=True, rename="camel"):
    """17 UPDATE_AND_CREATE_TOPIC."""

    topic: str
    default_topic: str | None = None
    read_queue_nums: Int
    write_queue_nums: Int
    perm: Int = 6
    topic_filter_type: str | None = None
    topic_sys_flag: Int = 0
    order: bool = False
    attributes: str | None = None


class DeleteGroupFields(Fields, frozen=True, kw_only=True, rename="camel"):
    """207 DELETE_SUBSCRIPTION_GROUP."""

    group_name: str
    clean_offset: bool = False


class GroupTopicFields(Fields, frozen=True, kw_only=True, rename="camel"):
    """208 GET_CONSUME_STATS; without a topic: of all that the group reads."""

    consumer_group: str
    topic: str | None = None


class GroupConfigFields(Fields, frozen=True, kw_only=True, rename="camel"):
    """352 GET_SUBSCRIPTIONGROUP_CONFIG; 343 GET_TOPICS_BY_CONSUMER."""

    group: str


class ResetFields(Fields, frozen=True, kw_only=True, rename="camel"):
    """222 INVOKE_BROKER_TO_RESET_OFFSET.

    Attributes:
        timestamp: in ms; -1 for the end.
        is_force: also forward, beyond where the group is.
        queue_id: negative: all queues.
        offset: instead of the time.
    """

    topic: str
    group: str
    timestamp: Long = -1
    is_force: bool = False
    queue_id: Int = -1
    offset: Long | None = None


class CheckFields(Fields, frozen=True, kw_only=True, rename="camel"):
    """39 CHECK_TRANSACTION_STATE, to a producer; the body is the message as a record. RocketMQ's
    brokers may leave out everything but the two offsets."""

    topic: str | None = None
    tran_state_table_offset: Long
    commit_log_offset: Long
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    broker_name: str | None = msgspec.field(default=None, name="bname")
