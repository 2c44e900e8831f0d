"""basic.*, confirm.*, and what else comes on an open channel. One function for each method.

As in `topology.py`; publishes and acks come another way, from the kernel (`batch_path.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Final

from polymq.broker.port import Delivery, QueueConsumer, Reason, Refused
from polymq.gateways.amqp import direct_reply, mapping, reply_names, spec
from polymq.gateways.amqp.ack_deadline import AckDeadline
from polymq.gateways.amqp.channel import Channel
from polymq.gateways.amqp.consumer import Consumer, Getter, encode
from polymq.gateways.amqp.errors import RemoteProtocolError, ReplyCode
from polymq.gateways.amqp.kernels import codes
from polymq.gateways.amqp.large_deliveries import LargeBody
from polymq.gateways.amqp.spec import Method
from polymq.gateways.amqp.topology import Handler

_GET_OK_HEAD: Final = struct.pack(">HH", spec.BasicGetOk.CLASS_ID, spec.BasicGetOk.METHOD_ID)
_COUNT: Final = struct.Struct(">I")


def _fault(method: Method, code: ReplyCode, text: str, channel: int = 0) -> RemoteProtocolError:
    return RemoteProtocolError(
        code, text, channel=channel, class_id=method.CLASS_ID, method_id=method.METHOD_ID
    )


def qos(channel: Channel, method: spec.BasicQos) -> None:
    """basic.qos. A limit for each consumer counts for those that come later only."""
    if method.prefetch_size:
        raise _fault(method, ReplyCode.NOT_IMPLEMENTED, "prefetch_size!=0")
    if method.global_:
        channel.prefetch_shared = method.prefetch_count
    else:
        channel.prefetch = method.prefetch_count
    channel.link.reply(channel.number, spec.BasicQosOk())
    if method.global_:
        channel.ready()


def consume(channel: Channel, method: spec.BasicConsume) -> None:
    """basic.consume. Messages follow consume-ok."""
    link = channel.link
    tag = method.consumer_tag or link.new_tag()
    if tag in channel.consumers:
        raise _fault(method, ReplyCode.NOT_ALLOWED, f"attempt to reuse consumer tag '{tag}'")
    if link.consumer_count >= link.limits.consumers_max:
        raise Refused(
            Reason.LIMIT, f"a connection has at most {link.limits.consumers_max} consumers"
        )
    queue = method.queue or channel.last_queue
    if not queue:
        raise Refused(Reason.NOT_FOUND, "no previously declared queue")
    consumer: Consumer | direct_reply.ReplyConsumer
    if queue == reply_names.NAME:
        consumer = direct_reply.new_consumer(channel, tag, no_ack=method.no_ack)
    else:
        priority = mapping.consumer_priority(method.arguments)
        timeout_ms = mapping.consumer_timeout(method.arguments)
        consumer = Consumer(channel, tag, queue=queue, asked=method, limit=channel.prefetch)
        consumer.handle = link.port.queues.consume(
            queue,
            consumer,
            exclusive=method.exclusive,
            owner=link,
            priority=priority,
            reads_long=True,
            takes_apart=consumer.takes_apart,
        )
        if timeout_ms is None:
            info = link.port.queues.info(queue, owner=link)
            timeout_ms = mapping.consumer_timeout(info.arguments)
        if timeout_ms is not None and not method.no_ack:
            AckDeadline(channel, consumer, timeout_ms)
    channel.add(consumer)
    if method.nowait:
        consumer.start()
    else:
        link.reply(channel.number, spec.BasicConsumeOk(consumer_tag=tag), then=consumer.start)


def cancel(channel: Channel, method: spec.BasicCancel) -> None:
    """basic.cancel. What the consumer holds stays to be acknowledged."""
    channel.cancel(method.consumer_tag)
    if not method.nowait:
        channel.link.reply(channel.number, spec.BasicCancelOk(consumer_tag=method.consumer_tag))


def get(channel: Channel, method: spec.BasicGet) -> None:
    """basic.get. The connection stands still until the answer is there, because it may have to
    come from the disk and later answers must not overtake it."""
    queue = method.queue or channel.last_queue
    if not queue:
        raise Refused(Reason.NOT_FOUND, "no previously declared queue")
    release = channel.link.pause()
    try:
        channel.link.port.queues.get(
            queue, partial(_got, channel, method.no_ack, release), owner=channel.link
        )
    except Refused:
        release()
        raise


def _got(
    channel: Channel,
    no_ack: bool,
    release: object,
    delivery: Delivery | None,
    holder: QueueConsumer,
    ready_count: int,
) -> None:
    """The answer to a get."""
    assert callable(release)
    if channel.closed:  # the client went away meanwhile
        if delivery is not None:
            holder.requeue(delivery.first_offset, delivery.count)
        release()  # it may be only the channel that is closed
        return
    if delivery is None:
        channel.link.reply(channel.number, spec.BasicGetEmpty())
    else:
        tag = channel.unacked.next_tag
        if no_ack:
            channel.unacked.next_tag += 1
        else:
            channel.unacked.add(Getter(holder), delivery.first_offset, delivery.count)
        parts = encode(
            delivery,
            channel.number,
            channel.frame_max,
            _GET_OK_HEAD,
            tag,
            _COUNT.pack(ready_count),
        )
        body = parts.pop() if isinstance(parts[-1], LargeBody) else None
        (frames,) = parts
        assert isinstance(frames, bytes)
        then = partial(channel.link.write_large, body) if isinstance(body, LargeBody) else None
        channel.link.answer(frames, then=then)
        channel.link.counts.sent += 1
        if no_ack:
            holder.settle(delivery.first_offset, delivery.count)
    release()


def settle(channel: Channel, method: spec.BasicAck | spec.BasicNack | spec.BasicReject) -> None:
    """An ack, nack or reject that the kernel left: its tag is beyond what it counts to."""
    bits = 0
    if not isinstance(method, spec.BasicReject) and method.multiple:
        bits |= codes.MULTIPLE
    if not isinstance(method, spec.BasicAck):
        bits |= codes.NEGATIVE | (codes.REQUEUE if method.requeue else 0)
    channel.settle(method.delivery_tag, 1, bits)


def recover(channel: Channel, method: spec.BasicRecover | spec.BasicRecoverAsync) -> None:
    """basic.recover: everything that is unacknowledged on the channel goes back."""
    if not method.requeue:
        raise _fault(method, ReplyCode.NOT_IMPLEMENTED, "requeue=false")
    channel.link.work(_recovering(channel, answers=isinstance(method, spec.BasicRecover)))


def _recovering(channel: Channel, *, answers: bool) -> Iterator[None]:
    yield from channel.give_back_steps(channel.unacked.drain(), codes.REQUEUE)
    if channel.closed:
        return
    if answers:
        channel.link.reply(channel.number, spec.BasicRecoverOk())
    channel.ready()


def confirm_select(channel: Channel, method: spec.ConfirmSelect) -> None:
    """confirm.select. Twice is once."""
    if channel.transaction is not None:
        raise Refused(Reason.BAD_ARGUMENT, "cannot switch from tx to confirm mode")
    channel.confirming = True
    if not method.nowait:
        channel.link.reply(channel.number, spec.ConfirmSelectOk())


def flow(channel: Channel, method: spec.ChannelFlow) -> None:
    """channel.flow: stopping deliveries is what prefetch is for; RabbitMQ refuses it too."""
    if not method.active:
        raise _fault(method, ReplyCode.NOT_IMPLEMENTED, "active=false")
    channel.link.reply(channel.number, spec.ChannelFlowOk(active=True))


def access_request(channel: Channel, method: spec.AccessRequest) -> None:
    """access.request of 0-8 and 0-9 clients: any ticket will do."""
    channel.link.reply(channel.number, spec.AccessRequestOk(ticket=1))


def ignore(channel: Channel, method: Method) -> None:
    """An answer to what we sent without waiting for it."""


HANDLERS: Final[Mapping[type[Method], Handler]] = {
    spec.BasicQos: qos,
    spec.BasicConsume: consume,
    spec.BasicCancel: cancel,
    spec.BasicCancelOk: ignore,
    spec.BasicGet: get,
    spec.BasicAck: settle,
    spec.BasicNack: settle,
    spec.BasicReject: settle,
    spec.BasicRecover: recover,
    spec.BasicRecoverAsync: recover,
    spec.ConfirmSelect: confirm_select,
    spec.ChannelFlow: flow,
    spec.ChannelFlowOk: ignore,
    spec.AccessRequest: access_request,
}

SEES_PUBLISHES: Final = frozenset({spec.BasicGet})
"""See `topology.SEES_PUBLISHES`."""
