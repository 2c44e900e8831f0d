"""Finds the acknowledgement of a read that is an error, before what stands behind it is stored.

Publishes of one read are stored together, and acknowledged deliveries are settled after them. A tag
that is not unacknowledged closes its channel, and what the channel publishes behind it must be
dropped (AMQP 1.5.2.5). So the acknowledgements are tried on copies first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from polymq.broker.port import Unacked
from polymq.gateways.amqp.channel import Channel
from polymq.gateways.amqp.consumer import Holder
from polymq.gateways.amqp.events import Run, Settlement
from polymq.gateways.amqp.kernels import codes


class AckErrors:
    """The acknowledgements of a read, tried as far as its publishes have come. So a read that takes
    many turns costs no more than one that takes few.

    Args:
        settlements: those of the read that were not carried out, in their order.
        rows: the number of publishes.

    Attributes:
        rows: how many of the publishes are to be taken now.
    """

    def __init__(
        self, channels: Mapping[int, Channel], settlements: Sequence[Settlement], rows: int
    ) -> None:
        self.rows = rows
        self._channels = channels
        self._left = deque(settlements)
        self._copies: dict[Channel, Unacked[Holder]] = {}

    def before(self, runs: Iterable[Run]) -> Iterator[Run]:
        """The runs of publishes that stand before the first acknowledgement that is an error."""
        for run in runs:
            rows = self._rows_before(run.last)
            if rows < run.last:
                self.rows = rows
                if run.first < rows:
                    yield replace(run, last=rows)
                return
            yield run

    def _rows_before(self, last: int) -> int:
        """The row before which an acknowledgement is an error, if that comes before row `last`."""
        while self._left and self._left[0].rows < last:
            settlement = self._left.popleft()
            channel = self._channels.get(settlement.channel)
            if channel is None or channel.transaction is not None:  # with it, nothing counts
                continue
            copy = self._copies.get(channel)
            if copy is None:
                copy = self._copies[channel] = channel.unacked.copy()
            if not _settles(copy, settlement):
                return settlement.rows
        return last


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
