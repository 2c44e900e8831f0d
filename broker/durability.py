"""Which commit point a message waits for."""

from __future__ import annotations

import enum
from typing import Final


class Durability(enum.IntEnum):
    """Which commit point a message waits for before it is acked and visible."""

    APPENDED = 0
    """In the page cache: MQTT QoS 0, AMQP transient without confirm, and everything that is
    published where `page_cache` was chosen."""
    FLUSHED = 1
    """Covered by a successful fdatasync: the default."""
    IN_SYNC = 2
    """On the disks of two brokers: this one's and a replica's (`min_in_sync = 2`)."""
    IN_SYNC_3 = 3
    """On the disks of three. The value of a member is the number of disks."""


APPENDED: Final = Durability.APPENDED
FLUSHED: Final = Durability.FLUSHED
IN_SYNC: Final = Durability.IN_SYNC
"""The members as names of their own: for the hot path, where Python 3.11 needs 150 ns for each
look into an enumeration."""
