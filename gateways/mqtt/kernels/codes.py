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
MALFORMED_PROPERTY: Final = 15
"""A property that the packet may not have, or whose value is not one of its kind (5.0 part
2.2.2.2)."""
MALFORMED_TWICE: Final = 16
"""A property that may stand there once stands there twice (5.0 part 3.3.2.3 and others)."""
MALFORMED_ALIAS: Final = 17
"""Topic Alias 0 [MQTT-3.3.2-8]."""
MALFORMED_TEXT: Final = 18
"""Text of a property is not well-formed UTF-8, or has U+0000 [MQTT-1.5.4-1], [MQTT-1.5.4-2]."""
MALFORMED_REASON: Final = 19
"""A reason code that this acknowledgement does not have (5.0 parts 3.4.2.1 to 3.7.2.1)."""
MALFORMED_RESPONSE: Final = 20
"""The Response Topic has a wildcard [MQTT-3.3.2-14], or is empty [MQTT-4.7.3-1]."""
MALFORMED_SUBSCRIPTION: Final = 21
"""A client's PUBLISH has a Subscription Identifier [MQTT-3.3.4-6]."""
MALFORMED_LONG_FORM: Final = 23
"""MQTT 5: a number takes more bytes than it needs [MQTT-1.5.5-1]. The older versions do not forbid
it."""
MALFORMED_FORMAT: Final = 22
"""The Payload Format Indicator is neither 0 nor 1 (5.0 part 3.3.2.3.2)."""

# --- FLAGS of a row ------------------------------------------------------------------------

FLAG_RETAIN: Final = 0x01
FLAG_QOS: Final = 0x06
FLAG_QOS_SHIFT: Final = 1
FLAGS_STORED: Final = FLAG_RETAIN | FLAG_QOS
"""The bits of a PUBLISH's first byte that a row keeps. DUP is left out: what decides whether a
QoS 2 message was seen is its packet id, and runs should not break at a resent message."""

EXACTLY_ONCE: Final = 2 << FLAG_QOS_SHIFT
"""QoS 2 among them."""

FLAG_PROPERTIES: Final = 0x08
"""MQTT 5: the row has properties to be stored; its EXTRA columns say where they are."""
FLAG_EXPIRES: Final = 0x10
"""MQTT 5: it has a Message Expiry Interval, which stands in these flags as well, so that the
messages of a run have the same."""
FLAGS_OF_KIND: Final = 0x1F
"""All of these bits. What flags have beyond is a topic alias or an expiry interval."""
FLAGS_PLAIN: Final = 0x0F
"""Flags up to here are of messages whose topic name alone says how they are stored."""
ALIAS_SHIFT: Final = 8
"""The 16 bits of a Topic Alias; 0: none."""
EXPIRY_SHIFT: Final = 24
"""The 32 bits of a Message Expiry Interval in seconds."""
REFUSED_SHIFT: Final = 56
"""Set when the row was refused: the reason code of its acknowledgement, less `REFUSED_BASE`."""
REFUSED_BASE: Final = 0x7F
"""Reason codes of errors begin one above it."""
PAYLOAD_FORMAT_INVALID: Final = 0x99
"""The reason code of a payload that is no text, though its PUBLISH says so."""

# --- properties of MQTT 5 that the kernels know (5.0 table 2-4) ------------------------------

PAYLOAD_FORMAT: Final = 0x01
MESSAGE_EXPIRY: Final = 0x02
CONTENT_TYPE: Final = 0x03
RESPONSE_TOPIC: Final = 0x08
CORRELATION_DATA: Final = 0x09
SUBSCRIPTION_IDENTIFIER: Final = 0x0B
REASON_STRING: Final = 0x1F
TOPIC_ALIAS: Final = 0x23
USER_PROPERTY: Final = 0x26

BLOCK_HEAD: Final = b"PMQ_MQTT5\x01"
"""How the property of a record begins that has the properties of its PUBLISH, in base64."""

# --- packet types that the kernels know, as the high half of the first byte -----------------

TYPE_PUBLISH: Final = 3
TYPE_PUBACK: Final = 4
TYPE_PUBREC: Final = 5
TYPE_PUBREL: Final = 6
TYPE_PUBCOMP: Final = 7
TYPE_PUBREC_ERROR: Final = 0x85
"""Of acknowledgement runs only: PUBRECs with the reason code of an error, which end a message
[MQTT-4.3.3-4]."""

# --- sizes ---------------------------------------------------------------------------------

ACK_COLUMNS: Final = 3
"""An acknowledgement run is three integers: packet type, first packet id, count. Behind the type
stands the reason code that all of the run have, from `ACK_REASON_SHIFT` on."""
ACK_REASON_SHIFT: Final = 8
ACK_TYPE: Final = 0xFF
"""The bits of the type itself."""
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
