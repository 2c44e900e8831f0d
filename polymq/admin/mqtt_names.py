"""Topic names and filters of MQTT, as operators write and read them."""

from __future__ import annotations

from polymq.broker.port import (
    ONE_LEVEL,
    REST,
    Address,
    BrokerPort,
    Reason,
    Refused,
    is_shared,
    pattern_of,
    share_name_of,
)
from polymq.gateways.mqtt.errors import RemoteProtocolError
from polymq.gateways.mqtt.fields import decode_filter
from polymq.gateways.mqtt.limits import Limits
from polymq.gateways.mqtt.mapping import TopicMapping
from polymq.gateways.mqtt.topic_filters import shared_filter

_WILDCARDS = {ONE_LEVEL: "+", REST: "#"}


class MqttNames:
    """The names of the MQTT listeners.

    Args:
        fixed_topic: the setting `mqtt.topic`; empty: none.
    """

    def __init__(self, port: BrokerPort, fixed_topic: str) -> None:
        self._fixed = fixed_topic or None
        self._mapping = TopicMapping(port=port, limits=Limits(), fixed_topic=self._fixed)

    def pattern(self, text: str) -> Address:
        """The pattern of a topic filter that is not shared. Raises Refused: BAD_ARGUMENT."""
        try:
            decoded = decode_filter(text.encode("utf-8", "surrogatepass"))
            address = self._mapping.address(decoded)
        except RemoteProtocolError:
            raise Refused(Reason.BAD_ARGUMENT, f"{text!r} is not a topic filter") from None
        except Refused as error:
            raise Refused(Reason.BAD_ARGUMENT, f"{text!r}: {error.text}") from None
        if is_shared(address):
            raise Refused(
                Reason.BAD_ARGUMENT,
                f"{text!r} is a shared subscription: give its topic filter alone",
            )
        return address

    def address(self, name: str) -> Address:
        """The address of a topic name."""
        topic, tag = self._mapping.topic_and_tag(name)
        return (topic,) if tag is None else (topic, *tag.split("."))

    def name(self, address: Address) -> str:
        """The topic name of an address, or the topic filter of a subscription."""
        if is_shared(address):
            return shared_filter(share_name_of(address), self.name(pattern_of(address)))
        first, *levels = address
        if not _WILDCARDS.keys() & set(address):
            return self._mapping.name(first, ".".join(levels) if levels else None)
        shown = [_WILDCARDS.get(level) or self._level(level) for level in levels]
        if first != self._fixed:
            shown.insert(0, _WILDCARDS.get(first) or self._mapping.name(first, None))
        return "/".join(shown)

    def _level(self, level: str) -> str:
        return self._mapping.name("t", level).removeprefix("t/")
