"""Numbers that the frame kernels and their callers share: stops, flags, columns of settlements."""

from __future__ import annotations

from typing import Final

ADDRESS_AT: Final = 13
"""Where exchange and routing key stand in the frame of basic.publish; an octet of bits and the
frame's end follow them."""

# Why `parse` stopped.
NEED_DATA: Final = 0
"""The bytes end here: nothing more, part of a frame, or the first frames of a publish."""
FRAME: Final = 1
"""A whole frame that is not for this kernel, or not as it should be, starts here."""
FULL: Final = 2
"""No room for the next row or settlement."""
OVERSIZE: Final = 3
"""A frame announces more than it may have."""
BAD_END: Final = 4
"""A frame does not end in 0xCE."""
BAD_TYPE: Final = 5
"""No frame has this type."""

# Bits of a row's flags; the channel stands above them.
MANDATORY: Final = 1
PERSISTENT: Final = 2
CHECKED: Final = 4
"""Has something that the broker looks at: a user-id, an expiration, a priority, the reply-to of
direct reply-to, a header `CC` or `BCC`, or more than `LONG_BYTES` in all."""
KEYED: Final = 8
"""Has a message id, which messages are found by."""
CHANNEL_SHIFT: Final = 8

LONG_BYTES: Final = 16 * 1024
"""Property flags and properties that are longer stand in front of the body in the log: those of a
record have room for 32,767 bytes, in base64, beside the routing key, the history of a dead letter
and the numbers of the queues."""

# A settlement is five integers: acks, nacks and rejects in the order in which they came.
SETTLEMENT_CHANNEL: Final = 0
SETTLEMENT_FIRST: Final = 1
"""The first delivery tag; single ones that follow each other are one settlement."""
SETTLEMENT_COUNT: Final = 2
SETTLEMENT_BITS: Final = 3
SETTLEMENT_ROWS: Final = 4
"""How many rows the batch had when the first of them came."""
SETTLEMENT_COLUMNS: Final = 5
MULTIPLE: Final = 1
REQUEUE: Final = 2
NEGATIVE: Final = 4
