"""RocketMQ's transactions: a half message, its end, and the question to producers that forgot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from polymq.broker.port import HalfMessage, Position, Reason, Refused, encode_name
from polymq.gateways.rocketmq import mapping
from polymq.gateways.rocketmq.mapping import Answer
from polymq.gateways.rocketmq.messages import COMMITTED, ROLLED_BACK
from polymq.gateways.rocketmq.protocol import Request
from polymq.remoting.broker_fields import CheckFields, EndTransactionFields
from polymq.remoting.codes import RequestCode
from polymq.remoting.headers import write_fields
from polymq.remoting.records import encode_record

if TYPE_CHECKING:
    from polymq.gateways.rocketmq.connection import Connection
    from polymq.gateways.rocketmq.shared import Shared

PRODUCER: Final = "PGROUP"
UNIQUE_KEY: Final = "UNIQ_KEY"


def end_transaction(client: Connection, request: Request) -> Answer | None:
    """37: commit, rollback, or not known yet, which changes nothing."""
    fields = request.fields
    assert isinstance(fields, EndTransactionFields)
    if fields.commit_or_rollback not in (COMMITTED, ROLLED_BACK):
        if fields.commit_or_rollback:
            raise Refused(Reason.BAD_ARGUMENT, "commitOrRollback has to be 0, 8 or 12")
        return mapping.success()

    def ended(result: int | Refused) -> None:
        if isinstance(result, Refused):
            client.answer_later(request, mapping.refused(result))
        else:
            client.answer_when(
                Position(result), client.port.state_durability, request, mapping.success()
            )

    client.port.half_messages.end(
        fields.tran_state_table_offset,
        fields.commit_log_offset,
        producer=fields.producer_group,
        commit=fields.commit_or_rollback == COMMITTED,
        callback=ended,
    )
    return None


def ask_producers(shared: Shared, half: HalfMessage) -> None:
    """39: ask a producer of the message's group what became of its transaction: one of the user
    who prepared it, else of an administrator. If none is there, the engine asks again later."""
    producers = shared.members.producers.get(half.properties.get(PRODUCER, ""))
    if not producers:
        return
    ports = {}
    for channel, producer in producers.items():
        port = shared.port.admission.for_principal(producer.owner)
        if port.half_messages.may_end(half.owner):
            ports[channel] = port
    if not ports:
        return
    # Its own come first.
    channel = min(ports, key=lambda one: ports[one].principal.as_owner != half.owner)
    producers[channel] = producers.pop(channel)  # another one's turn next time
    topic = encode_name(half.topic)
    identity = mapping.message_id(shared.port.queries.store_host, half.record_position)
    unique = half.properties.get(UNIQUE_KEY, identity)
    fields = CheckFields(
        topic=topic,
        tran_state_table_offset=half.offset,
        commit_log_offset=half.record_position,
        msg_id=unique,
        transaction_id=unique,
        offset_msg_id=identity,
        broker_name=shared.identity.broker_name,
    )
    body = encode_record(
        topic=topic,
        properties=half.properties if half.tag is None else {**half.properties, "TAGS": half.tag},
        body=half.body,
        queue_offset=half.offset,
        position=half.record_position,
        born_ms=half.born_ms,
        flag=half.flag,
        system_flag=half.system_flag,
    )
    channel.tell(RequestCode.CHECK_TRANSACTION_STATE, write_fields(fields), body)
