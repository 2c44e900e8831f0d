"""Topic aliases that a client sets: numbers that stand for topic names, on one connection."""

from __future__ import annotations

from polymq.gateways.mqtt.errors import RemoteProtocolError
from polymq.gateways.mqtt.kernels.codes import ALIAS_SHIFT
from polymq.gateways.mqtt.reason_codes import ReasonCode


def name_of(aliases: dict[int, bytes], topic: bytes, flags: int, alias_max: int) -> bytes:
    """The topic name of a PUBLISH, which may have a Topic Alias in its FLAGS: a name sets the
    alias, no name asks for what it stands for (5.0 part 3.3.2.3.4).

    Raises:
        RemoteProtocolError: there is no such alias, or it is above the maximum.
    """
    alias = flags >> ALIAS_SHIFT & 0xFFFF
    if not alias:
        return topic
    if alias > alias_max:
        raise RemoteProtocolError(
            "MQTT-3.3.2-9", "a Topic Alias above the maximum", ReasonCode.TOPIC_ALIAS_INVALID
        )
    if topic:
        aliases[alias] = topic
        return topic
    if alias not in aliases:
        raise RemoteProtocolError("5.0 part 3.3.2.3.4", "a Topic Alias that was not set")
    return aliases[alias]
