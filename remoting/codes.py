"""The numbers of the protocol. Only those in use are named; any other number is still legal."""

from __future__ import annotations

import enum
from typing import Final


class RequestCode(enum.IntEnum):
    """What a request asks for."""

    SEND_MESSAGE = 10
    PULL_MESSAGE = 11
    QUERY_MESSAGE = 12
    QUERY_CONSUMER_OFFSET = 14
    UPDATE_CONSUMER_OFFSET = 15
    CREATE_TOPIC = 17
    GET_TOPIC_CONFIGS = 21
    GET_BROKER_CONFIG = 26
    GET_BROKER_RUNTIME = 28
    SEARCH_OFFSET = 29
    GET_MAX_OFFSET = 30
    GET_MIN_OFFSET = 31
    GET_EARLIEST_TIME = 32
    VIEW_MESSAGE = 33
    HEART_BEAT = 34
    UNREGISTER_CLIENT = 35
    CONSUMER_SEND_BACK = 36
    END_TRANSACTION = 37
    GET_CONSUMER_LIST = 38
    CHECK_TRANSACTION_STATE = 39
    """Asked by a broker of a producer."""
    NOTIFY_CONSUMERS_CHANGED = 40
    """Told by a broker to the consumers of a group."""
    LOCK_BATCH_MQ = 41
    UNLOCK_BATCH_MQ = 42
    CHECK_CLIENT_CONFIG = 46
    PUT_KV_CONFIG = 100
    GET_KV_CONFIG = 101
    DELETE_KV_CONFIG = 102
    REGISTER_BROKER = 103
    UNREGISTER_BROKER = 104
    GET_ROUTE = 105
    GET_BROKER_CLUSTER_INFO = 106
    CREATE_GROUP = 200
    GET_GROUP_CONFIGS = 201
    GET_TOPIC_STATS = 202
    GET_CONSUMER_CONNECTIONS = 203
    GET_PRODUCER_CONNECTIONS = 204
    WIPE_WRITE_PERMISSION = 205
    GET_ALL_TOPICS = 206
    DELETE_GROUP = 207
    GET_CONSUME_STATS = 208
    DELETE_TOPIC = 215
    DELETE_TOPIC_IN_NAME_SERVER = 216
    GET_KV_LIST = 219
    RESET_OFFSETS = 222
    GET_TOPICS_BY_CLUSTER = 224
    GET_GROUPS_OF_TOPIC = 300
    GET_SYSTEM_TOPICS = 304
    SEND_MESSAGE_V2 = 310
    SEND_BATCH_MESSAGE = 320
    QUERY_DATA_VERSION = 322
    ADD_WRITE_PERMISSION = 327
    GET_TOPICS_OF_GROUP = 343
    GET_TOPIC_CONFIG = 351
    GET_GROUP_CONFIG = 352
    LITE_PULL_MESSAGE = 361
    GET_BROKER_MEMBER_GROUP = 901
    BROKER_HEARTBEAT = 904


class ResponseCode(enum.IntEnum):
    """What a response says."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    FLUSH_DISK_TIMEOUT = 10
    """Stored, as 11 and 12: only not as safely as the broker was asked to."""
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    GROUP_NOT_EXIST = 26
    INVALID_PARAMETER = 29
    NO_BUYER_ID = 204
    NOT_IN_CURRENT_UNIT = 205
    CONSUMER_NOT_ONLINE = 206
    GO_AWAY = 1500


class SerializeType(enum.IntEnum):
    """How the header of a frame is written. A response uses its request's."""

    JSON = 0
    ROCKETMQ = 1


LANGUAGES: Final = (
    "JAVA",
    "CPP",
    "DOTNET",
    "PYTHON",
    "DELPHI",
    "ERLANG",
    "RUBY",
    "OTHER",
    "HTTP",
    "GO",
    "PHP",
    "OMS",
    "RUST",
    "NODE_JS",
)
"""The index is the byte in a binary header."""

OUR_LANGUAGE: Final = "PYTHON"
OUR_VERSION: Final = 479
"""5.3.3. Java keeps the version that a broker answers with, and below 232 it refuses SQL
subscriptions."""

FLAG_RESPONSE: Final = 1
FLAG_ONEWAY: Final = 2

# Bits of a pull request's sysFlag.
PULL_COMMIT_OFFSET: Final = 1
PULL_SUSPEND: Final = 2
PULL_SUBSCRIPTION: Final = 4

PERMISSION_READ: Final = 4
PERMISSION_WRITE: Final = 2
PERMISSION_INHERIT: Final = 1
"""What RocketMQ gives names that are no topics for clients."""

MASTER_ID: Final = 0
"""The id of a broker group's master; slaves have others."""
