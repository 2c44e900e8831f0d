"""Topic aliases: numbers that stand for topic names, on one connection and in one direction. A
client sets those of what it publishes, and the server those of what it sends."""

from __future__ import annotations

from typing import Final

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


NAMED_BYTES_MIN: Final = 4
"""Shorter names gain nothing: an alias is three bytes."""
NAMED_BYTES_MAX: Final = 1024
"""Longer names get none: the server would have to keep them for each connection."""
REPLACED_EVERY: Final = 8
"""Of so many runs of messages to topics without an alias, one takes over the alias that was not
used for longest. So aliases follow a client whose topics change, and one that gets more topics in
turn than there are aliases pays 3 bytes in every eighth run."""
_SIZE_BYTES: Final = 2


class OutgoingAliases:
    """Aliases that the server gives to topics of one client, for as long as it is connected
    [MQTT-3.3.2-7]. The first topics get them.

    Args:
        alias_max: the highest that there may be [MQTT-3.3.2-11], and how many there are.
    """

    __slots__ = ("_alias_max", "_aliases", "_until_replaced")

    def __init__(self, alias_max: int) -> None:
        self._alias_max = alias_max
        self._aliases: dict[bytes, int] = {}  # by topic field; what was used last is at the end
        self._until_replaced = REPLACED_EVERY

    def known(self, topic: bytes) -> int:
        """The alias that the client knows of this topic field; 0: none."""
        aliases = self._aliases
        alias = aliases.get(topic, 0)
        if alias:
            del aliases[topic]
            aliases[topic] = alias
        return alias

    def offered(self, topic: bytes) -> int:
        """The alias that this topic field, which has none, may have; 0: none. `give` it when a
        packet says so to the client."""
        if not NAMED_BYTES_MIN <= len(topic) - _SIZE_BYTES <= NAMED_BYTES_MAX:
            return 0
        aliases = self._aliases
        if len(aliases) < self._alias_max:
            return len(aliases) + 1
        self._until_replaced -= 1
        if self._until_replaced:
            return 0
        self._until_replaced = REPLACED_EVERY
        return aliases[next(iter(aliases))]

    def give(self, topic: bytes, alias: int) -> None:
        """A packet tells the client that this alias, which was offered, is of this topic field."""
        aliases = self._aliases
        if alias <= len(aliases):
            del aliases[next(iter(aliases))]
        aliases[topic] = alias
