"""What a consumer gives back: it comes again to its group, later, or becomes a dead letter.

Properties of AMQP and MQTT 5 that the log has as they came stay with the message. They are all that
such a message has: without them its next reader would see none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from polymq.broker.port import AMQP_PROPERTY, MQTT5_PROPERTY, Refused, without_long
from polymq.gateways.rocketmq import mapping
from polymq.gateways.rocketmq.mapping import DEAD_LETTER_PREFIX, RETRY_PREFIX, Answer
from polymq.gateways.rocketmq.messages import (
    DELAYS,
    BadMessage,
    Sent,
    parse_properties,
    sent_of,
    stored_flags,
)
from polymq.gateways.rocketmq.protocol import Request
from polymq.gateways.rocketmq.sending import RECONSUME_MAX, Order
from polymq.remoting.broker_fields import SendBackFields
from polymq.remoting.codes import ResponseCode
from polymq.remoting.messages import PROPERTIES_BYTES_MAX
from polymq.remoting.records import Record, iterate_records

if TYPE_CHECKING:
    from polymq.gateways.rocketmq.connection import Connection

RETRY_TOPIC: Final = "RETRY_TOPIC"
"""Property: the topic that the message was published to. Consumers show it instead of theirs."""
ORIGIN_ID: Final = "ORIGIN_MESSAGE_ID"
ROOM_BYTES: Final = 2_048
"""Of a record's properties, for those that the broker adds to a message that is given back."""
FIRST_LEVEL: Final = 3
"""Delay level of the first retry: 10 seconds, then 30, and so on."""


def send_back(client: Connection, request: Request) -> Answer | None:
    """36: a message that could not be consumed."""
    fields = request.fields
    assert isinstance(fields, SendBackFields)
    mapping.check_group(fields.group)
    sender = client.returns(fields.group)  # later it may be another user's

    def found(_topic: str, raw: bytes) -> None:
        if not raw:
            answer = mapping.failed(
                ResponseCode.SYSTEM_ERROR, f"there is no message at offset {fields.offset}"
            )
            client.answer_later(request, answer)
            return
        (record,) = iterate_records(bytes(without_long(raw)), verify=False)
        try:
            stored = sender.store(order_of(record, fields))
        except Refused as error:
            client.answer_later(request, mapping.refused(error))
            return
        except BadMessage as error:  # stored by a client of another protocol
            answer = mapping.failed(ResponseCode.MESSAGE_ILLEGAL, str(error))
            client.answer_later(request, answer)
            return
        client.answer_when(stored.position, stored.durability, request, mapping.success())

    client.port.queries.by_position(fields.offset, found)
    return None


def order_of(record: Record, fields: SendBackFields) -> Order:
    """What is stored for a message that is given back."""
    had = parse_properties(record.properties.decode("utf-8", "surrogateescape"))
    properties = {name: value for name, value in had.items() if name not in DELAYS}
    properties.setdefault(RETRY_TOPIC, record.topic)
    properties.setdefault(ORIGIN_ID, fields.origin_msg_id or record.offset_message_id)
    most = RECONSUME_MAX if fields.max_reconsume_times is None else fields.max_reconsume_times
    times = record.reconsume_count
    dead = fields.delay_level < 0 or times >= most
    if not dead:
        level = fields.delay_level or FIRST_LEVEL + times
        properties["DELAY"] = str(level)
    prefix = DEAD_LETTER_PREFIX if dead else RETRY_PREFIX
    return Order(
        topic=prefix + fields.group,
        messages=[_with_raw(sent_of(properties, record.body, record.flag), had)],
        born_ms=record.born_ms,
        queue_id=0,
        system_flag=stored_flags(record.system_flag),
        reconsume=times + 1,
        reconsume_max=most + 1,
    )


def _with_raw(sent: Sent, had: Mapping[str, str]) -> Sent:
    """The message with the properties that a gateway stored as they came, in front of the others;
    without them where they leave no room, because a message that cannot be given back is lost."""
    raw = "".join(
        [f"{name}\x01{had[name]}\x02" for name in (AMQP_PROPERTY, MQTT5_PROPERTY) if name in had]
    ).encode()
    if len(raw) + len(sent.extra) > PROPERTIES_BYTES_MAX - ROOM_BYTES:
        return sent
    return replace(sent, extra=raw + sent.extra)
