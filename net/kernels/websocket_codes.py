"""Why the WebSocket kernel stopped: one declaration for both of its forms and their callers."""

from __future__ import annotations

from typing import Final

GOING_ON: Final = 0
"""It did not: more frames may come."""
CLOSED: Final = 1
"""The client sent Close. No data comes behind it (RFC 6455 part 5.5.1)."""

BROKEN: Final = 2
"""Stops from here on say what is wrong with a frame. What came before it was handed on."""
BROKEN_RESERVED: Final = 2
"""A reserved bit is set: nothing was negotiated that gives it a meaning (part 5.2)."""
BROKEN_OPCODE: Final = 3
"""An opcode that has no meaning (part 5.2)."""
BROKEN_TEXT: Final = 4
"""A text frame [MQTT-6.0.0-1]."""
BROKEN_CONTROL_CUT: Final = 5
"""A control frame in fragments (part 5.5)."""
BROKEN_CONTROL_LONG: Final = 6
"""A control frame with more than 125 bytes (part 5.5)."""
BROKEN_CONTINUATION: Final = 7
"""A continuation, and no message was begun (part 5.4)."""
BROKEN_BEGINNING: Final = 8
"""A message begins, and the one before it has not ended (part 5.4)."""
BROKEN_UNMASKED: Final = 9
"""A client masks all its frames (part 5.1)."""
BROKEN_LENGTH: Final = 10
"""A length in more bytes than it needs, or with its highest bit set (part 5.2)."""
BROKEN_LARGE: Final = 11
"""A frame that is longer than the limit."""

CONTROL_BYTES_MAX: Final = 125
"""What a control frame may carry (part 5.5)."""
