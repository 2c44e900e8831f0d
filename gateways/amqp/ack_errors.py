"""Finds the acknowledgement of a read that is an error, before what stands behind it is stored.

Publishes of one read are stored together, and acknowledged deliveries are settled after them. A tag
that is not unacknowledged closes its channel, and what the channel publishes behind it must be
dropped (AMQP 1.5.2.5). So the acknowledgements are tried on copies first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polymq.broker.port import Unacked
from polymq.gateways.amqp.channel import Channel
from polymq.gateways.amqp.consumer import Holder
from polymq.gateways.amqp.events import Settlement
from polymq.gateways.amqp.kernels import codes


def rows_before_error(
    channels: Mapping[int, Channel], settlements: Sequence[Settlement], rows: int
) -> int:
    """How many of a read's publishes come before the first acknowledgement that is an error.

    Args:
        settlements: those of the read that were not carried out, in their order.
        rows: the number of publishes, which is returned where there is no error between them.
    """
    copies: dict[Channel, Unacked[Holder]] = {}
    for settlement in settlements:
        if settlement.rows >= rows:
            break
        channel = channels.get(settlement.channel)
        if channel is None or channel.transaction is not None:  # with it, nothing counts
            continue
        copy = copies.get(channel)
        if copy is None:
            copy = copies[channel] = channel.unacked.copy()
        if not _settles(copy, settlement):
            return settlement.rows
    return rows


def _settles(unacked: Unacked[Holder], settlement: Settlement) -> bool:
    """Settle what `Channel.settle` would, or return False where that is an error."""
    first_tag = settlement.first_tag
    if not settlement.bits & codes.MULTIPLE:
        try:
            unacked.settle(first_tag, first_tag + settlement.count - 1)
        except KeyError:
            return False
        return True
    if not first_tag:
        unacked.drain()
    elif first_tag in unacked:
        unacked.settle_to(first_tag)
    else:
        return False
    return True
