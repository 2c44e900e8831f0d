"""What the headers of a message are, for headers exchanges: those that a consumer would see.

The engine asks when a route depends on headers (`HeaderReader` of the port). Nothing else of a
message's properties is decoded for it.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Final

from polymq.gateways.amqp.errors import Malformed
from polymq.gateways.amqp.mapping import EXTRA_NAME, headers_span, translate_properties
from polymq.gateways.amqp.tables import decode_table

_NONE: Final[Mapping[str, object]] = {}


class AmqpHeaders:
    """`broker.port.HeaderReader`."""

    extra_name = EXTRA_NAME

    def table(self, raw: bytes) -> bytes:
        """The pairs of the headers of well-formed properties; empty if there are none."""
        start, end = headers_span(raw)
        return raw[start:end]

    def decode(self, table: bytes) -> Mapping[str, object]:
        """Headers by name. A table that passes the limits of `tables.py` has none: it is carried,
        and matches nothing."""
        try:
            return decode_table(table, 0, len(table))
        except Malformed:
            return _NONE

    def of_properties(self, properties: Mapping[str, str]) -> Mapping[str, object]:
        """The headers of a message of any origin."""
        stored = properties.get(EXTRA_NAME)
        raw = translate_properties(properties) if stored is None else base64.b64decode(stored)
        return self.decode(self.table(raw))
