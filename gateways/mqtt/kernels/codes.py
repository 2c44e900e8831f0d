"""What the frame kernels answer: why `parse` stopped, and the bits of a row's FLAGS.

One declaration for both forms of the kernels and for the code that reads their answers.
"""

from __future__ import annotations

from typing import Final

# --- what became of a packet, or why parse stopped ------------------------------------------

PACKET_READ: Final = -1
"""The packet is here as a whole, and is sound."""
STOP_PARTIAL: Final = 0
"""The packet at the returned index is not wholly here yet (or nothing is left)."""
STOP_OTHER: Final = 1
"""The packet there is neither PUBLISH nor an acknowledgement."""
STOP_FULL: Final = 2
"""The batch, its runs or the acks have no room: take what is there and call again."""
STOP_ORDER: Final = 3
"""A PUBREL behind a QoS 2 PUBLISH, or the other way round: the second may be about the packet id
of the first, so what is there has to be taken before."""

MALFORMED: Final = 8
"""Stops from here on say what is wrong with the packet at the returned index."""
MALFORMED_LENGTH: Final = 8
"""The Remaining Length goes on after four bytes (3.1.1 part 2.2.3)."""
MALFORMED_LARGE: Final = 9
"""The packet is longer than the limit given to `parse`."""
MALFORMED_FLAGS: Final = 10
"""Reserved flag bits of an acknowledgement are wrong [MQTT-2.2.2-2]."""
MALFORMED_QOS: Final = 11
"""Both QoS bits of a PUBLISH are set [MQTT-3.3.1-4]."""
MALFORMED_DUPLICATE: Final = 12
"""DUP is set on a QoS 0 PUBLISH [MQTT-3.3.1-2]."""
MALFORMED_SIZE: Final = 13
"""The fields do not fit the Remaining Length (3.1.1 parts 3.3 to 3.7)."""
MALFORMED_IDENTIFIER: Final = 14
"""The packet id is 0 [MQTT-2.3.1-1]."""

# --- FLAGS of a row ------------------------------------------------------------------------

FLAG_RETAIN: Final = 0x01
FLAG_QOS: Final = 0x06
FLAG_QOS_SHIFT: Final = 1
FLAGS_STORED: Final = FLAG_RETAIN | FLAG_QOS
"""The bits of a PUBLISH's first byte that a row keeps. DUP is left out: what decides whether a
QoS 2 message was seen is its packet id, and runs should not break at a resent message."""

EXACTLY_ONCE: Final = 2 << FLAG_QOS_SHIFT
"""QoS 2 among them."""

# --- packet types that the kernels know, as the high half of the first byte -----------------

TYPE_PUBLISH: Final = 3
TYPE_PUBACK: Final = 4
TYPE_PUBREC: Final = 5
TYPE_PUBREL: Final = 6
TYPE_PUBCOMP: Final = 7

# --- sizes ---------------------------------------------------------------------------------

ACK_COLUMNS: Final = 3
"""An acknowledgement run is three integers: packet type, first packet id, count."""
IDENTIFIER_MAX: Final = 65_535
"""After it comes 1: packet id 0 does not exist [MQTT-2.3.1-1]."""
REMAINING_LENGTH_MAX: Final = 268_435_455
"""Four bytes of seven bits (3.1.1 part 2.2.3)."""
RECORD_SIZE_MIN: Final = 91
"""A commit-log record with nothing in it: 88 bytes before the body, one of topic size, two of
properties size."""
ASK_BYTES: Final = 64 * 1024
"""How much the log grows until it is asked again whether the disk keeps up: a 512th of what makes
the engine say that it does not."""
DOLLAR: Final = 0x24
"""What the first character of a topic name may be that is not an application's (3.1.1 part
4.7.2)."""
