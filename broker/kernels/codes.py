"""Numbers that kernels and their callers share."""

from __future__ import annotations

from typing import Final

JOINED_COUNT_MAX: Final = 1024
"""Messages of a run that others may still join: beyond that it saves nothing any more."""
PACKET_IDS: Final = 65_535
"""How many packet identifiers a session has [MQTT-2.3.1-1]."""
