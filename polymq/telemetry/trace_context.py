"""The trace that a message belongs to: W3C Trace Context, as each protocol's clients send it. Pure.

A `traceparent` is `00-<32 digits of trace>-<16 digits of span>-<2 digits of flags>`, in lower case.
Later versions may have more behind it, after a dash. `tracestate` is passed on as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from polymq.broker.messages.amqp_content import AMQP_PROPERTY, read_amqp_content
from polymq.broker.messages.mqtt_properties import (
    MQTT5_PROPERTY,
    event_headers,
    read_mqtt_content,
    unique_user_properties,
)

PARENT: Final = "traceparent"
STATE: Final = "tracestate"
STATE_CHARACTERS_MAX: Final = 512
"""Of a `tracestate` (W3C Trace Context, 3.3.1.5); a longer one is left out."""
_FORM: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED: Final = 0x01


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceContext:
    """Where a message stands in a sampled trace.

    Attributes:
        trace_id, span_id: of the span that published it.
        state: what vendors add.
    """

    trace_id: bytes
    span_id: bytes
    state: str = ""


def parse_parent(text: str, state: str = "") -> TraceContext | None:
    """What a `traceparent` says; None if it is not valid, or its trace is not sampled."""
    found = _FORM.fullmatch(text)
    if found is None:
        return None
    version, trace, span, flags, more = found.groups()
    if version == "ff" or (version == "00" and more is not None):
        return None
    if not int(trace, 16) or not int(span, 16) or not int(flags, 16) & _SAMPLED:
        return None
    if len(state) > STATE_CHARACTERS_MAX:
        state = ""
    return TraceContext(trace_id=bytes.fromhex(trace), span_id=bytes.fromhex(span), state=state)


def trace_context_of(properties: Mapping[str, str]) -> TraceContext | None:
    """The sampled trace that a message with these properties belongs to."""
    found = _named_values(properties)
    return parse_parent(found[PARENT], found.get(STATE, "")) if PARENT in found else None


def _named_values(properties: Mapping[str, str]) -> Mapping[str, str]:
    """Where the names of Trace Context stand."""
    if PARENT in properties:
        return properties
    if AMQP_PROPERTY in properties:
        return event_headers(read_amqp_content(properties[AMQP_PROPERTY]))
    if MQTT5_PROPERTY in properties:
        return unique_user_properties(read_mqtt_content(properties[MQTT5_PROPERTY]))
    return {}
