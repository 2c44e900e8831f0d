"""Up to where two logs are the same. Pure.

Theory. A log is a row of epochs; each opening for writing begins one with a record. Two logs that
have the same epoch, begun at the same place by the same record, have the same bytes before it and
behind it, as far as both have that epoch: only one process wrote in it. The checksum of the record
tells apart two epochs that were begun with the same number at the same place by two brokers, which
happens when a slave is promoted and the old master is started again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from polymq.replication.frames import PeerFault
from polymq.replication.limits import EPOCHS_MAX

Epoch = tuple[int, int, int]
"""Number, start position, mark (the CRC-32 of the record that begins it; 0: not known)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogExtent:
    """A log, as a peer has to know it.

    Attributes:
        start, end: the positions that it has, [start, end).
        flushed: how much of that is on the disk.
        epochs: oldest first; the newest `EPOCHS_MAX` of them.
    """

    start: int
    end: int
    epochs: Sequence[Epoch]
    flushed: int = 0


def common_end(one: LogExtent, other: LogExtent) -> int | None:
    """The place up to which both logs have the same bytes; None if they are not copies of one
    log, as far as is known. An empty log has the same up to its end."""
    if not one.end or not other.end:
        return 0
    others = {epoch: (start, crc, at) for at, (epoch, start, crc) in enumerate(other.epochs)}
    for at in range(len(one.epochs) - 1, -1, -1):
        epoch, start, crc = one.epochs[at]
        found = others.get(epoch)
        if found is not None and found[:2] == (start, crc):
            return min(_end(one, at), _end(other, found[2]))
    return None


def _end(log: LogExtent, at: int) -> int:
    return log.epochs[at + 1][1] if at + 1 < len(log.epochs) else log.end


def epochs_from(values: Any) -> list[Epoch]:
    """A peer's table. Raises PeerFault."""
    if not isinstance(values, list) or len(values) > EPOCHS_MAX:
        raise PeerFault("the handshake has no proper 'epochs'")
    found: list[Epoch] = []
    for row in values:
        if (
            not isinstance(row, list)
            or len(row) != 3
            or not all(type(value) is int and 0 <= value < 1 << 63 for value in row)
            or (found and not (found[-1][0] < row[0] and found[-1][1] <= row[1]))
        ):
            raise PeerFault("the handshake has no proper 'epochs'")
        found.append((row[0], row[1], row[2]))
    return found
