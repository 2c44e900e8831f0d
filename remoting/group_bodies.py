"""Bodies about consumer groups: heartbeats, members, locks.

What a client writes may lack anything that its library does not use, so all has a default; what a
broker answers always has every key, because clients look into it without a question.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from polymq.remoting.errors import BadFields


class SubscriptionData(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What a consumer wants of one topic.

    Attributes:
        sub_string: `*`, or tags between `||`.
        sub_version: when the client made it, in ms: the newest counts.
    """

    topic: str
    sub_string: str = "*"
    tags_set: list[str] = []
    code_set: list[int] = []
    sub_version: int = 0
    expression_type: str | None = "TAG"
    class_filter_mode: bool = False


class ConsumerData(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One consumer of a client: its group, and how it consumes."""

    group_name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    subscription_data_set: list[SubscriptionData] = []
    unit_mode: bool = False


class ProducerData(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One producer of a client."""

    group_name: str


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """34 HEART_BEAT: everything that a client is."""

    client_id: str = msgspec.field(name="clientID")
    producer_data_set: list[ProducerData] = []
    consumer_data_set: list[ConsumerData] = []
    heartbeat_fingerprint: int = 0
    without_sub: bool = msgspec.field(default=False, name="isWithoutSub")


class ClientCheck(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """46 CHECK_CLIENT_CONFIG: whether a broker can do what a consumer wants, before it begins."""

    client_id: str = ""
    group: str = ""
    subscription_data: SubscriptionData


class ConsumerList(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Answer to 38 GET_CONSUMER_LIST: the client ids of a group's members."""

    consumer_id_list: list[str]


class MessageQueue(msgspec.Struct, frozen=True, kw_only=True, rename="camel", order=True):
    """A queue of a topic on one broker group."""

    topic: str
    broker_name: str
    queue_id: int


class LockRequest(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """41 LOCK_BATCH_MQ and 42 UNLOCK_BATCH_MQ."""

    consumer_group: str
    client_id: str
    mq_set: list[MessageQueue] = []
    only_this_broker: bool = False


class LockAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to 41: what the client has now."""

    lock_ok_mq_set: list[MessageQueue] = msgspec.field(name="lockOKMQSet")


Body = TypeVar("Body", ClientCheck, Heartbeat, LockRequest)
_DECODER: Final = {
    ClientCheck: msgspec.json.Decoder(ClientCheck, strict=False),
    Heartbeat: msgspec.json.Decoder(Heartbeat, strict=False),
    LockRequest: msgspec.json.Decoder(LockRequest, strict=False),
}


def decode_body(kind: type[Body], body: bytes) -> Body:
    """The body of a request.

    Raises:
        BadFields: it is none of this kind; the text says what is wrong.
    """
    decoder: msgspec.json.Decoder[Body] = _DECODER[kind]  # type: ignore[assignment]
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadFields(f"{kind.__name__}: {error}") from error


def decode_object(body: bytes) -> dict[str, Any]:
    """A body that is any JSON object, such as the settings of a group. Raises BadFields."""
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadFields(f"body: {error}") from error


def encode_json(body: object) -> bytes:
    """The body of an answer."""
    return msgspec.json.encode(body)
