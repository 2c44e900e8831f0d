"""Publishing a message, and getting messages from a queue: for people who look, and for tests.

Rules:

* A message is published as an AMQP client of the caller would publish it, and answered when it is
  durable.
* What is got is held until all of it is there, and then acknowledged or given back in one go. A
  request that ends before gives everything back.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from polymq.admin.written_answers import Steps
from polymq.broker.port import (
    FLUSHED,
    BrokerPort,
    Delivery,
    Message,
    Position,
    QueueConsumer,
    Template,
    exchange_and_key,
)
from polymq.gateways.amqp import delays, mapping
from polymq.gateways.amqp.errors import Malformed
from polymq.gateways.amqp.kernels import codes
from polymq.gateways.amqp.limits import Limits
from polymq.gateways.amqp.long_properties import as_stored, check_size
from polymq.gateways.amqp.rewriting import rewrite
from polymq.gateways.amqp.rows import Rows, batch_of, is_long
from polymq.gateways.amqp.templates import Templates
from polymq.management.bodies import Body
from polymq.management.callers import Caller, Rank
from polymq.management.context import Context
from polymq.management.errors import bad, missing
from polymq.management.exchanges import exchange_name
from polymq.management.payloads import Encoding, Shown, write_messages
from polymq.management.properties import decode_properties, encode_properties
from polymq.management.routing import Call, Route

PUBLISH_BYTES_MAX: Final = 4 * 1024 * 1024
"""Of the body of a publish. This is no way for large messages: they are in JSON."""
GET_COUNT_MAX: Final = 1_000
GET_BYTES_MAX: Final = 4 * 1024 * 1024
"""Of the payloads of one get: it ends with the message that passes it."""
ACK_MODES: Final = (
    "ack_requeue_true",
    "ack_requeue_false",
    "reject_requeue_true",
    "reject_requeue_false",
)


class _Got(NamedTuple):
    """A message that was got, and what gives it back."""

    shown: Shown
    payload_bytes: int
    holder: QueueConsumer
    offset: int


class MessageHandlers:
    """The answers to publish and get."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._engine = context.engine

    def routes(self) -> list[Route]:
        """For the table."""
        rank = Rank.MANAGEMENT
        publish = "/exchanges/{vhost}/{exchange}/publish"
        return [
            Route("POST", publish, rank, self._publish, PUBLISH_BYTES_MAX),
            Route("POST", "/queues/{vhost}/{queue}/get", rank, self._get),
        ]

    # --- publish --------------------------------------------------------------------------

    async def _publish(self, call: Call) -> Mapping[str, bool]:
        exchange, caller = exchange_name(call.names["exchange"]), call.caller
        if self._engine.exchanges.exchange(exchange) is None:
            raise missing()
        key, content = call.body.text("routing_key"), _payload(call.body)
        raw = encode_properties(call.body.table("properties"))
        address = _short(exchange) + _short(key)
        try:
            template, position = _store(caller, address, raw, content)
        except Malformed as error:
            raise bad(str(error)) from None
        if template is None:
            return {"routed": False}
        await self._context.commits.stored(position, template.durability)
        return {"routed": True}

    # --- get ------------------------------------------------------------------------------

    async def _get(self, call: Call) -> Steps:
        found, body = self._context.queue(call), call.body
        count = min(body.number("count"), GET_COUNT_MAX)
        mode = _ack_mode(body)
        encoding = _encoding(body)
        truncate = body.number("truncate") if "truncate" in body.value else None
        port = call.caller.port
        owner = found.owner if call.caller.operates else None
        got: list[_Got] = []
        done = False
        try:
            size = 0
            while len(got) < count and size < GET_BYTES_MAX:
                one = await _get_one(port, found.name, owner, truncate)
                if one is None:
                    break
                got.append(one)
                size += one.payload_bytes
            done = True
        finally:
            _settle(got, mode if done else ACK_MODES[0])
        return write_messages([one.shown for one in got], encoding)


def _store(
    caller: Caller, address: bytes, raw: bytes, content: bytes
) -> tuple[Template | None, Position]:
    """Store a message; None if it leads nowhere. Raises Refused, Malformed."""
    port = caller.port
    ttl = mapping.check_properties(raw, caller.name)
    rewritten = rewrite(raw, _no_replies)
    raw = rewritten.properties if rewritten.changed or rewritten.copies else raw
    templates = Templates(port=port, count_max=1)
    flags = codes.PERSISTENT | codes.KEYED
    rows = Rows(batch_of(address, [(raw, content)]), 0, 1, flags, FLUSHED, ttl, rewritten.copies)
    if is_long(rows.batch, 0):
        check_size(rows.batch, 0, Limits())
    template = templates.find(rows)
    if template is None:
        return None, Position(0)
    if templates.delayed:
        ((rows, delay_ms),) = delays.split(rows)
        if delay_ms:  # where it will go, nobody knows yet
            stored, later = as_stored(rows.batch, 0, 1), port.delays.publish_later
            return template, later(template, *stored, delay_ms=delay_ms, by_exchange=True)
    batch, first, last = as_stored(rows.batch, 0, 1)
    by_headers = template.route.by_headers
    is_routed = port.exchanges.is_routed(template, batch, first) if by_headers else True
    if not template.route.routed or not is_routed:
        return None, Position(0)
    position = port.publish(template, batch, first, last)
    if template.overflowed:
        raise bad("rejected: a queue that the message is for is full")
    return template, position


def _no_replies() -> str:
    raise bad("replies to amq.rabbitmq.reply-to need a connection: use a queue")


def _short(text: str) -> bytes:
    """A short string of AMQP. Raises Problem: it is too long."""
    raw = text.encode("utf-8", "surrogateescape")
    if len(raw) > mapping.SHORT_BYTES_MAX:
        raise bad(f"a name or a routing key has at most {mapping.SHORT_BYTES_MAX} bytes")
    return bytes((len(raw),)) + raw


def _payload(body: Body) -> bytes:
    """The content of a publish. Raises Problem."""
    text, encoding = body.text("payload"), body.text("payload_encoding", "string")
    if encoding == "string":
        return text.encode("utf-8", "surrogatepass")
    if encoding != "base64":
        raise bad(f"Unsupported encoding {encoding!r}: use string or base64")
    try:
        return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        raise bad("the payload is not in base64") from None


def _encoding(body: Body) -> Encoding:
    match body.text("encoding", "auto"):
        case "auto" | "base64" as encoding:
            return encoding
        case encoding:
            raise bad(f"Unsupported encoding {encoding!r}: use auto or base64")


def _ack_mode(body: Body) -> str:
    if "ackmode" not in body.value and "requeue" in body.value:  # what it was before 3.7
        return ACK_MODES[0] if body.flag("requeue", True) else ACK_MODES[1]
    mode = body.text("ackmode")
    if mode not in ACK_MODES:
        raise bad(f"there is no ackmode {mode!r}: use one of {', '.join(ACK_MODES)}")
    return mode


async def _get_one(
    port: BrokerPort, queue: str, owner: object, truncate: int | None
) -> _Got | None:
    """The next message of a queue; None if there is none. Raises Refused."""
    answer: asyncio.Future[_Got | None] = asyncio.get_running_loop().create_future()

    def took(delivery: Delivery | None, holder: QueueConsumer, ready_count: int) -> None:
        if delivery is None:
            if not answer.done():
                answer.set_result(None)
            return
        if answer.done():  # the client has gone
            holder.requeue(delivery.first_offset, delivery.count)
            return
        (message,) = delivery.messages()
        raw = mapping.message_properties(message, delivery.delivery_count)
        row = _row(message, raw, delivery.redelivered, ready_count)
        shown = Shown(row, memoryview(message.body)[:truncate])
        answer.set_result(_Got(shown, len(message.body), holder, delivery.first_offset))

    port.queues.get(queue, took, owner=owner)
    try:
        return await answer
    except asyncio.CancelledError:
        if answer.done() and not answer.cancelled() and (got := answer.result()) is not None:
            got.holder.requeue(got.offset, 1)
        raise


def _row(message: Message, raw: bytes, redelivered: bool, ready_count: int) -> Mapping[str, Any]:
    exchange, key = exchange_and_key(message.topic, message.tag, message.properties)
    return {
        "payload_bytes": len(message.body),
        "redelivered": redelivered,
        "exchange": exchange,
        "routing_key": key,
        "message_count": ready_count,
        "properties": decode_properties(raw),
    }


def _settle(got: list[_Got], mode: str) -> None:
    for one in got:
        if mode.endswith("requeue_true"):
            one.holder.requeue(one.offset, 1)
        elif mode.startswith("ack"):
            one.holder.settle(one.offset, 1)
        else:
            one.holder.reject(one.offset, 1)
