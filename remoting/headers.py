"""The typed headers: what `extFields` means for each code.

A header is a frozen value whose attributes have names of ours and travel under the wire's names.
`read_fields` and `write_fields` are the only way between the two. Text becomes numbers and truth
values here; a field that is missing or no number is a `BadFields` that names it.

The fields whose wire name begins with `pmq` are PolyMQ's own. Other clients ignore them:

* `pmqTopic`: in a request, the topic as its user writes it, where RocketMQ's character set cannot
  express it. It counts, and `topic` does not.
* `pmqWhole`: in a pull, whether the reader takes records that have AMQP properties in front of the
  body (`remoting.records.split_body`). Others get the body alone.
* `pmqIncarnation`: in an answer, a number that differs for a topic that was deleted and created
  again, so that a reader who kept an offset notices that it means nothing any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final, TypeVar

import msgspec

from polymq.remoting.errors import BadFields
from polymq.remoting.frames import text

Int = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Long = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

_WIRE_NAMES: Final = {
    "group": "consumerGroup",
    "topic": "topic",
    "user_topic": "pmqTopic",
    "queue_id": "queueId",
    "queue_offset": "queueOffset",
    "count_max": "maxMsgNums",
    "bytes_max": "maxMsgBytes",
    "system_flag": "sysFlag",
    "commit_offset": "commitOffset",
    "suspend_ms": "suspendTimeoutMillis",
    "subscription": "subscription",
    "subscription_version": "subVersion",
    "expression_type": "expressionType",
    "broker_id": "suggestWhichBrokerId",
    "next_offset": "nextBeginOffset",
    "min_offset": "minOffset",
    "max_offset": "maxOffset",
    "whole": "pmqWhole",
    "stored": "pmqStored",
    "incarnation": "pmqIncarnation",
    "offset": "offset",
}


class Fields(msgspec.Struct, frozen=True, kw_only=True, rename=_WIRE_NAMES.get):
    """Base of all headers."""


F = TypeVar("F", bound=Fields)


def read_fields(kind: type[F], fields: Mapping[str, str]) -> F:
    """The typed header of a command's `extFields`. Unknown fields are ignored.

    Raises:
        BadFields: which field is missing or wrong.
    """
    try:
        return msgspec.convert(fields, kind, strict=False)
    except msgspec.ValidationError as error:
        raise BadFields(f"{kind.__name__}: {error}") from error


def wire_names(kind: type[Fields]) -> frozenset[str]:
    """The names under which a header's fields travel."""
    return frozenset(field.encode_name for field in msgspec.structs.fields(kind))


def write_fields(header: Fields) -> dict[str, str]:
    """The header as `extFields`; what is None is left out."""
    built: dict[str, object] = msgspec.to_builtins(header)
    return {name: text(value) for name, value in built.items() if value is not None}


class TopicFields(Fields, frozen=True, kw_only=True):
    """105 GET_ROUTE."""

    topic: str
    user_topic: str | None = None


class QueueFields(Fields, frozen=True, kw_only=True):
    """30 and 31: GET_MAX_OFFSET, GET_MIN_OFFSET."""

    topic: str
    queue_id: Int
    user_topic: str | None = None


class SearchFields(Fields, frozen=True, kw_only=True):
    """29 SEARCH_OFFSET_BY_TIMESTAMP."""

    topic: str
    queue_id: Int
    timestamp: Long
    user_topic: str | None = None


class OffsetAnswer(Fields, frozen=True, kw_only=True):
    """What 29, 30 and 31 are answered with."""

    offset: Long
    incarnation: Long | None = None


READER_GROUP: Final = "PMQ_READER"
"""The consumer group that pulls of our readers name, because RocketMQ's brokers want one. They are
members of none, and commit nothing."""


class PullFields(Fields, frozen=True, kw_only=True):
    """11 and 361: PULL_MESSAGE, LITE_PULL_MESSAGE."""

    topic: str
    queue_id: Int
    queue_offset: Long
    count_max: Int
    group: str = ""
    system_flag: Int = 0
    commit_offset: Long = 0
    suspend_ms: Long = 0
    subscription: str | None = None
    subscription_version: Long = 0
    expression_type: str | None = None
    bytes_max: Int | None = None
    user_topic: str | None = None
    whole: bool | None = None
    stored: bool | None = None

    def at(self, offset: int) -> PullFields:
        """The same from another offset on."""
        return msgspec.structs.replace(self, queue_offset=offset)


class PullAnswer(Fields, frozen=True, kw_only=True):
    """Goes with every answer to a pull whose code is 0, 19, 20 or 21: without these four numbers
    Java clients die of a null pointer."""

    broker_id: Long
    next_offset: Long
    min_offset: Long
    max_offset: Long
    incarnation: Long | None = None


class RouteAnswer(Fields, frozen=True, kw_only=True):
    """Goes with the answer to GET_ROUTE; the route itself is the body."""

    incarnation: Long | None = None
