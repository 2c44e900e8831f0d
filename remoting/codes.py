"""The numbers of the protocol. Only those in use are named; any other number is still legal."""

from __future__ import annotations

import enum
from typing import Final


class RequestCode(enum.IntEnum):
    """What a request asks for."""

    PULL_MESSAGE = 11
    QUERY_CONSUMER_OFFSET = 14
    UPDATE_CONSUMER_OFFSET = 15
    GET_MAX_OFFSET = 30
    GET_MIN_OFFSET = 31
    GET_ROUTE = 105
    GET_ALL_TOPICS = 206
    LITE_PULL_MESSAGE = 361


class ResponseCode(enum.IntEnum):
    """What a response says."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    SERVICE_NOT_AVAILABLE = 14
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    INVALID_PARAMETER = 29


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
PULL_CLASS_FILTER: Final = 8
PULL_LITE: Final = 16

PERMISSION_READ: Final = 4
PERMISSION_WRITE: Final = 2
