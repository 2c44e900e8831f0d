"""Messages as the admin API shows them: envelope, properties, and as much of the body as was asked
for. Made from records of the log; to be called in a thread where there may be many."""

from __future__ import annotations

import ipaddress
from base64 import b64encode
from collections.abc import Callable, Iterator
from typing import Annotated, Final

import msgspec

from polymq.admin.operations import Given, Value
from polymq.broker.names import QUEUES_TOPIC
from polymq.broker.port import display_name
from polymq.remoting.records import Record, iterate_records, message_of

BODY_BYTES_DEFAULT: Final = 4_096
BODY_BYTES_MAX: Final = 1024 * 1024
ANSWER_BYTES_MAX: Final = 4 * 1024 * 1024
"""Of the bodies of one page: it ends with the message that goes beyond."""
CHARACTER_BYTES_MAX: Final = 4
_INTERNAL: Final = frozenset({"PMQ_P", "PMQ_Q", "PMQ_B", "__CRC32#", "TAGS"})
"""Properties that belong to the record, or are shown by themselves."""

UserName = Callable[[bytes], str]
"""The name of a topic whose name in records this is (`Metas.user_name`)."""


class BodyQuery(Given):
    """How much of a message is shown.

    Attributes:
        body_bytes: at most so many bytes of each body, up to 1 MiB.
    """

    body_bytes: Annotated[int, msgspec.Meta(ge=0, le=BODY_BYTES_MAX)] = BODY_BYTES_DEFAULT


class Message(Value):
    """A message, as it is in the log.

    Attributes:
        topic: where it was published; of a message to AMQP's default exchange, the queue.
        tag: in the form with dots: the other levels of an MQTT topic, the routing key of AMQP, the
            type of a CloudEvent; null: it has none.
        queue: number of the queue of the topic.
        offset: in that queue.
        position: in the log; it names the message for ever.
        id: RocketMQ's id.
        key: by which it can be found; null: it has none, or it is in AMQP's properties.
        protocol: by which it came.
        born_ms: when its sender made it, in milliseconds since the epoch.
        store_ms: when it was stored.
        sender: address and port of its sender, as far as the record has it.
        properties: as they are stored (docs/properties.md).
        body: as text, if what is shown of it is UTF-8; else null.
        body_base64: the same in base64, if it is not.
        body_bytes: the size of the whole body.
        body_complete: whether all of it is shown.
    """

    topic: str
    tag: str | None
    queue: int
    offset: int
    position: int
    id: str
    key: str | None
    protocol: str
    born_ms: int
    store_ms: int
    sender: str
    properties: dict[str, str]
    body: str | None
    body_base64: str | None
    body_bytes: int
    body_complete: bool


def messages_of(records: bytes, user_name: UserName, body_bytes: int) -> Iterator[Message]:
    """The messages of records that follow each other."""
    for record in iterate_records(bytes(records)):
        yield message_value(record, user_name, body_bytes)


def message_value(record: Record, user_name: UserName, body_bytes: int) -> Message:
    """One message."""
    properties, body = message_of(record)
    topic = user_name(record.topic.encode("utf-8", "surrogateescape"))
    tag = properties.get("TAGS")
    if topic == QUEUES_TOPIC:  # where it was published to is in the tag
        topic, tag = tag or "", None
    text, encoded, is_complete = shown_body(body, body_bytes)
    return Message(
        topic=display_name(topic),
        tag=tag,
        queue=record.queue_id,
        offset=record.queue_offset,
        position=record.position,
        id=properties.get("UNIQ_KEY", record.offset_message_id),
        key=properties.get("KEYS"),
        protocol=properties.get("PMQ_PROTO", "amqp" if "PMQ_AMQP" in properties else ""),
        born_ms=record.born_ms,
        store_ms=record.store_ms,
        sender=_host(record.born_host),
        properties={key: value for key, value in properties.items() if key not in _INTERNAL},
        body=text,
        body_base64=encoded,
        body_bytes=len(body),
        body_complete=is_complete,
    )


def shown_body(body: bytes, most: int) -> tuple[str | None, str | None, bool]:
    """The beginning of a body as text, or else in base64; and whether it is all."""
    part = body[:most]
    is_complete = len(part) == len(body)
    try:
        return part.decode(), None, is_complete
    except UnicodeDecodeError as error:
        is_cut = not is_complete and error.start > len(part) - CHARACTER_BYTES_MAX
        if is_cut and error.reason == "unexpected end of data":
            return part[: error.start].decode(), None, False
    return None, b64encode(part).decode(), is_complete


def _host(raw: bytes) -> str:
    """Empty for none."""
    if not any(raw[:-4]):
        return ""
    address = ipaddress.ip_address(raw[:-4])
    port = int.from_bytes(raw[-4:], "big")
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"
