"""The narrow waist between gateways and engine.

A gateway knows sockets and one protocol; the engine knows topics, queues and the log. This package
is all that they know of each other: the operations that gateways call, by what they are about
(`BrokerPort` and its parts, `Session`, `QueueConsumer`), and the events that they get back
(`SessionLink`, `Consumer`, callbacks).

Each operation stands in one protocol here and is done by one class of the broker, which implements
that protocol: `port.queues.declare(...)` is `NamedQueues.declare` where everybody may do
everything (`open_port.py`), and `PermittedQueues.declare`, which asks for the right first, where
there are users (`admission/permitted_port.py`).

Rules for both sides:

* Everything here runs on one thread, the loop's. Nothing blocks; what needs the disk answers
  through a callback.
* Operations that change state take effect in memory at once and return a `Position`. What the
  gateway answers waits for it: `when_committed(position, callback)`. Callbacks run in order of
  position, so answers on one connection keep their order if all go this way.
* A publish is a run of rows of a `Batch` with one `Template`. The buffer under the batch is only
  read during the call.
* A delivery is a run of commit-log records in memory (`RecordRun`), never an object per message.
  Its memory is valid during the call; who needs the bytes later copies them (encoding does).
* Offsets within one delivery are consecutive: message `k` of it has `first_offset + k`.
"""

from __future__ import annotations

from polymq.broker.bounded_cache import BoundedCache
from polymq.broker.durability import APPENDED, FLUSHED, IN_SYNC, Durability
from polymq.broker.errors import (
    BrokerError,
    Reason,
    Refused,
    StorageFailed,
    Unanswered,
    WrongAcknowledgement,
)
from polymq.broker.messages.amqp_content import (
    AMQP_PROPERTY,
    CLOUD_EVENT_PREFIXES,
    AmqpContent,
    read_amqp_content,
)
from polymq.broker.messages.copies import COPIES_PROPERTY, Copies
from polymq.broker.messages.dead_letter_history import DEATH_PROPERTY, History, history_of
from polymq.broker.messages.kernels.record_run import RecordRun
from polymq.broker.messages.long_properties import (
    LONG_CONSTANT,
    in_front,
    size_in_front,
    without_long,
)
from polymq.broker.messages.message import Delivery, Message
from polymq.broker.messages.mqtt_properties import (
    CORRELATION_BASE64,
    MQTT5_PROPERTY,
    PAYLOAD_FORMAT_NAME,
    MqttContent,
    correlation_text,
    expiry_seconds_left,
    mqtt_block,
    read_mqtt_content,
    reply_address,
    unique_user_properties,
)
from polymq.broker.messages.record_header import ADDED_BY_CLIENTS, header_property
from polymq.broker.messages.runs import RunMeta, TakesApart
from polymq.broker.messages.time_to_live import TTL_PROPERTY, ttl_property
from polymq.broker.messages.unacked import Unacked
from polymq.broker.names import (
    CONTROL_TOPIC,
    EXCHANGE_PROPERTY,
    ROOT_EXCHANGE,
    SERVER_TOPICS,
    SYS_TOPIC,
    decode_name,
    display_name,
    encode_name,
    exchange_and_key,
    parse_display_name,
)
from polymq.broker.port.broker import BrokerPort, WhenCommitted
from polymq.broker.port.connections import ConnectedClient
from polymq.broker.port.delays import DelayPort
from polymq.broker.port.documents import DocumentPort
from polymq.broker.port.exchanges import ExchangePort
from polymq.broker.port.groups import GroupInfo, GroupPort
from polymq.broker.port.infos import ExchangeInfo, QueueInfo, TopicInfo
from polymq.broker.port.principals import (
    LOGIN_EXPIRED,
    RIGHTS_UNKNOWN,
    AdmissionPort,
    AskedAs,
    LoginExchange,
    Origin,
    PrincipalPort,
)
from polymq.broker.port.publishing import Placed, Publish, Publishing, Route, Template
from polymq.broker.port.queries import QueryPort
from polymq.broker.port.queues import Consumer, QueueConsumer, QueuePort, Settlement
from polymq.broker.port.sessions import (
    PUBLISHER_PROPERTY,
    Session,
    SessionLink,
    SessionPort,
    SubscriptionOptions,
    Will,
)
from polymq.broker.port.storage import StoragePort
from polymq.broker.port.topics import TopicPort
from polymq.broker.port.transactions import HalfMessage, HalfMessagePort, Prepared, TransactionPort
from polymq.broker.port.values import (
    ONE_LEVEL,
    REST,
    Address,
    Position,
    is_shared,
    pattern_of,
    share_name_of,
    shared_address,
)

__all__ = [
    "ADDED_BY_CLIENTS",
    "AMQP_PROPERTY",
    "APPENDED",
    "CLOUD_EVENT_PREFIXES",
    "CONTROL_TOPIC",
    "COPIES_PROPERTY",
    "CORRELATION_BASE64",
    "DEATH_PROPERTY",
    "EXCHANGE_PROPERTY",
    "FLUSHED",
    "IN_SYNC",
    "LOGIN_EXPIRED",
    "LONG_CONSTANT",
    "MQTT5_PROPERTY",
    "ONE_LEVEL",
    "PAYLOAD_FORMAT_NAME",
    "PUBLISHER_PROPERTY",
    "REST",
    "RIGHTS_UNKNOWN",
    "ROOT_EXCHANGE",
    "SERVER_TOPICS",
    "SYS_TOPIC",
    "TTL_PROPERTY",
    "Address",
    "AdmissionPort",
    "AmqpContent",
    "AskedAs",
    "BoundedCache",
    "BrokerError",
    "BrokerPort",
    "ConnectedClient",
    "Consumer",
    "Copies",
    "DelayPort",
    "Delivery",
    "DocumentPort",
    "Durability",
    "ExchangeInfo",
    "ExchangePort",
    "GroupInfo",
    "GroupPort",
    "HalfMessage",
    "HalfMessagePort",
    "History",
    "LoginExchange",
    "Message",
    "MqttContent",
    "Origin",
    "Placed",
    "Position",
    "Prepared",
    "PrincipalPort",
    "Publish",
    "Publishing",
    "QueryPort",
    "QueueConsumer",
    "QueueInfo",
    "QueuePort",
    "Reason",
    "RecordRun",
    "Refused",
    "Route",
    "RunMeta",
    "Session",
    "SessionLink",
    "SessionPort",
    "Settlement",
    "StorageFailed",
    "StoragePort",
    "SubscriptionOptions",
    "TakesApart",
    "Template",
    "TopicInfo",
    "TopicPort",
    "TransactionPort",
    "Unacked",
    "Unanswered",
    "WhenCommitted",
    "Will",
    "WrongAcknowledgement",
    "correlation_text",
    "decode_name",
    "display_name",
    "encode_name",
    "exchange_and_key",
    "expiry_seconds_left",
    "header_property",
    "history_of",
    "in_front",
    "is_shared",
    "mqtt_block",
    "parse_display_name",
    "pattern_of",
    "read_amqp_content",
    "read_mqtt_content",
    "reply_address",
    "share_name_of",
    "shared_address",
    "size_in_front",
    "ttl_property",
    "unique_user_properties",
    "without_long",
]
